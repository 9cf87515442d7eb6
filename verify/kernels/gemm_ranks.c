/* Divides K among ranks, runs kernels over the parts, and judges the sums. */
#include "verify/kernels/gemm_layouts.h"

#include "common/checked.h"
#include "common/parallel/threads.h"
#include "formats/names/tensor_parallel.h"
#include "verify/evidence/device_ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_row_parallel(const tsr_weight *w)
{
    return w->coding == TSR_CODED_E4M3 && tsr_tp_find_rule(w->values->name)->how == TSR_TP_COLUMNS;
}

static tsr_status check_divides(const tsr_weight *w, uint64_t ranks, tsr_err *err)
{
    if (w->cols % ranks == 0 && w->cols / ranks % w->block.cols == 0)
        return TSR_OK;
    (void)tsr_fail(err, TSR_E_USAGE,
                   "--tp %llu: '%s' has %llu input features in blocks of %llu, which %llu ranks cannot divide into "
                   "whole blocks",
                   U64(ranks), w->values->name, U64(w->cols), U64(w->block.cols), U64(ranks));
    return tsr_fail_at(err, TSR_E_USAGE, w->values->name);
}

tsr_status tsr_gemm_ranks_begin(tsr_gemm_check *c, tsr_evidence *evidence, tsr_err *err)
{
    tsr_device *const device = c->options->device;
    const uint64_t ranks = c->options->ranks;
    size_t divided = 0;
    if (ranks == 1)
        return TSR_OK;
    for (size_t i = 0; i < c->n_entries; i++) {
        if (!is_row_parallel(c->entries[i].weight))
            continue;
        divided++;
        TSR_TRY(check_divides(c->entries[i].weight, ranks, err));
    }
    if (divided == 0)
        return tsr_fail(err, TSR_E_NOT_APPLICABLE,
                        "%s: --tp %llu: none of the tensors is a row-parallel weight in block FP8, such as o_proj, "
                        "down_proj or w2",
                        c->options->side.checkpoint->path, U64(ranks));
    for (size_t i = 0; i < device->n_gemms; i++) {
        const tsr_device_ranks *const of = &device->gemms[i].ranks;
        if (of->spread != NULL)
            return tsr_device_ranks_spread(of, c->options, "ranks", c->how, evidence, err);
    }
    return TSR_OK;
}

/* ---- the parts ---- */

/* A rank's operands, in all rows and in the judged ones. */
typedef struct part {
    tsr_gemm_operands o;
    tsr_gemm_laid_out whole, judged;
} part;

typedef struct division {
    tsr_gemm_operands *whole;
    size_t ranks;
    part *parts;      /* [ranks] */
    tsr_exact *exact; /* [ranks][judged][n] */
    float *sums;      /* [ranks][rows of a layout][n] */
} division;

/* Copies columns [first, first + to_k) of a matrix. */
static void copy_columns(const void *from, size_t from_k, size_t first, size_t rows, size_t size, size_t to_k, void *to)
{
    for (size_t i = 0; i < rows; i++)
        memcpy((char *)to + i * to_k * size, (const char *)from + (i * from_k + first) * size, to_k * size);
}

