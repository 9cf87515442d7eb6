/* Judges weight-only products, with exact values and the effect of each rounding. */
#include "verify/kernels/check_weight_only.h"

#include "common/checked.h"
#include "common/parallel/threads.h"
#include "formats/checkpoint/dtype.h"
#include "verify/evidence/activations.h"
#include "verify/evidence/kernel_tally.h"
#include "verify/kernels/gemm_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEW_TOKENS = 16 /* GPUs may have a separate kernel for up to so many */ };

/* Least SQNR in dB of scales and activations in 16 bits if the originals are unknown. Half a step of BF16 is 48 dB. */
static const double kMinOfNarrowing = 40;

/* Exact value and error terms of one element, for one result type. */
typedef struct exact {
    double value, mass, squares; /* sums of a * w, of |a * w|, of (a * w)^2 */
    double rounding;             /* sum of |a| * h, with h half a step at w: the effect of rounding w */
    double rounding_square;      /* sum of a^2 h^2 / 3 */
    double lift;                 /* added mass if a * (code + 8) * scale and a * 8 * scale are separate */
    double lift_squares;         /* the same increase of squares */
} exact;

typedef struct product {
    const tsr_weight_only *w;
    tsr_evidence *evidence;
    tsr_arena arena;
    const char *name;
    size_t m, groups, group, padded; /* group 0: one scale per channel */
    uint16_t *x;                     /* [m][k], BF16 */
    double *wide;                    /* [m][padded]: x */
    double *scales, *zero_points;    /* [groups][n], as stored */
    double *original, *rounding;     /* [m][n]: the ideal product; mean square error that rounding of codes causes */
    float *a, *narrow_scales, *zeros, *d;
    exact *exact;       /* [m][n] */
    double *values, *y; /* [m][n] */
} product;

/* ---- operands ---- */

static const char *unfit_because(const product *p)
{
    const tsr_kernel_options *const options = p->w->options;
    if (p->w->weight->reordered)
        return "weight-only products: its columns have groups in activation order";
    if (p->w->k % p->w->weight->block.cols != 0 && p->group != 0)
        return "weight-only products: its groups do not divide its rows";
    if (options->activations != NULL && tsr_activations_find(options->activations, p->name) == NULL)
        return "weight-only products: the file of activations has none for it";
    return NULL;
}

static tsr_status take(product *p, tsr_err *err)
{
    const size_t n = p->w->n, k = p->w->k, cells = p->m * n, scales = p->groups * n;
    p->x = tsr_arena_alloc(&p->arena, p->m * k * sizeof *p->x);
    p->wide = tsr_arena_alloc(&p->arena, p->m * p->padded * sizeof *p->wide);
    p->scales = tsr_arena_alloc(&p->arena, scales * sizeof *p->scales);
    p->zero_points = tsr_arena_alloc(&p->arena, scales * sizeof *p->zero_points);
    p->original = tsr_arena_alloc(&p->arena, cells * sizeof *p->original);
    p->rounding = tsr_arena_alloc(&p->arena, cells * sizeof *p->rounding);
    p->a = tsr_arena_alloc(&p->arena, p->m * k * sizeof *p->a);
    p->narrow_scales = tsr_arena_alloc(&p->arena, scales * sizeof *p->narrow_scales);
    p->zeros = tsr_arena_alloc(&p->arena, scales * sizeof *p->zeros);
    p->d = tsr_arena_alloc(&p->arena, cells * sizeof *p->d);
    p->exact = tsr_arena_alloc(&p->arena, cells * sizeof *p->exact);
    p->values = tsr_arena_alloc(&p->arena, cells * sizeof *p->values);
    p->y = tsr_arena_alloc(&p->arena, cells * sizeof *p->y);
    const bool whole = p->x != NULL && p->wide != NULL && p->scales != NULL && p->zero_points != NULL &&
                       p->original != NULL && p->rounding != NULL && p->a != NULL && p->narrow_scales != NULL &&
                       p->zeros != NULL && p->d != NULL && p->exact != NULL && p->values != NULL && p->y != NULL;
    return whole ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "out of memory for the products of '%s'", p->name);
}

