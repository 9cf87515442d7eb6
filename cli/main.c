/* The `tessera` command: picks the subcommand. */
#include "cli/commands.h"

#include "cli/options.h"
#include "cli/output.h"
#include "common/threads.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { EXIT_USAGE = 2, EXIT_IO = 4 };

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} kCommands[] = {
    {"quantize", "a BF16 checkpoint to block FP8, int8 or int4", tsr_cmd_quantize},
    {"convert", "dtypes, names, shards and layouts of a checkpoint", tsr_cmd_convert},
    {"finish", "puts together what shards of quantize or convert have made", tsr_cmd_finish},
    {"compare-schemes", "what each scheme would cost a model, in one table", tsr_cmd_compare_schemes},
    {"plan-schemes", "the scheme for each weight that a budget of bytes allows", tsr_cmd_plan_schemes},
    {"diff", "two checkpoints, tensor by tensor, by value", tsr_cmd_diff},
    {"verify", "a checkpoint against the one that it was made from; kernels and whole passes on it", tsr_cmd_verify},
    {"inspect", "what is in a checkpoint or tensor, and who can load it", tsr_cmd_inspect},
    {"report", "results of these commands for people and for CI: a summary, tables, charts", tsr_cmd_report},
    {"batch", "many of these commands in one run, from a file", tsr_cmd_batch},
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
    print("\n'tessera help COMMAND' tells more.\n"
          "Exit codes: 0 fine, 1 a check fell short, 2 usage, 3 bad input, 4 I/O or memory, 5 no device, "
          "130 interrupted,\n141 the reader of stdout left (docs/exit-codes.md).\n");
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

static int run(int argc, char **argv)
{
    char help[] = "--help";
    if (argc < 2) {
        print_help(tsr_tell);
        return EXIT_USAGE;
    }
    const bool asks = is_any(argv[1], "--help", "-h", "help");
    if (asks && argc == 2) {
        print_help(tsr_print);
        return 0;
    }
    if (is_any(argv[1], "--version", "-V", "version")) {
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
    return tsr_output_end(run(argc, argv));
}