/* Sets the operands of rank r: a part of K of all experts. */
static tsr_status cut(division *d, size_t r, tsr_err *err)
{
    const tsr_gemm_operands *const from = d->whole;
    tsr_gemm_operands *const to = &d->parts[r].o;
    *to = *from;
    to->arena = (tsr_arena){0};
    memset(to->readers, 0, sizeof to->readers);
    to->k = to->padded = from->k / d->ranks;
    to->grid_k = to->k / to->block_k;
    to->exact = d->exact + r * from->judged * from->n;
    to->scale_a = from->scale_a + r * to->grid_k * from->m; /* whole rows of [grid_k][m] */
    const size_t rows = to->n_experts * to->n, grid_rows = to->n_experts * to->grid_n;
    to->a = tsr_arena_alloc(&to->arena, to->m * to->k + 64);
    to->w = tsr_arena_alloc(&to->arena, rows * to->k + 64);
    to->scale_w = tsr_arena_alloc(&to->arena, grid_rows * to->grid_k * sizeof *to->scale_w + 64);
    if (to->a == NULL || to->w == NULL || to->scale_w == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the ranks of '%s'", from->name);
    copy_columns(from->a, from->k, r * to->k, to->m, 1, to->k, to->a);
    copy_columns(from->w, from->k, r * to->k, rows, 1, to->k, to->w);
    copy_columns(from->scale_w, from->grid_k, r * to->grid_k, grid_rows, sizeof *to->scale_w, to->grid_k, to->scale_w);
    return TSR_OK;
}

/* Computes the exact products of expert e. `a`, `scale_a` and `w` have room for the judged rows and for a block of
 * decoded weights. */
static void compute_exact(const tsr_gemm_operands *o, size_t e, double *a, float *scale_a, double *w)
{
    const size_t first = o->first_judged[e], m = o->first_judged[e + 1] - first;
    tsr_fp8_gemm_args args = tsr_gemm_expert_args(o, e);
    for (size_t i = 0; i < m; i++) {
        const size_t row = (size_t)tsr_column_of(&o->rows, first + i);
        tsr_gemm_decode(o->a + row * o->k, 1, o->k, a + i * o->k);
        for (size_t t = 0; t < o->grid_k; t++)
            scale_a[t * m + i] = o->scale_a[t * o->m + row];
    }
    args.scale_a = scale_a;
    args.m = args.ld_scale_a = m;
    for (size_t band = 0; band < o->grid_n; band++) {
        const size_t at = band * o->block_n;
        args.n = (size_t)tsr_min_u64(o->block_n, o->n - at);
        args.scale_w = o->scale_w + (e * o->grid_n + band) * o->grid_k;
        tsr_gemm_decode(o->w + (e * o->n + at) * o->k, args.n, o->k, w);
        tsr_gemm_exact(&args, a, w, o->exact + first * o->n + at, o->n);
    }
}

static tsr_status compute_all_exact(division *d, tsr_err *err)
{
    const tsr_gemm_operands *const o = &d->parts[0].o;
    const size_t band = (size_t)tsr_min_u64(o->block_n, o->n);
    const double began = tsr_now();
    double *const a = malloc((o->judged + band) * o->k * sizeof *a + 64);
    float *const scale_a = malloc(o->judged * o->grid_k * sizeof *scale_a + 64);
    for (size_t r = 0; a != NULL && scale_a != NULL && r < d->ranks; r++) {
        for (size_t e = 0; e < o->n_experts; e++)
            compute_exact(&d->parts[r].o, e, a, scale_a, a + o->judged * o->k);
    }
    const bool done = a != NULL && scale_a != NULL;
    free(a);
    free(scale_a);
    d->whole->evidence->phases[TSR_PHASE_ORACLE] += tsr_now() - began;
    return done ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "out of memory for the ranks of '%s'", d->whole->name);
}

