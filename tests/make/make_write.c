/* Writes shards and the index, with values that depend only on the seed and the tensor's name. */
#include "tests/make/make_checkpoint.h"

#include "common/float_bits.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK_ELEMENTS   ((uint64_t)1 << 20)
#define SPARSE_ROWS_STEP 4096

/* SplitMix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Returns the stream of a tensor: its bytes do not depend on other tensors. */
static uint64_t stream_of(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *name; name++) {
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    }
    hash ^= seed * 0xd1342543de82ef95u;
    return next_random(&hash);
}

float gaussian(uint64_t *state)
{
    const uint64_t bits = next_random(state);
    const uint32_t low = (uint32_t)bits, high = (uint32_t)(bits >> 32);
    const int32_t sum = (int32_t)((low & 0xffff) + (low >> 16) + (high & 0xffff) + (high >> 16));
    return (float)(sum - 131070) * (1.0f / 37837.0f);
}

static uint64_t element_size(const struct tensor *tensor)
{
    return tensor->fill == FILL_BIAS ? 4 : 2;
}

static uint64_t elements_of(const struct tensor *tensor)
{
    uint64_t count = 1;
    for (int i = 0; i < tensor->rank; i++) {
        count *= tensor->dims[i];
    }
    return count;
}

static uint64_t bytes_of(const struct tensor *tensor)
{
    return elements_of(tensor) * element_size(tensor);
}

static FILE *create(const char *directory, const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    if (!file) {
        die("%s: %s", path, strerror(errno));
    }
    return file;
}

static void finish(FILE *file, const char *name)
{
    const bool bad = ferror(file);
    if (fclose(file) || bad) {
        die("%s: %s", name, strerror(errno));
    }
}

void write_text(const char *directory, const char *name, const char *format, ...)
{
    FILE *file = create(directory, name);
    va_list args;
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    finish(file, name);
}

/* Returns the value at `index` of a tensor with a special fill, from its ordinary value. Every third block is
 * special. */
static uint16_t special(const struct tensor *tensor, uint64_t index, uint16_t value, uint64_t *state)
{
    const uint64_t row = index / tensor->dims[1], column = index % tensor->dims[1];
    if (tensor->fill == FILL_OUTLIERS) {
        return next_random(state) % 4096 ? value : (uint16_t)(value + (10 << 7)); /* the exponent field: times 2^10 */
    }
    if ((row / BLOCK + column / BLOCK) % 3) {
        return value;
    }
    switch (tensor->fill) {
    case FILL_ZEROS:
        return value & 0x8000;
    case FILL_SUBNORMALS:
        return value & 0x807f;
    default:
        return (value & 0x807f) | 0x7f00;
    }
}

static void write_values(FILE *file, const struct tensor *tensor, uint64_t count, uint64_t state)
{
    const float middle = tensor->fill == FILL_NORM ? 1.0f : 0.0f;
    uint16_t *chunk = allocate(CHUNK_ELEMENTS * sizeof *chunk);
    for (uint64_t start = 0; start < count; start += CHUNK_ELEMENTS) {
        const uint64_t length = count - start < CHUNK_ELEMENTS ? count - start : CHUNK_ELEMENTS;
        for (uint64_t i = 0; i < length; i++) {
            chunk[i] = tsr_bf16_from_f32(middle + 0.02f * gaussian(&state));
        }
        if (tensor->fill >= FILL_ZEROS && tensor->fill <= FILL_HUGE) {
            for (uint64_t i = 0; i < length; i++) {
                chunk[i] = special(tensor, start + i, chunk[i], &state);
            }
        }
        fwrite(chunk, sizeof *chunk, length, file);
    }
    free(chunk);
}

static void write_bias(FILE *file, uint64_t count, uint64_t state)
{
    for (uint64_t i = 0; i < count; i++) {
        const float value = gaussian(&state);
        fwrite(&value, sizeof value, 1, file);
    }
}

static void write_pool(FILE *file, const uint16_t *pool, uint64_t count, uint64_t state)
{
    uint64_t position = next_random(&state) % POOL_ELEMENTS;
    while (count) {
        const uint64_t rest = POOL_ELEMENTS - position, length = count < rest ? count : rest;
        fwrite(pool + position, sizeof *pool, length, file);
        count -= length;
        position = 0;
    }
}

