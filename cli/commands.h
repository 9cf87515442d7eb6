/* The subcommands: each takes the arguments that follow its name, and returns an exit code. */
#ifndef TSR_CLI_COMMANDS_H
#define TSR_CLI_COMMANDS_H

#include <stdbool.h>
#include <stddef.h>

int tsr_cmd_compare_schemes(int argc, char **argv);
int tsr_cmd_plan_schemes(int argc, char **argv);
int tsr_cmd_diff(int argc, char **argv);
int tsr_cmd_quantize(int argc, char **argv);
int tsr_cmd_convert(int argc, char **argv);
int tsr_cmd_finish(int argc, char **argv);
int tsr_cmd_verify(int argc, char **argv);
int tsr_cmd_inspect(int argc, char **argv);
int tsr_cmd_report(int argc, char **argv);
int tsr_cmd_batch(int argc, char **argv);

/* The command of this name; NULL: there is none. */
typedef int tsr_command_fn(int argc, char **argv);
tsr_command_fn *tsr_find_command(const char *name);

/* A row of the table of commands. */
typedef struct tsr_command {
    const char *name, *help;
    tsr_command_fn *run;
    const char *checks; /* words behind the name that have a table of options of their own: "a|b"; NULL: none */
} tsr_command;

/* Whether the word after `verify` is "gemm" or another check of kernels; and that check, with the word as argv[0]. */
#define TSR_VERIFY_CHECKS "gemm|epilogue|dequant|mla|forward|manifest|all"
bool tsr_is_kernel_check(const char *word);
int tsr_cmd_verify_kernels(int argc, char **argv);
int tsr_cmd_verify_forward(int argc, char **argv);
int tsr_cmd_verify_manifest(int argc, char **argv);
int tsr_cmd_verify_all(int argc, char **argv);

#endif
