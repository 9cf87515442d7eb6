/* libFuzzer target: a manifest as it is, and with consistent digests.
 *
 * The input may have 32 question marks in place of a digest, and lacks the last line with the digest of the lines
 * before; both are filled in. Checks that an accepted manifest covers all bytes of each file and names no file
 * outside the output. */
#include "formats/checkpoint/listing.h"
#include "tests/robustness/fuzz/folder.h"
#include "verify/manifest/manifest_sources.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdbool.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HEX = 32, MOST_DEPTH = 64 };

static const char *const kFiles[] = {TSR_MANIFEST_NAME, NULL};

/* ---- digests that agree ---- */

/* An open container: the combined digest of its parts, and the place of its own digest. */
typedef struct level {
    bool object, own;
    char *slot;
    size_t n;
    XXH128_hash_t only;
    XXH3_state_t hash;
} level;

static void put_hex(char *to, XXH128_hash_t digest)
{
    char text[HEX + 1];
    snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)digest.high64, (unsigned long long)digest.low64);
    memcpy(to, text, HEX);
}

static bool get_hex(const char *text, XXH128_hash_t *digest)
{
    uint64_t half[2] = {0, 0};
    for (size_t i = 0; i < HEX; i++) {
        const char *const digit = memchr("0123456789abcdef", text[i], 16);
        if (digit == NULL)
            return false;
        half[i / 16] = half[i / 16] << 4 | (uint64_t)(digit - "0123456789abcdef");
    }
    *digest = (XXH128_hash_t){.high64 = half[0], .low64 = half[1]};
    return true;
}

static void take(level *l, XXH128_hash_t digest)
{
    XXH128_canonical_t bytes;
    XXH128_canonicalFromHash(&bytes, digest);
    (void)XXH3_128bits_update(&l->hash, &bytes, sizeof bytes);
    l->only = digest;
    l->n++;
}

/* A text of 32 characters: a digest of the container itself, or one of a piece, which is the object's around it. */
static void see_digest(level *levels, size_t depth, char *text)
{
    static const char kUnknown[] = "????????????????????????????????";
    level *l = &levels[depth];
    const bool unknown = memcmp(text, kUnknown, HEX) == 0;
    XXH128_hash_t digest = {0};
    if (l->object) {
        if (!l->own)
            return;
        l->slot = unknown ? text : NULL;
        if (!unknown && get_hex(text, &digest))
            l->only = digest;
        return;
    }
    if (unknown)
        put_hex(text, digest);
    else if (!get_hex(text, &digest))
        return;
    while (!l->object && l > levels)
        l--;
    take(l, digest);
}

static void end_level(level *levels, size_t depth)
{
    level *const l = &levels[depth], *up = l - 1;
    if (!l->object || depth == 0)
        return;
    const XXH128_hash_t digest = l->n > 1 ? XXH3_128bits_digest(&l->hash) : l->only;
    if (l->slot != NULL)
        put_hex(l->slot, digest);
    while (!up->object && up > levels)
        up--;
    take(up, digest);
}

/* Fills in every digest that is left open. */
static void fill_in(char *text, size_t size)
{
    static level levels[MOST_DEPTH];
    size_t depth = 0;
    levels[0] = (level){.object = true};
    (void)XXH3_128bits_reset(&levels[0].hash);
    for (size_t at = 0; at < size; at++) {
        const char c = text[at];
        if ((c == '{' || c == '[') && depth + 1 < MOST_DEPTH) {
            level *const l = &levels[++depth];
            l->object = c == '{';
            l->own = false;
            l->slot = NULL;
            l->n = 0;
            l->only = (XXH128_hash_t){.low64 = 0};
            (void)XXH3_128bits_reset(&l->hash);
        } else if ((c == '}' || c == ']') && depth > 0) {
            end_level(levels, depth--);
        } else if (c == '"') {
            char *const begin = text + ++at;
            while (at < size && text[at] != '"')
                at += text[at] == '\\' ? 2 : 1;
            if (at >= size)
                return;
            const size_t n = (size_t)(text + at - begin);
            if (at + 1 < size && text[at + 1] == ':')
                levels[depth].own = n == 6 && memcmp(begin, "xxh128", 6) == 0;
            else if (n == HEX)
                see_digest(levels, depth, begin);
        }
    }
}

