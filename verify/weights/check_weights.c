/* The checks, each over all tensors. */
#include "verify/weights/check_weights.h"

#include "common/checked.h"
#include "common/text.h"
#include "formats/json/json.h"
#include "verify/weights/block_scan.h"
#include "verify/weights/origin.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Naming a fault reads more of the checkpoint; beyond this many tensors the pattern is clear. */
enum { MAX_EXPLAINED = 16, MAX_SCANNED = 64, FEW = 16, TEXT = 512 };

typedef struct checking {
    const tsr_side *src, *dst;
    const tsr_comparison *c;
    const tsr_weight_limits *limits;
    tsr_findings *out;
    size_t explained;
    bool *wrong; /* [c->count] */
    tsr_err *err;
} checking;

tsr_weight_limits tsr_weight_limits_defaults(void)
{
    return (tsr_weight_limits){
        .min_sqnr = 30, .min_sqnr_int4 = 10, .max_int_cost = 3.1, .max_block_error = 0.0626, .max_cast_error = 0x1p-8};
}

const char *tsr_check_name(tsr_check check)
{
    static const char *const kNames[] = {"names", "shapes", "scales", "codes", "values", "blocks", "config"};
    return kNames[check];
}

const char *tsr_check_title(tsr_check check)
{
    static const char *const kTitles[] = {
        "every tensor is there, under its name",
        "every tensor has its shape",
        "scales are positive normal numbers, and of the kind that config.json states",
        "no value is NaN or Inf that is not so in the source",
        "errors of values are within the limits",
        "no block would be much better off with another scale",
        "config.json agrees with the source and with the tensors",
    };
    return kTitles[check];
}

const char *tsr_check_failure(tsr_check check)
{
    static const char *const kFailures[] = {
        "tensors are missing, extra or misnamed",
        "tensors have another shape than in the source",
        "scales are out of range, or not of the kind that config.json states",
        "values are NaN or Inf that are not so in the source",
        "errors of values are beyond the limits",
        "blocks would be much better off with another scale",
        "config.json disagrees with the source or with the tensors",
    };
    return kFailures[check];
}

static tsr_status add(const checking *k, tsr_check check, const char *where, const char *fmt, ...) TSR_PRINTF(4, 5);

static tsr_status add(const checking *k, tsr_check check, const char *where, const char *fmt, ...)
{
    tsr_findings *const f = k->out;
    char text[TEXT];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (f->count == f->capacity) {
        const size_t capacity = f->capacity == 0 ? 64 : 2 * f->capacity;
        tsr_finding *const items = realloc(f->items, capacity * sizeof *items);
        if (items == NULL)
            return tsr_out_of_memory(k->err, "for findings");
        f->items = items;
        f->capacity = capacity;
    }
    const tsr_finding finding = {check, tsr_arena_dup(&f->arena, where, strlen(where)),
                                 tsr_arena_dup(&f->arena, text, strlen(text))};
    if (finding.where == NULL || finding.text == NULL)
        return tsr_out_of_memory(k->err, "for findings");
    f->items[f->count++] = finding;
    return TSR_OK;
}

/* ---- names and shapes ---- */

static tsr_status check_names(checking *k)
{
    for (size_t i = 0; i < k->c->count; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        tsr_origin origin = {0};
        k->out->judged[TSR_CHECK_NAMES]++;
        if (p->state == TSR_PAIR_MISSING)
            TSR_TRY(add(k, TSR_CHECK_NAMES, tsr_pair_name(p), "missing"));
        if (p->state != TSR_PAIR_EXTRA)
            continue;
        if (k->explained++ < MAX_EXPLAINED)
            TSR_TRY(tsr_find_origin(k->src, k->dst, p->b, &origin, k->err));
        if (origin.values != NULL &&
            tsr_weights_find(k->dst->weights, k->dst->checkpoint, origin.values->values->name) == NULL)
            TSR_TRY(add(k, TSR_CHECK_NAMES, tsr_pair_name(p), "misnamed: it holds the values of '%s'",
                        origin.values->values->name));
        else
            TSR_TRY(add(k, TSR_CHECK_NAMES, tsr_pair_name(p), "extra: the source has no such tensor"));
    }
    return TSR_OK;
}

