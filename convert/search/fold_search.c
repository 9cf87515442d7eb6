/* Tries each alpha for all sets at once, and keeps the best one of each. */
#include "convert/search/fold_search.h"

#include "common/checked.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Channels whose root mean square is below 2^-20 of the largest count as that. */
static const double kLeast = 20;

/* The state of one set. */
typedef struct set_state {
    double
        *logarithms; /* [channels]: log2 of the root mean squares, minus the middle of their range; NULL: unmeasured */
    double first, best; /* errors without scaling, and with the best alpha so far */
    unsigned alpha;     /* the best, in steps */
    double loss;        /* error in this round */
} set_state;

typedef struct searching {
    const tsr_fold_search *o;
    const tsr_run_options *run;
    set_state *sets;             /* [sets->count] */
    const tsr_tensor **measured; /* layers that the scheme quantizes */
    const tsr_fold **folds;      /* the exponents of each */
    uint64_t *taken;             /* the scheme's bit, for each */
    size_t *set_of;
    size_t n;
    tsr_scheme_cost *costs; /* [n][TSR_SCHEMES] */
    int8_t *exponents;      /* those of one set of channels */
    unsigned round;
    tsr_arena arena;
} searching;

/* ---- importance ---- */

/* Averages the importance of the columns that read one channel. */
static double mean_of_channel(const tsr_fold_set *set, const float *columns, size_t channel)
{
    const size_t head = channel / set->head_dim, at = channel % set->head_dim;
    double sum = 0;
    for (size_t h = 0; h < set->heads; h++)
        sum += (double)columns[(head * set->heads + h) * set->head_dim + at];
    return sum / (double)set->heads;
}

/* Computes the logarithms of a set from the importance of its first consumer. Leaves NULL if there is none. */
static tsr_status measure_channels(searching *s, size_t index, tsr_err *err)
{
    const tsr_fold_set *const set = &s->o->sets->items[index];
    const size_t cols = set->channels * set->heads;
    float *const columns = malloc((cols + 1) * sizeof *columns);
    double *const l = tsr_arena_alloc(&s->arena, (set->channels + 1) * sizeof *l), least = INFINITY, most = -INFINITY;
    tsr_column_importance found;
    tsr_status status = columns == NULL || l == NULL
                            ? tsr_out_of_memory(err, "for the search of scales")
                            : tsr_importance_find(s->o->importance, set->consumers[0], &found, err);
    const bool known = status == TSR_OK && tsr_importance_of(&found, 0, 0, cols, columns);
    for (size_t k = 0; known && k < set->channels; k++) {
        l[k] = 0.5 * log2(mean_of_channel(set, columns, k));
        most = fmax(most, l[k]);
    }
    for (size_t k = 0; known && k < set->channels; k++) {
        l[k] = fmax(l[k], most - kLeast);
        least = fmin(least, l[k]);
    }
    for (size_t k = 0; known && k < set->channels; k++)
        l[k] -= (least + most) / 2;
    if (known)
        s->sets[index].logarithms = l;
    free(columns);
    return status;
}

/* Computes the exponents of a set for an alpha. */
static const int8_t *exponents_of(const searching *s, size_t index, unsigned alpha)
{
    const set_state *const state = &s->sets[index];
    const size_t channels = s->o->sets->items[index].channels;
    memset(s->exponents, 0, channels);
    for (size_t k = 0; state->logarithms != NULL && k < channels; k++)
        s->exponents[k] = (int8_t)lrint(alpha * state->logarithms[k] / TSR_FOLD_STEPS);
    return s->exponents;
}

/* ---- rounds ---- */

/* Reports the progress of a round as a part of all rounds. */
static void tell(const tsr_progress *progress, void *data)
{
    const searching *const s = data;
    tsr_progress whole = *progress;
    whole.phase = "searching";
    whole.bytes_done = s->round * progress->bytes_total + progress->bytes_done;
    whole.bytes_total = (TSR_FOLD_STEPS + 1) * progress->bytes_total;
    s->run->progress(&whole, s->run->progress_data);
}

static tsr_status run_round(searching *s, tsr_err *err)
{
    const tsr_fold_sets *const sets = s->o->sets;
    tsr_compare_schemes_options options = {.run = *s->run,
                                           .taken = s->taken,
                                           .schemes = UINT64_C(1) << s->o->scheme,
                                           .importance = s->o->importance,
                                           .folds = s->folds,
                                           .cpu_flags = s->o->cpu_flags};
    options.run.progress = s->run->progress == NULL ? NULL : tell;
    options.run.progress_data = s;
    for (size_t i = 0; i < sets->count; i++) {
        s->sets[i].loss = 0;
        tsr_fold_set_try(sets, &sets->items[i], s->o->checkpoint, exponents_of(s, i, s->round));
    }
    memset(s->costs, 0, s->n * TSR_SCHEMES * sizeof *s->costs);
    TSR_TRY(tsr_compare_schemes(s->o->checkpoint, s->measured, s->n, &options, s->costs, err));
    for (size_t i = 0; i < s->n; i++)
        s->sets[s->set_of[i]].loss += s->costs[i * TSR_SCHEMES + s->o->scheme].stats.sum_wd2;
    for (size_t i = 0; i < sets->count; i++) {
        set_state *const state = &s->sets[i];
        state->first = s->round == 0 ? state->loss : state->first;
        if (s->round == 0 || state->loss < state->best) {
            state->best = state->loss;
            state->alpha = s->round;
        }
    }
    return TSR_OK;
}

