/* Counts tensors, and reads the scales. */
#include "verify/survey/contents.h"

#include "common/checked.h"
#include "formats/json/json.h"
#include "formats/names/absorbed.h"
#include "formats/weights/foreign.h"
#include "verify/values/weight_reader.h"
#include "verify/values/zero_exponent.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add(tsr_tally *tally, const tsr_tensor *t)
{
    tally->tensors++;
    tally->elements += tsr_tensor_elements(t);
    tally->bytes += t->bytes;
}

static void note(tsr_contents *s, bool fatal, const tsr_tensor *tensor, const char *rule, const char *detail,
                 const char *advice)
{
    const tsr_issue issue = {.fatal = fatal,
                             .tensor = tensor == NULL ? NULL : tensor->name,
                             .rule = rule,
                             .detail = detail,
                             .advice = advice};
    tsr_issues_add(&s->issues, &issue);
}

/* ---- index and headers ---- */

static tsr_status read_index(tsr_contents *s, const tsr_checkpoint *c, tsr_err *err)
{
    char detail[160];
    tsr_arena scratch = {0};
    const char *text;
    size_t size;
    tsr_json_text value;
    if (c->index_path == NULL)
        return TSR_OK;
    const tsr_status status = tsr_checkpoint_index(c, &scratch, &text, &size, err);
    if (status == TSR_OK) {
        s->has_metadata = tsr_json_find(text, size, "metadata", &value);
        if (tsr_json_find(text, size, "metadata.total_size", &value)) {
            tsr_json_reader r = tsr_json_open("", value.data, value.size);
            s->has_total = tsr_json_read_u64(&r, &s->total_size, NULL) == TSR_OK;
        }
    }
    tsr_arena_free(&scratch);
    if (status == TSR_OK && !s->has_metadata)
        note(s, false, NULL, "index", "the index has no key 'metadata', which older transformers require",
             "add \"metadata\": {\"total_size\": ...}");
    if (s->has_total && s->total_size != s->whole.bytes) {
        snprintf(detail, sizeof detail, "the index says total_size %llu; the tensors are %llu bytes",
                 U64(s->total_size), U64(s->whole.bytes));
        note(s, false, NULL, "index", detail, "write the index again");
    }
    return status;
}

/* Sets *has if a file's __metadata__ names a framework. The header was checked when the file was opened. It is read
 * like a tensor, so an archive gives the header of the plain file. */
static tsr_status has_format(const tsr_checkpoint *c, size_t file, bool *has, tsr_err *err)
{
    const tsr_file *const f = &c->files[file];
    const tsr_tensor whole = {.name = f->name, .file = (uint32_t)file, .bytes = f->size};
    uint64_t size;
    tsr_json_text value;
    TSR_TRY(tsr_checkpoint_read(c, &whole, 0, &size, sizeof size, err));
    if (size > TSR_MAX_HEADER_BYTES)
        return tsr_fail(err, TSR_E_IO, "%s: changed while being read", f->path);
    char *const text = malloc(size + 1);
    if (text == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "%s: out of memory", f->path);
    const tsr_status status = tsr_checkpoint_read(c, &whole, sizeof size, text, size, err);
    *has = status == TSR_OK && tsr_json_find(text, size, "__metadata__.format", &value);
    free(text);
    return status;
}

static tsr_status count_files(tsr_contents *s, const tsr_checkpoint *c, tsr_err *err)
{
    for (size_t i = 0; i < c->n_files; i++) {
        bool has = false;
        s->file_bytes += c->files[i].size;
        TSR_TRY(has_format(c, i, &has, err));
        s->files_without_format += !has;
    }
    return TSR_OK;
}

/* ---- tensors ---- */

typedef struct listener {
    tsr_contents *survey;
    const char *layout; /* tsr_layout_target */
    bool reported;      /* the issue about the layout has been reported once */
} listener;

static void on_problem(void *data, const tsr_tensor *tensor, tsr_status status, const char *message)
{
    listener *const l = data;
    if (status == TSR_E_UNSUPPORTED && l->layout != NULL && l->reported)
        return;
    if (status == TSR_E_UNSUPPORTED && l->layout != NULL) {
        l->reported = true;
        note(l->survey, false, NULL, "layout",
             "the weights are in the layout of a kernel, which other commands do not read",
             "'tessera convert --from' restores a checkpoint from what " TSR_LAYOUT_NAME " describes");
    } else if (status == TSR_E_UNSUPPORTED && tensor != NULL) {
        note(l->survey, true, tensor, "unread", message,
             "other tools may read this; Tessera's other commands refuse the checkpoint");
    } else {
        note(l->survey, true, tensor, "pairing", message,
             "the values cannot be decoded; make the checkpoint again, or download what is missing");
    }
}

