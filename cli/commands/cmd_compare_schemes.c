/* Implements `tessera compare-schemes`: its options, the selection of tensors, and the table. */
#include "cli/commands/commands.h"
#include "cli/help/help.h"
#include "cli/help/next_command.h"
#include "cli/io/globs.h"
#include "cli/io/mpi_session.h"
#include "cli/io/output.h"
#include "common/glob.h"
#include "convert/plans/quantize_plan.h"
#include "convert/search/compare_schemes.h"
#include "formats/json/json_write.h"
#include "report/read/read.h"
#include "report/write/terminal/terminal_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* The tensors that are compared. */
typedef struct choice {
    const tsr_tensor **tensors;
    uint64_t *taken; /* result of tsr_schemes_decide */
    size_t n, all;   /* selected tensors, and candidates */
} choice;

typedef struct comparing {
    const char *src, *importance_path;
    tsr_list tensors;
    uint64_t sample, seed;
    tsr_importance importance;
    tsr_checkpoint *checkpoint;
    choice chosen;
    tsr_scheme_cost *costs; /* [chosen.n * TSR_SCHEMES] */
    tsr_result result;      /* a series for each scheme that is shown, in their order */
} comparing;

static const char kHelp[] =
    "tessera compare-schemes SRC [options]\n\n"
    "Quantizes the linear layers of a model with every scheme and prints one table: SQNR, relative error,\n"
    "largest error, bytes, and the tensors with the largest errors. The tensors are those that tessera\n"
    "quantize would quantize. Each is read once, and no checkpoint is written.\n\n"
    "Examples:\n"
    "  tessera compare-schemes Llama-3.1-8B --sample 40\n"
    "  tessera compare-schemes DeepSeek-V3-BF16 --tensors '*.layers.3.*' --json costs.json\n"
    "  mpirun -n 4 tessera compare-schemes DeepSeek-V3-BF16 --mpi\n\n"
    "Options:\n";

static void add_options(tsr_command_context *c, tsr_option *options)
{
    comparing *const a = c->job;
    const tsr_option own[] = {
        {"--sample", TSR_OPT_POSITIVE, &a->sample, "N",
         "compare N tensors only: those whose names, hashed with the seed, come first (all)"},
        {"--seed", TSR_OPT_COUNT, &a->seed, "S", "seed of the sample (0)"},
        {"--tensors", TSR_OPT_LIST, &a->tensors, "GLOB",
         "only tensors with these names (*, ?, [0-3]: docs/policy.md); may be repeated"},
        {"--importance", TSR_OPT_TEXT, &a->importance_path, "FILE",
         "mean squares of the layers' inputs, by which errors are weighted (docs/importance.md)"},
        {0},
    };
    tsr_options_append(options, own);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    comparing *const a = c->job;
    a->src = c->words[0];
    if (a->src == NULL)
        return tsr_fail(err, TSR_E_USAGE, "no checkpoint given: tessera compare-schemes SRC");
    return c->common.mpi ? TSR_OK : tsr_check_alone("use --mpi to share the work between them", err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const comparing *const a = c->job;
    paths->sources[0] = a->src;
    paths->sources[1] = a->importance_path;
    paths->unconfined = tsr_unconfined_ranks(c->common.mpi);
}

/* Returns the first scheme from `scheme` on that is shown, or TSR_SCHEMES. */
static tsr_scheme shown(tsr_scheme scheme)
{
    while (scheme < TSR_SCHEMES && tsr_scheme_row_of(scheme)->title == NULL)
        scheme++;
    return scheme;
}

/* ---- selecting tensors ---- */

typedef struct ranked {
    uint64_t rank;
    const tsr_tensor *tensor;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *const x = a, *const y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

static int by_place(const void *a, const void *b)
{
    const ranked *const x = a, *const y = b;
    return x->tensor < y->tensor ? -1 : x->tensor > y->tensor;
}

static bool wanted(const comparing *a, const char *name)
{
    return a->tensors.count == 0 || tsr_glob_find(a->tensors.items, a->tensors.count, name) != NULL;
}

static tsr_status decide(const tsr_checkpoint *c, uint64_t *by_form, tsr_arena *arena, tsr_err *err)
{
    const char *type;
    TSR_TRY(tsr_find_model_type(c, arena, &type, err));
    return tsr_schemes_decide(c, type, by_form, arena, err);
}

static const char *name_of(const void *context, size_t i)
{
    return ((const tsr_tensors *)context)->items[i].name;
}

static tsr_status choose(const comparing *a, const tsr_checkpoint *c, ranked *candidates, uint64_t *by_form,
                         tsr_arena *arena, choice *to, tsr_err *err)
{
    TSR_TRY(tsr_quantize_check_source(c, err));
    TSR_TRY(tsr_check_tensor_globs(a->tensors.items, a->tensors.count, name_of, &c->tensors, c->tensors.count, err));
    TSR_TRY(decide(c, by_form, arena, err));
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        if (by_form[i] != 0 && tsr_tensor_elements(t) > 0 && wanted(a, t->name))
            candidates[to->all++] = (ranked){XXH64(t->name, strlen(t->name), a->seed), t};
    }
    if (to->all == 0)
        return tsr_fail(err, a->tensors.count > 0 ? TSR_E_UNSUPPORTED : TSR_E_NOTHING,
                        "%s: there is no tensor to quantize%s", c->path,
                        a->tensors.count > 0 ? " with such a name" : "");
    to->n = a->sample > 0 && a->sample < to->all ? (size_t)a->sample : to->all;
    qsort(candidates, to->all, sizeof *candidates, by_rank);
    qsort(candidates, to->n, sizeof *candidates, by_place);
    for (size_t i = 0; i < to->n; i++) {
        to->tensors[i] = candidates[i].tensor;
        to->taken[i] = by_form[candidates[i].tensor - c->tensors.items];
    }
    return TSR_OK;
}

/* ---- the result ---- */

static uint64_t source_bytes(const choice *c)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->n; i++)
        bytes += c->tensors[i]->bytes;
    return bytes;
}

