/* tessera plan-schemes: its options, the table of what bits buy, the rules file, and data to plot. */
#include "cli/commands.h"
#include "cli/globs.h"
#include "cli/next.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/terminal.h"
#include "convert/plans/quantize_plan.h"
#include "convert/plans/rules_match.h"
#include "convert/plans/scheme_plan.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 9, PLOTTED = 33 };

typedef struct arguments {
    const char *src, *rules, *json, *junit, *plot, *sensitivity, *schemes, *bits_text;
    double bits; /* 0: not given */
    bool wanted[TSR_MIXES];
    uint64_t max_bytes, threads, cpumask, memory; /* max_bytes 0: not given */
    tsr_list ignore;
    tsr_progress_options progress;
    bool quiet, help;
} arguments;

static const char kHelp[] =
    "tessera plan-schemes SRC --max-bytes SIZE|--bits B [options]\n\n"
    "Chooses a scheme for each weight so that the checkpoint stays within a budget and the summed error is as small "
    "as\n"
    "it can be. What loaders run as one layer gets one scheme, and so do the experts of a layer. Writes no checkpoint: "
    "the\n"
    "rules file that it writes is what tessera quantize --rules carries out. Each weight is read once.\n\n"
    "The error of a weight is the squared error over the sum of its squares; a sensitivity file, {\"GLOB\": weight}, "
    "says\n"
    "whose errors count more. Where bytes or bits cannot be had, the exit code is 1, and the least possible is "
    "said.\n\n"
    "Examples:\n"
    "  tessera plan-schemes DeepSeek-V3-BF16 --max-bytes 380GB -o rules.json\n"
    "  tessera quantize DeepSeek-V3-BF16 -o out --rules rules.json\n"
    "  tessera plan-schemes model --bits 5 --schemes nvfp4-weight-only,fp8-block,bf16 --sensitivity weights.json\n"
    "  tessera plan-schemes model --bits 4.75 --plot curve.csv --json -\n\n"
    "Options:\n";

/* ---- options ---- */

static tsr_status parse_schemes(arguments *a, tsr_err *err)
{
    char word[64];
    for (const char *at = a->schemes;; at++) {
        const size_t size = strcspn(at, ",");
        tsr_mix mix;
        snprintf(word, sizeof word, "%.*s", (int)(size < sizeof word ? size : sizeof word - 1), at);
        if (tsr_mix_parse(word, &mix, err) != TSR_OK)
            return tsr_prepend(err, TSR_E_USAGE, "--schemes");
        if (a->wanted[mix])
            return tsr_fail(err, TSR_E_USAGE, "--schemes: %s is there twice", word);
        a->wanted[mix] = true;
        at += size;
        if (*at == '\0')
            break;
    }
    return tsr_mix_check(a->wanted, TSR_MX_DIALECT_COMPRESSED_TENSORS, err) == TSR_OK
               ? TSR_OK
               : tsr_prepend(err, TSR_E_USAGE, "--schemes");
}

