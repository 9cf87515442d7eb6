/* Checks names, folders and space of an output directory, and writes its texts.
 *
 * Files are written under temporary names in DST/.tessera, which no output can have, and renamed when they are
 * whole. No loader takes a directory without a config.json for a model, so that file is removed before the files
 * that it describes are replaced. */
#ifndef TSR_CONVERT_RECORDS_DESTINATION_H
#define TSR_CONVERT_RECORDS_DESTINATION_H

#include "convert/records/source_sums.h"

#include <limits.h>

#define TSR_PART_SUFFIX ".part"

/* Borrowed names, relative to the destination. */
typedef struct tsr_names {
    const char **items;
    size_t count;
} tsr_names;

/* Lists the names of the files and texts of a plan, except the report; `items` is in `arena`. */
tsr_status tsr_plan_names(const tsr_plan *plan, tsr_arena *arena, tsr_names *names, tsr_err *err) TSR_WARN_UNUSED;

/* Checks that each name is a place below `dst` and not one of Tessera's own: a relative path without "..", control
 * characters or links on its way, and short enough for the system. Otherwise returns `status`, with a message in
 * which `said` names the origin of the names. */
tsr_status tsr_check_names(const char *dst, const tsr_names *names, const char *said, tsr_status status,
                           tsr_err *err) TSR_WARN_UNUSED;

/* Writes DST/NAME of a checked name to `path`, and returns it. */
const char *tsr_output_path(const char *dst, const char *name, char path[PATH_MAX]);

/* Writes the temporary name of file number `index`, or of a text for SIZE_MAX, to `path`, and returns it. */
const char *tsr_part_path(const char *dst, size_t index, char path[PATH_MAX]);

/* Makes the folder that `path` lies in. */
tsr_status tsr_make_parent(const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* Removes the temporary files that a killed run left. */
void tsr_remove_parts(const char *dst);

/* Removes every config.json, then every index, among the names, durably. Then nothing in `dst` looks like a model. */
tsr_status tsr_withdraw(const char *dst, const tsr_names *names, tsr_err *err) TSR_WARN_UNUSED;

/* Removes the folders below `dst` that are empty since files of these checked names were removed. In an output for
 * tensor parallelism, an empty folder would pass for a rank without weights. */
void tsr_remove_empty_folders(const char *dst, const tsr_names *names);

/* Rejects weights or an index in a folder of outputs that are on neither list: loaders would take them for part of
 * the model. TSR_E_EXISTS. */
tsr_status tsr_check_strays(const char *dst, const tsr_names *planned, const tsr_names *old,
                            tsr_err *err) TSR_WARN_UNUSED;

/* Returns the bytes of unfinished files, without appended files, of which only a bound is known. */
uint64_t tsr_space_needed(const tsr_plan *plan, const bool *finished);

/* Checks that the directory has room for tsr_space_needed and for `promised` bytes that others will write on the
 * same file system. TSR_E_NOSPACE: the message has the bytes, or files, that are missing. */
tsr_status tsr_check_space(const tsr_plan *plan, const char *dst, const bool *finished, uint64_t promised,
                           tsr_err *err) TSR_WARN_UNUSED;

/* Completes the system's message in `err` after the space ran out: the bytes or files that are missing or, if none
 * are, what to do. */
tsr_status tsr_explain_no_space(const tsr_plan *plan, const char *dst, const bool *finished, tsr_err *err);

/* Writes report, index and other texts, the manifest, then each config.json. Texts that are there already are left
 * alone. */
tsr_status tsr_write_texts(const tsr_digests *digests, const char *dst, const tsr_step_rows *rows,
                           const tsr_plan_blocks *blocks, tsr_err *err) TSR_WARN_UNUSED;

#endif
