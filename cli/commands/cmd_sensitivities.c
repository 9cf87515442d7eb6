/* Implements `tessera sensitivities`: measures how much each group of weights matters to a model's predictions. */
#include "cli/commands/commands.h"
#include "cli/help/next_command.h"
#include "cli/io/output.h"
#include "cli/io/results.h"
#include "cli/show/pass_options.h"
#include "common/text.h"
#include "convert/search/scheme_plan.h"
#include "formats/json/json_write.h"
#include "quantize/policy/policy_groups.h"
#include "verify/sensitivity/sensitivity.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN = 10 };

typedef struct measuring {
    const char *src, *against, *out, *importance_path;
    tsr_pass_options pass;

    tsr_checkpoint *checkpoints[2]; /* SRC, and the one of --against */
    tsr_weights weights[2];
    tsr_side sides[2];
    tsr_importance importance;
    uint32_t *group_of; /* [tensors of SRC] */
    tsr_sensitivity *groups;
    size_t n, n_measured;
    double sum, otherwise; /* the sum of the divergences, and the median of the sensitivities */
    tsr_forward_figures figures;
} measuring;

static const char kHelp[] =
    "tessera sensitivities SRC --against DST --tokens FILE -o FILE.json [options]\n\n"
    "Measures how much the quantization of each layer changes the model's predictions. DST is SRC, quantized\n"
    "by any scheme. For each group of weights that share a scheme, the tokens run through SRC with this\n"
    "group's weights from DST, and the divergence of the predictions from SRC's is measured in nats. A\n"
    "sensitivity is that divergence divided by the error of the weights. plan-schemes --sensitivity predicts\n"
    "from it the divergence under other schemes.\n\n"
    "Families: those of tessera verify forward.\n\n"
    "Examples:\n"
    "  tessera quantize Llama-3.1-8B -o probe --scheme int4-weight-only\n"
    "  tessera sensitivities Llama-3.1-8B --against probe --tokens text.txt -o sensitivities.json\n"
    "  tessera plan-schemes Llama-3.1-8B --bits 5 --sensitivity sensitivities.json -o rules.json\n\n"
    "Options:\n";

