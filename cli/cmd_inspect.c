/* tessera inspect: its options, and what it looks at. */
#include "cli/commands.h"
#include "cli/globs.h"
#include "cli/inspect_print.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/terminal.h"
#include "convert/jobs/quantize_preview.h"
#include "formats/json/json_write.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct arguments {
    const char *path, *can_load, *tp, *json, *junit, *source_block;
    tsr_list ignore;
    bool as_is, quiet, help;
} arguments;

static const char kHelp[] =
    "tessera inspect PATH [options]\n"
    "tessera inspect PATH:TENSOR [options]\n\n"
    "Says what a checkpoint holds: files, parameters by part of the model, what is quantized and how, scales, "
    "attention\n"
    "and its KV cache. For one tensor it shows values, codes, and a map of its blocks; of a scale, which\n"
    "weight it belongs to, and its grid. PATH is a Hugging Face "
    "directory\n"
    "or one .safetensors file. Of a whole checkpoint only headers, configuration and scales are read.\n\n"
    "--can-load says which loaders can load it, at which tensor-parallel sizes, and otherwise which tensor breaks "
    "which\n"
    "rule.\n"
    "A checkpoint that is not quantized yet is judged as `tessera quantize` would write it; with --as-is as it is.\n"
    "LOADERS: vllm, sglang, transformers, deepseek, trtllm, several of these separated by commas, or all.\n\n"
    "Examples:\n"
    "  tessera inspect DeepSeek-V3\n"
    "  tessera inspect DeepSeek-V3:model.layers.3.self_attn.kv_b_proj.weight\n"
    "  tessera inspect DeepSeek-V3:model.layers.3.self_attn.kv_b_proj.weight_scale_inv\n"
    "  tessera inspect Qwen3-BF16 --can-load all --tp 1,2,4,8,16      before quantizing\n"
    "  tessera inspect out --can-load vllm --tp 8 --junit loaders.xml  in CI: exit code 1 says no\n\n"
    "Exit codes: 0 fine; 1 something is wrong with the checkpoint, or a loader that was asked for cannot load it at a\n"
    "size that was asked for; 2 usage; 3 not a checkpoint, or tensors that Tessera does not read; 4 I/O.\n\n"
    "Options:\n";

static tsr_status parse(int argc, char **argv, arguments *a, tsr_err *err)
{
    const tsr_option options[] = {
        {"--can-load", TSR_OPT_TEXT, &a->can_load, "LOADERS", "whether these can load it: see above"},
        {"--tp", TSR_OPT_TEXT, &a->tp, "SIZES", "tensor-parallel sizes (1,2,4,8,16)"},
        {"--as-is", TSR_OPT_FLAG, &a->as_is, NULL,
         "with --can-load: judge it as it is, also where it is not quantized yet"},
        {"--source-block", TSR_OPT_TEXT, &a->source_block, "RxC", "blocks of PATH, where its config.json states none"},
        {"--ignore-file", TSR_OPT_LIST, &a->ignore, "GLOB", "treat these files of PATH as absent; may be repeated"},
        {"--json", TSR_OPT_TEXT, &a->json, "FILE", "the result as JSON ('-': stdout)"},
        {"--junit", TSR_OPT_TEXT, &a->junit, "FILE", "findings, and each loader at each size, as JUnit XML"},
        {"--quiet", TSR_OPT_FLAG, &a->quiet, NULL, "nothing on stdout: the exit code tells"},
        {"--help", TSR_OPT_FLAG, &a->help, NULL, "this text"},
        {0},
    };
    size_t n;
    TSR_TRY(tsr_options_parse(options, argc, argv, &a->path, 1, &n, NULL, err));
    if (a->help) {
        tsr_options_help(kHelp, options);
    } else if (a->path == NULL) {
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera inspect PATH");
    } else if ((a->tp != NULL || a->as_is) && a->can_load == NULL) {
        return tsr_fail(err, TSR_E_USAGE, "%s means nothing without --can-load", a->as_is ? "--as-is" : "--tp");
    }
    return TSR_OK;
}

/* ---- --can-load and --tp ---- */

