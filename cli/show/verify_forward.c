/* The options of a forward pass through two models, and its result as text and JSON. */
#include "cli/show/verify_forward.h"

#include "cli/io/output.h"
#include "cli/show/evidence_result.h"
#include "common/text.h"
#include "formats/json/json_write.h"
#include "report/write/terminal/terminal_parts.h"

#include <math.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 20 };

/* ---- options ---- */

tsr_forward_texts tsr_forward_texts_defaults(void)
{
    return (tsr_forward_texts){.length = 64, .devices = 1};
}

void tsr_forward_options(tsr_option *options, tsr_forward_texts *texts)
{
    const tsr_option all[] = {
        {"--baseline", TSR_OPT_TEXT, &texts->baseline, "OTHER",
         "also run this checkpoint of SRC, such as one of --method rtn, and fail if its predictions are nearer to SRC's"},
        {"--layers", TSR_OPT_TEXT, &texts->layers, "A..B",
         "run only these layers, the first on the source's "
         "embeddings (all)"},
        {"--tokens", TSR_OPT_TEXT, &texts->tokens, "FILE|random",
         "token ids (text, .npy, raw int32), text or .jsonl for the model's tokenizer, or random ids (random)"},
        {"--batch", TSR_OPT_POSITIVE, &texts->sequences, "B", "number of sequences (random: 1; a file: all of it)"},
        {"--count", TSR_OPT_POSITIVE, &texts->length, "N", "largest number of tokens in a sequence (64)"},
        {"--devices", TSR_OPT_POSITIVE, &texts->devices, "N",
         "number of GPUs: half for each model, which share its weights; figures may differ slightly (1)"},
        {"--kl-by-layer", TSR_OPT_FLAG, &texts->kl_by_layer, NULL,
         "also compute the KL divergence after every layer, by the final norm and head, twice a layer"},
        {"--exact", TSR_OPT_FLAG, &texts->exact, NULL,
         "compute DST in double too, so that only the error of the weights remains"},
        {"--min-stream", TSR_OPT_TEXT, &texts->min_stream, "DB",
         "smallest SQNR of the hidden states and the logits (by format and depth)"},
        {"--max-kl", TSR_OPT_TEXT, &texts->max_kl, "X", "largest mean KL divergence, in nats (none)"},
        {"--min-top1", TSR_OPT_TEXT, &texts->min_top1, "X",
         "smallest share, from 0 to 1, of positions with the same most likely token (none)"},
        {0},
    };
    tsr_options_append(options, all);
}

static tsr_status parse_layers(const char *text, tsr_forward_request *r, tsr_err *err)
{
    const char *end = text;
    if (text == NULL)
        return TSR_OK;
    bool fine = tsr_take_decimal(&end, &r->first);
    r->last = r->first;
    if (fine && strncmp(end, "..", 2) == 0) {
        end += 2;
        fine = tsr_take_decimal(&end, &r->last);
    }
    return fine && *end == '\0' ? TSR_OK : tsr_fail(err, TSR_E_USAGE, "--layers: '%s' is not A..B or one number", text);
}

tsr_status tsr_forward_texts_parse(tsr_forward_request *r, const tsr_forward_texts *texts, tsr_err *err)
{
    if (texts->sequences > MAX_TOKENS || texts->length > MAX_TOKENS)
        return tsr_fail(err, TSR_E_USAGE, "--count, --batch: at most %d", MAX_TOKENS);
    if (texts->devices > TSR_FORWARD_DEVICES)
        return tsr_fail(err, TSR_E_USAGE, "--devices: at most %d", TSR_FORWARD_DEVICES);
    r->devices = (size_t)texts->devices;
    TSR_TRY(parse_layers(texts->layers, r, err));
    TSR_TRY(tsr_parse_number("--min-stream", texts->min_stream, TSR_ANY_NUMBER, &r->limits.min_stream, err));
    TSR_TRY(tsr_parse_number("--max-kl", texts->max_kl, TSR_FROM_ZERO, &r->limits.max_kl, err));
    TSR_TRY(tsr_parse_number("--min-top1", texts->min_top1, TSR_SHARE, &r->limits.min_top1, err));
    r->tokens = texts->tokens != NULL && strcmp(texts->tokens, "random") == 0 ? NULL : texts->tokens;
    r->sequences = texts->sequences > 0 ? texts->sequences : r->tokens == NULL ? 1 : MAX_TOKENS;
    r->length = texts->length;
    r->kl_by_layer = texts->kl_by_layer;
    r->exact = texts->exact;
    return TSR_OK;
}

