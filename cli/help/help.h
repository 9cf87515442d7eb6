/* `tessera help` and other descriptions of the tool itself: the help of all commands as JSON, tensor names for
 * completion, the page about errors, the build, and the lists of families and loader rules.
 *
 * Manual pages and shell completions are generated from the help of all commands (cli/manual/). Completions request the
 * tensors of a checkpoint while a word is typed. */
#pragma once

#include "cli/commands/commands.h"
#include "common/arena.h"
#include "common/status.h"
#include "formats/checkpoint/checkpoint.h"

/* An exit code and its meaning; the last entry has none. */
typedef struct tsr_exit_meaning {
    int code;
    const char *meaning;
} tsr_exit_meaning;

extern const tsr_exit_meaning tsr_exit_meanings[];

/* Writes the help of all commands as JSON to `path` ('-': stdout). */
tsr_status tsr_help_json(const tsr_command *const *commands, const char *path, tsr_err *err);

/* Prints the tensors of a checkpoint that begin with `beginning`, one per line. After `beginning`, a number that is a
 * whole component becomes *, so that a large model has as few lines as a small one. */
tsr_status tsr_help_tensors(const char *checkpoint, const char *beginning, tsr_err *err);

/* Writes this build, its libraries and the features of the machine as JSON to `path` ('-': stdout), for bug reports and
 * bills of materials. */
tsr_status tsr_version_json(const char *path, tsr_err *err);

/* Print the tensors of each model family that are quantized, and the rules of each loader for a model_type; or write
 * them to `json` as JSON if that is not NULL ("-": stdout). */
tsr_status tsr_list_families(const char *json, tsr_err *err);
tsr_status tsr_list_loader_rules(const char *model_type, const char *json, tsr_err *err);

/* Sets *model_type to that of a checkpoint, and warns if it is not known. */
tsr_status tsr_find_model_type(const tsr_checkpoint *checkpoint, tsr_arena *arena, const char **model_type,
                               tsr_err *err);

/* Prints docs/errors.md, or the part under `heading`, unless it is NULL. Returns the exit code. */
int tsr_help_errors(const char *heading);
