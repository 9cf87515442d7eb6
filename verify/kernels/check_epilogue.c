/* Operands of one int8 weight, quantized in four ways; every epilogue over them. */
#include "verify/kernels/check_epilogue.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "common/threads.h"
#include "kernels/cpu/quantize_tokens.h"
#include "verify/evidence/activations.h"
#include "verify/kernels/gemm_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = 128, /* read and judged at a time */ MAX_K = 65793 };

typedef struct check {
    const tsr_kernel_options *options;
    unsigned outs;
    size_t *jobs; /* indices of weights */
    size_t n_jobs;
} check;

/* Fewer codes than this are four of eight bits unused: no calibration is that far off. */
static const int kMinCodes = 16;
/* Scales that FP32 can multiply with others without leaving its range. */
static const double kLeastScale = 0x1p-64, kLargestScale = 0x1p64;

/* Activations as one kind of epilogue wants them. */
typedef struct quantized {
    int8_t *codes; /* [m][k] */
    float *scales; /* [m] */
    int32_t *azp;  /* [m] */
    double *sums;  /* [m][n]: codes times codes, exact */
} quantized;

/* Bits of the index of a quantization. */
enum { PER_TENSOR = 1, SYMMETRIC = 2, QUANTIZATIONS = 4 };

/* What the checkpoint states for the inputs of the layer. */
typedef struct static_input {
    unsigned quantization; /* the one that it decides; QUANTIZATIONS: none, inputs are quantized as they come */
    float scale;
    int32_t zero_point;
    double low, high; /* what codes reach */
} static_input;

typedef struct operands {
    const check *c;
    tsr_evidence *evidence;
    tsr_arena arena;
    const tsr_weight *weight;
    const char *name;
    tsr_columns columns;
    size_t m, n, k, padded;
    uint16_t *x;
    int8_t *w;      /* [n][k] */
    float *scale_w; /* [n] */
    float *bias;    /* [n] */
    int32_t *azp_adj, *with_adj, *stated_with_adj;
    double *row_sums, *azp_sums; /* [n]: sums of the codes of a channel, by this file; times input.zero_point */
    static_input input;
    double *x2, *w2;  /* [m], [n]: sums of squares of what was quantized */
    double *original; /* [m][n] */
    quantized q[QUANTIZATIONS];
} operands;

/* One epilogue with its kinds of scales. */
typedef struct variant {
    const char *name;
    unsigned quantization;
    bool bias, with_adj, per_token_azp;
} variant;

static const variant kVariants[] = {
    {"scaled", SYMMETRIC, false, false, false},        {"scaled", SYMMETRIC | PER_TENSOR, false, false, false},
    {"scaled + bias", SYMMETRIC, true, false, false},  {"scaled + bias", SYMMETRIC | PER_TENSOR, true, false, false},
    {"azp per tensor", PER_TENSOR, true, true, false}, {"azp per token", 0, true, false, true},
    {"azp per token", PER_TENSOR, true, false, true},
};

static const char *unfit_because(const tsr_weight *w)
{
    if (w->coding != TSR_CODED_INT8)
        return "not int8 of W8A8";
    if (w->zero_point != NULL)
        return "its weights have zero points, which no epilogue takes";
    if (w->block_cols < w->cols || w->matrices != 1)
        return "it has more than one scale a row";
    if (w->cols > MAX_K)
        return "its rows are so long that int32 may overflow";
    return w->rows == 0 || w->cols == 0 ? "it is empty" : NULL;
}

static tsr_status find_jobs(check *c, tsr_evidence *evidence, tsr_err *err)
{
    const tsr_weights *const weights = c->options->side.weights;
    c->jobs = malloc(weights->count * sizeof *c->jobs + 1);
    if (c->jobs == NULL)
        return tsr_out_of_memory(err, "for the tensors to check");
    for (size_t i = 0; i < weights->count; i++) {
        const tsr_weight *const w = &weights->items[i];
        const char *const name = w->values->name;
        if (w->coding == TSR_PLAIN || !tsr_is_selected(c->options, name))
            continue;
        const char *why = unfit_because(w);
        if (why == NULL && c->options->activations != NULL &&
            tsr_activations_find(c->options->activations, name) == NULL)
            why = "the file of activations has none for it";
        if (why == NULL)
            c->jobs[c->n_jobs++] = i;
        else
            TSR_TRY(tsr_evidence_skip(evidence, name, why, err));
    }
    if (c->n_jobs == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: no tensor of int8 with a scale a row %s",
                        c->options->side.checkpoint->path,
                        evidence->n_skipped > 0 ? "that could be checked" : "there, or none by that name");
    evidence->candidates = c->n_jobs;
    evidence->subjects = c->n_jobs = tsr_sample(c->options, c->jobs, c->n_jobs);
    return TSR_OK;
}

