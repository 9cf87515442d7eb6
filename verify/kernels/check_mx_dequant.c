/* Compares the values of verify's own decoders with those of each kernel. */
#include "verify/kernels/check_mx_dequant.h"

#include "common/float_bits.h"
#include "common/parallel/threads.h"

#include <stdio.h>
#include <string.h>

typedef struct values {
    const tsr_mx_subject *subject;
    const tsr_mx_operand *w;
    tsr_evidence *evidence;
    uint16_t *want, *got; /* [n][k] */
    double *x, *y;        /* `want` and `got`, widened */
} values;

/* value(code) * t in FP32, then BF16. */
static void find_wanted(const values *v)
{
    const tsr_mx_operand *const w = v->w;
    tsr_mx_decode_codes(w->matrix.form, w->codes, w->n, w->k, v->x);
    for (size_t i = 0; i < w->n * w->k; i++)
        v->want[i] = tsr_bf16_from_f32((float)(v->x[i] * w->t[i / w->group]));
    tsr_decode(TSR_BF16, (const unsigned char *)v->want, w->n * w->k, v->x);
}

static tsr_status judge(const values *v, const char *name, tsr_err *err)
{
    const tsr_mx_operand *const w = v->w;
    const size_t n = w->n * w->k;
    char what[96], text[160];
    size_t wrong = 0, first = 0;
    for (size_t i = n; i-- > 0;) {
        const bool differs = v->got[i] != v->want[i];
        wrong += differs;
        first = differs ? i : first;
    }
    snprintf(what, sizeof what, "%s, %s, bf16", name, tsr_mx_form_name(w->matrix.form));
    tsr_judgement j = {
        .subject = v->subject->name, .kind = TSR_ERROR_KERNEL, .what = what, .of_bound = -1, .of_expected = -1};
    tsr_decode(TSR_BF16, (const unsigned char *)v->got, n, v->y);
    tsr_judge(&j, v->x, v->y, w->n, w->k, NULL, &w->columns);
    j.worst_at[0] = '\0';
    if (wrong > 0) {
        const unsigned long long row = tsr_column_of(&w->columns, first / w->k), column = first % w->k;
        snprintf(j.worst_at, sizeof j.worst_at, "row %llu, column %llu", row, column);
        snprintf(text, sizeof text, "%zu of %zu values differ from the format's, the first at row %llu, column %llu",
                 wrong, n, row, column);
        j.fault = text;
    }
    return tsr_evidence_add(v->evidence, &j, err);
}

static tsr_status run_kernels(const values *v, tsr_err *err)
{
    const tsr_device *const device = v->subject->options->device;
    double began = tsr_now();
    find_wanted(v);
    tsr_lap(v->evidence, TSR_PHASE_ORACLE, &began);
    for (size_t i = 0; i < device->n_mx_dequants; i++) {
        const tsr_device_mx_dequant *const kernel = &device->mx_dequants[i];
        memset(v->got, 0xFF, v->w->n * v->w->k * sizeof *v->got); /* NaN */
        TSR_TRY(kernel->run(kernel, &v->w->matrix, v->w->n, v->w->k, v->got, err));
        tsr_lap(v->evidence, TSR_PHASE_KERNELS, &began);
        TSR_TRY(judge(v, kernel->name, err));
        tsr_lap(v->evidence, TSR_PHASE_JUDGE, &began);
    }
    return TSR_OK;
}

static tsr_status read_and_run(values *v, tsr_arena *arena, tsr_err *err)
{
    tsr_mx_operand w;
    bool sound;
    TSR_TRY(tsr_mx_operand_read(v->subject, arena, &w, &sound, v->evidence, err));
    if (!sound)
        return TSR_OK;
    const size_t n = w.n * w.k;
    v->w = &w;
    v->want = tsr_arena_alloc(arena, n * sizeof *v->want);
    v->got = tsr_arena_alloc(arena, n * sizeof *v->got);
    v->x = tsr_arena_alloc(arena, n * sizeof *v->x);
    v->y = tsr_arena_alloc(arena, n * sizeof *v->y);
    if (v->want == NULL || v->got == NULL || v->x == NULL || v->y == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the values of '%s'", v->subject->name);
    return run_kernels(v, err);
}

tsr_status tsr_judge_mx_dequant(const tsr_mx_subject *subject, tsr_evidence *evidence, tsr_err *err)
{
    values v = {.subject = subject, .evidence = evidence};
    tsr_arena arena = {0};
    const tsr_status status = read_and_run(&v, &arena, err);
    tsr_arena_free(&arena);
    return status;
}
