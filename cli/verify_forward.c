/* A forward pass through two models: options, a table of how errors grow, and the evidence as JSON. */
#include "cli/verify_forward.h"

#include "cli/evidence_text.h"
#include "cli/output.h"
#include "formats/json/json_write.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 20 };

/* ---- options ---- */

tsr_verify_forward tsr_verify_forward_defaults(void)
{
    return (tsr_verify_forward){.threads = tsr_cpu_count(),
                                .request = {.last = SIZE_MAX, .devices = 1, .limits = tsr_forward_limits_defaults()},
                                .figures = {.perplexity = {NAN, NAN}}};
}

tsr_forward_texts tsr_forward_texts_defaults(void)
{
    return (tsr_forward_texts){.length = 64, .devices = 1};
}

void tsr_forward_options(tsr_option *options, tsr_forward_texts *texts)
{
    const tsr_option all[] = {
        {"--layers", TSR_OPT_TEXT, &texts->layers, "A..B", "only these, straight from the embedding (all)"},
        {"--tokens", TSR_OPT_TEXT, &texts->tokens, "FILE|random",
         "token ids (text, .npy, raw int32), or text for the model's tokenizer (random)"},
        {"--batch", TSR_OPT_COUNT, &texts->sequences, "B",
         "number of sequences: drawn (1), or the first of the file (all)"},
        {"--count", TSR_OPT_COUNT, &texts->length, "N", "tokens of a sequence, at most (64)"},
        {"--devices", TSR_OPT_COUNT, &texts->devices, "N",
         "GPUs that divide the weights among them: no bit depends on how many there are (1)"},
        {"--kl-by-layer", TSR_OPT_FLAG, &texts->kl_by_layer, NULL,
         "KL divergence after every layer, by the final norm and head: as much work again as the head takes, twice a "
         "layer"},
        {"--exact", TSR_OPT_FLAG, &texts->exact, NULL,
         "DST in double, too: no quantized activations, no BF16; what shows is the cost of the weights alone"},
        {"--min-stream", TSR_OPT_TEXT, &texts->min_stream, "DB",
         "smallest SQNR of the stream and the logits (what sound codes leave at that depth)"},
        {"--max-kl", TSR_OPT_TEXT, &texts->max_kl, "X", "largest mean KL divergence, in nats (none)"},
        {"--min-top1", TSR_OPT_TEXT, &texts->min_top1, "X",
         "smallest share of positions with the same likeliest token (none)"},
        {0},
    };
    tsr_options_append(options, all);
}

static tsr_status parse_layers(const char *text, tsr_forward_request *r, tsr_err *err)
{
    char *end;
    if (text == NULL)
        return TSR_OK;
    r->first = r->last = strtoull(text, &end, 10);
    bool fine = *text >= '0' && *text <= '9';
    if (fine && strncmp(end, "..", 2) == 0) {
        const char *const second = end + 2;
        r->last = strtoull(second, &end, 10);
        fine = *second >= '0' && *second <= '9';
    }
    return fine && *end == '\0' ? TSR_OK
                                : tsr_fail(err, TSR_E_USAGE, "--layers: takes A..B, or one number, not '%s'", text);
}

tsr_status tsr_forward_texts_parse(tsr_forward_request *r, const tsr_forward_texts *texts, tsr_err *err)
{
    if (texts->length == 0 || texts->sequences > MAX_TOKENS || texts->length > MAX_TOKENS)
        return tsr_fail(err, TSR_E_USAGE, "--count (and --batch): from 1 to %d", MAX_TOKENS);
    if (texts->devices == 0 || texts->devices > TSR_FORWARD_DEVICES)
        return tsr_fail(err, TSR_E_USAGE, "--devices: from 1 to %d", TSR_FORWARD_DEVICES);
    r->devices = (size_t)texts->devices;
    TSR_TRY(parse_layers(texts->layers, r, err));
    TSR_TRY(tsr_parse_number("--min-stream", texts->min_stream, &r->limits.min_stream, err));
    TSR_TRY(tsr_parse_number("--max-kl", texts->max_kl, &r->limits.max_kl, err));
    TSR_TRY(tsr_parse_number("--min-top1", texts->min_top1, &r->limits.min_top1, err));
    r->tokens = texts->tokens != NULL && strcmp(texts->tokens, "random") == 0 ? NULL : texts->tokens;
    r->sequences = texts->sequences > 0 ? texts->sequences : r->tokens == NULL ? 1 : MAX_TOKENS;
    r->length = texts->length;
    r->kl_by_layer = texts->kl_by_layer;
    r->exact = texts->exact;
    return TSR_OK;
}