static void set_defaults(tsr_command_context *c)
{
    measuring *const a = c->job;
    a->pass = tsr_pass_options_defaults();
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    measuring *const a = c->job;
    const tsr_option own[] = {
        {"--against", TSR_OPT_TEXT, &a->against, "DST", "the quantized checkpoint whose weights are tried"},
        {"-o", TSR_OPT_TEXT, &a->out, "FILE", "write the sensitivities as JSON ('-': stdout)"},
        {"--importance", TSR_OPT_TEXT, &a->importance_path, "FILE",
         "mean squares of the layers' inputs, by which errors of weights are weighted (docs/importance.md)"},
        {0},
    };
    tsr_options_append(options, own);
    tsr_pass_options_append(&a->pass, options);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    measuring *const a = c->job;
    a->src = c->words[0];
    if (a->src == NULL || a->against == NULL || a->pass.tokens == NULL || a->out == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s: tessera sensitivities SRC --against DST --tokens FILE -o FILE.json",
                        a->src == NULL           ? "no checkpoint given"
                        : a->against == NULL     ? "no quantized checkpoint given"
                        : a->pass.tokens == NULL ? "no text given"
                                                 : "no output given");
    return tsr_pass_options_check(&a->pass, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const measuring *const a = c->job;
    paths->sources[0] = a->src;
    paths->sources[1] = a->against;
    paths->sources[2] = a->pass.tokens;
    paths->sources[3] = a->importance_path;
    paths->more[0] = (tsr_output){"-o", a->out};
    paths->unconfined = tsr_pass_unconfined(&a->pass);
}

/* Lists the groups of SRC that have a weight with codes in the other checkpoint. */
static tsr_status find_groups(measuring *a, tsr_err *err)
{
    const tsr_checkpoint *const src = a->checkpoints[0];
    const size_t n = src->tensors.count;
    bool *const coded = calloc(n + 1, sizeof *coded);
    a->group_of = calloc(n + 1, sizeof *a->group_of);
    a->groups = calloc(n + 1, sizeof *a->groups);
    tsr_status status = coded == NULL || a->group_of == NULL || a->groups == NULL
                            ? tsr_out_of_memory(err, "for groups of weights")
                            : tsr_policy_together(src, a->group_of, err);
    for (size_t i = 0; status == TSR_OK && i < n; i++) {
        const tsr_weight *const w = tsr_weights_find(&a->weights[1], a->checkpoints[1], src->tensors.items[i].name);
        coded[a->group_of[i]] |= w != NULL && w->coding != TSR_PLAIN;
    }
    for (size_t i = 0; status == TSR_OK && i < n; i++) {
        if (coded[i])
            a->groups[a->n++] = (tsr_sensitivity){.group = (uint32_t)i};
    }
    free(coded);
    if (status == TSR_OK && a->n == 0)
        return tsr_fail(err, TSR_E_NOTHING, "%s: none of its weights is quantized; 'tessera quantize' makes one",
                        a->against);
    return status;
}

static tsr_status open_both(tsr_command_context *c, tsr_err *err)
{
    measuring *const a = c->job;
    const char *const paths[] = {a->src, a->against};
    for (size_t i = 0; i < 2; i++) {
        TSR_TRY(tsr_checkpoint_open(&a->checkpoints[i], paths[i], c->common.ignore.items, c->common.ignore.count, err));
        TSR_TRY(tsr_weights_pair(&a->weights[i], a->checkpoints[i], (tsr_block){0, 0}, err));
        a->sides[i] = (tsr_side){a->checkpoints[i], &a->weights[i]};
    }
    if (a->importance_path != NULL)
        TSR_TRY(tsr_importance_read(&a->importance, a->importance_path, err));
    return find_groups(a, err);
}

/* ---- running ---- */

static double sensitivity_of(const tsr_sensitivity *g)
{
    return g->kl / g->error;
}

/* Returns true if a sensitivity follows from the group: its weights are in the pass and differ from the source's. */
static bool is_known(const tsr_sensitivity *g)
{
    return g->measured && g->error > 0 && g->kl > 0;
}

/* Computes the sum of the divergences, and the median of the sensitivities. */
static tsr_status sum_up(measuring *a, tsr_err *err)
{
    double *const known = malloc((a->n + 1) * sizeof *known);
    if (known == NULL)
        return tsr_out_of_memory(err, "for sensitivities");
    for (size_t i = 0; i < a->n; i++) {
        a->sum += a->groups[i].kl;
        if (is_known(&a->groups[i]))
            known[a->n_measured++] = sensitivity_of(&a->groups[i]);
    }
    qsort(known, a->n_measured, sizeof *known, tsr_by_number);
    a->otherwise = known[a->n_measured / 2];
    free(known);
    if (a->n_measured == 0)
        return tsr_fail(err, TSR_E_NOTHING, "%s: none of its quantized weights changes a prediction", a->against);
    return TSR_OK;
}

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    measuring *const a = c->job;
    const tsr_run_options options = tsr_terminal_run_options(terminal, c->common.threads, a->pass.memory);
    const tsr_sensitivity_request request = {.forward = tsr_pass_request(&a->pass, &a->sides[0], options),
                                             .quantized = &a->sides[1],
                                             .group_of = a->group_of,
                                             .importance = a->importance_path == NULL ? NULL : &a->importance};
    tsr_text text = {0};
    TSR_TRY(tsr_sensitivities_measure(&request, a->groups, a->n, &a->figures, err));
    TSR_TRY(sum_up(a, err));
    tsr_result_json(&text, c);
    const tsr_status status = tsr_write_report(a->out, &text, err);
    tsr_text_free(&text);
    return status;
}

/* ---- the result ---- */

static const tsr_tensor *first_of(const measuring *a, const tsr_sensitivity *g)
{
    return &a->checkpoints[0]->tensors.items[g->group];
}

/* Returns the group with the next smaller divergence than `last` (NULL: the largest); among equals, the next. NULL:
 * none. */
static const tsr_sensitivity *next_below(const measuring *a, const tsr_sensitivity *last)
{
    const tsr_sensitivity *best = NULL;
    for (size_t i = 0; i < a->n; i++) {
        const tsr_sensitivity *const g = &a->groups[i];
        const bool later = last == NULL || g->kl < last->kl || (g->kl <= last->kl && g > last);
        if (g->measured && later && (best == NULL || g->kl > best->kl))
            best = g;
    }
    return best;
}

