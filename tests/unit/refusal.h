/* An input that is refused, for tables of unit tests. */
#ifndef TSR_TESTS_UNIT_REFUSAL_H
#define TSR_TESTS_UNIT_REFUSAL_H

typedef struct refusal {
    const char *text, *message; /* `message`: all or a part of the error */
} refusal;

#endif
