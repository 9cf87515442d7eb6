/* tessera verify gemm, epilogue, dequant and mla, which run kernels on the checkpoint's own tensors: their options. */
#include "cli/commands.h"
#include "cli/globs.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/sandbox.h"
#include "cli/verify_kernels.h"

#include <stdio.h>
#include <string.h>

/* The other checks take no sets of experts, and have their own scales of activations. */
#define GEMM_ONLY "--scaling --experts"

enum { MAX_TOKENS = 1 << 20 };

typedef struct arguments {
    const char *max_kernel_error, *max_kernel_rms, *max_kernel_bias, *min_sqnr;
    tsr_list tensors;
    tsr_device_options device;
    int out, scaling;
    tsr_check_options last;
} arguments;

static const char kGemmHelp[] =
    "tessera verify gemm DST [--against SRC] [options]\n\n"
    "Multiplies weights of a checkpoint (block FP8, MXFP4, NVFP4, MXFP8) with activations, as serving does, and\n"
    "compares every kernel with the product in double precision over the same operands (kernel error). Separately it\n"
    "shows what quantization costs: with --against SRC for weights and activations, otherwise for activations alone.\n"
    "Experts in block FP8 are also multiplied as sets, in the contiguous and the masked layout. With MXFP4, NVFP4 and\n"
    "MXFP8 activations are BF16, and in the weight's own format as well (NVFP4: by the scale of the layer's input, if\n"
    "the checkpoint states one); --scaling is of block FP8.\n"
    "Exit code 0: all within the limits; 1: not; 3: nothing to check, or activations that do not fit; 5: no device.\n\n"
    "Examples:\n"
    "  tessera verify gemm DeepSeek-V3-FP8 --tensors '*.layers.3.*'\n"
    "  tessera verify gemm out --against model --sample 16 --device cpu --junit result.xml       for CI\n"
    "  tessera verify gemm Llama-NVFP4 --against Llama --tensors '*.layers.0.*' --device cuda\n"
    "  tessera verify gemm out --activations captured.safetensors --out bf16\n\n"
    "Options:\n";

static const char kEpilogueHelp[] =
    "tessera verify epilogue DST [--against SRC] [options]\n\n"
    "Multiplies int8 weights (W8A8) of a checkpoint with activations, with vLLM's four epilogues: scaled, scaled + "
    "bias,\n"
    "zero points (azp) per tensor and per token; scales per tensor, and per token or channel. azp_adj is read from\n"
    "tessera-azp.safetensors beside the checkpoint, and checked against the codes. Static input scales are used where\n"
    "the checkpoint has them, with azp_with_adj from that file: drawn activations are stretched to the range of these\n"
    "scales, and those of --activations must suit them. Kernel error and quantization error are kept apart, as in\n"
    "verify gemm.\n"
    "Exit code 0: all within the limits; 1: not; 3: nothing to check, or activations that do not fit; 5: no device.\n\n"
    "Examples:\n"
    "  tessera verify epilogue Llama-3.1-8B-W8A8 --against Llama-3.1-8B\n"
    "  tessera verify epilogue out --activations captured.safetensors\n"
    "  tessera verify epilogue out --sample 8 --seed 1 --out bf16 --junit result.xml       for CI\n\n"
    "Options:\n";

static const char kDequantHelp[] =
    "tessera verify dequant DST [--against SRC] [options]\n\n"
    "Lays the int8 or int4 codes of a checkpoint out as FasterTransformer and TensorRT-LLM read them, in every layout\n"
    "that takes their shape, and converts them as their kernels do: every code at its address, every value the one "
    "that\n"
    "plain conversion gives, bit for bit. Then multiplies them with --tokens tokens (W8A16, W4A16; per channel,\n"
    "groups, zero points), and shows separately what quantization costs (with --against SRC also of every code) and\n"
    "what the kernel costs, as in verify gemm. (To compare a directory of laid-out weights with its source, convert "
    "it\n"
    "back with tessera convert --from, then run tessera verify DST --against SRC.)\n"
    "Codes of MXFP4, NVFP4 and MXFP8 become BF16 by every decoder, and each value has to be the format's own.\n"
    "Exit code 0: every bit is right, all within the limits; 1: not; 3: nothing to check; 5: no device.\n\n"
    "Examples:\n"
    "  tessera verify dequant Llama-3.1-8B-W4A16 --against Llama-3.1-8B\n"
    "  tessera verify dequant out --sample 4 --columns 0\n\n"
    "Options:\n";

