/* Implements `tessera inspect`: its options and its inputs. */
#include "cli/commands/commands.h"
#include "cli/help/help.h"
#include "cli/io/globs.h"
#include "cli/io/loader_options.h"
#include "cli/show/inspect/inspect_list.h"
#include "cli/show/inspect/inspect_print.h"
#include "convert/jobs/quantize_preview.h"
#include "formats/remote/address.h"
#include "formats/remote/settings/hub_access.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The checkpoint itself, or the output that `tessera quantize` would write. */
typedef struct judged {
    tsr_load_subject subject;
    bool previewed;
    tsr_quantize_preview preview;
} judged;

typedef struct inspecting {
    const char *can_load, *tp, *loaders;
    int gpu; /* a tsr_gpu_model */
    bool as_is;
    char *path;         /* path of the checkpoint */
    const char *tensor; /* NULL: the whole checkpoint */
    tsr_list tensors;   /* globs of --tensors */
    tsr_load_table table;

    tsr_checkpoint *checkpoint;
    bool surveyed;
    tsr_contents contents;
    bool paired;
    tsr_weights weights; /* --tensors */
    tsr_tensor_list list;
    judged judged;
    tsr_issues load_issues; /* issues that --can-load found */
    tsr_tensor renamed;     /* storage for `inspected` */
    tsr_inspected inspected;
    tsr_histogram *histogram;
} inspecting;

static const char kHelp[] =
    "tessera inspect PATH [options]\n"
    "tessera inspect PATH:TENSOR [options]\n"
    "tessera inspect PATH --tensors GLOB\n"
    "tessera inspect --loaders MODEL_TYPE\n\n"
    "Prints what a checkpoint holds: files, parameters by part of the model, which tensors are quantized\n"
    "and how, scales, attention and its KV cache. For one tensor it prints values, codes and a map of\n"
    "blocks; for a scale, its weight and its grid. PATH is a Hugging Face directory, one .safetensors\n"
    "file, or an address: hf://ORG/NAME, s3://, https:// (docs/remote.md). Of a whole checkpoint only headers, configuration and scales are read.\n\n"
    "--can-load prints which loaders can load it at which tensor-parallel sizes, and which tensor breaks\n"
    "which rule. A checkpoint that is not quantized yet is checked as `tessera quantize` would write it,\n"
    "unless --as-is is given. LOADERS is all, or names with commas: vllm, sglang, transformers, deepseek,\n"
    "trtllm. --loaders prints the rules by which that is judged.\n\n"
    "Examples:\n"
    "  tessera inspect DeepSeek-V3\n"
    "  tessera inspect DeepSeek-V3:model.layers.3.self_attn.kv_b_proj.weight\n"
    "  tessera inspect DeepSeek-V3:model.layers.3.self_attn.kv_b_proj.weight_scale_inv\n"
    "  tessera inspect DeepSeek-V3 --tensors '*.layers.3.*'           dtype, shape, size and file of each\n"
    "  tessera inspect Qwen3-BF16 --can-load all --tp 1,2,4,8,16      before quantizing\n"
    "  tessera inspect out --can-load vllm --tp 8 --junit loaders.xml  in CI: exit code 1 says no\n"
    "  tessera inspect --loaders qwen3_next                           the rules about this class\n\n"
    "Exit codes: 0 fine; 1 something is wrong with the checkpoint, or a loader that was asked for cannot load it at a\n"
    "size that was asked for; 2 usage; 3 not a checkpoint, or tensors that Tessera does not read; 4 I/O.\n\n"
    "Options:\n";

/* ---- options ---- */

static void add_options(tsr_command_context *c, tsr_option *options)
{
    inspecting *const a = c->job;
    const tsr_option own[] = {
        {"--tensors", TSR_OPT_LIST, &a->tensors, "GLOB",
         "list the tensors with these names (*, ?, [0-3]: docs/policy.md) instead; reads only headers; may be repeated"},
        {"--can-load", TSR_OPT_TEXT, &a->can_load, "LOADERS",
         "check whether these loaders can load it; LOADERS is "
         "described above"},
        {"--tp", TSR_OPT_TEXT, &a->tp, "SIZES", "with --can-load: tensor-parallel sizes (1,2,4,8,16)"},
        {"--gpu", TSR_OPT_CHOICE, &a->gpu, TSR_GPU_WORDS,
         "with --can-load: the loaders must also have a kernel for this GPU; h100: also H200; b200: also GB200 (any)"},
        {"--as-is", TSR_OPT_FLAG, &a->as_is, NULL,
         "with --can-load: check the checkpoint as it is, even if it is not quantized yet"},
        {"--loaders", TSR_OPT_TEXT, &a->loaders, "MODEL_TYPE",
         "print the loader rules for this model_type of config.json, and stop; also with --json"},
        {0},
    };
    tsr_options_append(options, own);
}

