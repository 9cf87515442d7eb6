/* The steps of a compiled expression. Private to pattern.c, which makes them, and pattern_match.c, which runs them. */
#pragma once

#include "formats/names/pattern.h"

typedef enum tsr_step_kind {
    TSR_STEP_CHARACTER, /* x */
    TSR_STEP_ANY,       /* any character but a line feed */
    TSR_STEP_ONE_OF,    /* ranges [x, x + y) */
    TSR_STEP_NONE_OF,
    TSR_STEP_EITHER, /* continue at this + x and at this + y */
    TSR_STEP_GO,     /* continue at this + x */
    TSR_STEP_START,
    TSR_STEP_END, /* at the end, or before a line feed at the end */
    TSR_STEP_VERY_END,
    TSR_STEP_BOUNDARY,
    TSR_STEP_NO_BOUNDARY,
    TSR_STEP_FOUND,
} tsr_step_kind;

struct tsr_pattern_step {
    tsr_step_kind op;
    int32_t x, y;
};

struct tsr_pattern_range {
    uint32_t low, high;
};

#define TSR_LAST_CHARACTER UINT32_C(0x10FFFF)

/* Reads the next UTF-8 character. An invalid byte gets its own number above all code points. */
uint32_t tsr_next_character(const char **text);

/* Returns true if `c` is in \w within ASCII. */
bool tsr_is_word(uint32_t c);