/* ---- telling ---- */

static void print_share(const tsr_judgement *j)
{
    if (j->choices > 0)
        tsr_print("  %7.2f %%", 100 * (double)j->agreed / (double)j->choices);
    else
        tsr_print("  %9s", "");
}

static void print_fault(const tsr_judgement *j)
{
    tsr_print("  ");
    tsr_print_word(TSR_BAD, "FAIL", 5);
    tsr_print("%s: %s, largest error at %s\n", j->what, j->fault, j->worst_at);
}

/* Prints one line a layer. A layer fails only because of the error that it adds by itself. */
static void print_layers(const tsr_evidence *e)
{
    tsr_print("%-22s  %-33s  %s\n", "", "stream of hidden states", "layer alone, on the source's input");
    const bool heads = e->items[0].kl.known;
    tsr_print("%-22s  %9s  %10s  %9s   %9s  %10s  %9s%s\n", "", "SQNR", "relative", "experts", "SQNR", "relative",
              "experts", heads ? "   KL, nats" : "");
    for (size_t i = 0; i + 1 < e->count; i++) {
        const tsr_judgement *const stream = &e->items[i], *const alone = stream + 1;
        if (strcmp(stream->what, TSR_FORWARD_STREAM) != 0 || strcmp(alone->what, TSR_FORWARD_LAYER) != 0)
            continue;
        tsr_print("%-22s  %6.2f dB  %10.3g", stream->subject, tsr_metrics_sqnr(&stream->metrics),
                  tsr_metrics_relative(&stream->metrics));
        print_share(stream);
        tsr_print("   %6.2f dB  %10.3g", tsr_metrics_sqnr(&alone->metrics), tsr_metrics_relative(&alone->metrics));
        print_share(alone);
        if (stream->kl.known)
            tsr_print("   %8.3g", stream->kl.mean);
        tsr_print("\n");
        for (const tsr_judgement *j = stream; j <= alone; j++) {
            if (j->fault != NULL)
                print_fault(j);
        }
    }
}

static void print_logits(const tsr_judgement *j)
{
    tsr_judgement_print(j);
    tsr_print(
        "       KL divergence: mean %.3g nats, max %.3g; the likeliest token is the same in %llu of %llu positions\n",
        j->kl.mean, j->kl.max, (unsigned long long)j->agreed, (unsigned long long)j->choices);
}

/* How the two passes were run. */
static void print_run(const tsr_verify_forward *v)
{
    const tsr_forward_figures *const f = &v->figures;
    char inputs[96];
    if (!isnan(f->perplexity[0]))
        tsr_print("       perplexity: %.4f of SRC, %.4f of DST\n", f->perplexity[0], f->perplexity[1]);
    if (f->devices > 1)
        tsr_print("%zu x ", f->devices);
    tsr_print("%s; %zu tokens in %zu sequences, seed %llu; SRC in double", f->device, f->tokens, f->sequences,
              U64(v->request.seed));
    if (v->reference == NULL && v->request.exact)
        tsr_print(", DST too");
    else if (v->reference == NULL)
        tsr_print(", DST in BF16 between layers, inputs of its codes %s",
                  tsr_input_coding_text(&f->inputs, inputs, sizeof inputs));
    tsr_print("; %.2f GB of weights read, %.2f GB of activations held, %.2f s\n", (double)f->weight_bytes * 1e-9,
              (double)f->activation_bytes * 1e-9, v->evidence.seconds);
}

static void print_result(const void *verification)
{
    const tsr_verify_forward *const v = verification;
    const tsr_evidence *const e = &v->evidence;
    if (v->reference != NULL) {
        for (size_t i = 0; i < e->count; i++) {
            tsr_print("%s\n", e->items[i].subject);
            tsr_judgement_print(&e->items[i]);
        }
    } else {
        print_layers(e);
        print_logits(&e->items[e->count - 1]);
    }
    print_run(v);
    tsr_evidence_print_end(e);
}

static void write_figures(tsr_text *t, const tsr_verify_forward *v)
{
    const tsr_forward_figures *const f = &v->figures;
    const bool served = v->reference == NULL && !v->request.exact;
    char inputs[96];
    tsr_json_member_string(t, "device", f->device);
    tsr_json_member_u64(t, "devices", f->devices);
    tsr_json_member_string(t, "activations", tsr_input_choice_name(v->request.inputs));
    tsr_json_member_string(t, "inputs",
                           served ? tsr_input_coding_text(&f->inputs, inputs, sizeof inputs) : "not quantized");
    tsr_json_member_string(t, "rounding", served ? "bf16" : "none");
    tsr_json_member_u64(t, "sequences", f->sequences);
    tsr_json_member_u64(t, "token_count", f->tokens);
    tsr_json_member_u64(t, "weight_bytes_read", f->weight_bytes);
    tsr_json_member_u64(t, "activation_bytes", f->activation_bytes);
    tsr_json_member_number(t, "perplexity_source", f->perplexity[0]);
    tsr_json_member_number(t, "perplexity", f->perplexity[1]);
}

