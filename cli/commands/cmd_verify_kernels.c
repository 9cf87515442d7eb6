/* Implements `tessera verify gemm`, epilogue, dequant and mla: runs kernels on the checkpoint's own tensors. */
#include "cli/commands/commands.h"
#include "cli/io/globs.h"
#include "cli/show/evidence_result.h"
#include "cli/show/verify_kernels.h"
#include "verify/kernels/check_dequant.h"
#include "verify/kernels/check_epilogue.h"
#include "verify/kernels/check_gemm.h"
#include "verify/mla/check_mla.h"

#include <stdio.h>
#include <string.h>

/* Options of gemm that epilogue and dequant do not use: they have no sets of experts and no ranks, and scale
 * activations in their own way. */
#define GEMM_ONLY "--scaling --experts --tp --devices"

#define DEVICES_OPTION(job)                                                                               \
    {                                                                                                     \
        "--devices", TSR_OPT_POSITIVE, &(job)->devices, "N",                                              \
            "N: a GPU for each rank of --tp N, and exit code 5 if there are fewer (as many as there are)" \
    }

enum { MAX_TOKENS = 1 << 20, ALL_OUTS = (1 << TSR_N_OUTS) - 1 };

static const struct {
    const char *name;
    tsr_kernel_check_fn *run;
    tsr_kernel_applies_fn *applies;
} kChecks[TSR_N_KERNEL_CHECKS] = {
    [TSR_KERNEL_GEMM] = {"gemm", tsr_check_gemm, tsr_gemm_applies},
    [TSR_KERNEL_EPILOGUE] = {"epilogue", tsr_check_epilogue, tsr_epilogue_applies},
    [TSR_KERNEL_DEQUANT] = {"dequant", tsr_check_dequant, tsr_dequant_applies},
    [TSR_KERNEL_MLA] = {"mla", tsr_check_mla, tsr_mla_applies},
};

static const char kGemmHelp[] =
    "tessera verify gemm DST [--against SRC] [options]\n\n"
    "Multiplies weights of a checkpoint (block FP8, MXFP4, NVFP4, MXFP8) with activations, and compares\n"
    "every kernel with the product in double precision over the same operands (kernel error). Separately\n"
    "it measures the error of quantization: with --against SRC that of weights and activations, otherwise\n"
    "that of activations alone.\n\n"
    "Experts in block FP8 are also multiplied as sets, in the contiguous and the masked layout. With\n"
    "MXFP4, NVFP4 and MXFP8, activations are BF16, and also in the weight's own format. NVFP4 uses the\n"
    "input scale that the checkpoint states, if it states one. --scaling applies to block FP8.\n\n"
    "With --tp N, the input features of row-parallel layers in block FP8 (o_proj, down_proj, w2) are also\n"
    "divided over N ranks, whose results are added as by a server's all-reduce. Each rank has a GPU if\n"
    "there are N GPUs and NCCL (libnccl.so.2); otherwise the ranks run one after the other.\n\n"
    "Exit code 0: all within the limits. 1: something exceeds a limit. 3: nothing to check, or\n"
    "activations that do not fit. 5: no device.\n\n"
    "Examples:\n"
    "  tessera verify gemm DeepSeek-V3-FP8 --tensors '*.layers.3.*'\n"
    "  tessera verify gemm out --against model --sample 16 --device cpu --junit result.xml       for CI\n"
    "  tessera verify gemm Llama-NVFP4 --against Llama --tensors '*.layers.0.*' --device cuda\n"
    "  tessera verify gemm out --activations captured.safetensors --out bf16\n"
    "  tessera verify gemm DeepSeek-V3-FP8 --tensors '*.layers.3.*' --device cuda --tp 2\n\n"
    "Options:\n";

