/* libFuzzer target: safetensors headers, edits of configurations, and patterns are accepted or rejected, in bounded
 * time. */
#include "formats/checkpoint/safetensors.h"
#include "formats/json/json.h"
#include "formats/json/json_edit.h"
#include "formats/json/json_index.h"
#include "formats/names/pattern.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_header(const uint8_t *data, size_t size)
{
    const int fd = memfd_create("fuzz", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    tsr_arena arena = {0};
    tsr_tensors tensors = {0};
    tsr_err err;
    uint64_t hash;
    const tsr_input in = {.fd = fd, .path = "fuzz", .size = size};
    if (tsr_safetensors_read(&in, 0, &arena, &tensors, &hash, &err) == TSR_OK) {
        uint64_t end = 0;
        for (size_t i = 0; i < tensors.count; i++)
            end = tensors.items[i].offset + tensors.items[i].bytes;
        if (tensors.count > 0 && end != size)
            abort(); /* accepted, and yet its tensors do not end where the file does */
    }
    tsr_tensors_free(&tensors);
    tsr_arena_free(&arena);
    close(fd);
}

static void edit_config(const char *text, size_t size)
{
    tsr_json_reader r = tsr_json_open("fuzz", text, size);
    tsr_json_text span;
    if (size == 0 || tsr_json_skip(&r, &span, NULL) != TSR_OK || tsr_json_finish(&r, NULL) != TSR_OK)
        return;
    tsr_text out = {0};
    if (span.data[0] == '{' &&
        tsr_json_edit_set(&out, text, size, "inserted key", "{\n  \"a\": 1\n}", NULL) == TSR_OK) {
        tsr_json_reader again = tsr_json_open("edited", out.data, out.size);
        if (tsr_json_skip(&again, NULL, NULL) != TSR_OK || tsr_json_finish(&again, NULL) != TSR_OK ||
            !tsr_json_find(out.data, out.size, "inserted key", &span))
            abort();
        tsr_json_index index;
        tsr_json_text same;
        if (tsr_json_index_read(&index, "edited", out.data, out.size, NULL) == TSR_OK) {
            if (!tsr_json_index_find(&index, "inserted key", &same) || same.data != span.data || same.size != span.size)
                abort();
            tsr_json_index_free(&index);
        }
    }
    tsr_text_free(&out);
}

static void match_pattern(const char *data, size_t size)
{
    tsr_arena arena = {0};
    tsr_pattern pattern;
    uint64_t work = 0;
    const char *const text = tsr_arena_dup(&arena, data, size);
    if (text != NULL && tsr_pattern_compile(&pattern, text, &arena, NULL) == TSR_OK) {
        (void)tsr_pattern_match(&pattern, text, &work);
        if (pattern.count > TSR_PATTERN_STEPS + 1 || work > 4 * pattern.count * (strlen(text) + 1))
            abort();
    }
    tsr_arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Most inputs would die on the length field: give it the value that lets the JSON be seen. */
    uint8_t *const file = malloc(size + 8);
    if (file == NULL)
        return 0;
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)size >> (8 * i));
    memcpy(file + 8, data, size);
    read_header(file, size + 8);
    read_header(data, size);
    edit_config((const char *)data, size);
    match_pattern((const char *)data, size);
    free(file);
    return 0;
}