/* Returns the bytes that the tensors would take in BF16, whatever their dtype is. */
static double bf16_bytes(const choice *c)
{
    double bytes = 0;
    for (size_t i = 0; i < c->n; i++)
        bytes += 2 * (double)tsr_tensor_elements(c->tensors[i]);
    return bytes;
}

static void set_figures(double figures[TSR_N_FIGURES], const tsr_quant_stats *stats, double worst_block)
{
    figures[TSR_FIGURE_WORST_BLOCK] = worst_block;
    figures[TSR_FIGURE_SQNR] = tsr_quant_stats_sqnr(stats);
    figures[TSR_FIGURE_WEIGHTED_SQNR] = stats->sum_wx2 > 0 ? tsr_quant_stats_weighted_sqnr(stats) : NAN;
    figures[TSR_FIGURE_RELATIVE] = tsr_quant_stats_relative_error(stats);
    figures[TSR_FIGURE_MAX_ABS] = stats->max_error;
    figures[TSR_FIGURE_COSINE] = tsr_quant_stats_cosine(stats);
    figures[TSR_FIGURE_SATURATED] = (double)stats->saturated;
    figures[TSR_FIGURE_FLUSHED] = (double)stats->flushed;
}

/* Sums up the costs of a scheme over all tensors. */
static void sum_up(const comparing *a, tsr_scheme scheme, tsr_series *to)
{
    tsr_quant_stats stats = {0};
    double worst_block = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < a->chosen.n; i++) {
        const tsr_scheme_cost *const c = &a->costs[i * TSR_SCHEMES + scheme];
        bytes += c->bytes;
        to->not_taken += !c->taken;
        if (!c->taken)
            continue;
        tsr_quant_stats_add(&stats, &c->stats);
        worst_block = fmax(worst_block, tsr_quant_stats_worst_block(&c->stats));
        tsr_series_note_worst(to, a->chosen.tensors[i]->name, tsr_quant_stats_relative_error(&c->stats));
    }
    if (to->not_taken < a->chosen.n)
        set_figures(to->whole.figures, &stats, worst_block);
    to->whole.figures[TSR_FIGURE_BYTES] = (double)bytes;
    to->whole.note = tsr_scheme_row_of(scheme)->arguments;
    to->of_bf16 = (double)bytes / bf16_bytes(&a->chosen);
}

/* Fills the model of the result: a series for each scheme. */
static tsr_status fill_result(comparing *a, tsr_err *err)
{
    for (tsr_scheme s = shown(0); s < TSR_SCHEMES; s = shown(s + 1)) {
        uint32_t at;
        TSR_TRY(tsr_result_series(&a->result, tsr_scheme_row_of(s)->title, &at, err));
        sum_up(a, s, &a->result.series[at]);
    }
    return TSR_OK;
}

/* A suggestion below the table: the best of all schemes, of those with 8-bit activations, or of those with 4-bit
 * weights. */
typedef struct suggestion {
    const char *key, *text;
    unsigned kinds; /* bits of tsr_scheme_kind */
} suggestion;

static const suggestion kSuggestions[] = {
    {"any", "the highest SQNR in this table", 1u << TSR_W8A8 | 1u << TSR_W8A16 | 1u << TSR_W4A16},
    {"w8a8", "the highest SQNR with activations in 8 bits, which 8-bit GEMMs need", 1u << TSR_W8A8},
    {"w4a16", "the highest SQNR with 4 bits", 1u << TSR_W4A16},
};