static tsr_status parse_loaders(const char *text, tsr_load_table *table, tsr_err *err)
{
    const bool all = strcmp(text, "all") == 0;
    for (unsigned i = 0; all && i < TSR_LOADER_COUNT; i++)
        table->loaders[table->n_loaders++] = (tsr_loader)i;
    for (const char *p = text; !all;) {
        const size_t n = strcspn(p, ",");
        unsigned i = 0;
        while (i < TSR_LOADER_COUNT &&
               (strlen(tsr_loader_name((tsr_loader)i)) != n || strncmp(tsr_loader_name((tsr_loader)i), p, n) != 0))
            i++;
        if (i == TSR_LOADER_COUNT)
            return tsr_fail(err, TSR_E_USAGE,
                            "--can-load: '%.*s' is none of vllm, sglang, transformers, deepseek, trtllm, all", (int)n,
                            p);
        for (size_t k = 0; k < table->n_loaders; k++) {
            if (table->loaders[k] == (tsr_loader)i)
                return tsr_fail(err, TSR_E_USAGE, "--can-load: '%.*s' is named twice", (int)n, p);
        }
        table->loaders[table->n_loaders++] = (tsr_loader)i;
        if (p[n] == '\0')
            break;
        p += n + 1;
    }
    return TSR_OK;
}

static tsr_status parse_sizes(const char *text, tsr_load_table *table, tsr_err *err)
{
    for (const char *p = text;;) {
        char *end;
        const unsigned long size = *p >= '1' && *p <= '9' ? strtoul(p, &end, 10) : 0;
        if (size == 0 || size > 4096 || (*end != ',' && *end != '\0'))
            return tsr_fail(err, TSR_E_USAGE, "--tp: '%s' is not a list of sizes from 1 to 4096, as in 1,2,4,8", text);
        if (table->n_tp == TSR_MAX_TP_SIZES)
            return tsr_fail(err, TSR_E_USAGE, "--tp: more than %d sizes", (int)TSR_MAX_TP_SIZES);
        table->tp[table->n_tp++] = (unsigned)size;
        if (*end == '\0')
            return TSR_OK;
        p = end + 1;
    }
}

/* ---- what --can-load judges ---- */

/* The checkpoint itself, or what `tessera quantize` would write of it. */
typedef struct judged {
    tsr_load_subject subject;
    bool previewed;
    tsr_quantize_preview preview;
} judged;

/* Whether scales are missing or are not numbers, so that no loader can read the weights. */
static bool is_unsound(const tsr_contents *s)
{
    if (s->issues.omitted > 0)
        return true;
    for (size_t i = 0; i < s->issues.count; i++) {
        const tsr_issue *const f = &s->issues.items[i];
        if (f->fatal && strcmp(f->rule, "scale_fmt") != 0)
            return true;
    }
    return false;
}

/* What Tessera cannot interpret, it cannot quantize either: nobody is said to load it as it is. */
static bool is_to_be_quantized(const tsr_contents *s)
{
    return s->weights.method == NULL && s->by_dtype[TSR_F8_E4M3].tensors == 0 && s->unread.tensors == 0 &&
           !is_unsound(s);
}

/* What `tessera quantize` would warn of, whoever loads the result. */
static void add_warnings(tsr_issues *issues, const tsr_plan *plan)
{
    for (size_t i = 0; i < plan->n_warnings; i++) {
        const tsr_issue warning = {.rule = "plan", .detail = plan->warnings[i]};
        tsr_issues_add(issues, &warning);
    }
}

/* TSR_E_NOTHING from planning: there is nothing to quantize, and the checkpoint is judged as it is. */
static tsr_status find_judged(judged *j, const arguments *a, const tsr_checkpoint *c, const tsr_contents *s,
                              tsr_err *err)
{
    const tsr_status status =
        !a->as_is && is_to_be_quantized(s) ? tsr_quantize_preview_make(&j->preview, c, err) : TSR_E_NOTHING;
    j->previewed = status == TSR_OK;
    if (j->previewed)
        j->subject = (tsr_load_subject){
            .checkpoint = &j->preview.seen, .weights = &j->preview.weights, .model = &s->model, .index_metadata = true};
    else if (status == TSR_E_NOTHING)
        j->subject = (tsr_load_subject){.checkpoint = c,
                                        .weights = &s->weights,
                                        .model = &s->model,
                                        .odd_scale = s->scale_stats.odd,
                                        .zero_exponent = s->scale_stats.zero_exponent,
                                        .zero_exponent_at = s->scale_stats.zero_exponent_at,
                                        .index_metadata = s->has_metadata,
                                        .unsound = is_unsound(s)};
    else
        return tsr_prepend(err, status, "as `tessera quantize` would write it");
    return TSR_OK;
}

static bool all_ok(const tsr_load_table *table)
{
    for (size_t i = 0; i < table->n_loaders; i++) {
        for (size_t k = 0; k < table->n_tp; k++) {
            if (!table->ok[i][k])
                return false;
        }
    }
    return true;
}

