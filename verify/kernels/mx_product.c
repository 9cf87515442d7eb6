/* Checks the products of one MXFP4, NVFP4 or MXFP8 weight: the error of quantization, and that of each kernel. */
#include "verify/kernels/mx_product.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "common/parallel/threads.h"
#include "kernels/cpu/mx_tokens.h"
#include "verify/evidence/activations.h"
#include "verify/evidence/kernel_tally.h"
#include "verify/kernels/gemm_oracle.h"
#include "verify/kernels/mx_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JUDGED_ROWS = 64 /* tokens that are multiplied and judged, spread over all tokens */ };

/* Least SQNR in dB after quantization, unless --min-sqnr is given. e4m3: one decibel less than in tsr_check_gemm,
 * for one operand and for both. e2m1: outlier channels decide, because values that share a group with an outlier
 * become 0. Two operands had 13.9 dB or more. Scales that are wrong by a factor of two give 6 dB or less. */
static const double kMinE4m3 = 29, kMinE4m3Both = 26, kMinE2m1 = 9;

typedef struct product {
    const tsr_mx_subject *subject;
    unsigned outs;
    tsr_evidence *evidence;
    tsr_arena arena;
    tsr_mx_operand w;
    size_t m;
    tsr_columns rows;        /* indices of the selected tokens */
    uint16_t *x;             /* [m][k], BF16 */
    uint8_t *codes, *scales; /* codes and scales of quantized activations */
    double *wide;            /* [m][k]: x */
    double *a_codes, *a_t;   /* [m][k], [m][k / group]: the operand A, decoded */
    double *w_codes;         /* [TSR_MX_BAND][k] */
    double *original;        /* [m][n]: the product of the originals */
    tsr_mx_exact *exact;     /* [m][n] */
    float *d, *results;      /* [m][n] */
    double *values, *y;      /* [m][n] */
} product;

/* ---- operands ---- */

static bool has_original(const product *p)
{
    return p->subject->options->against != NULL;
}

/* Moves the judged rows of the activations to the front of x. */
static void choose_rows(product *p, size_t rows)
{
    const uint64_t seed = tsr_seed_of(p->subject->options->seed, p->subject->name);
    p->rows = (tsr_columns){.rows = rows, .block = 1, .blocks = rows, .seed = tsr_mix_bits(seed)};
    p->rows.chosen = p->m = (size_t)tsr_min_u64(rows, JUDGED_ROWS);
    for (size_t i = 0; i < p->m; i++)
        memmove(p->x + i * p->w.k, p->x + tsr_column_of(&p->rows, i) * p->w.k, p->w.k * sizeof *p->x);
}

static tsr_status get_activations(product *p, tsr_err *err)
{
    const tsr_kernel_options *const options = p->subject->options;
    const char *const name = p->subject->weight->values->name;
    size_t rows = (size_t)options->tokens;
    p->x = tsr_arena_alloc(&p->arena, rows * p->w.k * sizeof *p->x);
    if (p->x == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for activations of '%s'", p->subject->name);
    if (options->activations == NULL)
        tsr_activations_draw(tsr_seed_of(options->seed, p->subject->name), rows, p->w.k, p->x);
    else
        TSR_TRY(tsr_activations_read(options->activations, tsr_activations_find(options->activations, name), &rows,
                                     p->w.k, p->x, err));
    choose_rows(p, rows);
    return TSR_OK;
}

static tsr_status allocate(product *p, tsr_err *err)
{
    const size_t k = p->w.k, values = p->m * k, groups = values / p->w.group, cells = p->m * p->w.n;
    tsr_arena *const arena = &p->arena;
    p->codes = tsr_arena_alloc(arena, tsr_mx_form_bytes(p->w.matrix.form, values));
    p->scales = tsr_arena_alloc(arena, groups);
    p->wide = tsr_arena_alloc(arena, values * sizeof *p->wide);
    p->a_codes = tsr_arena_alloc(arena, values * sizeof *p->a_codes);
    p->a_t = tsr_arena_alloc(arena, groups * sizeof *p->a_t);
    p->w_codes = tsr_arena_alloc(arena, TSR_MX_BAND * k * sizeof *p->w_codes);
    p->original = tsr_arena_alloc(arena, cells * sizeof *p->original);
    p->exact = tsr_arena_alloc(arena, cells * sizeof *p->exact);
    p->d = tsr_arena_alloc(arena, cells * sizeof *p->d);
    p->results = tsr_arena_alloc(arena, cells * sizeof *p->results);
    p->values = tsr_arena_alloc(arena, cells * sizeof *p->values);
    p->y = tsr_arena_alloc(arena, cells * sizeof *p->y);
    return p->codes != NULL && p->scales != NULL && p->wide != NULL && p->a_codes != NULL && p->a_t != NULL &&
                   p->w_codes != NULL && p->original != NULL && p->exact != NULL && p->d != NULL &&
                   p->results != NULL && p->values != NULL && p->y != NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_NOMEM, "out of memory for the products of '%s'", p->subject->name);
}

