/* Prints metrics with their units. A metric that a judgement does not have is omitted, or null in JSON. */
#include "cli/show/evidence_text.h"

#include "cli/io/output.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void judgement_json(tsr_text *t, const tsr_judgement *j)
{
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "subject", j->subject);
    tsr_json_member_string(t, "kind", tsr_error_kind_name(j->kind));
    tsr_json_member_string(t, "what", j->what);
    tsr_json_member_bool(t, "passed", j->fault == NULL);
    tsr_json_member_string(t, "fault", j->fault);
    tsr_metrics_json(t, &j->metrics);
    tsr_json_member_string(t, "max_abs_error_at", j->worst_at);
    tsr_json_member_number(t, "of_bound", j->of_bound >= 0 ? j->of_bound : NAN);
    tsr_json_member_number(t, "of_expected_rms", j->of_expected >= 0 ? j->of_expected : NAN);
    if (j->bias.known)
        tsr_json_member_number(t, "bias_sigmas", j->bias.sigmas);
    if (j->limit != 0)
        tsr_json_member_number(t, "limit_db", j->limit);
    if (j->seconds > 0)
        tsr_json_member_number(t, "kernel_seconds", j->seconds);
    if (j->choices > 0)
        tsr_json_member_number(t, "agreement", (double)j->agreed / (double)j->choices);
    if (j->kl.known) {
        tsr_json_member_number(t, "kl_mean_nats", j->kl.mean);
        tsr_json_member_number(t, "kl_max_nats", j->kl.max);
    }
    tsr_json_end_object(t);
}

void tsr_evidence_json(tsr_text *t, const tsr_evidence *e)
{
    tsr_json_member_number(t, "seconds", e->seconds);
    if (e->bytes_read > 0)
        tsr_json_member_u64(t, "bytes_read", e->bytes_read);
    tsr_json_member_object(t, "phase_seconds", true);
    for (tsr_phase phase = 0; phase < TSR_N_PHASES; phase++)
        tsr_json_member_number(t, tsr_phase_name(phase), e->phases[phase]);
    tsr_json_end_object(t);
    tsr_json_member_array(t, "judgements", false);
    for (size_t i = 0; i < e->count; i++)
        judgement_json(t, &e->items[i]);
    tsr_json_end_array(t);
    tsr_json_member_array(t, "skipped", false);
    for (size_t i = 0; i < e->n_skipped; i++) {
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "subject", e->skipped[i].subject);
        tsr_json_member_string(t, "why", e->skipped[i].why);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

void tsr_judgement_print(const tsr_judgement *j)
{
    const tsr_metrics *const m = &j->metrics;
    tsr_print("  ");
    tsr_print_word(j->fault == NULL ? TSR_GOOD : TSR_BAD, j->fault == NULL ? "ok" : "FAIL", 5);
    tsr_print("%-38s", j->what);
    if (m->elements > 0 && m->differ == 0)
        tsr_print(" %llu values, all equal", (unsigned long long)m->elements);
    else if (m->elements > 0)
        tsr_print(" SQNR %6.2f dB  relative %.3g  calc_diff %.3g  cosine %.8f  max %.3g%s%s", tsr_metrics_sqnr(m),
                  tsr_metrics_relative(m), tsr_metrics_calc_diff(m), tsr_metrics_cosine(m), m->max_abs,
                  j->worst_at[0] != '\0' ? " at " : "", j->worst_at);
    if (j->of_bound >= 0)
        tsr_print("  %.3g of the bound", j->of_bound);
    if (j->of_expected >= 0)
        tsr_print(", %.2f of the expected RMS", j->of_expected);
    if (j->seconds > 0)
        tsr_print(", %.1f us", j->seconds * 1e6);
    tsr_print("\n");
    if (j->fault != NULL)
        tsr_print("       %s\n", j->fault);
}

void tsr_subject_print(const tsr_judgement *judgements, size_t n)
{
    size_t failed = 0, costs = 0, bounded = 0, exact = 0;
    double sqnr = INFINITY, of_bound = 0, of_expected = 0;
    for (size_t i = 0; i < n; i++) {
        const tsr_judgement *const j = &judgements[i];
        const bool kernel = j->kind == TSR_ERROR_KERNEL;
        failed += j->fault != NULL;
        costs += j->kind == TSR_ERROR_QUANTIZATION && j->metrics.elements > 0;
        bounded += kernel && j->of_bound >= 0;
        exact += kernel && j->of_bound < 0 && j->metrics.differ == 0;
        if (j->kind == TSR_ERROR_QUANTIZATION && j->metrics.elements > 0)
            sqnr = fmin(sqnr, tsr_metrics_sqnr(&j->metrics));
        of_bound = kernel ? fmax(of_bound, j->of_bound) : of_bound;
        of_expected = kernel ? fmax(of_expected, j->of_expected) : of_expected;
    }
    tsr_print_word(failed == 0 ? TSR_GOOD : TSR_BAD, failed == 0 ? "ok" : "FAIL", 5);
    tsr_print("%s:", judgements->subject);
    if (costs > 0)
        tsr_print(" quantization %s%.2f dB;", costs > 1 ? "at worst " : "", sqnr);
    if (bounded > 0)
        tsr_print(" %zu runs of kernels at most %.3g of the bound, %.2f of the expected RMS;", bounded, of_bound,
                  of_expected);
    if (exact > 0)
        tsr_print(" %zu bit for bit;", exact);
    if (failed > 0)
        tsr_print(" %zu of %zu judgements beyond their limits\n", failed, n);
    else
        tsr_print(" all %zu judgements within their limits\n", n);
    for (size_t i = 0; i < n; i++) {
        if (judgements[i].fault != NULL)
            tsr_judgement_print(&judgements[i]);
    }
}

void tsr_evidence_print_end(const tsr_evidence *e)
{
    for (size_t i = 0; i < e->n_skipped; i++)
        tsr_print("skipped %s: %s\n", e->skipped[i].subject, e->skipped[i].why);
    if (e->failed > 0)
        tsr_print("%zu of %zu judgements are beyond their limits\n", e->failed, e->count);
    else
        tsr_print("all %zu judgements are within their limits\n", e->count);
}
