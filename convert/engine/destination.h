/* The names, folders and space of an output directory.
 *
 * Everything is written under a temporary name in DST/.tessera, which no output can have, and renamed when it is whole.
 * No loader takes a directory without a config.json for a model, so that file is removed before the files that it
 * describes are replaced. */
#ifndef TSR_CONVERT_ENGINE_DESTINATION_H
#define TSR_CONVERT_ENGINE_DESTINATION_H

#include "convert/engine/digests.h"

#include <limits.h>

#define TSR_PART_SUFFIX ".part"

/* Borrowed names, relative to the destination. */
typedef struct tsr_names {
    const char **items;
    size_t count;
} tsr_names;

/* The names of the files and texts of a plan, except the report; `items` is in `arena`. */
tsr_status tsr_plan_names(const tsr_plan *plan, tsr_arena *arena, tsr_names *names, tsr_err *err) TSR_WARN_UNUSED;

/* Checks that each name leads to a place below `dst` that is not one of Tessera's own: the path is relative, has no
 * "..", no control characters and no links on its way, and is short enough for the system. Otherwise returns `status`,
 * with a message in which `said` tells where the names come from. */
tsr_status tsr_check_names(const char *dst, const tsr_names *names, const char *said, tsr_status status,
                           tsr_err *err) TSR_WARN_UNUSED;

/* DST/NAME of a name that was checked. Returns path. */
const char *tsr_output_path(const char *dst, const char *name, char path[PATH_MAX]);

/* The temporary name of file number `index`, or of a text when it is SIZE_MAX. Returns path. */
const char *tsr_part_path(const char *dst, size_t index, char path[PATH_MAX]);

/* Makes the folder that `path` lies in. */
tsr_status tsr_make_parent(const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* Removes the temporary files that a killed run left. */
void tsr_remove_parts(const char *dst);

/* Removes every config.json, then every index, that is among the names, and makes that durable: from here on nothing in
 * `dst` looks like a model. */
tsr_status tsr_withdraw(const char *dst, const tsr_names *names, tsr_err *err) TSR_WARN_UNUSED;

/* Removes the folders below `dst` that files of these names, which were checked and are gone, have left empty: of an output cut for
 * more ranks, an empty folder would pass for a rank without weights. */
void tsr_remove_empty_folders(const char *dst, const tsr_names *names);

/* TSR_E_EXISTS when a folder of the plan's outputs, or of old ones, holds weights, or an index, that are on neither list: loaders
 * would take them for part of the model. */
tsr_status tsr_check_strays(const char *dst, const tsr_names *planned, const tsr_names *old,
                            tsr_err *err) TSR_WARN_UNUSED;

/* Bytes of what is not finished yet, without appended files, of which no more than a bound is known. */
uint64_t tsr_space_needed(const tsr_plan *plan, const bool *finished);

/* Whether the directory has room for tsr_space_needed, and for `promised` bytes that others are about to write on the same
 * file system: TSR_E_NOSPACE with the bytes, or files, that it lacks. */
tsr_status tsr_check_space(const tsr_plan *plan, const char *dst, const bool *finished, uint64_t promised,
                           tsr_err *err) TSR_WARN_UNUSED;

/* Completes the system's message in `err` when the space ran out although it had sufficed at the start: how many bytes
 * or files are missing or, where none are, what to do. */
tsr_status tsr_explain_no_space(const tsr_plan *plan, const char *dst, const bool *finished, tsr_err *err);

/* Writes report, index and other texts, the manifest, then config.json, of all ranks. Texts that exist already are left alone. */
tsr_status tsr_write_texts(const tsr_digests *digests, const char *dst, const tsr_quant_stats *rows,
                           const tsr_plan_blocks *blocks, tsr_err *err) TSR_WARN_UNUSED;

#endif
