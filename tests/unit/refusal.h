/* An input that must be rejected, with the words of the message, for tables in unit tests. */
#pragma once

typedef struct refusal {
    const char *text, *message; /* `message`: all or a part of the error */
} refusal;
