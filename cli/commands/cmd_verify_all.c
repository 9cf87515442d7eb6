/* Implements `tessera verify all`: common options of the kinds, and their commands. */
#include "cli/commands/commands.h"
#include "cli/io/results.h"
#include "cli/show/verify_all.h"
#include "cli/show/verify_forward.h"
#include "cli/show/verify_kernels.h"
#include "cli/show/verify_weights.h"

#include <string.h>

#define KINDS "weights|gemm|epilogue|dequant|mla|forward"

typedef struct verifying {
    const char *against, *activations;
    tsr_list tensors, skip;
    int device; /* a tsr_device_kind */
    uint64_t sample, seed, layer;
    tsr_weight_limits limits;
    tsr_weight_limit_texts weights;
    tsr_forward_request request; /* options that only forward uses */
    tsr_forward_texts forward;
    tsr_verify_all all;
} verifying;

static const struct {
    const char *name;
    const tsr_command *command;
} kKinds[] = {
    {"weights", &tsr_command_verify},           {"gemm", &tsr_command_verify_gemm},
    {"epilogue", &tsr_command_verify_epilogue}, {"dequant", &tsr_command_verify_dequant},
    {"mla", &tsr_command_verify_mla},           {"forward", &tsr_command_verify_forward},
};

/* Options that only some kinds use. */
static const struct {
    const char *kinds, *options;
} kUses[] = {
    {"weights", "--min-sqnr --max-block-error --max-misrounded --method --max-cast-error"},
    {"mla", "--layer"},
    {"forward",
     "--baseline --layers --tokens --batch --count --devices --kl-by-layer --exact --min-stream --max-kl --min-top1"},
    {"weights gemm epilogue dequant", "--tensors --source-block"},
    {"gemm epilogue dequant", "--sample --activations"},
    {"gemm epilogue dequant mla forward", "--device --seed"},
};

static const char *const kDevices[] = {
    [TSR_DEVICE_AUTO] = "auto", [TSR_DEVICE_CPU] = "cpu", [TSR_DEVICE_CUDA] = "cuda"};

static const char kHelp[] =
    "tessera verify all DST --against SRC [options]\n\n"
    "Runs every kind of verify that applies to DST, with one verdict, one JSON and one JUnit result:\n\n"
    "  weights   always\n"
    "  gemm      e4m3 in blocks, MXFP4, NVFP4, MXFP8\n"
    "  epilogue  int8 with a scale a row\n"
    "  dequant   int8 and int4, MXFP4, NVFP4, MXFP8\n"
    "  mla       config.json has a kv_lora_rank; with sparse attention, if the layer has an indexer\n"
    "  forward   config.json has a model_type that verify forward knows, and the tokens fit into --memory\n\n"
    "Kinds that do not apply are listed with the reason. If a kind that applies cannot be run, its result\n"
    "is an error, and the other kinds still run.\n\n"
    "Exit code 0: all kinds that apply passed. Otherwise it is the gravest exit code of a kind, of 130,\n"
    "4, 5, 3, 2, 1.\n\n"
    "Examples:\n"
    "  tessera verify all DeepSeek-V3-FP8 --against DeepSeek-V3-BF16 --device cuda --skip forward\n"
    "  tessera verify all out --against model --json all.json --junit all.xml       for CI\n"
    "  tessera report all.json --html report.html --markdown comment.md             the same for people\n"
    "  tessera verify all out --against model --sample 8 --layers 0..3 --tokens prompt.txt --max-kl 0.05\n\n"
    "Options:\n";

/* ---- options ---- */

