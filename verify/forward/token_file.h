/* Tokens from a file of any of these kinds, told apart by what is in it:
 *
 *   .npy     integers of 32 or 64 bits, [sequences, length] or [tokens]
 *   raw      int32, little-endian: known by a zero byte, which no text has
 *   numbers  non-negative integers, separated by anything but digits and '-'; a line break or a closing bracket ends a
 *            sequence, so that files with one sequence a line and JSON arrays can both be read
 *   text     anything else: through the model's own tokenizer.json, by the Python package `tokenizers` in a process of
 *            its own (python3, or what TESSERA_PYTHON names)
 * Tokens without sequences (.npy of one dimension, raw, text) are cut into sequences of `length`. */
#ifndef TSR_VERIFY_FORWARD_TOKEN_FILE_H
#define TSR_VERIFY_FORWARD_TOKEN_FILE_H

#include "verify/forward/tokens.h"

/* Only the first `sequences` sequences, and the first `length` tokens of each, are kept. */
typedef struct tsr_token_limits {
    size_t sequences, length;
    uint64_t vocabulary;
} tsr_token_limits;

/* `model` is the folder that has the tokenizer.json. TSR_E_FORMAT: no tokens, or a broken file. TSR_E_VALUE: a token is
 * negative, or not below the vocabulary; the message says where. TSR_E_UNSUPPORTED: text, and no tokenizer or no package. */
tsr_status tsr_tokens_read_file(tsr_tokens *tokens, const char *path, const char *model, tsr_token_limits limits,
                                tsr_err *err) TSR_WARN_UNUSED;

/* The tokens of a text, as int32 in *ids, from malloc. */
tsr_status tsr_tokenize(const char *path, const char *model, unsigned char **ids, size_t *bytes,
                        tsr_err *err) TSR_WARN_UNUSED;

#endif