static const char kEpilogueHelp[] =
    "tessera verify epilogue DST [--against SRC] [options]\n\n"
    "Multiplies int8 weights (W8A8) of a checkpoint with activations, with vLLM's four epilogues: scaled,\n"
    "scaled with bias, and zero points (azp) per tensor and per token; with scales per tensor, token and\n"
    "channel. azp_adj is read from tessera-azp.safetensors beside the checkpoint and compared with the\n"
    "codes.\n\n"
    "If the checkpoint has static input scales, they are used, with azp_with_adj from that file. Random\n"
    "activations are stretched to the range of these scales, and those of --activations must fit it.\n"
    "Kernel error and quantization error are separate, as in verify gemm.\n\n"
    "Exit code 0: all within the limits. 1: something exceeds a limit. 3: nothing to check, or\n"
    "activations that do not fit. 5: no device.\n\n"
    "Examples:\n"
    "  tessera verify epilogue Llama-3.1-8B-W8A8 --against Llama-3.1-8B\n"
    "  tessera verify epilogue out --activations captured.safetensors\n"
    "  tessera verify epilogue out --sample 8 --seed 1 --out bf16 --junit result.xml       for CI\n\n"
    "Options:\n";

static const char kDequantHelp[] =
    "tessera verify dequant DST [--against SRC] [options]\n\n"
    "Lays out the int8 or int4 codes of a checkpoint as FasterTransformer and TensorRT-LLM read them, in\n"
    "every layout that fits their shape, and converts them as their kernels do. Every code must be at its\n"
    "address, and every value must be that of plain conversion, bit for bit. Then it multiplies them with\n"
    "--tokens rows of activations (W8A16, W4A16; per channel, groups, zero points) and measures\n"
    "quantization error and kernel error separately, as in verify gemm.\n\n"
    "Codes of MXFP4, NVFP4 and MXFP8 are decoded to BF16 by every decoder, and each value must be that of\n"
    "the format. To compare a directory of laid-out weights with its source, convert it back with tessera\n"
    "convert --from, then run tessera verify DST --against SRC.\n\n"
    "Exit code 0: every bit is right, and all is within the limits. 1: it is not. 3: nothing to check. 5:\n"
    "no device.\n\n"
    "Examples:\n"
    "  tessera verify dequant Llama-3.1-8B-W4A16 --against Llama-3.1-8B\n"
    "  tessera verify dequant out --sample 4 --columns 0\n\n"
    "Options:\n";

static const char kMlaHelp[] =
    "tessera verify mla DST --layer L [--against SRC] [options]\n\n"
    "Runs the latent attention of a DeepSeek layer on the checkpoint's own weights (BF16, block FP8, or\n"
    "split by convert --to mla-absorbed), with a paged latent cache. It measures separately the error of\n"
    "quantization stage by stage (with --against SRC), of absorption, and of each kernel, on the CPU and\n"
    "on a GPU.\n\n"
    "With --tp N, heads are divided over N ranks. Each rank has a GPU if there are N GPUs and NCCL\n"
    "(libnccl.so.2); otherwise the ranks run one after the other. With --stages FILE, it compares the\n"
    "stages of another implementation instead, and names the first wrong one.\n\n"
    "With --sparse, it also checks the layer's indexer (DeepSeek-V3.2, GLM-5): its scores in FP8, the\n"
    "tokens that they choose, and every kernel over lists of these tokens.\n\n"
    "Exit code 0: all within the limits. 1: something exceeds a limit. 3: the layer lacks tensors, or\n"
    "something does not fit. 5: no device.\n\n"
    "Examples:\n"
    "  tessera verify mla DeepSeek-V3-FP8 --layer 3 --against DeepSeek-V3-BF16\n"
    "  tessera verify mla DeepSeek-V3-FP8 --layer 3 --device cuda --tp 2 --kv fp8\n"
    "  tessera verify mla DeepSeek-V3.2 --layer 3 --sparse --top-k 256 --context 1024 --kv fp8\n"
    "  tessera verify mla out --layer 0 --against model --device cpu --tp 8 --junit result.xml       for CI\n"
    "  tessera verify mla model --layer 0 --stages captured.safetensors\n\n"
    "Options:\n";

/* ---- options ---- */