static void set_defaults(tsr_command_context *c)
{
    verifying *const a = c->job;
    a->limits = tsr_weight_limits_defaults();
    a->forward = tsr_forward_texts_defaults();
    a->request = (tsr_forward_request){.last = SIZE_MAX, .devices = 1, .limits = tsr_forward_limits_defaults()};
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    verifying *const a = c->job;
    const tsr_option shared[] = {
        {"--against", TSR_OPT_TEXT, &a->against, "SRC", "the checkpoint that DST was made from"},
        {"--skip", TSR_OPT_LIST, &a->skip, KINDS, "leave this kind out; may be repeated"},
        TSR_DEVICE_OPTION(&a->device),
        {"--tensors", TSR_OPT_LIST, &a->tensors, "GLOB",
         "for weights, gemm, epilogue, dequant: only tensors with these names; may be repeated"},
        {"--sample", TSR_OPT_POSITIVE, &a->sample, "N", "for gemm, epilogue, dequant: only N of the tensors (all)"},
        {"--seed", TSR_OPT_COUNT, &a->seed, "S", "seed of every random choice (0)"},
        {"--activations", TSR_OPT_TEXT, &a->activations, "FILE",
         "for gemm, epilogue, dequant: safetensors with inputs of layers, by name (random)"},
        {0},
    };
    const tsr_option mla[] = {{"--layer", TSR_OPT_COUNT, &a->layer, "L", "for mla: the layer (0)"}, {0}};
    tsr_options_append(options, shared);
    tsr_weight_limit_options(options, &a->weights, &a->limits);
    tsr_options_append(options, mla);
    tsr_forward_options(options, &a->forward);
}

/* Rejects a word of --skip that is not a kind. */
static tsr_status check_skipped(const verifying *a, tsr_err *err)
{
    char words[sizeof KINDS] = KINDS, meant[80];
    for (char *p = words; (p = strchr(p, '|')) != NULL;)
        *p = ' ';
    for (size_t i = 0; i < a->skip.count; i++) {
        const char *const word = a->skip.items[i];
        if (*word == '\0' || !tsr_is_listed(words, word))
            return tsr_fail(err, TSR_E_USAGE, "--skip: '%s' is not one of %s%s", word, KINDS,
                            tsr_did_you_mean(word, KINDS, meant));
    }
    return TSR_OK;
}

static bool is_skipped(const verifying *a, const char *kind)
{
    size_t i = 0;
    while (i < a->skip.count && strcmp(a->skip.items[i], kind) != 0)
        i++;
    return i < a->skip.count;
}

/* Returns true if a kind that is not skipped uses the option. */
static bool is_used(const verifying *a, const char *option)
{
    bool listed = false;
    for (size_t i = 0; i < sizeof kUses / sizeof *kUses; i++) {
        if (!tsr_is_listed(kUses[i].options, option))
            continue;
        listed = true;
        for (size_t k = 0; k < sizeof kKinds / sizeof *kKinds; k++) {
            if (tsr_is_listed(kUses[i].kinds, kKinds[k].name) && !is_skipped(a, kKinds[k].name))
                return true;
        }
    }
    return !listed;
}

