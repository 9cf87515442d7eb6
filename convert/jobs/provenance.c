/* Spells options as words again, for the manifest. */
#include "convert/jobs/provenance.h"

#include "common/checked.h"
#include "common/file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Options whose value is a file, and those whose value is a checkpoint. */
static const char kFiles[] = "--rules --recipe --activations --importance --kv-ranges --config",
                  kCheckpoints[] = "--scales-from --against";

static const uint64_t kMostBytes = (uint64_t)1 << 30; /* a text of the source has at most so many */

enum { MOST_INPUTS = 6, LONGEST_TEXT = 64 << 10 };

typedef struct noting {
    tsr_plan_provenance *with;
    tsr_arena *arena;
    const char **words;
    tsr_plan_input *inputs;
    size_t most;
} noting;

static bool same_text(const char *a, const char *b)
{
    return a == NULL || (b != NULL && strcmp(a, b) == 0);
}

static bool is_default(const tsr_option *o, const tsr_option *defaults)
{
    switch (o->kind) {
    case TSR_OPT_FLAG:
        return *(const bool *)o->value == *(const bool *)defaults->value;
    case TSR_OPT_TEXT:
        return same_text(*(const char *const *)o->value, *(const char *const *)defaults->value);
    case TSR_OPT_LIST:
        return ((const tsr_list *)o->value)->count == 0;
    case TSR_OPT_CHOICE:
        return *(const int *)o->value == *(const int *)defaults->value;
    case TSR_OPT_COUNT:
    case TSR_OPT_POSITIVE:
    case TSR_OPT_SIZE:
        return *(const uint64_t *)o->value == *(const uint64_t *)defaults->value;
    }
    return true;
}

static const char *last_name(const char *path)
{
    const char *const slash = strrchr(path, '/');
    return slash == NULL || slash[1] == '\0' ? path : slash + 1;
}

static tsr_status add_word(noting *n, const char *word, tsr_err *err)
{
    if (word == NULL || n->with->n_words == n->most)
        return tsr_out_of_memory(err, "for the words of the command");
    n->words[n->with->n_words++] = word;
    return TSR_OK;
}

static tsr_status add_input(noting *n, const char *option, const char *name, const tsr_plan_input *contents,
                            tsr_err *err)
{
    if (n->with->n_inputs == MOST_INPUTS)
        return TSR_OK;
    tsr_plan_input *const in = &n->inputs[n->with->n_inputs++];
    *in = *contents;
    in->option = option;
    in->name = tsr_arena_dup(n->arena, name, strlen(name));
    return tsr_arena_status(n->arena, TSR_OK, err);
}

/* Returns the size and digest of a text, and the text itself if it is short and has no zeros. */
static tsr_plan_input contents_of(const char *text, size_t size, tsr_arena *arena)
{
    const XXH128_hash_t hash = XXH3_128bits(text, size);
    const bool shown = size <= LONGEST_TEXT && memchr(text, '\0', size) == NULL;
    return (tsr_plan_input){
        .bytes = size, .digest = {hash.high64, hash.low64}, .text = shown ? tsr_arena_dup(arena, text, size) : NULL};
}

/* Digests a file of any size, piece by piece. */
static tsr_status digest_file(const char *path, int fd, uint64_t size, tsr_plan_input *contents, tsr_err *err)
{
    enum { PIECE = 1 << 20 };
    XXH3_state_t *const state = XXH3_createState();
    char *const piece = malloc(PIECE);
    tsr_status status = state == NULL || piece == NULL ? tsr_out_of_memory(err, "for the digest of a file") : TSR_OK;
    if (status == TSR_OK)
        (void)XXH3_128bits_reset(state);
    for (uint64_t at = 0; at < size && status == TSR_OK; at += PIECE) {
        const size_t bytes = (size_t)tsr_min_u64(PIECE, size - at);
        status = tsr_read_at(fd, path, piece, bytes, at, err);
        if (status == TSR_OK)
            (void)XXH3_128bits_update(state, piece, bytes);
    }
    if (status == TSR_OK) {
        const XXH128_hash_t hash = XXH3_128bits_digest(state);
        *contents = (tsr_plan_input){.bytes = size, .digest = {hash.high64, hash.low64}};
    }
    free(piece);
    (void)XXH3_freeState(state);
    return status;
}