static void set_defaults(tsr_command_context *c)
{
    tsr_verify_kernels *const v = c->job;
    tsr_kernel_check check = TSR_KERNEL_GEMM;
    while (strcmp(kChecks[check].name, c->command->kind) != 0)
        check++;
    *v = (tsr_verify_kernels){.check = check,
                              .outs = ALL_OUTS,
                              .out = TSR_N_OUTS,
                              .options = {.tokens = check == TSR_KERNEL_DEQUANT ? 24 : 64,
                                          .columns = 256,
                                          .experts = 8,
                                          .group_rows = 1,
                                          .ranks = 1,
                                          .limits = tsr_kernel_limits_defaults(),
                                          .mla = {.batch = 4, .context = 128, .new_tokens = 1}}};
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    tsr_verify_kernels *const v = c->job;
    const tsr_option all[] = {
        {"--against", TSR_OPT_TEXT, &v->against, "SRC", "the checkpoint that DST was made from"},
        {"--tensors", TSR_OPT_LIST, &v->tensors, "GLOB",
         "only tensors with these names (*, ?, [0-3]: docs/policy.md); may be repeated"},
        {"--sample", TSR_OPT_POSITIVE, &v->options.sample, "N",
         "check only N of these tensors, chosen by the seed (all)"},
        {"--seed", TSR_OPT_COUNT, &v->options.seed, "S", "seed of every choice and of random activations (0)"},
        {"--activations", TSR_OPT_TEXT, &v->activations, "FILE", "safetensors with inputs of layers, by name (random)"},
        {"--tokens", TSR_OPT_POSITIVE, &v->options.tokens, "M", "number of rows of activations (64; dequant 24)"},
        {"--columns", TSR_OPT_COUNT, &v->options.columns, "N",
         "output channels of a tensor that are checked, in whole blocks chosen by the seed; 0: all (256)"},
        {"--experts", TSR_OPT_POSITIVE, &v->options.experts, "N", "number of experts in a set, chosen by the seed (8)"},
        {"--scaling", TSR_OPT_CHOICE, &v->scaling, "1x128|64x128|128x128",
         "the activations that share a scale: 1x128, or CUTLASS's groups and blocks (1x128)"},
        {"--tp", TSR_OPT_POSITIVE, &v->options.ranks, "N",
         "number of ranks that share the input features of row-parallel layers, whose results are added (1)"},
        DEVICES_OPTION(v),
        {"--out", TSR_OPT_CHOICE, &v->out, "bf16|f16|f32|all", "result types to check (all)"},
        TSR_DEVICE_OPTION(&v->device),
        {"--max-kernel-error", TSR_OPT_TEXT, &v->texts.max_kernel_error, "X",
         "largest error of a kernel, divided by the most that its accumulation can cause (1)"},
        {"--max-kernel-rms", TSR_OPT_TEXT, &v->texts.max_kernel_rms, "X",
         "largest RMS error of a kernel, divided by the expected RMS of its accumulation (2); 3/4 of it for 16-bit "
         "results"},
        {"--max-kernel-bias", TSR_OPT_TEXT, &v->texts.max_kernel_bias, "X",
         "largest mean error of a kernel, in standard errors (6)"},
        {"--min-sqnr", TSR_OPT_TEXT, &v->texts.min_sqnr, "DB",
         "smallest SQNR after quantization (gemm: 27, activations alone 30; MXFP8 26 and 29; 4 bits 9; others by "
         "rounding)"},
        {"--details", TSR_OPT_FLAG, &v->details, NULL, "print a line for every judgement instead of every tensor"},
        {0},
    };
    tsr_options_append(options, all);
}