static tsr_kind kind_of(const tsr_weight *w)
{
    switch (w->coding) {
    case TSR_CODED_PACKED:
        return w->bits == 4 ? TSR_KIND_PACKED_INT4 : TSR_KIND_PACKED_INT8;
    case TSR_CODED_NIBBLES:
        return TSR_KIND_PACKED_INT4;
    case TSR_CODED_INT8:
        return TSR_KIND_INT8;
    case TSR_CODED_E2M1:
        return w->global_scale != NULL ? TSR_KIND_NVFP4 : TSR_KIND_MXFP4;
    case TSR_CODED_E2M3:
    case TSR_CODED_E3M2:
        return TSR_KIND_MXFP6;
    case TSR_CODED_AWQ:
        return TSR_KIND_AWQ;
    case TSR_CODED_GPTQ:
        return TSR_KIND_GPTQ;
    default:
        return w->kind != NULL && w->kind->family == TSR_FAMILY_MX ? TSR_KIND_MXFP8 : TSR_KIND_E4M3;
    }
}

const char *tsr_kind_name(tsr_kind kind)
{
    static const char *const kNames[TSR_KIND_COUNT] = {"e4m3",  "int8",  "packed int8", "packed int4", "MXFP4",
                                                       "NVFP4", "MXFP6", "MXFP8",       "AWQ",         "GPTQ"};
    return kNames[kind];
}

/* Returns the largest value of a code, without its scale and zero point. */
static double largest_code(const tsr_weight *w)
{
    switch (w->coding) {
    case TSR_CODED_E4M3:
        return 448;
    case TSR_CODED_E3M2:
        return 28;
    case TSR_CODED_E2M3:
        return 7.5;
    case TSR_CODED_E2M1:
        return 6;
    default:
        return (double)(1u << (w->bits - 1));
    }
}

/* Returns the tally of weights of this kind; makes one for the first of them. */
static tsr_kind_tally *tally_of(tsr_contents *s, const tsr_weight *w)
{
    for (size_t i = 0; i < s->n_kinds; i++) {
        if (s->kinds[i].kind == w->kind && s->kinds[i].bits == w->bits)
            return &s->kinds[i];
    }
    tsr_kind_tally *const k = &s->kinds[s->n_kinds]; /* 18 rows of the table, two of which have 4 or 8 bits */
    s->n_kinds += s->n_kinds + 1 < TSR_MAX_KIND_TALLIES;
    *k = (tsr_kind_tally){.kind = w->kind, .bits = w->bits};
    if (!w->coarse)
        k->block = w->block;
    return k;
}

static void count_kind(tsr_contents *s, const tsr_weight *w)
{
    tsr_kind_tally *const k = tally_of(s, w);
    const tsr_tensor *companions[TSR_MAX_COMPANIONS];
    const size_t n = tsr_weight_companions(w, companions, NULL);
    k->weights++;
    k->values += tsr_tensor_elements(w->values);
    k->bytes += w->data->bytes;
    for (size_t i = 0; i < n; i++)
        k->bytes += companions[i]->bytes;
}

static void count_weights(tsr_contents *s)
{
    for (size_t i = 0; i < s->weights.count; i++) {
        const tsr_weight *const w = &s->weights.items[i];
        const tsr_tensor *const t = w->values;
        const uint64_t n = tsr_tensor_elements(t);
        if (w->coding == TSR_UNREAD) {
            add(&s->unread, w->data);
            continue;
        }
        tsr_part_tally *const part = tsr_model_is_mtp(&s->model, t->name) ? &s->mtp : &s->parts[tsr_part_of(t->name)];
        part->tensors++;
        part->parameters += n;
        part->bytes += t->bytes;
        s->weight_bytes += t->bytes;
        if (w->scale == NULL)
            continue;
        part->quantized += n;
        s->code_bytes += t->bytes;
        s->coded[kind_of(w)]++;
        count_kind(s, w);
        if (!w->one_scale || !w->part->values) /* otherwise the keys' part has counted it */
            add(&s->scales[w->scale->dtype], w->scale);
    }
}