static const char kMlaHelp[] =
    "tessera verify mla DST --layer L [--against SRC] [options]\n\n"
    "Runs the latent attention of a DeepSeek layer from the checkpoint's own weights (BF16, block FP8, or split by\n"
    "convert --to mla-absorbed), with a paged latent cache. It shows separately what quantization costs (stage by\n"
    "stage, with --against SRC), what absorption costs, and what each kernel costs, on the CPU and on a GPU. With\n"
    "--tp N heads are cut over N ranks; each rank has a GPU where there are N, and NCCL (libnccl.so.2), otherwise "
    "they\n"
    "take turns. With --stages FILE another implementation's stages are compared with the checkpoint's instead, and "
    "the\n"
    "first wrong one is named.\n"
    "Exit code 0: all within the limits; 1: not; 3: the layer lacks tensors, or something does not fit; 5: no "
    "device.\n\n"
    "Examples:\n"
    "  tessera verify mla DeepSeek-V3-FP8 --layer 3 --against DeepSeek-V3-BF16\n"
    "  tessera verify mla DeepSeek-V3-FP8 --layer 3 --device cuda --tp 2 --fp8-cache\n"
    "  tessera verify mla out --layer 0 --against model --device cpu --tp 8 --junit result.xml       for CI\n"
    "  tessera verify mla model --layer 0 --stages captured.safetensors\n\n"
    "Options:\n";

static const char *const kHelps[TSR_N_KERNEL_CHECKS] = {
    [TSR_KERNEL_GEMM] = kGemmHelp,
    [TSR_KERNEL_EPILOGUE] = kEpilogueHelp,
    [TSR_KERNEL_DEQUANT] = kDequantHelp,
    [TSR_KERNEL_MLA] = kMlaHelp,
};

static void list_options(arguments *a, tsr_verify_kernels *v, tsr_option *options)
{
    const tsr_option all[] = {
        {"--against", TSR_OPT_TEXT, &v->against, "SRC", "what DST was made from"},
        {"--tensors", TSR_OPT_LIST, &a->tensors, "GLOB", "only tensors with these names; may be repeated"},
        {"--sample", TSR_OPT_COUNT, &v->options.sample, "N", "only N of these tensors, chosen by the seed (all)"},
        {"--seed", TSR_OPT_COUNT, &v->options.seed, "S", "seed of every choice and of drawn activations (0)"},
        {"--activations", TSR_OPT_TEXT, &v->activations, "FILE", "safetensors with inputs of layers, by name (drawn)"},
        {"--tokens", TSR_OPT_COUNT, &v->options.tokens, "M", "rows of activations (64; dequant 24)"},
        {"--columns", TSR_OPT_COUNT, &v->options.columns, "N",
         "output channels a tensor, whole blocks chosen by the seed (256); 0: all"},
        {"--experts", TSR_OPT_COUNT, &v->options.experts, "N", "experts of a set, chosen by the seed (8)"},
        {"--scaling", TSR_OPT_CHOICE, &a->scaling, "1x128|64x128|128x128",
         "what shares a scale among activations: 1x128, or CUTLASS's groups and blocks"},
        {"--out", TSR_OPT_CHOICE, &a->out, "bf16|f16|f32|all", "result types (all)"},
        TSR_DEVICE_OPTIONS(&a->device),
        {"--max-kernel-error", TSR_OPT_TEXT, &a->max_kernel_error, "X",
         "largest error of a kernel, over the most that its accumulation can cause (1)"},
        {"--max-kernel-rms", TSR_OPT_TEXT, &a->max_kernel_rms, "X",
         "RMS error of a kernel, over the expected RMS of its accumulation (2); of results in 16 bits 3/4 of it"},
        {"--max-kernel-bias", TSR_OPT_TEXT, &a->max_kernel_bias, "X",
         "mean error of a kernel, with its sign, in standard errors (6)"},
        {"--min-sqnr", TSR_OPT_TEXT, &a->min_sqnr, "DB",
         "smallest SQNR that quantization leaves (gemm: 27, of activations alone 30; of MXFP8 26 and 29, of 4 bits 9; "
         "else "
         "by rounding)"},
        {"--details", TSR_OPT_FLAG, &v->details, NULL, "a line for every judgement, not for every tensor"},
        {0},
    };
    memcpy(options, all, sizeof all);
    tsr_options_append_check(options, &a->last);
}

static void list_mla_options(arguments *a, tsr_verify_kernels *v, tsr_option *options)
{
    tsr_mla_request *const r = &v->options.mla;
    const tsr_option all[] = {
        {"--layer", TSR_OPT_COUNT, &r->layer, "L", "the layer (0)"},
        {"--against", TSR_OPT_TEXT, &v->against, "SRC", "what DST was made from"},
        {"--batch", TSR_OPT_COUNT, &r->batch, "B", "sequences of ragged lengths; the second is empty (4)"},
        {"--context", TSR_OPT_COUNT, &r->context, "S", "tokens of the longest, new ones included (128)"},
        {"--new-tokens", TSR_OPT_COUNT, &r->new_tokens, "T", "queries a sequence: 1 decodes, S is prefill (1)"},
        {"--tp", TSR_OPT_COUNT, &r->ranks, "N", "ranks over which heads are cut, with the latent on each (1)"},
        {"--fp8-cache", TSR_OPT_FLAG, &r->fp8_cache, NULL, "the FP8 latent cache, too"},
        {"--stages", TSR_OPT_TEXT, &v->stages, "FILE", "safetensors: hidden_states and stages of an implementation"},
        {"--seed", TSR_OPT_COUNT, &v->options.seed, "S", "seed of lengths and hidden states (0)"},
        TSR_DEVICE_OPTIONS(&a->device),
        {"--min-sqnr", TSR_OPT_TEXT, &a->min_sqnr, "DB", "smallest SQNR that quantization leaves a stage (20)"},
        {0},
    };
    memcpy(options, all, sizeof all);
    tsr_options_append_check(options, &a->last);
}