/* ---- running ---- */

static tsr_status open_side(tsr_verify_forward *v, size_t i, tsr_err *err)
{
    const tsr_list *const ignore = i == 0 ? v->ignore : NULL;
    TSR_TRY(tsr_checkpoint_open(&v->checkpoints[i], v->sides[i], ignore == NULL ? NULL : ignore->items,
                                ignore == NULL ? 0 : ignore->count, err));
    TSR_TRY(tsr_weights_survey(&v->weights[i], v->checkpoints[i], (tsr_block){0, 0}, tsr_weights_pass_over, NULL, err));
    v->opened[i] = (tsr_side){v->checkpoints[i], &v->weights[i]};
    return TSR_OK;
}

tsr_status tsr_verify_forward_open(tsr_verify_forward *v, tsr_err *err)
{
    for (size_t i = 0; i < 3; i++) {
        if (v->sides[i] != NULL && v->checkpoints[i] == NULL)
            TSR_TRY(open_side(v, i, err));
    }
    if (v->reference != NULL && v->opened_reference == NULL)
        TSR_TRY(tsr_checkpoint_open(&v->opened_reference, v->reference, NULL, 0, err));
    v->request.source = &v->opened[0];
    v->request.model = v->sides[1] == NULL ? NULL : &v->opened[1];
    v->request.reference = v->opened_reference;
    return TSR_OK;
}

tsr_status tsr_verify_forward_run(tsr_verify_forward *v, tsr_err *err)
{
    TSR_TRY(tsr_check_forward(&v->request, &v->evidence, &v->figures, err));
    v->baseline.path = v->sides[2];
    return v->baseline.path == NULL
               ? TSR_OK
               : tsr_forward_baseline_run(&v->baseline, &v->request, &v->opened[2], &v->evidence, err);
}

void tsr_verify_forward_free(tsr_verify_forward *v)
{
    tsr_result_free(&v->result);
    tsr_evidence_free(&v->evidence);
    tsr_forward_baseline_free(&v->baseline);
    for (size_t i = 0; i < 3; i++) {
        tsr_weights_free(&v->weights[i]);
        tsr_checkpoint_close(v->checkpoints[i]);
    }
    tsr_checkpoint_close(v->opened_reference);
}

/* ---- the result ---- */

void tsr_verify_forward_print_figures(const tsr_verify_forward *v)
{
    const tsr_forward_figures *const f = &v->figures;
    char inputs[96];
    const tsr_forward_predictions *const p = &f->predictions;
    if (!isnan(p->perplexity[0]))
        tsr_print("       perplexity: %.4f +- %.4f of SRC, %.4f +- %.4f of DST\n", p->perplexity[0],
                  p->perplexity_error[0], p->perplexity[1], p->perplexity_error[1]);
    if (v->baseline.path != NULL)
        tsr_forward_baseline_print(&v->baseline);
    if (!isnan(p->kl_percentile[0]))
        tsr_print("       KL divergence: median %.3g, 90 %% below %.3g, 99 %% below %.3g, 99.9 %% below %.3g nats\n",
                  p->kl_percentile[0], p->kl_percentile[1], p->kl_percentile[2], p->kl_percentile[3]);
    if (f->devices > 1)
        tsr_print("%zu x ", f->devices);
    tsr_print("%s; %zu tokens in %zu sequences, seed %llu; SRC in double", f->device, f->tokens, f->sequences,
              U64(v->request.seed));
    if (v->reference == NULL && v->request.exact)
        tsr_print(", DST too");
    else if (v->reference == NULL)
        tsr_print(", DST in BF16 between layers, inputs of its codes %s",
                  tsr_input_coding_text(&f->inputs, inputs, sizeof inputs));
    tsr_print("; %.2f GB of weights read, %.2f GB of activations held, %.2f s, of them %.2f s in layers\n",
              (double)f->weight_bytes * 1e-9, (double)f->activation_bytes * 1e-9, v->evidence.seconds,
              v->evidence.phases[TSR_PHASE_ORACLE]);
    if (f->devices > 1)
        tsr_print("%.2f GB copied between devices, %.2f GB between host and devices\n",
                  (double)f->bytes_between_devices * 1e-9, (double)f->bytes_of_host * 1e-9);
}