static void widen(const product *p, const uint16_t *x, double *out)
{
    for (size_t i = 0; i < p->m; i++) {
        memset(out + i * p->padded + p->w->k, 0, (p->padded - p->w->k) * sizeof *out);
        tsr_decode(TSR_BF16, (const unsigned char *)(x + i * p->w->k), p->w->k, out + i * p->padded);
    }
}

static tsr_status get_activations(product *p, tsr_err *err)
{
    const tsr_kernel_options *const options = p->w->options;
    if (options->activations == NULL)
        tsr_activations_draw(tsr_seed_of(options->seed, p->name), p->m, p->w->k, p->x);
    else
        TSR_TRY(tsr_activations_read(options->activations, tsr_activations_find(options->activations, p->name), &p->m,
                                     p->w->k, p->x, err));
    widen(p, p->x, p->wide);
    return TSR_OK;
}

/* Keeps scales and zero points of the loaded channels: [at, at + rows) of the selected ones. */
static void keep_scales(product *p, const tsr_weight_reader *r, size_t at, size_t rows)
{
    const tsr_weight *const w = p->w->weight;
    for (size_t g = 0; g < p->groups; g++) {
        for (size_t j = 0; j < rows; j++) {
            const size_t from = (size_t)((r->piece.row + j) / w->block.rows - r->first_row) * r->scale_cols + g;
            p->scales[g * p->w->n + at + j] = r->scales[from];
            p->zero_points[g * p->w->n + at + j] = r->zero_points[from];
        }
    }
}

/* Computes the mean square error that rounding to the nearest code causes in the products of these channels. */
static void expect_rounding(product *p, size_t at, size_t rows)
{
    const size_t n = p->w->n, k = p->w->k, length = k / p->groups;
    for (size_t i = 0; i < p->m; i++) {
        for (size_t g = 0; g < p->groups; g++) {
            double x2 = 0;
            for (size_t c = g * length; c < (g + 1) * length; c++)
                x2 += p->wide[i * p->padded + c] * p->wide[i * p->padded + c];
            for (size_t j = at; j < at + rows; j++)
                p->rounding[i * n + j] += p->scales[g * n + j] * p->scales[g * n + j] / 12 * x2;
        }
    }
}

/* Adds consecutive channels to a judgement of codes. x holds the originals and y the decoded values, both
 * [rows][padded]. */
static void judge_codes(const product *p, const tsr_weight_reader *reader, size_t at, size_t rows, const double *x,
                        const double *y, tsr_judgement *j)
{
    const size_t k = p->w->k;
    for (size_t col = 0; col < k; col += TSR_TILE) {
        const tsr_tile_metrics place = {
            .row = at, .col = col, .rows = (uint32_t)rows, .cols = (uint32_t)tsr_min_u64(TSR_TILE, k - col)};
        tsr_tile tile;
        tsr_tile_begin(&tile, &place, p->w->n, k);
        for (uint32_t i = 0; i < rows; i++)
            tsr_tile_row(&tile, i, x + i * p->padded + col, y + i * p->padded + col);
        tsr_tile_end(&tile, &j->metrics);
    }
    for (size_t i = 0; i < rows; i++) {
        size_t first = 0;
        const uint64_t found =
            tsr_weight_reader_misrounded(reader, i, 0, k, x + i * p->padded, y + i * p->padded, &first);
        if (found > 0 && j->metrics.misrounded == 0)
            j->metrics.misrounded_at = (at + i) * k + first;
        j->metrics.misrounded += found;
    }
}

/* Prepares consecutive channels: scales, originals and their product. `values` holds the originals and the decoded
 * values. */
