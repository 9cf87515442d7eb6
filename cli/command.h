/* The interface of all commands.
 *
 * A command is a row of constants and functions. The runner (cli/runner.c) calls the functions in the order in which they are
 * declared. Each takes the context of one invocation; the command keeps its own state in `context->job`. */
#ifndef TSR_CLI_COMMAND_H
#define TSR_CLI_COMMAND_H

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
    const tsr_batch_context *batch;     /* NULL: the command is no job of a batch */
    bool confined;                      /* the process may be locked in: not a job of a batch, and not --no-sandbox */
    void *job;                          /* the command's own: job_size bytes, zeroed at first */

    tsr_common_options common; /* defaults until parsing */
    tsr_option *options;       /* the table of the command; 0 in the last name */

    /* After parsing. */
    uint64_t given;                     /* bit i: options[i] is on the command line */
    const char *words[TSR_MAX_SOURCES]; /* words without a dash */
    size_t n_words;
    bool done; /* nothing is left to do: the command line asked for help, or for a list */

    /* After the paths were checked. */
    tsr_io_paths paths;
    tsr_pending_reports pending;
    tsr_made_folders made;
    bool prints;      /* stdout is for people: no --quiet, and no report goes there */
    tsr_ranks *ranks; /* the processes that share the job; NULL: this one alone */

    /* After the run. */
    tsr_text result;           /* the JSON result, where the batch keeps it */
    const tsr_command *failed; /* the command that an error is reported for; NULL: `command` */
    tsr_status status;         /* how the command ended, and the message */
    tsr_err err;
    tsr_arena arena;
} tsr_command_context;

struct tsr_command {
    const char *name;    /* "verify gemm" */
    const char *alias;   /* another second word that selects it: "--manifest"; NULL: there is none */
    const char *summary; /* a line for `tessera help`; NULL: a check of `verify` */
    const char *help;    /* the text before the options */
    const char *schema;  /* name of the schema of the JSON result */
    const char *kind;    /* the member "check" of the result, where several commands share a schema; NULL: none */
    unsigned takes;      /* common options: TSR_TAKES_* */
    size_t most_words;   /* how many words without a dash it takes */
    size_t job_size;
    bool makes_plan; /* `job` begins with a tsr_plan_job (cli/plan_job.h) */

    /* Sets defaults that are not 0. NULL: there are none. */
    void (*set_defaults)(tsr_command_context *context);
    /* Appends the command's own options. NULL: it has none. */
    void (*add_options)(tsr_command_context *context, tsr_option *options);
    /* Rejects words before they are parsed. NULL: none. */
    tsr_status (*check_words)(int argc, char **argv, tsr_err *err);
    /* Reads the values of the options, and rejects what makes no sense together. */
    tsr_status (*check)(tsr_command_context *context, tsr_err *err);
    /* Lists what the command reads and writes, but for --json, --junit and --progress-file. */
    void (*list_paths)(const tsr_command_context *context, tsr_io_paths *paths);
    /* Opens what is read, and finds out what there is to do. NULL: nothing has to be opened. */
    tsr_status (*open)(tsr_command_context *context, tsr_err *err);
    /* Does the work, and shows its progress on the terminal. */
    tsr_status (*run)(tsr_command_context *context, tsr_terminal *terminal, tsr_err *err);
    /* Prints the result for people. NULL: `run` has done so. */
    tsr_status (*print)(tsr_command_context *context, tsr_err *err);
    /* Appends the result as a JSON document that ends in a line feed. NULL: `run` has written all reports. */
    void (*write_json)(const tsr_command_context *context, tsr_text *text);
    /* Returns what is wrong although there is a result, after it was written. NULL: nothing ever is. */
    tsr_status (*conclude)(tsr_command_context *context, tsr_err *err);
    /* Returns the exit code of a command that ended without an error. NULL: it is 0. */
    int (*exit_code)(const tsr_command_context *context);
    /* Frees what the job holds, whatever has been done with it. NULL: it holds nothing. */
    void (*close)(tsr_command_context *context);

    /* For a kind of `verify` that `verify all` runs. */

    /* Checks that the checkpoint has something to judge, before `open`. TSR_E_NOT_APPLICABLE: why it has not. NULL: it has. */
    tsr_status (*applies)(tsr_command_context *context, tsr_err *err);
    /* Appends what was judged, in a few words: "34 tensors". */
    void (*summarize)(const tsr_command_context *context, tsr_text *text);
};

/* Returns the command that argv begins with, and how many words name it; NULL: there is none. */
const tsr_command *tsr_command_find(const tsr_command *const *commands, int argc, char **argv, int *n_words);

/* Begins an invocation in *context: sets defaults and fills the table of options, which points into *context.
 * `parent` (may be NULL) gives `commands`. */
tsr_status tsr_command_begin(tsr_command_context *context, const tsr_command *command,
                             const tsr_command_context *parent, tsr_err *err) TSR_WARN_UNUSED;

/* Parses a command line without the words that name the command, and lists its paths. argv outlives the context. */
tsr_status tsr_command_parse(tsr_command_context *context, int argc, char **argv, tsr_err *err) TSR_WARN_UNUSED;

/* Frees all that the context holds. */
void tsr_command_close(tsr_command_context *context);

/* Returns true if --json, --junit or the batch wants the result. */
bool tsr_command_has_reports(const tsr_command_context *context);

/* Prints "tessera: TEXT", with the name of the batch's job before the text, on stderr. */
void tsr_command_warn(const tsr_command_context *context, const char *text);

#endif
