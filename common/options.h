/* Parses options by a table, as on a command line. */
#pragma once

#include "common/arena.h"
#include "common/block.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tsr_option_kind {
    TSR_OPT_FLAG,     /* bool */
    TSR_OPT_TEXT,     /* const char * */
    TSR_OPT_LIST,     /* tsr_list: may be repeated */
    TSR_OPT_CHOICE,   /* int: the index of the word in `choices` */
    TSR_OPT_COUNT,    /* uint64_t: a plain decimal number without leading zeros, or 0x and hexadecimal digits */
    TSR_OPT_POSITIVE, /* the same, at least 1 */
    TSR_OPT_SIZE,     /* uint64_t: bytes, at least 1, with k/M/G/T (powers of 1000) or Ki/Mi/Gi/Ti (powers of 1024), B
                       * optional */
} tsr_option_kind;

typedef struct tsr_list {
    const char *items[64];
    size_t count;
} tsr_list;

typedef struct tsr_option {
    const char *name; /* "--scale-fmt" or "-o" */
    tsr_option_kind kind;
    void *value;          /* has the kind's type and holds the default */
    const char *argument; /* name of the value in the help: "GLOB"; for choices the words, "f32|ue8m0" */
    const char *help;
    const char *topic; /* heading before this option in the help; NULL: none */
} tsr_option;

/* A table ends with an entry without a name, and has at most this many entries including that one. */
enum { TSR_MAX_OPTIONS = 64 };

/* Appends the entries of `more` to `options`, which must have room for TSR_MAX_OPTIONS. */
void tsr_options_append(tsr_option *options, const tsr_option *more);

/* Appends the entries of `more` under a heading. */
void tsr_options_append_topic(tsr_option *options, const char *topic, const tsr_option *more);

/* Parses argv[0..argc) (without program and command). Words without a dash go to positional[0..*n_positional), at most
 * max_positional. *given (may be NULL) has bit i set if options[i] was present. TSR_E_USAGE: the message has the
 * option, its syntax, and a suggestion. Values with control characters are rejected, because they are stored in the
 * journal and in configurations. */
tsr_status tsr_options_parse(const tsr_option *options, int argc, char **argv, const char **positional,
                             size_t max_positional, size_t *n_positional, uint64_t *given, tsr_err *err);

/* Spells an option with its value, "--dtype=bf16", in the arena; NULL: no memory. Not for texts and lists. */
const char *tsr_option_spell(const tsr_option *option, tsr_arena *arena);

/* Writes " (did you mean 'quantize'?)" to `text` if one of the words in `words`, separated by '|', is similar to
 * `word`; otherwise "". Returns text. */
const char *tsr_did_you_mean(const char *word, const char *words, char text[80]);

/* Parses "128x128", the value of option `name`; NULL gives 0x0. */
tsr_status tsr_parse_block(const char *name, const char *text, tsr_block *block, tsr_err *err);

/* The numbers that an option accepts: dB may be negative, errors may not. */
typedef enum tsr_range { TSR_ANY_NUMBER, TSR_FROM_ZERO, TSR_SHARE /* from 0 to 1 */ } tsr_range;

/* Parses a finite number, the value of option `name`; NULL leaves *value unchanged. */
tsr_status tsr_parse_number(const char *name, const char *text, tsr_range range, double *value, tsr_err *err);

/* Returns true if `word` is one of the space-separated words of `list`. */
bool tsr_is_listed(const char *list, const char *word);