tsr_status tsr_verify_forward_print(tsr_command_context *context, tsr_err *err)
{
    const tsr_verify_forward *const v = context->job;
    const tsr_style style = tsr_command_style();
    tsr_text text = {0};
    tsr_draw_layers(&text, &style, &v->result);
    TSR_TRY(tsr_print_drawn(&text, err));
    tsr_verify_forward_print_figures(v);
    tsr_draw_judged(&text, &style, &v->result, SIZE_MAX);
    return tsr_print_drawn(&text, err);
}

void tsr_verify_forward_figures_json(const tsr_verify_forward *v, tsr_text *t)
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
    tsr_json_member_u64(t, "bytes_between_devices", f->bytes_between_devices);
    tsr_json_member_u64(t, "bytes_between_host_and_devices", f->bytes_of_host);
    static const char *const kPercentiles[TSR_KL_PERCENTILES] = {"kl_median_nats", "kl_90_nats", "kl_99_nats",
                                                                 "kl_99_9_nats"};
    tsr_json_member_number(t, "perplexity_source", f->predictions.perplexity[0]);
    tsr_json_member_number(t, "perplexity_source_error", f->predictions.perplexity_error[0]);
    tsr_json_member_number(t, "perplexity", f->predictions.perplexity[1]);
    tsr_json_member_number(t, "perplexity_error", f->predictions.perplexity_error[1]);
    for (size_t i = 0; i < TSR_KL_PERCENTILES; i++)
        tsr_json_member_number(t, kPercentiles[i], f->predictions.kl_percentile[i]);
    tsr_forward_baseline_json(t, &v->baseline);
}

void tsr_verify_forward_json(const tsr_command_context *context, tsr_text *t)
{
    const tsr_verify_forward *const v = context->job;
    const tsr_forward_request *const r = &v->request;
    tsr_json_member_string(t, "source", v->sides[0]);
    tsr_json_member_string(t, "checkpoint", v->sides[1]);
    tsr_json_member_string(t, "reference", v->reference);
    tsr_json_member_string(t, "tokens", r->tokens);
    tsr_json_member_u64(t, "seed", r->seed);
    tsr_json_member_array(t, "layers", true);
    tsr_json_u64(t, r->first);
    if (r->last == SIZE_MAX)
        tsr_json_null(t);
    else
        tsr_json_u64(t, r->last);
    tsr_json_end_array(t);
    tsr_json_member_bool(t, "passed", v->evidence.failed == 0);
    tsr_verify_forward_figures_json(v, t);
    tsr_json_member_object(t, "limits", true);
    tsr_json_member_number(t, "min_sqnr_db", r->limits.min_sqnr);
    tsr_json_member_number(t, "min_stream_db", r->limits.min_stream);
    tsr_json_member_number(t, "max_kl_nats", r->limits.max_kl);
    tsr_json_member_number(t, "min_top1", r->limits.min_top1);
    tsr_json_end_object(t);
    tsr_evidence_json(t, &v->evidence, &v->result);
}