/* Returns the number of rows of the band of W. */
static size_t band_rows(const product *p, size_t band)
{
    return (size_t)tsr_min_u64(TSR_MX_BAND, p->w.n - band * TSR_MX_BAND);
}

/* Fills values[rows][k] with the originals of a band. Without originals it uses the checkpoint's own values. */
static tsr_status original_band(product *p, tsr_weight_reader *reader, size_t band, double *values, tsr_err *err)
{
    const tsr_mx_subject *const s = p->subject;
    const size_t rows = band_rows(p, band), k = p->w.k, at = band * TSR_MX_BAND;
    if (!has_original(p)) {
        tsr_mx_decode_codes(p->w.matrix.form, p->w.codes + tsr_mx_form_bytes(p->w.matrix.form, at * k), rows, k,
                            values);
        for (size_t i = 0; i < rows * k; i++)
            values[i] *= p->w.t[at * (k / p->w.group) + i / p->w.group];
        return TSR_OK;
    }
    const tsr_piece piece = {
        .matrix = s->matrix, .row = tsr_column_block(&p->w.columns, band) * TSR_MX_BAND, .rows = rows, .cols = k};
    const tsr_weight *original;
    tsr_view view;
    TSR_TRY(tsr_find_original(s->options->against, s->weight, &original, err));
    TSR_TRY(tsr_load_piece(reader, s->options->against, original, &piece, &view, p->evidence, err));
    for (size_t i = 0; i < rows; i++)
        tsr_weight_reader_row(reader, i, 0, k, values + i * k);
    return TSR_OK;
}

static tsr_status find_original(product *p, tsr_err *err)
{
    tsr_weight_reader reader = {0};
    tsr_status status = TSR_OK;
    tsr_mx_decode_codes(TSR_MX_FORM_BF16, p->x, p->m, p->w.k, p->wide);
    for (size_t band = 0; status == TSR_OK && band < p->w.columns.chosen; band++) {
        status = original_band(p, &reader, band, p->w_codes, err);
        const double began = tsr_now();
        if (status == TSR_OK)
            tsr_product(p->wide, p->w_codes, p->m, band_rows(p, band), p->w.k, p->original + band * TSR_MX_BAND,
                        p->w.n);
        p->evidence->phases[TSR_PHASE_ORACLE] += tsr_now() - began;
    }
    tsr_weight_reader_free(&reader);
    return status;
}

/* Makes the operand A in this form. */
static tsr_mx_matrix make_operand(product *p, tsr_mx_form form, float global)
{
    const tsr_cpu_kernels *const cpu = &p->subject->options->device->cpu;
    const size_t groups = p->m * p->w.k / p->w.group;
    if (form == TSR_MX_FORM_BF16) {
        for (size_t i = 0; i < groups; i++)
            p->a_t[i] = 1;
        memcpy(p->a_codes, p->wide, p->m * p->w.k * sizeof *p->a_codes);
        return (tsr_mx_matrix){.form = form, .codes = p->x};
    }
    const tsr_mx_matrix a = {.form = form, .codes = p->codes, .scales = p->scales, .global = global};
    tsr_quantize_tokens_mx(cpu, p->x, p->m, p->w.k, &a, p->codes, p->scales);
    tsr_mx_decode_codes(form, p->codes, p->m, p->w.k, p->a_codes);
    tsr_mx_decode_scales(&a, groups, p->a_t);
    return a;
}

static void find_exact(product *p)
{
    const size_t k = p->w.k, groups = k / p->w.group;
    const double began = tsr_now();
    for (size_t band = 0; band < p->w.columns.chosen; band++) {
        const size_t at = band * TSR_MX_BAND;
        const tsr_mx_decoded a = {p->a_codes, p->a_t}, w = {p->w_codes, p->w.t + at * groups};
        tsr_mx_decode_codes(p->w.matrix.form, p->w.codes + tsr_mx_form_bytes(p->w.matrix.form, at * k),
                            band_rows(p, band), k, p->w_codes);
        tsr_mx_exact_product(&a, p->m, &w, band_rows(p, band), k, p->w.group, p->exact + at, p->w.n);
    }
    p->evidence->phases[TSR_PHASE_ORACLE] += tsr_now() - began;
}