static tsr_status check_shapes(const checking *k)
{
    char a[192], b[192];
    for (size_t i = 0; i < k->c->count; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        k->out->judged[TSR_CHECK_SHAPES] += p->state <= TSR_PAIR_MISSHAPED;
        if (p->state == TSR_PAIR_MISSHAPED)
            TSR_TRY(add(k, TSR_CHECK_SHAPES, tsr_pair_name(p), "%s, but %s in the source",
                        tsr_shape_text(p->b->values, b, sizeof b), tsr_shape_text(p->a->values, a, sizeof a)));
    }
    return TSR_OK;
}

/* ---- scales ---- */

static const char *bad_scale(double scale, double smallest_normal, bool ue8m0)
{
    int exponent;
    if (!isfinite(scale))
        return isnan(scale) ? "NaN" : "infinite";
    if (scale == 0)
        return "zero";
    if (scale < 0)
        return "negative";
    if (scale < smallest_normal)
        return "subnormal";
    return ue8m0 && frexp(scale, &exponent) != 0.5 ? "no power of two, though scale_fmt is ue8m0" : NULL;
}

typedef struct scale_count {
    uint64_t found, matrix, row, col; /* of the first */
    double value;
    const char *what;
} scale_count;

/* Values so small that amax / 448 is subnormal have no other scale. */
static tsr_status is_source_tiny(const checking *k, const tsr_pair *p, const tsr_piece *block, bool *tiny)
{
    tsr_weight_reader r = {0};
    tsr_view view;
    double x;
    *tiny = false;
    if (p->state > TSR_PAIR_DIFFERS)
        return TSR_OK;
    TSR_TRY(tsr_pair_view(&view, k->src, p, 0, k->err));
    const tsr_status status = tsr_weight_reader_load(&r, &view, block, k->err);
    *tiny = status == TSR_OK;
    for (uint64_t i = 0; *tiny && i < block->rows * block->cols; i++) {
        tsr_weight_reader_row(&r, i / block->cols, i % block->cols, 1, &x);
        *tiny = fabs(x) <= 448 * (double)FLT_MIN;
    }
    tsr_weight_reader_free(&r);
    return status;
}

/* Row `at` of the part of the grid that the weight uses. */
static tsr_status check_scale_row(const checking *k, const tsr_pair *p, const tsr_piece *at, const double *scales,
                                  scale_count *count)
{
    const tsr_weight *const w = p->b;
    const double smallest = w->scale->dtype == TSR_F16 ? 0x1p-14 : FLT_MIN;
    for (uint64_t col = 0; col < at->cols; col++) {
        const char *const what = bad_scale(scales[col], smallest, k->dst->weights->ue8m0);
        if (what == NULL)
            continue;
        tsr_piece block = {.matrix = at->matrix, .row = at->row * w->block_rows, .col = col * w->block_cols};
        block.rows = tsr_min_u64(w->block_rows, w->rows - block.row);
        block.cols = tsr_min_u64(w->block_cols, w->cols - block.col);
        bool tiny = false;
        if (scales[col] > 0 && scales[col] < smallest)
            TSR_TRY(is_source_tiny(k, p, &block, &tiny));
        if (tiny || count->found++ > 0)
            continue;
        count->matrix = at->matrix;
        count->row = at->row;
        count->col = col;
        count->value = scales[col];
        count->what = what;
    }
    return TSR_OK;
}

