/* Reads bands of rows in small groups, and checks that their codes and scales have values. */
#include "verify/kernels/mx_operand.h"

#include "common/checked.h"
#include "common/parallel/threads.h"
#include "verify/evidence/activations.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static tsr_mx_form form_of(const tsr_weight *w)
{
    if (w->coding == TSR_CODED_E4M3)
        return TSR_MX_FORM_MXFP8;
    if (w->global_scale == NULL)
        return TSR_MX_FORM_MXFP4;
    return w->global_divides ? TSR_MX_FORM_NVFP4_DIVIDED : TSR_MX_FORM_NVFP4_TIMES;
}

const char *tsr_mx_unfit(const tsr_weight *w)
{
    const size_t group = tsr_mx_form_group(form_of(w));
    if (w->rows == 0 || w->cols == 0 || w->matrices == 0)
        return "it is empty";
    if (w->block.rows != 1 || w->block.cols != group || w->cols % group != 0)
        return "its rows are not a multiple of the usual group size";
    return NULL;
}

const char *tsr_mx_subject_name(tsr_arena *arena, const tsr_weight *w, uint64_t matrix)
{
    if (w->matrices == 1)
        return w->values->name;
    return tsr_arena_printf(arena, "%s[%llu]", w->values->name, (unsigned long long)matrix);
}

void tsr_mx_decode_codes(tsr_mx_form form, const void *codes, size_t rows, size_t k, double *out)
{
    if (form == TSR_MX_FORM_BF16 || form == TSR_MX_FORM_MXFP8) {
        tsr_decode(form == TSR_MX_FORM_BF16 ? TSR_BF16 : TSR_F8_E4M3, codes, rows * k, out);
        return;
    }
    tsr_decode_e2m1(codes, 0, rows * k, 1, out);
}

void tsr_mx_decode_scales(const tsr_mx_matrix *x, size_t n, double *t)
{
    const bool times = x->form == TSR_MX_FORM_NVFP4_TIMES, divided = x->form == TSR_MX_FORM_NVFP4_DIVIDED;
    tsr_decode(times || divided ? TSR_F8_E4M3 : TSR_F8_E8M0, x->scales, n, t);
    for (size_t i = 0; times && i < n; i++)
        t[i] = (double)((float)t[i] * x->global);
    for (size_t i = 0; divided && i < n; i++)
        t[i] = (double)((float)t[i] / x->global);
}

static tsr_status add_fault(const tsr_mx_subject *s, const char *fault, bool *sound, tsr_evidence *evidence,
                            tsr_err *err)
{
    const tsr_judgement j = {.subject = s->name,
                             .what = "codes and scales of the checkpoint",
                             .kind = TSR_ERROR_CHECKPOINT,
                             .of_bound = -1,
                             .of_expected = -1,
                             .fault = fault};
    *sound = false;
    return tsr_evidence_add(evidence, &j, err);
}

static tsr_status read_global(const tsr_mx_subject *s, tsr_mx_operand *o, bool *sound, tsr_evidence *evidence,
                              tsr_err *err)
{
    const tsr_tensor *const t = s->weight->global_scale;
    char text[96];
    if (t == NULL)
        return TSR_OK;
    const uint64_t at = tsr_tensor_elements(t) > 1 ? s->matrix : 0;
    TSR_TRY(tsr_checkpoint_read(s->options->side.checkpoint, t, at * sizeof o->matrix.global, &o->matrix.global,
                                sizeof o->matrix.global, err));
    if (o->matrix.global > 0 && isfinite(o->matrix.global))
        return TSR_OK;
    snprintf(text, sizeof text, "the global scale is %g", (double)o->matrix.global);
    return add_fault(s, text, sound, evidence, err);
}

