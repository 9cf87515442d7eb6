/* Parses --shard I/N and records the command line for `tessera finish`. */
#pragma once

#include "cli/io/common_options.h"
#include "convert/records/shards.h"

enum { TSR_MOST_WORDS = 64 * 64 }; /* most words of a recorded command line */

typedef struct tsr_shard_run {
    const char *text;    /* as given; NULL: no shards */
    tsr_shard shard;     /* count 0: no shards. Its words are in `arena` */
    tsr_shard_size size; /* set once there is a plan */
    tsr_arena arena;
} tsr_shard_run;

/* Reads "I/N". */
tsr_status tsr_shard_parse(tsr_shard_run *run, tsr_err *err);

/* Records the command: `command`, then its n `sources`, then the given `options`, except those that only concern this
 * process. Paths become absolute. */
tsr_status tsr_shard_note_command(tsr_shard_run *run, const char *command, const char *const *sources, size_t n_sources,
                                  const tsr_option *options, uint64_t given, tsr_err *err);

/* Appends the given options, except those listed in `except`, as words of a command line: after words[*n], at most
 * TSR_MOST_WORDS in all. */
tsr_status tsr_options_spell(const tsr_option *options, uint64_t given, const char *except, tsr_arena *arena,
                             const char **words, size_t *n, tsr_err *err);

/* Returns the shard; NULL: no shards. */
const tsr_shard *tsr_shard_of(const tsr_shard_run *run);

/* Returns true if this run makes some of the files. */
static inline bool tsr_is_shard(const tsr_shard_run *run)
{
    return run->shard.count > 0 && !run->shard.finish;
}

/* Computes the work of this shard. */
tsr_status tsr_shard_measure(tsr_shard_run *run, const tsr_plan *plan, tsr_err *err);

/* Prints the files that this shard writes, and their total size. */
tsr_status tsr_shard_print_plan(const tsr_shard_run *run, const tsr_plan *plan, tsr_err *err);

/* Prints the disk space of the shard, the end of a line. */
void tsr_shard_print_space(const tsr_shard_run *run);

/* Prints the result of the shard, and the command to run when all shards are done. `spool` is NULL if the output is
 * local. */
void tsr_shard_print_end(const tsr_shard_run *run, const char *output, const char *spool);

/* Writes the member "shard", or "shards" for the command that joins them. */
void tsr_shard_json(tsr_text *t, const tsr_shard_run *run);
