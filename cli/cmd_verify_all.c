/* tessera verify all: the options that kinds share, and the jobs that they fill. */
#include "cli/commands.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/sandbox.h"
#include "cli/verify_all.h"
#include "cli/verify_forward.h"
#include "cli/verify_kernels.h"
#include "cli/verify_weights.h"

#include <stdio.h>
#include <string.h>

#define KINDS "weights|gemm|epilogue|dequant|mla|forward"

typedef struct arguments {
    const char *dst, *against, *activations, *block;
    tsr_list tensors, skipped;
    tsr_device_options device;
    tsr_device_kind kind;
    tsr_block source_block;
    uint64_t sample, seed, layer, memory;
    tsr_weight_limit_texts weights;
    tsr_forward_texts forward;
    tsr_check_options last;
} arguments;

/* A job of each kind. */
typedef struct jobs {
    tsr_verify_weights weights;
    tsr_verify_kernels kernels[TSR_N_KERNEL_CHECKS];
    tsr_verify_forward forward;
} jobs;

static const char *const kDevices[] = {
    [TSR_DEVICE_AUTO] = "auto", [TSR_DEVICE_CPU] = "cpu", [TSR_DEVICE_CUDA] = "cuda"};

static const char kHelp[] =
    "tessera verify all DST --against SRC [options]\n\n"
    "Every kind of verify that applies to what DST holds, one after another, with one verdict, one JSON and one "
    "JUnit:\n"
    "  weights   always\n"
    "  gemm      e4m3 in blocks, MXFP4, NVFP4, MXFP8\n"
    "  epilogue  int8 with a scale a row\n"
    "  dequant   int8 and int4, MXFP4, NVFP4, MXFP8\n"
    "  mla       config.json has a kv_lora_rank\n"
    "  forward   config.json has a model_type that verify forward knows, and the tokens fit into --memory\n"
    "What does not apply is listed with the reason. What applies but cannot be carried out is an error of its kind, "
    "and\n"
    "the others are carried out all the same.\n"
    "Exit code 0: all that apply passed; otherwise the gravest of the kinds': of 130, 4, 5, 3, 2, 1.\n\n"
    "Examples:\n"
    "  tessera verify all DeepSeek-V3-FP8 --against DeepSeek-V3-BF16 --device cuda --skip forward\n"
    "  tessera verify all out --against model --json all.json --junit all.xml       for CI\n"
    "  tessera report all.json --html report.html --markdown comment.md             the same for people\n"
    "  tessera verify all out --against model --sample 8 --layers 0..3 --tokens prompt.txt --max-kl 0.05\n\n"
    "Options:\n";

static void list_options(arguments *a, jobs *j, tsr_option *options)
{
    const tsr_option shared[] = {
        {"--against", TSR_OPT_TEXT, &a->against, "SRC", "what DST was made from"},
        {"--skip", TSR_OPT_LIST, &a->skipped, KINDS, "leave this kind out; may be repeated"},
        TSR_DEVICE_OPTIONS(&a->device),
        {"--tensors", TSR_OPT_LIST, &a->tensors, "GLOB",
         "of weights, gemm, epilogue, dequant: only tensors with these names; may be repeated"},
        {"--sample", TSR_OPT_COUNT, &a->sample, "N", "of gemm, epilogue, dequant: only N of the tensors (all)"},
        {"--seed", TSR_OPT_COUNT, &a->seed, "S", "seed of every choice, and of what is drawn (0)"},
        {"--activations", TSR_OPT_TEXT, &a->activations, "FILE",
         "of gemm, epilogue, dequant: safetensors with inputs of layers, by name (drawn)"},
        {"--source-block", TSR_OPT_TEXT, &a->block, "RxC", "FP8 blocks, where config.json states none"},
        {0},
    };
    const tsr_option mla[] = {{"--layer", TSR_OPT_COUNT, &a->layer, "L", "of mla: the layer (0)"}, {0}};
    const tsr_option memory[] = {
        {"--memory", TSR_OPT_SIZE, &a->memory, "SIZE", "what weights, and forward, may use at most (2GiB)"}, {0}};
    memcpy(options, shared, sizeof shared);
    tsr_weight_limit_options(options, &a->weights, &j->weights.limits);
    tsr_options_append(options, mla);
    tsr_forward_options(options, &a->forward);
    tsr_options_append(options, memory);
    tsr_options_append_check(options, &a->last);
}

/* The words of --skip have to be kinds. */
static tsr_status check_skipped(const arguments *a, tsr_err *err)
{
    char words[sizeof KINDS] = KINDS, meant[80];
    for (char *p = words; (p = strchr(p, '|')) != NULL;)
        *p = ' ';
    for (size_t i = 0; i < a->skipped.count; i++) {
        const char *const word = a->skipped.items[i];
        if (*word == '\0' || !tsr_is_listed(words, word))
            return tsr_fail(err, TSR_E_USAGE, "--skip: '%s' is not one of %s%s", word, KINDS,
                            tsr_did_you_mean(word, KINDS, meant));
    }
    return TSR_OK;
}

