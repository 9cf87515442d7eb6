/* Quantizes to MXFP4, MXFP8 and NVFP4. A unit is some whole rows; scales are buffered until the step ends. */
#include "convert/ops/mx_op.h"

#include "convert/ops/rows/rows.h"
#include "quantize/gptq/gptq.h"

#include <string.h>

typedef struct params {
    tsr_mx_scheme scheme;
    float input;
    tsr_column_importance importance;
    tsr_factor_cache *factors; /* for GPTQ of E2M1; NULL: codes are the nearest ones */
} params;

static const params *params_of(const tsr_step *step)
{
    return step->params;
}

static uint64_t cols_of(const tsr_step *step)
{
    return step->in[0]->shape[step->in[0]->rank - 1];
}

static uint64_t rows_per_matrix(const tsr_step *step)
{
    return step->in[0]->shape[step->in[0]->rank - 2];
}

static uint64_t matrices(const tsr_step *step)
{
    return step->in[0]->rank == 3 ? step->in[0]->shape[0] : 1;
}

/* A unit is some rows of one matrix. */
static uint64_t unit_rows(const tsr_step *step)
{
    tsr_tensor matrix = *step->in[0];
    matrix.shape[0] = rows_per_matrix(step);
    matrix.shape[1] = cols_of(step);
    return tsr_unit_rows(&matrix, 1);
}

static uint64_t units_per_matrix(const tsr_step *step)
{
    return tsr_ceil_div(rows_per_matrix(step), unit_rows(step));
}

static uint64_t mx_units(const tsr_step *step)
{
    return matrices(step) * units_per_matrix(step);
}

/* Returns its first row, numbered through all matrices. */
static uint64_t row_of(const tsr_step *step, uint64_t unit)
{
    const uint64_t units = units_per_matrix(step);
    return unit / units * rows_per_matrix(step) + unit % units * unit_rows(step);
}

static uint64_t rows_in(const tsr_step *step, uint64_t unit)
{
    return tsr_min_u64(unit_rows(step), rows_per_matrix(step) - unit % units_per_matrix(step) * unit_rows(step));
}

static tsr_window window_of(const tsr_step *step, const tsr_tensor *t, uint64_t unit)
{
    const uint64_t row_bytes = t->bytes / (matrices(step) * rows_per_matrix(step));
    return tsr_run_window(row_of(step, unit) * row_bytes, rows_in(step, unit) * row_bytes);
}

static void mx_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    u->in[0] = window_of(step, step->in[0], unit);
    u->out[0] = window_of(step, step->out[0], unit);
}

static uint64_t quantizing_scratch(const tsr_step *step)
{
    return tsr_round_up(tsr_mx_scratch(&params_of(step)->scheme, cols_of(step)), sizeof(float));
}

static uint64_t importance_scratch(const tsr_step *step)
{
    return params_of(step)->importance.entry == NULL ? 0 : cols_of(step) * sizeof(float);
}

enum { TOGETHER = 32 /* rows that GPTQ takes at a time */ };

/* Scratch for GPTQ: its own, then t of each group and the codes of some rows. */
static uint64_t gptq_scratch(const tsr_step *step)
{
    const uint64_t cols = cols_of(step), groups = cols / params_of(step)->scheme.group;
    return params_of(step)->factors == NULL
               ? 0
               : tsr_round_up(tsr_gptq_scratch(cols), 64) + TOGETHER * (groups * sizeof(float) + cols);
}

/* Scratch: that of quantizing, the importance of the columns, and that of GPTQ. */
static uint64_t mx_scratch(const tsr_step *step)
{
    return tsr_round_up(quantizing_scratch(step) + importance_scratch(step), 64) + gptq_scratch(step);
}

/* Returns the global scale of all weights that loaders run as one layer, or 1 if the format has none. If their dtypes
 * differ, it is rounded as for the first of them. */
static float global_of(const tsr_step *step, float amax)
{
    if (step->amax == NULL)
        return 1;
    return tsr_nvfp4_global(&params_of(step)->scheme, (tsr_dtype)step->amax->of[0]->dtype, &amax, 1);
}

