/* Implements `tessera plan-schemes`: its options, the table of budgets, and the rules file. */
#include "cli/commands/commands.h"
#include "cli/help/help.h"
#include "cli/help/next_command.h"
#include "cli/io/globs.h"
#include "cli/io/loader_options.h"
#include "cli/io/output.h"
#include "convert/jobs/quantize_preview.h"
#include "convert/plans/quantize_plan.h"
#include "convert/search/rules_match.h"
#include "convert/search/scheme_plan.h"
#include "formats/json/json_write.h"
#include "report/read/read.h"
#include "report/write/terminal/terminal_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUDGETS = 9 };

typedef struct planning {
    const char *src, *rules, *sensitivity, *schemes, *bits_text, *importance_path;
    double bits;                   /* 0: not given */
    bool wanted[TSR_SCHEMES], all; /* all: --schemes all */
    tsr_target_options target;
    uint64_t max_bytes; /* 0: not given */

    tsr_checkpoint *checkpoint;
    tsr_importance importance;
    tsr_scheme_rules weights; /* weights that --sensitivity lists */
    tsr_rules_match match;    /* in `arena` */
    tsr_arena arena;
    tsr_scheme_plan plan;
    size_t *picked, *scratch; /* [plan.n]: the choice, and that of another budget */
    tsr_choice chosen;
    uint64_t budget;
    tsr_result result; /* the table */
} planning;

static const char kHelp[] =
    "tessera plan-schemes SRC --max-bytes SIZE|--bits B [options]\n\n"
    "Chooses a scheme for each weight so that the checkpoint stays within a budget and the sum of errors\n"
    "is least. Tensors that loaders run as one layer get one scheme, and so do the experts of a layer.\n"
    "Each weight is read once. No checkpoint is written: the output is a rules file for tessera quantize\n"
    "--rules.\n\n"
    "The error of a weight is its squared error divided by the sum of its squares. With a result of\n"
    "tessera sensitivities, it is the predicted divergence of the model's predictions. If the budget is too\n"
    "small, the exit code is 1, and the least possible budget is printed.\n\n"
    "Examples:\n"
    "  tessera plan-schemes DeepSeek-V3-BF16 --max-bytes 380GB -o rules.json\n"
    "  tessera quantize DeepSeek-V3-BF16 -o out --rules rules.json\n"
    "  tessera plan-schemes model --bits 5 --sensitivity sensitivities.json -o rules.json\n"
    "  tessera plan-schemes model --bits 4.75 --json -\n"
    "  tessera plan-schemes model --bits 5 --schemes nvfp4-weight-only,fp8-channel --for vllm --gpu h100\n\n"
    "Options:\n";

/* ---- options ---- */

/* Selects every scheme that needs no measured ranges. Of FP8, blocks cannot be mixed with rows and tensors. */
static void take_all(planning *a)
{
    for (size_t k = 0; tsr_scheme_mixed(k) != TSR_SCHEMES; k++) {
        const tsr_scheme scheme = tsr_scheme_mixed(k);
        const tsr_scheme_row *const row = tsr_scheme_row_of(scheme);
        a->wanted[scheme] =
            tsr_scheme_measured(scheme) == scheme && row->form != TSR_FORM_FP8_ROWS && row->form != TSR_FORM_FP8_TENSOR;
    }
}