/* Reports stacked experts: they are most of a model's bytes, and tools that look for linear modules skip them. */
static void check_stacks(tsr_contents *s)
{
    for (size_t i = 0; s->weights.n_scaled > 0 && i < s->weights.count; i++) {
        const tsr_tensor *const t = s->weights.items[i].data;
        char shape[192], detail[320];
        if (t->rank != 3 || s->weights.items[i].scale != NULL || !tsr_dtype_is_weight_float((tsr_dtype)t->dtype) ||
            tsr_part_of(t->name) != TSR_PART_ROUTED_EXPERTS)
            continue;
        snprintf(detail, sizeof detail, "a stack of experts, %s %s, is not quantized although the rest is",
                 tsr_dtype_name((tsr_dtype)t->dtype), tsr_shape_text(t, shape, sizeof shape));
        note(s, false, t, "stacked experts", detail,
             "quantize the original again; stacks of an unknown model_type need --include");
    }
}

/* ---- scales ---- */

/* Histogram of positive FP32 values by exponent and the first 12 bits of mantissa, for the median. */
enum { MEDIAN_SHIFT = 52 - 12, FIRST_EXPONENT = 1023 - 149, MEDIAN_BINS = (149 + 128) << 12 };

/* The scales of one weight, without those of zero blocks, which are 1. */
typedef struct extremes {
    double low, high; /* 0: none */
    uint64_t high_at;
} extremes;

typedef struct scale_reader {
    tsr_contents *survey;
    extremes *extremes; /* [weights.count] */
    const tsr_checkpoint *c;
    unsigned char *bytes;
    double *values;
    uint64_t *bins; /* [MEDIAN_BINS] */
} scale_reader;

enum { CHUNK = 1 << 16 };

/* Counts one scale. Returns true if it is a power of two. */
static bool take(scale_reader *r, double x)
{
    tsr_scale_stats *const s = &r->survey->scale_stats;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const bool finite = fabs(x) <= DBL_MAX, positive = x > 0 && finite,
               power = positive && (bits & (((uint64_t)1 << 52) - 1)) == 0;
    s->count++;
    s->zero += x == 0;
    s->negative += x < 0 && finite; /* each scale is counted in one category */
    s->nonfinite += !finite;
    s->subnormal += x != 0 && fabs(x) < 0x1p-126;
    s->powers_of_two += power;
    if (positive) {
        s->min = s->min == 0 || x < s->min ? x : s->min;
        s->max = x > s->max ? x : s->max;
        r->bins[(bits >> MEDIAN_SHIFT) - ((uint64_t)FIRST_EXPONENT << 12)]++;
    }
    return power;
}

static void widen_extremes(extremes *e, double x, uint64_t at)
{
    if (!(x > 0) || x > DBL_MAX || x == 1)
        return;
    e->low = e->low == 0 || x < e->low ? x : e->low;
    if (x > e->high) {
        e->high = x;
        e->high_at = at;
    }
}

/* Counts values [at, at + n) of a weight's scale, which are in r->values. */
static void take_chunk(scale_reader *r, const tsr_weight *w, uint64_t at, size_t n, bool *even)
{
    extremes *const e = &r->extremes[w - r->survey->weights.items];
    tsr_scale_stats *const s = &r->survey->scale_stats;
    const uint64_t rows = tsr_ceil_div(w->rows, w->block.rows), cols = tsr_ceil_div(w->cols, w->block.cols);
    const bool by_group = w->coding == TSR_CODED_AWQ || w->coding == TSR_CODED_GPTQ; /* one row of scales per group */
    const uint64_t width = by_group ? w->grid_rows : w->grid_cols, height = by_group ? w->grid_cols : w->grid_rows;
    uint64_t row = at / width % height, col = at % width;
    for (size_t i = 0; i < n; i++, col++) {
        if (col == width) {
            col = 0;
            row = row + 1 == height ? 0 : row + 1;
        }
        if ((by_group ? col : row) >= rows || (by_group ? row : col) >= cols)
            continue;
        widen_extremes(e, r->values[i], at + i);
        if (take(r, r->values[i]) || !*even || w->coding != TSR_CODED_E4M3)
            continue;
        *even = false;
        if (s->n_odd++ == 0) {
            s->odd = w->scale;
            s->odd_at = at + i;
            s->odd_value = r->values[i];
        }
    }
}