/* ---- --tp ---- */

static tsr_status parse_sizes(const char *text, tsr_load_table *table, tsr_err *err)
{
    for (const char *p = text;;) {
        const char *end = p;
        uint64_t size;
        if (!tsr_take_decimal(&end, &size) || size == 0 || size > TSR_MOST_TP || (*end != ',' && *end != '\0'))
            return tsr_fail(err, TSR_E_USAGE, "--tp: '%s' is not a list of sizes from 1 to %d, as in 1,2,4,8", text,
                            (int)TSR_MOST_TP);
        if (table->n_tp == TSR_MAX_TP_SIZES)
            return tsr_fail(err, TSR_E_USAGE, "--tp: more than %d sizes", (int)TSR_MAX_TP_SIZES);
        table->tp[table->n_tp++] = (unsigned)size;
        if (*end == '\0')
            return TSR_OK;
        p = end + 1;
    }
}

/* ---- the subject of --can-load ---- */

/* Returns true if scales are missing or are not numbers, so that no loader can read the weights. */
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

/* Returns true for a checkpoint that `tessera quantize` would accept. It rejects tensors that Tessera cannot
 * interpret. */
static bool is_to_be_quantized(const tsr_contents *s)
{
    return s->weights.method == NULL && s->by_dtype[TSR_F8_E4M3].tensors == 0 && s->unread.tensors == 0 &&
           !is_unsound(s);
}

/* Adds the warnings of `tessera quantize`, which apply to all loaders. */
static void add_warnings(tsr_issues *issues, const tsr_plan *plan)
{
    for (size_t i = 0; i < plan->n_warnings; i++) {
        const tsr_issue warning = {.rule = "plan", .detail = plan->warnings[i]};
        tsr_issues_add(issues, &warning);
    }
}

/* Chooses the subject of --can-load. If there is nothing to quantize, it is the checkpoint itself. */
static tsr_status find_judged(judged *j, const inspecting *a, const tsr_checkpoint *c, const tsr_contents *s,
                              tsr_err *err)
{
    const tsr_status status = !a->as_is && is_to_be_quantized(s)
                                  ? tsr_quantize_preview_make(&j->preview, c, TSR_SCHEME_FP8_BLOCK, err)
                                  : TSR_E_NOTHING;
    j->previewed = status == TSR_OK;
    if (j->previewed)
        j->subject = (tsr_load_subject){.checkpoint = &j->preview.output.seen,
                                        .weights = &j->preview.output.weights,
                                        .model = &s->model,
                                        .index_metadata = true};
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

/* ---- a whole checkpoint ---- */

/* Rejects --can-load for anything but a complete checkpoint with Hugging Face's names, for which the rules were
 * made. */
static tsr_status check_judgeable(const tsr_checkpoint *c, const tsr_contents *s, tsr_err *err)
{
    const tsr_rank_file *const m = &s->manifest;
    if (m->ranks > 1)
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "%s: rank %llu of %llu of a tensor-parallel cut, which no loader reads and which --tp would cut again; "
            "check the checkpoint that was cut, or join the ranks first (tessera convert --merge)",
            c->path, (unsigned long long)m->rank, (unsigned long long)m->ranks);
    if (m->target != NULL)
        return tsr_fail(
            err, TSR_E_UNSUPPORTED,
            "%s: its weights are in the layout of a kernel, but --can-load judges Hugging Face checkpoints; check "
            "the checkpoint that it was made from",
            c->path);
    return TSR_OK;
}

static tsr_status judge_loaders(inspecting *a, tsr_err *err)
{
    judged *const j = &a->judged;
    TSR_TRY(check_judgeable(a->checkpoint, &a->contents, err));
    TSR_TRY(find_judged(j, a, a->checkpoint, &a->contents, err));
    if (j->previewed)
        add_warnings(&a->load_issues, &j->preview.plan);
    return tsr_loaders_check(&a->table, &j->subject, &a->load_issues, err);
}

static void print_checkpoint(const inspecting *a)
{
    tsr_print_contents(a->checkpoint, &a->contents);
    tsr_print_issues(&a->contents.issues);
    if (a->can_load != NULL)
        tsr_print_loaders(&a->table, a->judged.previewed ? " (once quantized)" : "");
    tsr_print_issues(&a->load_issues);
}

static void write_checkpoint(const inspecting *a, tsr_text *t)
{
    tsr_json_contents(t, a->checkpoint, &a->contents);
    tsr_json_issues(t, "findings", &a->contents.issues);
    if (a->can_load == NULL)
        return;
    tsr_json_loaders(t, &a->table);
    tsr_json_issues(t, "load_findings", &a->load_issues);
}

