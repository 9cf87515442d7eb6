/* Judges errors of values by tensor, and tests the mistakes that would explain them. */
#include "verify/compare/check_weights_values.h"

#include "common/checked.h"
#include "common/glob.h"
#include "common/text.h"
#include "formats/names/fused.h"
#include "verify/compare/block_scan.h"
#include "verify/compare/misreadings.h"
#include "verify/compare/origin.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_SCANNED = 64 /* most tensors whose blocks are scanned */,
    FEW = 16, /* up to this many wrong codes suggest flipped bits */
    MANY = 10 /* more than one wrong code of so many suggests another method */
};

/* Returns true if there were values to compare. */
static bool has_values(const tsr_pair *p)
{
    return p->state <= TSR_PAIR_DIFFERS && tsr_tensor_elements(p->b->values) > 0;
}

tsr_status tsr_check_codes(const tsr_weights_checking *k)
{
    char place[192];
    for (size_t i = 0; i < k->c->count; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        const tsr_metrics *const m = &p->metrics;
        k->out->judged[TSR_CHECK_CODES] += has_values(p);
        /* NaN and Inf of codes are damage even if the source has the same. */
        const bool codes = has_values(p) && (p->a->scale != NULL || p->b->scale != NULL);
        if (m->nonfinite[1] > 0 && (codes || (p->state == TSR_PAIR_DIFFERS && isinf(m->max_abs))))
            TSR_TRY(tsr_add_finding(k, TSR_CHECK_CODES, tsr_pair_name(p),
                                    "%llu values are NaN or Inf, %llu in the source; the first at %s",
                                    U64(m->nonfinite[1]), U64(m->nonfinite[0]),
                                    tsr_pair_coordinates(p, m->nonfinite_at[1], place, sizeof place)));
    }
    return TSR_OK;
}

static double worst_block(const tsr_metrics *m)
{
    return m->n_worst == 0 ? 0 : m->worst[0].relative;
}

/* A bound on a block's error bounds a tile's only if both are the same. Values of a tile may be tiny compared with
 * their block's maximum. */
static bool tiles_are_blocks(const tsr_weight *w)
{
    return w->coding == TSR_CODED_E4M3 && TSR_TILE % w->block.rows == 0 && TSR_TILE % w->block.cols == 0;
}

tsr_status tsr_weight_limits_refuse(const tsr_weight_limits *limits, const tsr_weights *dst, const tsr_list *tensors,
                                    tsr_err *err)
{
    bool applies = !limits->asks_block_error;
    for (size_t i = 0; i < dst->count && !applies; i++) {
        const tsr_weight *const w = &dst->items[i];
        applies = w->scale != NULL && w->coding == TSR_CODED_E4M3 && (w->part != NULL || tiles_are_blocks(w)) &&
                  (tensors->count == 0 || tsr_glob_find(tensors->items, tensors->count, w->values->name) != NULL);
    }
    return applies ? TSR_OK
                   : tsr_fail(err, TSR_E_USAGE,
                              "--max-block-error has no effect: no tensor of DST%s is FP8 with scales for blocks "
                              "inside 128x128",
                              tensors->count == 0 ? "" : " that --tensors selects");
}

/* Returns true for NVFP4, MXFP4, MXFP6 and MXFP8: a scale per few values of a row, by a known rule. */
static bool has_ruled_groups(const tsr_weight *w)
{
    return w->kind != NULL && tsr_kind_has_small_groups(w->kind);
}

static bool is_float_of_8_bits(const tsr_weight *w)
{
    return w->coding == TSR_CODED_E4M3;
}

/* Returns half a step in the subnormal range, where the relative rounding error is unbounded. */
static double subnormal_rounding(tsr_dtype dtype)
{
    return dtype == TSR_BF16 ? 0x1p-134 : dtype == TSR_F16 ? 0x1p-25 : dtype == TSR_F32 ? 0x1p-150 : 0;
}

static bool is_cast_wrong(const tsr_weights_checking *k, const tsr_pair *p)
{
    const tsr_metrics *const m = &p->metrics;
    const double limit = k->limits->max_cast_error, fine = subnormal_rounding((tsr_dtype)p->b->data->dtype);
    bool wrong = tsr_metrics_relative(m) > limit && m->max_abs > fine;
    for (size_t i = 0; i < m->n_worst; i++)
        wrong = wrong || (m->worst[i].relative > limit && m->worst[i].max_abs > fine);
    return wrong;
}

