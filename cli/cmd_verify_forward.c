/* tessera verify forward: options, a table of how errors grow, and evidence for CI. */
#include "cli/commands.h"
#include "cli/evidence_text.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/terminal.h"
#include "formats/json/json_write.h"
#include "verify/forward/check_forward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 20 };

typedef struct arguments {
    const char *sides[2]; /* SRC and DST; of --reference only the first */
    const char *layers, *tokens, *reference, *min_sqnr, *max_kl, *min_top1;
    uint64_t sequences, length, seed;
    tsr_check_options last;
    tsr_forward_limits limits;
} arguments;

/* What is open while the check runs. */
typedef struct session {
    tsr_checkpoint *checkpoints[2], *reference;
    tsr_weights weights[2];
    tsr_side sides[2];
    tsr_terminal terminal;
    tsr_evidence evidence;
} session;

static const char kHelp[] =
    "tessera verify forward DST --against SRC [options]\n"
    "tessera verify forward MODEL --reference FILE\n\n"
    "Runs tokens through both checkpoints in double precision (embedding, attention, router, experts, norms, head), a\n"
    "layer at a time, and shows how the error grows: in the hidden states after each layer, in each layer alone on "
    "the\n"
    "source's input, and in the choice of experts; at the end the KL divergence of the logits, and how often the\n"
    "likeliest token is the same. With --reference, the hidden states and logits of another implementation are\n"
    "compared with those of MODEL.\n"
    "Families: llama, mistral, qwen2, qwen3, qwen3_moe, deepseek_v2, deepseek_v3, kimi_k2.\n"
    "Exit code 0: all within the limits; 1: not; 3: a family, tensor or file that does not fit.\n\n"
    "Examples:\n"
    "  tessera verify forward Llama-3.1-8B-FP8 --against Llama-3.1-8B\n"
    "  tessera verify forward DeepSeek-V3-FP8 --against DeepSeek-V3-BF16 --layers 0..4 --tokens prompt.txt\n"
    "  tessera verify forward out --against model --max-kl 0.05 --min-top1 0.95 --junit result.xml       for CI\n\n"
    "Options:\n";

