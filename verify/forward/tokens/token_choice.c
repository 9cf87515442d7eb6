/* Selects the blocks with the largest scores, and stores choices of tokens as bits. */
#include "verify/forward/tokens/token_choice.h"

#include "common/checked.h"
#include "common/parallel/parallel_for.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORD = 64 };

/* ---- memory ---- */

static tsr_status reserve(tsr_token_choice *choice, size_t groups, size_t count, size_t words, size_t rate,
                          tsr_err *err)
{
    *choice = (tsr_token_choice){calloc(groups * count * words + 1, sizeof(uint64_t)), groups, count, words, rate};
    return choice->bits == NULL ? tsr_out_of_memory(err, "for the choice of tokens") : TSR_OK;
}

tsr_status tsr_token_choice_make(tsr_token_choice *choice, size_t groups, const tsr_tokens *tokens, size_t rate,
                                 tsr_err *err)
{
    return reserve(choice, groups, tokens->count, (size_t)tsr_ceil_div(tokens->longest, WORD), rate, err);
}

void tsr_token_choice_free(tsr_token_choice *choice)
{
    free(choice->bits);
    *choice = (tsr_token_choice){0};
}

static uint64_t *row_of(const tsr_token_choice *choice, size_t group, size_t token)
{
    return choice->bits + (group * choice->count + token) * choice->words;
}

void tsr_token_choice_place(tsr_token_choice *whole, size_t first, const tsr_token_choice *part)
{
    for (size_t g = 0; g < part->groups; g++)
        memcpy(row_of(whole, g, first), row_of(part, g, 0), part->count * part->words * sizeof(uint64_t));
}

tsr_status tsr_token_choice_repeat(const tsr_token_choice *choice, size_t times, tsr_token_choice *repeated,
                                   tsr_err *err)
{
    *repeated = (tsr_token_choice){0};
    if (choice->bits == NULL)
        return TSR_OK;
    TSR_TRY(reserve(repeated, choice->groups, times * choice->count, choice->words, choice->rate, err));
    for (size_t i = 0; i < times; i++)
        tsr_token_choice_place(repeated, i * choice->count, choice);
    return TSR_OK;
}

/* ---- comparison ---- */

static size_t count_bits(const uint64_t *x, const uint64_t *y, size_t words)
{
    size_t n = 0;
    for (size_t i = 0; i < words; i++)
        n += (size_t)__builtin_popcountll(x[i] & y[i]);
    return n;
}

void tsr_token_choice_compare(const tsr_token_choice *x, const tsr_token_choice *y, size_t y_first,
                              const tsr_tokens *tokens, uint64_t *chosen, uint64_t *alike)
{
    const size_t n = tokens->count;
    for (size_t i = 0; i < x->groups * n; i++) {
        const uint64_t *const a = row_of(x, i / n, i % n), *const b = row_of(y, i / n, y_first + i % n);
        const size_t own = count_bits(a, a, x->words);
        if (own >= (tsr_token_position(tokens, i % n) + 1) / x->rate)
            continue;
        *chosen += own;
        *alike += count_bits(a, b, x->words);
    }
}

/* ---- selection ---- */

typedef struct selecting {
    tsr_token_choice *choice;
    const tsr_token_scores *scores;
    size_t blocks;   /* that the last query sees */
    double *scratch; /* [workers][2][blocks] */
} selecting;

/* Returns the k-th largest of n scores without NaN, counted from 0, and changes their order (Hoare 1961). */
static double select_largest(double *x, size_t n, size_t k)
{
    ptrdiff_t low = 0, high = (ptrdiff_t)n - 1;
    const ptrdiff_t wanted = (ptrdiff_t)k;
    while (low < high) {
        const double pivot = x[wanted];
        ptrdiff_t i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (x[j] < pivot)
                j--;
            if (i > j)
                break;
            const double moved = x[i];
            x[i++] = x[j];
            x[j--] = moved;
        }
        low = j < wanted ? i : low;
        high = wanted < i ? j : high;
    }
    return x[wanted];
}

/* Computes the scores of `blocks` blocks from those of positions [0, seen). NaN becomes -DBL_MAX. */
static void pool(const tsr_token_scores *s, const double *scores, size_t seen, double *pooled, size_t blocks)
{
    for (size_t b = 0; b < blocks; b++) {
        const size_t end = (size_t)tsr_min_u64((b + 1) * s->block, seen);
        pooled[b] = blocks - b <= s->local ? INFINITY : -DBL_MAX;
        for (size_t j = b * s->block; j < end; j++)
            pooled[b] = fmax(pooled[b], scores[j]);
    }
}

static void set_positions(uint64_t *row, size_t from, size_t to)
{
    for (size_t j = from; j < to; j++)
        row[j / WORD] |= (uint64_t)1 << (j % WORD);
}

static tsr_status select_blocks(void *context, size_t i, size_t worker, tsr_err *err)
{
    const selecting *const w = context;
    const tsr_token_scores *const s = w->scores;
    const size_t query = i % s->queries, seen = (s->position + query + 1) / w->choice->rate,
                 blocks = (size_t)tsr_ceil_div(seen, s->block);
    const size_t kept = (size_t)tsr_min_u64(s->kept, blocks);
    double *const pooled = w->scratch + worker * 2 * w->blocks, *const copy = pooled + w->blocks;
    uint64_t *const row = row_of(w->choice, i / s->queries, s->token + query);
    size_t equal = kept;
    (void)err;
    pool(s, s->scores + i * s->keys, seen, pooled, blocks);
    memcpy(copy, pooled, blocks * sizeof *copy);
    const double least = select_largest(copy, blocks, kept - 1);
    for (size_t b = 0; b < blocks; b++)
        equal -= pooled[b] > least;
    for (size_t b = 0; b < blocks; b++) {
        const bool tied = pooled[b] == least && equal > 0;
        if (tied || pooled[b] > least)
            set_positions(row, b * s->block, (size_t)tsr_min_u64((b + 1) * s->block, seen));
        equal -= tied;
    }
    return TSR_OK;
}

tsr_status tsr_token_choice_add(tsr_token_choice *choice, const tsr_token_scores *s, unsigned threads,
                                const atomic_bool *cancel, tsr_err *err)
{
    const size_t turns = choice->groups * s->queries, workers = tsr_parallel_workers(turns, threads);
    selecting w = {choice, s, (size_t)tsr_ceil_div(s->keys, s->block), NULL};
    w.scratch = malloc((workers * 2 * w.blocks + 1) * sizeof *w.scratch);
    const tsr_status status = w.scratch == NULL ? tsr_out_of_memory(err, "for the choice of tokens")
                                                : tsr_parallel_for(turns, threads, cancel, select_blocks, &w, err);
    free(w.scratch);
    return status;
}

void tsr_token_choice_add_all(tsr_token_choice *choice, size_t token, size_t position)
{
    for (size_t g = 0; g < choice->groups; g++)
        set_positions(row_of(choice, g, token), 0, (position + 1) / choice->rate);
}