/* ---- telling ---- */

static void begin_json(tsr_text *t, const char *schema)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "schema", schema);
    tsr_json_member_string(t, "version", TSR_VERSION);
}

static tsr_status write_results(const arguments *a, tsr_text *t, tsr_err *err)
{
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
    return tsr_results_write(a->json, a->junit, t, err);
}

static bool has_results(const arguments *a)
{
    return a->json != NULL || a->junit != NULL;
}

static bool speaks(const arguments *a)
{
    return !a->quiet && !tsr_is_stdout(a->json) && !tsr_is_stdout(a->junit);
}

/* ---- doing ---- */

/* Refuses --can-load for anything but a whole checkpoint with Hugging Face's names, which the rules are made for. */
static tsr_status check_judgeable(const tsr_checkpoint *c, const tsr_contents *s, tsr_err *err)
{
    const tsr_manifest *const m = &s->manifest;
    if (m->ranks > 1)
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "%s: rank %llu of %llu of a tensor-parallel cut, which no loader takes, and which --tp would cut "
            "again: ask about the checkpoint that was cut, or join the ranks (tessera convert --merge)",
            c->path, (unsigned long long)m->rank, (unsigned long long)m->ranks);
    if (m->target != NULL)
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "%s: its weights lie in the layout of a kernel: --can-load judges checkpoints as Hugging Face has "
            "them; ask about the one that it was made from",
            c->path);
    return TSR_OK;
}

static tsr_status inspect_checkpoint(const arguments *a, const tsr_checkpoint *c, const tsr_contents *s, bool *short_of,
                                     tsr_err *err)
{
    tsr_load_table table = {.n_loaders = 0};
    tsr_issues issues = {0};
    tsr_text text = {0};
    judged j = {.previewed = false};
    tsr_status status = TSR_OK;
    if (a->can_load != NULL)
        TSR_TRY(check_judgeable(c, s, err));
    if (a->can_load != NULL) {
        TSR_TRY(parse_loaders(a->can_load, &table, err));
        TSR_TRY(parse_sizes(a->tp == NULL ? "1,2,4,8,16" : a->tp, &table, err));
        TSR_TRY(find_judged(&j, a, c, s, err));
        if (j.previewed)
            add_warnings(&issues, &j.preview.plan);
        status = tsr_loaders_check(&table, &j.subject, &issues, err);
    }
    *short_of = tsr_issues_any_fatal(&s->issues) || !all_ok(&table);
    if (status == TSR_OK && speaks(a)) {
        tsr_print_contents(c, s);
        tsr_print_issues(&s->issues);
        if (a->can_load != NULL)
            tsr_print_loaders(&table, j.previewed ? " (once quantized)" : "");
        tsr_print_issues(&issues);
    }
    if (status == TSR_OK && has_results(a)) {
        begin_json(&text, "tessera-inspect/1");
        tsr_json_contents(&text, c, s);
        tsr_json_issues(&text, "findings", &s->issues);
        if (a->can_load != NULL) {
            tsr_json_loaders(&text, &table);
            tsr_json_issues(&text, "load_findings", &issues);
        }
        status = write_results(a, &text, err);
    }
    tsr_text_free(&text);
    tsr_issues_free(&issues);
    if (j.previewed)
        tsr_quantize_preview_free(&j.preview);
    return status;
}

/* A checkpoint with tensors that Tessera does not interpret is described, and is bad input all the same. */
static tsr_status refuse_unread(const tsr_checkpoint *c, const tsr_contents *s, tsr_err *err)
{
    for (size_t i = 0; s->unread.tensors > 0 && i < s->issues.count; i++) {
        if (strcmp(s->issues.items[i].rule, "unread") == 0)
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%zu of %zu tensors are nothing that Tessera reads: %s",
                            (size_t)s->unread.tensors, c->tensors.count, s->issues.items[i].detail);
    }
    return TSR_OK;
}

/* Finds what a name means: a weight by its own name or that of its codes, or a tensor that stands with one. A scale is shown
 * with the dtype that it is read as, which for U8 is not the stored one; `renamed` is storage for that. */
