/* Reads files of other people with the readers of formats/, for differential.py: on stdin stand a byte for the kind, a
 * length of 8 bytes and so many bytes, over and over; each is answered with a line, "ok" and what was read, or "no" and
 * the message.
 *
 *     j  JSON: strings in hexadecimal, numbers as they stand
 *     s  safetensors: name, dtype, shape, offsets of each tensor
 *     a  an archive: its plain bytes in hexadecimal */
#include "formats/checkpoint/archive.h"
#include "formats/checkpoint/safetensors.h"
#include "formats/json/json.h"
#include "formats/json/json_index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void add_hex(tsr_text *to, const void *data, size_t size)
{
    const unsigned char *const bytes = data;
    for (size_t i = 0; i < size; i++)
        tsr_text_printf(to, "%02x", bytes[i]);
}

/* ---- JSON ---- */

static tsr_status walk(tsr_json_reader *r, tsr_arena *arena, tsr_text *to, tsr_err *err);

static tsr_status walk_string(tsr_json_reader *r, tsr_json_text raw, tsr_arena *arena, tsr_text *to, tsr_err *err)
{
    const char *text;
    TSR_TRY(tsr_json_decode(r, raw, arena, &text, err));
    tsr_text_printf(to, "'");
    add_hex(to, text, strlen(text));
    return TSR_OK;
}

static tsr_status walk_object(tsr_json_reader *r, tsr_arena *arena, tsr_text *to, tsr_err *err)
{
    tsr_json_text key;
    TSR_TRY(tsr_json_enter_object(r, err));
    for (bool more;;) {
        TSR_TRY(tsr_json_next_member(r, &key, &more, err));
        if (!more)
            return TSR_OK;
        TSR_TRY(walk_string(r, key, arena, to, err));
        tsr_text_printf(to, ":");
        TSR_TRY(walk(r, arena, to, err));
    }
}

static tsr_status walk_array(tsr_json_reader *r, tsr_arena *arena, tsr_text *to, tsr_err *err)
{
    TSR_TRY(tsr_json_enter_array(r, err));
    for (bool more;;) {
        TSR_TRY(tsr_json_next_element(r, &more, err));
        if (!more)
            return TSR_OK;
        TSR_TRY(walk(r, arena, to, err));
    }
}

/* Nests as deeply as the reader allows. */
static tsr_status walk(tsr_json_reader *r, tsr_arena *arena, tsr_text *to, tsr_err *err)
{
    tsr_json_kind kind;
    tsr_json_text raw;
    TSR_TRY(tsr_json_peek(r, &kind, err));
    if (kind == TSR_JSON_OBJECT || kind == TSR_JSON_ARRAY) {
        tsr_text_printf(to, kind == TSR_JSON_OBJECT ? "{" : "[");
        TSR_TRY(kind == TSR_JSON_OBJECT ? walk_object(r, arena, to, err) : walk_array(r, arena, to, err));
        tsr_text_printf(to, kind == TSR_JSON_OBJECT ? "}" : "]");
    } else if (kind == TSR_JSON_STRING) {
        TSR_TRY(tsr_json_read_string(r, &raw, err));
        TSR_TRY(walk_string(r, raw, arena, to, err));
    } else {
        TSR_TRY(tsr_json_skip(r, &raw, err));
        tsr_text_append(to, raw.data, raw.size);
    }
    tsr_text_printf(to, " ");
    return TSR_OK;
}

/* Reads a document that is an object also by the index, which rejects more. */
static tsr_status read_json(const char *data, size_t size, tsr_arena *arena, tsr_text *to, tsr_err *err)
{
    tsr_json_reader r = tsr_json_open("file", data, size);
    tsr_json_index index;
    tsr_json_kind kind;
    TSR_TRY(tsr_json_peek(&r, &kind, err));
    TSR_TRY(walk(&r, arena, to, err));
    TSR_TRY(tsr_json_finish(&r, err));
    if (kind != TSR_JSON_OBJECT)
        return TSR_OK;
    TSR_TRY(tsr_json_index_read(&index, "file", data, size, err));
    tsr_json_index_free(&index);
    return TSR_OK;
}

/* ---- files ---- */