/* Returns true for FP8 that absorption made from FP8. Its values lie on another grid of e4m3, and all of them may be
 * half a step off, which no single scale can improve. */
static bool is_requantized_part(const tsr_pair *p)
{
    return p->made[0] != NULL && p->made[0]->kind == TSR_DERIVED_PART && p->made[0]->kv_b->scale != NULL &&
           p->b->scale != NULL;
}

/* Returns true for a member of a fused layer with one scale per tensor, which follows from the largest member. */
static bool may_share_scale(const tsr_weight *w)
{
    return w->kind != NULL && strcmp(w->kind->name, "fp8-tensor") == 0 &&
           tsr_fused_find_in(w->values->name, tsr_module_length(w->values->name)) != NULL;
}

/* The limits that a pair exceeds. */
typedef struct missed {
    bool sqnr, rounding, block, cast, equality;
    double cost; /* integers below the SQNR limit: tsr_block_scan.cost; 0: unknown */
} missed;

static double least_sqnr(const tsr_weights_checking *k, const tsr_pair *p)
{
    return p->b->coding == TSR_CODED_E2M1 ? k->limits->min_sqnr_fp4
           : p->b->bits == 4              ? k->limits->min_sqnr_int4
                                          : k->limits->min_sqnr;
}

static bool is_wrong(const missed *m)
{
    return m->sqnr || m->rounding || m->block || m->cast || m->equality;
}

static bool in_powers(const tsr_weights_checking *k, const tsr_weight *w)
{
    return k->dst->weights->ue8m0 || w->scale_dtype == TSR_F8_E8M0;
}

/* Half a step of e4m3 is at most 2^-4 of a value: 20 lg 16, in whole dB. */
static const double kWorstOfE4m3 = 24;

/* Accepts an SQNR below the limit if the codes are right: groups contain outliers, or the source of e4m3 was in four
 * bits, whose few mantissas are all far from codes. For groups with a scale rule, two checks prove it: every code is
 * the nearest, and no scale costs more than the rule's. */
static tsr_status forgive_outliers(const tsr_weights_checking *k, const tsr_pair *p, missed *m)
{
    tsr_view x, y;
    tsr_block_scan scan;
    if (has_ruled_groups(p->b) && p->metrics.misrounded == 0 && p->metrics.misscaled == 0) {
        m->sqnr = m->sqnr && !(k->limits->max_int_cost > 0);
        m->block = m->block && k->limits->max_block_error < tsr_weight_limits_defaults().max_block_error;
        return TSR_OK;
    }
    if (!m->sqnr || has_ruled_groups(p->b) || !(k->limits->max_int_cost > 0))
        return TSR_OK;
    if (is_float_of_8_bits(p->b)) {
        m->sqnr = p->metrics.misrounded > 0 || !(tsr_metrics_sqnr(&p->metrics) >= kWorstOfE4m3);
        return TSR_OK;
    }
    TSR_TRY(tsr_pair_view(&x, k->src, p, 0, k->err));
    TSR_TRY(tsr_pair_view(&y, k->dst, p, 1, k->err));
    TSR_TRY(tsr_scan_blocks(&x, &y, in_powers(k, p->b), &scan, k->err));
    m->cost = scan.fault == TSR_NOT_SCANNED ? 0 : scan.cost;
    m->sqnr = !(m->cost > 0 && m->cost <= k->limits->max_int_cost);
    return TSR_OK;
}

static tsr_status judge_values(const tsr_weights_checking *k, const tsr_pair *p, missed *m)
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