static tsr_status divide(division *d, tsr_gemm_layout layout, tsr_err *err)
{
    const tsr_gemm_operands *const o = d->whole;
    d->parts = calloc(d->ranks, sizeof *d->parts);
    d->exact = malloc(d->ranks * o->judged * o->n * sizeof *d->exact + 64);
    if (d->parts == NULL || d->exact == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the ranks of '%s'", o->name);
    for (size_t r = 0; r < d->ranks; r++) {
        TSR_TRY(cut(d, r, err));
        TSR_TRY(tsr_gemm_lay_out(&d->parts[r].o, layout, true, &d->parts[r].whole, err));
        TSR_TRY(tsr_gemm_lay_out(&d->parts[r].o, layout, false, &d->parts[r].judged, err));
    }
    d->sums = malloc(d->ranks * d->parts[0].whole.grouped.gemm.m * o->n * sizeof *d->sums + 64);
    if (d->sums == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the ranks of '%s'", o->name);
    return compute_all_exact(d, err);
}

static void drop(division *d)
{
    for (size_t r = 0; d->parts != NULL && r < d->ranks; r++) {
        tsr_gemm_laid_out_free(&d->parts[r].whole);
        tsr_gemm_laid_out_free(&d->parts[r].judged);
        tsr_gemm_operands_free(&d->parts[r].o);
    }
    free(d->parts);
    free(d->exact);
    free(d->sums);
}

/* ---- running ---- */

static tsr_gemm_laid_out *laid_out_of(part *p, const tsr_device_gemm *kernel)
{
    return kernel->row_by_row ? &p->judged : &p->whole;
}

/* Runs all ranks, and keeps their results rounded to `out`. *ran is false if the kernel does not support the shape. */
static tsr_status run_parts(division *d, const tsr_device_gemm *kernel, tsr_out out, bool *ran, tsr_err *err)
{
    const tsr_out run_as = kernel->rounds_last ? TSR_OUT_F32 : out;
    for (size_t r = 0; r < d->ranks; r++) {
        tsr_gemm_laid_out *const l = laid_out_of(&d->parts[r], kernel);
        const size_t cells = l->grouped.gemm.m * d->whole->n;
        TSR_TRY(tsr_gemm_run_once(&d->parts[r].o, kernel, r, run_as, l, ran, err));
        if (!*ran)
            return TSR_OK;
        memcpy(d->sums + r * cells, l->d, cells * sizeof *l->d);
        tsr_out_round(out, d->sums + r * cells, kernel->rounds_last ? cells : 0);
    }
    return TSR_OK;
}

/* Adds the results of the ranks, and judges the sum. */
static tsr_status judge_sum(division *d, const tsr_device_gemm *kernel, const char *words, const char *how, tsr_out out,
                            tsr_err *err)
{
    const tsr_gemm_operands *const o = &d->parts[0].o;
    tsr_gemm_laid_out *const l = laid_out_of(&d->parts[0], kernel);
    const size_t cells = l->grouped.gemm.m * o->n;
    const double began = tsr_now();
    char name[192];
    tsr_gemm_result result = {.name = name,
                              .accumulation = kernel->accumulation,
                              .out = out,
                              .d = l->results,
                              .exact = d->exact,
                              .ranks = d->ranks,
                              .k = o->k};
    TSR_TRY(kernel->ranks.sum(kernel->device, d->ranks, out, d->sums, cells, &result.seconds, err));
    memcpy(l->d, d->sums, cells * sizeof *l->d);
    result.fault = tsr_gemm_gather(o, l);
    if (!tsr_device_ranks_agree(d->sums, d->ranks, cells))
        result.fault = TSR_RANKS_DIFFER;
    o->evidence->phases[TSR_PHASE_KERNELS] += tsr_now() - began;
    snprintf(name, sizeof name, "%s%s, %zu ranks %s: sum, %s", kernel->name, words, d->ranks, how, tsr_out_name(out));
    return tsr_gemm_judge(d->whole, &result, err);
}

static tsr_status run_kernel(division *d, const tsr_device_gemm *kernel, const char *words, tsr_err *err)
{
    tsr_gemm_operands *const o = d->whole;
    const char *const how = kernel->ranks.spread == NULL ? TSR_RANKS_IN_TURN : o->c->how;
    tsr_status status = TSR_OK;
    for (tsr_out out = 0; status == TSR_OK && out < TSR_N_OUTS; out++) {
        const double began = tsr_now();
        bool ran = false;
        if ((o->c->outs >> out & 1) == 0)
            continue;
        status = run_parts(d, kernel, out, &ran, err);
        o->evidence->phases[TSR_PHASE_KERNELS] += tsr_now() - began;
        if (status == TSR_OK && !ran)
            break;
        if (status == TSR_OK)
            status = judge_sum(d, kernel, words, how, out, err);
    }
    return status;
}

tsr_status tsr_gemm_check_ranks(tsr_gemm_operands *o, tsr_err *err)
{
    const tsr_gemm_layout layout = o->n_experts == 1 ? TSR_GEMM_ROWS : TSR_GEMM_CONTIGUOUS;
    tsr_device *const device = o->c->options->device;
    division d = {.whole = o, .ranks = (size_t)o->c->options->ranks};
    if (d.ranks == 1 || !is_row_parallel(o->experts[0].weight))
        return TSR_OK;
    tsr_status status = divide(&d, layout, err);
    for (size_t i = 0; status == TSR_OK && i < device->n_gemms; i++)
        status = run_kernel(&d, &device->gemms[i], tsr_gemm_layout_words(layout), err);
    drop(&d);
    return status;
}