static tsr_status parse_schemes(planning *a, tsr_err *err)
{
    char word[64];
    a->all = strcmp(a->schemes, "all") == 0;
    if (a->all)
        take_all(a);
    if (a->all)
        return TSR_OK;
    for (const char *at = a->schemes;; at++) {
        const size_t size = strcspn(at, ",");
        tsr_scheme scheme;
        snprintf(word, sizeof word, "%.*s", (int)(size < sizeof word ? size : sizeof word - 1), at);
        if (tsr_mixed_scheme_parse(word, &scheme, err) != TSR_OK)
            return tsr_prepend(err, TSR_E_USAGE, "--schemes");
        if (a->wanted[scheme])
            return tsr_fail(err, TSR_E_USAGE, "--schemes: '%s' is given twice", word);
        a->wanted[scheme] = true;
        at += size;
        if (*at == '\0')
            break;
    }
    return tsr_mixed_schemes_check(a->wanted, TSR_DIALECT_COMPRESSED_TENSORS, err) == TSR_OK
               ? TSR_OK
               : tsr_prepend(err, TSR_E_USAGE, "--schemes");
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    planning *const a = c->job;
    a->src = c->words[0];
    TSR_TRY(tsr_target_options_check(&a->target, err));
    if (a->src == NULL)
        return tsr_fail(err, TSR_E_USAGE, "no checkpoint given: tessera plan-schemes SRC --max-bytes SIZE");
    if ((a->max_bytes == 0) == (a->bits_text == NULL))
        return tsr_fail(err, TSR_E_USAGE, "no budget given: exactly one of --max-bytes SIZE and --bits B is needed");
    if (a->bits_text != NULL)
        TSR_TRY(tsr_parse_number("--bits", a->bits_text, TSR_ANY_NUMBER, &a->bits, err));
    if (a->bits_text != NULL && !(a->bits > 0 && a->bits <= 32))
        return tsr_fail(err, TSR_E_USAGE, "--bits: a number above 0, and at most 32");
    return parse_schemes(a, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const planning *const a = c->job;
    paths->sources[0] = a->src;
    paths->sources[1] = a->sensitivity;
    paths->sources[2] = a->importance_path;
    paths->more[0] = (tsr_output){"-o", a->rules};
}

static void set_defaults(tsr_command_context *c)
{
    planning *const a = c->job;
    a->schemes = "all";
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    planning *const a = c->job;
    const tsr_option own[] = {
        {"--max-bytes", TSR_OPT_SIZE, &a->max_bytes, "SIZE",
         "largest number of bytes of all tensors, including scales and tensors that stay as they are"},
        {"--bits", TSR_OPT_TEXT, &a->bits_text, "B",
         "the budget as an average number of bits of the weights to choose for, including scales"},
        {"--schemes", TSR_OPT_TEXT, &a->schemes, "LIST",
         "to choose from, with commas: names of schemes, with options as in rules files ('int4-weight-only --group-size "
         "32'), and bf16: as it is (all: every scheme without nvfp4, whose inputs need ranges, fp8-channel and "
         "fp8-tensor)"},
        {"--importance", TSR_OPT_TEXT, &a->importance_path, "FILE",
         "mean squares of the layers' inputs, by which errors are weighted (docs/importance.md)"},
        {"--sensitivity", TSR_OPT_TEXT, &a->sensitivity, "FILE",
         "a result of tessera sensitivities; or weights of errors, {\"GLOB\": 4}, of which the first that matches counts"},
        {0},
    };
    const tsr_option last[] = {
        {"-o", TSR_OPT_TEXT, &a->rules, "FILE", "write the rules file for tessera quantize --rules ('-': stdout)"},
        {0},
    };
    tsr_options_append(options, own);
    tsr_target_options_append(&a->target, options);
    tsr_options_append(options, last);
}

/* ---- the result ---- */

static double gap_of(const tsr_choice *c)
{
    return c->error > 0 ? (c->error - c->bound) / c->error : 0;
}

/* Chooses for the i-th budget of the table. Budgets go in equal steps from the least possible to the largest useful
 * one. */
static tsr_status choose_at(const planning *p, unsigned i, tsr_choice *choice, tsr_err *err)
{
    const uint64_t least = p->chosen.least, most = tsr_scheme_plan_most(&p->plan);
    const uint64_t budget = i + 1 == BUDGETS ? most : least + (uint64_t)((double)(most - least) * i / (BUDGETS - 1));
    return tsr_scheme_plan_choose(&p->plan, budget, p->scratch, choice, err);
}

/* Returns the share of the weights that have each scheme: "72 % nvfp4, 28 % fp8-block". NULL: out of memory. */
static const char *shares(const tsr_scheme_plan *plan, const size_t *picked, tsr_arena *arena)
{
    const char *text = "";
    for (size_t k = 0; text != NULL && tsr_scheme_mixed(k) != TSR_SCHEMES; k++) {
        const tsr_scheme scheme = tsr_scheme_mixed(k);
        uint64_t weights = 0;
        for (size_t i = 0; i < plan->n; i++)
            weights += plan->groups[i].schemes[picked[i]] == scheme ? plan->groups[i].weights : 0;
        if (weights > 0)
            text = tsr_arena_printf(arena, "%s%s%.0f %% %s", text, *text == '\0' ? "" : ", ",
                                    100 * (double)weights / (double)plan->weights, tsr_scheme_spelling(scheme));
    }
    return text;
}

static tsr_status add_row(planning *p, tsr_plan_kind kind, const tsr_choice *c, const char *schemes, tsr_err *err)
{
    const tsr_plan_row row = {.kind = kind,
                              .bytes = c->bytes,
                              .bits = tsr_scheme_plan_bits(&p->plan, c->bytes),
                              .error = c->error,
                              .schemes = schemes};
    TSR_TRY(tsr_result_add_plan_row(&p->result, &row, err));
    return tsr_arena_status(&p->result.arena, TSR_OK, err);
}

/* Fills the model of the result: the table. */
static tsr_status fill_result(planning *p, tsr_err *err)
{
    tsr_arena *const arena = &p->result.arena;
    tsr_choice c;
    for (unsigned i = 0; i < BUDGETS; i++) {
        TSR_TRY(choose_at(p, i, &c, err));
        TSR_TRY(add_row(p, TSR_PLAN_BUDGET, &c, shares(&p->plan, p->scratch, arena), err));
    }
    for (size_t k = 0; tsr_scheme_mixed(k) != TSR_SCHEMES; k++) {
        const tsr_scheme scheme = tsr_scheme_mixed(k);
        c = tsr_scheme_plan_alone(&p->plan, scheme);
        if (p->wanted[scheme])
            TSR_TRY(add_row(p, TSR_PLAN_ALONE, &c, tsr_scheme_spelling(scheme), err));
    }
    return add_row(p, TSR_PLAN_CHOSEN, &p->chosen, shares(&p->plan, p->picked, arena), err);
}

static void print_next(const planning *a)
{
    tsr_print("next: tessera quantize ");
    tsr_print_path(a->src);
    tsr_print(" -o DST --rules ");
    tsr_print_path(a->rules);
    if (a->importance_path != NULL) {
        tsr_print(" --importance ");
        tsr_print_path(a->importance_path);
    }
    tsr_print("%s\n", a->wanted[TSR_SCHEME_NVFP4] ? " --activations FILE" : "");
}

static tsr_status print(tsr_command_context *context, tsr_err *err)
{
    const planning *const p = context->job;
    const tsr_style style = tsr_command_style();
    char bytes[32];
    tsr_text table = {0};
    tsr_print("%zu groups of %zu weights to choose for; %s of other tensors stay as they are\n", p->plan.n,
              p->plan.n_tensors, tsr_bytes_text((double)p->plan.fixed, bytes));
    tsr_draw_plan(&table, &style, &p->result);
    TSR_TRY(tsr_print_drawn(&table, err));
    if (gap_of(&p->chosen) > 0)
        tsr_print("no choice within %llu bytes can have an error below %.6g; this one is within %.2g %% of the best\n",
                  U64(p->budget), p->chosen.bound, 100 * gap_of(&p->chosen));
    else
        tsr_print("no choice within %llu bytes has a smaller error\n", U64(p->budget));
    if (p->weights.measured)
        tsr_print("errors are predicted divergences in nats, by %s\n", p->sensitivity);
    if (p->sensitivity == NULL)
        tsr_print("errors of weights do not say which layers matter to the model: tessera sensitivities measures "
                  "that (docs/sensitivities.md)\n");
    if (p->rules == NULL)
        tsr_print("-o FILE writes it as rules for tessera quantize --rules\n");
    else
        print_next(p);
    return TSR_OK;
}

/* ---- JSON ---- */

static void write_choice(tsr_text *t, const tsr_plan_row *row)
{
    tsr_json_member_u64(t, "bytes", row->bytes);
    tsr_json_member_number(t, "bits_per_weight", row->bits);
    tsr_json_member_number(t, "error", row->error);
}

static void write_group(tsr_text *t, const tsr_scheme_group *g, size_t picked)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "scheme", tsr_scheme_spelling(g->schemes[picked]));
    tsr_json_member_u64(t, "weights", g->weights);
    tsr_json_member_array(t, "options", false);
    for (size_t k = 0; k < g->n_options; k++) {
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "scheme", tsr_scheme_spelling(g->schemes[k]));
        tsr_json_member_u64(t, "bytes", g->options[k].bytes);
        tsr_json_member_number(t, "error", g->options[k].error);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_member_array(t, "tensors", false);
    for (size_t i = 0; i < g->n; i++)
        tsr_json_string(t, g->tensors[i]->name);
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

