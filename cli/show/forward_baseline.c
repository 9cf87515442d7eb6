/* Runs the baseline of `verify forward`, and shows what the model gains over it. */
#include "cli/show/forward_baseline.h"

#include "cli/io/output.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <string.h>

/* Returns the judgement of a subject, or NULL. */
static const tsr_judgement *find(const tsr_evidence *evidence, const char *subject, const char *what)
{
    for (size_t i = 0; i < evidence->count; i++) {
        const tsr_judgement *const j = &evidence->items[i];
        if (strcmp(j->subject, subject) == 0 && strcmp(j->what, what) == 0)
            return j;
    }
    return NULL;
}

/* Compares divergences, and marks the logits as a fault if the model's is not the smaller one. */
static void compare_logits(tsr_forward_baseline *b, tsr_evidence *model, tsr_judgement *mine,
                           const tsr_judgement *other)
{
    b->kl[0] = other->kl.mean;
    b->kl[1] = mine->kl.mean;
    b->agreement = (double)other->agreed / (double)other->choices;
    if (!tsr_forward_baseline_is_better(b) || mine->fault != NULL)
        return;
    mine->fault = "the predictions of the baseline are nearer to those of the source";
    model->failed++;
}

static void compare(tsr_forward_baseline *b, tsr_evidence *model)
{
    for (size_t i = 0; i < model->count; i++) {
        tsr_judgement *const mine = &model->items[i];
        const tsr_judgement *const other = find(&b->evidence, mine->subject, mine->what);
        if (strcmp(mine->what, TSR_FORWARD_LOGITS) == 0)
            compare_logits(b, model, mine, other);
        if (strcmp(mine->what, TSR_FORWARD_LAYER) != 0 || !(mine->metrics.sum_d2 > 0 && other->metrics.sum_d2 > 0))
            continue;
        const double gain = 10 * log10(other->metrics.sum_d2 / mine->metrics.sum_d2);
        if (b->least_at == NULL || gain < b->least_db) {
            b->least_db = gain;
            b->least_at = mine->subject;
        }
        b->most_db = b->layers == 0 ? gain : fmax(b->most_db, gain);
        b->layers++;
        b->n_worse += gain < 0;
    }
}

tsr_status tsr_forward_baseline_run(tsr_forward_baseline *b, const tsr_forward_request *request, const tsr_side *side,
                                    tsr_evidence *model, tsr_err *err)
{
    tsr_forward_request own = *request;
    own.model = side;
    TSR_TRY(tsr_check_forward(&own, &b->evidence, &b->figures, err));
    compare(b, model);
    return TSR_OK;
}

bool tsr_forward_baseline_is_better(const tsr_forward_baseline *b)
{
    return b->path != NULL && !(b->kl[1] <= b->kl[0]);
}

void tsr_forward_baseline_print(const tsr_forward_baseline *b)
{
    const tsr_forward_predictions *const p = &b->figures.predictions;
    tsr_print("       baseline %s: KL divergence %.3g nats, of DST %.3g", b->path, b->kl[0], b->kl[1]);
    if (!isnan(p->perplexity[1]))
        tsr_print("; perplexity %.4f +- %.4f", p->perplexity[1], p->perplexity_error[1]);
    tsr_print("; the most likely token is the same in %.2f %%\n", 100 * b->agreement);
    if (b->least_at != NULL)
        tsr_print(
            "       layers alone: the error is %.2f to %.2f dB below the baseline's, least in %s; %zu of %zu are above it\n",
            b->least_db, b->most_db, b->least_at, b->n_worse, b->layers);
}

void tsr_forward_baseline_summarize(tsr_text *t, const tsr_forward_baseline *b)
{
    if (b->path == NULL)
        return;
    tsr_text_printf(t, "; KL divergence %.3g nats, of the baseline %.3g", b->kl[1], b->kl[0]);
    if (b->least_at != NULL)
        tsr_text_printf(t, "; gain of layers %.2f to %.2f dB", b->least_db, b->most_db);
}

void tsr_forward_baseline_json(tsr_text *t, const tsr_forward_baseline *b)
{
    if (b->path == NULL) {
        tsr_json_member_string(t, "baseline", NULL);
        return;
    }
    tsr_json_member_object(t, "baseline", false);
    tsr_json_member_string(t, "checkpoint", b->path);
    tsr_json_member_number(t, "kl_mean_nats", b->kl[0]);
    tsr_json_member_number(t, "agreement", b->agreement);
    tsr_json_member_number(t, "perplexity", b->figures.predictions.perplexity[1]);
    tsr_json_member_number(t, "perplexity_error", b->figures.predictions.perplexity_error[1]);
    tsr_json_member_u64(t, "layers", b->layers);
    tsr_json_member_u64(t, "layers_worse", b->n_worse);
    tsr_json_member_number(t, "least_gain_db", b->layers == 0 ? NAN : b->least_db);
    tsr_json_member_number(t, "most_gain_db", b->layers == 0 ? NAN : b->most_db);
    tsr_json_member_string(t, "least_gain_at", b->least_at);
    tsr_json_end_object(t);
}

void tsr_forward_baseline_free(tsr_forward_baseline *b)
{
    tsr_evidence_free(&b->evidence);
    *b = (tsr_forward_baseline){.path = NULL};
}