/* Multiplies values [at, at + n) of a weight's scale by the global scale of their matrix. */
static tsr_status apply_global(scale_reader *r, const tsr_weight *w, uint64_t at, size_t n, tsr_err *err)
{
    const uint64_t in_matrix = w->grid_rows * w->grid_cols, globals = tsr_tensor_elements(w->global_scale);
    uint64_t loaded = UINT64_MAX;
    float global = 1;
    for (size_t i = 0; i < n; i++) {
        const uint64_t matrix = globals > 1 ? (at + i) / in_matrix : 0;
        if (matrix != loaded)
            TSR_TRY(tsr_checkpoint_read(r->c, w->global_scale, matrix * sizeof global, &global, sizeof global, err));
        loaded = matrix;
        const float scale = (float)r->values[i];
        r->values[i] = (double)(w->global_divides ? scale / global : scale * global);
    }
    return TSR_OK;
}

static tsr_status read_scales(scale_reader *r, const tsr_weight *w, tsr_err *err)
{
    tsr_scale_stats *const stats = &r->survey->scale_stats;
    const size_t width = tsr_dtype_bytes((tsr_dtype)w->scale_dtype);
    const uint64_t count = tsr_tensor_elements(w->scale);
    bool even = true;
    for (uint64_t at = 0; at < count; at += CHUNK) {
        const size_t n = (size_t)tsr_min_u64(CHUNK, count - at);
        TSR_TRY(tsr_checkpoint_read(r->c, w->scale, at * width, r->bytes, n * width, err));
        if (stats->zero_exponent == NULL)
            TSR_TRY(
                tsr_zero_exponent_find(r->c, w, r->bytes, at, n, &stats->zero_exponent_at, &stats->zero_exponent, err));
        tsr_decode(w->scale_dtype, r->bytes, n, r->values);
        if (w->global_scale != NULL)
            TSR_TRY(apply_global(r, w, at, n, err));
        take_chunk(r, w, at, n, &even);
    }
    return TSR_OK;
}

