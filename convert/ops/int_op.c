/* Quantizes to integers. A unit is some whole rows with their codes, scales, zero points and sums. */
#include "convert/ops/int_op.h"

#include "common/float_bits.h"
#include "convert/ops/rows/buffered_scales.h"
#include "convert/ops/rows/rows.h"
#include "quantize/gptq/gptq.h"
#include "quantize/integer_decode.h"

#include <string.h>

typedef struct params {
    tsr_int_scheme scheme;
    tsr_static_input input; /* for W8A8 with static activations */
    tsr_column_importance importance;
    tsr_factor_cache *factors; /* for GPTQ; NULL: codes are the nearest ones */
} params;

static const params *params_of(const tsr_step *step)
{
    return step->params;
}

static uint64_t rows_of(const tsr_step *step)
{
    return step->in[0]->shape[0];
}

static uint64_t cols_of(const tsr_step *step)
{
    return step->in[0]->shape[1];
}

/* Multiples of 8 rows, so that no two units share a word of packed zero points. */
static uint64_t unit_rows(const tsr_step *step)
{
    return tsr_unit_rows(step->in[0], 8);
}

static uint64_t int_units(const tsr_step *step)
{
    return tsr_ceil_div(rows_of(step), unit_rows(step));
}

static uint64_t rows_in(const tsr_step *step, uint64_t unit)
{
    return tsr_min_u64(unit_rows(step), rows_of(step) - unit * unit_rows(step));
}

static void int_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const uint64_t row = unit * unit_rows(step), rows = rows_in(step, unit);
    u->in[0] = tsr_rows_window(step->in[0], row, rows);
    if ((step->buffered & 1) == 0)
        u->out[0] = tsr_rows_window(step->out[0], row, rows);
}

/* Returns true if the first output is the codes, one byte each. */
static bool gives_codes(const tsr_step *step)
{
    return step->out[0]->dtype == TSR_I8 && step->out[0]->shape[1] == cols_of(step);
}

/* Scratch of a unit: importance of the columns; codes, unless they are written directly to the output; FP32 scales;
 * zero points. */
typedef struct scratch {
    uint64_t quantizing, importance, codes, scales, zeros, gptq; /* bytes */
} scratch;

static scratch scratch_of(const tsr_step *step)
{
    const tsr_int_scheme *const scheme = &params_of(step)->scheme;
    const uint64_t rows = unit_rows(step), groups = tsr_int_groups(scheme, cols_of(step));
    return (scratch){
        .quantizing = tsr_round_up(tsr_int_scratch(scheme, cols_of(step)), 64),
        .importance = params_of(step)->importance.entry == NULL ? 0 : tsr_round_up(cols_of(step) * sizeof(float), 64),
        .codes = gives_codes(step) ? 0 : tsr_round_up(rows * cols_of(step), 64),
        .scales = tsr_round_up(rows * groups * sizeof(float), 64),
        .zeros = tsr_round_up(rows * groups, 64),
        .gptq = params_of(step)->factors == NULL ? 0 : tsr_gptq_scratch(cols_of(step)),
    };
}

static uint64_t int_scratch(const tsr_step *step)
{
    const scratch s = scratch_of(step);
    return s.quantizing + s.importance + s.codes + s.scales + s.zeros + s.gptq;
}

/* Quantizes rows by GPTQ. `memory` is scratch. */
static tsr_status calibrate(const tsr_step *step, const unsigned char *products, const tsr_cpu_kernels *kernels,
                            const tsr_int_rows *rows, void *memory, tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = params_of(step);
    const tsr_hessian_factor *factor;
    const int8_t lowest = p->scheme.bits == 8 ? -128 : -8;
    tsr_gptq_errors errors = {0, 0};
    TSR_TRY(tsr_int_quantize(&p->scheme, kernels, rows, NULL, err));
    TSR_TRY(tsr_factor_cache_take(p->factors, products, cols_of(step), p->importance.products->name, kernels, &factor,
                                  err));
    tsr_gptq_round(factor, kernels,
                   &(tsr_gptq_rows){.rows = rows->rows,
                                    .group = p->scheme.group == 0 ? cols_of(step) : p->scheme.group,
                                    .dtype = (tsr_dtype)rows->tensor->dtype,
                                    .x = rows->x,
                                    .scale = rows->scales,
                                    .zero = rows->zero_points,
                                    .low = lowest,
                                    .high = (int8_t)(-1 - lowest),
                                    .codes = rows->codes,
                                    .scratch = memory},
                   &errors);
    tsr_factor_cache_release(p->factors, factor);
    if (stats == NULL)
        return TSR_OK;
    stats->output_d2 += errors.chosen;
    stats->nearest_d2 += errors.nearest;
    tsr_int_measure(&p->scheme, kernels, rows, stats);
    return TSR_OK;
}