static tsr_status check(arguments *a, tsr_err *err)
{
    if (a->src == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera plan-schemes SRC --max-bytes SIZE");
    if ((a->max_bytes == 0) == (a->bits_text == NULL))
        return tsr_fail(err, TSR_E_USAGE, "how large may it be? --max-bytes SIZE, or --bits B, and not both");
    if (a->bits_text != NULL)
        TSR_TRY(tsr_parse_number("--bits", a->bits_text, &a->bits, err));
    if (a->bits_text != NULL && !(a->bits > 0 && a->bits <= 32))
        return tsr_fail(err, TSR_E_USAGE, "--bits: a number above 0, and at most 32");
    if (a->threads == 0)
        return tsr_fail(err, TSR_E_USAGE, "--threads: at least 1");
    TSR_TRY(parse_schemes(a, err));
    const tsr_output more[] = {{"-o", a->rules}, {"--plot", a->plot}, {0}};
    const tsr_places places = {.sources = {a->src, a->sensitivity},
                               .json = a->json,
                               .junit = a->junit,
                               .progress = a->progress.file,
                               .more = more};
    return tsr_places_check(&places, err);
}

static tsr_status parse(int argc, char **argv, arguments *a, tsr_err *err)
{
    const tsr_option options[] = {
        {"--max-bytes", TSR_OPT_SIZE, &a->max_bytes, "SIZE",
         "of all tensors, with scales and with what stays as it is"},
        {"--bits", TSR_OPT_TEXT, &a->bits_text, "B",
         "the same as an average over the weights to choose for, scales included"},
        {"--schemes", TSR_OPT_TEXT, &a->schemes, "LIST",
         "to choose from, with commas: nvfp4, nvfp4-weight-only, mxfp4, mxfp4-weight-only, mxfp8, mxfp8-weight-only, "
         "fp8-block, fp8-channel, int8-weight-only, int4-weight-only, and bf16: as it is "
         "(nvfp4-weight-only,mxfp8,fp8-block,bf16)"},
        {"--sensitivity", TSR_OPT_TEXT, &a->sensitivity, "FILE",
         "weights of errors as JSON, {\"GLOB\": 4}; the first that fits counts (1 for all)"},
        {"-o", TSR_OPT_TEXT, &a->rules, "FILE", "the rules file, for tessera quantize --rules ('-': stdout)"},
        {"--json", TSR_OPT_TEXT, &a->json, "FILE", "the plan, group by group, as JSON ('-': stdout)"},
        {"--junit", TSR_OPT_TEXT, &a->junit, "FILE", "as JUnit XML: whether the budget is kept"},
        {"--plot", TSR_OPT_TEXT, &a->plot, "FILE", "error over bits per weight, as CSV ('-': stdout)"},
        {"--ignore-file", TSR_OPT_LIST, &a->ignore, "GLOB", "treat these files of SRC as absent; may be repeated"},
        {"--threads", TSR_OPT_COUNT, &a->threads, "N", "workers (all CPUs); the result does not depend on it"},
        {"--cpumask", TSR_OPT_COUNT, &a->cpumask, "MASK",
         "instruction sets allowed: 1 AVX2, 2 AVX-512, 4 VBMI; 0 is scalar (all); same result with any"},
        {"--memory", TSR_OPT_SIZE, &a->memory, "SIZE", "what the job may use at most (2GiB)"},
        TSR_PROGRESS_OPTIONS(&a->progress),
        {"--quiet", TSR_OPT_FLAG, &a->quiet, NULL, "no progress and no table"},
        {"--help", TSR_OPT_FLAG, &a->help, NULL, "this text"},
        {0},
    };
    size_t n;
    TSR_TRY(tsr_options_parse(options, argc, argv, &a->src, 1, &n, NULL, err));
    if (a->help)
        tsr_options_help(kHelp, options);
    return a->help ? TSR_OK : check(a, err);
}

/* ---- what is told ---- */

/* What one budget buys. */
typedef struct row {
    tsr_choice choice;
    char shares[256];
} row;

typedef struct planned {
    const arguments *a;
    const tsr_scheme_plan *plan;
    const size_t *picked;
    tsr_choice chosen;
    uint64_t budget;
    size_t *scratch; /* picked, for other budgets */
    row rows[ROWS];  /* of the table and of the JSON alike, from the least budget on */
} planned;

static double gap_of(const tsr_choice *c)
{
    return c->error > 0 ? (c->error - c->bound) / c->error : 0;
}

/* The i-th of n budgets, evenly from the least possible to what is of use. */
static tsr_status choose_at(const planned *p, unsigned i, unsigned n, tsr_choice *choice, tsr_err *err)
{
    const uint64_t least = p->chosen.least, most = tsr_scheme_plan_most(p->plan);
    const uint64_t budget = i + 1 == n ? most : least + (uint64_t)((double)(most - least) * i / (n - 1));
    return tsr_scheme_plan_choose(p->plan, budget, p->scratch, choice, err);
}

/* Share of the weights that have each scheme, as "72 % nvfp4, 28 % fp8-block". */
static const char *shares(const tsr_scheme_plan *plan, const size_t *picked, char text[256])
{
    text[0] = '\0';
    for (tsr_mix mix = 0; mix < TSR_MIXES; mix++) {
        uint64_t weights = 0;
        for (size_t i = 0; i < plan->n; i++)
            weights += plan->groups[i].mixes[picked[i]] == mix ? plan->groups[i].weights : 0;
        if (weights > 0)
            snprintf(text + strlen(text), 256 - strlen(text), "%s%.0f %% %s", text[0] == '\0' ? "" : ", ",
                     100 * (double)weights / (double)plan->weights, tsr_mix_name(mix));
    }
    return text;
}

static tsr_status find_rows(planned *p, tsr_err *err)
{
    for (unsigned i = 0; i < ROWS; i++) {
        TSR_TRY(choose_at(p, i, ROWS, &p->rows[i].choice, err));
        shares(p->plan, p->scratch, p->rows[i].shares);
    }
    return TSR_OK;
}

static void print_row(const planned *p, const tsr_choice *c, const char *what)
{
    char bytes[32];
    tsr_print("  %8.3f %10s %12.6g   %s\n", tsr_scheme_plan_bits(p->plan, c->bytes),
              tsr_bytes_text((double)c->bytes, bytes), c->error, what);
}

static void print_next(const arguments *a)
{
    tsr_print("next: tessera quantize ");
    tsr_print_path(a->src);
    tsr_print(" -o DST --rules ");
    tsr_print_path(a->rules);
    tsr_print("%s\n", a->wanted[TSR_MIX_NVFP4] ? " --activations FILE" : "");
}

static void print_table(const planned *p)
{
    char bytes[32], text[300], share[256];
    tsr_print("%zu groups of %zu weights to choose for; %s of other tensors stay as they are\n\n", p->plan->n,
              p->plan->n_tensors, tsr_bytes_text((double)p->plan->fixed, bytes));
    tsr_print("  %8s %10s %12s\n", "bits", "bytes", "error");
    for (unsigned i = 0; i < ROWS; i++)
        print_row(p, &p->rows[i].choice, p->rows[i].shares);
    tsr_print("\none scheme for all, where it is taken:\n");
    for (tsr_mix mix = 0; mix < TSR_MIXES; mix++) {
        const tsr_choice c = tsr_scheme_plan_alone(p->plan, mix);
        if (p->a->wanted[mix])
            print_row(p, &c, tsr_mix_name(mix));
    }
    tsr_print("\nchosen:\n");
    snprintf(text, sizeof text, "%s", shares(p->plan, p->picked, share));
    print_row(p, &p->chosen, text);
    if (gap_of(&p->chosen) > 0)
        tsr_print("no choice of %llu bytes has an error below %.6g: this one is within %.2g %% of the best\n",
                  U64(p->budget), p->chosen.bound, 100 * gap_of(&p->chosen));
    else
        tsr_print("no choice of %llu bytes has a smaller error\n", U64(p->budget));
    if (p->a->rules == NULL)
        tsr_print("-o FILE writes it as rules for tessera quantize --rules\n");
    else
        print_next(p->a);
}

static tsr_status write_plot(const planned *p, tsr_err *err)
{
    tsr_text t = {0};
    tsr_status status = TSR_OK;
    tsr_text_printf(&t, "what,bits_per_weight,bytes,error,bound\n");
    for (unsigned i = 0; i <= PLOTTED && status == TSR_OK; i++) {
        tsr_choice c = p->chosen;
        if (i < PLOTTED)
            status = choose_at(p, i, PLOTTED, &c, err);
        tsr_text_printf(&t, "%s,%.6f,%llu,%.9g,%.9g\n", i < PLOTTED ? "curve" : "chosen",
                        tsr_scheme_plan_bits(p->plan, c.bytes), U64(c.bytes), c.error, c.bound);
    }
    for (tsr_mix mix = 0; mix < TSR_MIXES; mix++) {
        const tsr_choice c = tsr_scheme_plan_alone(p->plan, mix);
        if (p->a->wanted[mix])
            tsr_text_printf(&t, "%s,%.6f,%llu,%.9g,\n", tsr_mix_name(mix), tsr_scheme_plan_bits(p->plan, c.bytes),
                            U64(c.bytes), c.error);
    }
    if (status == TSR_OK)
        status = tsr_write_report(p->a->plot, &t, err);
    tsr_text_free(&t);
    return status;
}

static void write_choice(tsr_text *t, const tsr_scheme_plan *plan, const tsr_choice *c)
{
    tsr_json_member_u64(t, "bytes", c->bytes);
    tsr_json_member_number(t, "bits_per_weight", tsr_scheme_plan_bits(plan, c->bytes));
    tsr_json_member_number(t, "error", c->error);
}

static void write_group(tsr_text *t, const tsr_scheme_group *g, size_t picked)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "scheme", tsr_mix_name(g->mixes[picked]));
    tsr_json_member_u64(t, "weights", g->weights);
    tsr_json_key(t, "options");
    tsr_json_begin_array(t, false);
    for (size_t k = 0; k < g->n_options; k++) {
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "scheme", tsr_mix_name(g->mixes[k]));
        tsr_json_member_u64(t, "bytes", g->options[k].bytes);
        tsr_json_member_number(t, "error", g->options[k].error);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_key(t, "tensors");
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < g->n; i++)
        tsr_json_string(t, g->tensors[i]->name);
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}

