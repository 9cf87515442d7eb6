/* Compares a checkpoint with its source. */
#include "lib/api.h"

#include "verify/compare/limit_options.h"

#include <math.h>
#include <stdlib.h>

/* The verdict is the first member, because the caller's pointer points to it. */
typedef struct judged {
    tessera_verdict verdict;
    tsr_findings findings;
    tessera_finding *reported;
} judged;

typedef struct asked {
    tsr_list tensors;
    const char *block;
    uint64_t threads, memory;
    tsr_weight_limits limits;
} asked;

static tsr_status read_words(asked *a, const char *const *words, tsr_err *err)
{
    uint64_t given;
    tsr_weight_limit_texts texts = {.min_sqnr = NULL};
    tsr_option options[TSR_MAX_OPTIONS] = {{"--tensors", TSR_OPT_LIST, &a->tensors, "GLOB", NULL},
                                           {"--source-block", TSR_OPT_TEXT, &a->block, "RxC", NULL},
                                           {"--threads", TSR_OPT_POSITIVE, &a->threads, "N", NULL},
                                           {"--memory", TSR_OPT_SIZE, &a->memory, "SIZE", NULL},
                                           {0}};
    tsr_weight_limit_options(options, &texts, &a->limits);
    TSR_TRY(tsr_words_parse(words, options, &given, err));
    return tsr_weight_limits_parse(&a->limits, &texts, err);
}

static tsr_status tell(judged *j, const tsr_comparison *c, tsr_err *err)
{
    tsr_metrics whole = {0};
    for (size_t i = 0; i < c->count; i++) {
        if (c->pairs[i].state == TSR_PAIR_DIFFERS)
            tsr_metrics_add(&whole, &c->pairs[i].metrics);
    }
    j->reported = calloc(j->findings.count + 1, sizeof *j->reported);
    if (j->reported == NULL)
        return tsr_out_of_memory(err, "for findings");
    for (size_t i = 0; i < j->findings.count; i++) {
        const tsr_finding *const f = &j->findings.items[i];
        j->reported[i] = (tessera_finding){.check = tsr_check_name(f->check), .where = f->where, .what = f->text};
    }
    j->verdict = (tessera_verdict){.tensors = c->count,
                                   .findings = j->findings.count,
                                   .finding = j->reported,
                                   .sqnr = whole.elements == 0 ? NAN : tsr_metrics_sqnr(&whole)};
    return TSR_OK;
}

static tsr_status compare(judged *j, const asked *a, const tsr_side side[2], tsr_api_watch *watch, tsr_err *err)
{
    const tsr_compare_options options = {
        .globs = a->tensors.items, .n_globs = a->tensors.count, .run = tsr_watch_options(watch, a->threads, a->memory)};
    tsr_comparison c = {.pairs = NULL};
    tsr_status status = tsr_compare(&side[0], &side[1], &options, &c, err);
    if (status == TSR_OK)
        status = tsr_check_weights(&side[0], &side[1], &c, &a->limits, &j->findings, err);
    if (status == TSR_OK)
        status = tell(j, &c, err);
    tsr_comparison_free(&c);
    return status;
}

static tsr_status verify(judged *j, const char *const path[2], const char *const *words, tsr_api_watch *watch,
                         tsr_err *err)
{
    asked a = {.threads = tsr_cpu_count(), .memory = TSR_DEFAULT_MEMORY, .limits = tsr_weight_limits_defaults()};
    tsr_checkpoint *opened[2] = {NULL, NULL};
    tsr_weights weights[2] = {{.count = 0}, {.count = 0}};
    tsr_block block; /* for the checkpoint that has no block size in config.json */
    tsr_status status = j == NULL ? tsr_out_of_memory(err, path[1]) : read_words(&a, words, err);
    if (status == TSR_OK)
        status = tsr_parse_block("--source-block", a.block, &block, err);
    for (size_t i = 0; i < 2 && status == TSR_OK; i++) {
        status = tsr_checkpoint_open(&opened[i], path[i], NULL, 0, err);
        if (status == TSR_OK)
            status = tsr_weights_pair_or(&weights[i], opened[i], block, err);
    }
    if (status == TSR_OK)
        status = tsr_weights_refuse_block(weights, 2, block, err);
    if (status == TSR_OK)
        status = tsr_weight_limits_refuse(&a.limits, &weights[1], &a.tensors, err);
    if (status == TSR_OK) {
        const tsr_side side[2] = {{opened[0], &weights[0]}, {opened[1], &weights[1]}};
        status = compare(j, &a, side, watch, err);
    }
    for (size_t i = 0; i < 2; i++) {
        tsr_weights_free(&weights[i]);
        tsr_checkpoint_close(opened[i]);
    }
    return status;
}

tessera_status tessera_verify(tessera_verdict **verdict, const char *path, const char *source,
                              const char *const *options, tessera_progress_fn *progress, void *data,
                              tessera_error *error)
{
    tsr_call call;
    tsr_api_watch watch = {.tell = progress, .data = data};
    const char *const paths[2] = {source, path};
    tsr_call_begin(&call);
    judged *j = calloc(1, sizeof *j);
    const tsr_status status = verify(j, paths, options, &watch, &call.err);
    if (status != TSR_OK && j != NULL) {
        tessera_verdict_free(&j->verdict);
        j = NULL;
    }
    *verdict = j == NULL ? NULL : &j->verdict;
    return tsr_call_end(&call, status, error);
}

void tessera_verdict_free(tessera_verdict *verdict)
{
    judged *const j = (judged *)verdict;
    if (j == NULL)
        return;
    tsr_findings_free(&j->findings);
    free(j->reported);
    free(j);
}