static tsr_status add_file(noting *n, const char *option, const char *path, tsr_err *err)
{
    tsr_plan_input contents = {.bytes = 0};
    tsr_arena scratch = {0};
    const char *text;
    size_t length;
    uint64_t size;
    int fd;
    TSR_TRY(tsr_open_input(path, &fd, &size, NULL, err));
    tsr_status status = TSR_OK;
    if (size > LONGEST_TEXT) {
        status = digest_file(path, fd, size, &contents, err);
    } else {
        status = tsr_read_file(path, LONGEST_TEXT, &scratch, &text, &length, err);
        if (status == TSR_OK)
            contents = contents_of(text, length, n->arena);
    }
    (void)close(fd);
    if (status == TSR_OK)
        status = add_input(n, option, last_name(path), &contents, err);
    tsr_arena_free(&scratch);
    return status;
}

static tsr_status add_value(noting *n, const tsr_option *o, const char *value, tsr_err *err)
{
    const bool file = tsr_is_listed(kFiles, o->name);
    if (file)
        TSR_TRY(add_file(n, o->name, value, err));
    if (file || tsr_is_listed(kCheckpoints, o->name))
        value = last_name(value);
    return add_word(n, tsr_arena_printf(n->arena, "%s=%s", o->name, value), err);
}

static tsr_status add_option(noting *n, const tsr_option *o, tsr_err *err)
{
    if (o->kind == TSR_OPT_TEXT)
        return add_value(n, o, *(const char *const *)o->value, err);
    if (o->kind != TSR_OPT_LIST)
        return add_word(n, tsr_option_spell(o, n->arena), err);
    for (size_t i = 0; i < ((const tsr_list *)o->value)->count; i++)
        TSR_TRY(add_value(n, o, ((const tsr_list *)o->value)->items[i], err));
    return TSR_OK;
}

tsr_status tsr_provenance_note(tsr_plan_provenance *with, const char *command, const tsr_job_source *from,
                               const tsr_option *given, const tsr_option *defaults, tsr_arena *arena, tsr_err *err)
{
    tsr_list ignore = from->ignore;
    uint64_t size = from->max_shard_bytes;
    const tsr_option ignored = {"--ignore-file", TSR_OPT_LIST, &ignore, NULL, NULL},
                     sized = {"--max-shard-size", TSR_OPT_SIZE, &size, NULL, NULL};
    noting n = {.with = with, .arena = arena, .most = from->ignore.count + 1};
    for (size_t i = 0; given[i].name != NULL; i++)
        n.most += given[i].kind == TSR_OPT_LIST ? ((const tsr_list *)given[i].value)->count : 1;
    n.words = tsr_arena_alloc(arena, n.most * sizeof *n.words);
    n.inputs = tsr_arena_alloc(arena, MOST_INPUTS * sizeof *n.inputs);
    if (n.words == NULL || n.inputs == NULL)
        return tsr_out_of_memory(err, "for the words of the command");
    *with = (tsr_plan_provenance){.command = command, .words = n.words, .inputs = n.inputs};
    for (size_t i = 0; given[i].name != NULL; i++) {
        if (!is_default(&given[i], &defaults[i]))
            TSR_TRY(add_option(&n, &given[i], err));
    }
    TSR_TRY(add_option(&n, &ignored, err));
    return size == 0 ? TSR_OK : add_option(&n, &sized, err);
}

tsr_status tsr_provenance_add_source(tsr_plan_provenance *with, const char *option, size_t at,
                                     const tsr_checkpoint *source, const char *ending, const char *file,
                                     tsr_arena *arena, tsr_err *err)
{
    noting n = {.with = with, .arena = arena, .inputs = (tsr_plan_input *)with->inputs};
    const char *const name = last_name(source->path), *text,
                      **const words = tsr_arena_alloc(arena, (with->n_words + 1) * sizeof *words);
    size_t size;
    tsr_arena scratch = {0};
    if (words == NULL)
        return tsr_out_of_memory(err, "for the words of the command");
    memcpy(words, with->words, at * sizeof *words);
    words[at] = tsr_arena_printf(arena, "%s%s", name, ending);
    memcpy(words + at + 1, with->words + at, (with->n_words - at) * sizeof *words);
    with->words = words;
    with->n_words++;
    tsr_status status = tsr_checkpoint_text(source, file, kMostBytes, &scratch, &text, &size, err);
    if (status == TSR_OK) {
        const tsr_plan_input contents = contents_of(text, size, arena);
        status = add_input(&n, option, file, &contents, err);
    }
    tsr_arena_free(&scratch);
    return tsr_arena_status(arena, status, err);
}