static void write_curve(const planned *p, tsr_text *t)
{
    tsr_json_key(t, "curve");
    tsr_json_begin_array(t, false);
    for (unsigned i = 0; i < ROWS; i++) {
        tsr_json_begin_object(t, true);
        write_choice(t, p->plan, &p->rows[i].choice);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static tsr_status write_json(const planned *p, tsr_err *err)
{
    tsr_text t = {0};
    tsr_json_begin_object(&t, false);
    tsr_json_member_string(&t, "schema", "tessera-plan-schemes/1");
    tsr_json_member_string(&t, "version", TSR_VERSION);
    tsr_json_member_string(&t, "checkpoint", p->a->src);
    tsr_json_member_bool(&t, "passed", true); /* a budget that cannot be kept is an error */
    tsr_json_key(&t, "judged");
    tsr_json_begin_object(&t, true);
    tsr_json_member_u64(&t, "budget", 1);
    tsr_json_end_object(&t);
    tsr_json_member_u64(&t, "budget_bytes", p->budget);
    tsr_json_member_u64(&t, "least_bytes", p->chosen.least);
    tsr_json_member_u64(&t, "kept_bytes", p->plan->fixed);
    tsr_json_member_u64(&t, "weights", p->plan->weights);
    write_choice(&t, p->plan, &p->chosen);
    tsr_json_member_number(&t, "bound", p->chosen.bound);
    tsr_json_member_number(&t, "gap", gap_of(&p->chosen));
    write_curve(p, &t);
    tsr_json_key(&t, "groups");
    tsr_json_begin_array(&t, false);
    for (size_t i = 0; i < p->plan->n; i++)
        write_group(&t, &p->plan->groups[i], p->picked[i]);
    tsr_json_end_array(&t);
    tsr_json_end_object(&t);
    tsr_text_append(&t, "\n", 1);
    const tsr_status status = tsr_results_write(p->a->json, p->a->junit, &t, err);
    tsr_text_free(&t);
    return status;
}

static tsr_status write_rules(const planned *p, tsr_err *err)
{
    char note[128];
    tsr_text t = {0};
    snprintf(note, sizeof note, "by tessera plan-schemes: %.3f bits a weight, %llu bytes of tensors",
             tsr_scheme_plan_bits(p->plan, p->chosen.bytes), U64(p->chosen.bytes));
    tsr_scheme_plan_rules(p->plan, p->picked, note, &t);
    const tsr_status status = tsr_write_report(p->a->rules, &t, err);
    tsr_text_free(&t);
    return status;
}

static tsr_status tell(planned *p, tsr_err *err)
{
    const arguments *const a = p->a;
    const bool results = a->json != NULL || a->junit != NULL;
    const bool table = !a->quiet && !tsr_is_stdout(a->rules) && !tsr_is_stdout(a->json) && !tsr_is_stdout(a->junit) &&
                       !tsr_is_stdout(a->plot);
    if (table || results)
        TSR_TRY(find_rows(p, err));
    if (a->rules != NULL)
        TSR_TRY(write_rules(p, err));
    if (results)
        TSR_TRY(write_json(p, err));
    if (a->plot != NULL)
        TSR_TRY(write_plot(p, err));
    if (table)
        print_table(p);
    return TSR_OK;
}

/* ---- doing ---- */

static tsr_status measure(const arguments *a, const tsr_checkpoint *c, const tsr_rules_match *sensitivities,
                          tsr_scheme_plan *plan, tsr_err *err)
{
    tsr_terminal terminal;
    TSR_TRY(tsr_terminal_open(&terminal, a->quiet, &a->progress, err));
    tsr_arena arena = {0};
    const char *const type = tsr_policy_model_type(c, &arena);
    if (!tsr_policy_knows(type))
        tsr_tell("tessera: unknown model_type '%s': general rules; check with tessera quantize --dry-run\n",
                 type == NULL ? "" : type);
    tsr_scheme_plan_options options = {.run = tsr_terminal_run_options(&terminal, a->threads, a->memory),
                                       .sensitivities = sensitivities->of,
                                       .cpu_flags = tsr_cpu_flags() & (unsigned)a->cpumask};
    memcpy(options.schemes, a->wanted, sizeof options.schemes);
    tsr_status status = tsr_arena_status(&arena, TSR_OK, err); /* or `type` may be missing for want of memory */
    if (status == TSR_OK)
        status = tsr_scheme_plan_make(plan, c, type, &options, err);
    tsr_terminal_close(&terminal);
    tsr_arena_free(&arena);
    return status;
}

/* TSR_E_NOTHING: the budget cannot be kept, and nothing is planned. */
static tsr_status choose(const arguments *a, const tsr_scheme_plan *plan, tsr_err *err)
{
    size_t *const picked = calloc(2 * plan->n + 1, sizeof *picked);
    if (picked == NULL)
        return tsr_out_of_memory(err, NULL);
    planned p = {.a = a, .plan = plan, .picked = picked, .scratch = picked + plan->n};
    p.budget = a->max_bytes != 0 ? a->max_bytes : tsr_scheme_plan_bytes(plan, a->bits);
    tsr_status status = tsr_scheme_plan_choose(plan, p.budget, picked, &p.chosen, err);
    if (status == TSR_OK && !p.chosen.fits)
        status = tsr_fail(err, TSR_E_NOTHING,
                          "%s: %llu bytes cannot be kept: the least that these schemes can do is %llu bytes, %.3f bits "
                          "a weight",
                          a->src, U64(p.budget), U64(p.chosen.least), tsr_scheme_plan_bits(plan, p.chosen.least));
    if (status == TSR_OK)
        status = tell(&p, err);
    free(picked);
    return status;
}

static tsr_status run(const arguments *a, tsr_err *err)
{
    tsr_checkpoint *c = NULL;
    tsr_rules sensitivity = {.path = NULL};
    tsr_rules_match match;
    tsr_arena scratch = {0};
    tsr_scheme_plan plan = {.n = 0};
    tsr_status status = a->sensitivity == NULL ? TSR_OK : tsr_sensitivity_read(&sensitivity, a->sensitivity, err);
    if (status == TSR_OK)
        status = tsr_checkpoint_open(&c, a->src, a->ignore.items, a->ignore.count, err);
    if (status == TSR_OK)
        tsr_tell_unfit_files(&a->ignore, c);
    if (status == TSR_OK)
        status = tsr_quantize_check_source(c, err);
    if (status == TSR_OK)
        status = tsr_rules_match_all(&match, &sensitivity, c, &scratch, err);
    for (size_t i = 0; i < sensitivity.count && status == TSR_OK; i++) {
        if (!match.fits[i])
            tsr_tell("tessera: warning: %s: '%s' fits no tensor\n", a->sensitivity, sensitivity.items[i].pattern);
    }
    if (status == TSR_OK)
        status = measure(a, c, &match, &plan, err);
    if (status == TSR_OK)
        status = choose(a, &plan, err);
    tsr_scheme_plan_free(&plan);
    tsr_rules_free(&sensitivity);
    tsr_arena_free(&scratch);
    tsr_checkpoint_close(c);
    return status;
}

int tsr_cmd_plan_schemes(int argc, char **argv)
{
    arguments a = {.schemes = "nvfp4-weight-only,mxfp8,fp8-block,bf16",
                   .threads = tsr_cpu_count(),
                   .cpumask = TSR_CPU_ALL,
                   .memory = TSR_DEFAULT_MEMORY};
    tsr_err err = {{0}};
    tsr_status status = parse(argc, argv, &a, &err);
    if (status == TSR_OK && !a.help)
        status = run(&a, &err);
    return tsr_end("plan-schemes", status, true, &err);
}