/* Replaces the codes of some rows of a unit, from `first` on. */
static void gptq_rows(const tsr_step *step, const tsr_hessian_factor *factor, const tsr_cpu_kernels *kernels,
                      const tsr_mx_rows *rows, uint64_t first, void *memory, tsr_gptq_errors *errors)
{
    const tsr_mx_scheme *const scheme = &params_of(step)->scheme;
    const uint64_t cols = cols_of(step), groups = cols / scheme->group, n = tsr_min_u64(TOGETHER, rows->rows - first);
    float *const t = (float *)((char *)memory + tsr_round_up(tsr_gptq_scratch(cols), 64));
    int8_t *const codes = (int8_t *)(t + TOGETHER * groups);
    uint8_t *const packed = rows->codes + first * (cols / 2);
    tsr_mx_scale_values(scheme->scale, rows->global, rows->scales + first * groups, n * groups, t);
    for (uint64_t i = 0; i < n * cols; i++)
        codes[i] = (int8_t)(packed[i / 2] >> i % 2 * 4 & 15);
    tsr_gptq_round(factor, kernels,
                   &(tsr_gptq_rows){.rows = n,
                                    .group = scheme->group,
                                    .dtype = (tsr_dtype)rows->tensor->dtype,
                                    .x = (const char *)rows->x + first * cols * tsr_dtype_bytes(rows->tensor->dtype),
                                    .scale = t,
                                    .e2m1 = true,
                                    .codes = codes,
                                    .scratch = memory},
                   errors);
    for (uint64_t i = 0; i < n * cols; i += 2)
        packed[i / 2] = (uint8_t)(codes[i] | codes[i + 1] << 4);
}

/* Quantizes rows by GPTQ. `memory` is scratch. */
static tsr_status calibrate(const tsr_step *step, const unsigned char *products, const tsr_cpu_kernels *kernels,
                            const tsr_mx_rows *rows, void *memory, tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = params_of(step);
    const tsr_hessian_factor *factor;
    tsr_gptq_errors errors = {0, 0};
    TSR_TRY(tsr_mx_quantize(&p->scheme, kernels, rows, NULL, err));
    TSR_TRY(tsr_factor_cache_take(p->factors, products, cols_of(step), p->importance.products->name, kernels, &factor,
                                  err));
    for (uint64_t first = 0; first < rows->rows; first += TOGETHER)
        gptq_rows(step, factor, kernels, rows, first, memory, &errors);
    tsr_factor_cache_release(p->factors, factor);
    stats->output_d2 += errors.chosen;
    stats->nearest_d2 += errors.nearest;
    return tsr_mx_measure(&p->scheme, kernels, rows, stats, err);
}

static tsr_status mx_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                         tsr_quant_stats *stats, tsr_err *err)
{
    const uint64_t row = row_of(step, unit);
    float *const importance = (float *)((char *)u->scratch + quantizing_scratch(step));
    const bool weighted =
        tsr_importance_of(&params_of(step)->importance, unit / units_per_matrix(step), 0, cols_of(step), importance);
    const tsr_mx_rows rows = {
        .tensor = step->in[0],
        .row = row,
        .rows = rows_in(step, unit),
        .x = u->in_data[0],
        .global = global_of(step, u->amax),
        .amax = u->amax,
        .codes = u->out_data[0],
        .scales = (uint8_t *)u->out_data[1] + row * (cols_of(step) / params_of(step)->scheme.group),
        .importance = weighted ? importance : NULL,
        .scratch = u->scratch,
        .notes = u->notes,
    };
    if (unit == 0 && step->n_out > 2)
        memcpy(u->out_data[2], &rows.global, sizeof rows.global);
    if (unit == 0 && step->n_out > 3)
        memcpy(u->out_data[3], &params_of(step)->input, sizeof params_of(step)->input);
    const params *const p = params_of(step);
    const unsigned char *const products =
        p->factors == NULL ? NULL : tsr_importance_products(&p->importance, unit / units_per_matrix(step));
    char *const memory = (char *)u->scratch + tsr_round_up(quantizing_scratch(step) + importance_scratch(step), 64);
    if (products != NULL)
        return calibrate(step, products, kernels, &rows, memory, stats, err);
    return tsr_mx_quantize(&p->scheme, kernels, &rows, stats, err);
}

/* ---- statistics of scales: one-byte scales have at most 256 different values ---- */

/* Returns the scale of a group of zeros. */
static uint8_t scale_of_zeros(const tsr_mx_scheme *scheme)
{
    static const uint8_t kOfZeros[] = {[TSR_MX_E8M0] = 0, [TSR_MX_E4M3_DIVIDED] = 0x20, [TSR_MX_E4M3_TIMES] = 0x38};
    return kOfZeros[scheme->scale];
}

/* Returns the scale value with this rank in sorted order. Positive scales have the same order as their bytes. */
static double value_at(const uint64_t count[256], const float value[256], uint64_t rank)
{
    unsigned byte = 0;
    for (uint64_t below = count[0]; below <= rank && byte < 255; below += count[++byte])
        ;
    return (double)value[byte];
}