static tsr_status do_band(product *p, size_t band, tsr_weight_reader readers[2], double *values, tsr_judgement *codes,
                          tsr_err *err)
{
    const tsr_kernel_options *const options = p->w->options;
    const tsr_weight *const w = p->w->weight;
    const uint64_t row = tsr_column_block(p->w->columns, band) * p->w->columns->block;
    const size_t rows = (size_t)tsr_min_u64(p->w->columns->block, w->rows - row), at = band * p->w->columns->block;
    const tsr_piece piece = {.row = row, .rows = rows, .cols = p->w->k};
    double *const stated = values + rows * p->padded;
    const tsr_weight_reader *from = &readers[0];
    tsr_view view[2];
    TSR_TRY(tsr_load_piece(&readers[0], &options->side, w, &piece, &view[0], p->evidence, err));
    if (options->against != NULL) {
        const tsr_weight *original;
        TSR_TRY(tsr_find_original(options->against, w, &original, err));
        TSR_TRY(tsr_load_piece(&readers[1], options->against, original, &piece, &view[1], p->evidence, err));
        from = &readers[1];
    }
    const double began = tsr_now();
    memset(values, 0, rows * p->padded * sizeof *values);
    for (size_t i = 0; i < rows; i++) {
        tsr_weight_reader_row(from, i, 0, p->w->k, values + i * p->padded);
        tsr_weight_reader_row(&readers[0], i, 0, p->w->k, stated + i * p->padded);
    }
    keep_scales(p, &readers[0], at, rows);
    expect_rounding(p, at, rows);
    tsr_product(p->wide, values, p->m, rows, p->padded, p->original + at, p->w->n);
    if (options->against != NULL)
        judge_codes(p, &readers[0], at, rows, values, stated, codes);
    p->evidence->phases[TSR_PHASE_ORACLE] += tsr_now() - began;
    return TSR_OK;
}

static void put_place(const product *p, uint64_t index, char *text, size_t size)
{
    snprintf(text, size, "row %llu, column %llu", (unsigned long long)tsr_column_of(p->w->columns, index / p->w->k),
             (unsigned long long)(index % p->w->k));
}

static tsr_status add_codes(const product *p, tsr_judgement *j, tsr_err *err)
{
    const double limit = p->w->options->limits.min_sqnr;
    char text[160], at[64];
    if (j->metrics.differ > 0)
        put_place(p, j->metrics.max_abs_at, j->worst_at, sizeof j->worst_at);
    if (!isnan(limit) && !(tsr_metrics_sqnr(&j->metrics) >= limit)) {
        snprintf(text, sizeof text, "SQNR %.2f dB is below %g", tsr_metrics_sqnr(&j->metrics), limit);
        j->fault = text;
    } else if (isnan(limit) && j->metrics.misrounded > 0) {
        put_place(p, j->metrics.misrounded_at, at, sizeof at);
        snprintf(text, sizeof text, "%llu of %llu codes are not the nearest, the first at %s",
                 (unsigned long long)j->metrics.misrounded, (unsigned long long)j->metrics.elements, at);
        j->fault = text;
    }
    return tsr_evidence_add(p->evidence, j, err);
}

static tsr_status fill(product *p, tsr_err *err)
{
    const size_t block = (size_t)p->w->columns->block;
    tsr_judgement codes = {.subject = p->name,
                           .what = "codes, against the originals",
                           .kind = TSR_ERROR_QUANTIZATION,
                           .of_bound = -1,
                           .of_expected = -1};
    double *const values = malloc(2 * block * p->padded * sizeof *values);
    tsr_weight_reader readers[2] = {{0}};
    tsr_status status = TSR_OK;
    if (values == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "out of memory for the values of '%s'", p->name);
    memset(p->rounding, 0, p->m * p->w->n * sizeof *p->rounding);
    for (size_t band = 0; status == TSR_OK && band < p->w->columns->chosen; band++)
        status = do_band(p, band, readers, values, &codes, err);
    free(values);
    tsr_weight_reader_free(&readers[0]);
    tsr_weight_reader_free(&readers[1]);
    if (status == TSR_OK && p->w->options->against != NULL)
        status = add_codes(p, &codes, err);
    return status;
}