/* Returns the weighted SQNR if there is importance, otherwise the SQNR. */
static double sqnr_of(const tsr_series *s)
{
    const double weighted = s->whole.figures[TSR_FIGURE_WEIGHTED_SQNR];
    return isnan(weighted) ? s->whole.figures[TSR_FIGURE_SQNR] : weighted;
}

/* Returns the scheme of highest SQNR, among those of these kinds that quantize the most tensors. NULL: none quantizes
 * any. */
static const tsr_series *best_of(const comparing *a, unsigned kinds)
{
    const tsr_series *best = NULL;
    tsr_scheme scheme = shown(0);
    for (size_t i = 0; i < a->result.n_series; i++, scheme = shown(scheme + 1)) {
        const tsr_series *const s = &a->result.series[i];
        if ((kinds >> tsr_scheme_kind_of(scheme) & 1) == 0 || s->not_taken == a->chosen.n)
            continue;
        if (best == NULL || s->not_taken < best->not_taken ||
            (s->not_taken == best->not_taken && sqnr_of(s) > sqnr_of(best)))
            best = s;
    }
    return best;
}

static void print_suggestions(const comparing *a)
{
    const tsr_series *last = NULL;
    for (size_t i = 0; i < sizeof kSuggestions / sizeof *kSuggestions; i++) {
        const tsr_series *const s = best_of(a, kSuggestions[i].kinds);
        if (s != NULL && s != last) {
            tsr_print("%s tessera quantize ", last == NULL ? "next:" : "  or:");
            tsr_print_path(a->src);
            tsr_print(" -o DST %s    # %.2f dB: %s\n", s->whole.note, sqnr_of(s), kSuggestions[i].text);
        }
        last = s;
    }
}

static tsr_status print(tsr_command_context *context, tsr_err *err)
{
    const comparing *const a = context->job;
    const choice *const c = &a->chosen;
    const tsr_style style = tsr_command_style();
    char bytes[32];
    tsr_text table = {0};
    tsr_print("%zu of %zu tensors of %s, %s", c->n, c->all, a->src, tsr_bytes_text((double)source_bytes(c), bytes));
    if (c->n < c->all)
        tsr_print(" (a sample, seed %llu)", U64(a->seed));
    tsr_print("\n");
    tsr_draw_schemes(&table, &style, &a->result);
    TSR_TRY(tsr_print_drawn(&table, err));
    print_suggestions(a);
    return TSR_OK;
}

/* Writes the known errors. */
static void write_errors(tsr_text *t, const double figures[TSR_N_FIGURES])
{
    static const tsr_figure kErrors[] = {TSR_FIGURE_WORST_BLOCK, TSR_FIGURE_SQNR,    TSR_FIGURE_WEIGHTED_SQNR,
                                         TSR_FIGURE_RELATIVE,    TSR_FIGURE_MAX_ABS, TSR_FIGURE_COSINE,
                                         TSR_FIGURE_SATURATED,   TSR_FIGURE_FLUSHED};
    for (size_t i = 0; i < sizeof kErrors / sizeof *kErrors; i++) {
        if (!isnan(figures[kErrors[i]]))
            tsr_json_member_number(t, tsr_figure_of(kErrors[i])->key, figures[kErrors[i]]);
    }
}

