/* The interface of all commands.
 *
 * A command is a row of constants and functions. The runner (cli/runner.c) calls the functions in the order in which
 * they are declared. Each takes the context of one invocation; the command keeps its own state in `context->job`. */
#pragma once

#include "cli/io/batch_context.h"
#include "cli/io/common_options.h"
#include "cli/io/io_paths.h"
#include "cli/io/sandbox.h"
#include "cli/io/terminal.h"
#include "common/arena.h"
#include "common/cluster/ranks.h"

typedef struct tsr_command tsr_command;

/* One invocation of a command. */
typedef struct tsr_command_context {
    const tsr_command *command;
    const tsr_command *const *commands; /* all commands; NULL ends them */
    const tsr_batch_context *batch;     /* NULL: not a job of a batch */
    bool confined;                      /* the process may be sandboxed: not a job of a batch, and not --no-sandbox */
    void *job;                          /* state of the command: job_size bytes, zeroed */

    tsr_common_options common; /* defaults until parsing */
    tsr_option *options;       /* option table of the command; a NULL name ends it */

    /* After parsing. */
    const char *schema;                 /* schema of the result: the command's own, unless `check` sets another */
    uint64_t given;                     /* bit i: options[i] is on the command line */
    const char *words[TSR_MAX_SOURCES]; /* words without a dash */
    size_t n_words;
    bool done; /* nothing is left to do: the command line requested help or a list */

    /* Set after the paths were checked. */
    tsr_io_paths paths;
    tsr_pending_reports pending;
    tsr_made_folders made;
    bool prints;      /* stdout is for text: no --quiet, and no report goes there */
    tsr_ranks *ranks; /* the processes that share the job; NULL: only this one */

    /* After the run. */
    tsr_text result;           /* the JSON result, if the batch keeps it */
    const tsr_command *failed; /* the command for which an error is reported; NULL: `command` */
    tsr_status status;         /* how the command ended, and the message */
    tsr_err err;
    tsr_arena arena;
} tsr_command_context;

struct tsr_command {
    const char *name;    /* "verify gemm" */
    const char *alias;   /* an alternative second word that selects it: "--manifest"; NULL: none */
    const char *topic;   /* heading before the command in `tessera help`; NULL: none */
    const char *summary; /* a line for `tessera help`; NULL: a check of `verify` */
    const char *help;    /* the text before the options */
    const char *schema;  /* name of the schema of the JSON result */
    const char *kind;    /* the member "check" of the result, if several commands share a schema; NULL: none */
    unsigned takes;      /* common options: TSR_TAKES_* */
    size_t most_words;   /* most words without a dash */
    size_t job_size;
    bool makes_plan; /* `job` begins with a tsr_plan_job (cli/plan_job.h) */

    /* Sets defaults that are not 0. May be NULL. */
    void (*set_defaults)(tsr_command_context *context);
    /* Appends the command's own options. May be NULL. */
    void (*add_options)(tsr_command_context *context, tsr_option *options);
    /* Rejects words before they are parsed. May be NULL. */
    tsr_status (*check_words)(int argc, char **argv, tsr_err *err);
    /* Reads the values of the options and rejects invalid combinations. */
    tsr_status (*check)(tsr_command_context *context, tsr_err *err);
    /* Lists the inputs and outputs, except --json, --junit and --progress-file. */
    void (*list_paths)(const tsr_command_context *context, tsr_io_paths *paths);
    /* Opens the inputs and plans the work. May be NULL. */
    tsr_status (*open)(tsr_command_context *context, tsr_err *err);
    /* Does the work and shows its progress on the terminal. */
    tsr_status (*run)(tsr_command_context *context, tsr_terminal *terminal, tsr_err *err);
    /* Prints the result as text. NULL: `run` has done so. */
    tsr_status (*print)(tsr_command_context *context, tsr_err *err);
    /* Appends the result as members of the JSON object that is open, after its schema and version. NULL: `run` has
     * written all reports. */
    void (*write_json)(const tsr_command_context *context, tsr_text *text);
    /* Called after the result was written: returns the error if the result has one. May be NULL. */
    tsr_status (*conclude)(tsr_command_context *context, tsr_err *err);
    /* Returns the exit code of a command that ended without an error. NULL: 0. */
    int (*exit_code)(const tsr_command_context *context);
    /* Frees the job's memory in any state. May be NULL. */
    void (*close)(tsr_command_context *context);

    /* Used for the kinds of `verify` that `verify all` runs. */

    /* Checks before `open` that the checkpoint has something to judge. TSR_E_NOT_APPLICABLE: it does not, with the
     * reason. NULL: it always has. */
    tsr_status (*applies)(tsr_command_context *context, tsr_err *err);
    /* Appends a short description of what was judged: "34 tensors". */
    void (*summarize)(const tsr_command_context *context, tsr_text *text);
};

/* The fields of a command that is not made of a plan: how many words it takes, the common options, and the type of its
 * job. Its functions have the names of the fields, and the text is kHelp. */
#define TSR_COMMAND(words, common, job) .most_words = words, .takes = common, .run = run, TSR_COMMAND_FUNCTIONS(job)
#define TSR_COMMAND_FUNCTIONS(job)                                                                                \
    .help = kHelp, .job_size = sizeof(job), .add_options = add_options, .check = check, .list_paths = list_paths, \
    .close = close_job

/* Returns the command that argv begins with, and the number of words that name it; NULL: none. */
const tsr_command *tsr_command_find(const tsr_command *const *commands, int argc, char **argv, int *n_words);

/* Begins an invocation in *context: sets defaults and fills the option table, which points into *context. `parent` (may
 * be NULL) provides `commands`. */
tsr_status tsr_command_begin(tsr_command_context *context, const tsr_command *command,
                             const tsr_command_context *parent, tsr_err *err);

/* Parses a command line without the words that name the command, and lists its paths. argv must outlive the context. */
tsr_status tsr_command_parse(tsr_command_context *context, int argc, char **argv, tsr_err *err);

/* Frees the memory of the context. */
void tsr_command_close(tsr_command_context *context);

/* Returns true if --json, --junit or the batch needs the result. */
bool tsr_command_has_reports(const tsr_command_context *context);

/* Prints "tessera: TEXT", with the name of the batch's job before the text, on stderr. */
void tsr_command_warn(const tsr_command_context *context, const char *text);