/* ---- what is read ---- */

static bool leads_out(const char *name)
{
    return name[0] == '\0' || name[0] == '/' || strcmp(name, "..") == 0 || strncmp(name, "../", 3) == 0 ||
           strstr(name, "/../") != NULL || (strlen(name) >= 3 && strcmp(name + strlen(name) - 3, "/..") == 0) ||
           strcmp(name, TSR_MANIFEST_NAME) == 0;
}

static void check(const tsr_manifest *said)
{
    uint64_t all = 0;
    size_t piece = 0;
    for (size_t i = 0; i < said->n_files; i++) {
        const tsr_manifest_file *const f = &said->files[i];
        uint64_t end = 0;
        if (leads_out(f->name) || f->first_piece != piece || f->n_pieces == 0)
            abort();
        for (const size_t last = piece + f->n_pieces; piece < last; piece++) {
            const tsr_manifest_piece *const p = &said->pieces[piece];
            if (p->file != i || p->offset != end || end + p->bytes < end)
                abort();
            end += p->bytes;
        }
        if (end != f->bytes || (i > 0 && strcmp(f->name, said->files[i - 1].name) == 0))
            abort();
        all += end;
    }
    if (piece != said->n_pieces || all != said->bytes || said->version == NULL || said->command == NULL)
        abort();
}

/* Checks sources: every input has windows, every window bytes and an end. */
static void read_reads(void)
{
    tsr_manifest_sources reads;
    size_t input = 0, window = 0;
    if (tsr_manifest_sources_read(&reads, place(TSR_MANIFEST_NAME), NULL) == TSR_OK) {
        for (size_t i = 0; i < reads.n_reads; i++) {
            if (reads.reads[i].first_input != input || reads.reads[i].n_inputs == 0)
                abort();
            input += reads.reads[i].n_inputs;
        }
        for (size_t i = 0; i < input; i++) {
            if (reads.inputs[i].first_window != window || reads.inputs[i].n_windows == 0 ||
                reads.inputs[i].file == NULL)
                abort();
            window += reads.inputs[i].n_windows;
        }
        for (size_t i = 0; i < window; i++) {
            const tsr_manifest_window *const w = &reads.windows[i];
            if (w->rows == 0 || w->row_bytes == 0 || w->offset + (w->rows - 1) * w->pitch + w->row_bytes < w->offset)
                abort();
        }
        if (input != reads.n_inputs || window != reads.n_windows)
            abort();
    }
    tsr_manifest_sources_free(&reads);
}

static void read_manifest(const char *text, size_t size)
{
    tsr_manifest said;
    put_file(TSR_MANIFEST_NAME, text, size);
    if (tsr_manifest_read(&said, place(TSR_MANIFEST_NAME), NULL) == TSR_OK) {
        check(&said);
        read_reads();
    }
    tsr_manifest_free(&said);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char kLine[] = ",\n  \"manifest_xxh128\": \"";
    static bool ready = false;
    if (!ready)
        make_folder(kFiles);
    ready = true;
    read_manifest((const char *)data, size);
    char *const text = malloc(size + sizeof kLine + HEX + 8);
    if (text == NULL)
        abort();
    memcpy(text, data, size);
    fill_in(text, size);
    size_t n = size;
    memcpy(text + n, kLine, sizeof kLine - 1);
    const XXH128_hash_t digest = XXH3_128bits(text, n + 2);
    n += sizeof kLine - 1;
    put_hex(text + n, digest);
    memcpy(text + n + HEX, "\"\n}\n", 4);
    read_manifest(text, n + HEX + 4);
    free(text);
    return 0;
}
