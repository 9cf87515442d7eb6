/* Parses --shard I/N and records the command line for `tessera finish`. */
#ifndef TSR_CLI_IO_SHARD_OPTIONS_H
#define TSR_CLI_IO_SHARD_OPTIONS_H

#include "cli/io/common_options.h"
#include "convert/records/shards.h"

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

/* Appends the options that were given, except those that `except` lists, as words of a command line: behind
 * words[*n], of at most `most`. */
tsr_status tsr_options_spell(const tsr_option *options, uint64_t given, const char *except, tsr_arena *arena,
                             const char **words, size_t most, size_t *n, tsr_err *err) TSR_WARN_UNUSED;

/* Returns the shard; NULL: there is none. */
const tsr_shard *tsr_shard_of(const tsr_shard_run *run);

/* Returns true if this run makes some of the files. */
static inline bool tsr_is_shard(const tsr_shard_run *run)
{
    return run->shard.count > 0 && !run->shard.finish;
}

/* Finds out what there is for this shard to do. */
tsr_status tsr_shard_measure(tsr_shard_run *run, const tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

/* Prints the files that this shard writes, and their sum. */
tsr_status tsr_shard_print_plan(const tsr_shard_run *run, const tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

/* Prints the disk space of the shard, the end of a line. */
void tsr_shard_print_space(const tsr_shard_run *run);

/* Prints how the shard ended, and the command for when all have. */
void tsr_shard_print_end(const tsr_shard_run *run, const char *dst);

/* Writes the member "shard", or "shards" for what joins them. */
void tsr_shard_json(tsr_text *t, const tsr_shard_run *run);

#endif
