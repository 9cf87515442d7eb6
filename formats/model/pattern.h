/* Python's regular expressions, as lists in config.json hold them after "re:": the part of the language that speaks of
 * names, matched in time that grows with the expression times the name and with nothing else.
 *
 * Known: characters, '.', classes ("[a-z_]", "[^.]"), \d \w \s \D \W \S, escaped punctuation, groups, "(?:",
 * "(?P<name>",
 * '|', '*', '+', '?', "{n}", "{n,}", "{,m}", "{n,m}", each lazy or not, '^', '$', \A, \Z, \b, \B. Everything else
 * (lookahead and lookbehind, references, flags, possessive repeats, hexadecimal and octal escapes) is named and
 * refused, as is an expression that is nested or repeated beyond the limits below. */
#ifndef TSR_FORMATS_MODEL_PATTERN_H
#define TSR_FORMATS_MODEL_PATTERN_H

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
    bool ascii;   /* it asks what a letter or digit is, which is known here of ASCII only */
} tsr_pattern;

/* Zero-initialised it matches nothing. Lives in the arena. TSR_E_UNSUPPORTED: it is outside what is known here;
 * TSR_E_FORMAT: Python would not take it either. Both say what, and at which character. */
tsr_status tsr_pattern_compile(tsr_pattern *pattern, const char *text, tsr_arena *arena, tsr_err *err) TSR_WARN_UNUSED;

/* Whether the pattern can be asked about this name: false when it has to know what a letter is, and the name has
 * characters beyond ASCII. */
bool tsr_pattern_knows(const tsr_pattern *pattern, const char *name);

/* Whether the pattern fits the name from its start, and need not reach its end, as Python's re.match does. Adds the
 * steps taken to *work (may be NULL): at most four for each step of the pattern and each place in the name. */
bool tsr_pattern_match(const tsr_pattern *pattern, const char *name, uint64_t *work);

#endif