/* Quantizes a unit and writes its codes to the first output or to scratch. `stats` may be NULL. */
static tsr_status quantize(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_int_rows *rows, tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_int_scheme *const scheme = &params_of(step)->scheme;
    const scratch s = scratch_of(step);
    char *const memory = (char *)u->scratch + s.quantizing + s.importance;
    float *const importance = (float *)((char *)u->scratch + s.quantizing);
    const bool weighted = tsr_importance_of(&params_of(step)->importance, 0, 0, cols_of(step), importance);
    *rows = (tsr_int_rows){
        .tensor = step->in[0],
        .row = unit * unit_rows(step),
        .rows = rows_in(step, unit),
        .x = u->in_data[0],
        .codes = gives_codes(step) ? u->out_data[0] : (int8_t *)memory,
        .scales = (float *)(memory + s.codes),
        .zero_points = scheme->asymmetric ? (int8_t *)memory + s.codes + s.scales : NULL,
        .importance = weighted ? importance : NULL,
        .scratch = u->scratch,
        .notes = stats == NULL ? NULL : u->notes,
    };
    const params *const p = params_of(step);
    const unsigned char *const products = p->factors == NULL ? NULL : tsr_importance_products(&p->importance, 0);
    if (products != NULL)
        return calibrate(step, products, kernels, rows, memory + s.codes + s.scales + s.zeros, stats, err);
    return tsr_int_quantize(scheme, kernels, rows, stats, err);
}

static void int_blocks(const tsr_step *step, tsr_block_map *map, tsr_code_bins *bins)
{
    const tsr_int_scheme *const scheme = &params_of(step)->scheme;
    *map = (tsr_block_map){.shape = {1, rows_of(step), cols_of(step)},
                           .block = {1, 1, scheme->group == 0 ? cols_of(step) : scheme->group}};
    *bins = scheme->bits == 8 ? TSR_BINS_INT8 : TSR_BINS_INT4;
}

/* ---- int8, unpacked ---- */

/* Stores the row sums of codes in X.azp_adj and, if that is an output, the sums times the zero point in
 * X.azp_with_adj. */
static void store_sums(const tsr_step *step, const tsr_cpu_kernels *kernels, const tsr_int_rows *rows,
                       void *const out[2])
{
    int32_t *const sums = out[0], *const products = out[1];
    for (uint64_t r = 0; r < rows->rows; r++) {
        const int32_t sum = kernels->sum_codes(rows->codes + r * cols_of(step), cols_of(step));
        sums[rows->row + r] = sum;
        if (products != NULL)
            products[rows->row + r] = sum * params_of(step)->input.value.zero_point;
    }
}

static tsr_status int8_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    tsr_int_rows rows;
    TSR_TRY(quantize(step, unit, u, kernels, &rows, stats, err));
    if (unit == 0 && step->n_out > 2)
        *(float *)u->out_data[2] = params_of(step)->input.value.scale;
    if (unit == 0 && step->n_out > 3)
        *(int8_t *)u->out_data[3] = (int8_t)params_of(step)->input.value.zero_point;
    tsr_buffered_scales_store(params_of(step)->scheme.scale_dtype, rows.scales, rows.rows, u->out_data[1], rows.row);
    if (u->coproduced_data[0] != NULL)
        store_sums(step, kernels, &rows, u->coproduced_data);
    return TSR_OK;
}

static const tsr_op kInt8Op = {.name = "quantize int8",
                               .units = {int_units, int_windows, int_scratch, int8_run},
                               .finish = tsr_buffered_scales_finish,
                               .stats_of = TSR_STATS_SOURCE,
                               .blocks = int_blocks};

