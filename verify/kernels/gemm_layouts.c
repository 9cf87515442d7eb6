/* Arranges rows in a layout, runs kernels, and judges the gathered results. */
#include "verify/kernels/gemm_layouts.h"

#include "common/checked.h"
#include "common/parallel/threads.h"
#include "verify/evidence/kernel_tally.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGN_ROWS = 128, /* contiguous layout: each expert begins at a multiple of this row number */
    ALIGN_ROOM = 4,   /* masked layout: rows per expert are a multiple, so that scales are 16-byte aligned */
};

tsr_status tsr_gemm_judge(tsr_gemm_operands *o, const tsr_gemm_result *r, tsr_err *err)
{
    const size_t n = o->judged * o->n;
    tsr_kernel_tally t;
    const double began = tsr_now();
    double *const exact = malloc(2 * n * sizeof *exact + 64);
    if (exact == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the results of '%s'", o->name);
    const tsr_tally_of of = {.subject = o->name,
                             .what = r->name,
                             .seconds = r->seconds,
                             .rows = o->judged,
                             .cols = o->n,
                             .out = r->out,
                             .systematic = tsr_gemm_slope(r->accumulation, r->k)};
    const tsr_status status = tsr_kernel_tally_begin(&t, &of, err);
    if (status != TSR_OK) {
        free(exact);
        return status;
    }
    t.judgement.fault = r->fault;
    double *const y = exact + n;
    for (size_t i = 0; i < n; i++) {
        const tsr_gemm_margin m = tsr_gemm_margin_of(&r->exact[i], r->ranks, n, r->accumulation, r->out, r->k);
        exact[i] = m.value;
        y[i] = !isfinite(r->d[i]) && tsr_may_overflow(r->out, m.reach, m.mass) ? m.value : (double)r->d[i];
        tsr_kernel_tally_count(&t, i / o->n, i % o->n, m.value, y[i], m.bound, m.variance);
    }
    tsr_judge(&t.judgement, exact, y, o->judged, o->n, &o->rows, &o->columns);
    free(exact);
    o->evidence->phases[TSR_PHASE_JUDGE] += tsr_now() - began;
    return tsr_kernel_tally_end_by(&t, &o->c->options->limits, "the accumulation", o->evidence, err);
}

void tsr_gemm_laid_out_free(tsr_gemm_laid_out *l)
{
    free(l->place);
    free(l->a);
    free(l->scale_a);
    free(l->d);
    free(l->results);
    free(l->per_row);
    free(l->per_expert);
}

static size_t rows_of(const tsr_gemm_operands *o, tsr_gemm_layout kind, const size_t *first)
{
    size_t rows = 0, most = 0;
    for (size_t e = 0; e < o->n_experts; e++) {
        const size_t m = first[e + 1] - first[e];
        rows += kind == TSR_GEMM_CONTIGUOUS ? tsr_round_up(m, ALIGN_ROWS) : m;
        most = m > most ? m : most;
    }
    return kind == TSR_GEMM_MASKED ? tsr_round_up(most, ALIGN_ROOM) * o->n_experts : rows;
}

tsr_status tsr_gemm_lay_out(const tsr_gemm_operands *o, tsr_gemm_layout kind, bool all, tsr_gemm_laid_out *l,
                            tsr_err *err)
{
    const size_t *const first = all ? o->first : o->first_judged;
    const size_t m = rows_of(o, kind, first);
    l->place = calloc(o->m + 1, sizeof *l->place);
    l->a = malloc(m * o->k + 64);
    l->scale_a = malloc(m * o->grid_k * sizeof *l->scale_a + 64);
    l->d = malloc(m * o->n * sizeof *l->d + 64);
    l->results = malloc(o->judged * o->n * sizeof *l->results + 64);
    l->per_row = malloc(m * sizeof *l->per_row + 64);
    l->per_expert = calloc(o->n_experts, sizeof *l->per_expert);
    if (l->place == NULL || l->a == NULL || l->scale_a == NULL || l->d == NULL || l->results == NULL ||
        l->per_row == NULL || l->per_expert == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for the operands of '%s'", o->name);
    memset(l->a, 0x7F, m * o->k); /* padding is NaN, which reveals a kernel that reads it */
    for (size_t i = 0; i < m * o->grid_k; i++)
        l->scale_a[i] = NAN;
    memset(l->per_row, 0xFF, m * sizeof *l->per_row);
    for (size_t e = 0, row = 0; e < o->n_experts; e++) {
        const size_t share = first[e + 1] - first[e];
        if (kind == TSR_GEMM_MASKED)
            row = m / o->n_experts * e;
        l->per_expert[e] = (int32_t)share;
        for (size_t i = 0; i < share; i++) {
            const size_t from = all ? first[e] + i : (size_t)tsr_column_of(&o->rows, first[e] + i), to = row + i;
            l->place[from] = to;
            l->per_row[to] = (int32_t)e;
            memcpy(l->a + to * o->k, o->a + from * o->k, o->k);
            for (size_t t = 0; t < o->grid_k; t++)
                l->scale_a[t * m + to] = o->scale_a[t * o->m + from];
        }
        row += kind == TSR_GEMM_CONTIGUOUS ? tsr_round_up(share, ALIGN_ROWS) : share;
    }
    l->grouped.gemm = tsr_gemm_expert_args(o, 0);
    l->grouped.gemm.a = l->a;
    l->grouped.gemm.scale_a = l->scale_a;
    l->grouped.gemm.d = l->d;
    l->grouped.gemm.m = l->grouped.gemm.ld_scale_a = m;
    l->grouped.gemm.group_m = all ? (size_t)o->c->options->group_rows : 0;
    l->grouped.groups = o->n_experts;
    l->grouped.expert_of_row = l->per_row;
    l->grouped.rows_of_expert = kind == TSR_GEMM_MASKED ? l->per_expert : NULL;
    return TSR_OK;
}

const char *tsr_gemm_gather(const tsr_gemm_operands *o, const tsr_gemm_laid_out *l)
{
    const char *fault = NULL;
    for (size_t i = 0; i < o->judged; i++)
        memcpy(l->results + i * o->n, l->d + l->place[tsr_column_of(&o->rows, i)] * o->n, o->n * sizeof *l->d);
    for (size_t row = 0; row < l->grouped.gemm.m; row++) {
        for (size_t j = 0; l->per_row[row] < 0 && j < o->n; j++) {
            if (!isnan(l->d[row * o->n + j]))
                fault = "it wrote to padding rows";
        }
    }
    return fault;
}

tsr_status tsr_gemm_run_once(tsr_gemm_operands *o, const tsr_device_gemm *kernel, size_t rank, tsr_out out,
                             tsr_gemm_laid_out *l, bool *ran, tsr_err *err)
{
    tsr_err why = {0};
    memset(l->d, 0xFF, l->grouped.gemm.m * o->n * sizeof *l->d); /* NaN */
    const tsr_status status = tsr_device_run_grouped(kernel, rank, &l->grouped, out, &why);
    *ran = status == TSR_OK;
    if (status == TSR_E_UNSUPPORTED)
        return tsr_evidence_skip(o->evidence, o->name, why.msg, err);
    return status == TSR_OK ? TSR_OK : tsr_fail_with(err, status, &why);
}

const char *tsr_gemm_layout_words(tsr_gemm_layout layout)
{
    static const char *const kWords[] = {"", ", contiguous", ", masked"};
    return kWords[layout];
}

static tsr_status run_kernel(tsr_gemm_operands *o, const tsr_device_gemm *kernel, tsr_gemm_layout layout,
                             tsr_gemm_laid_out *l, tsr_err *err)
{
    char name[128];
    bool ran = false;
    for (tsr_out out = TSR_OUT_F32 + 1; out-- > 0;) { /* F32 first, because the other types may be derived from it */
        const double began = tsr_now();
        if ((o->c->outs >> out & 1) == 0)
            continue;
        if (!ran || !kernel->rounds_last) {
            TSR_TRY(tsr_gemm_run_once(o, kernel, 0, kernel->rounds_last ? TSR_OUT_F32 : out, l, &ran, err));
            if (!ran)
                return TSR_OK;
        }
        const char *const fault = tsr_gemm_gather(o, l);
        if (kernel->rounds_last)
            tsr_out_round(out, l->results, o->judged * o->n);
        o->evidence->phases[TSR_PHASE_KERNELS] += tsr_now() - began;
        snprintf(name, sizeof name, "%s%s, %s", kernel->name, tsr_gemm_layout_words(layout), tsr_out_name(out));
        const tsr_gemm_result result = {.name = name,
                                        .fault = fault,
                                        .accumulation = kernel->accumulation,
                                        .out = out,
                                        .d = l->results,
                                        .exact = o->exact,
                                        .ranks = 1,
                                        .k = o->k};
        TSR_TRY(tsr_gemm_judge(o, &result, err));
    }
    return TSR_OK;
}

tsr_status tsr_gemm_run_layout(tsr_gemm_operands *o, tsr_gemm_layout layout, tsr_err *err)
{
    const tsr_device *const device = o->c->options->device;
    tsr_gemm_laid_out whole = {0}, judged = {0};
    tsr_status status = tsr_gemm_lay_out(o, layout, true, &whole, err);
    if (status == TSR_OK)
        status = tsr_gemm_lay_out(o, layout, false, &judged, err);
    for (size_t i = 0; status == TSR_OK && i < device->n_gemms; i++)
        status = run_kernel(o, &device->gemms[i], layout, device->gemms[i].row_by_row ? &judged : &whole, err);
    tsr_gemm_laid_out_free(&whole);
    tsr_gemm_laid_out_free(&judged);
    return status;
}