static double median(const uint64_t *bins, uint64_t count)
{
    uint64_t below = 0, bits = 0;
    double x;
    for (size_t i = 0; i < MEDIAN_BINS && below < (count + 1) / 2; i++) {
        below += bins[i];
        bits = ((uint64_t)i + ((uint64_t)FIRST_EXPONENT << 12)) << MEDIAN_SHIFT;
    }
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void judge_scales(tsr_contents *s)
{
    const tsr_scale_stats *const k = &s->scale_stats;
    char detail[400];
    if (k->zero + k->negative + k->nonfinite > 0) {
        snprintf(detail, sizeof detail, "of %llu scales, %llu are zero, %llu negative, %llu NaN or Inf", U64(k->count),
                 U64(k->zero), U64(k->negative), U64(k->nonfinite));
        note(s, k->negative + k->nonfinite > 0, NULL, "scale values", detail,
             "weights with NaN, Inf or negative scales are damaged; zero blocks should have scale 1");
    }
    if (s->weights.ue8m0 && k->odd != NULL) {
        snprintf(detail, sizeof detail,
                 "config.json says scale_fmt ue8m0, but %llu of %llu scales are not powers of two, in %llu tensors; "
                 "the first is %.9g, value %llu of this one",
                 U64(k->count - k->powers_of_two), U64(k->count), U64(k->n_odd), k->odd_value, U64(k->odd_at));
        note(s, true, k->odd, "scale_fmt", detail,
             "remove scale_fmt from config.json, or requantize: `tessera convert --to fp8-block --scale-fmt ue8m0`");
    }
}

/* Scales are a few thousandths of a weight's usual size. One that is thousands of times larger than the others, or
 * implies weights of thousands, was most likely stored as its inverse. */
static const double kOutlier = 0x1p12, kLargestWeight = 0x1p12, kInverseFits = 0x1p10;

static void judge_outliers(scale_reader *r)
{
    tsr_contents *const s = r->survey;
    const double usual = s->scale_stats.median;
    char detail[400];
    for (size_t i = 0; usual > 0 && i < s->weights.count; i++) {
        const tsr_weight *const w = &s->weights.items[i];
        const extremes *const e = &r->extremes[i];
        if (w->scale == NULL || e->high * largest_code(w) < 1 || e->high < kOutlier * usual)
            continue;
        const double inverse = 1 / e->high / usual;
        const bool inverted = e->low > kOutlier * usual && inverse > 1 / kInverseFits && inverse < kInverseFits;
        snprintf(detail, sizeof detail,
                 "value %llu is %.6g, %.3g times the median of all scales: its weights go up to %.3g%s",
                 U64(e->high_at), e->high, e->high / usual, e->high * largest_code(w),
                 inverted ? "; 1/scale would be plausible for every value of this tensor" : "");
        note(s, inverted, w->scale, "scale outliers", detail,
             inverted ? "1/scale is stored instead of the scale: make the checkpoint again"
                      : "check the weight: tessera inspect CHECKPOINT:TENSOR, and diff with the original");
    }
    double most = 0;
    for (size_t i = 0; i < s->weights.count; i++)
        most = s->weights.items[i].scale == NULL ? most : fmax(most, largest_code(&s->weights.items[i]));
    const double all = usual * most;
    if (all <= kLargestWeight)
        return;
    snprintf(detail, sizeof detail, "the median of all scales is %.6g: half of the scales have weights above %.3g",
             usual, all);
    note(s, true, NULL, "scale outliers", detail,
         "possibly 1/scale is stored instead of scales: make the checkpoint again, and verify it against the original");
}

static tsr_status survey_scales(tsr_contents *s, const tsr_checkpoint *c, tsr_err *err)
{
    scale_reader r = {.survey = s,
                      .c = c,
                      .bytes = malloc(CHUNK * sizeof(double)),
                      .values = malloc(CHUNK * sizeof(double)),
                      .bins = calloc(MEDIAN_BINS, sizeof *r.bins),
                      .extremes = calloc(s->weights.count + 1, sizeof *r.extremes)};
    tsr_status status = TSR_OK;
    if (r.extremes == NULL || r.bytes == NULL || r.values == NULL || r.bins == NULL)
        status = tsr_out_of_memory(err, "for the statistics of scales");
    for (size_t i = 0; status == TSR_OK && i < s->weights.count; i++) {
        if (s->weights.items[i].scale != NULL)
            status = read_scales(&r, &s->weights.items[i], err);
    }
    if (status == TSR_OK) {
        tsr_scale_stats *const k = &s->scale_stats;
        const double usual = median(r.bins, k->count - k->zero - k->negative - k->nonfinite);
        k->median = fmin(fmax(usual, k->min), k->max); /* a bin begins below its values */
        judge_scales(s);
        judge_outliers(&r);
    }
    free(r.extremes);
    free(r.bytes);
    free(r.values);
    free(r.bins);
    return status;
}

/* ---- the whole checkpoint ---- */

tsr_status tsr_contents_find(tsr_contents *survey, const tsr_checkpoint *checkpoint, tsr_block block, tsr_err *err)
{
    *survey = (tsr_contents){.model = tsr_model_read(checkpoint)};
    for (size_t i = 0; i < checkpoint->tensors.count; i++) {
        const tsr_tensor *const t = &checkpoint->tensors.items[i];
        add(&survey->whole, t);
        add(&survey->by_dtype[t->dtype], t);
    }
    tsr_status status = tsr_rank_file_read(&survey->manifest, checkpoint, &survey->arena, err);
    if (status == TSR_OK)
        status = count_files(survey, checkpoint, err);
    if (status == TSR_OK)
        status = read_index(survey, checkpoint, err);
    listener l = {survey, tsr_layout_target(checkpoint), false};
    if (status == TSR_OK)
        status = tsr_weights_survey(&survey->weights, checkpoint, block, on_problem, &l, err);
    if (status == TSR_OK && survey->weights.warning != NULL)
        note(survey, false, NULL, "pairing", survey->weights.warning, NULL);
    if (status == TSR_OK) {
        count_weights(survey);
        check_stacks(survey);
        if (survey->weights.n_scaled > 0)
            status = survey_scales(survey, checkpoint, err);
        if (status == TSR_OK)
            status = tsr_check_activation_scales(survey, checkpoint, err);
    }
    if (status == TSR_OK && survey->issues.failed)
        status = tsr_out_of_memory(err, "for the issues");
    if (status != TSR_OK)
        tsr_contents_free(survey);
    return status;
}

void tsr_contents_free(tsr_contents *survey)
{
    tsr_weights_free(&survey->weights);
    tsr_issues_free(&survey->issues);
    tsr_arena_free(&survey->arena);
    *survey = (tsr_contents){0};
}