/* ---- judging ---- */

static tsr_status judge_quantization(const product *p, tsr_mx_form form, tsr_err *err)
{
    const bool both = has_original(p) && form != TSR_MX_FORM_BF16;
    double limit = p->subject->options->limits.min_sqnr;
    char what[64], text[96];
    if (isnan(limit))
        limit = p->w.matrix.form != TSR_MX_FORM_MXFP8 ? kMinE2m1 : both ? kMinE4m3Both : kMinE4m3;
    if (!has_original(p) && form == TSR_MX_FORM_BF16)
        return TSR_OK; /* nothing was quantized */
    snprintf(what, sizeof what, "%s in %s",
             both              ? "weights and activations"
             : has_original(p) ? "weights"
                               : "activations",
             tsr_mx_form_name(p->w.matrix.form));
    tsr_judgement j = {
        .subject = p->subject->name, .kind = TSR_ERROR_QUANTIZATION, .what = what, .of_bound = -1, .of_expected = -1};
    for (size_t i = 0; i < p->m * p->w.n; i++)
        p->values[i] = p->exact[i].value;
    tsr_judge(&j, p->original, p->values, p->m, p->w.n, &p->rows, &p->w.columns);
    if (!(tsr_metrics_sqnr(&j.metrics) >= limit)) {
        snprintf(text, sizeof text, "SQNR %.2f dB is below %g", tsr_metrics_sqnr(&j.metrics), limit);
        j.fault = text;
    }
    return tsr_evidence_add(p->evidence, &j, err);
}

static tsr_status judge_kernel(const product *p, const char *what, tsr_out out, tsr_err *err)
{
    const tsr_tally_of of = {.subject = p->subject->name,
                             .what = what,
                             .rows = p->m,
                             .cols = p->w.n,
                             .out = out,
                             .systematic = tsr_gemm_slope(TSR_ACCUMULATE_FP32, p->w.k)};
    tsr_kernel_tally t;
    TSR_TRY(tsr_kernel_tally_begin(&t, &of, err));
    const size_t k = p->w.k, group = p->w.group;
    for (size_t i = 0; i < p->m * p->w.n; i++) {
        const tsr_mx_exact *const e = &p->exact[i];
        const bool overflows = !isfinite(p->results[i]) && tsr_mx_may_overflow(e, out, k, group);
        p->values[i] = e->value;
        p->y[i] = overflows ? e->value : (double)p->results[i];
        tsr_kernel_tally_count(&t, i / p->w.n, i % p->w.n, e->value, p->y[i], tsr_mx_bound(e, out, k, group),
                               tsr_mx_variance(e, out, k, group));
    }
    tsr_judge(&t.judgement, p->values, p->y, p->m, p->w.n, &p->rows, &p->w.columns);
    return tsr_kernel_tally_end_by(&t, &p->subject->options->limits, "FP32", p->evidence, err);
}

static tsr_status run_kernel(product *p, const tsr_device_mx_gemm *kernel, const tsr_mx_matrix *a, tsr_err *err)
{
    const size_t cells = p->m * p->w.n;
    const tsr_mx_gemm_args args = {
        .a = *a, .w = p->w.matrix, .d = p->d, .m = p->m, .n = p->w.n, .k = p->w.k, .ldd = p->w.n};
    char what[128];
    bool ran = false;
    double began = tsr_now();
    for (tsr_out out = TSR_OUT_F32 + 1; out-- > 0;) { /* F32 first, because the other types may be derived from it */
        if ((p->outs >> out & 1) == 0)
            continue;
        if (!ran || !kernel->rounds_last) {
            memset(p->d, 0xFF, cells * sizeof *p->d); /* NaN */
            TSR_TRY(kernel->run(kernel, &args, kernel->rounds_last ? TSR_OUT_F32 : out, err));
            ran = true;
        }
        memcpy(p->results, p->d, cells * sizeof *p->d);
        if (kernel->rounds_last)
            tsr_out_round(out, p->results, cells);
        tsr_lap(p->evidence, TSR_PHASE_KERNELS, &began);
        snprintf(what, sizeof what, "%s, %s x %s, %s", kernel->name, tsr_mx_form_name(a->form),
                 tsr_mx_form_name(p->w.matrix.form), tsr_out_name(out));
        TSR_TRY(judge_kernel(p, what, out, err));
        tsr_lap(p->evidence, TSR_PHASE_JUDGE, &began);
    }
    return TSR_OK;
}