static tsr_status check_scales_of(const checking *k, const tsr_pair *p)
{
    const tsr_weight *const w = p->b;
    const tsr_weight plain = tsr_plain_weight(w->scale);
    const uint64_t rows = tsr_ceil_div(w->rows, w->block_rows), cols = tsr_ceil_div(w->cols, w->block_cols);
    scale_count count = {0};
    tsr_weight_reader r = {0};
    tsr_view view;
    TSR_TRY(tsr_view_init(&view, k->dst->checkpoint, &plain, k->err));
    /* However the scales are shaped, they lie as M x grid_rows x grid_cols. */
    view.matrices = w->one_scale ? 1 : w->matrices;
    view.rows = w->grid_rows;
    view.cols = w->grid_cols;
    double *const scales = calloc(cols + 1, sizeof *scales);
    tsr_status status = scales == NULL ? tsr_out_of_memory(k->err, NULL) : TSR_OK;
    for (uint64_t i = 0; status == TSR_OK && cols > 0 && i < view.matrices * rows; i++) {
        const tsr_piece at = {.matrix = i / rows, .row = i % rows, .rows = 1, .cols = cols};
        status = tsr_weight_reader_load(&r, &view, &at, k->err);
        if (status == TSR_OK) {
            tsr_weight_reader_row(&r, 0, 0, cols, scales);
            status = check_scale_row(k, p, &at, scales, &count);
        }
    }
    free(scales);
    tsr_weight_reader_free(&r);
    if (status == TSR_OK && count.found > 0)
        status =
            add(k, TSR_CHECK_SCALES, w->scale->name,
                "%llu of %llu scales are out of range; the first, of block [%llu, %llu] of matrix %llu, is %s (%g)",
                U64(count.found), U64(view.matrices * rows * cols), U64(count.row), U64(count.col), U64(count.matrix),
                count.what, count.value);
    return status;
}

static tsr_status check_scales(const checking *k)
{
    for (size_t i = 0; i < k->c->count; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        if (p->b == NULL || p->b->scale == NULL)
            continue;
        k->out->judged[TSR_CHECK_SCALES]++;
        TSR_TRY(check_scales_of(k, p));
    }
    return TSR_OK;
}

/* ---- values ---- */

/* Whether there was something to compare. */
static bool has_values(const tsr_pair *p)
{
    return p->state <= TSR_PAIR_DIFFERS && tsr_tensor_elements(p->b->values) > 0;
}

static tsr_status check_codes(const checking *k)
{
    char place[192];
    for (size_t i = 0; i < k->c->count; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        const tsr_metrics *const m = &p->metrics;
        k->out->judged[TSR_CHECK_CODES] += has_values(p);
        if (p->state == TSR_PAIR_DIFFERS && m->nonfinite[1] > 0 && isinf(m->max_abs))
            TSR_TRY(add(k, TSR_CHECK_CODES, tsr_pair_name(p),
                        "%llu values are NaN or Inf, %llu in the source; the first at %s", U64(m->nonfinite[1]),
                        U64(m->nonfinite[0]), tsr_pair_coordinates(p, m->nonfinite_at[1], place, sizeof place)));
    }
    return TSR_OK;
}

static double worst_block(const tsr_metrics *m)
{
    return m->n_worst == 0 ? 0 : m->worst[0].relative;
}

/* Only then does what bounds a block's error bound a tile's: values of a tile may be tiny beside their block's maximum.
 */
static bool tiles_are_blocks(const tsr_weight *w)
{
    return w->coding == TSR_CODED_E4M3 && TSR_TILE % w->block_rows == 0 && TSR_TILE % w->block_cols == 0;
}

/* Half a step among the subnormals, where rounding is as coarse beside the value as it likes. */
static double subnormal_rounding(tsr_dtype dtype)
{
    return dtype == TSR_BF16 ? 0x1p-134 : dtype == TSR_F16 ? 0x1p-25 : dtype == TSR_F32 ? 0x1p-150 : 0;
}

static bool is_cast_wrong(const checking *k, const tsr_pair *p)
{
    const tsr_metrics *const m = &p->metrics;
    const double limit = k->limits->max_cast_error, fine = subnormal_rounding((tsr_dtype)p->b->data->dtype);
    bool wrong = tsr_metrics_relative(m) > limit && m->max_abs > fine;
    for (size_t i = 0; i < m->n_worst; i++)
        wrong = wrong || (m->worst[i].relative > limit && m->worst[i].max_abs > fine);
    return wrong;
}

/* FP8 made of FP8 by absorption: values lie on another grid of e4m3, and all of them may be half a step away at once,
 * which no one scale can help. */
static bool is_requantized_part(const tsr_pair *p)
{
    return p->made[0] != NULL && p->made[0]->kv_b->scale != NULL && p->b->scale != NULL;
}

/* What a pair misses; all false: nothing. */
typedef struct missed {
    bool sqnr, rounding, block, cast, equality;
    double cost; /* of integers below the limit of SQNR, as tsr_block_scan has it; 0: not known */
} missed;

