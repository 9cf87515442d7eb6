/* Builds operands of int8 products from weights, originals and the checkpoint's other tensors. */
#include "verify/kernels/epilogue_operands.h"

#include "common/checked.h"
#include "common/float_bits.h"
#include "common/parallel/threads.h"
#include "kernels/cpu/quantize_tokens.h"
#include "verify/evidence/activations.h"
#include "verify/kernels/gemm_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHANNELS = 128 /* channels per band */ };

/* Scales in this range have products that stay within FP32. */
static const double kLeastScale = 0x1p-64, kLargestScale = 0x1p64;

static void *take(tsr_epilogue_operands *o, size_t n, size_t size)
{
    return tsr_arena_alloc(&o->arena, n * size + 64);
}

static tsr_status shape_operands(tsr_epilogue_operands *o, tsr_err *err)
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
    o->x2 = take(o, o->m, sizeof *o->x2);
    o->w2 = take(o, o->n, sizeof *o->w2);
    o->original = take(o, o->m * o->n, sizeof *o->original);
    bool whole = o->x2 != NULL && o->w2 != NULL && o->x != NULL && o->w != NULL && o->scale_w != NULL &&
                 o->bias != NULL && o->azp_adj != NULL && o->with_adj != NULL && o->stated_with_adj != NULL &&
                 o->row_sums != NULL && o->original != NULL;
    for (size_t i = 0; i < TSR_QUANTIZATIONS; i++) {
        tsr_quantized *const q = &o->q[i];
        q->codes = take(o, o->m * o->k, 1);
        q->scales = take(o, o->m, sizeof *q->scales);
        q->azp = take(o, o->m, sizeof *q->azp);
        q->sums = take(o, o->m * o->n, sizeof *q->sums);
        whole = whole && q->codes != NULL && q->scales != NULL && q->azp != NULL && q->sums != NULL;
    }
    return whole ? TSR_OK : tsr_fail(err, TSR_E_NOMEM, "out of memory for the operands of '%s'", o->name);
}

static tsr_status read_number(const tsr_epilogue_operands *o, const tsr_tensor *t, double *number, tsr_err *err)
{
    const tsr_checkpoint *const from = o->c->options->side.checkpoint;
    const size_t width = tsr_dtype_bits((tsr_dtype)t->dtype) / 8;
    unsigned char bytes[8];
    if (tsr_tensor_elements(t) != 1 || t->dtype == TSR_C64 || width == 0)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' must be a single number", from->path, t->name);
    TSR_TRY(tsr_checkpoint_read(from, t, 0, bytes, width, err));
    tsr_decode(t->dtype, bytes, 1, number);
    return TSR_OK;
}

/* Reads input_scale and input_zero_point of the checkpoint. Invalid ones are a finding and are not used. */
static tsr_status get_input(tsr_epilogue_operands *o, tsr_err *err)
{
    const tsr_weight *const w = o->weight;
    const bool symmetric = w->input_zero_point == NULL;
    double scale, zero_point = 0;
    char text[96] = "";
    tsr_judgement j = {
        .subject = o->name, .kind = TSR_ERROR_CHECKPOINT, .of_bound = -1, .of_expected = -1, .fault = text};
    o->input.quantization = TSR_QUANTIZATIONS;
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
        snprintf(text, sizeof text, "it is %g, which is not an int8", zero_point);
    }
    if (text[0] != '\0')
        return tsr_evidence_add(o->evidence, &j, err);
    o->input = (tsr_epilogue_input){
        .quantization = TSR_PER_TENSOR | (symmetric ? TSR_SYMMETRIC : 0),
        .scale = (float)scale,
        .zero_point = (int32_t)zero_point,
        .low = scale * (symmetric ? -127 : -128 - zero_point),
        .high = scale * (127 - zero_point),
    };
    return TSR_OK;
}

/* Scales generated activations to the range of a static scale, on each side of 0. */
static void fit(const tsr_epilogue_input *input, uint16_t *x, size_t n)
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