static void add_mla_options(tsr_command_context *c, tsr_option *options)
{
    tsr_verify_kernels *const v = c->job;
    tsr_mla_request *const r = &v->options.mla;
    const tsr_option all[] = {
        {"--layer", TSR_OPT_COUNT, &r->layer, "L", "the layer to run (0)"},
        {"--against", TSR_OPT_TEXT, &v->against, "SRC", "the checkpoint that DST was made from"},
        {"--batch", TSR_OPT_POSITIVE, &r->batch, "B",
         "number of sequences of different lengths; the second is empty (4)"},
        {"--context", TSR_OPT_POSITIVE, &r->context, "S", "tokens of the longest sequence, new ones included (128)"},
        {"--new-tokens", TSR_OPT_POSITIVE, &r->new_tokens, "T", "queries of a sequence: 1 decodes, S is prefill (1)"},
        {"--tp", TSR_OPT_POSITIVE, &v->options.ranks, "N",
         "number of ranks that share the heads; each rank holds the whole "
         "latent cache (1)"},
        DEVICES_OPTION(v),
        {"--kv", TSR_OPT_CHOICE, &v->kv, "bf16|fp8",
         "formats of the latent cache to check; fp8: FP8 as well as BF16 (bf16)"},
        {"--sparse", TSR_OPT_FLAG, &r->sparse, NULL,
         "also check the layer's indexer, and attention to the tokens that it chooses (DeepSeek-V3.2, GLM-5)"},
        {"--top-k", TSR_OPT_POSITIVE, &r->top_k, "K",
         "with --sparse: tokens that a query attends to (index_topk, or half of the tokens if that is all of them)"},
        {"--stages", TSR_OPT_TEXT, &v->stages, "FILE",
         "compare with the stages of another implementation: safetensors with hidden_states and stages"},
        {"--seed", TSR_OPT_COUNT, &v->options.seed, "S", "seed of lengths and hidden states (0)"},
        TSR_DEVICE_OPTION(&v->device),
        {"--min-sqnr", TSR_OPT_TEXT, &v->texts.min_sqnr, "DB",
         "smallest SQNR after each stage, with the error of quantization (20)"},
        {0},
    };
    tsr_options_append(options, all);
}

static tsr_status check_sizes(const tsr_verify_kernels *v, tsr_err *err)
{
    const tsr_mla_request *const r = &v->options.mla;
    if (v->devices != 0 && v->devices != v->options.ranks)
        return tsr_fail(err, TSR_E_USAGE, "--devices: each rank of --tp needs one GPU, so it is --tp's number, %llu",
                        U64(v->options.ranks));
    if (v->devices != 0 && v->device == TSR_DEVICE_CPU)
        return tsr_fail(err, TSR_E_USAGE, "--devices needs --device cuda");
    if (v->options.tokens > MAX_TOKENS)
        return tsr_fail(err, TSR_E_USAGE, "--tokens: at most %d", MAX_TOKENS);
    if (r->batch > MAX_TOKENS || r->context > MAX_TOKENS || r->new_tokens > r->context)
        return tsr_fail(err, TSR_E_USAGE, "--batch, --context: at most %d; --new-tokens: at most --context",
                        MAX_TOKENS);
    return TSR_OK;
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    static const uint64_t kGroups[] = {1, 64, 128};
    tsr_verify_kernels *const v = c->job;
    tsr_kernel_limits *const limits = &v->options.limits;
    for (size_t i = 0; c->options[i].name != NULL; i++) {
        const bool has_own = v->check == TSR_KERNEL_GEMM || v->check == TSR_KERNEL_MLA;
        if ((c->given >> i & 1) != 0 && tsr_is_listed(GEMM_ONLY, c->options[i].name) && !has_own)
            return tsr_fail(err, TSR_E_USAGE, "%s cannot be combined with %s", c->options[i].name, c->command->name);
    }
    v->dst = c->words[0];
    if (v->dst == NULL)
        return tsr_fail(err, TSR_E_USAGE, "no checkpoint given: tessera %s DST", c->command->name);
    TSR_TRY(check_sizes(v, err));
    TSR_TRY(tsr_parse_number("--max-kernel-error", v->texts.max_kernel_error, TSR_FROM_ZERO, &limits->max_kernel_error,
                             err));
    TSR_TRY(tsr_parse_number("--max-kernel-rms", v->texts.max_kernel_rms, TSR_FROM_ZERO, &limits->max_kernel_rms, err));
    TSR_TRY(
        tsr_parse_number("--max-kernel-bias", v->texts.max_kernel_bias, TSR_FROM_ZERO, &limits->max_kernel_bias, err));
    TSR_TRY(tsr_parse_number("--min-sqnr", v->texts.min_sqnr, TSR_ANY_NUMBER, &limits->min_sqnr, err));
    v->options.mla.fp8_cache = v->kv != 0;
    if (v->options.mla.top_k != 0 && !v->options.mla.sparse)
        return tsr_fail(err, TSR_E_USAGE, "--top-k needs --sparse");
    v->options.gpu_per_rank = v->devices != 0;
    if (v->devices != 0)
        v->device = TSR_DEVICE_CUDA;
    v->options.globs = v->tensors.items;
    v->options.n_globs = v->tensors.count;
    v->options.group_rows = kGroups[v->scaling];
    if (v->out != TSR_N_OUTS)
        v->outs = 1u << v->out;
    c->common.threads = c->common.threads > UINT16_MAX ? UINT16_MAX : c->common.threads;
    return TSR_OK;
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const tsr_verify_kernels *const v = c->job;
    const char *const sources[] = {v->dst, v->against, v->activations, v->stages};
    memcpy(paths->sources, sources, sizeof sources);
    paths->unconfined = tsr_unconfined_device(v->device != TSR_DEVICE_CPU, false, NULL);
}

