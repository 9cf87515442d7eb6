/* Reads tokens from a file, whose format is detected from its contents.
 *
 *   .npy     integers of 32 or 64 bits, [sequences, length] or [tokens]
 *   raw      int32, little-endian; recognized by a zero byte, which text does not contain
 *   numbers  non-negative integers, separated by anything but digits and '-'; a line break or a closing bracket ends a
 *            sequence, so that files with one sequence per line and JSON arrays are both readable
 *   text     anything else; tokenized with the model's tokenizer.json by the Python package `tokenizers` in a separate
 *            process (python3, or the program in TESSERA_PYTHON). In a file NAME.jsonl each line is an object whose
 *            "text" is a document; the tokens of documents follow one another
 * Tokens without sequences (.npy of one dimension, raw, text) are cut into sequences of `length`. */
#pragma once

#include "verify/forward/tokens/tokens.h"

/* Most sequences, and most tokens per sequence. Further ones are ignored. */
typedef struct tsr_token_limits {
    size_t sequences, length;
    uint64_t vocabulary;
} tsr_token_limits;

/* Reads a token file. `model` is the folder with tokenizer.json. TSR_E_FORMAT: no tokens, or a malformed file.
 * TSR_E_VALUE: a token is negative or not below the vocabulary size; the message gives its position.
 * TSR_E_UNSUPPORTED: text without a tokenizer or the package. */
tsr_status tsr_tokens_read_file(tsr_tokens *tokens, const char *path, const char *model, tsr_token_limits limits,
                                tsr_err *err);

/* Tokenizes a text into int32 in *ids, from malloc. */
tsr_status tsr_tokenize(const char *path, const char *model, unsigned char **ids, size_t *bytes, tsr_err *err);