static double least_sqnr(const checking *k, const tsr_pair *p)
{
    return p->b->bits == 4 ? k->limits->min_sqnr_int4 : k->limits->min_sqnr;
}

static bool is_wrong(const missed *m)
{
    return m->sqnr || m->rounding || m->block || m->cast || m->equality;
}

static bool in_powers(const checking *k, const tsr_weight *w)
{
    return k->dst->weights->ue8m0 || w->scale->dtype == TSR_F8_E8M0;
}

/* Integers may be below the limit because their groups hold outliers, and are right all the same. */
static tsr_status forgive_outliers(const checking *k, const tsr_pair *p, missed *m)
{
    tsr_view x, y;
    tsr_block_scan scan;
    if (!m->sqnr || p->b->coding == TSR_CODED_E4M3 || !(k->limits->max_int_cost > 0))
        return TSR_OK;
    TSR_TRY(tsr_pair_view(&x, k->src, p, 0, k->err));
    TSR_TRY(tsr_pair_view(&y, k->dst, p, 1, k->err));
    TSR_TRY(tsr_scan_blocks(&x, &y, in_powers(k, p->b), &scan, k->err));
    m->cost = scan.fault == TSR_NOT_SCANNED ? 0 : scan.cost;
    m->sqnr = !(m->cost > 0 && m->cost <= k->limits->max_int_cost);
    return TSR_OK;
}

static tsr_status judge_values(const checking *k, const tsr_pair *p, missed *m)
{
    *m = (missed){0};
    if (p->state != TSR_PAIR_DIFFERS)
        return TSR_OK;
    if (p->b->scale == NULL) {
        m->equality = p->a->data->dtype == p->b->data->dtype;
        m->cast = !m->equality && is_cast_wrong(k, p);
        return TSR_OK;
    }
    const bool requantized = is_requantized_part(p);
    m->sqnr = !requantized && !(tsr_metrics_sqnr(&p->metrics) >= least_sqnr(k, p));
    m->rounding = p->metrics.misrounded > k->limits->max_misrounded;
    m->block = (requantized || tiles_are_blocks(p->b)) && worst_block(&p->metrics) > k->limits->max_block_error;
    return forgive_outliers(k, p, m);
}

/* What the scales have to do with it; empty when nothing. */
static tsr_status explain_scales(const checking *k, const tsr_pair *p, char text[TEXT], bool *unrelated)
{
    tsr_view x, y;
    tsr_block_scan scan;
    *text = '\0';
    *unrelated = p->b->scale == NULL;
    if (p->b->scale == NULL)
        return TSR_OK;
    TSR_TRY(tsr_pair_view(&x, k->src, p, 0, k->err));
    TSR_TRY(tsr_pair_view(&y, k->dst, p, 1, k->err));
    TSR_TRY(tsr_scan_blocks(&x, &y, in_powers(k, p->b), &scan, k->err));
    const char *fault = "";
    switch (scan.fault) {
    case TSR_SCALES_TRANSPOSED:
        fault = ": its grid is stored transposed";
        break;
    case TSR_SCALES_SHIFTED:
        fault = ": each is its neighbour's, the grid is off by one block";
        break;
    case TSR_SCALES_INVERTED:
        fault = ": 1/scale is stored where the scale belongs";
        break;
    case TSR_CODES_UNRELATED:
        *unrelated = true;
        return TSR_OK;
    case TSR_SCALES_WRONG:
        break;
    default:
        return TSR_OK;
    }
    snprintf(text, TEXT,
             "; the codes fit, but %llu of %llu scales do not%s (block at [%llu, %llu]: %.3g times the right one)",
             U64(scan.wrong), U64(scan.blocks), fault, U64(scan.first_wrong.row), U64(scan.first_wrong.col),
             scan.factor);
    return TSR_OK;
}

