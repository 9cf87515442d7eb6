/* Implements `tessera verify forward`: runs tokens through two models. */
#include "cli/commands/commands.h"
#include "cli/show/evidence_result.h"
#include "cli/show/verify_forward.h"
#include "cli/show/verify_kernels.h"

#include <string.h>

typedef struct arguments {
    tsr_verify_forward job; /* first member: `verify all` also fills it */
    tsr_forward_texts texts;
    const char *min_sqnr, *inputs;
    int device, precision;
} arguments;

static const char kHelp[] =
    "tessera verify forward DST --against SRC [options]\n"
    "tessera verify forward MODEL --reference FILE\n\n"
    "Runs tokens through both checkpoints, layer by layer. SRC is computed in double. DST is computed as\n"
    "it is served: with quantized activations as its checkpoint states, and BF16 between layers. Prints\n"
    "the error of the hidden states after each layer, the error that each layer adds to the input from\n"
    "SRC, and how often the same experts and tokens are chosen. At the end it prints the KL divergence of the\n"
    "logits, how often the likeliest token is the same, and both perplexities. With --reference, it\n"
    "compares MODEL with the hidden states and logits of another implementation.\n\n"
    "Families: those of docs/verify-forward-families.md. Another one is refused, and the error lists them.\n\n"
    "Exit code 0: all within the limits. 1: something exceeds a limit. 3: an unknown family, or a tensor\n"
    "or file that does not fit.\n\n"
    "Examples:\n"
    "  tessera verify forward Llama-3.1-8B-FP8 --against Llama-3.1-8B\n"
    "  tessera verify forward DeepSeek-V3-FP8 --against DeepSeek-V3-BF16 --layers 0..4 --tokens prompt.txt\n"
    "  tessera verify forward out --against model --tokens prompt.txt --exact --baseline rounded\n"
    "  tessera verify forward out --against model --max-kl 0.05 --min-top1 0.95 --junit result.xml       for CI\n\n"
    "Options:\n";

/* ---- options ---- */

static void set_defaults(tsr_command_context *c)
{
    arguments *const a = c->job;
    a->texts = tsr_forward_texts_defaults();
    a->job.request = (tsr_forward_request){.last = SIZE_MAX, .devices = 1, .limits = tsr_forward_limits_defaults()};
    a->job.figures.predictions = tsr_forward_predictions_unknown();
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    arguments *const a = c->job;
    const tsr_option first[] = {
        {"--against", TSR_OPT_TEXT, &a->job.sides[0], "SRC", "the checkpoint that DST was made from"},
        {0},
    };
    const tsr_option own[] = {
        {"--activations", TSR_OPT_TEXT, &a->inputs, "KIND",
         "how inputs of quantized layers are quantized: auto (as the checkpoint states), none, fp8-block, fp8-token, "
         "int8-token or int8-azp (auto)"},
        TSR_DEVICE_OPTION(&a->device),
        TSR_PRECISION_OPTION(&a->precision),
        {"--memory", TSR_OPT_SIZE, &a->job.memory, "SIZE", "the most memory that activations may use (no limit)"},
        {"--min-sqnr", TSR_OPT_TEXT, &a->min_sqnr, "DB",
         "smallest SQNR of the error that a layer adds by itself (by format)"},
        {"--seed", TSR_OPT_COUNT, &a->job.request.seed, "S", "seed of random tokens (0)"},
        {"--reference", TSR_OPT_TEXT, &a->job.reference, "FILE",
         "compare MODEL with safetensors of another implementation: input_ids, hidden_states.N, logits"},
        {0},
    };
    tsr_options_append(options, first);
    tsr_forward_options(options, &a->texts);
    tsr_options_append(options, own);
}

/* Decides which checkpoint is the source. Two paths without options are rejected, because the check would also pass
 * with the two swapped. */
