/* Chooses the tokens that queries of sparse attention see, from the scores of an indexer. */
#pragma once

#include "common/atomics.h"
#include "common/status.h"
#include "verify/forward/tokens/tokens.h"

/* The positions that each query sees, on the host, or the entries of a compressed cache. Bit j of row [group][token] is
 * that of position or entry j in the token's sequence. Zero-initialised: attention is not limited. */
typedef struct tsr_token_choice {
    uint64_t *bits; /* [groups][count][words], from malloc */
    size_t groups, count, words;
    size_t rate; /* tokens of a bit: 1, or those of an entry of a compressed cache */
} tsr_token_choice;

/* Returns true if a row has a position. The row of a token is group * count + token. */
static inline bool tsr_is_chosen(const tsr_token_choice *choice, size_t row, size_t position)
{
    return (choice->bits[row * choice->words + position / 64] >> (position % 64) & 1) != 0;
}

/* Makes a choice that has no tokens yet. */
tsr_status tsr_token_choice_make(tsr_token_choice *choice, size_t groups, const tsr_tokens *tokens, size_t rate,
                                 tsr_err *err);
void tsr_token_choice_free(tsr_token_choice *choice);

/* Makes a choice for `times` repetitions of the tokens of `choice`. A choice that limits nothing stays so. */
tsr_status tsr_token_choice_repeat(const tsr_token_choice *choice, size_t times, tsr_token_choice *repeated,
                                   tsr_err *err);

/* Copies all rows of `part` to the rows of `whole` from token `first` on. */
void tsr_token_choice_place(tsr_token_choice *whole, size_t first, const tsr_token_choice *part);

/* Counts what x chooses for `tokens`, and those of them that y chooses, too, in rows from y_first on. Queries that see
 * all positions up to their own are not counted. */
void tsr_token_choice_compare(const tsr_token_choice *x, const tsr_token_choice *y, size_t y_first,
                              const tsr_tokens *tokens, uint64_t *chosen, uint64_t *alike);

/* Scores of consecutive queries of one sequence. A query chooses among blocks of the keys that are visible
 * from its position, which is every `rate`-th. The score of a
 * block is its largest one. Of equal blocks, the one with the lower position is chosen. */
typedef struct tsr_token_scores {
    const double *scores; /* [groups][queries][keys] */
    size_t queries, keys;
    size_t token, position; /* row of the first query in the choice, and its position in the sequence */
    size_t block, kept;     /* keys of a block; number of blocks to choose */
    size_t local;           /* the last blocks, up to the query's own, that are always chosen */
} tsr_token_scores;
tsr_status tsr_token_choice_add(tsr_token_choice *choice, const tsr_token_scores *scores, unsigned threads,
                                const atomic_bool *cancel, tsr_err *err);

/* Chooses all that is visible from a token at this position. */
void tsr_token_choice_add_all(tsr_token_choice *choice, size_t token, size_t position);
