/* Checks names, folders and disk space of an output directory, and writes its text files.
 *
 * Files are written under temporary names in DST/.tessera, which no output can have, and renamed when they are
 * complete. No loader takes a directory without a config.json for a model, so that file is removed before the files
 * that it describes are replaced. */
#pragma once

#include "convert/records/source_sums.h"

#include <limits.h>

#define TSR_PART_SUFFIX ".part"

/* Borrowed names, relative to the destination. */
typedef struct tsr_names {
    const char **items;
    size_t count;
} tsr_names;

/* Return true if the last part of a name is config.json; if it is that of an index of safetensors files. */
bool tsr_is_config_path(const char *name);
bool tsr_is_index_path(const char *name);

/* Lists the names of the files and texts of a plan, without the report. `items` is in `arena`. */
tsr_status tsr_plan_names(const tsr_plan *plan, tsr_arena *arena, tsr_names *names, tsr_err *err);

/* Checks that each name is a path below `dst` and not one of Tessera's own. A name must be relative, without ".." and
 * control characters, pass through no links, and be short enough for the system. On failure returns `status`, with a
 * message in which `origin` tells where the names come from. */
tsr_status tsr_check_names(const char *dst, const tsr_names *names, const char *origin, tsr_status status,
                           tsr_err *err);

/* Writes DST/NAME of a checked name to `path`, and returns it. */
const char *tsr_output_path(const char *dst, const char *name, char path[PATH_MAX]);

/* Writes the temporary name of file number `index`, or of a text for SIZE_MAX, to `path`, and returns it. */
const char *tsr_part_path(const char *dst, size_t index, char path[PATH_MAX]);

/* Creates the parent folder of `path`. */
tsr_status tsr_make_parent(const char *path, tsr_err *err);

/* Removes the files in the state folder whose names end in `suffix`: TSR_PART_SUFFIX for the temporary files that a
 * killed run left. */
void tsr_remove_state_files(const char *dst, const char *suffix);

/* Removes every config.json, then every index, among the names, durably. After that no loader takes `dst` for a
 * model. */
tsr_status tsr_withdraw(const char *dst, const tsr_names *names, tsr_err *err);

/* Removes folders below `dst` that are empty after files of these checked names were removed. In an output for tensor
 * parallelism, an empty folder would count as a rank without weights. */
void tsr_remove_empty_folders(const char *dst, const tsr_names *names);

/* Removes an output with all that its folder holds, the journal last: after a kill, the output can be resumed, or
 * removed again. A missing folder is not an error. */
tsr_status tsr_remove_output(const char *dst, tsr_err *err);

/* Rejects weights or an index in an output folder that are on neither list, because loaders would take them for part of
 * the model. TSR_E_EXISTS. */
tsr_status tsr_check_strays(const char *dst, const tsr_names *planned, const tsr_names *old, tsr_err *err);

/* Returns the bytes of unfinished files, without appended files, for which only an upper bound is known. */
uint64_t tsr_space_needed(const tsr_plan *plan, const bool *finished);

/* Checks that the directory has room for tsr_space_needed and for `promised` bytes that other runs will write to the
 * same file system. TSR_E_NOSPACE: the message has the missing bytes or files. */
tsr_status tsr_check_space(const tsr_plan *plan, const char *dst, const bool *finished, uint64_t promised,
                           tsr_err *err);

/* Completes the system's message in `err` after the disk became full: adds the missing bytes or files or, if none are
 * missing, the remedy. */
tsr_status tsr_explain_no_space(const tsr_plan *plan, const char *dst, const bool *finished, tsr_err *err);

/* Writes report, index and other texts, the manifest, then each config.json. Texts that already exist with these
 * contents are not written again. */
tsr_status tsr_write_texts(const tsr_digests *digests, const char *dst, const tsr_step_rows *rows,
                           const tsr_plan_blocks *blocks, tsr_err *err);