/* Explains an error by the scales if they cause it; else writes "". */
static tsr_status explain_scales(const tsr_weights_checking *k, const tsr_pair *p, char text[TSR_FINDING_TEXT],
                                 bool *unrelated)
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
    case TSR_ZEROS_WRONG:
        snprintf(text, TSR_FINDING_TEXT,
                 "codes and scales fit, but %llu of %llu zero points do not (group at [%llu, %llu]: %+g)",
                 U64(scan.wrong), U64(scan.blocks), U64(scan.first_wrong.row), U64(scan.first_wrong.col), scan.factor);
        return TSR_OK;
    case TSR_SCALES_MULTIPLIED:
        fault = ": by one factor, as from a wrong global scale";
        break;
    case TSR_SCALES_SWAPPED:
        snprintf(text, TSR_FINDING_TEXT,
                 "the codes fit, but the scales of the blocks at [%llu, %llu] and [%llu, %llu] are swapped: each fits "
                 "the other's place (the first is %.3g times the right one)",
                 U64(scan.first_wrong.row), U64(scan.first_wrong.col), U64(scan.last_wrong.row),
                 U64(scan.last_wrong.col), scan.factor);
        return TSR_OK;
    case TSR_SCALES_TRANSPOSED:
        fault = ": its grid is stored transposed";
        break;
    case TSR_SCALES_SHIFTED:
        fault = ": each is its neighbour's; the grid is shifted by one block";
        break;
    case TSR_SCALES_INVERTED:
        fault = ": 1/scale is stored instead of the scale";
        break;
    case TSR_CODES_UNRELATED:
        *unrelated = true;
        return TSR_OK;
    case TSR_SCALES_WRONG:
        break;
    default:
        return TSR_OK;
    }
    snprintf(text, TSR_FINDING_TEXT,
             "the codes fit, but %llu of %llu scales do not%s (block at [%llu, %llu]: %.3g times the right one)",
             U64(scan.wrong), U64(scan.blocks), fault, U64(scan.first_wrong.row), U64(scan.first_wrong.col),
             scan.factor);
    return TSR_OK;
}

/* Explains the likely cause of an error. Writes "" if every code is the nearest to its value. */
static tsr_status explain(tsr_weights_checking *k, const tsr_pair *p, const missed *m, char text[TSR_FINDING_TEXT])
{
    tsr_origin origin;
    bool unrelated;
    *text = '\0';
    if (p->b->scale != NULL && !m->rounding) {
        if (m->cost > 0)
            snprintf(text, TSR_FINDING_TEXT,
                     "every code is the nearest under its scale, but the errors are %.3g times those of scales "
                     "computed from the largest values: scales far too small or too large",
                     m->cost);
        return TSR_OK;
    }
    if (k->explained++ >= TSR_MAX_EXPLAINED)
        return TSR_OK;
    if (m->rounding) {
        tsr_misreading misreading;
        TSR_TRY(tsr_find_misreading(k->src, k->dst, p, &misreading, k->err));
        if (misreading != TSR_AS_STORED) {
            snprintf(text, TSR_FINDING_TEXT, "%s", tsr_misreading_text(misreading));
            return TSR_OK;
        }
    }
    TSR_TRY(explain_scales(k, p, text, &unrelated));
    if (!unrelated || tsr_metrics_relative(&p->metrics) < tsr_same_values(p->b))
        return TSR_OK;
    TSR_TRY(tsr_find_origin(k->src, k->dst, p->b, &origin, k->err));
    if (origin.values != NULL && origin.values != p->a)
        snprintf(text, TSR_FINDING_TEXT, "it holds the values of '%s': swapped?", origin.values->values->name);
    else if (origin.values == NULL && origin.codes != NULL && origin.codes != p->a)
        snprintf(text, TSR_FINDING_TEXT,
                 "its codes are those of '%s' but its scales are not: swapped without their scales?",
                 origin.codes->values->name);
    else if (origin.values == NULL && origin.codes == NULL)
        snprintf(text, TSR_FINDING_TEXT, "no tensor of the source has its values");
    return TSR_OK;
}

