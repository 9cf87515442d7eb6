/* Tests choices of tokens against a selection one by one: ties, NaN, blocks, and blocks that are always chosen. */
#include "verify/forward/tokens/token_choice.h"

#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { GROUPS = 2, KEYS = 150, FIRST = 40, QUERIES = KEYS - FIRST };

static size_t first[] = {0, 20, 20 + KEYS};
static const tsr_tokens kTokens = {.sequences = 2, .count = 20 + KEYS, .longest = KEYS, .first = first};
static double scores[GROUPS * QUERIES * KEYS];

/* Few different scores make many ties. Some are NaN, and those of later keys are large. */
static void draw(unsigned values)
{
    for (size_t i = 0; i < GROUPS * QUERIES * KEYS; i++) {
        const size_t query = i / KEYS % QUERIES, key = i % KEYS;
        scores[i] = key > FIRST + query ? 1e9 : random_bits() % 50 == 0 ? NAN : (double)(random_bits() % values) - 2;
    }
}

/* Returns the score of a block for a query at `position`; NaN counts as less than all numbers. */
static double score_of(const double *row, size_t block, size_t size, size_t position, size_t local)
{
    double most = -1e300;
    for (size_t key = block * size; key < (block + 1) * size && key <= position; key++)
        most = row[key] > most ? row[key] : most;
    return block + local > position / size ? INFINITY : most;
}

/* Marks the positions that a query at `position` must see. */
static void select_plainly(const double *row, size_t size, size_t kept, size_t position, size_t local, bool *seen)
{
    bool taken[KEYS] = {false};
    memset(seen, 0, KEYS * sizeof *seen);
    for (; kept > 0; kept--) {
        size_t best = SIZE_MAX;
        for (size_t block = 0; block <= position / size; block++) {
            if (!taken[block] && (best == SIZE_MAX || score_of(row, block, size, position, local) >
                                                          score_of(row, best, size, position, local)))
                best = block;
        }
        if (best == SIZE_MAX)
            return;
        taken[best] = true;
        for (size_t key = best * size; key < (best + 1) * size && key <= position; key++)
            seen[key] = true;
    }
}

static void check(const tsr_token_choice *choice, const tsr_token_scores *s)
{
    bool seen[KEYS];
    for (size_t i = 0; i < GROUPS * QUERIES; i++) {
        const size_t query = i % QUERIES, row = i / QUERIES * choice->count + s->token + query;
        select_plainly(scores + i * KEYS, s->block, s->kept, FIRST + query, s->local, seen);
        for (size_t key = 0; key < KEYS; key++)
            cr_assert_eq(tsr_is_chosen(choice, row, key), seen[key], "block %zu, kept %zu, query %zu, key %zu",
                         s->block, s->kept, query, key);
    }
}

Test(token_choice, the_best_blocks_are_chosen)
{
    static const size_t kCases[][3] = {{1, 7, 0},  {1, 41, 0}, {4, 3, 1},  {4, 9, 2},
                                       {16, 2, 2}, {64, 1, 1}, {200, 5, 1}};
    tsr_token_choice choice;
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        for (unsigned values = 1; values < 2000; values = 3 * values + 1) {
            const tsr_token_scores s = {.scores = scores,
                                        .queries = QUERIES,
                                        .keys = KEYS,
                                        .token = 20 + FIRST,
                                        .position = FIRST,
                                        .block = kCases[i][0],
                                        .kept = kCases[i][1],
                                        .local = kCases[i][2]};
            draw(values);
            cr_assert_eq(tsr_token_choice_make(&choice, GROUPS, &kTokens, 1, NULL), TSR_OK);
            cr_assert_eq(tsr_token_choice_add(&choice, &s, 3, NULL, NULL), TSR_OK);
            check(&choice, &s);
            tsr_token_choice_free(&choice);
        }
    }
}

Test(token_choice, queries_that_see_everything_are_not_counted)
{
    tsr_token_choice x, y, both;
    uint64_t chosen = 0, alike = 0;
    cr_assert_eq(tsr_token_choice_make(&x, 1, &kTokens, 1, NULL), TSR_OK);
    cr_assert_eq(tsr_token_choice_make(&y, 1, &kTokens, 1, NULL), TSR_OK);
    for (size_t token = 0; token < kTokens.count; token++)
        tsr_token_choice_add_all(&x, token, tsr_token_position(&kTokens, token));
    tsr_token_choice_compare(&x, &y, 0, &kTokens, &chosen, &alike);
    cr_assert(chosen == 0 && alike == 0);
    x.bits[30 * x.words] = 0x16; /* position 10 of the second sequence sees 1, 2 and 4 */
    y.bits[30 * y.words] = 0x1C;
    tsr_token_choice_compare(&x, &y, 0, &kTokens, &chosen, &alike);
    cr_assert(chosen == 3 && alike == 2);
    cr_assert_eq(tsr_token_choice_repeat(&y, 2, &both, NULL), TSR_OK);
    tsr_token_choice_place(&both, kTokens.count, &x);
    tsr_token_choice_compare(&x, &both, kTokens.count, &kTokens, &chosen, &alike);
    cr_assert(chosen == 6 && alike == 5);
    tsr_token_choice_free(&x);
    tsr_token_choice_free(&y);
    tsr_token_choice_free(&both);
    cr_assert_eq(tsr_token_choice_repeat(&x, 2, &both, NULL), TSR_OK);
    cr_assert_null(both.bits);
}