static tsr_status get_activations(tsr_epilogue_operands *o, tsr_err *err)
{
    const tsr_kernel_options *const options = o->c->options;
    const tsr_epilogue_input *const input = &o->input;
    if (options->activations != NULL) {
        TSR_TRY(tsr_activations_read(options->activations, tsr_activations_find(options->activations, o->name), &o->m,
                                     o->k, o->x, err));
    } else {
        tsr_activations_draw(tsr_seed_of(options->seed, o->name), o->m, o->k, o->x);
        if (input->quantization < TSR_QUANTIZATIONS)
            fit(input, o->x, o->m * o->k);
    }
    for (unsigned i = 0; i < TSR_QUANTIZATIONS; i++) {
        const tsr_quantized *const q = &o->q[i];
        if (i != input->quantization) {
            tsr_quantize_tokens_int8(o->x, o->m, o->k, i & TSR_PER_TENSOR, i & TSR_SYMMETRIC, q->codes, q->scales,
                                     q->azp);
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

/* Adds a finding for the first scale or bias that makes the product impossible to compute. */
static tsr_status check_stated(tsr_epilogue_operands *o, const float *values, const char *what, bool positive,
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
        o->unfit = true;
        return tsr_evidence_add(o->evidence, &judgement, err);
    }
    return TSR_OK;
}

/* Reads a tensor that belongs to a weight, for the selected channels. *there is false if it does not exist. */
static tsr_status read_channels(const tsr_epilogue_operands *o, const tsr_checkpoint *from, const char *name,
                                double *values, bool *there, tsr_err *err)
{
    const tsr_tensor *const t = from == NULL ? NULL : tsr_checkpoint_find(from, name);
    const size_t width = t == NULL ? 0 : tsr_dtype_bits((tsr_dtype)t->dtype) / 8;
    *there = t != NULL && t->dtype != TSR_C64 && width > 0;
    if (!*there)
        return TSR_OK;
    if (tsr_tensor_elements(t) != o->weight->rows)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' must have one element for each of %llu rows", from->path, name,
                        (unsigned long long)o->weight->rows);
    for (size_t j = 0; j < o->n; j++) {
        unsigned char bytes[8];
        TSR_TRY(tsr_checkpoint_read(from, t, tsr_column_of(&o->columns, j) * width, bytes, width, err));
        tsr_decode(t->dtype, bytes, 1, &values[j]);
    }
    return TSR_OK;
}

/* Reads codes, scales and originals of consecutive channels, and computes their exact sums. */
static tsr_status do_band(tsr_epilogue_operands *o, size_t band, tsr_weight_reader *readers, const double *x, double *a,
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
            (float)readers[0].scales[((row + j) / w->block.rows - readers[0].first_row) * readers[0].scale_cols];
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
    for (size_t i = 0; i < TSR_QUANTIZATIONS; i++) {
        decode(TSR_I8, o->q[i].codes, 1, o->m, o->k, o->padded, a);
        tsr_product(a, values, o->m, rows, o->padded, o->q[i].sums + at, o->n);
    }
    o->evidence->phases[TSR_PHASE_ORACLE] += tsr_now() - began;
    return TSR_OK;
}

static tsr_status fill(tsr_epilogue_operands *o, tsr_err *err)
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

/* Reads the bias of the checkpoint, or generates one with the RMS of the product. */
static tsr_status get_bias(tsr_epilogue_operands *o, tsr_err *err)
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

/* Sums the codes of every channel, selected or not, into sums[rows]. */
static tsr_status sum_codes(const tsr_epilogue_operands *o, double *sums, tsr_err *err)
{
    const tsr_weight *const w = o->weight;
    tsr_weight_reader reader = {0};
    tsr_status status = TSR_OK;
    for (uint64_t row = 0; status == TSR_OK && row < w->rows; row += CHANNELS) {
        const tsr_piece piece = {.row = row, .rows = (size_t)tsr_min_u64(CHANNELS, w->rows - row), .cols = o->k};
        tsr_view view;
        status = tsr_load_piece(&reader, &o->c->options->side, w, &piece, &view, o->evidence, err);
        for (size_t i = 0; status == TSR_OK && i < piece.rows * o->k; i++)
            sums[row + i / o->k] += (int8_t)reader.bytes[i];
    }
    tsr_weight_reader_free(&reader);
    return status;
}

/* Reads the tensor `name` of the extra file as numbers. *values stays NULL if it does not exist. */
static tsr_status read_sums(tsr_epilogue_operands *o, const char *name, double **values, tsr_err *err)
{
    const tsr_checkpoint *const from = o->c->options->azp;
    const tsr_tensor *const t = from == NULL ? NULL : tsr_checkpoint_find(from, name);
    const size_t width = t == NULL ? 0 : tsr_dtype_bits((tsr_dtype)t->dtype) / 8, n = (size_t)o->weight->rows;
    if (t == NULL || t->dtype == TSR_C64 || width == 0)
        return TSR_OK;
    if (tsr_tensor_elements(t) != n)
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' must have one element for each of %zu rows", from->path, name, n);
    unsigned char *const bytes = take(o, n, width);
    *values = take(o, n, sizeof **values);
    if (bytes == NULL || *values == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for azp_adj of '%s'", o->name);
    TSR_TRY(tsr_checkpoint_read(from, t, 0, bytes, n * width, err));
    tsr_decode(t->dtype, bytes, n, *values);
    return TSR_OK;
}

/* Compares the sums `name` of the extra file, of all channels, with `times` the sums of codes. `meaning` describes
 * them. Kernels get the correct sums, because an error of the file is not theirs. */
static tsr_status judge_sums(tsr_epilogue_operands *o, const char *name, const char *what, const char *meaning,
                             const double *codes, double times, tsr_err *err)
{
    const size_t n = (size_t)o->weight->rows;
    size_t wrong = 0, first = 0;
    char text[224];
    double *values = NULL;
    tsr_judgement j = {
        .subject = o->name, .kind = TSR_ERROR_CHECKPOINT, .of_bound = -1, .of_expected = -1, .what = what};
    TSR_TRY(read_sums(o, name, &values, err));
    if (values == NULL)
        return TSR_OK;
    double *const right = take(o, n, sizeof *right);
    if (right == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for azp_adj of '%s'", o->name);
    for (size_t i = 0; i < n; i++) {
        right[i] = times * codes[i];
        if (values[i] == right[i])
            continue;
        first = wrong == 0 ? i : first;
        wrong++;
    }
    if (wrong > 0) {
        const int length = snprintf(text, sizeof text, "of output %zu it is %.0f; %s is %.0f", first, values[first],
                                    meaning, right[first]);
        if (wrong > 1 && length > 0 && (size_t)length < sizeof text)
            snprintf(text + length, sizeof text - (size_t)length, "; %zu of %zu are wrong", wrong, n);
        j.fault = text;
    }
    tsr_judge(&j, right, values, 1, n, NULL, NULL);
    return tsr_evidence_add(o->evidence, &j, err);
}

/* Sets the sums that kernels get, for the selected channels. */
static void set_sums(tsr_epilogue_operands *o)
{
    for (size_t i = 0; i < o->n; i++) {
        o->azp_adj[i] = (int32_t)o->row_sums[i];
        o->stated_with_adj[i] = (int32_t)(o->input.zero_point * o->row_sums[i]);
    }
}

tsr_status tsr_epilogue_operands_get_azp(tsr_epilogue_operands *o, tsr_err *err)
{
    const tsr_checkpoint *const beside = o->c->options->azp;
    const tsr_weight *const w = o->weight;
    const int module = (int)tsr_module_length(o->name);
    char name[1024], meaning[96] = "without input_scale it";
    set_sums(o);
    if (beside == NULL)
        return TSR_OK;
    double *const codes = take(o, (size_t)w->rows, sizeof *codes);
    if (codes == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for azp_adj of '%s'", o->name);
    memset(codes, 0, (size_t)w->rows * sizeof *codes);
    TSR_TRY(sum_codes(o, codes, err));
    snprintf(name, sizeof name, "%.*s.azp_adj", module, o->name);
    /* Earlier versions of Tessera wrote it under the weight's own name. */
    const bool named = tsr_checkpoint_find(beside, name) != NULL;
    TSR_TRY(judge_sums(o, named ? name : o->name, "azp_adj of the checkpoint", "the sum of its codes", codes, 1, err));
    if (w->input_scale != NULL && o->input.quantization == TSR_QUANTIZATIONS) /* already a finding */
        return TSR_OK;
    if (w->input_scale != NULL && w->input_zero_point != NULL)
        snprintf(meaning, sizeof meaning, "input_zero_point %d times the sum of its codes", o->input.zero_point);
    else if (w->input_scale != NULL)
        snprintf(meaning, sizeof meaning, "without input_zero_point it");
    snprintf(name, sizeof name, "%.*s.azp_with_adj", module, o->name);
    return judge_sums(o, name, "azp_with_adj of the checkpoint", meaning, codes, o->input.zero_point, err);
}

tsr_status tsr_epilogue_operands_begin(tsr_epilogue_operands *o, tsr_err *err)
{
    TSR_TRY(shape_operands(o, err));
    TSR_TRY(get_input(o, err));
    return get_activations(o, err);
}

tsr_status tsr_epilogue_operands_fill(tsr_epilogue_operands *o, tsr_err *err)
{
    TSR_TRY(fill(o, err));
    TSR_TRY(check_stated(o, o->scale_w, "scale of the checkpoint", true, err));
    TSR_TRY(get_bias(o, err));
    return check_stated(o, o->bias, "bias of the checkpoint", false, err);
}