/* Adds the finding: the diagnosis `why`, if there is one, then each figure once with the limit that it exceeds. */
static void tell_values(const tsr_weights_checking *k, const tsr_pair *p, const missed *found, const char *why,
                        tsr_text *text)
{
    const tsr_metrics *const m = &p->metrics;
    char place[192];
    if (*why != '\0')
        tsr_text_printf(text, "%s; ", why);
    if (p->b->scale == NULL)
        tsr_text_printf(text, "%llu of %llu values differ%s; ", U64(m->differ), U64(m->elements),
                        found->equality ? ", and the dtype is the source's" : "");
    if (found->rounding)
        tsr_text_printf(text, "%llu codes are not the nearest (%llu allowed), one at %s; ", U64(m->misrounded),
                        U64(k->limits->max_misrounded), tsr_pair_coordinates(p, m->misrounded_at, place, sizeof place));
    tsr_text_printf(text, "SQNR %.2f dB", tsr_metrics_sqnr(m));
    if (found->sqnr)
        tsr_text_printf(text, " is below %g", least_sqnr(k, p));
    tsr_text_printf(text, "; worst block at [%llu, %llu]: relative error %.3g", U64(m->worst[0].row),
                    U64(m->worst[0].col), m->worst[0].relative);
    if (found->block || found->cast)
        tsr_text_printf(text, ", above %.3g", found->block ? k->limits->max_block_error : k->limits->max_cast_error);
    if (found->rounding && !found->sqnr && *why == '\0' && MANY * m->misrounded > m->elements)
        tsr_text_printf(text, "; if they were made with --method gptq, give it to verify");
}

static tsr_status check_values_of(tsr_weights_checking *k, const tsr_pair *p, const missed *found)
{
    const tsr_metrics *const m = &p->metrics;
    char place[192], why[TSR_FINDING_TEXT];
    TSR_TRY(explain(k, p, found, why));
    if (found->rounding && m->misrounded <= FEW && *why == '\0') {
        return tsr_add_finding(
            k, TSR_CHECK_VALUES, tsr_pair_name(p),
            "%llu of %llu codes are not the nearest to the source's values, as after flipped bits; one at %s; SQNR "
            "%.2f dB",
            U64(m->misrounded), U64(m->elements), tsr_pair_coordinates(p, m->misrounded_at, place, sizeof place),
            tsr_metrics_sqnr(m));
    }
    if (m->n_worst == 0)
        return tsr_add_finding(k, TSR_CHECK_VALUES, tsr_pair_name(p), "its bytes differ");
    tsr_text text = {0};
    tell_values(k, p, found, why, &text);
    tsr_status status = tsr_text_status(&text, k->err);
    if (status == TSR_OK)
        status = tsr_add_finding(k, TSR_CHECK_VALUES, tsr_pair_name(p), "%s", text.data);
    tsr_text_free(&text);
    return status;
}

/* Reports files in which all of several tensors are wrong, while other files are right. */
static tsr_status check_files(const tsr_weights_checking *k)
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
            TSR_TRY(tsr_add_finding(
                k, TSR_CHECK_VALUES, d->files[file].name,
                "all %zu tensors of this file are wrong: a stale shard, left from another run or version?", all));
    }
    return TSR_OK;
}

tsr_status tsr_check_values(tsr_weights_checking *k)
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
        TSR_TRY(tsr_add_finding(k, TSR_CHECK_VALUES, "*",
                                "no value was compared: no tensor with values is in both checkpoints"));
    return check_files(k);
}

static tsr_status check_blocks_of(const tsr_weights_checking *k, const tsr_pair *p)
{
    tsr_view x, y;
    tsr_block_scan scan;
    TSR_TRY(tsr_pair_view(&x, k->src, p, 0, k->err));
    TSR_TRY(tsr_pair_view(&y, k->dst, p, 1, k->err));
    TSR_TRY(tsr_scan_blocks(&x, &y, in_powers(k, p->b), &scan, k->err));
    if (scan.improvable == 0)
        return TSR_OK;
    return tsr_add_finding(
        k, TSR_CHECK_BLOCKS, tsr_pair_name(p),
        "%llu of %llu blocks have a better scale; the largest gain is at [%llu, %llu]: relative error %.3g, %.3g "
        "with %s",
        U64(scan.improvable), U64(scan.blocks), U64(scan.most_improvable.row), U64(scan.most_improvable.col),
        scan.error, scan.better, in_powers(k, p->b) ? "the power of two above amax/448" : "amax/448");
}

