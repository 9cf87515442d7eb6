/* Bump allocation in growing chunks. */
#include "common/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CHUNK = 4096, LARGEST_STEP = 1 << 20, ALIGN = 16 };

struct tsr_arena_chunk {
    struct tsr_arena_chunk *next;
    size_t used, size;
    _Alignas(ALIGN) unsigned char data[];
};

void *tsr_arena_alloc(tsr_arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2) {
        arena->failed = true;
        return NULL;
    }
    const size_t need = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    struct tsr_arena_chunk *chunk = arena->head;
    if (chunk == NULL || chunk->size - chunk->used < need) {
        size_t size = chunk == NULL ? FIRST_CHUNK : chunk->size * 2;
        size = size > LARGEST_STEP ? LARGEST_STEP : size;
        size = size < need ? need : size;
        chunk = calloc(1, sizeof *chunk + size);
        if (chunk == NULL) {
            arena->failed = true;
            return NULL;
        }
        chunk->size = size;
        chunk->next = arena->head;
        arena->head = chunk;
        arena->bytes += sizeof *chunk + size;
    }
    void *const p = chunk->data + chunk->used;
    chunk->used += need;
    return p;
}

char *tsr_arena_dup(tsr_arena *arena, const char *text, size_t size)
{
    char *const copy = size == SIZE_MAX ? NULL : tsr_arena_alloc(arena, size + 1);
    if (copy != NULL && size > 0)
        memcpy(copy, text, size);
    return copy;
}

char *tsr_arena_printf(tsr_arena *arena, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    const int size = vsnprintf(NULL, 0, fmt, args);
    char *const text = size < 0 ? NULL : tsr_arena_alloc(arena, (size_t)size + 1);
    if (text != NULL)
        vsnprintf(text, (size_t)size + 1, fmt, again);
    va_end(again);
    va_end(args);
    return text;
}

tsr_status tsr_arena_status(const tsr_arena *arena, tsr_status status, tsr_err *err)
{
    return arena->failed && status != TSR_E_NOMEM ? tsr_out_of_memory(err, NULL) : status;
}

void tsr_arena_free(tsr_arena *arena)
{
    while (arena->head != NULL) {
        struct tsr_arena_chunk *const next = arena->head->next;
        free(arena->head);
        arena->head = next;
    }
    arena->bytes = 0;
    arena->failed = false;
}