/* ---- packed ---- */

static tsr_status packed_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                             tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_int_scheme *const scheme = &params_of(step)->scheme;
    const uint64_t groups = tsr_int_groups(scheme, cols_of(step));
    tsr_int_rows rows;
    TSR_TRY(quantize(step, unit, u, kernels, &rows, stats, err));
    tsr_int_pack(kernels, scheme->bits, rows.codes, rows.rows * cols_of(step), u->out_data[0]);
    tsr_buffered_scales_store(scheme->scale_dtype, rows.scales, rows.rows * groups, u->out_data[1], rows.row * groups);
    if (unit == 0) {
        const int64_t shape[2] = {(int64_t)rows_of(step), (int64_t)cols_of(step)};
        memcpy(u->out_data[2], shape, sizeof shape);
    }
    if (scheme->asymmetric)
        tsr_buffered_zeros_pack(scheme->bits, rows.zero_points, rows.row, rows.rows, groups, u->out_data[3]);
    return TSR_OK;
}

static const tsr_op kPackedOp = {.name = "quantize packed integers",
                                 .units = {int_units, int_windows, int_scratch, packed_run},
                                 .finish = tsr_buffered_scales_finish,
                                 .stats_of = TSR_STATS_SOURCE,
                                 .blocks = int_blocks};

/* ---- two codes per byte ---- */

/* Packs codes in the order of words, then changes them from an offset of 8 to two's complement. */
static tsr_status nibbles_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                              tsr_quant_stats *stats, tsr_err *err)
{
    const tsr_int_scheme *const scheme = &params_of(step)->scheme;
    const uint64_t groups = tsr_int_groups(scheme, cols_of(step));
    uint8_t *const bytes = u->out_data[0];
    tsr_int_rows rows;
    TSR_TRY(quantize(step, unit, u, kernels, &rows, stats, err));
    const uint64_t codes = rows.rows * cols_of(step);
    tsr_int_pack(kernels, scheme->bits, rows.codes, codes, bytes);
    for (uint64_t i = 0; i < codes / 2; i++)
        bytes[i] ^= 0x88;
    tsr_buffered_scales_store(scheme->scale_dtype, rows.scales, rows.rows * groups, u->out_data[1], rows.row * groups);
    if (unit == 0)
        tsr_buffered_scales_store(TSR_BF16, &params_of(step)->input.value.scale, 1, u->out_data[2], 0);
    return TSR_OK;
}

static const tsr_op kNibblesOp = {.name = "quantize int4, two codes per byte",
                                  .units = {int_units, int_windows, int_scratch, nibbles_run},
                                  .finish = tsr_buffered_scales_finish,
                                  .stats_of = TSR_STATS_SOURCE,
                                  .blocks = int_blocks};

/* ---- azp_adj ---- */

/* Runs only if the codes are not made in the same run. Otherwise their step coproduces the sums. */
static tsr_status azp_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                          tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats; /* reported by the step that writes the codes */
    tsr_int_rows rows;
    TSR_TRY(quantize(step, unit, u, kernels, &rows, NULL, err));
    store_sums(step, kernels, &rows, (void *const[2]){u->out_data[0], step->n_out > 1 ? u->out_data[1] : NULL});
    return TSR_OK;
}

static const tsr_op kAzpOp = {.name = "azp_adj", .units = {int_units, int_windows, int_scratch, azp_run}};

/* ---- steps ---- */

static tsr_tensor *member(tsr_plan *plan, const tsr_tensor *weight, const char *ending, tsr_dtype dtype, unsigned rank,
                          uint64_t a, uint64_t b)
{
    return tsr_plan_new_member(plan, weight, ending, dtype, rank, (const uint64_t[]){a, b});
}

