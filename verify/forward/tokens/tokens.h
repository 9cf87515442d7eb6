/* Declares token sequences of any lengths, stored one after the other. */
#pragma once

#include "formats/checkpoint/checkpoint.h"

/* The sequences. Zero-initialised is empty. From malloc. */
typedef struct tsr_tokens {
    size_t sequences, count, longest;
    size_t *first; /* [sequences + 1] */
    uint64_t *ids; /* [count] */
} tsr_tokens;

/* Reserves memory for `count` tokens in `sequences` sequences. */
tsr_status tsr_tokens_reserve(tsr_tokens *tokens, size_t sequences, size_t count, tsr_err *err);

/* Ends the sequence that the last tokens were added to. */
void tsr_tokens_end_sequence(tsr_tokens *tokens);

/* Generates tokens uniform in [0, vocabulary), by the seed only. */
tsr_status tsr_tokens_draw(tsr_tokens *tokens, uint64_t seed, size_t sequences, size_t length, uint64_t vocabulary,
                           tsr_err *err);

/* Reads a tensor [sequences, length] of I64 or I32. TSR_E_SHAPE, TSR_E_VALUE. */
tsr_status tsr_tokens_load(tsr_tokens *tokens, const tsr_checkpoint *file, const tsr_tensor *tensor,
                           uint64_t vocabulary, tsr_err *err);

/* Repeats all sequences so many times. */
tsr_status tsr_tokens_repeat(const tsr_tokens *tokens, size_t times, tsr_tokens *repeated, tsr_err *err);

/* Copies sequences [from, to). */
tsr_status tsr_tokens_take(const tsr_tokens *tokens, size_t from, size_t to, tsr_tokens *taken, tsr_err *err);

/* Returns the position of a token in its sequence. */
size_t tsr_token_position(const tsr_tokens *tokens, size_t token);

void tsr_tokens_free(tsr_tokens *tokens);