/* Adds a finding for the first scale or code without a value in rows [at, at + rows). */
static tsr_status check_band(const tsr_mx_subject *s, const tsr_mx_operand *o, size_t at, size_t rows, bool *sound,
                             tsr_evidence *evidence, tsr_err *err)
{
    const size_t groups = o->k / o->group;
    char text[128];
    for (size_t i = at * groups; i < (at + rows) * groups; i++) {
        if (o->t[i] >= 0 && isfinite(o->t[i]) && (o->scales[i] <= 0x7F || o->matrix.global == 0))
            continue;
        snprintf(text, sizeof text, "the scale of row %llu, group %zu is %g (0x%02X)",
                 (unsigned long long)tsr_column_of(&o->columns, i / groups), i % groups, o->t[i], o->scales[i]);
        return add_fault(s, text, sound, evidence, err);
    }
    for (size_t i = at * o->k; o->matrix.form == TSR_MX_FORM_MXFP8 && i < (at + rows) * o->k; i++) {
        if ((o->codes[i] & 0x7F) != 0x7F)
            continue;
        snprintf(text, sizeof text, "the code at [%llu, %zu] is NaN",
                 (unsigned long long)tsr_column_of(&o->columns, i / o->k), i % o->k);
        return add_fault(s, text, sound, evidence, err);
    }
    return TSR_OK;
}

static tsr_status read_band(const tsr_mx_subject *s, tsr_weight_reader *reader, const tsr_view *view,
                            const tsr_mx_operand *o, size_t band, size_t *rows, tsr_err *err)
{
    const uint64_t row = tsr_column_block(&o->columns, band) * TSR_MX_BAND;
    const size_t at = band * TSR_MX_BAND, groups = o->k / o->group;
    *rows = (size_t)tsr_min_u64(TSR_MX_BAND, s->weight->rows - row);
    const tsr_piece piece = {.matrix = s->matrix, .row = row, .rows = *rows, .cols = o->k};
    TSR_TRY(tsr_weight_reader_load(reader, view, &piece, err));
    memcpy(o->codes + tsr_mx_form_bytes(o->matrix.form, at * o->k), reader->bytes,
           tsr_mx_form_bytes(o->matrix.form, *rows * o->k));
    memcpy(o->scales + at * groups, reader->raw_scales, *rows * groups);
    memcpy(o->t + at * groups, reader->scales, *rows * groups * sizeof *o->t);
    return TSR_OK;
}

static tsr_status take(const tsr_mx_subject *s, tsr_arena *arena, tsr_mx_operand *o, tsr_err *err)
{
    const tsr_weight *const w = s->weight;
    const tsr_mx_form form = form_of(w);
    o->columns = tsr_choose_columns(s->options, w->rows, TSR_MX_BAND, tsr_seed_of(s->options->seed, s->name));
    o->n = (size_t)tsr_columns_count(&o->columns);
    o->k = (size_t)w->cols;
    o->group = tsr_mx_form_group(form);
    const size_t scales = o->n * (o->k / o->group);
    o->codes = tsr_arena_alloc(arena, tsr_mx_form_bytes(form, o->n * o->k));
    o->scales = tsr_arena_alloc(arena, scales);
    o->t = tsr_arena_alloc(arena, scales * sizeof *o->t);
    o->matrix = (tsr_mx_matrix){.form = form, .codes = o->codes, .scales = o->scales};
    return o->codes != NULL && o->scales != NULL && o->t != NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_NOMEM, "out of memory for the codes of '%s'", s->name);
}

tsr_status tsr_mx_operand_read(const tsr_mx_subject *s, tsr_arena *arena, tsr_mx_operand *o, bool *sound,
                               tsr_evidence *evidence, tsr_err *err)
{
    const double began = tsr_now();
    tsr_weight_reader reader = {0};
    tsr_view view;
    *sound = true;
    TSR_TRY(take(s, arena, o, err));
    TSR_TRY(tsr_view_of_codes(&view, s->options->side.checkpoint, s->weight, err));
    tsr_status status = read_global(s, o, sound, evidence, err);
    for (size_t band = 0; status == TSR_OK && *sound && band < o->columns.chosen; band++) {
        size_t rows = 0;
        status = read_band(s, &reader, &view, o, band, &rows, err);
        if (status == TSR_OK)
            status = check_band(s, o, band * TSR_MX_BAND, rows, sound, evidence, err);
    }
    tsr_weight_reader_free(&reader);
    evidence->bytes_read += tsr_mx_form_bytes(o->matrix.form, o->n * o->k);
    evidence->phases[TSR_PHASE_READ] += tsr_now() - began;
    return status;
}