/* What may have happened, as far as it can be told; where every code is the nearest to its value, nothing has. */
static tsr_status explain(checking *k, const tsr_pair *p, const missed *m, char text[TEXT])
{
    tsr_origin origin;
    bool unrelated;
    *text = '\0';
    if (p->b->scale != NULL && !m->rounding) {
        if (m->cost > 0)
            snprintf(text, TEXT,
                     "; every code is the nearest under its scale, and the errors are %.3g times what scales from the "
                     "largest values cost: scales far too small or too large",
                     m->cost);
        return TSR_OK;
    }
    if (k->explained++ >= MAX_EXPLAINED)
        return TSR_OK;
    TSR_TRY(explain_scales(k, p, text, &unrelated));
    if (!unrelated || tsr_metrics_relative(&p->metrics) < TSR_SAME_VALUES)
        return TSR_OK;
    TSR_TRY(tsr_find_origin(k->src, k->dst, p->b, &origin, k->err));
    if (origin.values != NULL && origin.values != p->a)
        snprintf(text, TEXT, "; it holds the values of '%s': swapped?", origin.values->values->name);
    else if (origin.values == NULL && origin.codes != NULL && origin.codes != p->a)
        snprintf(text, TEXT, "; its codes are those of '%s', its scales are not: swapped without their scales?",
                 origin.codes->values->name);
    else if (origin.values == NULL && origin.codes == NULL)
        snprintf(text, TEXT, "; no tensor of the source has its values");
    return TSR_OK;
}

/* The limits that a pair misses, each with its figure. */
static void tell_limits(const checking *k, const tsr_pair *p, const missed *found, char text[TEXT])
{
    const tsr_metrics *const m = &p->metrics;
    size_t n = 0;
    text[0] = '\0';
    if (found->equality)
        n += (size_t)snprintf(text + n, TEXT - n, "; it has the source's dtype, and not its values");
    if (found->cast)
        n +=
            (size_t)snprintf(text + n, TEXT - n, "; a block's relative error is above %.3g", k->limits->max_cast_error);
    if (found->rounding)
        n += (size_t)snprintf(text + n, TEXT - n, "; %llu codes are not the nearest, where %llu may be",
                              U64(m->misrounded), U64(k->limits->max_misrounded));
    if (found->sqnr)
        n += (size_t)snprintf(text + n, TEXT - n, "; SQNR %.2f dB is below %g", tsr_metrics_sqnr(m), least_sqnr(k, p));
    if (found->block)
        snprintf(text + n, TEXT - n, "; a block's relative error is above %g", k->limits->max_block_error);
}

static tsr_status check_values_of(checking *k, const tsr_pair *p, const missed *found)
{
    const tsr_metrics *const m = &p->metrics;
    char place[192], why[TEXT], limits[TEXT];
    TSR_TRY(explain(k, p, found, why));
    tell_limits(k, p, found, limits);
    if (found->rounding && m->misrounded <= FEW && *why == '\0') {
        return add(k, TSR_CHECK_VALUES, tsr_pair_name(p),
                   "%llu of %llu codes are not the nearest to the source's values, as a flipped bit makes them; one at "
                   "%s; SQNR %.2f dB",
                   U64(m->misrounded), U64(m->elements), tsr_pair_coordinates(p, m->misrounded_at, place, sizeof place),
                   tsr_metrics_sqnr(m));
    }
    if (m->n_worst == 0)
        return add(k, TSR_CHECK_VALUES, tsr_pair_name(p), "its bytes differ");
    return add(k, TSR_CHECK_VALUES, tsr_pair_name(p),
               "%llu of %llu values differ%s; SQNR %.2f dB, worst block at [%llu, %llu]: relative error %.3g%s",
               U64(m->differ), U64(m->elements), limits, tsr_metrics_sqnr(m), U64(m->worst[0].row),
               U64(m->worst[0].col), m->worst[0].relative, why);
}

/* Files all of whose tensors, and more than one, are wrong, while other files are not. */
static tsr_status check_files(const checking *k)
{
    const tsr_checkpoint *const d = k->dst->checkpoint;
    for (size_t file = 0; d->n_files > 1 && file < d->n_files; file++) {
        size_t all = 0, wrong = 0;
        for (size_t i = 0; i < k->c->count; i++) {
            const tsr_pair *const p = &k->c->pairs[i];
            const bool here = p->b != NULL && p->state <= TSR_PAIR_DIFFERS && p->b->data->file == file;
            all += here;
            wrong += here && k->wrong[i];
        }
        if (wrong > 1 && wrong == all)
            TSR_TRY(add(k, TSR_CHECK_VALUES, d->files[file].name,
                        "all %zu tensors of this file are wrong: a stale shard, left from another run or version?",
                        all));
    }
    return TSR_OK;
}

