/* An input that must be rejected, with the words of the message, for tables in unit tests. */
#ifndef TSR_TESTS_UNIT_REFUSAL_H
#define TSR_TESTS_UNIT_REFUSAL_H

typedef struct refusal {
    const char *text, *message; /* `message`: all or a part of the error */
} refusal;

#endif