/* Finds the first group that has a better scale. */
static tsr_status find_misscaled(const tsr_weights_checking *k, const tsr_pair *p, tsr_piece *place, double *stored,
                                 tsr_group_verdict *verdict)
{
    enum { MOST = 64 };
    double x[MOST], y[MOST];
    tsr_view views[2];
    tsr_weight_reader readers[2] = {{0}};
    tsr_group_rule rule;
    tsr_status status = TSR_OK;
    for (unsigned i = 0; i < 2; i++)
        TSR_TRY(tsr_pair_view(&views[i], i == 0 ? k->src : k->dst, p, i, k->err));
    const tsr_view *const v = &views[1];
    const uint64_t at = p->metrics.misscaled_at;
    *place = (tsr_piece){.matrix = at / v->cols / v->rows, .row = at / v->cols % v->rows, .col = at % v->cols};
    place->rows = tsr_min_u64(v->block.rows, v->rows - place->row);
    place->cols = tsr_min_u64(v->block.cols, v->cols - place->col);
    for (unsigned i = 0; i < 2 && status == TSR_OK; i++)
        status = tsr_weight_reader_load(&readers[i], &views[i], place, k->err);
    if (status == TSR_OK) {
        for (uint64_t row = 0; row < place->rows; row++) {
            tsr_weight_reader_row(&readers[0], row, 0, (size_t)place->cols, x + row * place->cols);
            tsr_weight_reader_row(&readers[1], row, 0, (size_t)place->cols, y + row * place->cols);
        }
        *stored = tsr_weight_reader_scale(&readers[1], 0, 0);
        const tsr_group group = {
            .x = x, .y = y, .n = (size_t)(place->rows * place->cols), .stride = 1, .scale = *stored};
        *verdict = (tsr_group_verdict){0};
        if (tsr_weight_reader_rule(&readers[1], &rule))
            (void)tsr_group_is_misscaled(&rule, &group, verdict);
    }
    tsr_weight_reader_free(&readers[0]);
    tsr_weight_reader_free(&readers[1]);
    return status;
}

static tsr_status check_groups_of(const tsr_weights_checking *k, const tsr_pair *p)
{
    tsr_piece place;
    tsr_group_verdict v;
    double stored;
    const uint64_t groups = p->metrics.elements / (p->b->block.rows * p->b->block.cols);
    TSR_TRY(find_misscaled(k, p, &place, &stored, &v));
    return tsr_add_finding(
        k, TSR_CHECK_BLOCKS, tsr_pair_name(p),
        "%llu of %llu groups have a better scale; the first at [%llu, %llu] of matrix %llu: its largest value is "
        "%.6g and its scale %.6g, but the rule gives %.6g: squared error %.3g, %.3g with that scale; if scales were "
        "chosen with --importance, give verify --method importance",
        U64(p->metrics.misscaled), U64(groups), U64(place.row), U64(place.col), U64(place.matrix), v.amax, stored,
        v.ruled, v.error2, v.better2);
}

tsr_status tsr_check_blocks(const tsr_weights_checking *k)
{
    size_t suspects = 0;
    for (size_t i = 0; i < k->c->count && !k->limits->any_scales; i++) {
        const tsr_pair *const p = &k->c->pairs[i];
        if (p->state > TSR_PAIR_DIFFERS)
            continue;
        const bool ruled = has_ruled_groups(p->b), blocks = is_float_of_8_bits(p->b) && !ruled;
        k->out->judged[TSR_CHECK_BLOCKS] += ruled || blocks;
        if (p->state != TSR_PAIR_DIFFERS)
            continue;
        if (ruled && p->metrics.misscaled > 0)
            TSR_TRY(check_groups_of(k, p));
        if (blocks && !is_requantized_part(p) && !may_share_scale(p->b) &&
            worst_block(&p->metrics) > TSR_USUAL_BLOCK_ERROR && suspects++ < MAX_SCANNED)
            TSR_TRY(check_blocks_of(k, p));
    }
    if (suspects <= MAX_SCANNED)
        return TSR_OK;
    return tsr_add_finding(k, TSR_CHECK_BLOCKS, "*",
                           "%zu more tensors have blocks worse than %g; only the first %d were examined",
                           suspects - MAX_SCANNED, TSR_USUAL_BLOCK_ERROR, MAX_SCANNED);
}
