/* The paths that a command reads and writes, and the reports that it still has to write.
 *
 * An output never lies in, over, or as what the command reads. Files and folders are compared by device and inode, so symlinks,
 * "..", bind mounts and hard links make no difference. Reports (--json, --junit) lie beside checkpoints and replace only what a
 * report could have been. */
#ifndef TSR_CLI_IO_IO_PATHS_H
#define TSR_CLI_IO_IO_PATHS_H

#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>

enum { TSR_MAX_SOURCES = 72, TSR_MAX_REPORTS = 8 };

/* A file that a command writes: the option that names it, and its path; NULL: it is not written. */
typedef struct tsr_output {
    const char *option, *path;
} tsr_output;

typedef struct tsr_io_paths {
    const char *sources[TSR_MAX_SOURCES]; /* checkpoints and files that are read; NULL: none. They need not exist */
    const char *dst;                      /* the output directory, which may exist; NULL: none */
    const char *json, *junit;             /* as given; NULL: none */
    const char *progress;                 /* --progress-file; NULL: none */
    tsr_output more[TSR_MAX_REPORTS - 2]; /* further reports; an entry without an option ends them */
    const char *promised;                 /* a folder that exists before reports are written; NULL: none */
    const char *unconfined;               /* why the sandbox (cli/io/sandbox.h) cannot hold the command; NULL: it can */
    bool beside;                          /* files beside the sources are read as well */
    bool untouched;                       /* nothing is written into dst: --dry-run */
    bool shared;                          /* other processes write into the same dst */
    bool links;                           /* files of sources get names in dst: --link hard */
} tsr_io_paths;

/* The reports that a command was asked for and has not begun to write; NULL: none. */
typedef struct tsr_pending_reports {
    const char *json, *junit;
} tsr_pending_reports;

/* Refuses outputs that would touch a source, before anything is read or made. TSR_E_USAGE names both paths. `pending` becomes the
 * reports that may be written, also after other errors; it borrows the paths. */
tsr_status tsr_io_paths_check(const tsr_io_paths *paths, tsr_pending_reports *pending, tsr_err *err) TSR_WARN_UNUSED;

/* Removes a path from the pending reports. A report is begun once, even if writing fails. */
void tsr_pending_mark_written(tsr_pending_reports *pending, const char *path);

/* Returns true if `path` (may be NULL) is stdout: "-", or the very file that stdout is (/dev/stdout). */
bool tsr_is_stdout(const char *path);

/* Returns true if one of the reports goes to stdout. */
bool tsr_io_paths_take_stdout(const tsr_io_paths *paths);

/* Writes a report: to stdout; into a device or pipe; or as a file that appears whole, in place of the one that a symlink names. */
tsr_status tsr_write_report(const char *path, const tsr_text *text, tsr_err *err) TSR_WARN_UNUSED;

#endif
