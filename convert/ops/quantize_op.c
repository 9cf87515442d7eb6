/* Quantizes to block FP8. A unit is part of one row of blocks. */
#include "convert/ops/quantize_op.h"

#include "convert/ops/rows/scale_op.h"

#include "common/checked.h"
#include "quantize/fp8_decode.h"

#include <string.h>

typedef struct params {
    tsr_fp8_block scheme;
    tsr_weight weight;
    bool codes_stay; /* measuring only: uses the weight's own codes and scales, not new ones */
    tsr_column_importance importance;
    tsr_tensor decoded; /* describes a scaled weight after decoding to FP32, for positions in messages */
} params;

/* ---- position of a unit ---- */

/* A weight is one matrix, or a stack of them (experts), each with its own grid of blocks. A unit is part of one row of
 * blocks: all of its columns, or as many whole blocks as fit TSR_UNIT_BYTES. */
typedef struct geometry {
    uint64_t matrices, rows, cols;
    tsr_block block;
    uint64_t bands;          /* rows of blocks per matrix */
    uint64_t pieces;         /* units per row of blocks */
    uint64_t piece_cols;     /* columns of each unit except the last */
    uint64_t scales_per_row; /* blocks per row of blocks */
} geometry;

static geometry geometry_of(const tsr_step *step)
{
    const params *const p = step->params;
    const tsr_tensor *const t = step->in[0];
    geometry g = {
        .matrices = t->rank == 3 ? t->shape[0] : 1,
        .rows = t->shape[t->rank - 2],
        .cols = t->shape[t->rank - 1],
        .block = {p->scheme.block_rows, p->scheme.block_cols},
    };
    g.bands = tsr_ceil_div(g.rows, g.block.rows);
    g.scales_per_row = tsr_ceil_div(g.cols, g.block.cols);
    const uint64_t element_bytes = tsr_dtype_bytes(p->weight.scale == NULL ? t->dtype : TSR_F32);
    const uint64_t fits = TSR_UNIT_BYTES / (g.block.rows * g.block.cols * element_bytes);
    /* Decoded input is always whole rows. */
    const uint64_t fit = tsr_tensor_is_made(t) ? g.scales_per_row : tsr_max_u64(1, fits);
    g.pieces = tsr_ceil_div(g.scales_per_row, fit);
    g.piece_cols = tsr_ceil_div(g.scales_per_row, g.pieces) * g.block.cols;
    g.pieces = tsr_ceil_div(g.cols, g.piece_cols);
    return g;
}

typedef struct place {
    uint64_t matrix, band, col, rows, cols;
    uint64_t first; /* flat index of the first element */
} place;

static place place_of(const geometry *g, uint64_t unit)
{
    place p = {.matrix = unit / (g->bands * g->pieces),
               .band = unit / g->pieces % g->bands,
               .col = unit % g->pieces * g->piece_cols};
    p.rows = tsr_min_u64(g->block.rows, g->rows - p.band * g->block.rows);
    p.cols = tsr_min_u64(g->piece_cols, g->cols - p.col);
    p.first = (p.matrix * g->rows + p.band * g->block.rows) * g->cols + p.col;
    return p;
}

static tsr_window elements(const geometry *g, const place *p, const tsr_tensor *t)
{
    const uint64_t bytes = tsr_dtype_bytes(t->dtype);
    return (tsr_window){
        .offset = p->first * bytes, .rows = p->rows, .row_bytes = p->cols * bytes, .pitch = g->cols * bytes};
}

static tsr_fp8_rect rect_of(const params *p, const geometry *g, const place *at)
{
    return (tsr_fp8_rect){.weight = &p->weight,
                          .matrix = at->matrix,
                          .row = at->band * g->block.rows,
                          .col = at->col,
                          .rows = at->rows,
                          .cols = at->cols,
                          .ld_codes = at->cols};
}

static uint64_t quantize_units(const tsr_step *step)
{
    const geometry g = geometry_of(step);
    return g.matrices * g.bands * g.pieces;
}

static void quantize_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = step->params;
    const geometry g = geometry_of(step);
    const place at = place_of(&g, unit);
    u->in[0] = elements(&g, &at, step->in[0]);
    if (step->n_out > 0)
        u->out[0] = elements(&g, &at, step->out[0]);
    if (p->weight.scale != NULL) {
        const tsr_fp8_rect rect = rect_of(p, &g, &at);
        u->in[1] = tsr_scale_window(&rect);
    }
    if (step->n_in > 2)
        u->in[2] = elements(&g, &at, step->in[2]);
}