/* ---- operands ---- */

static void *take(operands *o, size_t n, size_t size)
{
    return tsr_arena_alloc(&o->arena, n * size + 64);
}

static tsr_status shape_operands(operands *o, tsr_err *err)
{
    const tsr_kernel_options *const options = o->c->options;
    o->columns = tsr_choose_columns(options, o->weight->rows, CHANNELS, tsr_seed_of(options->seed, o->name));
    o->n = (size_t)tsr_columns_count(&o->columns);
    o->k = (size_t)o->weight->cols;
    o->padded = tsr_padded(o->k);
    o->m = (size_t)options->tokens;
    o->x = take(o, o->m * o->k, sizeof *o->x);
    o->w = take(o, o->n * o->k, 1);
    o->scale_w = take(o, o->n, sizeof *o->scale_w);
    o->bias = take(o, o->n, sizeof *o->bias);
    o->azp_adj = take(o, o->n, sizeof *o->azp_adj);
    o->with_adj = take(o, o->n, sizeof *o->with_adj);
    o->stated_with_adj = take(o, o->n, sizeof *o->stated_with_adj);
    o->row_sums = take(o, o->n, sizeof *o->row_sums);
    o->azp_sums = take(o, o->n, sizeof *o->azp_sums);
    o->x2 = take(o, o->m, sizeof *o->x2);
    o->w2 = take(o, o->n, sizeof *o->w2);
    o->original = take(o, o->m * o->n, sizeof *o->original);
    bool whole = o->x2 != NULL && o->w2 != NULL && o->x != NULL && o->w != NULL && o->scale_w != NULL &&
                 o->bias != NULL && o->azp_adj != NULL && o->with_adj != NULL && o->stated_with_adj != NULL &&
                 o->row_sums != NULL && o->azp_sums != NULL && o->original != NULL;
    for (size_t i = 0; i < QUANTIZATIONS; i++) {
        quantized *const q = &o->q[i];
        q->codes = take(o, o->m * o->k, 1);
        q->scales = take(o, o->m, sizeof *q->scales);
        q->azp = take(o, o->m, sizeof *q->azp);
        q->sums = take(o, o->m * o->n, sizeof *q->sums);
        whole = whole && q->codes != NULL && q->scales != NULL && q->azp != NULL && q->sums != NULL;
    }
    return whole ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "out of memory for the operands of '%s'", o->name);
}

static tsr_status read_number(const operands *o, const tsr_tensor *t, double *number, tsr_err *err)
{
    const tsr_checkpoint *const from = o->c->options->side.checkpoint;
    const size_t width = tsr_dtype_bits((tsr_dtype)t->dtype) / 8;
    unsigned char bytes[8];
    if (tsr_tensor_elements(t) != 1 || t->dtype == TSR_C64 || width == 0)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is no single number", from->path, t->name);
    TSR_TRY(tsr_checkpoint_read(from, t, 0, bytes, width, err));
    tsr_decode(t->dtype, bytes, 1, number);
    return TSR_OK;
}