/* Rejects options whose kinds are all skipped. */
static tsr_status check_used(const tsr_command_context *c, tsr_err *err)
{
    for (size_t i = 0; c->options[i].name != NULL; i++) {
        if ((c->given >> i & 1) != 0 && !is_used(c->job, c->options[i].name))
            return tsr_fail(err, TSR_E_USAGE, "%s has no effect: --skip leaves out the kinds that use it",
                            c->options[i].name);
    }
    return TSR_OK;
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    verifying *const a = c->job;
    a->all.dst = c->words[0];
    a->all.against = a->against;
    a->all.device = kDevices[a->device];
    if (a->all.dst == NULL)
        return tsr_fail(err, TSR_E_USAGE, "no checkpoint given: tessera verify all DST --against SRC");
    if (a->against == NULL)
        return tsr_fail(err, TSR_E_USAGE, "no source given: add --against SRC");
    c->common.threads = c->common.threads > UINT16_MAX ? UINT16_MAX : c->common.threads;
    TSR_TRY(check_skipped(a, err));
    TSR_TRY(check_used(c, err));
    TSR_TRY(tsr_weight_limits_parse(&a->limits, &a->weights, err));
    return tsr_forward_texts_parse(&a->request, &a->forward, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const verifying *const a = c->job;
    const char *const sources[] = {a->all.dst, a->against, a->activations, a->forward.tokens, a->forward.baseline};
    memcpy(paths->sources, sources, sizeof sources);
    paths->unconfined = tsr_unconfined_device(a->device != TSR_DEVICE_CPU, false, a->forward.tokens);
}

/* ---- the kinds ---- */

static void fill_weights(tsr_verify_weights *v, const verifying *a)
{
    v->limits = a->limits;
    v->compared.path[0] = a->against;
    v->compared.path[1] = a->all.dst;
    v->compared.tensors = a->tensors;
}

static void fill_kernels(tsr_verify_kernels *v, const verifying *a)
{
    v->dst = a->all.dst;
    v->against = a->against;
    v->activations = v->check == TSR_KERNEL_MLA ? NULL : a->activations;
    v->device = a->device;
    v->options.globs = a->tensors.items;
    v->options.n_globs = a->tensors.count;
    v->options.sample = a->sample;
    v->options.seed = a->seed;
    v->options.mla.layer = a->layer;
    v->options.mla.sparse_if_indexed = true;
}

static void fill_forward(tsr_verify_forward *v, const verifying *a, uint64_t memory)
{
    v->sides[0] = a->against;
    v->sides[1] = a->all.dst;
    v->sides[2] = a->forward.baseline;
    v->memory = memory;
    v->request = a->request;
    v->request.device = (tsr_device_kind)a->device;
    v->request.seed = a->seed;
}

/* Begins the command of each kind, and fills its job from the command line. */
static tsr_status begin_kinds(tsr_command_context *c, tsr_err *err)
{
    verifying *const a = c->job;
    for (size_t i = 0; i < sizeof kKinds / sizeof *kKinds; i++) {
        const tsr_command *const command = kKinds[i].command;
        tsr_kind_run *const run = &a->all.runs[a->all.count++];
        run->name = kKinds[i].name;
        run->open = true;
        TSR_TRY(tsr_command_begin(&run->context, command, c, err));
        run->context.batch = c->batch;
        run->context.common.threads = c->common.threads;
        run->context.common.memory = c->common.memory;
        run->context.common.block = c->common.block;
        run->skipped = is_skipped(a, run->name);
        if (command == &tsr_command_verify)
            fill_weights(run->context.job, a);
        else if (command == &tsr_command_verify_forward)
            fill_forward(run->context.job, a, c->common.memory);
        else
            fill_kernels(run->context.job, a);
    }
    return TSR_OK;
}

/* ---- running ---- */

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    verifying *const a = c->job;
    return tsr_verify_all_run(&a->all, terminal, err);
}

static tsr_status print(tsr_command_context *c, tsr_err *err)
{
    const verifying *const a = c->job;
    tsr_report report;
    TSR_TRY(tsr_result_report(&report, c, err));
    const tsr_status status = tsr_verify_all_print(&a->all, &report, err);
    tsr_report_free(&report);
    return status;
}

static void write_json(const tsr_command_context *c, tsr_text *text)
{
    const verifying *const a = c->job;
    tsr_verify_all_json(text, &a->all);
}

/* Returns the error of the kind with the most severe exit code; it is also in the result. */
static tsr_status conclude(tsr_command_context *c, tsr_err *err)
{
    const verifying *const a = c->job;
    const tsr_kind_run *const gravest = tsr_verify_all_gravest(&a->all);
    if (gravest->status != TSR_KIND_ERROR)
        return TSR_OK;
    (void)tsr_fail_with(err, gravest->ended, &gravest->why);
    return tsr_prepend(err, gravest->ended, "%s", gravest->name);
}

static int exit_code(const tsr_command_context *c)
{
    const verifying *const a = c->job;
    return tsr_kind_exit_code(tsr_verify_all_gravest(&a->all));
}

static void close_job(tsr_command_context *c)
{
    verifying *const a = c->job;
    tsr_verify_all_free(&a->all);
}

const tsr_command tsr_command_verify_all = {
    .name = "verify all",
    .schema = "tessera-verify-all/1",
    TSR_COMMAND(1, TSR_TAKES_SOURCE_BLOCK | TSR_TAKES_THREADS | TSR_TAKES_MEMORY | TSR_TAKES_PROGRESS, verifying),
    .set_defaults = set_defaults,
    .open = begin_kinds,
    .print = print,
    .write_json = write_json,
    .conclude = conclude,
    .exit_code = exit_code,
};
