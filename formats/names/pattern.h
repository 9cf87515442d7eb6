/* Python's regular expressions, as lists in config.json hold them after "re:". The part of the language that is useful
 * for names is supported; the time to match grows with the length of the expression times that of the name.
 *
 * Supported: characters, '.', classes ("[a-z_]", "[^.]"), \d \w \s \D \W \S, escaped punctuation, groups, "(?:",
 * "(?P<name>", '|', '*', '+', '?', "{n}", "{n,}", "{,m}", "{n,m}", each lazy or not, '^', '$', \A, \Z, \b, \B.
 * Everything else (lookahead and lookbehind, references, flags, possessive repeats, hexadecimal and octal escapes) is
 * refused by name, and so is an expression that is nested or repeated beyond the limits below. */
#ifndef TSR_FORMATS_NAMES_PATTERN_H
#define TSR_FORMATS_NAMES_PATTERN_H

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TSR_PATTERN_DEPTH = 32,   /* groups within groups */
    TSR_PATTERN_STEPS = 2048, /* of one expression, its repeats written out */
    TSR_PATTERN_RANGES = 64,  /* characters and ranges of one class */
    TSR_PATTERN_REPEAT = 1000 /* the largest number between braces */
};

typedef struct tsr_pattern {
    const struct tsr_pattern_step *steps;
    const struct tsr_pattern_range *ranges;
    size_t count; /* of the steps */
    bool ascii;   /* it asks whether characters are letters or digits, which is known here for ASCII only */
} tsr_pattern;

/* Compiles `text` into `pattern`, which lives in the arena; a zero-initialised one matches nothing. TSR_E_UNSUPPORTED:
 * it uses something that is not supported; TSR_E_FORMAT: Python would not take it either. Both messages say what, and
 * at which character. */
tsr_status tsr_pattern_compile(tsr_pattern *pattern, const char *text, tsr_arena *arena, tsr_err *err) TSR_WARN_UNUSED;

/* Returns true if the pattern can judge this name: false when it asks for letters or digits and the name has characters beyond
 * ASCII. */
bool tsr_pattern_knows(const tsr_pattern *pattern, const char *name);

/* Returns true if the pattern matches at the start of the name; like Python's re.match, it need not reach the end. Adds the
 * steps taken to *work (may be NULL): at most four for each step of the pattern and each place in the name. */
bool tsr_pattern_match(const tsr_pattern *pattern, const char *name, uint64_t *work);

#endif