static int open_bytes(const void *data, size_t size)
{
    const int fd = memfd_create("file", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    return fd;
}

/* A checkpoint looks its names up in all of its files and finds duplicates. */
static tsr_status check_names(const tsr_tensors *tensors, tsr_err *err)
{
    for (size_t i = 0; i < tensors->count; i++) {
        for (size_t k = 0; k < i; k++) {
            if (strcmp(tensors->items[i].name, tensors->items[k].name) == 0)
                return tsr_fail(err, TSR_E_FORMAT, "duplicate member '%s'", tensors->items[i].name);
        }
    }
    return TSR_OK;
}

static tsr_status read_shard(const char *data, size_t size, tsr_arena *arena, tsr_text *to, tsr_err *err)
{
    tsr_tensors tensors = {0};
    uint64_t hash;
    const int fd = open_bytes(data, size);
    const tsr_input in = {.fd = fd, .path = "file", .size = size};
    tsr_status status = tsr_safetensors_read(&in, 0, arena, &tensors, &hash, err);
    if (status == TSR_OK)
        status = check_names(&tensors, err);
    uint64_t length = 0;
    for (size_t i = 0; status == TSR_OK && i < 8; i++)
        length |= (uint64_t)(unsigned char)data[i] << (8 * i);
    for (size_t i = 0; status == TSR_OK && i < tensors.count; i++) {
        const tsr_tensor *const t = &tensors.items[i];
        char shape[256];
        tsr_text_printf(to, "'");
        add_hex(to, t->name, strlen(t->name));
        tsr_text_printf(to, " %s %s %llu %llu;", tsr_dtype_name(t->dtype), tsr_shape_text(t, shape, sizeof shape),
                        (unsigned long long)(t->offset - 8 - length),
                        (unsigned long long)(t->offset - 8 - length + t->bytes));
    }
    tsr_tensors_free(&tensors);
    close(fd);
    return status;
}

static tsr_status read_archive(const char *data, size_t size, tsr_arena *arena, tsr_text *to, tsr_err *err)
{
    tsr_archive_cache *const cache = tsr_archive_cache_new();
    tsr_archive *archive;
    const int fd = open_bytes(data, size);
    tsr_status status = tsr_archive_open(&archive, &(tsr_input){.fd = fd, .path = "file", .size = size}, cache, err);
    const size_t plain = status == TSR_OK ? (size_t)tsr_archive_size(archive) : 0;
    unsigned char *const bytes = tsr_arena_alloc(arena, plain + 1);
    if (bytes == NULL)
        abort();
    if (status == TSR_OK)
        status = tsr_archive_read(archive, bytes, plain, 0, err);
    if (status == TSR_OK)
        add_hex(to, bytes, plain);
    tsr_archive_close(archive);
    tsr_archive_cache_free(cache);
    close(fd);
    return status;
}

static tsr_status read_kind(char kind, const char *data, size_t size, tsr_arena *arena, tsr_text *to, tsr_err *err)
{
    return kind == 'j'   ? read_json(data, size, arena, to, err)
           : kind == 's' ? read_shard(data, size, arena, to, err)
                         : read_archive(data, size, arena, to, err);
}

static const char *in_one_line(char *message)
{
    for (char *at = message; (at = strpbrk(at, "\r\n")) != NULL;)
        *at = ' ';
    return message;
}

int main(void)
{
    char kind;
    uint64_t size;
    while (fread(&kind, 1, 1, stdin) == 1 && fread(&size, sizeof size, 1, stdin) == 1) {
        char *const data = malloc(size + 1);
        tsr_arena arena = {0};
        tsr_text text = {0};
        tsr_err err = {0};
        if (data == NULL || fread(data, 1, size, stdin) != size)
            return 1;
        data[size] = '\0';
        const tsr_status status = read_kind(kind, data, size, &arena, &text, &err);
        if (status == TSR_OK)
            printf("ok %s\n", text.data == NULL ? "" : text.data);
        else
            printf("no %s\n", in_one_line(err.msg));
        fflush(stdout);
        tsr_text_free(&text);
        tsr_arena_free(&arena);
        free(data);
    }
    return 0;
}