/* TSR_N_KERNEL_CHECKS: none has this name. */
static tsr_kernel_check find_check(const char *name)
{
    tsr_kernel_check check = TSR_KERNEL_GEMM;
    while (check < TSR_N_KERNEL_CHECKS && strcmp(tsr_kernel_check_name(check), name) != 0)
        check++;
    return check;
}

bool tsr_is_kernel_check(const char *word)
{
    return find_check(word) < TSR_N_KERNEL_CHECKS;
}

static tsr_status parse(int argc, char **argv, arguments *a, tsr_verify_kernels *v, tsr_err *err)
{
    static const uint64_t kGroups[] = {1, 64, 128};
    tsr_option options[TSR_MAX_OPTIONS];
    tsr_kernel_limits *const limits = &v->options.limits;
    size_t n;
    uint64_t given;
    (v->check == TSR_KERNEL_MLA ? list_mla_options : list_options)(a, v, options);
    TSR_TRY(tsr_options_parse(options, argc, argv, &v->dst, 1, &n, &given, err));
    if (a->last.help) {
        tsr_options_help(kHelps[v->check], options);
        return TSR_OK;
    }
    for (size_t i = 0; options[i].name != NULL; i++) {
        if ((given >> i & 1) != 0 && tsr_is_listed(GEMM_ONLY, options[i].name) && v->check != TSR_KERNEL_GEMM)
            return tsr_fail(err, TSR_E_USAGE, "%s means nothing with verify %s", options[i].name,
                            tsr_kernel_check_name(v->check));
    }
    if (v->dst == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera verify %s DST", tsr_kernel_check_name(v->check));
    if (a->last.threads == 0 || v->options.experts == 0)
        return tsr_fail(err, TSR_E_USAGE, "%s: at least 1", a->last.threads == 0 ? "--threads" : "--experts");
    if (v->options.tokens == 0 || v->options.tokens > MAX_TOKENS)
        return tsr_fail(err, TSR_E_USAGE, "--tokens: from 1 to %d", MAX_TOKENS);
    const tsr_mla_request *const r = &v->options.mla;
    if (r->batch == 0 || r->batch > MAX_TOKENS || r->context == 0 || r->context > MAX_TOKENS || r->new_tokens == 0 ||
        r->new_tokens > r->context)
        return tsr_fail(err, TSR_E_USAGE, "--batch, --context: from 1 to %d; --new-tokens: from 1 to --context",
                        MAX_TOKENS);
    TSR_TRY(tsr_parse_number("--max-kernel-error", a->max_kernel_error, &limits->max_kernel_error, err));
    TSR_TRY(tsr_parse_number("--max-kernel-rms", a->max_kernel_rms, &limits->max_kernel_rms, err));
    TSR_TRY(tsr_parse_number("--max-kernel-bias", a->max_kernel_bias, &limits->max_kernel_bias, err));
    TSR_TRY(tsr_parse_number("--min-sqnr", a->min_sqnr, &limits->min_sqnr, err));
    v->options.globs = a->tensors.items;
    v->options.n_globs = a->tensors.count;
    v->options.group_rows = kGroups[a->scaling];
    TSR_TRY(tsr_device_asked(&a->device, &v->kind, err));
    if (a->out != TSR_N_OUTS)
        v->outs = 1u << a->out;
    v->options.run.threads = a->last.threads > UINT16_MAX ? UINT16_MAX : a->last.threads;
    const tsr_places places = {.sources = {v->dst, v->against, v->activations, v->stages},
                               .json = a->last.json,
                               .junit = a->last.junit,
                               .progress = a->last.progress.file,
                               .unconfined = tsr_unconfined_device(v->kind != TSR_DEVICE_CPU, NULL)};
    return tsr_places_check(&places, err);
}

static const char *name_of(const void *context, size_t i)
{
    return ((const tsr_weights *)context)->items[i].values->name;
}

int tsr_cmd_verify_kernels(int argc, char **argv)
{
    const char *const name = argv[0];
    tsr_verify_kernels v = tsr_verify_kernels_defaults(find_check(name));
    arguments a = {.last.threads = tsr_cpu_count(), .out = TSR_N_OUTS};
    tsr_err err = {{0}};
    tsr_status status = parse(argc - 1, argv + 1, &a, &v, &err);
    if (status == TSR_OK && !a.last.help)
        status = tsr_verify_one(&tsr_kind_kernels, &v, &a.last, &err);
    if (v.options.side.weights != NULL)
        tsr_tell_unfit_tensors(&a.tensors, name_of, v.options.side.weights, v.options.side.weights->count);
    const bool fine = tsr_kind_kernels.fine(&v);
    tsr_kind_kernels.close(&v);
    char command[32];
    snprintf(command, sizeof command, "verify %s", name);
    return tsr_end(command, status, fine, &err);
}