/* ---- the arithmetic ---- */

/* Scratch: the decoded values, work space of decoding, importance of the columns, work space of quantizing, and, when
 * measuring, codes and scales. */
typedef struct scratch {
    uint64_t decoded, decoding, importance, quantizing, codes, scales; /* bytes */
} scratch;

static scratch scratch_of(const tsr_step *step)
{
    const params *const p = step->params;
    const geometry g = geometry_of(step);
    const uint64_t elements_of_unit = tsr_min_u64(g.block.rows, g.rows) * tsr_min_u64(g.piece_cols, g.cols);
    const bool scaled = p->weight.scale != NULL, measures = step->n_out == 0;
    return (scratch){
        .decoded = scaled ? tsr_round_up(elements_of_unit * sizeof(float), 64) : 0,
        .decoding = scaled ? tsr_round_up(tsr_fp8_decode_scratch(&p->weight), 64) : 0,
        .importance = p->importance.entry == NULL ? 0 : tsr_round_up(g.piece_cols * sizeof(float), 64),
        .quantizing = tsr_round_up(tsr_fp8_block_scratch(&p->scheme, step->in[measures ? 2 : 0]->dtype), 64),
        .codes = measures ? tsr_round_up(elements_of_unit, 64) : 0,
        .scales = measures ? g.scales_per_row * sizeof(float) : 0,
    };
}

static uint64_t quantize_scratch(const tsr_step *step)
{
    const scratch s = scratch_of(step);
    return s.decoded + s.decoding + s.importance + s.quantizing + s.codes + s.scales;
}

static tsr_status quantize_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                               tsr_quant_stats *stats, tsr_err *err)
{
    const params *const p = step->params;
    const geometry g = geometry_of(step);
    const place at = place_of(&g, unit);
    const scratch s = scratch_of(step);
    char *const memory = u->scratch, *const quantizing = memory + s.decoded + s.decoding + s.importance;
    float *const importance = (float *)(memory + s.decoded + s.decoding);
    const bool weighted = tsr_importance_of(&p->importance, at.matrix, at.col, at.cols, importance);
    tsr_fp8_band band = {
        .tensor = step->in[0],
        .first = at.first,
        .x = u->in_data[0],
        .rows = at.rows,
        .cols = at.cols,
        .ld = at.cols,
        .ld_codes = at.cols,
        .importance = weighted ? importance : NULL,
        .scratch = (float *)quantizing,
        .notes = u->notes,
    };
    if (p->codes_stay) {
        band.tensor = step->in[2];
        band.x = u->in_data[2];
        band.codes = u->in_data[0];
        band.scales = (float *)(quantizing + s.quantizing + s.codes);
        tsr_widen_to_f32(kernels, (tsr_dtype)p->weight.scale_dtype,
                         (const char *)u->in_data[1] +
                             at.col / g.block.cols * tsr_dtype_bytes((tsr_dtype)p->weight.scale_dtype),
                         tsr_ceil_div(at.cols, g.block.cols), band.scales);
        return tsr_fp8_block_measure(&p->scheme, kernels, &band, stats, err);
    }
    if (p->weight.scale != NULL) {
        tsr_fp8_rect rect = rect_of(p, &g, &at);
        rect.codes = u->in_data[0];
        rect.scales = u->in_data[1];
        TSR_TRY(tsr_fp8_decode(kernels, &rect, TSR_F32, memory, at.cols, memory + s.decoded, err));
        band.tensor = &p->decoded;
        band.x = memory;
    }
    if (step->n_out == 0) {
        tsr_quant_stats unused = {0};
        band.codes = (uint8_t *)quantizing + s.quantizing;
        band.scales = (float *)(band.codes + s.codes);
        TSR_TRY(tsr_fp8_block_quantize(&p->scheme, kernels, &band, &unused, err));
        band.tensor = step->in[2];
        band.x = u->in_data[2];
        return tsr_fp8_block_measure(&p->scheme, kernels, &band, stats, err);
    }
    band.codes = u->out_data[0];
    band.scales = (float *)u->out_data[1] + (at.matrix * g.bands + at.band) * g.scales_per_row + at.col / g.block.cols;
    return tsr_fp8_block_quantize(&p->scheme, kernels, &band, stats, err);
}

static tsr_status quantize_finish(const tsr_step *step, void *const *buffered, tsr_quant_stats *stats, tsr_err *err)
{
    (void)err;
    tsr_quant_stats_scales(stats, buffered[1], step->out[1]->bytes / sizeof(float));
    return TSR_OK;
}

