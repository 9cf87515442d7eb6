/* The `tessera` command: picks the subcommand. */
#include "cli/commands.h"

#include "cli/help.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/sandbox.h"
#include "cli/version.h"
#include "common/threads.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { EXIT_USAGE = 2, EXIT_IO = 4 };

static const tsr_command kCommands[] = {
    {"quantize", "a BF16 checkpoint to block FP8, int8 or int4", tsr_cmd_quantize, NULL},
    {"convert", "dtypes, names, shards and layouts of a checkpoint", tsr_cmd_convert, NULL},
    {"finish", "puts together what shards of quantize or convert have made", tsr_cmd_finish, NULL},
    {"compare-schemes", "what each scheme would cost a model, in one table", tsr_cmd_compare_schemes, NULL},
    {"plan-schemes", "the scheme for each weight that a budget of bytes allows", tsr_cmd_plan_schemes, NULL},
    {"diff", "two checkpoints, tensor by tensor, by value", tsr_cmd_diff, NULL},
    {"verify", "a checkpoint against the one that it was made from; kernels and whole passes on it", tsr_cmd_verify,
     TSR_VERIFY_CHECKS},
    {"inspect", "what is in a checkpoint or tensor, and who can load it", tsr_cmd_inspect, NULL},
    {"report", "results of these commands for people and for CI: a summary, tables, charts", tsr_cmd_report, NULL},
    {"batch", "many of these commands in one run, from a file", tsr_cmd_batch, NULL},
};

enum { N_COMMANDS = sizeof kCommands / sizeof *kCommands };

tsr_command_fn *tsr_find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(name, kCommands[i].name) == 0)
            return kCommands[i].run;
    }
    return NULL;
}

static void print_help(void (*print)(const char *fmt, ...))
{
    print("tessera %s: offline quantization of LLM checkpoints\n\n", TSR_VERSION);
    for (size_t i = 0; i < N_COMMANDS; i++)
        print("  tessera %-16s %s\n", kCommands[i].name, kCommands[i].help);
    print("\n'tessera help COMMAND' tells more; 'tessera --no-sandbox COMMAND ...' runs one that is not locked "
          "in.\nExit codes: ");
    for (const tsr_exit_meaning *e = tsr_exit_meanings; e->meaning != NULL; e++) {
        print("%d %s", e->code, e->meaning);
        if (e[1].meaning != NULL)
            print(e[2].meaning == NULL ? ",\n" : ", ");
    }
    print(" (docs/exit-codes.md).\n");
}

static bool is_any(const char *word, const char *a, const char *b, const char *c)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0 || strcmp(word, c) == 0;
}

static int unknown_command(const char *word)
{
    char words[256] = "help", meant[80];
    for (size_t i = 0; i < N_COMMANDS; i++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "|%s", kCommands[i].name);
    tsr_tell("tessera: unknown command '%s'%s; 'tessera --help' lists them\n", word,
             tsr_did_you_mean(word, words, meant));
    return EXIT_USAGE;
}

/* What programs ask: the words behind `help` or `--version`. -1: it is not for them. */
static int for_programs(bool asks, int n, char **words)
{
    tsr_err err = {{0}};
    tsr_status status;
    const bool json = n > 0 && n < 3 && strcmp(words[0], "--json") == 0;
    if (json && asks)
        status = tsr_help_json(kCommands, N_COMMANDS, n > 1 ? words[1] : "-", &err);
    else if (json)
        status = tsr_version_json(n > 1 ? words[1] : "-", &err);
    else if (asks && n > 1 && n < 4 && strcmp(words[0], "--tensors") == 0)
        status = tsr_help_tensors(words[1], n > 2 ? words[2] : "", &err);
    else
        return -1;
    if (status != TSR_OK)
        tsr_tell("tessera: %s\n", err.msg);
    return tsr_exit_code(status);
}

static int run(int argc, char **argv)
{
    char help[] = "--help";
    if (argc < 2) {
        print_help(tsr_tell);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--no-sandbox") == 0 && argc > 2) {
        tsr_sandbox_leave_out();
        return run(argc - 1, argv + 1);
    }
    const bool asks = is_any(argv[1], "--help", "-h", "help"),
               of_version = is_any(argv[1], "--version", "-V", "version");
    const int code = asks || of_version ? for_programs(asks, argc - 2, argv + 2) : -1;
    if (code >= 0)
        return code;
    if (asks && argc == 2) {
        print_help(tsr_print);
        return 0;
    }
    if (of_version) {
        tsr_print("tessera %s\n", TSR_VERSION);
        return 0;
    }
    /* "help verify gemm" is "verify gemm --help". */
    const char *const name = argv[asks ? 2 : 1];
    char *words[3] = {asks && argc > 3 ? argv[3] : help, help, NULL};
    tsr_command_fn *const command = tsr_find_command(name);
    if (command == NULL)
        return unknown_command(name);
    return asks ? command(argc > 3 ? 2 : 1, words) : command(argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    tsr_set_float_mode();
    if (!tsr_output_begin())
        return EXIT_IO;
    /* Every shard of a checkpoint stays open while a job runs, so as many files may be open as the system allows. */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    const int code = run(argc, argv);
    tsr_sandbox_end();
    return tsr_output_end(code);
}
