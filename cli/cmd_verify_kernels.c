/* tessera verify gemm, epilogue, dequant and mla, which run kernels on the checkpoint's own tensors: their options, and
 * their evidence as text and JSON. */
#include "cli/commands.h"
#include "cli/evidence_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/terminal.h"
#include "formats/json/json_write.h"
#include "verify/kernels/check_dequant.h"
#include "verify/kernels/check_epilogue.h"
#include "verify/kernels/check_gemm.h"
#include "verify/mla/check_mla.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The other checks take no sets of experts, and have their own scales of activations. */
#define GEMM_ONLY "--scaling --experts"

enum { ALL_OUTS = (1 << TSR_N_OUTS) - 1, MAX_TOKENS = 1 << 20 };

typedef struct arguments {
    const struct kernel_check *check;
    const char *dst, *against, *activations, *stages;
    const char *max_kernel_error, *max_kernel_rms, *min_sqnr;
    tsr_list tensors;
    int device, out, scaling;
    bool details;
    tsr_check_options last;
    tsr_kernel_options options;
} arguments;

/* What is open while a check runs. */
typedef struct session {
    tsr_checkpoint *dst, *against, *activations, *stages, *azp;
    tsr_weights weights[2];
    tsr_side source;
    tsr_device device;
    tsr_evidence evidence;
    tsr_err note; /* why --device auto took the CPU */
} session;

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
    "plain conversion gives, bit for bit. Then multiplies them with up to 16 tokens (W8A16, W4A16; per channel,\n"
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

/* The checks by name. */
static const struct kernel_check {
    const char *name, *help;
    tsr_status (*run)(const tsr_kernel_options *options, unsigned outs, tsr_evidence *evidence, tsr_err *err);
} kChecks[] = {
    {"gemm", kGemmHelp, tsr_check_gemm},
    {"epilogue", kEpilogueHelp, tsr_check_epilogue},
    {"dequant", kDequantHelp, tsr_check_dequant},
    {"mla", kMlaHelp, tsr_check_mla},
};

static const struct kernel_check *find_check(const char *name)
{
    for (size_t i = 0; i < sizeof kChecks / sizeof *kChecks; i++) {
        if (strcmp(kChecks[i].name, name) == 0)
            return &kChecks[i];
    }
    return NULL;
}

static bool is_mla(const arguments *a)
{
    return a->check->run == tsr_check_mla;
}

static void list_options(arguments *a, tsr_option *options)
{
    const tsr_option all[] = {
        {"--against", TSR_OPT_TEXT, &a->against, "SRC", "what DST was made from"},
        {"--tensors", TSR_OPT_LIST, &a->tensors, "GLOB", "only tensors with these names; may be repeated"},
        {"--sample", TSR_OPT_COUNT, &a->options.sample, "N", "only N of these tensors, chosen by the seed (all)"},
        {"--seed", TSR_OPT_COUNT, &a->options.seed, "S", "seed of every choice and of drawn activations (0)"},
        {"--activations", TSR_OPT_TEXT, &a->activations, "FILE", "safetensors with inputs of layers, by name (drawn)"},
        {"--tokens", TSR_OPT_COUNT, &a->options.tokens, "M", "rows of activations (64)"},
        {"--columns", TSR_OPT_COUNT, &a->options.columns, "N",
         "output channels a tensor, whole blocks chosen by the seed (256); 0: all"},
        {"--experts", TSR_OPT_COUNT, &a->options.experts, "N", "experts of a set, chosen by the seed (8)"},
        {"--scaling", TSR_OPT_CHOICE, &a->scaling, "1x128|64x128|128x128",
         "what shares a scale among activations: 1x128, or CUTLASS's groups and blocks"},
        {"--out", TSR_OPT_CHOICE, &a->out, "bf16|f16|f32|all", "result types (all)"},
        {"--device", TSR_OPT_CHOICE, &a->device, "auto|cpu|cuda", "where kernels run (auto: a GPU if there is one)"},
        {"--max-kernel-error", TSR_OPT_TEXT, &a->max_kernel_error, "X",
         "largest error of a kernel, over the most that its accumulation can cause (1)"},
        {"--max-kernel-rms", TSR_OPT_TEXT, &a->max_kernel_rms, "X",
         "RMS error of a kernel, over the expected RMS of its accumulation (2)"},
        {"--min-sqnr", TSR_OPT_TEXT, &a->min_sqnr, "DB",
         "smallest SQNR that quantization leaves (gemm: 27, of activations alone 30; of MXFP8 26 and 29, of 4 bits 9; "
         "else "
         "by rounding)"},
        {"--details", TSR_OPT_FLAG, &a->details, NULL, "a line for every judgement, not for every tensor"},
        {0},
    };
    memcpy(options, all, sizeof all);
    tsr_options_append_check(options, &a->last);
}