static tsr_status find_tensor(const tsr_checkpoint *c, const tsr_contents *s, const char *name, tsr_tensor *renamed,
                              tsr_inspected *x, tsr_err *err)
{
    const tsr_tensor *const t = tsr_checkpoint_find(c, name);
    const tsr_weight *const paired = tsr_weights_find(&s->weights, c, name);
    *x = (tsr_inspected){.stored = t, .weight = {.data = t, .values = t}};
    if (t == NULL && paired == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: there is no tensor '%s'", c->path, name);
    if (paired != NULL) {
        x->weight = *paired;
        x->stored = paired->data;
        return TSR_OK;
    }
    x->owner = tsr_weights_owner(&s->weights, t, &x->role);
    if (x->owner != NULL && t == x->owner->scale) {
        *renamed = *t;
        renamed->dtype = x->owner->scale_dtype;
        x->weight.data = x->weight.values = renamed;
    }
    return TSR_OK;
}

static tsr_status inspect_tensor(const arguments *a, const tsr_checkpoint *c, const tsr_contents *s, const char *name,
                                 tsr_err *err)
{
    tsr_tensor renamed;
    tsr_inspected x;
    tsr_text text = {0};
    TSR_TRY(find_tensor(c, s, name, &renamed, &x, err));
    const tsr_block block = x.owner != NULL ? (tsr_block){1, 1} : (tsr_block){0, 0};
    tsr_histogram *const h = malloc(sizeof *h);
    tsr_status status = h == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
    if (status == TSR_OK)
        status = tsr_histogram_run(h, c, &x.weight, block, err);
    if (status == TSR_OK && speaks(a))
        tsr_print_tensor(c, &x, h);
    if (status == TSR_OK && has_results(a)) {
        begin_json(&text, "tessera-inspect-tensor/1");
        tsr_json_tensor(&text, c, &x, h);
        status = write_results(a, &text, err);
    }
    tsr_text_free(&text);
    free(h);
    return status;
}

/* Whether something is there. Where a circle of links is in the way, opening it says so. */
static tsr_status look(const char *path, bool *exists, tsr_err *err)
{
    *exists = access(path, F_OK) == 0 || errno == ELOOP;
    if (!*exists && errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG)
        return tsr_fail_errno(err, "%s: cannot look at it", path);
    return TSR_OK;
}

/* Splits "DIR:TENSOR" at the last colon whose left side exists as a path; *tensor is NULL for a path alone. */
static tsr_status split(char *path, const char **tensor, tsr_err *err)
{
    bool exists;
    *tensor = NULL;
    TSR_TRY(look(path, &exists, err));
    for (char *colon = strrchr(path, ':'); colon != NULL && !exists;
         colon = memrchr(path, ':', (size_t)(colon - path))) {
        *colon = '\0';
        TSR_TRY(look(path, &exists, err));
        *tensor = exists ? colon + 1 : NULL;
        if (!exists)
            *colon = ':';
    }
    return TSR_OK;
}

static tsr_status inspect(const arguments *a, bool *short_of, tsr_err *err)
{
    tsr_checkpoint *checkpoint = NULL;
    tsr_contents survey;
    const char *tensor;
    tsr_block block;
    TSR_TRY(tsr_parse_block("--source-block", a->source_block, &block, err));
    char *const path = strdup(a->path);
    if (path == NULL)
        return tsr_out_of_memory(err, NULL);
    tsr_status status = split(path, &tensor, err);
    const tsr_places places = {.sources = {path}, .json = a->json, .junit = a->junit};
    if (status == TSR_OK && tensor != NULL && a->can_load != NULL)
        status = tsr_fail(err, TSR_E_USAGE, "--can-load asks about a checkpoint, not about one tensor");
    if (status == TSR_OK)
        status = tsr_places_check(&places, err);
    if (status == TSR_OK)
        status = tsr_checkpoint_open(&checkpoint, path, a->ignore.items, a->ignore.count, err);
    if (status == TSR_OK)
        tsr_tell_unfit_files(&a->ignore, checkpoint);
    if (status == TSR_OK && (status = tsr_contents_find(&survey, checkpoint, block, err)) == TSR_OK) {
        status = tensor == NULL ? inspect_checkpoint(a, checkpoint, &survey, short_of, err)
                                : inspect_tensor(a, checkpoint, &survey, tensor, err);
        if (status == TSR_OK && tensor == NULL)
            status = refuse_unread(checkpoint, &survey, err);
        tsr_contents_free(&survey);
    }
    tsr_checkpoint_close(checkpoint);
    free(path);
    return status;
}

int tsr_cmd_inspect(int argc, char **argv)
{
    arguments a = {0};
    tsr_err err = {{0}};
    bool short_of = false;
    tsr_status status = parse(argc, argv, &a, &err);
    if (status == TSR_OK && !a.help)
        status = inspect(&a, &short_of, &err);
    return tsr_end("inspect", status, !short_of, &err);
}