static void list_options(arguments *a, tsr_option *options)
{
    const tsr_option all[] = {
        {"--against", TSR_OPT_TEXT, &a->sides[0], "SRC", "what DST was made from"},
        {"--layers", TSR_OPT_TEXT, &a->layers, "A..B", "only these, straight from the embedding (all)"},
        {"--tokens", TSR_OPT_TEXT, &a->tokens, "FILE|random", "token ids as text, a line a sequence (random)"},
        {"--batch", TSR_OPT_COUNT, &a->sequences, "B",
         "number of sequences: drawn (1), or the first of the file (all)"},
        {"--count", TSR_OPT_COUNT, &a->length, "N", "tokens of a sequence, at most (64)"},
        {"--seed", TSR_OPT_COUNT, &a->seed, "S", "seed of drawn tokens (0)"},
        {"--reference", TSR_OPT_TEXT, &a->reference, "FILE",
         "safetensors of an implementation: input_ids, hidden_states.N, logits"},
        {"--min-sqnr", TSR_OPT_TEXT, &a->min_sqnr, "DB", "smallest SQNR of what a layer alone adds (10)"},
        {"--max-kl", TSR_OPT_TEXT, &a->max_kl, "X", "largest mean KL divergence, in nats (none)"},
        {"--min-top1", TSR_OPT_TEXT, &a->min_top1, "X",
         "smallest share of positions with the same likeliest token "
         "(none)"},
        {0},
    };
    memcpy(options, all, sizeof all);
    tsr_options_append_check(options, &a->last);
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

/* Decides which checkpoint is which. Two paths in a row are refused, since the check would also pass with the two
 * swapped. */
static tsr_status take_sides(arguments *a, const char *const named[2], tsr_err *err)
{
    if (named[0] == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera verify forward DST --against SRC");
    if (named[1] != NULL)
        return tsr_fail(err, TSR_E_USAGE,
                        "'%s' and '%s': which was made from which? tessera verify forward DST --against SRC", named[0],
                        named[1]);
    if ((a->reference == NULL) == (a->sides[0] == NULL))
        return tsr_fail(err, TSR_E_USAGE, "held to what? --against SRC, or --reference FILE%s",
                        a->reference == NULL ? "" : ", not both");
    a->sides[a->reference == NULL ? 1 : 0] = named[0];
    return TSR_OK;
}

static tsr_status parse(int argc, char **argv, arguments *a, tsr_forward_request *r, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS];
    const char *named[2] = {NULL, NULL};
    size_t n;
    list_options(a, options);
    TSR_TRY(tsr_options_parse(options, argc, argv, named, 2, &n, NULL, err));
    if (a->last.help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    TSR_TRY(take_sides(a, named, err));
    if (a->reference != NULL && a->tokens != NULL)
        return tsr_fail(err, TSR_E_USAGE, "--tokens: --reference has its own");
    if (a->last.threads == 0 || a->length == 0 || a->sequences > MAX_TOKENS || a->length > MAX_TOKENS)
        return tsr_fail(err, TSR_E_USAGE, "%s: from 1 to %d",
                        a->last.threads == 0 ? "--threads" : "--count (and --batch)", MAX_TOKENS);
    const tsr_places places = {.sources = {a->sides[0], a->sides[1], a->reference, a->tokens},
                               .json = a->last.json,
                               .junit = a->last.junit,
                               .progress = a->last.progress.file};
    TSR_TRY(tsr_places_check(&places, err));
    TSR_TRY(parse_layers(a->layers, r, err));
    TSR_TRY(tsr_parse_number("--min-sqnr", a->min_sqnr, &r->limits.min_sqnr, err));
    TSR_TRY(tsr_parse_number("--max-kl", a->max_kl, &r->limits.max_kl, err));
    TSR_TRY(tsr_parse_number("--min-top1", a->min_top1, &r->limits.min_top1, err));
    r->tokens = a->tokens != NULL && strcmp(a->tokens, "random") == 0 ? NULL : a->tokens;
    r->sequences = a->sequences > 0 ? a->sequences : r->tokens == NULL ? 1 : MAX_TOKENS;
    r->length = a->length;
    r->seed = a->seed;
    a->last.threads = a->last.threads > UINT16_MAX ? UINT16_MAX : a->last.threads;
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
    tsr_print("%-22s  %9s  %10s  %9s   %9s  %10s  %9s\n", "", "SQNR", "relative", "experts", "SQNR", "relative",
              "experts");
    for (size_t i = 0; i + 1 < e->count; i++) {
        const tsr_judgement *const stream = &e->items[i], *const alone = stream + 1;
        if (strcmp(stream->what, TSR_FORWARD_STREAM) != 0 || strcmp(alone->what, TSR_FORWARD_LAYER) != 0)
            continue;
        tsr_print("%-22s  %6.2f dB  %10.3g", stream->subject, tsr_metrics_sqnr(&stream->metrics),
                  tsr_metrics_relative(&stream->metrics));
        print_share(stream);
        tsr_print("   %6.2f dB  %10.3g", tsr_metrics_sqnr(&alone->metrics), tsr_metrics_relative(&alone->metrics));
        print_share(alone);
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

static void print_result(const arguments *a, const session *s)
{
    const tsr_evidence *const e = &s->evidence;
    if (a->reference != NULL) {
        for (size_t i = 0; i < e->count; i++) {
            tsr_print("%s\n", e->items[i].subject);
            tsr_judgement_print(&e->items[i]);
        }
    } else {
        print_layers(e);
        print_logits(&e->items[e->count - 1]);
    }
    tsr_print("CPU, double precision; seed %llu, %.2f s\n", (unsigned long long)a->seed, e->seconds);
    tsr_evidence_print_end(e);
}

static void write_json(tsr_text *t, const arguments *a, const tsr_forward_request *r, const session *s)
{
    tsr_json_begin_object(t, false);
    tsr_json_member_string(t, "schema", "tessera-verify-forward/1");
    tsr_json_member_string(t, "version", TSR_VERSION);
    tsr_json_member_string(t, "source", a->sides[0]);
    tsr_json_member_string(t, "checkpoint", a->sides[1]);
    tsr_json_member_string(t, "reference", a->reference);
    tsr_json_member_string(t, "tokens", r->tokens);
    tsr_json_member_u64(t, "seed", a->seed);
    tsr_json_key(t, "layers");
    tsr_json_begin_array(t, true);
    tsr_json_u64(t, r->first);
    if (r->last == SIZE_MAX)
        tsr_json_null(t);
    else
        tsr_json_u64(t, r->last);
    tsr_json_end_array(t);
    tsr_json_member_bool(t, "passed", s->evidence.failed == 0);
    tsr_json_key(t, "limits");
    tsr_json_begin_object(t, true);
    tsr_json_member_number(t, "min_sqnr_db", r->limits.min_sqnr);
    tsr_json_member_number(t, "max_kl_nats", r->limits.max_kl);
    tsr_json_member_number(t, "min_top1", r->limits.min_top1);
    tsr_json_end_object(t);
    tsr_evidence_json(t, &s->evidence);
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
}

/* ---- running ---- */

static tsr_status verify(const arguments *a, session *s, tsr_forward_request *r, tsr_err *err)
{
    for (size_t i = 0; i < 2 && a->sides[i] != NULL; i++) {
        TSR_TRY(tsr_checkpoint_open(&s->checkpoints[i], a->sides[i], NULL, 0, err));
        TSR_TRY(
            tsr_weights_survey(&s->weights[i], s->checkpoints[i], (tsr_block){0, 0}, tsr_weights_pass_over, NULL, err));
        s->sides[i] = (tsr_side){s->checkpoints[i], &s->weights[i]};
    }
    if (a->reference != NULL)
        TSR_TRY(tsr_checkpoint_open(&s->reference, a->reference, NULL, 0, err));
    r->source = &s->sides[0];
    r->model = a->sides[1] == NULL ? NULL : &s->sides[1];
    r->reference = s->reference;
    TSR_TRY(tsr_terminal_open(&s->terminal, a->last.quiet, &a->last.progress, err));
    r->run = tsr_terminal_run_options(&s->terminal, a->last.threads, 0);
    const tsr_status status = tsr_check_forward(r, &s->evidence, err);
    tsr_terminal_close(&s->terminal);
    TSR_TRY(status);
    if (!a->last.quiet && !tsr_is_stdout(a->last.json) && !tsr_is_stdout(a->last.junit))
        print_result(a, s);
    tsr_text json = {0};
    write_json(&json, a, r, s);
    const tsr_status written = tsr_results_write(a->last.json, a->last.junit, &json, err);
    tsr_text_free(&json);
    return written;
}

int tsr_cmd_verify_forward(int argc, char **argv)
{
    arguments a = {.length = 64, .last.threads = tsr_cpu_count()};
    tsr_forward_request r = {.last = SIZE_MAX, .limits = tsr_forward_limits_defaults()};
    session s = {0};
    tsr_err err = {{0}};
    tsr_status status = parse(argc - 1, argv + 1, &a, &r, &err);
    if (status == TSR_OK && !a.last.help)
        status = verify(&a, &s, &r, &err);
    const bool fine = s.evidence.failed == 0;
    tsr_evidence_free(&s.evidence);
    for (size_t i = 0; i < 2; i++) {
        tsr_weights_free(&s.weights[i]);
        tsr_checkpoint_close(s.checkpoints[i]);
    }
    tsr_checkpoint_close(s.reference);
    return tsr_end("verify forward", status, fine, &err);
}
