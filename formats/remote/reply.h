/* The head of a reply of an HTTP server. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Texts are empty if the header is absent. Longer values are cut, and then equal no other. */
typedef struct tsr_reply {
    long code;                   /* 0: no reply */
    bool ranged;                 /* it has a Content-Range */
    uint64_t first, last, total; /* Content-Range; only total if the range is not satisfiable (416) */
    bool has_length;
    uint64_t length; /* Content-Length */
    bool has_linked_size;
    uint64_t linked_size; /* X-Linked-Size */
    char etag[160], modified[64], linked_etag[160], commit[80];
    bool explained; /* `said` is from a header */
    char said[200]; /* X-Error-Message, or the beginning of the body of an error */
} tsr_reply;

/* Takes one line of the head, without its end, into the reply. A status line clears it first. */
void tsr_reply_take(tsr_reply *reply, const char *line, size_t size);

/* Appends a part of the body of an error to `said`: text without tags and control characters. */
void tsr_reply_say(tsr_reply *reply, const char *body, size_t size);

/* Returns true if two ETags are equal without quotes and the mark of weak ones. */
bool tsr_etag_is_same(const char *a, const char *b);
