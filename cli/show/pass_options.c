/* Defines the options of passes over tokens of a file. */
#include "cli/show/pass_options.h"

#include "cli/io/sandbox.h"
#include "cli/show/verify_kernels.h"

enum { MOST_TOKENS = 1 << 24 };

tsr_pass_options tsr_pass_options_defaults(void)
{
    return (tsr_pass_options){.length = 512, .devices = 1};
}

void tsr_pass_options_append(tsr_pass_options *p, tsr_option *options)
{
    const tsr_option own[] = {
        {"--tokens", TSR_OPT_TEXT, &p->tokens, "FILE",
         "token ids (text, .npy, raw int32), or text or .jsonl for the model's tokenizer"},
        {"--batch", TSR_OPT_POSITIVE, &p->sequences, "B", "most sequences (all)"},
        {"--count", TSR_OPT_POSITIVE, &p->length, "N", "most tokens of a sequence (512)"},
        TSR_DEVICE_OPTION(&p->device),
        TSR_PRECISION_OPTION(&p->precision),
        {"--devices", TSR_OPT_POSITIVE, &p->devices, "N", "number of GPUs; figures may differ slightly (1)"},
        {"--memory", TSR_OPT_SIZE, &p->memory, "SIZE", "the most memory for activations and statistics (no limit)"},
        {0},
    };
    tsr_options_append(options, own);
}

tsr_status tsr_pass_options_check(const tsr_pass_options *p, tsr_err *err)
{
    if (p->length > MOST_TOKENS || p->sequences > MOST_TOKENS)
        return tsr_fail(err, TSR_E_USAGE, "--count, --batch: at most %d", MOST_TOKENS);
    if (p->devices > TSR_FORWARD_DEVICES)
        return tsr_fail(err, TSR_E_USAGE, "--devices: at most %d", TSR_FORWARD_DEVICES);
    return TSR_OK;
}

const char *tsr_pass_unconfined(const tsr_pass_options *p)
{
    return tsr_unconfined_device(p->device != TSR_DEVICE_CPU, p->precision == TSR_PRECISION_FP32, p->tokens);
}

tsr_forward_request tsr_pass_request(const tsr_pass_options *p, const tsr_side *side, tsr_run_options run)
{
    run.threads = run.threads > UINT16_MAX ? UINT16_MAX : run.threads;
    return (tsr_forward_request){.source = side,
                                 .tokens = p->tokens,
                                 .sequences = p->sequences == 0 ? MOST_TOKENS : (size_t)p->sequences,
                                 .length = (size_t)p->length,
                                 .exact = true,
                                 .device = (tsr_device_kind)p->device,
                                 .precision = (tsr_precision)p->precision,
                                 .devices = (size_t)p->devices,
                                 .run = run};
}