static tsr_status add_step(tsr_plan *plan, const tsr_op *op, const tsr_tensor *weight, const params *p,
                           tsr_tensor *const *out, uint8_t n_out, uint8_t buffered, tsr_err *err)
{
    params *const copy = tsr_arena_alloc(&plan->arena, sizeof *copy);
    tsr_step step = {.op = op, .params = copy, .in = &weight, .n_in = 1, .n_out = n_out, .buffered = buffered};
    bool ok = copy != NULL;
    for (unsigned i = 0; i < n_out; i++) {
        step.out[i] = out[i];
        ok = ok && out[i] != NULL;
    }
    if (!ok)
        return tsr_out_of_memory(err, "while planning");
    *copy = *p;
    TSR_TRY(tsr_plan_weigh(plan, weight, &copy->importance, err));
    TSR_TRY(tsr_plan_calibrate(plan, weight, &copy->importance, &copy->factors, err));
    return tsr_plan_step(plan, &step, err);
}

static params params_with(const tsr_int_scheme *scheme, const tsr_static_input *input)
{
    params p = {.scheme = *scheme};
    if (input != NULL)
        p.input = *input;
    return p;
}

tsr_status tsr_plan_int8(tsr_plan *plan, const tsr_tensor *weight, const tsr_int_scheme *scheme,
                         const tsr_static_input *input, tsr_err *err)
{
    const params p = params_with(scheme, input);
    tsr_tensor *const out[] = {
        member(plan, weight, ".weight", TSR_I8, 2, weight->shape[0], weight->shape[1]),
        member(plan, weight, ".weight_scale", scheme->scale_dtype, 2, weight->shape[0], 1),
        member(plan, weight, ".input_scale", TSR_F32, 1, 1, 0),
        member(plan, weight, ".input_zero_point", TSR_I8, 1, 1, 0),
    };
    const uint8_t n = input == NULL ? 2 : input->asymmetric ? 4 : 3;
    return add_step(plan, &kInt8Op, weight, &p, out, n, 0xE, err);
}

tsr_status tsr_plan_packed(tsr_plan *plan, const tsr_tensor *weight, const tsr_int_scheme *scheme, tsr_err *err)
{
    const params p = params_with(scheme, NULL);
    const uint64_t rows = weight->shape[0], cols = weight->shape[1], groups = tsr_int_groups(scheme, cols);
    tsr_tensor *const out[] = {
        member(plan, weight, ".weight_packed", TSR_I32, 2, rows, cols * scheme->bits / 32),
        member(plan, weight, ".weight_scale", scheme->scale_dtype, 2, rows, groups),
        member(plan, weight, ".weight_shape", TSR_I64, 1, 2, 0),
        member(plan, weight, ".weight_zero_point", TSR_I32, 2, tsr_ceil_div(rows * scheme->bits, 32), groups),
    };
    return add_step(plan, &kPackedOp, weight, &p, out, scheme->asymmetric ? 4 : 3, 0xE, err);
}

tsr_status tsr_plan_nibbles(tsr_plan *plan, const tsr_tensor *weight, const tsr_int_scheme *scheme, float input,
                            tsr_err *err)
{
    const params p = {.scheme = *scheme, .input.value.scale = tsr_f32_from_bf16(tsr_bf16_from_f32(input))};
    const uint64_t rows = weight->shape[0], cols = weight->shape[1];
    tsr_tensor *const out[] = {
        member(plan, weight, ".weight", TSR_I8, 2, rows, cols / 2),
        member(plan, weight, ".weight_scale_inv", scheme->scale_dtype, 2, rows, tsr_int_groups(scheme, cols)),
        member(plan, weight, ".input_scale", TSR_BF16, 1, 1, 0),
    };
    return add_step(plan, &kNibblesOp, weight, &p, out, 3, 6, err);
}

float tsr_int_step_input(const tsr_step *step)
{
    return params_of(step)->input.value.scale;
}

tsr_status tsr_plan_azp(tsr_plan *plan, const tsr_tensor *weight, const tsr_int_scheme *scheme,
                        const tsr_static_input *input, size_t codes, tsr_err *err)
{
    const params p = params_with(scheme, input);
    tsr_tensor *const out[] = {
        member(plan, weight, ".azp_adj", TSR_I32, 1, weight->shape[0], 0),
        member(plan, weight, ".azp_with_adj", TSR_I32, 1, weight->shape[0], 0),
    };
    TSR_TRY(add_step(plan, &kAzpOp, weight, &p, out, input != NULL && input->asymmetric ? 2 : 1, 3, err));
    tsr_plan_coproduce(plan, codes, plan->n_steps - 1);
    return TSR_OK;
}