/* Converts the operands to the type of `out`. Returns false if the type cannot represent them. */
static bool narrow(product *p, tsr_out out)
{
    const size_t n = p->groups * p->w->n, k = p->w->k;
    const double code = (double)(1u << (p->w->weight->bits - 1)), largest = out == TSR_OUT_F16 ? 65504 : 0x1.FEp127;
    for (size_t i = 0; i < p->m * k; i++)
        p->a[i] = (float)p->wide[i / k * p->padded + i % k];
    for (size_t i = 0; i < n; i++) {
        p->narrow_scales[i] = (float)p->scales[i];
        p->zeros[i] = (float)(-p->zero_points[i] * p->scales[i]);
        if (fabs(p->scales[i]) * 2 * code > largest)
            return false;
    }
    tsr_out_round(out, p->a, p->m * k);
    tsr_out_round(out, p->narrow_scales, n);
    tsr_out_round(out, p->zeros, n);
    for (size_t i = 0; i < p->m * k; i++) {
        if (!isfinite(p->a[i]))
            return false;
    }
    return true;
}

static bool scaled_early(const product *p)
{
    return p->group != 0 || p->w->weight->zero_point != NULL;
}

/* Computes the weights w of channel j, and h, half a step of `out`, for each weight that is rounded. */
static void weigh(const product *p, tsr_out out, size_t j, double *w, double *h)
{
    const size_t k = p->w->k, length = k / p->groups;
    for (size_t c = 0; c < k; c++) {
        const size_t from = c / length * p->w->n + j;
        w[c] = (double)p->w->codes[j * k + c] * (double)p->narrow_scales[from];
        if (p->w->weight->zero_point != NULL)
            w[c] += (double)p->zeros[from];
        h[c] = scaled_early(p) ? tsr_half_step(out, fabs(w[c])) : 0;
    }
}

static void find_exact(const product *p, tsr_out out, double *w, double *h)
{
    const size_t k = p->w->k;
    for (size_t j = 0; j < p->w->n; j++) {
        weigh(p, out, j, w, h);
        for (size_t i = 0; i < p->m; i++) {
            exact e = {0};
            for (size_t c = 0; c < k; c++) {
                const double a = (double)p->a[i * k + c], term = a * w[c], slack = fabs(a) * h[c];
                const double eight = 8 * a * (double)p->narrow_scales[c / (k / p->groups) * p->w->n + j];
                e.value += term;
                e.mass += fabs(term);
                e.squares += term * term;
                e.rounding += slack;
                e.rounding_square += slack * slack / 3;
                e.lift += 2 * fabs(eight);
                e.lift_squares += 2 * eight * (term + eight);
            }
            p->exact[i * p->w->n + j] = e;
        }
    }
}

/* ---- judging ---- */

static tsr_status judge_quantization(const product *p, tsr_out out, tsr_err *err)
{
    const bool known = p->w->options->against != NULL;
    double limit = p->w->options->limits.min_sqnr, expected = 0;
    char what[64], text[TSR_MAX_FAULT];
    tsr_judgement j = {
        .subject = p->name, .what = what, .kind = TSR_ERROR_QUANTIZATION, .of_bound = -1, .of_expected = -1};
    snprintf(what, sizeof what, "%s, product in %s", known ? "weights" : "scales and activations", tsr_out_name(out));
    for (size_t i = 0; i < p->m * p->w->n; i++) {
        p->y[i] = p->exact[i].value;
        expected += p->rounding[i];
    }
    tsr_judge(&j, p->original, p->y, p->m, p->w->n, NULL, p->w->columns);
    if (known)
        j.of_expected = j.metrics.sum_d2 > 0 ? sqrt(j.metrics.sum_d2 / expected) : 0;
    if (isnan(limit) && !known)
        limit = kMinOfNarrowing;
    tsr_limit_rounding(&j, limit, text);
    return tsr_evidence_add(p->evidence, &j, err);
}

