/* Builds block FP8 operands from weights and their originals, with their exact products. */
#include "verify/kernels/gemm_operands.h"

#include "common/checked.h"
#include "common/parallel/threads.h"
#include "kernels/cpu/quantize_tokens.h"
#include "verify/evidence/activations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JUDGED_ROWS = 64 /* tokens that are judged; kernels compute all */ };

bool tsr_gemm_alike(const tsr_gemm_entry *a, const tsr_gemm_entry *b)
{
    const tsr_weight *const x = a->weight, *const y = b->weight;
    return strcmp(a->key, b->key) == 0 && x->coding == y->coding && x->rows == y->rows && x->cols == y->cols &&
           tsr_block_equal(x->block, y->block);
}

static void *take(tsr_gemm_operands *o, size_t n, size_t size)
{
    return tsr_arena_alloc(&o->arena, n * size + 64);
}

tsr_status tsr_gemm_choose_experts(tsr_gemm_operands *o, size_t job, tsr_err *err)
{
    const tsr_gemm_check *const c = o->c;
    size_t end = c->jobs[job] + 1, n = 0;
    while (end < c->n_entries && tsr_gemm_alike(&c->entries[c->jobs[job]], &c->entries[end]))
        end++;
    const size_t all = end - c->jobs[job];
    tsr_gemm_entry *const experts = take(o, all, sizeof *experts);
    if (experts == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu experts", all);
    const uint64_t wanted = tsr_min_u64(c->options->experts, all);
    for (size_t i = 0; i < all; i++) {
        if (tsr_mix_bits(c->options->seed ^ tsr_mix_bits(i)) % (all - i) < wanted - n)
            experts[n++] = c->entries[c->jobs[job] + i];
    }
    o->experts = experts;
    o->n_experts = n;
    return TSR_OK;
}

/* Routes tokens to experts at random: some experts get several, some none; the first gets at least one. */
static void route(tsr_gemm_operands *o, uint64_t seed)
{
    const size_t tokens = (size_t)o->c->options->tokens, most = tokens / 4 + 1;
    o->first[0] = 0;
    for (size_t e = 0; e < o->n_experts; e++) {
        const size_t share = o->n_experts == 1 ? tokens : e == 0 ? most : (size_t)(tsr_mix_bits(seed + e) % (most + 1));
        o->first[e + 1] = o->first[e] + share;
    }
    o->m = o->first[o->n_experts];
}

/* Chooses the rows that are judged, spread evenly over the tokens of all experts. */
static void choose_rows(tsr_gemm_operands *o, uint64_t seed)
{
    o->rows = (tsr_columns){.rows = o->m, .block = 1, .blocks = o->m, .seed = tsr_mix_bits(seed)};
    o->rows.chosen = tsr_min_u64(o->m, JUDGED_ROWS);
    o->judged = (size_t)o->rows.chosen;
    for (size_t e = 0, i = 0; e <= o->n_experts; e++) {
        while (i < o->judged && tsr_column_of(&o->rows, i) < o->first[e])
            i++;
        o->first_judged[e] = i;
    }
}

static tsr_status get_activations(tsr_gemm_operands *o, uint64_t seed, tsr_err *err)
{
    const tsr_checkpoint *const file = o->c->options->activations;
    o->x = take(o, o->m * o->k, sizeof *o->x);
    if (o->x == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for activations of '%s'", o->name);
    if (file == NULL) {
        tsr_activations_draw(seed, o->m, o->k, o->x);
        return TSR_OK;
    }
    for (size_t e = 0; e < o->n_experts; e++) {
        const tsr_tensor *const t = tsr_activations_find(file, o->experts[e].weight->values->name);
        const size_t share = o->first[e + 1] - o->first[e];
        size_t m = share;
        TSR_TRY(tsr_activations_read(file, t, &m, o->k, o->x + o->first[e] * o->k, err));
        /* If the file has fewer rows, they repeat. */
        for (size_t i = m; m > 0 && i < share; i++)
            memcpy(o->x + (o->first[e] + i) * o->k, o->x + (o->first[e] + i % m) * o->k, o->k * sizeof *o->x);
    }
    return TSR_OK;
}

tsr_status tsr_gemm_operands_shape(tsr_gemm_operands *o, size_t job, tsr_err *err)
{
    const tsr_kernel_options *const options = o->c->options;
    TSR_TRY(tsr_gemm_choose_experts(o, job, err));
    const tsr_weight *const w = o->experts[0].weight;
    const uint64_t seed = tsr_seed_of(options->seed, o->name);
    o->first = take(o, o->n_experts + 1, sizeof *o->first);
    o->first_judged = take(o, o->n_experts + 1, sizeof *o->first_judged);
    if (o->first == NULL || o->first_judged == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", o->name);
    route(o, seed);
    choose_rows(o, seed);
    o->columns = tsr_choose_columns(options, w->rows, w->block.rows, seed);
    o->block_n = (size_t)w->block.rows;
    o->block_k = (size_t)w->block.cols;
    o->n = (size_t)tsr_columns_count(&o->columns);
    o->k = (size_t)w->cols;
    o->padded = tsr_padded(o->k);
    o->grid_n = (size_t)o->columns.chosen;
    o->grid_k = tsr_ceil_div(o->k, o->block_k);
    TSR_TRY(get_activations(o, seed, err));
    o->a = take(o, o->m * o->k, 1);
    o->scale_a = take(o, o->grid_k * o->m, sizeof *o->scale_a);
    o->w = take(o, o->n_experts * o->n * o->k, 1);
    o->scale_w = take(o, o->n_experts * o->grid_n * o->grid_k, sizeof *o->scale_w);
    o->original = take(o, o->judged * o->n, sizeof *o->original);
    o->exact = take(o, o->judged * o->n, sizeof *o->exact);
    if (o->a == NULL || o->scale_a == NULL || o->w == NULL || o->scale_w == NULL || o->original == NULL ||
        o->exact == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the operands of '%s'", o->name);
    return TSR_OK;
}

tsr_fp8_gemm_args tsr_gemm_expert_args(const tsr_gemm_operands *o, size_t e)
{
    return (tsr_fp8_gemm_args){
        .a = o->a + o->first[e] * o->k,
        .w = o->w + e * o->n * o->k,
        .scale_a = o->scale_a + o->first[e],
        .scale_w = o->scale_w + e * o->grid_n * o->grid_k,
        .m = o->first[e + 1] - o->first[e],
        .n = o->n,
        .k = o->k,
        .ld_scale_a = o->m,
        .ldd = o->n,
        .block_n = o->block_n,
        .block_k = o->block_k,
    };
}

static tsr_status add_fault(tsr_gemm_operands *o, const char *what, const char *fault, tsr_err *err)
{
    const tsr_judgement j = {.subject = o->name,
                             .what = what,
                             .kind = TSR_ERROR_CHECKPOINT,
                             .of_bound = -1,
                             .of_expected = -1,
                             .fault = fault};
    o->unfit = true;
    return tsr_evidence_add(o->evidence, &j, err);
}

/* Adds a finding for the first NaN among codes and scales, because products with it cannot be judged. */
static tsr_status check_band(tsr_gemm_operands *o, const tsr_weight *w, uint64_t row, size_t rows, const uint8_t *codes,
                             const float *scales, tsr_err *err)
{
    char text[128];
    for (size_t i = 0; i < o->grid_k; i++) {
        if (isfinite(scales[i]))
            continue;
        snprintf(text, sizeof text, "the scale of rows %llu.., columns %zu.. is %g", (unsigned long long)row,
                 i * o->block_k, (double)scales[i]);
        return add_fault(o, w->values->name, text, err);
    }
    for (size_t i = 0; i < rows * o->k; i++) {
        if ((codes[i] & 0x7F) != 0x7F)
            continue;
        snprintf(text, sizeof text, "the code at [%llu, %zu] is NaN", (unsigned long long)row + i / o->k, i % o->k);
        return add_fault(o, w->values->name, text, err);
    }
    return TSR_OK;
}

/* Decodes rows of the loaded piece into padded rows of doubles, as a consumer of the checkpoint does. */
static void values_of(const tsr_gemm_operands *o, const tsr_weight_reader *reader, size_t rows, double *values)
{
    for (size_t i = 0; i < rows; i++) {
        memset(values + i * o->padded + o->k, 0, (o->padded - o->k) * sizeof *values);
        tsr_weight_reader_row(reader, i, 0, o->k, values + i * o->padded);
    }
}

/* Loads the original of a weight into the second reader. Without originals it loads the weight itself. */
static tsr_status load_original(tsr_gemm_operands *o, const tsr_weight *w, const tsr_piece *piece, tsr_view *view,
                                const tsr_weight_reader **from, tsr_err *err)
{
    const tsr_side *const against = o->c->options->against;
    const tsr_weight *original;
    *from = &o->readers[0];
    if (against == NULL)
        return TSR_OK;
    *from = &o->readers[1];
    TSR_TRY(tsr_find_original(against, w, &original, err));
    return tsr_load_piece(&o->readers[1], against, original, piece, view, o->evidence, err);
}

/* The tokens of one expert that are judged. */
typedef struct judged_rows {
    size_t m;
    double *x, *a;  /* [m][padded]: before quantizing, and their codes */
    float *scale_a; /* [grid_k][m] */
} judged_rows;

/* Reads the `band`-th chosen block into the operands, and computes its exact products. */
static tsr_status do_band(tsr_gemm_operands *o, size_t e, size_t band, const judged_rows *judged, double *values,
                          tsr_err *err)
{
    const tsr_weight *const w = o->experts[e].weight;
    const uint64_t row = tsr_column_block(&o->columns, band) * o->block_n;
    const size_t rows = (size_t)tsr_min_u64(o->block_n, w->rows - row), at = band * o->block_n;
    const tsr_piece piece = {.matrix = o->experts[e].matrix, .row = row, .rows = rows, .cols = o->k};
    const size_t to = o->first_judged[e] * o->n + at;
    tsr_fp8_gemm_args args = tsr_gemm_expert_args(o, e);
    uint8_t *const codes = o->w + (e * o->n + at) * o->k;
    float *const scales = o->scale_w + (e * o->grid_n + band) * o->grid_k;
    tsr_view view[2];
    const tsr_weight_reader *from;
    TSR_TRY(tsr_load_piece(&o->readers[0], &o->c->options->side, w, &piece, &view[0], o->evidence, err));
    memcpy(codes, o->readers[0].bytes, rows * o->k);
    for (size_t i = 0; i < o->grid_k; i++)
        scales[i] = (float)o->readers[0].scales[i];
    TSR_TRY(check_band(o, w, row, rows, codes, scales, err));
    if (o->unfit)
        return TSR_OK;
    TSR_TRY(load_original(o, w, &piece, &view[1], &from, err));
    const double began = tsr_now();
    values_of(o, from, rows, values);
    tsr_product(judged->x, values, judged->m, rows, o->padded, o->original + to, o->n);
    tsr_gemm_decode(codes, rows, o->k, values);
    args.w = codes;
    args.scale_w = scales;
    args.n = rows;
    args.m = args.ld_scale_a = judged->m;
    args.scale_a = judged->scale_a;
    tsr_gemm_exact(&args, judged->a, values, o->exact + to, o->n);
    o->evidence->phases[TSR_PHASE_ORACLE] += tsr_now() - began;
    return TSR_OK;
}

static void gather_judged(const tsr_gemm_operands *o, size_t e, judged_rows *judged)
{
    for (size_t i = 0; i < judged->m; i++) {
        const size_t row = (size_t)tsr_column_of(&o->rows, o->first_judged[e] + i);
        double *const x = judged->x + i * o->padded;
        memset(x + o->k, 0, (o->padded - o->k) * sizeof *x);
        tsr_decode(TSR_BF16, (const unsigned char *)(o->x + row * o->k), o->k, x);
        tsr_gemm_decode(o->a + row * o->k, 1, o->k, judged->a + i * o->padded);
        for (size_t t = 0; t < o->grid_k; t++)
            judged->scale_a[t * judged->m + i] = o->scale_a[t * o->m + row];
    }
}

static tsr_status do_expert(tsr_gemm_operands *o, size_t e, tsr_err *err)
{
    const size_t from = o->first[e], m = o->first_judged[e + 1] - o->first_judged[e];
    judged_rows judged = {.m = m};
    /* A block may be larger than the weight. */
    const size_t rows = (size_t)tsr_min_u64(o->block_n, o->experts[e].weight->rows);
    double *const values = malloc(rows * o->padded * sizeof *values);
    tsr_status status = TSR_OK;
    judged.x = malloc(m * o->padded * sizeof *judged.x + 64);
    judged.a = malloc(m * o->padded * sizeof *judged.a + 64);
    judged.scale_a = malloc(m * o->grid_k * sizeof *judged.scale_a + 64);
    if (judged.x == NULL || judged.a == NULL || judged.scale_a == NULL || values == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "out of memory for the operands of '%s'", o->name);
    const double began = tsr_now();
    if (status == TSR_OK) {
        tsr_quantize_tokens_e4m3(o->x + from * o->k, o->first[e + 1] - from, o->k, (size_t)o->c->options->group_rows,
                                 o->block_k, o->a + from * o->k, o->scale_a + from, o->m);
        gather_judged(o, e, &judged);
        o->evidence->phases[TSR_PHASE_QUANTIZE] += tsr_now() - began;
    }
    for (size_t band = 0; status == TSR_OK && band < o->grid_n && !o->unfit; band++)
        status = do_band(o, e, band, &judged, values, err);
    free(judged.x);
    free(judged.a);
    free(judged.scale_a);
    free(values);
    return status;
}

tsr_status tsr_gemm_operands_fill(tsr_gemm_operands *o, tsr_err *err)
{
    for (size_t e = 0; e < o->n_experts && !o->unfit; e++)
        TSR_TRY(do_expert(o, e, err));
    return TSR_OK;
}

void tsr_gemm_operands_free(tsr_gemm_operands *o)
{
    for (size_t i = 0; i < 2; i++)
        tsr_weight_reader_free(&o->readers[i]);
    tsr_arena_free(&o->arena);
}