/* Rejects a checkpoint with tensors that Tessera cannot interpret, after it was described. */
static tsr_status refuse_unread(tsr_command_context *context, tsr_err *err)
{
    const inspecting *const a = context->job;
    const tsr_checkpoint *const c = a->checkpoint;
    const tsr_contents *const s = &a->contents;
    if (a->tensor != NULL || a->tensors.count > 0)
        return TSR_OK;
    for (size_t i = 0; s->unread.tensors > 0 && i < s->issues.count; i++) {
        if (strcmp(s->issues.items[i].rule, "unread") == 0)
            return tsr_fail(err, TSR_E_UNSUPPORTED, "Tessera cannot read %zu of %zu tensors: %s",
                            (size_t)s->unread.tensors, c->tensors.count, s->issues.items[i].detail);
    }
    return TSR_OK;
}

/* ---- one tensor ---- */

/* Resolves a name: a weight by its own name or that of its codes, or a companion of a weight. A scale is shown with the
 * dtype in which it is read, which for U8 is not the stored one; `renamed` is storage for that. */
static tsr_status find_tensor(const tsr_checkpoint *c, const tsr_contents *s, const char *name, tsr_tensor *renamed,
                              tsr_inspected *x, tsr_err *err)
{
    const tsr_tensor *const t = tsr_checkpoint_find(c, name);
    const tsr_weight *const paired = tsr_weights_find(&s->weights, c, name);
    *x = (tsr_inspected){.stored = t, .weight = {.data = t, .values = t}};
    if (t == NULL && paired == NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: no tensor '%s'", c->path, name);
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

static tsr_status inspect_tensor(const tsr_command_context *c, tsr_err *err)
{
    inspecting *const a = c->job;
    TSR_TRY(find_tensor(a->checkpoint, &a->contents, a->tensor, &a->renamed, &a->inspected, err));
    if (a->inspected.weight.scale == NULL && tsr_coding_of(a->checkpoint, a->inspected.weight.data) != TSR_PLAIN)
        tsr_command_warn(c,
                         "codes without a scale that fits: the values are those of the codes, and 'tessera inspect' of "
                         "the whole checkpoint says why");
    const tsr_block block = a->inspected.owner != NULL ? (tsr_block){1, 1} : (tsr_block){0, 0};
    a->histogram = malloc(sizeof *a->histogram);
    return a->histogram == NULL ? tsr_out_of_memory(err, NULL)
                                : tsr_histogram_run(a->histogram, a->checkpoint, &a->inspected.weight, block, err);
}

/* ---- the command ---- */

/* Checks whether a path exists. A loop of links counts as existing, so that opening it reports the loop. */
static tsr_status look(const char *path, bool *exists, tsr_err *err)
{
    char cached[PATH_MAX];
    *exists = access(path, F_OK) == 0 || errno == ELOOP;
    const int why = errno;
    *exists = *exists || tsr_hub_cached(path, cached);
    errno = why;
    if (!*exists && errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG)
        return tsr_fail_errno(err, "%s: cannot access it", path);
    return TSR_OK;
}

/* Splits the address of a model on a server from a tensor: the text after the last colon, if it can be the name of a
 * tensor and is not a port. */
static void split_address(char *address, const char **tensor)
{
    char *const colon = strrchr(address, ':'), *const host = strstr(address, "://") + 3;
    if (colon < host || strchr(colon, '/') != NULL || memchr(host, '/', (size_t)(colon - host)) == NULL ||
        strchr(address, '?') != NULL)
        return;
    *colon = '\0';
    *tensor = colon + 1;
}

/* Splits "DIR:TENSOR" at the last colon whose left side exists as a path; *tensor is NULL for a path alone. */
static tsr_status split(char *path, const char **tensor, tsr_err *err)
{
    bool exists;
    *tensor = NULL;
    if (tsr_is_remote(path)) {
        split_address(path, tensor);
        return TSR_OK;
    }
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

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    inspecting *const a = c->job;
    if (a->loaders != NULL && (c->words[0] != NULL || a->can_load != NULL))
        return tsr_fail(err, TSR_E_USAGE,
                        "--loaders takes a model_type and no checkpoint; --can-load LOADERS checks one");
    if (a->loaders != NULL) {
        c->done = true;
        return tsr_list_loader_rules(a->loaders, c->common.json, err);
    }
    if (c->words[0] == NULL)
        return tsr_fail(err, TSR_E_USAGE, "no checkpoint given: tessera inspect PATH");
    if ((a->tp != NULL || a->as_is || a->gpu != TSR_GPU_ANY) && a->can_load == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s needs --can-load",
                        a->as_is        ? "--as-is"
                        : a->tp != NULL ? "--tp"
                                        : "--gpu");
    a->path = strdup(c->words[0]);
    if (a->path == NULL)
        return tsr_out_of_memory(err, NULL);
    TSR_TRY(split(a->path, &a->tensor, err));
    if (a->tensors.count > 0 && (a->tensor != NULL || a->can_load != NULL))
        return tsr_fail(err, TSR_E_USAGE, "--tensors lists tensors of a checkpoint: it cannot be combined with %s",
                        a->can_load != NULL ? "--can-load" : "PATH:TENSOR");
    if (a->tensors.count > 0)
        c->schema = "tessera-inspect-tensors/1";
    if (a->tensor != NULL)
        c->schema = "tessera-inspect-tensor/1";
    if (a->tensor != NULL && a->can_load != NULL)
        return tsr_fail(err, TSR_E_USAGE, "--can-load checks a checkpoint, not one tensor");
    if (a->can_load == NULL)
        return TSR_OK;
    a->table.gpu = (tsr_gpu_model)a->gpu;
    TSR_TRY(tsr_parse_loaders("--can-load", a->can_load, &a->table, err));
    return parse_sizes(a->tp == NULL ? "1,2,4,8,16" : a->tp, &a->table, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const inspecting *const a = c->job;
    paths->sources[0] = a->path;
}

/* Lists the tensors that --tensors names. A checkpoint with defects is listed, too. */
static tsr_status list_tensors(inspecting *a, tsr_block block, tsr_err *err)
{
    TSR_TRY(tsr_weights_survey(&a->weights, a->checkpoint, block, tsr_weights_pass_over, NULL, err));
    a->paired = true;
    TSR_TRY(tsr_weights_refuse_block(&a->weights, 1, block, err));
    return tsr_tensor_list_find(&a->list, a->checkpoint, &a->weights, a->tensors.items, a->tensors.count, err);
}

static tsr_status open_checkpoint(tsr_command_context *c, tsr_err *err)
{
    inspecting *const a = c->job;
    TSR_TRY(tsr_checkpoint_open(&a->checkpoint, a->path, c->common.ignore.items, c->common.ignore.count, err));
    tsr_warn_unfit_files(c, a->checkpoint);
    if (a->tensors.count > 0)
        return list_tensors(a, c->common.block, err);
    TSR_TRY(tsr_contents_find(&a->contents, a->checkpoint, c->common.block, err));
    a->surveyed = true;
    return tsr_weights_refuse_block(&a->contents.weights, 1, c->common.block, err);
}

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    inspecting *const a = c->job;
    (void)terminal;
    if (a->tensor != NULL)
        return inspect_tensor(c, err);
    return a->can_load == NULL ? TSR_OK : judge_loaders(a, err);
}

static tsr_status print(tsr_command_context *c, tsr_err *err)
{
    const inspecting *const a = c->job;
    (void)err;
    if (a->tensors.count > 0)
        tsr_tensor_list_print(&a->list, a->checkpoint);
    else if (a->tensor != NULL)
        tsr_print_tensor(a->checkpoint, &a->inspected, a->histogram);
    else
        print_checkpoint(a);
    return TSR_OK;
}

static void write_json(const tsr_command_context *c, tsr_text *t)
{
    const inspecting *const a = c->job;
    if (a->tensors.count > 0)
        tsr_tensor_list_json(&a->list, a->checkpoint, t);
    else if (a->tensor != NULL)
        tsr_json_tensor(t, a->checkpoint, &a->inspected, a->histogram);
    else
        write_checkpoint(a, t);
}

static int exit_code(const tsr_command_context *c)
{
    const inspecting *const a = c->job;
    return a->tensor == NULL && a->tensors.count == 0 &&
           (tsr_issues_any_fatal(&a->contents.issues) || !all_ok(&a->table));
}

static void close_job(tsr_command_context *c)
{
    inspecting *const a = c->job;
    free(a->histogram);
    tsr_issues_free(&a->load_issues);
    if (a->judged.previewed)
        tsr_quantize_preview_free(&a->judged.preview);
    if (a->surveyed)
        tsr_contents_free(&a->contents);
    free(a->list.rows);
    if (a->paired)
        tsr_weights_free(&a->weights);
    tsr_checkpoint_close(a->checkpoint);
    free(a->path);
}

const tsr_command tsr_command_inspect = {
    .name = "inspect",
    .summary = "what a checkpoint holds, and who can load it",
    .schema = "tessera-inspect/1",
    TSR_COMMAND(1, TSR_TAKES_IGNORE_FILE | TSR_TAKES_SOURCE_BLOCK, inspecting),
    .open = open_checkpoint,
    .print = print,
    .write_json = write_json,
    .conclude = refuse_unread,
    .exit_code = exit_code,
};
