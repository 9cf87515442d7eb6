/* Compares results with those of deliberate mistakes. */
#include "verify/mla/mla_faults.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

double tsr_mla_relative(const double *x, const double *y, size_t n)
{
    double d2 = 0, x2 = 0;
    for (size_t i = 0; i < n; i++) {
        d2 += (x[i] - y[i]) * (x[i] - y[i]);
        x2 += x[i] * x[i];
    }
    return d2 == 0 ? 0 : sqrt(d2 / x2);
}

bool tsr_mla_within(const tsr_mla_fault_pair *p, double error)
{
    return !(error > p->max_relative) && !(-20 * log10(error) < p->min_sqnr) && isfinite(error);
}

/* Returns the squared distance of head `hx` of x from head `hy` of y, both [rows][heads][width]. */
static double distance(const tsr_mla_fault_pair *p, size_t heads, size_t hx, size_t hy)
{
    const size_t width = p->cols / heads;
    double sum = 0;
    for (size_t r = 0; r < p->rows; r++) {
        for (size_t i = 0; i < width; i++) {
            const double d = p->x[(r * heads + hx) * width + i] - p->y[(r * heads + hy) * width + i];
            sum += d * d;
        }
    }
    return sum;
}

bool tsr_mla_name_heads(const tsr_mla_fault_pair *p, size_t heads, size_t ranks, char *text, size_t size)
{
    const size_t share = ranks > 1 && heads % ranks == 0 ? heads / ranks : 0;
    size_t *const from = malloc((heads + 1) * sizeof *from);
    size_t moved = 0, first = 0;
    double total = 0, norm = 0;
    bool whole = share > 0;
    for (size_t h = 0; from != NULL && h < heads; h++) {
        double least = INFINITY;
        for (size_t k = 0; k < heads; k++) {
            const double d = distance(p, heads, k, h);
            if (d < least) {
                least = d;
                from[h] = k;
            }
        }
        total += least;
        first = from[h] != h && moved == 0 ? h : first;
        moved += from[h] != h;
        whole = whole && from[h] % share == h % share && from[h] / share == from[h - h % share] / share;
    }
    for (size_t i = 0; i < p->rows * p->cols; i++)
        norm += p->x[i] * p->x[i];
    const bool found = from != NULL && moved > 0 && tsr_mla_within(p, sqrt(total / norm));
    if (found && whole)
        snprintf(text, size, "heads of ranks are swapped: rank %zu holds those of rank %zu", first / share,
                 from[first] / share);
    else if (found)
        snprintf(text, size, "heads are permuted: %zu of %zu, head %zu holds head %zu", moved, heads, first,
                 from[first]);
    free(from);
    return found;
}

tsr_status tsr_mla_name_stage(const tsr_mla_model *m, const tsr_mla_batch *batch, const tsr_mla_stages *in,
                              tsr_mla_stage stage, const tsr_mla_fault_pair *p, size_t ranks, char *text, size_t size,
                              const char **named, tsr_err *err)
{
    *named = NULL;
    if (tsr_mla_within(p, tsr_mla_relative(p->x, p->y, p->rows * p->cols)))
        return TSR_OK;
    for (tsr_mla_fault f = TSR_MLA_RIGHT + 1; f < TSR_N_MLA_FAULTS && *named == NULL; f++) {
        double *wrong;
        if (!tsr_mla_fault_fits(f, stage))
            continue;
        const tsr_status status = tsr_mla_compute(m, batch, in, stage, f, false, &wrong, err);
        if (status == TSR_OK && tsr_mla_within(p, tsr_mla_relative(wrong, p->y, p->rows * p->cols)))
            *named = tsr_mla_fault_text(f);
        free(wrong);
        TSR_TRY(status);
    }
    if (*named == NULL && p->cols % m->heads == 0 && stage >= TSR_STAGE_QUERY && stage < TSR_STAGE_OUTPUT &&
        (stage < TSR_STAGE_KV_A || stage > TSR_STAGE_K_ROPE) && tsr_mla_name_heads(p, m->heads, ranks, text, size))
        *named = text;
    return TSR_OK;
}

/* Returns the name of the weight that a stage uses. */
static const char *tensor_of(const tsr_mla_model *m, tsr_mla_stage stage)
{
    switch (stage) {
    case TSR_STAGE_Q_A:
        return m->q_a->values->name;
    case TSR_STAGE_Q_NORM:
        return "q_a_layernorm";
    case TSR_STAGE_QUERY:
        return m->q->values->name;
    case TSR_STAGE_KV_A:
        return m->kv_a->values->name;
    case TSR_STAGE_LATENT:
        return "kv_a_layernorm";
    case TSR_STAGE_OUTPUT:
        return m->o->values->name;
    case TSR_STAGE_INDEX_Q:
        return m->index_q->values->name;
    case TSR_STAGE_INDEX_K:
        return m->index_k->values->name;
    case TSR_STAGE_INDEX_WEIGHTS:
        return m->index_weights->values->name;
    default:
        return m->has_parts ? "w_kc or w_vc" : "kv_b_proj";
    }
}

tsr_status tsr_mla_check_finite(const tsr_mla_model *m, const tsr_mla_batch *b, const tsr_mla_stages *stages,
                                const char *subject, bool *finite, tsr_evidence *evidence, tsr_err *err)
{
    char text[256];
    const tsr_judgement j = {.subject = subject,
                             .what = "values of the checkpoint",
                             .kind = TSR_ERROR_CHECKPOINT,
                             .of_bound = -1,
                             .of_expected = -1,
                             .fault = text};
    *finite = true;
    for (tsr_mla_stage s = 0; s < TSR_N_STAGES; s++) {
        const size_t n = stages->of[s] == NULL ? 0 : tsr_mla_stage_rows(b, s) * tsr_mla_stage_cols(m, b, s);
        for (size_t i = 0; i < n; i++) {
            if (isfinite(stages->of[s][i]))
                continue;
            snprintf(text, sizeof text,
                     "%s gives %g in stage %s: one of its scales or values is NaN, infinite or too large",
                     tensor_of(m, s), fabs(stages->of[s][i]), tsr_mla_stage_name(s));
            *finite = false;
            return tsr_evidence_add(evidence, &j, err);
        }
    }
    return TSR_OK;
}
