/* Computes source sums, and writes them with their windows into the manifest. */
#include "convert/records/source_sums.h"

#include "formats/json/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool tsr_step_rows_begin(tsr_step_rows *rows, size_t n_steps)
{
    *rows = (tsr_step_rows){.stats = calloc(n_steps + 1, sizeof *rows->stats),
                            .sums = calloc(n_steps + 1, sizeof *rows->sums)};
    return rows->stats != NULL && rows->sums != NULL;
}

void tsr_step_rows_free(tsr_step_rows *rows)
{
    free(rows->stats);
    free(rows->sums);
    *rows = (tsr_step_rows){0};
}

void tsr_step_rows_copy(const tsr_step_rows *to, const tsr_step_rows *from, const tsr_out_file *f)
{
    memcpy(to->stats + f->first_step, from->stats + f->first_step, f->n_steps * sizeof *to->stats);
    memcpy(to->sums + f->first_step, from->sums + f->first_step, f->n_steps * sizeof *to->sums);
}

void tsr_step_rows_clear(const tsr_step_rows *rows, const tsr_out_file *f)
{
    memset(rows->stats + f->first_step, 0, f->n_steps * sizeof *rows->stats);
    memset(rows->sums + f->first_step, 0, f->n_steps * sizeof *rows->sums);
}

/* ---- sums ---- */

static void put_u64(unsigned char *to, uint64_t value)
{
    for (unsigned i = 0; i < 8; i++)
        to[i] = (unsigned char)(value >> (8 * i));
}

static tsr_digest place_digest(tsr_digest digest, uint64_t offset, uint64_t input)
{
    unsigned char record[32];
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, digest);
    memcpy(record, &bytes, sizeof bytes);
    put_u64(record + 16, offset);
    put_u64(record + 24, input);
    return XXH3_128bits(record, sizeof record);
}

tsr_source_sum tsr_source_sum_of(const tsr_step *step, const tsr_unit *u, const tsr_cpu_kernels *kernels)
{
    tsr_source_sum sum = {0};
    for (unsigned i = 0; i < TSR_MAX_INPUTS && step->coproduced_by == 0; i++) {
        const tsr_window *const w = &u->in[i];
        if (w->rows == 0)
            continue;
        const tsr_digest one = place_digest(tsr_digest_of(kernels, u->in_data[i], tsr_window_bytes(w)),
                                            step->in[u->from[i]]->offset + w->offset, u->from[i]);
        sum.low += one.low64;
        sum.high += one.high64;
    }
    return sum;
}

void tsr_source_sum_add(tsr_source_sum *total, const tsr_source_sum *more)
{
    total->high += more->high;
    total->low += more->low;
}

/* ---- the manifest ---- */

/* A window of input number `input`; `order` is its number in the step. */
typedef struct reading {
    uint32_t input;
    uint64_t order;
    tsr_window window;
} reading;

static int by_input(const void *a, const void *b)
{
    const reading *const x = a, *const y = b;
    if (x->input != y->input)
        return x->input < y->input ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static size_t gather(const tsr_step *step, reading *to)
{
    size_t n = 0;
    for (uint64_t unit = 0, units = step->op->units.count(step); unit < units; unit++) {
        const tsr_unit u = tsr_step_unit(step, unit);
        for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
            if (u.in[i].rows == 0)
                continue;
            if (to != NULL)
                to[n] = (reading){.input = u.from[i], .order = n, .window = u.in[i]};
            n++;
        }
    }
    return n;
}

/* Appends a window. One that follows the last window without a gap is written as its number of bytes alone. */
static void add_window(tsr_text *t, uint64_t offset, const tsr_window *w, uint64_t *end)
{
    const uint64_t bytes = tsr_window_bytes(w);
    if (tsr_window_is_gapless(w) && offset == *end) {
        tsr_json_u64(t, bytes);
    } else {
        const bool gapless = tsr_window_is_gapless(w);
        tsr_json_begin_array(t, true);
        tsr_json_u64(t, offset);
        tsr_json_u64(t, gapless ? 1 : w->rows);
        tsr_json_u64(t, gapless ? bytes : w->row_bytes);
        tsr_json_u64(t, gapless ? bytes : w->pitch);
        tsr_json_end_array(t);
    }
    *end = offset + bytes;
}

static void add_input(tsr_text *t, const tsr_plan *plan, const tsr_tensor *in, const reading *r, size_t n)
{
    uint64_t end = in->offset + r->window.offset;
    tsr_json_begin_object(t, true);
    tsr_json_member_u64(t, "input", r->input);
    tsr_json_member_u64(t, "source", in->source);
    tsr_json_member_string(t, "file", plan->sources[in->source]->files[in->file].name);
    tsr_json_member_string(t, "name", in->name);
    tsr_json_member_u64(t, "offset", end);
    tsr_json_member_array(t, "windows", true);
    for (size_t i = 0; i < n; i++)
        add_window(t, in->offset + r[i].window.offset, &r[i].window, &end);
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

tsr_status tsr_source_sum_write(tsr_text *t, const tsr_plan *plan, const tsr_step *step, const tsr_source_sum *sum,
                                tsr_err *err)
{
    const size_t n = step->coproduced_by > 0 ? 0 : gather(step, NULL);
    char hex[33];
    if (n == 0)
        return TSR_OK;
    reading *const all = malloc(n * sizeof *all);
    if (all == NULL)
        return tsr_out_of_memory(err, "for the manifest");
    (void)gather(step, all);
    qsort(all, n, sizeof *all, by_input);
    snprintf(hex, sizeof hex, "%016llx%016llx", (unsigned long long)sum->high, (unsigned long long)sum->low);
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "xxh128_sum", hex);
    tsr_json_member_array(t, "inputs", false);
    for (size_t i = 0, m; i < n; i += m) {
        for (m = 1; i + m < n && all[i + m].input == all[i].input;)
            m++;
        add_input(t, plan, step->in[all[i].input], &all[i], m);
    }
    tsr_json_end_array(t);
    tsr_json_end_object(t);
    free(all);
    return TSR_OK;
}