/* Applies the best exponents, and sums up the gain. */
static void apply(const searching *s, tsr_fold_gain *gain)
{
    const tsr_fold_sets *const sets = s->o->sets;
    double alphas = 0;
    *gain = (tsr_fold_gain){.sets = sets->count};
    for (size_t i = 0; i < sets->count; i++) {
        const set_state *const state = &s->sets[i];
        const bool known = state->logarithms != NULL && state->first > 0;
        tsr_fold_set_apply(sets, &sets->items[i], s->o->checkpoint, exponents_of(s, i, known ? state->alpha : 0));
        gain->unmeasured += !known;
        gain->scaled += known && state->alpha > 0;
        gain->before += known ? state->first : 0;
        gain->after += known ? state->best : 0;
        alphas += known ? (double)state->alpha / TSR_FOLD_STEPS : 0;
    }
    gain->mean_alpha = alphas / (double)(sets->count - gain->unmeasured);
}

/* ---- the search ---- */

/* Lists the consumers that the scheme quantizes. */
static tsr_status list_layers(searching *s, tsr_err *err)
{
    const tsr_fold_sets *const sets = s->o->sets;
    const tsr_checkpoint *const c = s->o->checkpoint;
    uint64_t *const taken = tsr_arena_alloc(&s->arena, (c->tensors.count + 1) * sizeof *taken);
    if (taken == NULL)
        return tsr_out_of_memory(err, "for the search of scales");
    TSR_TRY(tsr_schemes_decide(c, s->o->model_type, taken, &s->arena, err));
    for (size_t i = 0; i < sets->count; i++) {
        for (size_t k = 0; k < sets->items[i].n; k++) {
            const tsr_tensor *const t = sets->items[i].consumers[k];
            if ((taken[t - c->tensors.items] >> s->o->scheme & 1) == 0)
                continue;
            s->measured[s->n] = t;
            s->folds[s->n] = &sets->folds[t - c->tensors.items];
            s->taken[s->n] = UINT64_C(1) << s->o->scheme;
            s->set_of[s->n++] = i;
        }
    }
    return TSR_OK;
}

static tsr_status prepare(searching *s, tsr_err *err)
{
    const size_t n = s->o->checkpoint->tensors.count + 1, sets = s->o->sets->count + 1;
    size_t channels = 1;
    for (size_t i = 0; i < s->o->sets->count; i++)
        channels = tsr_max_u64(channels, s->o->sets->items[i].channels);
    s->sets = tsr_arena_alloc(&s->arena, sets * sizeof *s->sets);
    s->measured = tsr_arena_alloc(&s->arena, n * sizeof *s->measured);
    s->folds = tsr_arena_alloc(&s->arena, n * sizeof *s->folds);
    s->taken = tsr_arena_alloc(&s->arena, n * sizeof *s->taken);
    s->set_of = tsr_arena_alloc(&s->arena, n * sizeof *s->set_of);
    s->exponents = tsr_arena_alloc(&s->arena, channels);
    TSR_TRY(tsr_arena_status(&s->arena, TSR_OK, err));
    memset(s->sets, 0, sets * sizeof *s->sets);
    for (size_t i = 0; i < s->o->sets->count; i++)
        TSR_TRY(measure_channels(s, i, err));
    TSR_TRY(list_layers(s, err));
    s->costs = malloc((s->n + 1) * TSR_SCHEMES * sizeof *s->costs);
    return s->costs == NULL ? tsr_out_of_memory(err, "for the costs of schemes") : TSR_OK;
}

tsr_status tsr_fold_search_run(const tsr_fold_search *search, const tsr_run_options *run, tsr_fold_gain *gain,
                               tsr_err *err)
{
    searching s = {.o = search, .run = run};
    tsr_status status = prepare(&s, err);
    for (; status == TSR_OK && s.round <= TSR_FOLD_STEPS; s.round++)
        status = run_round(&s, err);
    if (status == TSR_OK)
        apply(&s, gain);
    if (status == TSR_OK && gain->unmeasured == gain->sets)
        status =
            tsr_fail(err, TSR_E_MISMATCH,
                     "%s: it has no data for any layer that the scheme quantizes: 'tessera calibrate' measures them",
                     search->importance->path);
    free(s.costs);
    tsr_arena_free(&s.arena);
    return status;
}