static tsr_status check_values(checking *k)
{
    k->explained = 0;
    for (size_t i = 0; i < k->c->count; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        missed m;
        k->out->judged[TSR_CHECK_VALUES] += has_values(p);
        TSR_TRY(judge_values(k, p, &m));
        k->wrong[i] = is_wrong(&m);
        if (k->wrong[i])
            TSR_TRY(check_values_of(k, p, &m));
    }
    if (k->out->judged[TSR_CHECK_VALUES] == 0)
        TSR_TRY(add(k, TSR_CHECK_VALUES, "*", "not one value was compared: no tensor that holds any is in both"));
    return check_files(k);
}

static tsr_status check_blocks_of(const checking *k, const tsr_pair *p)
{
    tsr_view x, y;
    tsr_block_scan scan;
    TSR_TRY(tsr_pair_view(&x, k->src, p, 0, k->err));
    TSR_TRY(tsr_pair_view(&y, k->dst, p, 1, k->err));
    TSR_TRY(tsr_scan_blocks(&x, &y, in_powers(k, p->b), &scan, k->err));
    if (scan.improvable == 0)
        return TSR_OK;
    return add(
        k, TSR_CHECK_BLOCKS, tsr_pair_name(p),
        "%llu of %llu blocks have a better scale; most is gained at [%llu, %llu]: relative error %.3g, %.3g with "
        "%s",
        U64(scan.improvable), U64(scan.blocks), U64(scan.most_improvable.row), U64(scan.most_improvable.col),
        scan.error, scan.better, in_powers(k, p->b) ? "the power of two above amax/448" : "amax/448");
}

static tsr_status check_blocks(const checking *k)
{
    size_t suspects = 0;
    for (size_t i = 0; i < k->c->count; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        k->out->judged[TSR_CHECK_BLOCKS] += p->state <= TSR_PAIR_DIFFERS && p->b->coding == TSR_CODED_E4M3;
        if (p->state == TSR_PAIR_DIFFERS && p->b->coding == TSR_CODED_E4M3 && !is_requantized_part(p) &&
            worst_block(&p->metrics) > TSR_USUAL_BLOCK_ERROR && suspects++ < MAX_SCANNED)
            TSR_TRY(check_blocks_of(k, p));
    }
    if (suspects <= MAX_SCANNED)
        return TSR_OK;
    return add(k, TSR_CHECK_BLOCKS, "*",
               "%zu more tensors have blocks worse than %g; only the first %d were looked into", suspects - MAX_SCANNED,
               TSR_USUAL_BLOCK_ERROR, MAX_SCANNED);
}

/* ---- config.json ---- */

/* What conversions may change. */
static bool is_about_storage(tsr_json_text key)
{
    static const char *const kKeys[] = {"quantization_config",      "compression_config",   "torch_dtype", "dtype",
                                        "num_nextn_predict_layers", "transformers_version", "tessera_mla"};
    for (size_t i = 0; i < sizeof kKeys / sizeof *kKeys; i++) {
        if (tsr_json_is(key, kKeys[i]))
            return true;
    }
    return false;
}

/* The next byte that is not space between tokens; 0 at the end. */
static char next_byte(tsr_json_text text, size_t *at, bool *in_string)
{
    while (!*in_string && *at < text.size && strchr(" \t\r\n", text.data[*at]) != NULL)
        ++*at;
    if (*at == text.size)
        return 0;
    const char c = text.data[(*at)++];
    if (c == '"')
        *in_string = !*in_string;
    return c;
}

/* Whether two values are written alike, but for the space between tokens. */
static bool is_same_json(tsr_json_text a, tsr_json_text b)
{
    size_t i = 0, k = 0;
    bool in_a = false, in_b = false;
    for (;;) {
        const char x = next_byte(a, &i, &in_a), y = next_byte(b, &k, &in_b);
        if (x != y)
            return false;
        if (x == 0)
            return true;
        /* What follows a backslash ends no string. */
        if (x == '\\' && (i == a.size || k == b.size || a.data[i++] != b.data[k++]))
            return false;
    }
}