static tsr_status take_sides(tsr_verify_forward *v, const char *const named[2], tsr_err *err)
{
    if (named[0] == NULL)
        return tsr_fail(err, TSR_E_USAGE, "no checkpoint given: tessera verify forward DST --against SRC");
    if (named[1] != NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "'%s' and '%s': name the source with --against: tessera verify forward DST --against SRC",
                        named[0], named[1]);
    if ((v->reference == NULL) == (v->sides[0] == NULL))
        return tsr_fail(err, TSR_E_USAGE, "%s--against SRC, or --reference FILE%s",
                        v->reference == NULL ? "no source given: add " : "", v->reference == NULL ? "" : ", not both");
    if (v->reference != NULL && v->sides[2] != NULL)
        return tsr_fail(err, TSR_E_USAGE, "--baseline cannot be combined with --reference: it is a third checkpoint");
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
                                   "--activations: '%s' is not one of auto, none, fp8-block, fp8-token, int8-token "
                                   "and int8-azp",
                                   text);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    arguments *const a = c->job;
    tsr_verify_forward *const v = &a->job;
    v->sides[2] = a->texts.baseline;
    TSR_TRY(take_sides(v, c->words, err));
    if (v->reference != NULL && a->texts.tokens != NULL)
        return tsr_fail(err, TSR_E_USAGE, "--tokens cannot be combined with --reference, which has its own tokens");
    if (v->reference != NULL && a->texts.kl_by_layer)
        return tsr_fail(err, TSR_E_USAGE, "--kl-by-layer cannot be combined with --reference: it compares two models");
    TSR_TRY(tsr_forward_texts_parse(&v->request, &a->texts, err));
    v->request.device = (tsr_device_kind)a->device;
    v->request.precision = (tsr_precision)a->precision;
    TSR_TRY(parse_inputs(a->inputs, &v->request.inputs, err));
    if (v->request.exact && a->inputs != NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "--activations cannot be combined with --exact, which quantizes no "
                        "activations");
    c->common.threads = c->common.threads > UINT16_MAX ? UINT16_MAX : c->common.threads;
    return tsr_parse_number("--min-sqnr", a->min_sqnr, TSR_ANY_NUMBER, &v->request.limits.min_sqnr, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const arguments *const a = c->job;
    const tsr_verify_forward *const v = &a->job;
    const char *const sources[] = {v->sides[0], v->sides[1], v->sides[2], v->reference, a->texts.tokens};
    memcpy(paths->sources, sources, sizeof sources);
    paths->unconfined = tsr_unconfined_device(v->request.device != TSR_DEVICE_CPU,
                                              v->request.precision == TSR_PRECISION_FP32, a->texts.tokens);
}

/* ---- running ---- */

static tsr_status open_all(tsr_command_context *c, tsr_err *err)
{
    return tsr_verify_forward_open(c->job, err);
}

static tsr_status applies(tsr_command_context *c, tsr_err *err)
{
    tsr_verify_forward *const v = c->job;
    TSR_TRY(open_all(c, err));
    return tsr_forward_applies(&v->request, err);
}

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    tsr_verify_forward *const v = c->job;
    v->request.run = tsr_terminal_run_options(terminal, c->common.threads, v->memory);
    TSR_TRY(tsr_verify_forward_run(v, err));
    return tsr_evidence_fill(&v->result, c->schema, &v->evidence, err);
}

static int exit_code(const tsr_command_context *c)
{
    const tsr_verify_forward *const v = c->job;
    return v->evidence.failed > 0;
}

static void summarize(const tsr_command_context *c, tsr_text *text)
{
    const tsr_verify_forward *const v = c->job;
    const tsr_evidence *const e = &v->evidence;
    tsr_text_printf(text, "%zu of %zu layers, %zu judgement%s", e->subjects, e->candidates, e->count,
                    tsr_plural(e->count));
    tsr_forward_baseline_summarize(text, &v->baseline);
}

static void close_job(tsr_command_context *c)
{
    tsr_verify_forward_free(c->job);
}

const tsr_command tsr_command_verify_forward = {
    .name = "verify forward",
    .schema = "tessera-verify-forward/1",
    TSR_COMMAND(2, TSR_TAKES_THREADS | TSR_TAKES_PROGRESS, arguments),
    .set_defaults = set_defaults,
    .open = open_all,
    .print = tsr_verify_forward_print,
    .write_json = tsr_verify_forward_json,
    .exit_code = exit_code,
    .applies = applies,
    .summarize = summarize,
};