static tsr_status print(tsr_command_context *c, tsr_err *err)
{
    const measuring *const a = c->job;
    const tsr_sensitivity *g = NULL;
    (void)err;
    tsr_print("%zu tokens in %zu sequences, on %s: %zu groups of weights of ", a->figures.tokens, a->figures.sequences,
              a->figures.device, a->n);
    tsr_print_path(a->against);
    tsr_print(", each tried alone\n\n    KL in nats   worst token   error of weights   group\n");
    for (size_t i = 0; i < SHOWN && (g = next_below(a, g)) != NULL; i++)
        tsr_print("    %10.3g   %11.3g   %16.3g   %s\n", g->kl, g->kl_max, g->error, first_of(a, g)->name);
    tsr_print("\nsum of the divergences: %.4g nats, a prediction for all of them together\n", a->sum);
    if (a->n_measured < a->n)
        tsr_print("%zu group%s outside of the pass or without effect: plan-schemes uses the median of the others\n",
                  a->n - a->n_measured, tsr_plural(a->n - a->n_measured));
    if (tsr_is_stdout(a->out))
        return TSR_OK;
    tsr_print("next: tessera plan-schemes ");
    tsr_print_path(a->src);
    tsr_print(" --bits 5 --sensitivity ");
    tsr_print_path(a->out);
    if (a->importance_path != NULL) {
        tsr_print(" --importance ");
        tsr_print_path(a->importance_path);
    }
    tsr_print(" -o rules.json\n");
    return TSR_OK;
}

/* Writes the patterns of the tensors of a group. */
static void write_match(tsr_text *t, const measuring *a, const tsr_sensitivity *g)
{
    const tsr_checkpoint *const src = a->checkpoints[0];
    const tsr_tensor **const tensors = malloc((src->tensors.count + 1) * sizeof(tsr_tensor *));
    size_t n = 0;
    t->failed = t->failed || tensors == NULL;
    for (size_t i = g->group; tensors != NULL && i < src->tensors.count; i++) {
        if (a->group_of[i] == g->group)
            tensors[n++] = &src->tensors.items[i];
    }
    tsr_json_member_array(t, "match", true);
    if (tensors != NULL)
        tsr_scheme_patterns(tensors, n, t);
    tsr_json_end_array(t);
    free(tensors);
}

static void write_json(const tsr_command_context *c, tsr_text *t)
{
    const measuring *const a = c->job;
    tsr_json_member_string(t, "checkpoint", a->src);
    tsr_json_member_string(t, "quantized", a->against);
    tsr_json_member_u64(t, "sequences", a->figures.sequences);
    tsr_json_member_u64(t, "tokens", a->figures.tokens);
    tsr_json_member_string(t, "device", a->figures.device);
    tsr_json_member_bool(t, "weighted", a->importance_path != NULL);
    tsr_json_member_number(t, "kl_sum_nats", a->sum);
    tsr_json_member_array(t, "groups", false);
    for (size_t i = 0; i < a->n; i++) {
        const tsr_sensitivity *const g = &a->groups[i];
        if (!is_known(g))
            continue;
        tsr_json_begin_object(t, false);
        tsr_json_member_string(t, "name", first_of(a, g)->name);
        write_match(t, a, g);
        tsr_json_member_number(t, "kl_mean_nats", g->kl);
        tsr_json_member_number(t, "kl_max_nats", g->kl_max);
        tsr_json_member_number(t, "error", g->error);
        tsr_json_member_number(t, "sensitivity", sensitivity_of(g));
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_member_number(t, "otherwise", a->otherwise);
}

static void close_job(tsr_command_context *c)
{
    measuring *const a = c->job;
    free(a->groups);
    free(a->group_of);
    tsr_importance_free(&a->importance);
    for (size_t i = 0; i < 2; i++) {
        tsr_weights_free(&a->weights[i]);
        tsr_checkpoint_close(a->checkpoints[i]);
    }
}

const tsr_command tsr_command_sensitivities = {
    .name = "sensitivities",
    .summary = "effect of each layer's errors on the predictions",
    .schema = "tessera-sensitivities/1",
    TSR_COMMAND(1, TSR_TAKES_IGNORE_FILE | TSR_TAKES_THREADS | TSR_TAKES_PROGRESS, measuring),
    .set_defaults = set_defaults,
    .open = open_both,
    .print = print,
    .write_json = write_json,
};
