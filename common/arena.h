/* A bump allocator for data that lives exactly as long as its owner: names, shapes, tables of a checkpoint or a plan.
 *
 * `tsr_arena a = {0};` is a valid empty arena. Not thread-safe. Memory is zeroed and 16-byte aligned. */
#pragma once

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct tsr_arena {
    struct tsr_arena_chunk *head;
    size_t bytes; /* obtained from the system, for memory accounting */
    bool failed;  /* an allocation has failed */
} tsr_arena;

/* Returns NULL when memory is exhausted. Only tsr_arena_free releases the memory. */
void *tsr_arena_alloc(tsr_arena *arena, size_t bytes);

/* Returns a NUL-terminated copy of `size` bytes, or NULL. */
char *tsr_arena_dup(tsr_arena *arena, const char *text, size_t size);

/* Returns a formatted, NUL-terminated string, or NULL. */
char *tsr_arena_printf(tsr_arena *arena, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Returns TSR_E_NOMEM once an allocation has failed, whatever `status` is, because later code may have taken NULL for
 * "there is none". Otherwise returns `status`. */
tsr_status tsr_arena_status(const tsr_arena *arena, tsr_status status, tsr_err *err);

/* Frees everything; the arena is empty and valid again. */
void tsr_arena_free(tsr_arena *arena);