static void quantize_blocks(const tsr_step *step, tsr_block_map *map, tsr_code_bins *bins)
{
    const geometry g = geometry_of(step);
    *map = (tsr_block_map){.shape = {g.matrices, g.rows, g.cols}, .block = {1, g.block.rows, g.block.cols}};
    *bins = TSR_BINS_E4M3;
}

static const tsr_op kQuantizeOp = {.name = "quantize fp8-block",
                                   .units = {quantize_units, quantize_windows, quantize_scratch, quantize_run},
                                   .finish = quantize_finish,
                                   .stats_of = TSR_STATS_SOURCE,
                                   .blocks = quantize_blocks};

static const tsr_op kMeasureOp = {.name = "measure fp8-block",
                                  .units = {quantize_units, quantize_windows, quantize_scratch, quantize_run},
                                  .stats_of = TSR_STATS_ORIGINAL};

/* ---- steps ---- */

const char *tsr_fp8_scale_name(tsr_plan *plan, const char *weight, tsr_dialect dialect)
{
    static const char *const kEndings[] = {[TSR_DIALECT_DEEPSEEK] = "_scale_inv",
                                           [TSR_DIALECT_COMPRESSED_TENSORS] = "_scale",
                                           [TSR_DIALECT_SGLANG] = "_scale_inv",
                                           [TSR_DIALECT_DEEPSEEK_V4] = ".scale"};
    const size_t length = dialect == TSR_DIALECT_DEEPSEEK_V4 ? tsr_module_length(weight) : strlen(weight);
    return tsr_arena_printf(&plan->arena, "%.*s%s", (int)length, weight, kEndings[dialect]);
}

static params *copy_params(tsr_plan *plan, const tsr_weight *weight, const tsr_fp8_block *scheme)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    if (p != NULL) {
        *p = (params){.scheme = *scheme, .weight = *weight, .decoded = *weight->data};
        p->decoded.dtype = TSR_F32;
    }
    return p;
}

tsr_status tsr_plan_quantize(tsr_plan *plan, const tsr_weight *weight, const tsr_fp8_block *scheme, tsr_dialect dialect,
                             tsr_err *err)
{
    const tsr_tensor *const t = weight->data;
    const tsr_tensor *const in[] = {t, weight->scale};
    params *const p = copy_params(plan, weight, scheme);
    tsr_tensor *const codes = tsr_plan_tensor(plan, t), *const scales = tsr_plan_tensor(plan, t);
    if (p == NULL || codes == NULL || scales == NULL ||
        (scales->name = tsr_fp8_scale_name(plan, t->name, dialect)) == NULL)
        return tsr_out_of_memory(err, "while planning");
    TSR_TRY(tsr_plan_weigh(plan, t, &p->importance, err));
    codes->dtype = TSR_F8_E4M3;
    codes->bytes = tsr_tensor_elements(t);
    scales->dtype = TSR_F32;
    scales->shape[t->rank - 2] = tsr_ceil_div(t->shape[t->rank - 2], scheme->block_rows);
    scales->shape[t->rank - 1] = tsr_ceil_div(t->shape[t->rank - 1], scheme->block_cols);
    scales->bytes = tsr_tensor_elements(scales) * sizeof(float);
    const tsr_step step = {.op = &kQuantizeOp,
                           .params = p,
                           .in = in,
                           .n_in = weight->scale == NULL ? 1 : 2,
                           .out = {codes, scales},
                           .n_out = 2,
                           .buffered = 1u << 1};
    return tsr_plan_step(plan, &step, err);
}

tsr_status tsr_plan_measure(tsr_plan *plan, const tsr_weight *weight, const tsr_fp8_block *scheme,
                            const tsr_tensor *original, tsr_err *err)
{
    const tsr_fp8_block as_it_is = {.block_rows = (uint32_t)weight->block.rows,
                                    .block_cols = (uint32_t)weight->block.cols};
    const tsr_tensor *const in[] = {weight->data, weight->scale, original};
    params *const p = copy_params(plan, weight, scheme == NULL ? &as_it_is : scheme);
    if (p == NULL)
        return tsr_out_of_memory(err, "while planning");
    p->codes_stay = scheme == NULL;
    return tsr_plan_step(plan, &(tsr_step){.op = &kMeasureOp, .params = p, .in = in, .n_in = 3}, err);
}