/* Keys of `from` that `to` lacks or, when `values` is set, has with another value. */
static tsr_status check_keys(const checking *k, const tsr_checkpoint *from, const tsr_checkpoint *to, bool values,
                             const char *absent)
{
    tsr_json_reader r = tsr_json_open(TSR_CONFIG_NAME, from->config, from->config_size);
    tsr_json_text key, value, other;
    bool more;
    TSR_TRY(tsr_json_enter_object(&r, k->err));
    for (;;) {
        const char *name;
        TSR_TRY(tsr_json_next_member(&r, &key, &more, k->err));
        if (!more)
            return TSR_OK;
        TSR_TRY(tsr_json_skip(&r, &value, k->err));
        if (is_about_storage(key) || key.escaped || memchr(key.data, '.', key.size) != NULL)
            continue;
        name = tsr_arena_dup(&k->out->arena, key.data, key.size);
        if (name == NULL)
            return tsr_out_of_memory(k->err, NULL);
        if (!tsr_json_find(to->config, to->config_size, name, &other))
            TSR_TRY(add(k, TSR_CHECK_CONFIG, name, "%s", absent));
        else if (values && !is_same_json(value, other))
            TSR_TRY(add(k, TSR_CHECK_CONFIG, name, "%.*s, but %.*s in the source", (int)tsr_min_u64(other.size, 100),
                        other.data, (int)tsr_min_u64(value.size, 100), value.data));
    }
}

/* quant_method against the names of the scales: what it says is where a loader looks for them. */
static tsr_status check_quantization(const checking *k)
{
    const tsr_weights *const w = k->dst->weights;
    size_t parts = 0; /* of an absorbed kv_b_proj: what holds them knows their names, and no configuration */
    for (size_t i = 0; i < w->count; i++)
        parts += w->items[i].part != NULL;
    if (k->dst->checkpoint->config == NULL || w->n_scaled == parts)
        return TSR_OK;
    if (w->method == NULL)
        return add(k, TSR_CHECK_CONFIG, "quantization_config",
                   "absent, though %zu tensors are codes: loaders take them for values", w->n_scaled - parts);
    const char *const suffix = w->dialect == TSR_DIALECT_COMPRESSED_TENSORS ? "_scale" : "_scale_inv";
    for (size_t i = 0; i < w->count; i++) {
        const tsr_weight *const x = &w->items[i];
        const bool blocks = x->scale != NULL && x->part == NULL && x->block_cols < x->cols;
        if (blocks && (tsr_ends_with(x->scale->name, "_scale") || tsr_ends_with(x->scale->name, "_scale_inv")) &&
            !tsr_ends_with(x->scale->name, suffix))
            return add(k, TSR_CHECK_CONFIG, "quantization_config.quant_method",
                       "'%s', whose loaders look for '...%s'; the scales are called '%s'", w->method, suffix,
                       x->scale->name);
    }
    return TSR_OK;
}

static tsr_status check_config(const checking *k)
{
    const tsr_checkpoint *const s = k->src->checkpoint, *const d = k->dst->checkpoint;
    if (s->config != NULL && d->config != NULL) {
        k->out->judged[TSR_CHECK_CONFIG]++;
        TSR_TRY(check_keys(k, s, d, true, "missing: the source has it"));
        TSR_TRY(check_keys(k, d, s, false, "the source has no such key"));
    }
    return check_quantization(k);
}

tsr_status tsr_check_weights(const tsr_side *src, const tsr_side *dst, const tsr_comparison *c,
                             const tsr_weight_limits *limits, tsr_findings *findings, tsr_err *err)
{
    checking k = {.src = src, .dst = dst, .c = c, .limits = limits, .out = findings, .err = err};
    tsr_status status;
    k.wrong = calloc(c->count + 1, sizeof *k.wrong);
    if (k.wrong == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu tensors", c->count);
    TSR_GOTO(check_names(&k));
    TSR_GOTO(check_shapes(&k));
    TSR_GOTO(check_scales(&k));
    TSR_GOTO(check_codes(&k));
    TSR_GOTO(check_values(&k));
    TSR_GOTO(check_blocks(&k));
    status = check_config(&k);
out:
    free(k.wrong);
    return status;
}

void tsr_findings_free(tsr_findings *findings)
{
    free(findings->items);
    tsr_arena_free(&findings->arena);
    *findings = (tsr_findings){0};
}