static void list_mla_options(arguments *a, tsr_option *options)
{
    tsr_mla_request *const r = &a->options.mla;
    const tsr_option all[] = {
        {"--layer", TSR_OPT_COUNT, &r->layer, "L", "the layer (0)"},
        {"--against", TSR_OPT_TEXT, &a->against, "SRC", "what DST was made from"},
        {"--batch", TSR_OPT_COUNT, &r->batch, "B", "sequences of ragged lengths; the second is empty (4)"},
        {"--context", TSR_OPT_COUNT, &r->context, "S", "tokens of the longest, new ones included (128)"},
        {"--new-tokens", TSR_OPT_COUNT, &r->new_tokens, "T", "queries a sequence: 1 decodes, S is prefill (1)"},
        {"--tp", TSR_OPT_COUNT, &r->ranks, "N", "ranks over which heads are cut, with the latent on each (1)"},
        {"--fp8-cache", TSR_OPT_FLAG, &r->fp8_cache, NULL, "the FP8 latent cache, too"},
        {"--stages", TSR_OPT_TEXT, &a->stages, "FILE", "safetensors: hidden_states and stages of an implementation"},
        {"--seed", TSR_OPT_COUNT, &a->options.seed, "S", "seed of lengths and hidden states (0)"},
        {"--device", TSR_OPT_CHOICE, &a->device, "auto|cpu|cuda", "where kernels run (auto: a GPU if there is one)"},
        {"--min-sqnr", TSR_OPT_TEXT, &a->min_sqnr, "DB", "smallest SQNR that quantization leaves a stage (20)"},
        {0},
    };
    memcpy(options, all, sizeof all);
    tsr_options_append_check(options, &a->last);
}

bool tsr_is_kernel_check(const char *word)
{
    return find_check(word) != NULL;
}

static arguments defaults(const char *check)
{
    return (arguments){.check = find_check(check),
                       .last.threads = tsr_cpu_count(),
                       .out = TSR_N_OUTS,
                       .options = {.tokens = 64,
                                   .columns = 256,
                                   .experts = 8,
                                   .limits = tsr_kernel_limits_defaults(),
                                   .mla = {.batch = 4, .context = 128, .new_tokens = 1, .ranks = 1}}};
}