/* kernels/cuda/weight_only_gemm.h derives the bound. For the expected RMS, each step rounds the current sum. */
static void judge_element(const product *p, const tsr_device_weight_only *kernel, tsr_out out, size_t tokens, size_t at,
                          tsr_kernel_tally *t)
{
    const exact *const e = &p->exact[at];
    const double y = p->y[at];
    const double k = (double)p->w->k, steps = kernel->one_by_one ? k : k / 16 + 64,
                 unit = kernel->one_by_one ? 0x1p-24 : 0x1p-22;
    const bool lifts = kernel->lifts && tokens <= FEW_TOKENS && p->w->weight->zero_point == NULL &&
                       p->w->format->bits == 4 && out == TSR_OUT_F16;
    const double mass = e->mass + (lifts ? e->lift : 0), squares = e->squares + (lifts ? e->lift_squares : 0);
    const double before = steps * unit * mass + e->rounding, half = tsr_half_step(out, fabs(e->value) + before);
    const double variance =
        steps * unit * unit / 3 * (squares + e->value * e->value) + e->rounding_square + half * half / 3;
    const bool overflows = !isfinite(y) && tsr_may_overflow(out, fabs(e->value) + before, e->mass);
    tsr_kernel_tally_count(t, at / p->w->n, at % p->w->n, e->value, overflows ? e->value : y, before + half, variance);
}

static tsr_status judge_kernel(const product *p, const tsr_device_weight_only *kernel, tsr_out out, size_t tokens,
                               const char *what, tsr_err *err)
{
    const size_t cells = tokens * p->w->n;
    const tsr_tally_of of = {.subject = p->name,
                             .what = what,
                             .rows = tokens,
                             .cols = p->w->n,
                             .out = out,
                             .shared = TSR_SHARE_COLS, /* a rounded weight affects all tokens */
                             .systematic = tsr_weight_only_slope(kernel->one_by_one, p->w->k)};
    tsr_kernel_tally t;
    TSR_TRY(tsr_kernel_tally_begin(&t, &of, err));
    for (size_t i = 0; i < cells; i++) {
        p->values[i] = p->exact[i].value;
        p->y[i] = (double)p->d[i];
        judge_element(p, kernel, out, tokens, i, &t);
    }
    tsr_judge(&t.judgement, p->values, p->y, tokens, p->w->n, NULL, p->w->columns);
    return tsr_kernel_tally_end_by(&t, &p->w->options->limits, "its accumulation", p->evidence, err);
}

static tsr_status run_kernel(product *p, const tsr_device_weight_only *kernel, tsr_out out, size_t tokens, tsr_err *err)
{
    const bool zeros = p->w->weight->zero_point != NULL;
    char scales[32] = "a scale a channel", what[160];
    const tsr_weight_only_args args = {
        .format = p->w->format,
        .words = p->w->words,
        .a = p->a,
        .scales = p->narrow_scales,
        .zeros = zeros ? p->zeros : NULL,
        .d = p->d,
        .m = tokens,
        .n = p->w->n,
        .k = p->w->k,
        .ldd = p->w->n,
        .group = p->group,
        .bf16 = out == TSR_OUT_BF16,
    };
    if (p->group != 0)
        snprintf(scales, sizeof scales, "groups of %zu", p->group);
    snprintf(what, sizeof what, "%s: product, %s%s, %zu token%s, %s", kernel->name, scales,
             zeros ? ", zero points" : "", tokens, tokens == 1 ? "" : "s", tsr_out_name(out));
    memset(p->d, 0xFF, tokens * p->w->n * sizeof *p->d); /* NaN */
    double began = tsr_now();
    TSR_TRY(kernel->run(kernel, &args, err));
    p->evidence->phases[TSR_PHASE_KERNELS] += tsr_now() - began;
    began = tsr_now();
    TSR_TRY(judge_kernel(p, kernel, out, tokens, what, err));
    p->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - began;
    return TSR_OK;
}

/* Returns the reason why a kernel does not accept this product, or NULL. */
static const char *refusal(const product *p, const tsr_device_weight_only *kernel)
{
    const bool takes = kernel->general || p->group == 0 || p->group == 32 || p->group == 64 || p->group == 128;
    return takes ? NULL : "it supports groups of 32, 64 or 128";
}

/* Runs every kernel with one token, with few and with all. A kernel that handles each token separately runs with all
 * only. */
