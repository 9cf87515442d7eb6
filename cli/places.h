/* Where outputs may lie: never in, over, or as what a command reads, whatever the paths look like.
 *
 * Files and folders are told apart by device and inode, so symlinks, "..", bind mounts and hard links make no
 * difference. Reports (--json, --junit) lie beside checkpoints and replace only what a report could have been. */
#ifndef TSR_CLI_PLACES_H
#define TSR_CLI_PLACES_H

#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>

enum { TSR_MAX_SOURCES = 72 };

/* An output file: the option that names it, and its path; NULL: none. */
typedef struct tsr_output {
    const char *option, *path;
} tsr_output;

typedef struct tsr_places {
    const char *sources[TSR_MAX_SOURCES]; /* checkpoints, files; NULL: none. They need not exist */
    const char *dst;                      /* the output directory, made or not; NULL: none */
    const char *json, *junit;             /* as given; NULL: none */
    const char *progress;                 /* --progress-file; NULL: none */
    const tsr_output *more;               /* further reports, which an entry without an option ends; NULL: none */
    const char *unconfined;               /* why the sandbox (cli/sandbox.h) cannot hold this command; NULL: it can */
    bool beside;                          /* what lies beside the sources is read, too */
    bool untouched;                       /* nothing is written into dst: --dry-run */
    bool shared;                          /* others make the same dst: it is theirs as well */
    bool links;                           /* files of sources get names in dst: --link hard */
} tsr_places;

/* Refuses outputs that would touch a source, before anything is read or made. TSR_E_USAGE says which two. From then on
 * `json` and `junit` are owed: their texts have to live until the command ends. The last of what a command checks before it
 * begins: a rehearsed one (cli/stage.h) goes no further, with TSR_E_CANCELLED, and one that runs by itself is locked in. */
tsr_status tsr_places_check(const tsr_places *places, tsr_err *err) TSR_WARN_UNUSED;

/* From now on reports may lie in a folder that is not there yet, since a batch makes it before its jobs begin, or in one on the way to
 * it; NULL: no more. It has to live as long. */
void tsr_places_promise(const char *folder);

/* Notes them for the command on stage, if one is (cli/stage.h). TSR_E_USAGE: a job of a batch has no stdout. tsr_places_check does
 * so first. */
tsr_status tsr_places_note(const tsr_places *places, tsr_err *err) TSR_WARN_UNUSED;

/* Whether `path` (may be NULL) is stdout: "-", or the very file that stdout is (/dev/stdout). */
bool tsr_is_stdout(const char *path);

/* What --json and --junit have not been given yet; NULL: nothing is owed. */
typedef struct tsr_owed {
    const char *json, *junit;
} tsr_owed;

/* The reports that tsr_places_check has allowed, and that nobody has begun to write. */
tsr_owed tsr_reports_owed(void);

/* Replaces what is owed; returns what was. For a command that runs others, whose reports are owed in turn. */
tsr_owed tsr_owe_reports(tsr_owed reports);

/* Writes a report: to stdout; into a device or pipe; or as a file that appears whole, in place of the one that a
 * symlink names. */
tsr_status tsr_write_report(const char *path, const tsr_text *text, tsr_err *err) TSR_WARN_UNUSED;

#endif