/* input_scale and input_zero_point of the checkpoint; of no use where they are no such thing. */
static tsr_status get_input(operands *o, tsr_err *err)
{
    const tsr_weight *const w = o->weight;
    const bool symmetric = w->input_zero_point == NULL;
    double scale, zero_point = 0;
    char text[96] = "";
    tsr_judgement j = {
        .subject = o->name, .kind = TSR_ERROR_CHECKPOINT, .of_bound = -1, .of_expected = -1, .fault = text};
    o->input.quantization = QUANTIZATIONS;
    if (w->input_scale == NULL)
        return TSR_OK;
    TSR_TRY(read_number(o, w->input_scale, &scale, err));
    if (!symmetric)
        TSR_TRY(read_number(o, w->input_zero_point, &zero_point, err));
    if (!(scale >= kLeastScale && scale <= kLargestScale)) {
        j.what = "input_scale of the checkpoint";
        snprintf(text, sizeof text, "it is %g", scale);
    } else if (!(fabs(zero_point + 0.5) <= 127.5 && zero_point == rint(zero_point))) {
        j.what = "input_zero_point of the checkpoint";
        snprintf(text, sizeof text, "it is %g, no int8", zero_point);
    }
    if (text[0] != '\0')
        return tsr_evidence_add(o->evidence, &j, err);
    o->input = (static_input){
        .quantization = PER_TENSOR | (symmetric ? SYMMETRIC : 0),
        .scale = (float)scale,
        .zero_point = (int32_t)zero_point,
        .low = scale * (symmetric ? -127 : -128 - zero_point),
        .high = scale * (127 - zero_point),
    };
    return TSR_OK;
}

/* Stretches drawn activations to what a static scale reaches, on each side of 0. */
static void fit(const static_input *input, uint16_t *x, size_t n)
{
    double low = 0, high = 0, value;
    for (size_t i = 0; i < n; i++) {
        tsr_decode(TSR_BF16, (const unsigned char *)&x[i], 1, &value);
        low = fmin(low, value);
        high = fmax(high, value);
    }
    for (size_t i = 0; i < n; i++) {
        tsr_decode(TSR_BF16, (const unsigned char *)&x[i], 1, &value);
        if (value != 0)
            x[i] = tsr_bf16_from_f32((float)(value < 0 ? value / low * input->low : value / high * input->high));
    }
}

static tsr_status get_activations(operands *o, tsr_err *err)
{
    const tsr_kernel_options *const options = o->c->options;
    const static_input *const input = &o->input;
    if (options->activations != NULL) {
        TSR_TRY(tsr_activations_read(options->activations, tsr_activations_find(options->activations, o->name), &o->m,
                                     o->k, o->x, err));
    } else {
        tsr_activations_draw(tsr_seed_of(options->seed, o->name), o->m, o->k, o->x);
        if (input->quantization < QUANTIZATIONS)
            fit(input, o->x, o->m * o->k);
    }
    for (unsigned i = 0; i < QUANTIZATIONS; i++) {
        const quantized *const q = &o->q[i];
        if (i != input->quantization) {
            tsr_quantize_tokens_int8(o->x, o->m, o->k, i & PER_TENSOR, i & SYMMETRIC, q->codes, q->scales, q->azp);
            continue;
        }
        tsr_quantize_static_int8(o->x, o->m * o->k, input->scale, input->zero_point, q->codes);
        for (size_t row = 0; row < o->m; row++) {
            q->scales[row] = input->scale;
            q->azp[row] = input->zero_point;
        }
    }
    return TSR_OK;
}

static void decode(unsigned char dtype, const void *codes, size_t width, size_t rows, size_t k, size_t padded,
                   double *out)
{
    for (size_t i = 0; i < rows; i++) {
        memset(out + i * padded + k, 0, (padded - k) * sizeof *out);
        tsr_decode(dtype, (const unsigned char *)codes + i * k * width, k, out + i * padded);
    }
}

/* A scale or bias that no kernel can make a product of is the checkpoint's fault: the first one is named, and *unfit.
 */
static tsr_status check_stated(operands *o, const float *values, const char *what, bool positive, bool *unfit,
                               tsr_err *err)
{
    char text[96];
    for (size_t j = 0; j < o->n; j++) {
        if (isfinite(values[j]) && (!positive || values[j] > 0))
            continue;
        const tsr_judgement judgement = {.subject = o->name,
                                         .kind = TSR_ERROR_CHECKPOINT,
                                         .what = what,
                                         .of_bound = -1,
                                         .of_expected = -1,
                                         .fault = text};
        snprintf(text, sizeof text, "of output %llu it is %g", (unsigned long long)tsr_column_of(&o->columns, j),
                 (double)values[j]);
        *unfit = true;
        return tsr_evidence_add(o->evidence, &judgement, err);
    }
    return TSR_OK;
}