static tsr_status parse(int argc, char **argv, arguments *a, tsr_err *err)
{
    static const uint64_t kGroups[] = {1, 64, 128};
    tsr_option options[TSR_MAX_OPTIONS];
    tsr_kernel_limits *const limits = &a->options.limits;
    size_t n;
    uint64_t given;
    (is_mla(a) ? list_mla_options : list_options)(a, options);
    TSR_TRY(tsr_options_parse(options, argc, argv, &a->dst, 1, &n, &given, err));
    if (a->last.help) {
        tsr_options_help(a->check->help, options);
        return TSR_OK;
    }
    for (size_t i = 0; options[i].name != NULL; i++) {
        if ((given >> i & 1) != 0 && tsr_is_listed(GEMM_ONLY, options[i].name) && a->check->run != tsr_check_gemm)
            return tsr_fail(err, TSR_E_USAGE, "%s means nothing with verify %s", options[i].name, a->check->name);
    }
    if (a->dst == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera verify %s DST", a->check->name);
    if (a->last.threads == 0 || a->options.experts == 0)
        return tsr_fail(err, TSR_E_USAGE, "%s: at least 1", a->last.threads == 0 ? "--threads" : "--experts");
    if (a->options.tokens == 0 || a->options.tokens > MAX_TOKENS)
        return tsr_fail(err, TSR_E_USAGE, "--tokens: from 1 to %d", MAX_TOKENS);
    const tsr_mla_request *const r = &a->options.mla;
    if (r->batch == 0 || r->batch > MAX_TOKENS || r->context == 0 || r->context > MAX_TOKENS || r->new_tokens == 0 ||
        r->new_tokens > r->context)
        return tsr_fail(err, TSR_E_USAGE, "--batch, --context: from 1 to %d; --new-tokens: from 1 to --context",
                        MAX_TOKENS);
    const tsr_places places = {.sources = {a->dst, a->against, a->activations, a->stages},
                               .json = a->last.json,
                               .junit = a->last.junit,
                               .progress = a->last.progress.file};
    TSR_TRY(tsr_places_check(&places, err));
    TSR_TRY(tsr_parse_number("--max-kernel-error", a->max_kernel_error, &limits->max_kernel_error, err));
    TSR_TRY(tsr_parse_number("--max-kernel-rms", a->max_kernel_rms, &limits->max_kernel_rms, err));
    TSR_TRY(tsr_parse_number("--min-sqnr", a->min_sqnr, &limits->min_sqnr, err));
    a->options.globs = a->tensors.items;
    a->options.n_globs = a->tensors.count;
    a->options.group_rows = kGroups[a->scaling];
    a->options.run.threads = a->last.threads > UINT16_MAX ? UINT16_MAX : a->last.threads;
    return TSR_OK;
}

/* ---- telling ---- */

static void print_phases(const tsr_evidence *e)
{
    for (tsr_phase phase = 0; phase < TSR_N_PHASES; phase++)
        tsr_print("%s %s %.2f", phase > 0 ? "," : "", tsr_phase_name(phase), e->phases[phase]);
    tsr_print("\n");
}

/* Prints which tensors were checked, how many of them, and where the seconds went. */
static void print_work(const arguments *a, const session *s)
{
    const tsr_evidence *const e = &s->evidence;
    char read[32];
    tsr_print("%s; %zu of %zu tensors or sets, seed %llu, %s read in %.2f s, %llu threads; seconds:", s->device.name,
              e->subjects, e->candidates, (unsigned long long)a->options.seed,
              tsr_bytes_text((double)e->bytes_read, read), e->seconds, U64(a->options.run.threads));
    print_phases(e);
}

static void print_details(const tsr_evidence *e)
{
    for (size_t i = 0; i < e->count; i++) {
        const tsr_judgement *const j = &e->items[i], *const before = i > 0 ? j - 1 : NULL;
        const bool other = before == NULL || strcmp(before->subject, j->subject) != 0;
        if (other)
            tsr_print("%s\n", j->subject);
        if (other || before->kind != j->kind)
            tsr_print(" %s error\n", tsr_error_kind_name(j->kind));
        tsr_judgement_print(j);
    }
}

static void print_subjects(const tsr_evidence *e)
{
    for (size_t i = 0, end; i < e->count; i = end) {
        for (end = i + 1; end < e->count && strcmp(e->items[end].subject, e->items[i].subject) == 0; end++)
            ;
        tsr_subject_print(&e->items[i], end - i);
    }
}

static void print_result(const arguments *a, const session *s)
{
    const tsr_evidence *const e = &s->evidence;
    if (s->note.msg[0] != '\0')
        tsr_print("checked on the CPU: %s\n", s->note.msg);
    if (a->details || is_mla(a))
        print_details(e);
    else
        print_subjects(e);
    if (is_mla(a)) {
        tsr_print("%s; seed %llu, %.2f s; seconds:", s->device.name, (unsigned long long)a->options.seed, e->seconds);
        print_phases(e);
    } else {
        print_work(a, s);
    }
    tsr_evidence_print_end(e);
}

static void write_json(tsr_text *t, const arguments *a, const session *s)
{
    const tsr_evidence *const e = &s->evidence;
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "schema", "tessera-verify-kernels/1");
    tsr_json_member_string(t, "version", TSR_VERSION);
    tsr_json_member_string(t, "check", a->check->name);
    tsr_json_member_string(t, "checkpoint", a->dst);
    tsr_json_member_string(t, "against", a->against);
    tsr_json_member_string(t, "activations", a->activations);
    tsr_json_member_string(t, "device", s->device.name);
    tsr_json_member_string(t, "device_note", s->note.msg[0] != '\0' ? s->note.msg : NULL);
    tsr_json_member_u64(t, "seed", a->options.seed);
    tsr_json_member_u64(t, "tokens", a->options.tokens);
    tsr_json_member_bool(t, "passed", e->failed == 0);
    tsr_json_key(t, "limits");
    tsr_json_begin_object(t, true);
    tsr_json_member_number(t, "max_kernel_error", a->options.limits.max_kernel_error);
    tsr_json_member_number(t, "max_kernel_rms", a->options.limits.max_kernel_rms);
    tsr_json_member_number(t, "min_sqnr_db", a->options.limits.min_sqnr);
    tsr_json_end_object(t);
    tsr_evidence_json(t, e);
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
}