/* ---- opening ---- */

enum { DST, AGAINST, ACTIVATIONS, STAGES, AZP };

static tsr_status open_file(tsr_verify_kernels *v, size_t at, const char *path, const tsr_checkpoint **to, tsr_err *err)
{
    if (path == NULL)
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_open(&v->opened[at], path, NULL, 0, err));
    *to = v->opened[at];
    return TSR_OK;
}

/* Opens a checkpoint with its weights. Latent attention does not need the scales of weights that it does not read. */
static tsr_status open_side(const tsr_command_context *c, size_t at, const char *path, tsr_side *side, tsr_err *err)
{
    tsr_verify_kernels *const v = c->job;
    tsr_weights *const weights = &v->weights[at];
    TSR_TRY(open_file(v, at, path, &side->checkpoint, err));
    side->weights = weights;
    if (v->check == TSR_KERNEL_MLA)
        return tsr_weights_survey(weights, side->checkpoint, (tsr_block){0, 0}, tsr_weights_pass_over, NULL, err);
    return tsr_weights_pair_or(weights, side->checkpoint, c->common.block, err);
}

/* Opens tessera-azp.safetensors of a directory that has one. */
static tsr_status open_azp(tsr_verify_kernels *v, tsr_err *err)
{
    char path[4096];
    const char *const dir = v->opened[DST]->dir;
    bool there;
    if (dir == NULL || snprintf(path, sizeof path, "%s/%s", dir, TSR_AZP_NAME) >= (int)sizeof path)
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_has(v->opened[DST], TSR_AZP_NAME, &there, err));
    return there ? open_file(v, AZP, path, &v->options.azp, err) : TSR_OK;
}

static tsr_status open_sides(const tsr_command_context *c, tsr_err *err)
{
    tsr_verify_kernels *const v = c->job;
    TSR_TRY(open_side(c, DST, v->dst, &v->options.side, err));
    if (v->against == NULL)
        return TSR_OK;
    v->options.against = &v->source;
    TSR_TRY(open_side(c, AGAINST, v->against, &v->source, err));
    return v->check == TSR_KERNEL_MLA ? TSR_OK : tsr_weights_refuse_block(v->weights, 2, c->common.block, err);
}

static tsr_status applies(tsr_command_context *c, tsr_err *err)
{
    tsr_verify_kernels *const v = c->job;
    TSR_TRY(open_sides(c, err));
    const tsr_status status = kChecks[v->check].applies(&v->options, err);
    if (status != TSR_E_MISMATCH || err == NULL)
        return status;
    /* If experts are single tensors on one side and stacks on the other, kernels are judged without originals. */
    v->alone = *err;
    v->against = NULL;
    v->options.against = NULL;
    return TSR_OK;
}

static const char *name_of(const void *context, size_t i)
{
    return ((const tsr_weights *)context)->items[i].values->name;
}