/* What lies beside a weight in the given checkpoint, for the channels that are computed; false when nothing does. */
static tsr_status read_channels(const operands *o, const tsr_checkpoint *from, const char *name, double *values,
                                bool *there, tsr_err *err)
{
    const tsr_tensor *const t = from == NULL ? NULL : tsr_checkpoint_find(from, name);
    const size_t width = t == NULL ? 0 : tsr_dtype_bits((tsr_dtype)t->dtype) / 8;
    *there = t != NULL && t->dtype != TSR_C64 && width > 0;
    if (!*there)
        return TSR_OK;
    if (tsr_tensor_elements(t) != o->weight->rows)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' has not one element for each of %llu rows", from->path, name,
                        (unsigned long long)o->weight->rows);
    for (size_t j = 0; j < o->n; j++) {
        unsigned char bytes[8];
        TSR_TRY(tsr_checkpoint_read(from, t, tsr_column_of(&o->columns, j) * width, bytes, width, err));
        tsr_decode(t->dtype, bytes, 1, &values[j]);
    }
    return TSR_OK;
}

/* Codes, scales and originals of one run of channels, and the exact sums over them. */
static tsr_status do_band(operands *o, size_t band, tsr_weight_reader *readers, const double *x, double *a,
                          double *values, tsr_err *err)
{
    const tsr_kernel_options *const options = o->c->options;
    const tsr_weight *const w = o->weight;
    const uint64_t row = tsr_column_block(&o->columns, band) * CHANNELS;
    const size_t rows = (size_t)tsr_min_u64(CHANNELS, w->rows - row), at = band * CHANNELS;
    const tsr_piece piece = {.row = row, .rows = rows, .cols = o->k};
    const tsr_weight_reader *from = &readers[0];
    tsr_view view[2];
    TSR_TRY(tsr_load_piece(&readers[0], &options->side, w, &piece, &view[0], o->evidence, err));
    memcpy(o->w + at * o->k, readers[0].bytes, rows * o->k);
    for (size_t j = 0; j < rows; j++)
        o->scale_w[at + j] =
            (float)readers[0].scales[((row + j) / w->block_rows - readers[0].first_row) * readers[0].scale_cols];
    if (options->against != NULL) {
        const tsr_weight *original;
        from = &readers[1];
        TSR_TRY(tsr_find_original(options->against, w, &original, err));
        TSR_TRY(tsr_load_piece(&readers[1], options->against, original, &piece, &view[1], o->evidence, err));
    }
    const double began = tsr_now();
    for (size_t i = 0; i < rows; i++) {
        memset(values + i * o->padded + o->k, 0, (o->padded - o->k) * sizeof *values);
        tsr_weight_reader_row(from, i, 0, o->k, values + i * o->padded);
    }
    tsr_product(x, values, o->m, rows, o->padded, o->original + at, o->n);
    for (size_t j = 0; j < rows; j++)
        tsr_product(values + j * o->padded, values + j * o->padded, 1, 1, o->padded, &o->w2[at + j], 1);
    decode(TSR_I8, o->w + at * o->k, 1, rows, o->k, o->padded, values);
    for (size_t j = 0; j < rows; j++) {
        o->row_sums[at + j] = 0;
        for (size_t i = 0; i < o->k; i++)
            o->row_sums[at + j] += values[j * o->padded + i];
    }
    for (size_t i = 0; i < QUANTIZATIONS; i++) {
        decode(TSR_I8, o->q[i].codes, 1, o->m, o->k, o->padded, a);
        tsr_product(a, values, o->m, rows, o->padded, o->q[i].sums + at, o->n);
    }
    o->evidence->phases[TSR_PHASE_ORACLE] += tsr_now() - began;
    return TSR_OK;
}

