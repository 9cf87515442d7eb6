/* What every kind of `verify` is to the commands that run it: one by itself, and `verify all` one after another.
 *
 * A kind works on a job of its own, which its options fill: tsr_verify_weights, tsr_verify_kernels, tsr_verify_forward. */
#ifndef TSR_CLI_VERIFY_KINDS_H
#define TSR_CLI_VERIFY_KINDS_H

#include "cli/options.h"
#include "cli/terminal.h"
#include "common/text.h"

typedef struct tsr_verify_kind {
    /* Whether the checkpoint has anything for this kind, before `open`. TSR_E_NOT_APPLICABLE: why it has not. NULL: it
     * always has. */
    tsr_status (*applies)(void *job, tsr_err *err);
    /* Opens what is read, but for what `applies` has opened. TSR_E_USAGE: the options make no sense with it. */
    tsr_status (*open)(void *job, tsr_err *err);
    /* Judges, and shows on the terminal how far it is. TSR_E_NOT_APPLICABLE: nothing could be judged, nor ever could. */
    tsr_status (*run)(void *job, tsr_terminal *terminal, tsr_err *err);
    /* Whether all was within the limits, after `run`. */
    bool (*fine)(const void *job);
    /* The result on stdout, for people. */
    void (*print)(const void *job);
    /* The result as a document of JSON, a line end behind it. */
    void (*write_json)(tsr_text *text, const void *job);
    /* What was judged, in a few words: "34 tensors". */
    void (*tell_judged)(tsr_text *text, const void *job);
    /* What was left out of it, and why; NULL: nothing was. */
    const char *(*left_out)(const void *job);
    /* Frees what a job holds, whatever has been done with it. */
    void (*close)(void *job);
} tsr_verify_kind;

/* Runs a kind by itself: text on stdout, --json, --junit. The job is left for the caller to close. */
tsr_status tsr_verify_one(const tsr_verify_kind *kind, void *job, const tsr_check_options *last,
                          tsr_err *err) TSR_WARN_UNUSED;

#endif
