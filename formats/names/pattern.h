/* Python's regular expressions, which lists in config.json contain after "re:". The subset that is useful for names is
 * supported. Matching time is proportional to the length of the expression times that of the name.
 *
 * Supported: characters, '.', classes ("[a-z_]", "[^.]"), \d \w \s \D \W \S, escaped punctuation, groups, "(?:",
 * "(?P<name>", '|', '*', '+', '?', "{n}", "{n,}", "{,m}", "{n,m}", each lazy or not, '^', '$', \A, \Z, \b, \B.
 * Everything else (lookahead and lookbehind, references, flags, possessive repeats, hexadecimal and octal escapes) is
 * rejected with a message, and so is an expression that exceeds the limits below. */
#pragma once

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TSR_PATTERN_DEPTH = 32,   /* groups within groups */
    TSR_PATTERN_STEPS = 2048, /* steps of one expression with repeats expanded */
    TSR_PATTERN_RANGES = 64,  /* characters and ranges of one class */
    TSR_PATTERN_REPEAT = 1000 /* largest number between braces */
};

typedef struct tsr_pattern {
    const struct tsr_pattern_step *steps;
    const struct tsr_pattern_range *ranges;
    size_t count; /* number of steps */
    bool ascii;   /* it tests for letters or digits, which is supported for ASCII only */
} tsr_pattern;

/* Compiles `text` into `pattern`, which lives in the arena. A zero-initialized pattern matches nothing.
 * TSR_E_UNSUPPORTED: an unsupported construct. TSR_E_FORMAT: Python would reject it too. Both messages have the
 * construct and the position. */
tsr_status tsr_pattern_compile(tsr_pattern *pattern, const char *text, tsr_arena *arena, tsr_err *err);

/* Returns true if the pattern can be evaluated for this name; false if it tests for letters or digits and the name has
 * characters beyond ASCII. */
bool tsr_pattern_knows(const tsr_pattern *pattern, const char *name);

/* Returns true if the pattern matches at the start of the name. Like Python's re.match, it need not reach the end. Adds
 * the steps taken to *work (may be NULL): at most four for each step of the pattern and each position in the name. */
bool tsr_pattern_match(const tsr_pattern *pattern, const char *name, uint64_t *work);
