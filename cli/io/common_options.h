/* Options of many commands, declared once, and the help generated from an option table. */
#pragma once

#include "common/options.h"
#include "common/text.h"

/* Progress reports for other programs: see cli/io/terminal.h. */
typedef struct tsr_progress_options {
    int jsonl;        /* 1: lines of JSON on stderr instead of text */
    const char *file; /* NULL: none */
} tsr_progress_options;

/* The common options that a command accepts. Every command also has --json, --junit, --quiet and --help. */
enum {
    TSR_TAKES_IGNORE_FILE = 1 << 0,
    TSR_TAKES_SOURCE_BLOCK = 1 << 1,
    TSR_TAKES_THREADS = 1 << 2,
    TSR_TAKES_MEMORY = 1 << 3,
    TSR_TAKES_CPUMASK = 1 << 4,
    TSR_TAKES_MPI = 1 << 5,
    TSR_TAKES_PROGRESS = 1 << 6,
};

typedef struct tsr_common_options {
    const char *json, *junit; /* paths; NULL: not given */
    tsr_list ignore;          /* globs of --ignore-file */
    const char *source_block; /* as given */
    tsr_block block;          /* the value of --source-block; 0x0: not given */
    uint64_t threads, memory, cpumask;
    tsr_progress_options progress;
    bool mpi, quiet, help;
    bool short_help;
} tsr_common_options;

/* Returns the defaults of this machine. */
tsr_common_options tsr_common_options_defaults(void);

/* Appends the options of `takes` (TSR_TAKES_*), and those that every command has, to a table. */
void tsr_common_options_append(tsr_common_options *common, unsigned takes, tsr_option *options);

/* Checks the values after parsing. TSR_E_USAGE: no threads, or an invalid block. */
tsr_status tsr_common_options_check(tsr_common_options *common, tsr_err *err);

/* Prints the help of a command: its text, then its options, except those without a help text. */
void tsr_options_print_help(const char *text, const tsr_option *options);

/* Prints the usage, the first paragraph and the first examples of the text, and the names of the options. `name` is
 * that of the command. */
void tsr_options_print_short_help(const char *name, const char *text, const tsr_option *options);

/* Adds the members "text" and "options" to the open JSON object. */
void tsr_options_json(tsr_text *to, const char *text, const tsr_option *options);
