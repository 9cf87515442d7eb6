/* tessera verify forward: its options. */
#include "cli/commands.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/sandbox.h"
#include "cli/verify_forward.h"
#include "cli/verify_kernels.h"

#include <string.h>

typedef struct arguments {
    tsr_forward_texts texts;
    const char *min_sqnr, *inputs;
    tsr_device_options device;
    tsr_check_options last;
} arguments;

static const char kHelp[] =
    "tessera verify forward DST --against SRC [options]\n"
    "tessera verify forward MODEL --reference FILE\n\n"
    "Runs tokens through both checkpoints (embedding, attention, router, experts, norms, head), a layer at a time: SRC "
    "in\n"
    "double, DST as it is served, with its activations quantized as its checkpoint states and BF16 between layers. "
    "Shows\n"
    "how the error grows: in the hidden states after each layer, in each layer alone on the source's input, and in "
    "the\n"
    "choice of experts; at the end the KL divergence of the logits, how often the likeliest token is the same, and "
    "both\n"
    "perplexities. With --reference, the hidden states and logits of another implementation are compared with those "
    "of\n"
    "MODEL.\n"
    "Families: llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, deepseek_v2, deepseek_v3, kimi_k2, "
    "glm4_moe,\n"
    "gemma2, gemma3_text, gpt_oss.\n"
    "Exit code 0: all within the limits; 1: not; 3: a family, tensor or file that does not fit.\n\n"
    "Examples:\n"
    "  tessera verify forward Llama-3.1-8B-FP8 --against Llama-3.1-8B\n"
    "  tessera verify forward DeepSeek-V3-FP8 --against DeepSeek-V3-BF16 --layers 0..4 --tokens prompt.txt\n"
    "  tessera verify forward out --against model --max-kl 0.05 --min-top1 0.95 --junit result.xml       for CI\n\n"
    "Options:\n";

static void list_options(arguments *a, tsr_verify_forward *v, tsr_option *options)
{
    const tsr_option first[] = {{"--against", TSR_OPT_TEXT, &v->sides[0], "SRC", "what DST was made from"}, {0}};
    const tsr_option own[] = {
        {"--activations", TSR_OPT_TEXT, &a->inputs, "KIND",
         "inputs of quantized layers: auto (as the checkpoint states), none, fp8-block, fp8-token, int8-token, "
         "int8-azp"},
        TSR_DEVICE_OPTIONS(&a->device),
        {"--memory", TSR_OPT_SIZE, &v->memory, "SIZE", "what activations may take at most (no limit)"},
        {"--min-sqnr", TSR_OPT_TEXT, &a->min_sqnr, "DB",
         "smallest SQNR of what a layer alone adds (what sound codes leave)"},
        {"--seed", TSR_OPT_COUNT, &v->request.seed, "S", "seed of drawn tokens (0)"},
        {"--reference", TSR_OPT_TEXT, &v->reference, "FILE",
         "safetensors of an implementation: input_ids, hidden_states.N, logits"},
        {0},
    };
    memcpy(options, first, sizeof first);
    tsr_forward_options(options, &a->texts);
    tsr_options_append(options, own);
    tsr_options_append_check(options, &a->last);
}

/* Decides which checkpoint is which. Two paths in a row are refused, since the check would also pass with the two
 * swapped. */
static tsr_status take_sides(tsr_verify_forward *v, const char *const named[2], tsr_err *err)
{
    if (named[0] == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera verify forward DST --against SRC");
    if (named[1] != NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "'%s' and '%s': which was made from which? tessera verify forward DST --against SRC", named[0],
                        named[1]);
    if ((v->reference == NULL) == (v->sides[0] == NULL))
        return tsr_fail(err, TSR_E_USAGE, "held to what? --against SRC, or --reference FILE%s",
                        v->reference == NULL ? "" : ", not both");
    v->sides[v->reference == NULL ? 1 : 0] = named[0];
    return TSR_OK;
}

static tsr_status parse_inputs(const char *text, tsr_input_choice *choice, tsr_err *err)
{
    for (*choice = 0; text != NULL && *choice < TSR_N_INPUT_CHOICES; (*choice)++) {
        if (strcmp(text, tsr_input_choice_name(*choice)) == 0)
            return TSR_OK;
    }
    return text == NULL ? TSR_OK
                        : tsr_fail(err, TSR_E_USAGE,
                                   "--activations: takes auto, none, fp8-block, fp8-token, int8-token or int8-azp, not "
                                   "'%s'",
                                   text);
}

static tsr_status parse(int argc, char **argv, arguments *a, tsr_verify_forward *v, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS];
    const char *named[2] = {NULL, NULL};
    size_t n;
    list_options(a, v, options);
    TSR_TRY(tsr_options_parse(options, argc, argv, named, 2, &n, NULL, err));
    if (a->last.help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    TSR_TRY(take_sides(v, named, err));
    if (v->reference != NULL && a->texts.tokens != NULL)
        return tsr_fail(err, TSR_E_USAGE, "--tokens: --reference has its own");
    if (v->reference != NULL && a->texts.kl_by_layer)
        return tsr_fail(err, TSR_E_USAGE, "--kl-by-layer: it compares two models, and --reference has states of one");
    if (a->last.threads == 0)
        return tsr_fail(err, TSR_E_USAGE, "--threads: at least 1");
    TSR_TRY(tsr_forward_texts_parse(&v->request, &a->texts, err));
    TSR_TRY(tsr_device_asked(&a->device, &v->request.device, err));
    TSR_TRY(parse_inputs(a->inputs, &v->request.inputs, err));
    if (v->request.exact && a->inputs != NULL)
        return tsr_fail(err, TSR_E_USAGE, "--activations: with --exact no activations are quantized");
    TSR_TRY(tsr_parse_number("--min-sqnr", a->min_sqnr, &v->request.limits.min_sqnr, err));
    v->threads = a->last.threads > UINT16_MAX ? UINT16_MAX : a->last.threads;
    const tsr_places places = {.sources = {v->sides[0], v->sides[1], v->reference, a->texts.tokens},
                               .json = a->last.json,
                               .junit = a->last.junit,
                               .progress = a->last.progress.file,
                               .unconfined =
                                   tsr_unconfined_device(v->request.device != TSR_DEVICE_CPU, a->texts.tokens)};
    return tsr_places_check(&places, err);
}

int tsr_cmd_verify_forward(int argc, char **argv)
{
    tsr_verify_forward v = tsr_verify_forward_defaults();
    arguments a = {.texts = tsr_forward_texts_defaults(), .last.threads = v.threads};
    tsr_err err = {{0}};
    tsr_status status = parse(argc - 1, argv + 1, &a, &v, &err);
    if (status == TSR_OK && !a.last.help)
        status = tsr_verify_one(&tsr_kind_forward, &v, &a.last, &err);
    const bool fine = tsr_kind_forward.fine(&v);
    tsr_kind_forward.close(&v);
    return tsr_end("verify forward", status, fine, &err);
}
