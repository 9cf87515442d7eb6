/* --shard I/N of a command that carries out a plan: reading it, noting the command for `tessera finish`, telling results. */
#ifndef TSR_CLI_SHARDS_H
#define TSR_CLI_SHARDS_H

#include "cli/options.h"
#include "convert/engine/shards.h"

enum { TSR_MOST_WORDS = 64 * 64 }; /* of a command line that is noted */

typedef struct tsr_shard_run {
    const char *text;    /* as given; NULL: there are no shards */
    tsr_shard shard;     /* count 0: the same. Its words are in `arena` */
    tsr_shard_size size; /* once there is a plan */
    tsr_arena arena;
} tsr_shard_run;

/* Reads "I/N". */
tsr_status tsr_shard_parse(tsr_shard_run *run, tsr_err *err) TSR_WARN_UNUSED;

/* Notes the command: `command`, then `src`, then what was given of `options`, but for what speaks of this process alone.
 * Paths become absolute. */
tsr_status tsr_shard_note_command(tsr_shard_run *run, const char *command, const char *src, const tsr_option *options,
                                  uint64_t given, tsr_err *err) TSR_WARN_UNUSED;

/* Spells the options that were given, but for those that `except` lists, as words of a command line: behind words[*n], of
 * at most `most`. */
tsr_status tsr_options_spell(const tsr_option *options, uint64_t given, const char *except, tsr_arena *arena,
                             const char **words, size_t most, size_t *n, tsr_err *err) TSR_WARN_UNUSED;

/* NULL: none. */
const tsr_shard *tsr_shard_of(const tsr_shard_run *run);

/* Whether this run makes some of the files. */
static inline bool tsr_is_shard(const tsr_shard_run *run)
{
    return run->shard.count > 0 && !run->shard.finish;
}

/* Finds out what there is for this shard to do. */
tsr_status tsr_shard_measure(tsr_shard_run *run, const tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

/* The files that this shard is to write, and their sum. */
tsr_status tsr_shard_print_plan(const tsr_shard_run *run, const tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

/* The end of a line: what the shard takes on disk. */
void tsr_shard_print_space(const tsr_shard_run *run);

/* How the shard ended, and what is to be done when all have. */
void tsr_shard_print_end(const tsr_shard_run *run, const char *dst);

/* The member "shard" or, of what puts shards together, "shards". */
void tsr_shard_json(tsr_text *t, const tsr_shard_run *run);

#endif