static tsr_status write_files(const arguments *a, const session *s, tsr_err *err)
{
    tsr_text json = {0};
    write_json(&json, a, s);
    const tsr_status status = tsr_results_write(a->last.json, a->last.junit, &json, err);
    tsr_text_free(&json);
    return status;
}

/* ---- running ---- */

/* Opens tessera-azp.safetensors of a directory that has one. */
static tsr_status open_azp(arguments *a, session *s, tsr_err *err)
{
    char path[4096];
    if (s->dst->dir == NULL || snprintf(path, sizeof path, "%s/%s", s->dst->dir, TSR_AZP_NAME) >= (int)sizeof path ||
        access(path, F_OK) != 0)
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_open(&s->azp, path, NULL, 0, err));
    a->options.azp = s->azp;
    return TSR_OK;
}

static tsr_status pair_weights(const arguments *a, tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_err *err)
{
    return is_mla(a) ? tsr_weights_survey(weights, checkpoint, (tsr_block){0, 0}, tsr_weights_pass_over, NULL, err)
                     : tsr_weights_pair(weights, checkpoint, (tsr_block){0, 0}, err);
}

static tsr_status open_all(arguments *a, session *s, tsr_err *err)
{
    TSR_TRY(tsr_device_open(&s->device, (tsr_device_kind)a->device, &s->note, err));
    TSR_TRY(tsr_checkpoint_open(&s->dst, a->dst, NULL, 0, err));
    TSR_TRY(pair_weights(a, &s->weights[0], s->dst, err));
    a->options.side = (tsr_side){s->dst, &s->weights[0]};
    a->options.device = &s->device;
    if (a->against != NULL) {
        TSR_TRY(tsr_checkpoint_open(&s->against, a->against, NULL, 0, err));
        TSR_TRY(pair_weights(a, &s->weights[1], s->against, err));
        s->source = (tsr_side){s->against, &s->weights[1]};
        a->options.against = &s->source;
    }
    if (a->activations != NULL) {
        TSR_TRY(tsr_checkpoint_open(&s->activations, a->activations, NULL, 0, err));
        a->options.activations = s->activations;
    }
    if (a->stages != NULL) {
        TSR_TRY(tsr_checkpoint_open(&s->stages, a->stages, NULL, 0, err));
        a->options.mla.stages = s->stages;
    }
    return open_azp(a, s, err);
}

static tsr_status verify(arguments *a, session *s, tsr_err *err)
{
    TSR_TRY(open_all(a, s, err));
    tsr_terminal terminal;
    TSR_TRY(tsr_terminal_open(&terminal, a->last.quiet, &a->last.progress, err));
    a->options.run = tsr_terminal_run_options(&terminal, a->options.run.threads, 0);
    const tsr_status status =
        a->check->run(&a->options, a->out == TSR_N_OUTS ? ALL_OUTS : 1u << a->out, &s->evidence, err);
    tsr_terminal_close(&terminal);
    TSR_TRY(status);
    if (!a->last.quiet && !tsr_is_stdout(a->last.json) && !tsr_is_stdout(a->last.junit))
        print_result(a, s);
    return write_files(a, s, err);
}

static void close_all(session *s)
{
    tsr_evidence_free(&s->evidence);
    tsr_device_close(&s->device);
    for (size_t i = 0; i < 2; i++)
        tsr_weights_free(&s->weights[i]);
    tsr_checkpoint_close(s->dst);
    tsr_checkpoint_close(s->against);
    tsr_checkpoint_close(s->activations);
    tsr_checkpoint_close(s->stages);
    tsr_checkpoint_close(s->azp);
}

int tsr_cmd_verify_kernels(int argc, char **argv)
{
    arguments a = defaults(argv[0]);
    session s = {0};
    tsr_err err = {{0}};
    tsr_status status = parse(argc - 1, argv + 1, &a, &err);
    if (status == TSR_OK && !a.last.help)
        status = verify(&a, &s, &err);
    const bool fine = s.evidence.failed == 0;
    close_all(&s);
    char command[32];
    snprintf(command, sizeof command, "verify %s", a.check->name);
    return tsr_end(command, status, fine, &err);
}