static tsr_status fill(operands *o, tsr_err *err)
{
    const size_t room = o->m * o->padded * sizeof(double) + 64;
    double *const x = malloc(room), *const a = malloc(room),
                  *const values = malloc(CHANNELS * o->padded * sizeof *values);
    tsr_weight_reader readers[2] = {{0}};
    tsr_status status = TSR_OK;
    if (x == NULL || a == NULL || values == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "out of memory for the operands of '%s'", o->name);
    if (status == TSR_OK)
        decode(TSR_BF16, o->x, sizeof *o->x, o->m, o->k, o->padded, x);
    for (size_t i = 0; status == TSR_OK && i < o->m; i++)
        tsr_product(x + i * o->padded, x + i * o->padded, 1, 1, o->padded, &o->x2[i], 1);
    for (size_t band = 0; status == TSR_OK && band < o->columns.chosen; band++)
        status = do_band(o, band, readers, x, a, values, err);
    free(x);
    free(a);
    free(values);
    tsr_weight_reader_free(&readers[0]);
    tsr_weight_reader_free(&readers[1]);
    return status;
}

/* The bias of the checkpoint, or one drawn with the RMS of the product. */
static tsr_status get_bias(operands *o, tsr_err *err)
{
    char name[1024];
    bool there = false;
    double rms = 0;
    double *const values = take(o, o->n, sizeof *values);
    uint16_t *const drawn = take(o, o->n, sizeof *drawn);
    if (values == NULL || drawn == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the bias of '%s'", o->name);
    snprintf(name, sizeof name, "%.*s.bias", (int)tsr_module_length(o->name), o->name);
    TSR_TRY(read_channels(o, o->c->options->side.checkpoint, name, values, &there, err));
    for (size_t i = 0; i < o->m * o->n; i++)
        rms += o->original[i] * o->original[i] / (double)(o->m * o->n);
    tsr_activations_draw(tsr_seed_of(o->c->options->seed, name), 1, o->n, drawn);
    for (size_t j = 0; j < o->n; j++) {
        double number;
        tsr_decode(TSR_BF16, (const unsigned char *)&drawn[j], 1, &number);
        o->bias[j] = (float)(there ? values[j] : fmin(fmax(number * sqrt(rms), -0x1p126), 0x1p126));
    }
    return TSR_OK;
}

/* Sums that lie beside the checkpoint under `name`, held to `right`, which `meaning` tells; where there are none,
 * `right`. Wrong ones are cut to what a product in int32 leaves room for. */
static tsr_status get_sums(operands *o, const char *name, const char *what, const char *meaning, const double *right,
                           double reach, int32_t *sums, tsr_err *err)
{
    char text[160];
    bool there;
    tsr_judgement j = {
        .subject = o->name, .kind = TSR_ERROR_CHECKPOINT, .of_bound = -1, .of_expected = -1, .what = what};
    double *const values = take(o, o->n, sizeof *values);
    if (values == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for azp_adj of '%s'", o->name);
    TSR_TRY(read_channels(o, o->c->options->azp, name, values, &there, err));
    for (size_t i = 0; i < o->n; i++) {
        const bool wrong = there && values[i] != right[i];
        if (wrong && j.fault == NULL) {
            snprintf(text, sizeof text, "of output %llu it is %.0f; %s is %.0f",
                     (unsigned long long)tsr_column_of(&o->columns, i), values[i], meaning, right[i]);
            j.fault = text;
        }
        sums[i] = (int32_t)(wrong ? fmax(fmin(values[i], reach), -reach) : right[i]);
    }
    if (!there)
        return TSR_OK;
    tsr_judge(&j, right, values, 1, o->n, NULL, &o->columns);
    return tsr_evidence_add(o->evidence, &j, err);
}

static tsr_status get_azp(operands *o, tsr_err *err)
{
    const double reach = 127 * (double)o->k;
    const tsr_weight *const w = o->weight;
    const int module = (int)tsr_module_length(o->name);
    char name[1024], meaning[96] = "without input_scale it";
    snprintf(name, sizeof name, "%.*s.azp_adj", module, o->name);
    const tsr_checkpoint *const beside = o->c->options->azp;
    /* Earlier versions of Tessera wrote it under the weight's own name. */
    const bool named = beside == NULL || tsr_checkpoint_find(beside, name) != NULL;
    TSR_TRY(get_sums(o, named ? name : o->name, "azp_adj of the checkpoint", "the sum of its codes", o->row_sums, reach,
                     o->azp_adj, err));
    if (w->input_scale != NULL && o->input.quantization == QUANTIZATIONS) /* which has been judged */
        return TSR_OK;
    for (size_t i = 0; i < o->n; i++)
        o->azp_sums[i] = o->input.zero_point * o->row_sums[i];
    if (w->input_scale != NULL && w->input_zero_point != NULL)
        snprintf(meaning, sizeof meaning, "input_zero_point %d times the sum of its codes", o->input.zero_point);
    else if (w->input_scale != NULL)
        snprintf(meaning, sizeof meaning, "without input_zero_point it");
    snprintf(name, sizeof name, "%.*s.azp_with_adj", module, o->name);
    return get_sums(o, name, "azp_with_adj of the checkpoint", meaning, o->azp_sums, 128 * reach, o->stated_with_adj,
                    err);
}

/* ---- judging ---- */

/* What the epilogue must give, without bias. */
static double scaled_sum(const operands *o, const quantized *q, size_t i, size_t j, bool one_scale_w)
{
    const double sum = q->sums[i * o->n + j] - (double)q->azp[i] * o->row_sums[j];
    return (double)q->scales[i] * (double)o->scale_w[one_scale_w ? 0 : j] * sum;
}

/* Activations against what a static scale makes of them: by the rounding to it, and whether it is far too large. */
static tsr_status judge_input(operands *o, tsr_err *err)
{
    const tsr_kernel_options *const options = o->c->options;
    const static_input *const input = &o->input;
    const double limit = options->limits.min_sqnr, step = (double)input->scale;
    const size_t n = o->m * o->k;
    tsr_judgement j = {
        .subject = o->name, .kind = TSR_ERROR_QUANTIZATION, .of_bound = -1, .what = "activations, by input_scale"};
    char text[160];
    uint64_t beyond = 0;
    int least = 127, largest = -128;
    if (input->quantization == QUANTIZATIONS)
        return TSR_OK;
    double *const x = malloc(2 * n * sizeof *x + 64);
    if (x == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the activations of '%s'", o->name);
    double *const y = x + n;
    tsr_decode(TSR_BF16, (const unsigned char *)o->x, n, x);
    for (size_t i = 0; i < n; i++) {
        const int code = o->q[input->quantization].codes[i];
        y[i] = step * (code - input->zero_point);
        least = code < least ? code : least;
        largest = code > largest ? code : largest;
        beyond += x[i] < input->low - step / 2 || x[i] > input->high + step / 2;
    }
    tsr_judge(&j, x, y, o->m, o->k, NULL, NULL);
    free(x);
    j.of_expected = sqrt(j.metrics.sum_d2 / ((double)n * step * step / 12));
    if (j.metrics.differ > 0)
        snprintf(j.worst_at, sizeof j.worst_at, "token %llu, input %llu",
                 (unsigned long long)(j.metrics.max_abs_at / o->k), (unsigned long long)(j.metrics.max_abs_at % o->k));
    if (!isnan(limit) && !(tsr_metrics_sqnr(&j.metrics) >= limit)) {
        snprintf(text, sizeof text, "SQNR %.2f dB is below %g", tsr_metrics_sqnr(&j.metrics), limit);
        j.fault = text;
    } else if (isnan(limit) && !(j.of_expected <= TSR_MAX_OF_ROUNDING)) {
        snprintf(text, sizeof text, "input_scale %g reaches from %g to %g: %llu of %llu activations are beyond", step,
                 input->low, input->high, (unsigned long long)beyond, (unsigned long long)n);
        j.fault = text;
    } else if (isnan(limit) && largest - least + 1 < kMinCodes) {
        snprintf(text, sizeof text, "input_scale %g is too large: of 256 codes the activations take %d", step,
                 largest - least + 1);
        j.fault = text;
    }
    return tsr_evidence_add(o->evidence, &j, err);
}

static tsr_status judge_quantization(operands *o, unsigned quantization, tsr_err *err)
{
    static const char *const kNames[QUANTIZATIONS] = {"activations per token with azp",
                                                      "activations per tensor with azp", "activations per token",
                                                      "activations per tensor"};
    const tsr_kernel_options *const options = o->c->options;
    const double limit = options->limits.min_sqnr;
    char what[96], text[TSR_MAX_FAULT];
    tsr_judgement j = {.subject = o->name, .kind = TSR_ERROR_QUANTIZATION, .of_bound = -1, .what = what};
    double *const y = malloc(o->m * o->n * sizeof *y + 64);
    double expected = 0;
    if (y == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of '%s'", o->name);
    snprintf(what, sizeof what, "%s%s%s", options->against != NULL ? "weights and " : "", kNames[quantization],
             quantization == o->input.quantization ? ", static" : "");
    for (size_t at = 0; at < o->m * o->n; at++) {
        const size_t row = at / o->n, col = at % o->n;
        const double step_a = (double)o->q[quantization].scales[row], step_w = (double)o->scale_w[col];
        y[at] = scaled_sum(o, &o->q[quantization], row, col, false);
        expected += step_a * step_a / 12 * o->w2[col];
        if (options->against != NULL)
            expected += step_w * step_w / 12 * o->x2[row];
    }
    tsr_judge(&j, o->original, y, o->m, o->n, NULL, &o->columns);
    free(y);
    j.of_expected = j.metrics.sum_d2 > 0 ? sqrt(j.metrics.sum_d2 / expected) : 0;
    tsr_limit_rounding(&j, limit, text);
    return tsr_evidence_add(o->evidence, &j, err);
}

/* Sums of integers are exact; FP32 rounds the sum, two products and the bias: five steps of 2^-24 cover all of it. */
static tsr_status judge_epilogue(operands *o, const tsr_int8_gemm_args *args, const quantized *q, tsr_out out,
                                 const char *name, tsr_err *err)
{
    const tsr_kernel_limits *const limits = &o->c->options->limits;
    tsr_judgement j = {.subject = o->name, .kind = TSR_ERROR_KERNEL, .what = name};
    char text[128];
    double *const exact = malloc(2 * o->m * o->n * sizeof *exact + 64);
    double sum = 0;
    if (exact == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of '%s'", o->name);
    double *const y = exact + o->m * o->n;
    for (size_t at = 0; at < o->m * o->n; at++) {
        const double part = scaled_sum(o, q, at / o->n, at % o->n, args->one_scale_w);
        const double bias = args->bias == NULL ? 0 : (double)args->bias[at % o->n];
        const double fp32 = 0x1p-24 * (fabs(part) + fabs(bias)),
                     half = tsr_half_step(out, fabs(part + bias) + 5 * fp32);
        exact[at] = part + bias;
        y[at] = (double)args->d[at];
        if (!isfinite(y[at]) &&
            tsr_may_overflow(out, fabs(part) + fabs(bias) + 5 * fp32, fabs(part) / (double)q->scales[at / o->n]))
            y[at] = exact[at] = part;
        const double error = fabs(y[at] - exact[at]);
        j.of_bound = fmax(j.of_bound, isnan(error) ? INFINITY : error / (5 * fp32 + half));
        sum += error * error / (half * half / 3 + 5 * fp32 * fp32);
    }
    j.of_expected = sqrt(sum / (double)(o->m * o->n));
    tsr_judge(&j, exact, y, o->m, o->n, NULL, &o->columns);
    free(exact);
    if (!(j.of_bound <= limits->max_kernel_error)) {
        snprintf(text, sizeof text, "the largest error is %.3g times what FP32 can do at most", j.of_bound);
        j.fault = text;
    } else if (!(j.of_expected <= limits->max_kernel_rms)) {
        snprintf(text, sizeof text, "the RMS error is %.3g times what FP32 does in the mean", j.of_expected);
        j.fault = text;
    }
    return tsr_evidence_add(o->evidence, &j, err);
}

static tsr_status run_variant(operands *o, const tsr_device_epilogue *kernel, const variant *v, bool one_scale_w,
                              float *d, float *bias, tsr_err *err)
{
    const quantized *const q = &o->q[v->quantization];
    const bool one_scale_a = v->quantization & PER_TENSOR, is_static = v->quantization == o->input.quantization;
    char name[128];
    for (size_t j = 0; j < o->n; j++)
        o->with_adj[j] = q->azp[0] * o->azp_adj[j];
    for (tsr_out out = 0; out < TSR_N_OUTS; out++) {
        if ((o->c->outs >> out & 1) == 0)
            continue;
        memcpy(bias, o->bias, o->n * sizeof *bias); /* it has the type of the result */
        tsr_out_round(out, bias, o->n);
        const tsr_int8_gemm_args args = {
            .a = q->codes,
            .w = o->w,
            .scale_a = q->scales,
            .scale_w = o->scale_w,
            .one_scale_a = one_scale_a,
            .one_scale_w = one_scale_w,
            .azp_with_adj = !v->with_adj ? NULL
                            : is_static  ? o->stated_with_adj
                                         : o->with_adj,
            .azp = v->per_token_azp ? q->azp : NULL,
            .azp_adj = v->per_token_azp ? o->azp_adj : NULL,
            .bias = v->bias ? bias : NULL,
            .d = d,
            .m = o->m,
            .n = o->n,
            .k = o->k,
            .ldd = o->n,
        };
        memset(d, 0xFF, o->m * o->n * sizeof *d); /* NaN */
        double began = tsr_now();
        TSR_TRY(kernel->run(kernel, &args, out, err));
        o->evidence->phases[TSR_PHASE_KERNELS] += tsr_now() - began;
        began = tsr_now();
        snprintf(name, sizeof name, "%s: %s, scales per %s and %s, %s", kernel->name, v->name,
                 is_static     ? "static tensor"
                 : one_scale_a ? "tensor"
                               : "token",
                 one_scale_w ? "tensor" : "channel", tsr_out_name(out));
        TSR_TRY(judge_epilogue(o, &args, q, out, name, err));
        o->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - began;
    }
    return TSR_OK;
}

static tsr_status fill_and_judge(operands *o, tsr_err *err)
{
    const tsr_device *const device = o->c->options->device;
    bool unfit = false;
    TSR_TRY(shape_operands(o, err));
    TSR_TRY(get_input(o, err));
    TSR_TRY(get_activations(o, err));
    if (o->c->options->activations != NULL && tsr_activations_are_zero(o->x, o->m * o->k))
        return tsr_evidence_skip(o->evidence, o->name, TSR_ZERO_ACTIVATIONS, err);
    TSR_TRY(judge_input(o, err));
    TSR_TRY(fill(o, err));
    TSR_TRY(check_stated(o, o->scale_w, "scale of the checkpoint", true, &unfit, err));
    TSR_TRY(get_bias(o, err));
    TSR_TRY(check_stated(o, o->bias, "bias of the checkpoint", false, &unfit, err));
    if (unfit)
        return TSR_OK;
    for (unsigned i = 0; i < QUANTIZATIONS; i++)
        TSR_TRY(judge_quantization(o, i, err));
    TSR_TRY(get_azp(o, err));
    float *const d = take(o, o->m * o->n, sizeof *d), *const bias = take(o, o->n, sizeof *bias);
    if (d == NULL || bias == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of '%s'", o->name);
    for (size_t i = 0; i < device->n_epilogues; i++) {
        for (size_t v = 0; v < 2 * (sizeof kVariants / sizeof *kVariants); v++)
            TSR_TRY(run_variant(o, &device->epilogues[i], &kVariants[v / 2], v % 2 == 1, d, bias, err));
    }
    return TSR_OK;
}

static tsr_status do_job(void *context, size_t at, tsr_evidence *evidence, tsr_err *err)
{
    const check *const c = context;
    const tsr_weight *const w = &c->options->side.weights->items[c->jobs[at]];
    operands o = {.c = c, .evidence = evidence, .weight = w, .name = w->values->name};
    const tsr_status status = fill_and_judge(&o, err);
    tsr_arena_free(&o.arena);
    return status;
}

tsr_status tsr_check_epilogue(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence, tsr_err *err)
{
    check c = {.options = options, .outs = outs};
    tsr_status status = find_jobs(&c, evidence, err);
    if (status == TSR_OK)
        status = tsr_run_jobs(options, c.n_jobs, do_job, &c, evidence, err);
    if (status == TSR_OK)
        status = tsr_evidence_require(evidence, true, options->side.checkpoint->path, err);
    free(c.jobs);
    return status;
}