/* Writes the rows of one kind. */
static void write_plan_rows(tsr_text *t, const char *key, const tsr_result *result, tsr_plan_kind kind)
{
    tsr_json_member_array(t, key, false);
    for (size_t i = 0; i < result->n_plan; i++) {
        if (result->plan[i].kind != kind)
            continue;
        tsr_json_begin_object(t, true);
        write_choice(t, &result->plan[i]);
        tsr_json_member_string(t, "schemes", result->plan[i].schemes);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_json(const tsr_command_context *c, tsr_text *t)
{
    const planning *const p = c->job;
    tsr_json_member_string(t, "checkpoint", p->src);
    tsr_json_member_bool(t, "passed", true); /* a budget that cannot be met is an error */
    tsr_json_member_object(t, "judged", true);
    tsr_json_member_u64(t, "budget", 1);
    tsr_json_end_object(t);
    tsr_json_member_u64(t, "budget_bytes", p->budget);
    tsr_json_member_u64(t, "least_bytes", p->chosen.least);
    tsr_json_member_u64(t, "kept_bytes", p->plan.fixed);
    tsr_json_member_u64(t, "weights", p->plan.weights);
    write_choice(t, &p->result.plan[p->result.n_plan - 1]);
    tsr_json_member_bool(t, "error_is_divergence", p->weights.measured);
    tsr_json_member_number(t, "bound", p->chosen.bound);
    tsr_json_member_number(t, "gap", gap_of(&p->chosen));
    write_plan_rows(t, "curve", &p->result, TSR_PLAN_BUDGET);
    write_plan_rows(t, "alone", &p->result, TSR_PLAN_ALONE);
    tsr_json_member_array(t, "groups", false);
    for (size_t i = 0; i < p->plan.n; i++)
        write_group(t, &p->plan.groups[i], p->picked[i]);
    tsr_json_end_array(t);
}

static tsr_status write_rules(const planning *p, tsr_err *err)
{
    char note[128];
    tsr_text t = {0};
    snprintf(note, sizeof note, "by tessera plan-schemes: %.3f bits a weight, %llu bytes of tensors",
             tsr_scheme_plan_bits(&p->plan, p->chosen.bytes), U64(p->chosen.bytes));
    tsr_scheme_plan_rules(&p->plan, p->picked, note, &t);
    const tsr_status status = tsr_write_report(p->rules, &t, err);
    tsr_text_free(&t);
    return status;
}

/* ---- running ---- */

/* Rejects a scheme that the loaders of --for cannot load. Of --schemes all, leaves it out. */
static tsr_status check_schemes(planning *a, tsr_err *err)
{
    for (unsigned i = 0; a->target.loaders != NULL && i < TSR_SCHEMES; i++) {
        tsr_quantize_preview preview;
        char what[80];
        if (!a->wanted[i] || i == TSR_SCHEME_KEEP)
            continue;
        TSR_TRY(tsr_quantize_preview_make(&preview, a->checkpoint, tsr_scheme_base((tsr_scheme)i), err));
        snprintf(what, sizeof what, "--schemes: %s", tsr_scheme_spelling((tsr_scheme)i));
        const tsr_status status = tsr_target_check(&a->target, &preview.output, what, err);
        tsr_quantize_preview_free(&preview);
        if (status != TSR_E_USAGE || !a->all)
            TSR_TRY(status);
        a->wanted[i] = status == TSR_OK;
    }
    return TSR_OK;
}

/* Warns about sensitivities of tensors that the model does not have. Rejects them if it has none of the tensors. */
static tsr_status check_sensitivities(const planning *a, tsr_err *err)
{
    const size_t named = a->weights.count - (a->weights.measured ? 1 : 0); /* the last one fits all other tensors */
    size_t found = 0;
    for (size_t i = 0; i < named; i++)
        found += a->match.fits[i];
    if (named > 0 && found == 0)
        return tsr_fail(err, TSR_E_MISMATCH, "%s: it names no tensor of %s: the file belongs to another model",
                        a->sensitivity, a->src);
    for (size_t i = 0; i < named; i++) {
        if (!a->match.fits[i])
            tsr_print_stderr("tessera: warning: %s: '%s' matches no tensor\n", a->sensitivity,
                             a->weights.items[i].pattern);
    }
    return TSR_OK;
}

static tsr_status open_source(tsr_command_context *c, tsr_err *err)
{
    planning *const a = c->job;
    if (a->sensitivity != NULL)
        TSR_TRY(tsr_sensitivity_read(&a->weights, a->sensitivity, err));
    if (a->importance_path != NULL)
        TSR_TRY(tsr_importance_read(&a->importance, a->importance_path, err));
    if (a->weights.measured && a->weights.weighted != (a->importance_path != NULL))
        return tsr_fail(err, TSR_E_USAGE,
                        "%s was measured %s --importance, which weights the errors; give the same to plan-schemes",
                        a->sensitivity, a->weights.weighted ? "with" : "without");
    TSR_TRY(tsr_checkpoint_open(&a->checkpoint, a->src, c->common.ignore.items, c->common.ignore.count, err));
    tsr_warn_unfit_files(c, a->checkpoint);
    TSR_TRY(tsr_quantize_check_source(a->checkpoint, err));
    TSR_TRY(check_schemes(a, err));
    TSR_TRY(tsr_rules_match_all(&a->match, &a->weights, a->checkpoint, &a->arena, err));
    return check_sensitivities(a, err);
}

static tsr_status measure(const tsr_command_context *c, planning *a, tsr_terminal *terminal, tsr_err *err)
{
    const char *type;
    TSR_TRY(tsr_find_model_type(a->checkpoint, &a->arena, &type, err));
    tsr_scheme_plan_options options = {.run = tsr_terminal_run_options(terminal, c->common.threads, c->common.memory),
                                       .importance = a->importance_path == NULL ? NULL : &a->importance,
                                       .sensitivities = a->match.of,
                                       .cpu_flags = tsr_cpu_flags() & (unsigned)c->common.cpumask};
    memcpy(options.schemes, a->wanted, sizeof options.schemes);
    TSR_TRY(tsr_arena_status(&a->arena, TSR_OK, err)); /* or memory was exhausted when `type` was allocated */
    return tsr_scheme_plan_make(&a->plan, a->checkpoint, type, &options, err);
}

/* Chooses a scheme for each group. TSR_E_NOTHING: the budget cannot be met. */
static tsr_status choose(planning *a, tsr_err *err)
{
    a->picked = calloc(2 * a->plan.n + 1, sizeof *a->picked);
    if (a->picked == NULL)
        return tsr_out_of_memory(err, NULL);
    a->scratch = a->picked + a->plan.n;
    a->budget = a->max_bytes != 0 ? a->max_bytes : tsr_scheme_plan_bytes(&a->plan, a->bits);
    TSR_TRY(tsr_scheme_plan_choose(&a->plan, a->budget, a->picked, &a->chosen, err));
    if (a->chosen.fits)
        return TSR_OK;
    return tsr_fail(err, TSR_E_NOTHING,
                    "%s: a budget of %llu bytes, %.3f bits a weight, is too small: these schemes need %llu bytes, "
                    "%.3f bits a weight",
                    a->src, U64(a->budget), tsr_scheme_plan_bits(&a->plan, a->budget), U64(a->chosen.least),
                    tsr_scheme_plan_bits(&a->plan, a->chosen.least));
}

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    planning *const a = c->job;
    TSR_TRY(measure(c, a, terminal, err));
    TSR_TRY(choose(a, err));
    a->result.kind = tsr_result_kind_of(c->schema);
    if (c->prints || tsr_command_has_reports(c))
        TSR_TRY(fill_result(a, err));
    return a->rules == NULL ? TSR_OK : write_rules(a, err);
}

static void close_job(tsr_command_context *c)
{
    planning *const a = c->job;
    free(a->picked);
    tsr_result_free(&a->result);
    tsr_scheme_plan_free(&a->plan);
    tsr_rules_free(&a->weights);
    tsr_importance_free(&a->importance);
    tsr_arena_free(&a->arena);
    tsr_checkpoint_close(a->checkpoint);
}

const tsr_command tsr_command_plan_schemes = {
    .name = "plan-schemes",
    .summary = "the scheme for each weight within a budget of bytes",
    .schema = "tessera-plan-schemes/1",
    TSR_COMMAND(1,
                TSR_TAKES_IGNORE_FILE | TSR_TAKES_THREADS | TSR_TAKES_MEMORY | TSR_TAKES_CPUMASK | TSR_TAKES_PROGRESS,
                planning),
    .set_defaults = set_defaults,
    .open = open_source,
    .print = print,
    .write_json = write_json,
};
