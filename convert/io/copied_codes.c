/* Copies bytes, and scans codes and scales for NaN. */
#include "convert/io/copied_codes.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "quantize/fp8_decode.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PIECE = 4096, SCALES = 256 }; /* elements that are checked together */

void tsr_step_copies_scales(tsr_step *step, tsr_dtype dtype)
{
    step->scales = (uint8_t)(1 + dtype);
}

void tsr_plan_copies_scales(tsr_plan *plan, tsr_dtype dtype)
{
    tsr_step_copies_scales(&plan->steps[plan->n_steps - 1], dtype);
}

/* Returns true if a byte is a NaN code, or a scale that is NaN or negative. */
static bool is_wrong(const tsr_copied *c, uint8_t byte)
{
    return c->dtype == TSR_F8_E8M0 ? byte == 0xFF : (byte & 0x7F) == 0x7F || (c->scales && byte > 0x7E);
}

/* Returns true if one of the codes is NaN. Tests eight at a time: adding 1 to the bits below the sign carries into the
 * sign if all are set. */
static bool holds_nan(const uint8_t *codes, size_t n)
{
    uint64_t carried = 0;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t x;
        memcpy(&x, codes + i, sizeof x);
        carried |= (x & 0x7F7F7F7F7F7F7F7F) + 0x0101010101010101;
    }
    return (carried & 0x8080808080808080) != 0;
}

/* Returns the index of the first wrong byte, or n if there is none. */
static uint64_t first_wrong_byte(const tsr_copied *c, const uint8_t *x, uint64_t n)
{
    const bool codes = !c->scales;
    for (uint64_t at = 0; at < n; at++) {
        while (codes && at + PIECE <= n && !holds_nan(x + at, PIECE))
            at += PIECE;
        if (at < n && is_wrong(c, x[at]))
            return at;
    }
    return n;
}

/* Returns the index of the first scale that is NaN, infinite or negative, or n if there is none. */
static uint64_t first_wrong_scale(const tsr_copied *c, const uint8_t *x, uint64_t n, const tsr_cpu_kernels *kernels)
{
    float scales[SCALES];
    for (uint64_t at = 0; at < n; at += SCALES) {
        const uint64_t m = tsr_min_u64(SCALES, n - at);
        tsr_widen_to_f32(kernels, c->dtype, x + at * tsr_dtype_bytes(c->dtype), m, scales);
        for (uint64_t i = 0; i < m; i++) {
            if (!(scales[i] >= 0 && scales[i] <= FLT_MAX))
                return at + i;
        }
    }
    return n;
}

/* Formats the position of an element in its tensor: "[2, 3]". */
static const char *place(const tsr_tensor *t, uint64_t element, char *text, size_t size)
{
    tsr_tensor at = *t;
    for (unsigned d = t->rank; d-- > 0;) {
        at.shape[d] = element % t->shape[d];
        element /= t->shape[d];
    }
    return tsr_shape_text(&at, text, size);
}

static tsr_status refuse(const tsr_copied *c, uint64_t byte, const tsr_cpu_kernels *kernels, tsr_err *err)
{
    const tsr_tensor *const t = c->tensor;
    const tsr_window *const w = c->window;
    const uint64_t width = tsr_dtype_bytes(c->dtype);
    const uint64_t offset = w->offset + byte / w->row_bytes * w->pitch + byte % w->row_bytes;
    const uint8_t *const x = (const uint8_t *)c->data + byte;
    char text[192], number[32];
    float value;
    place(t, offset / width, text, sizeof text);
    if (!c->scales)
        return tsr_fail_tensor(err, TSR_ERROR_DAMAGED, TSR_E_VALUE, t->name,
                               "code NaN at %s, file offset %llu: the checkpoint is damaged", text,
                               U64(t->offset + offset));
    if (c->dtype == TSR_F8_E4M3)
        value = tsr_e4m3_to_f32(*x);
    else
        tsr_widen_to_f32(kernels, c->dtype, x, 1, &value);
    snprintf(number, sizeof number, "%g", (double)value);
    return tsr_fail_tensor(err, TSR_ERROR_DAMAGED, TSR_E_VALUE, t->name,
                           "the scale at %s is %s, file offset %llu: not a valid scale; the checkpoint is damaged",
                           text, isnan(value) ? "NaN" : number, U64(t->offset + offset));
}

tsr_status tsr_check_copied_as(const tsr_copied *c, uint64_t at, uint64_t n, const tsr_cpu_kernels *kernels,
                               tsr_err *err)
{
    const uint8_t *const x = (const uint8_t *)c->data + at;
    const uint64_t width = tsr_dtype_bytes(c->dtype);
    const uint64_t wrong = width == 1 ? first_wrong_byte(c, x, n) : first_wrong_scale(c, x, n / width, kernels) * width;
    return wrong == n ? TSR_OK : refuse(c, at + wrong, kernels, err);
}

/* Finds the dtype for checking the step's input. Returns false if the input holds neither codes nor scales. */
static bool reads_as(const tsr_step *step, const tsr_tensor *t, tsr_copied *c)
{
    c->dtype = step->scales != 0 ? (tsr_dtype)(step->scales - 1) : (tsr_dtype)t->dtype;
    c->scales = step->scales != 0 || c->dtype == TSR_F8_E8M0;
    return c->scales || c->dtype == TSR_F8_E4M3;
}

bool tsr_copies_codes(const tsr_step *step)
{
    tsr_copied c = {0};
    return reads_as(step, step->in[0], &c);
}

tsr_status tsr_check_copied(const tsr_step *step, const tsr_unit *u, unsigned i, uint64_t at, uint64_t n,
                            const tsr_cpu_kernels *kernels, tsr_err *err)
{
    tsr_copied c = {.tensor = step->in[u->from[i]], .window = &u->in[i], .data = u->in_data[i]};
    return reads_as(step, c.tensor, &c) ? tsr_check_copied_as(&c, at, n, kernels, err) : TSR_OK;
}

/* ---- the operation that copies ---- */

static uint64_t copy_units(const tsr_step *step)
{
    return tsr_ceil_div(step->in[0]->bytes, TSR_UNIT_BYTES);
}

static void copy_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const uint64_t offset = unit * TSR_UNIT_BYTES;
    const uint64_t bytes = tsr_min_u64(TSR_UNIT_BYTES, step->in[0]->bytes - offset);
    u->in[0] = u->out[0] = (tsr_window){.offset = offset, .rows = 1, .row_bytes = bytes, .pitch = bytes};
}

static tsr_status copy_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)unit, (void)stats;
    const uint64_t bytes = tsr_window_bytes(&u->in[0]);
    for (uint64_t at = 0; at < bytes; at += TSR_PIECE_BYTES) {
        const uint64_t n = tsr_min_u64(TSR_PIECE_BYTES, bytes - at);
        TSR_TRY(tsr_check_copied(step, u, 0, at, n, kernels, err));
        memcpy((char *)u->out_data[0] + at, (const char *)u->in_data[0] + at, n);
        tsr_unit_made(u, at + n);
    }
    return TSR_OK;
}

const tsr_op tsr_copy_op = {.name = "copy", .units = {copy_units, copy_windows, NULL, copy_run}};
