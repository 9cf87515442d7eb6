/* Token sequences of any lengths, one behind the other. */
#ifndef TSR_VERIFY_FORWARD_TOKENS_H
#define TSR_VERIFY_FORWARD_TOKENS_H

#include "formats/checkpoint/checkpoint.h"

/* Zero-initialised is empty. From malloc. */
typedef struct tsr_tokens {
    size_t sequences, count, longest;
    size_t *first; /* [sequences + 1] */
    uint64_t *ids; /* [count] */
} tsr_tokens;

/* Uniform in [0, vocabulary): depends on the seed only. */
tsr_status tsr_tokens_draw(tsr_tokens *tokens, uint64_t seed, size_t sequences, size_t length, uint64_t vocabulary,
                           tsr_err *err) TSR_WARN_UNUSED;

/* Reads tokens from a text file: non-negative integers, separated by anything but digits and '-'. A line break or a
 * closing bracket ends a sequence, so that files with one sequence a line and JSON arrays can both be read. Only the
 * first `sequences` sequences, and the first `length` tokens of each, are kept. TSR_E_FORMAT: no tokens. TSR_E_VALUE: a
 * token is negative, or not below `vocabulary`; the message names its line. */
tsr_status tsr_tokens_read(tsr_tokens *tokens, const char *path, size_t sequences, size_t length, uint64_t vocabulary,
                           tsr_err *err) TSR_WARN_UNUSED;

/* From a tensor [sequences, length] of I64 or I32. TSR_E_SHAPE, TSR_E_VALUE. */
tsr_status tsr_tokens_load(tsr_tokens *tokens, const tsr_checkpoint *file, const tsr_tensor *tensor,
                           uint64_t vocabulary, tsr_err *err) TSR_WARN_UNUSED;

void tsr_tokens_free(tsr_tokens *tokens);

#endif