static void write_totals(tsr_text *t, const tsr_result *result)
{
    tsr_json_member_array(t, "schemes", false);
    for (size_t i = 0; i < result->n_series; i++) {
        const tsr_series *const s = &result->series[i];
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "scheme", s->name);
        tsr_json_member_u64(t, "bytes", (uint64_t)s->whole.figures[TSR_FIGURE_BYTES]);
        tsr_json_member_number(t, "ratio_to_bf16", s->of_bf16);
        write_errors(t, s->whole.figures);
        tsr_json_member_string(t, "options", s->whole.note);
        tsr_json_member_u64(t, "not_taken", s->not_taken);
        tsr_json_member_array(t, "worst", true);
        for (size_t k = 0; k < s->n_worst; k++)
            tsr_json_string(t, s->worst[k].name);
        tsr_json_end_array(t);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_tensors(tsr_text *t, const choice *c, const tsr_scheme_cost *costs)
{
    tsr_row row;
    tsr_row_clear(&row);
    tsr_json_member_array(t, "tensors", false);
    for (size_t i = 0; i < c->n; i++) {
        tsr_json_begin_object(t, false);
        tsr_json_member_string(t, "name", c->tensors[i]->name);
        tsr_json_member_u64(t, "bytes", c->tensors[i]->bytes);
        tsr_json_member_array(t, "schemes", false);
        for (tsr_scheme s = shown(0); s < TSR_SCHEMES; s = shown(s + 1)) {
            const tsr_scheme_cost *const cost = &costs[i * TSR_SCHEMES + s];
            if (!cost->taken)
                continue;
            set_figures(row.figures, &cost->stats, tsr_quant_stats_worst_block(&cost->stats));
            tsr_json_begin_object(t, true);
            tsr_json_member_string(t, "scheme", tsr_scheme_row_of(s)->title);
            tsr_json_member_u64(t, "bytes", cost->bytes);
            write_errors(t, row.figures);
            tsr_json_end_object(t);
        }
        tsr_json_end_array(t);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

static void write_json(const tsr_command_context *context, tsr_text *t)
{
    const comparing *const a = context->job;
    const choice *const c = &a->chosen;
    tsr_json_member_string(t, "checkpoint", a->src);
    tsr_json_member_u64(t, "tensors_compared", c->n);
    tsr_json_member_u64(t, "tensors_to_quantize", c->all);
    tsr_json_member_u64(t, "seed", a->seed);
    tsr_json_member_u64(t, "bytes", source_bytes(c));
    write_totals(t, &a->result);
    tsr_json_member_object(t, "suggested", false);
    for (size_t i = 0; i < sizeof kSuggestions / sizeof *kSuggestions; i++) {
        const tsr_series *const best = best_of(a, kSuggestions[i].kinds);
        tsr_json_member_string(t, kSuggestions[i].key, best == NULL ? NULL : best->name);
    }
    tsr_json_end_object(t);
    write_tensors(t, c, a->costs);
}

/* ---- running ---- */

static tsr_status open_source(tsr_command_context *context, tsr_err *err)
{
    comparing *const a = context->job;
    choice *const chosen = &a->chosen;
    tsr_arena arena = {0};
    if (a->importance_path != NULL)
        TSR_TRY(tsr_importance_read(&a->importance, a->importance_path, err));
    TSR_TRY(
        tsr_checkpoint_open(&a->checkpoint, a->src, context->common.ignore.items, context->common.ignore.count, err));
    tsr_warn_unfit_files(context, a->checkpoint);
    const size_t n = a->checkpoint->tensors.count + 1;
    chosen->tensors = calloc(n, sizeof *chosen->tensors);
    chosen->taken = calloc(n, sizeof *chosen->taken);
    uint64_t *const by_form = calloc(n, sizeof *by_form);
    ranked *const candidates = calloc(n, sizeof *candidates);
    tsr_status status = chosen->tensors == NULL || chosen->taken == NULL || by_form == NULL || candidates == NULL
                            ? tsr_out_of_memory(err, NULL)
                            : choose(a, a->checkpoint, candidates, by_form, &arena, chosen, err);
    if (status == TSR_OK && (a->costs = calloc(chosen->n * TSR_SCHEMES, sizeof *a->costs)) == NULL)
        status = tsr_out_of_memory(err, NULL);
    free(candidates);
    free(by_form);
    tsr_arena_free(&arena);
    return status;
}

static tsr_status run(tsr_command_context *context, tsr_terminal *terminal, tsr_err *err)
{
    comparing *const a = context->job;
    const tsr_common_options *const common = &context->common;
    const tsr_compare_schemes_options options = {
        .run = tsr_terminal_run_options(terminal, common->threads, common->memory),
        .taken = a->chosen.taken,
        .importance = a->importance_path == NULL ? NULL : &a->importance,
        .cpu_flags = tsr_cpu_flags() & (unsigned)common->cpumask,
        .ranks = context->ranks,
    };
    TSR_TRY(tsr_compare_schemes(a->checkpoint, a->chosen.tensors, a->chosen.n, &options, a->costs, err));
    a->result.kind = tsr_result_kind_of(context->schema);
    return fill_result(a, err);
}

static void close_job(tsr_command_context *context)
{
    comparing *const a = context->job;
    free(a->costs);
    tsr_result_free(&a->result);
    tsr_importance_free(&a->importance);
    free(a->chosen.tensors);
    free(a->chosen.taken);
    tsr_checkpoint_close(a->checkpoint);
}

const tsr_command tsr_command_compare_schemes = {
    .name = "compare-schemes",
    .topic = "Choose schemes",
    .summary = "errors and bytes of a model under every scheme",
    .schema = "tessera-compare-schemes/1",
    TSR_COMMAND(1,
                TSR_TAKES_IGNORE_FILE | TSR_TAKES_THREADS | TSR_TAKES_MEMORY | TSR_TAKES_CPUMASK | TSR_TAKES_MPI |
                    TSR_TAKES_PROGRESS,
                comparing),
    .open = open_source,
    .print = print,
    .write_json = write_json,
};