static tsr_status judge_form(product *p, tsr_mx_form form, float global, tsr_err *err)
{
    const tsr_device *const device = p->subject->options->device;
    double began = tsr_now();
    const tsr_mx_matrix a = make_operand(p, form, global);
    tsr_lap(p->evidence, TSR_PHASE_QUANTIZE, &began);
    find_exact(p);
    TSR_TRY(judge_quantization(p, form, err));
    for (size_t i = 0; i < device->n_mx_gemms; i++)
        TSR_TRY(run_kernel(p, &device->mx_gemms[i], &a, err));
    return TSR_OK;
}

/* ---- activations of NVFP4 ---- */

/* Reads the global scale of the layer's input. If it is not positive, that is a finding, and *global stays 0. */
static tsr_status read_input_scale(const product *p, float *global, tsr_err *err)
{
    const tsr_tensor *const t = p->subject->weight->input_scale;
    char text[64];
    tsr_judgement j = {.subject = p->subject->name,
                       .what = "scale of the layer's input",
                       .kind = TSR_ERROR_CHECKPOINT,
                       .of_bound = -1,
                       .of_expected = -1,
                       .fault = text};
    float stated;
    if (t == NULL || t->dtype != TSR_F32 || tsr_tensor_elements(t) != 1)
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_read(p->subject->options->side.checkpoint, t, 0, &stated, sizeof stated, err));
    if (stated >= 0x1p-64f && stated <= 0x1p64f) {
        *global = stated;
        return TSR_OK;
    }
    snprintf(text, sizeof text, "it is %g, not from 2^-64 to 2^64", (double)stated);
    return tsr_evidence_add(p->evidence, &j, err);
}

/* Scales generated activations to the range of the global scale: 6 * 448 of its steps. */
static void scale_to_range(product *p, float global)
{
    const double step = p->w.matrix.form == TSR_MX_FORM_NVFP4_TIMES ? (double)global : 1 / (double)global;
    double largest = 0;
    tsr_mx_decode_codes(TSR_MX_FORM_BF16, p->x, p->m, p->w.k, p->wide);
    for (size_t i = 0; i < p->m * p->w.k; i++)
        largest = fmax(largest, fabs(p->wide[i]));
    for (size_t i = 0; largest > 0 && i < p->m * p->w.k; i++)
        p->x[i] = tsr_bf16_from_f32((float)(p->wide[i] / largest * (6 * 448 * step)));
}

static tsr_status judge_all(product *p, tsr_err *err)
{
    const tsr_mx_form own = p->w.matrix.form;
    const bool is_nvfp4 = own == TSR_MX_FORM_NVFP4_TIMES || own == TSR_MX_FORM_NVFP4_DIVIDED;
    const bool drawn = p->subject->options->activations == NULL;
    float global = 0;
    TSR_TRY(get_activations(p, err));
    if (!drawn && tsr_activations_are_zero(p->x, p->m * p->w.k))
        return tsr_evidence_skip(p->evidence, p->subject->name, TSR_ZERO_ACTIVATIONS, err);
    TSR_TRY(allocate(p, err));
    if (is_nvfp4)
        TSR_TRY(read_input_scale(p, &global, err));
    if (global > 0 && drawn)
        scale_to_range(p, global);
    TSR_TRY(find_original(p, err));
    TSR_TRY(judge_form(p, TSR_MX_FORM_BF16, 0, err));
    return is_nvfp4 && global == 0 ? TSR_OK : judge_form(p, own, global, err);
}

tsr_status tsr_judge_mx_product(const tsr_mx_subject *subject, unsigned outs, tsr_evidence *evidence, tsr_err *err)
{
    product p = {.subject = subject, .outs = outs, .evidence = evidence};
    bool sound = false;
    if (subject->weight->transposed && has_original(&p))
        return tsr_evidence_skip(evidence, subject->name, "its original is stored transposed; omit --against", err);
    tsr_status status = tsr_mx_operand_read(subject, &p.arena, &p.w, &sound, evidence, err);
    if (status == TSR_OK && sound)
        status = judge_all(&p, err);
    tsr_arena_free(&p.arena);
    return status;
}