static tsr_status mx_finish(const tsr_step *step, void *const *buffered, tsr_quant_stats *stats, tsr_err *err)
{
    (void)err;
    const tsr_mx_scheme *const scheme = &params_of(step)->scheme;
    const uint8_t *const scales = buffered[1];
    uint64_t count[256] = {0}, n = step->out[1]->bytes;
    uint8_t bytes[256];
    float value[256], global = 1;
    for (uint64_t i = 0; i < n; i++)
        count[scales[i]]++;
    for (unsigned i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    if (step->n_out > 2)
        memcpy(&global, buffered[2], sizeof global);
    tsr_mx_scale_values(scheme->scale, global, bytes, 256, value);
    n -= stats->zero_blocks;
    count[scale_of_zeros(scheme)] -= stats->zero_blocks;
    if (n == 0)
        return TSR_OK;
    stats->scale_min = value_at(count, value, 0);
    stats->scale_median = value_at(count, value, (n - 1) / 2);
    stats->scale_max = value_at(count, value, n - 1);
    return TSR_OK;
}

static void mx_blocks(const tsr_step *step, tsr_block_map *map, tsr_code_bins *bins)
{
    const tsr_mx_scheme *const scheme = &params_of(step)->scheme;
    *map = (tsr_block_map){.shape = {matrices(step), rows_per_matrix(step), cols_of(step)},
                           .block = {1, 1, scheme->group}};
    *bins = scheme->element == TSR_MX_E2M1 ? TSR_BINS_E2M1 : TSR_BINS_E4M3;
}

static const tsr_op kMxOp = {.name = "quantize in groups of columns",
                             .units = {mx_units, mx_windows, mx_scratch, mx_run},
                             .finish = mx_finish,
                             .stats_of = TSR_STATS_SOURCE,
                             .blocks = mx_blocks};

/* ---- steps ---- */

/* Makes a tensor [.., R, a], or [.., R, a, b] if b is not 0, for a weight [.., R, C]. */
static tsr_tensor *rows_member(tsr_plan *plan, const tsr_tensor *weight, const char *ending, tsr_dtype dtype,
                               uint64_t a, uint64_t b)
{
    uint64_t shape[4];
    unsigned rank = weight->rank - 1u;
    memcpy(shape, weight->shape, rank * sizeof *shape);
    shape[rank++] = a;
    if (b != 0)
        shape[rank++] = b;
    return tsr_plan_new_member(plan, weight, ending, dtype, rank, shape);
}

static tsr_tensor *codes_member(tsr_plan *plan, const tsr_tensor *weight, const tsr_mx_scheme *scheme,
                                const tsr_mx_names *names)
{
    const uint64_t cols = weight->shape[weight->rank - 1], bytes = tsr_mx_code_bytes(scheme->element, cols);
    const uint64_t groups = cols / scheme->group;
    return rows_member(plan, weight, names->codes, scheme->element == TSR_MX_E2M1 ? names->packed : TSR_F8_E4M3,
                       names->blocks ? groups : bytes, names->blocks ? bytes / groups : 0);
}

static tsr_tensor *global_member(tsr_plan *plan, const tsr_tensor *weight, const char *ending, unsigned rank)
{
    return tsr_plan_new_member(plan, weight, ending, TSR_F32, rank, (const uint64_t[]){1});
}

tsr_status tsr_plan_mx(tsr_plan *plan, const tsr_tensor *weight, const tsr_mx_scheme *scheme, const tsr_mx_names *names,
                       const tsr_amax *amax, float input, tsr_err *err)
{
    const uint64_t cols = weight->shape[weight->rank - 1];
    const tsr_tensor *in[TSR_MAX_INPUTS] = {weight};
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    tsr_step step = {
        .op = &kMxOp,
        .params = p,
        .in = in,
        .n_in = tsr_amax_inputs(amax, weight, in),
        .amax = amax,
        .n_out = amax == NULL ? 2
                 : input == 0 ? 3
                              : 4,
        .buffered = 0xE,
        .out = {codes_member(plan, weight, scheme, names),
                rows_member(plan, weight, names->scales, scheme->scale == TSR_MX_E8M0 ? names->power : TSR_F8_E4M3,
                            cols / scheme->group, 0),
                global_member(plan, weight, names->global, names->global_rank),
                global_member(plan, weight, names->input, names->global_rank)},
    };
    if (p == NULL)
        return tsr_out_of_memory(err, "while planning");
    *p = (params){.scheme = *scheme, .input = input};
    TSR_TRY(tsr_plan_weigh(plan, weight, &p->importance, err));
    if (scheme->element == TSR_MX_E2M1)
        TSR_TRY(tsr_plan_calibrate(plan, weight, &p->importance, &p->factors, err));
    for (unsigned i = 0; i < TSR_MAX_OUTPUTS; i++) {
        if (step.out[i] == NULL)
            return tsr_out_of_memory(err, "while planning");
        if (i >= step.n_out)
            step.out[i] = NULL;
    }
    return tsr_plan_step(plan, &step, err);
}

float tsr_mx_step_input(const tsr_step *step)
{
    return params_of(step)->input;
}