static void write_rows(FILE *file, const struct tensor *tensor, uint64_t state)
{
    const off_t start = ftello(file);
    const uint64_t columns = tensor->dims[1];
    for (uint64_t row = 0; row < tensor->dims[0]; row += SPARSE_ROWS_STEP) {
        fseeko(file, start + (off_t)(row * columns * 2), SEEK_SET);
        write_values(file, tensor, columns, state + row);
    }
    fseeko(file, start + (off_t)bytes_of(tensor), SEEK_SET);
}

static void write_tensor(FILE *file, const struct plan *plan, const struct tensor *tensor, uint64_t seed)
{
    const uint64_t count = elements_of(tensor), state = stream_of(seed, tensor->name);
    switch (tensor->fill) {
    case FILL_BIAS:
        write_bias(file, count, state);
        break;
    case FILL_POOL:
        write_pool(file, plan->pool, count, state);
        break;
    case FILL_ROWS:
        write_rows(file, tensor, state);
        break;
    case FILL_HOLE:
        fseeko(file, (off_t)bytes_of(tensor), SEEK_CUR);
        break;
    default:
        write_values(file, tensor, count, state);
    }
}

static void shard_name(char buffer[64], const struct plan *plan, int shard)
{
    if (plan->shards == 1) {
        snprintf(buffer, 64, "model.safetensors");
    } else {
        snprintf(buffer, 64, "model-%05d-of-%05d.safetensors", shard + 1, plan->shards);
    }
}

static void print_header(FILE *text, const struct plan *plan, int shard)
{
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", text);
    for (size_t i = 0; i < plan->count; i++) {
        const struct tensor *tensor = &plan->tensors[i];
        if (tensor->shard != shard) {
            continue;
        }
        fprintf(text, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", tensor->name,
                tensor->fill == FILL_BIAS ? "F32" : "BF16");
        for (int axis = 0; axis < tensor->rank; axis++) {
            fprintf(text, "%s%llu", axis ? "," : "", (unsigned long long)tensor->dims[axis]);
        }
        fprintf(text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)tensor->offset,
                (unsigned long long)(tensor->offset + bytes_of(tensor)));
    }
    fputc('}', text);
}

static void write_shard(const struct plan *plan, int shard, const struct options *options)
{
    char name[64];
    shard_name(name, plan, shard);
    char *header = NULL;
    size_t length = 0;
    FILE *text = open_memstream(&header, &length);
    if (!text) {
        die("out of memory");
    }
    print_header(text, plan, shard);
    finish(text, name);

    FILE *file = create(options->directory, name);
    const uint64_t padded = (length + 7) / 8 * 8;
    fwrite(&padded, sizeof padded, 1, file);
    fprintf(file, "%-*s", (int)padded, header);
    free(header);
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->tensors[i].shard == shard) {
            write_tensor(file, plan, &plan->tensors[i], options->seed);
        }
    }
    if (fflush(file) || ftruncate(fileno(file), ftello(file))) { /* a hole at the end is not written by fseeko */
        die("%s: %s", name, strerror(errno));
    }
    finish(file, name);
}

static void write_index(const struct plan *plan, const char *directory, uint64_t total)
{
    FILE *file = create(directory, "model.safetensors.index.json");
    fprintf(file, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {\n",
            (unsigned long long)total);
    for (size_t i = 0; i < plan->count; i++) {
        char shard[64];
        shard_name(shard, plan, plan->tensors[i].shard);
        fprintf(file, "    \"%s\": \"%s\"%s\n", plan->tensors[i].name, shard, i + 1 < plan->count ? "," : "");
    }
    fputs("  }\n}\n", file);
    finish(file, "model.safetensors.index.json");
}

void write_weights(struct plan *plan, int shards, const struct options *options)
{
    uint64_t total = 0, before = 0, used[MAX_SHARDS] = {0};
    for (size_t i = 0; i < plan->count; i++) {
        total += bytes_of(&plan->tensors[i]);
    }
    plan->shards = shards;
    for (size_t i = 0; i < plan->count; i++) {
        struct tensor *tensor = &plan->tensors[i];
        tensor->shard = (int)(before * (uint64_t)shards / total);
        tensor->offset = used[tensor->shard];
        used[tensor->shard] += bytes_of(tensor);
        before += bytes_of(tensor);
    }
    for (int shard = 0; shard < shards; shard++) {
        write_shard(plan, shard, options);
    }
    if (shards > 1) {
        write_index(plan, options->directory, total);
    }
}