static void write_json(tsr_text *t, const void *verification)
{
    const tsr_verify_forward *const v = verification;
    const tsr_forward_request *const r = &v->request;
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "schema", "tessera-verify-forward/1");
    tsr_json_member_string(t, "version", TSR_VERSION);
    tsr_json_member_string(t, "source", v->sides[0]);
    tsr_json_member_string(t, "checkpoint", v->sides[1]);
    tsr_json_member_string(t, "reference", v->reference);
    tsr_json_member_string(t, "tokens", r->tokens);
    tsr_json_member_u64(t, "seed", r->seed);
    tsr_json_key(t, "layers");
    tsr_json_begin_array(t, true);
    tsr_json_u64(t, r->first);
    if (r->last == SIZE_MAX)
        tsr_json_null(t);
    else
        tsr_json_u64(t, r->last);
    tsr_json_end_array(t);
    tsr_json_member_bool(t, "passed", v->evidence.failed == 0);
    write_figures(t, v);
    tsr_json_key(t, "limits");
    tsr_json_begin_object(t, true);
    tsr_json_member_number(t, "min_sqnr_db", r->limits.min_sqnr);
    tsr_json_member_number(t, "min_stream_db", r->limits.min_stream);
    tsr_json_member_number(t, "max_kl_nats", r->limits.max_kl);
    tsr_json_member_number(t, "min_top1", r->limits.min_top1);
    tsr_json_end_object(t);
    tsr_evidence_json(t, &v->evidence);
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
}

/* ---- running ---- */

static tsr_status open_all(void *verification, tsr_err *err)
{
    tsr_verify_forward *const v = verification;
    if (v->checkpoints[0] != NULL)
        return TSR_OK;
    for (size_t i = 0; i < 2 && v->sides[i] != NULL; i++) {
        TSR_TRY(tsr_checkpoint_open(&v->checkpoints[i], v->sides[i], NULL, 0, err));
        TSR_TRY(
            tsr_weights_survey(&v->weights[i], v->checkpoints[i], (tsr_block){0, 0}, tsr_weights_pass_over, NULL, err));
        v->opened[i] = (tsr_side){v->checkpoints[i], &v->weights[i]};
    }
    if (v->reference != NULL)
        TSR_TRY(tsr_checkpoint_open(&v->opened_reference, v->reference, NULL, 0, err));
    v->request.source = &v->opened[0];
    v->request.model = v->sides[1] == NULL ? NULL : &v->opened[1];
    v->request.reference = v->opened_reference;
    return TSR_OK;
}

static tsr_status applies(void *verification, tsr_err *err)
{
    tsr_verify_forward *const v = verification;
    TSR_TRY(open_all(v, err));
    return tsr_forward_applies(&v->request, err);
}

static tsr_status run(void *verification, tsr_terminal *terminal, tsr_err *err)
{
    tsr_verify_forward *const v = verification;
    v->request.run = tsr_terminal_run_options(terminal, v->threads, v->memory);
    return tsr_check_forward(&v->request, &v->evidence, &v->figures, err);
}

static bool is_fine(const void *verification)
{
    const tsr_verify_forward *const v = verification;
    return v->evidence.failed == 0;
}

static void tell_judged(tsr_text *text, const void *verification)
{
    const tsr_verify_forward *const v = verification;
    const tsr_evidence *const e = &v->evidence;
    tsr_text_printf(text, "%zu of %zu layers, %zu judgements", e->subjects, e->candidates, e->count);
}

static void close_all(void *verification)
{
    tsr_verify_forward *const v = verification;
    tsr_evidence_free(&v->evidence);
    for (size_t i = 0; i < 2; i++) {
        tsr_weights_free(&v->weights[i]);
        tsr_checkpoint_close(v->checkpoints[i]);
    }
    tsr_checkpoint_close(v->opened_reference);
}

const tsr_verify_kind tsr_kind_forward = {
    .applies = applies,
    .open = open_all,
    .run = run,
    .fine = is_fine,
    .print = print_result,
    .write_json = write_json,
    .tell_judged = tell_judged,
    .close = close_all,
};