static tsr_status run_kernels(product *p, tsr_out out, tsr_err *err)
{
    const tsr_device *const device = p->w->options->device;
    for (size_t i = 0; i < device->n_weight_onlys; i++) {
        const tsr_device_weight_only *const kernel = &device->weight_onlys[i];
        if (refusal(p, kernel) != NULL)
            continue;
        for (size_t tokens = kernel->one_by_one ? p->m : 1; tokens < p->m; tokens = tokens == 1 ? FEW_TOKENS : p->m)
            TSR_TRY(run_kernel(p, kernel, out, tokens, err));
        TSR_TRY(run_kernel(p, kernel, out, p->m, err));
    }
    return TSR_OK;
}

static tsr_status judge_out(product *p, tsr_out out, tsr_err *err)
{
    double *const rows = malloc(2 * p->w->k * sizeof *rows);
    const bool holds = narrow(p, out);
    char why[64];
    if (rows == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the weights of '%s'", p->name);
    const double began = tsr_now();
    if (holds)
        find_exact(p, out, rows, rows + p->w->k);
    free(rows);
    p->evidence->phases[TSR_PHASE_ORACLE] += tsr_now() - began;
    if (!holds) {
        snprintf(why, sizeof why, "weight-only products: values beyond %s", tsr_out_name(out));
        return tsr_evidence_skip(p->evidence, p->name, why, err);
    }
    TSR_TRY(judge_quantization(p, out, err));
    return run_kernels(p, out, err);
}

/* Describes the first scale that is not a positive number; false when there is none. */
static bool bad_scale(const product *p, char *text, size_t size)
{
    for (size_t i = 0; i < p->groups * p->w->n; i++) {
        if (p->scales[i] > 0 && !isinf(p->scales[i]))
            continue;
        snprintf(text, size, "of row %llu, group %zu it is %g",
                 (unsigned long long)tsr_column_of(p->w->columns, i % p->w->n), i / p->w->n, p->scales[i]);
        return true;
    }
    return false;
}

static tsr_status judge_all(product *p, tsr_err *err)
{
    const tsr_device *const device = p->w->options->device;
    char text[128];
    TSR_TRY(take(p, err));
    TSR_TRY(get_activations(p, err));
    if (p->w->options->activations != NULL && tsr_activations_are_zero(p->x, p->m * p->w->k))
        return tsr_evidence_skip(p->evidence, p->name, TSR_ZERO_ACTIVATIONS, err);
    TSR_TRY(fill(p, err));
    if (bad_scale(p, text, sizeof text)) {
        const tsr_judgement j = {.subject = p->name,
                                 .kind = TSR_ERROR_CHECKPOINT,
                                 .what = "scale of the checkpoint",
                                 .of_bound = -1,
                                 .of_expected = -1,
                                 .fault = text};
        return tsr_evidence_add(p->evidence, &j, err);
    }
    for (tsr_out out = TSR_OUT_BF16; out <= TSR_OUT_F16; out++) {
        if (p->w->outs >> out & 1)
            TSR_TRY(judge_out(p, out, err));
    }
    for (size_t i = 0; i < device->n_weight_onlys; i++) {
        const char *const why = refusal(p, &device->weight_onlys[i]);
        if (why == NULL)
            continue;
        snprintf(text, sizeof text, "weight-only products by %s: %s", device->weight_onlys[i].name, why);
        TSR_TRY(tsr_evidence_skip(p->evidence, p->name, text, err));
    }
    return TSR_OK;
}

tsr_status tsr_judge_weight_only(const tsr_weight_only *w, tsr_evidence *evidence, tsr_err *err)
{
    product p = {
        .w = w,
        .evidence = evidence,
        .name = w->weight->values->name,
        .m = (size_t)w->options->tokens,
        .group = w->weight->block.cols < w->weight->cols ? (size_t)w->weight->block.cols : 0,
        .padded = tsr_padded(w->k),
    };
    p.groups = p.group == 0 ? 1 : w->k / p.group;
    const char *const why = unfit_because(&p);
    const tsr_status status = why == NULL ? judge_all(&p, err) : tsr_evidence_skip(evidence, p.name, why, err);
    tsr_arena_free(&p.arena);
    return status;
}
