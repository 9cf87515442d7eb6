/* The tables of the command line: what many commands have in common, and the help that a table gives. */
#ifndef TSR_CLI_OPTIONS_H
#define TSR_CLI_OPTIONS_H

#include "common/options.h"
#include "common/text.h"

/* How programs are told how far a job is: see cli/terminal.h. */
typedef struct tsr_progress_options {
    int jsonl;        /* 1: lines of JSON on stderr instead of text */
    const char *file; /* NULL: none */
} tsr_progress_options;

/* The entries of a table that fill it. */
#define TSR_PROGRESS_OPTIONS(to)                                                                                \
    {"--progress", TSR_OPT_CHOICE, &(to)->jsonl, "text|jsonl",                                                  \
     "on stderr: for people, or a JSON object a line (text)"},                                                  \
    {                                                                                                           \
        "--progress-file", TSR_OPT_TEXT, &(to)->file, "FILE", "the same objects into a file, pipe or /dev/fd/N" \
    }

/* The options that `verify` ends in whenever it runs something. */
typedef struct tsr_check_options {
    uint64_t threads;
    const char *json, *junit;
    tsr_progress_options progress;
    bool quiet, help;
} tsr_check_options;

void tsr_options_append_check(tsr_option *options, tsr_check_options *check);

/* Prints `text` and the table to stdout. */
void tsr_options_help(const char *text, const tsr_option *options);

/* From here on tsr_options_help prints nothing, and adds the members "text" and "options" to the JSON object that is open in `text`;
 * NULL: it prints again. */
void tsr_options_gather_help(tsr_text *text);

#endif
