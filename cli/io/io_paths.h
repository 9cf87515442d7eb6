/* The inputs and outputs of a command, and the reports that it still has to write.
 *
 * An output must not be in, replace, or be the same as an input. Files and folders are compared by device and inode, so
 * symlinks, "..", bind mounts and hard links make no difference. Reports (--json, --junit) must be outside of
 * checkpoints and replace only files that may be earlier reports. */
#pragma once

#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>

enum { TSR_MAX_SOURCES = 72, TSR_MAX_REPORTS = 8 };

/* An output file: the option that names it, and its path; NULL: not written. */
typedef struct tsr_output {
    const char *option, *path;
    bool tensors; /* a new safetensors file */
} tsr_output;

typedef struct tsr_io_paths {
    const char *sources[TSR_MAX_SOURCES]; /* input checkpoints and files; NULL: none. They need not exist */
    const char *dst;                      /* the output directory, which may exist; NULL: none */
    const char *json, *junit;             /* as given; NULL: none */
    const char *progress;                 /* --progress-file; NULL: none */
    tsr_output more[TSR_MAX_REPORTS - 2]; /* further reports; an entry without an option ends them */
    const char *promised;                 /* a folder that exists before reports are written; NULL: none */
    const char *unconfined;               /* why the sandbox (cli/io/sandbox.h) cannot restrict the command; NULL: it
                                           * can */
    bool beside;                          /* files beside the sources are also read */
    const char *address;                  /* where the output is sent from dst; NULL: it stays there */
    bool untouched;                       /* nothing is written to dst: --dry-run */
    bool shared;                          /* other processes write to the same dst */
    bool links;                           /* files of sources are hard-linked into dst: --link hard */
} tsr_io_paths;

/* The requested reports that have not been written yet; NULL: none. */
typedef struct tsr_pending_reports {
    const char *json, *junit;
} tsr_pending_reports;

/* Rejects outputs that would overlap a source, before anything is read or created. TSR_E_USAGE: the message has both
 * paths. Sets `pending` to the reports that may be written, also after other errors; it borrows the paths. */
tsr_status tsr_io_paths_check(const tsr_io_paths *paths, tsr_pending_reports *pending, tsr_err *err);

/* Removes a path from the pending reports. A report is begun once, even if writing fails. */
void tsr_pending_mark_written(tsr_pending_reports *pending, const char *path);

/* Returns true if `path` (may be NULL) is stdout: "-", or the very file that stdout is (/dev/stdout). */
bool tsr_is_stdout(const char *path);

/* Returns true if one of the reports goes to stdout. */
bool tsr_io_paths_take_stdout(const tsr_io_paths *paths);

/* Writes a report: to stdout, to a device or pipe, or as a file that appears complete; a symlink is followed. */
tsr_status tsr_write_report(const char *path, const tsr_text *text, tsr_err *err);