static tsr_status parse(int argc, char **argv, arguments *a, jobs *j, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS];
    size_t n;
    list_options(a, j, options);
    TSR_TRY(tsr_options_parse(options, argc, argv, &a->dst, 1, &n, NULL, err));
    if (a->last.help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    if (a->dst == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera verify all DST --against SRC");
    if (a->against == NULL)
        return tsr_fail(err, TSR_E_USAGE, "held to what? --against SRC");
    if (a->last.threads == 0)
        return tsr_fail(err, TSR_E_USAGE, "--threads: at least 1");
    a->last.threads = a->last.threads > UINT16_MAX ? UINT16_MAX : a->last.threads;
    TSR_TRY(check_skipped(a, err));
    TSR_TRY(tsr_device_asked(&a->device, &a->kind, err));
    TSR_TRY(tsr_parse_block("--source-block", a->block, &a->source_block, err));
    TSR_TRY(tsr_weight_limits_parse(&j->weights.limits, &a->weights, err));
    TSR_TRY(tsr_forward_texts_parse(&j->forward.request, &a->forward, err));
    const tsr_places places = {.sources = {a->dst, a->against, a->activations, a->forward.tokens},
                               .json = a->last.json,
                               .junit = a->last.junit,
                               .progress = a->last.progress.file,
                               .unconfined = tsr_unconfined_device(a->kind != TSR_DEVICE_CPU, a->forward.tokens)};
    return tsr_places_check(&places, err);
}

/* ---- jobs ---- */

static jobs jobs_defaults(void)
{
    jobs j = {.weights = tsr_verify_weights_defaults(), .forward = tsr_verify_forward_defaults()};
    for (tsr_kernel_check check = 0; check < TSR_N_KERNEL_CHECKS; check++)
        j.kernels[check] = tsr_verify_kernels_defaults(check);
    return j;
}

/* Passes on what the command line says, but for limits, which are there already. */
static void fill_jobs(jobs *j, const arguments *a)
{
    tsr_compare_job *const compared = &j->weights.compared;
    compared->path[0] = a->against;
    compared->path[1] = a->dst;
    compared->block = a->block;
    compared->tensors = a->tensors;
    compared->threads = a->last.threads;
    compared->memory = a->memory;
    for (size_t i = 0; i < TSR_N_KERNEL_CHECKS; i++) {
        tsr_verify_kernels *const v = &j->kernels[i];
        v->dst = a->dst;
        v->against = a->against;
        v->activations = v->check == TSR_KERNEL_MLA ? NULL : a->activations;
        v->block = a->source_block;
        v->kind = a->kind;
        v->options.globs = a->tensors.items;
        v->options.n_globs = a->tensors.count;
        v->options.sample = a->sample;
        v->options.seed = a->seed;
        v->options.run.threads = a->last.threads;
        v->options.mla.layer = a->layer;
    }
    j->forward.sides[0] = a->against;
    j->forward.sides[1] = a->dst;
    j->forward.request.device = a->kind;
    j->forward.threads = a->last.threads;
    j->forward.memory = a->memory;
    j->forward.request.seed = a->seed;
}

static void add_run(tsr_verify_all *all, const arguments *a, tsr_kind_run run)
{
    for (size_t i = 0; i < a->skipped.count; i++)
        run.left_out = run.left_out || strcmp(a->skipped.items[i], run.name) == 0;
    all->runs[all->count++] = run;
}

static void list_runs(tsr_verify_all *all, const arguments *a, jobs *j)
{
    static const char *const kCommands[TSR_N_KERNEL_CHECKS] = {"verify gemm", "verify epilogue", "verify dequant",
                                                               "verify mla"};
    add_run(all, a,
            (tsr_kind_run){.name = "weights", .command = "verify", .kind = &tsr_kind_weights, .job = &j->weights});
    for (tsr_kernel_check check = 0; check < TSR_N_KERNEL_CHECKS; check++) {
        add_run(all, a,
                (tsr_kind_run){.name = tsr_kernel_check_name(check),
                               .command = kCommands[check],
                               .kind = &tsr_kind_kernels,
                               .job = &j->kernels[check]});
    }
    add_run(
        all, a,
        (tsr_kind_run){.name = "forward", .command = "verify forward", .kind = &tsr_kind_forward, .job = &j->forward});
}

/* ---- running ---- */

static tsr_status verify(tsr_verify_all *all, const tsr_check_options *last, tsr_err *err)
{
    tsr_terminal terminal;
    tsr_text json = {0};
    TSR_TRY(tsr_terminal_open(&terminal, last->quiet, &last->progress, err));
    tsr_status status = tsr_verify_all_run(all, &terminal, err);
    tsr_terminal_close(&terminal);
    TSR_TRY(status);
    tsr_verify_all_json(&json, all);
    status = tsr_text_status(&json, err);
    if (status == TSR_OK && !last->quiet && !tsr_is_stdout(last->json) && !tsr_is_stdout(last->junit))
        status = tsr_verify_all_print(all, &json, err);
    if (status == TSR_OK)
        status = tsr_results_write(last->json, last->junit, &json, err);
    tsr_text_free(&json);
    return status;
}

int tsr_cmd_verify_all(int argc, char **argv)
{
    jobs j = jobs_defaults();
    arguments a = {
        .memory = TSR_DEFAULT_MEMORY, .forward = tsr_forward_texts_defaults(), .last.threads = tsr_cpu_count()};
    tsr_verify_all all = {.count = 0};
    tsr_err err = {{0}};
    tsr_status status = parse(argc - 1, argv + 1, &a, &j, &err);
    fill_jobs(&j, &a);
    all.dst = a.dst;
    all.against = a.against;
    all.device = kDevices[a.kind];
    list_runs(&all, &a, &j);
    bool fine = true;
    if (status == TSR_OK && !a.last.help) {
        status = verify(&all, &a.last, &err);
        const tsr_kind_run *const gravest = tsr_verify_all_gravest(&all);
        fine = tsr_kind_exit_code(gravest) == 0;
        if (status == TSR_OK && gravest->status == TSR_KIND_ERROR) {
            status = tsr_fail(&err, gravest->ended, "%s: %s", gravest->name, gravest->why.msg);
        }
    }
    tsr_verify_all_free(&all);
    return tsr_end("verify all", status, fine, &err);
}