static tsr_status open_all(tsr_command_context *c, tsr_err *err)
{
    tsr_verify_kernels *const v = c->job;
    TSR_TRY(tsr_device_open(&v->opened_device, (tsr_device_kind)v->device, &v->note, err));
    v->options.device = &v->opened_device;
    if (v->opened[DST] == NULL) { /* only for separate commands; `verify all` matches the globs against all tensors */
        TSR_TRY(open_sides(c, err));
        const tsr_weights *const all = v->options.side.weights;
        TSR_TRY(tsr_check_tensor_globs(v->options.globs, v->options.n_globs, name_of, all, all->count, err));
    }
    TSR_TRY(open_file(v, ACTIVATIONS, v->activations, &v->options.activations, err));
    TSR_TRY(open_file(v, STAGES, v->stages, &v->options.mla.stages, err));
    return open_azp(v, err);
}

/* ---- running ---- */

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    tsr_verify_kernels *const v = c->job;
    v->options.run = tsr_terminal_run_options(terminal, c->common.threads, 0);
    TSR_TRY(kChecks[v->check].run(&v->options, v->outs, &v->evidence, err));
    for (size_t i = 0; i < v->opened_device.n_left_out; i++) {
        const tsr_left_out *const left = &v->opened_device.left_out[i];
        if (strcmp(left->check, c->command->kind) == 0)
            TSR_TRY(tsr_evidence_skip(&v->evidence, left->name, left->why, err));
    }
    return tsr_evidence_fill(&v->result, c->schema, &v->evidence, err);
}

static int exit_code(const tsr_command_context *c)
{
    const tsr_verify_kernels *const v = c->job;
    return v->evidence.failed > 0;
}

static void summarize(const tsr_command_context *c, tsr_text *text)
{
    const tsr_verify_kernels *const v = c->job;
    const tsr_evidence *const e = &v->evidence;
    if (v->check == TSR_KERNEL_MLA)
        tsr_text_printf(text, "layer %llu", U64(v->options.mla.layer));
    else
        tsr_text_printf(text, "%zu of %zu tensors or sets", e->subjects, e->candidates);
    tsr_text_printf(text, ", %zu judgement%s", e->count, tsr_plural(e->count));
    if (e->n_skipped > 0)
        tsr_text_printf(text, ", %zu skipped", e->n_skipped);
    if (v->alone.msg[0] != '\0')
        tsr_text_printf(text, "; without SRC: %s", v->alone.msg);
}

static void close_job(tsr_command_context *c)
{
    tsr_verify_kernels *const v = c->job;
    tsr_result_free(&v->result);
    tsr_evidence_free(&v->evidence);
    tsr_device_close(&v->opened_device);
    for (size_t i = 0; i < sizeof v->weights / sizeof *v->weights; i++)
        tsr_weights_free(&v->weights[i]);
    for (size_t i = 0; i < sizeof v->opened / sizeof *v->opened; i++)
        tsr_checkpoint_close(v->opened[i]);
}

/* ---- the commands ---- */

/* A check of `verify` by its name in results. */
#define KERNEL_CHECK(check_kind, text, options)                                                                     \
    .name = "verify " check_kind, .help = text, .kind = check_kind, .add_options = options,                         \
    .schema = "tessera-verify-kernels/1", .takes = TSR_TAKES_THREADS | TSR_TAKES_PROGRESS, .most_words = 1,         \
    .job_size = sizeof(tsr_verify_kernels), .set_defaults = set_defaults, .check = check, .list_paths = list_paths, \
    .open = open_all, .run = run, .print = tsr_verify_kernels_print, .write_json = tsr_verify_kernels_json,         \
    .exit_code = exit_code, .close = close_job, .applies = applies, .summarize = summarize

const tsr_command tsr_command_verify_gemm = {KERNEL_CHECK("gemm", kGemmHelp, add_options)};
const tsr_command tsr_command_verify_epilogue = {KERNEL_CHECK("epilogue", kEpilogueHelp, add_options)};
const tsr_command tsr_command_verify_dequant = {KERNEL_CHECK("dequant", kDequantHelp, add_options)};
const tsr_command tsr_command_verify_mla = {KERNEL_CHECK("mla", kMlaHelp, add_mla_options)};
