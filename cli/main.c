/* The `tessera` command: picks the subcommand. */
#include "cli/commands/commands.h"

#include "cli/help/help.h"
#include "cli/io/output.h"
#include "cli/runner.h"
#include "common/parallel/threads.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

enum { EXIT_USAGE = 2, EXIT_IO = 4 };

static const tsr_command *const kCommands[] = {
    &tsr_command_quantize,
    &tsr_command_convert,
    &tsr_command_fold,
    &tsr_command_merge,
    &tsr_command_finish,
    &tsr_command_compare_schemes,
    &tsr_command_plan_schemes,
    &tsr_command_sensitivities,
    &tsr_command_calibrate,
    &tsr_command_diff,
    &tsr_command_verify,
    &tsr_command_verify_gemm,
    &tsr_command_verify_epilogue,
    &tsr_command_verify_dequant,
    &tsr_command_verify_mla,
    &tsr_command_verify_forward,
    &tsr_command_verify_manifest,
    &tsr_command_verify_all,
    &tsr_command_inspect,
    &tsr_command_report,
    &tsr_command_batch,
    NULL,
};

static void print_help(void)
{
    tsr_print("tessera %s: offline quantization of LLM checkpoints\n", TSR_VERSION);
    for (size_t i = 0; kCommands[i] != NULL; i++) {
        if (kCommands[i]->topic != NULL)
            tsr_print("\n%s:\n", kCommands[i]->topic);
        if (kCommands[i]->summary != NULL)
            tsr_print("  tessera %-16s %s\n", kCommands[i]->name, kCommands[i]->summary);
    }
    tsr_print("\n'tessera help COMMAND' describes a command; 'tessera COMMAND -h' does in brief.\n"
              "'tessera --no-sandbox COMMAND ...' runs a command without its sandbox.\n\nExit codes:\n");
    for (const tsr_exit_meaning *e = tsr_exit_meanings; e->meaning != NULL; e++)
        tsr_print("%5d  %s\n", e->code, e->meaning);
}

/* Prints what to type first, for a command line without words. */
static void print_start(void)
{
    tsr_print_stderr("tessera %s: offline quantization of LLM checkpoints. To get started:\n"
                     "  tessera quantize MODEL -o OUT           BF16 to FP8; --scheme has NVFP4, MXFP4, int8, int4\n"
                     "  tessera verify OUT --against MODEL      compares every weight in double precision\n"
                     "  tessera inspect OUT --can-load all      the loaders that can load it\n"
                     "'tessera help' lists all commands. MODEL is a directory from Hugging Face.\n",
                     TSR_VERSION);
}

static bool is_any(const char *word, const char *a, const char *b, const char *c)
{
    return strcmp(word, a) == 0 || strcmp(word, b) == 0 || strcmp(word, c) == 0;
}

static int unknown_command(const char *word)
{
    char words[256] = "help", meant[80];
    for (size_t i = 0; kCommands[i] != NULL; i++) {
        if (kCommands[i]->summary != NULL)
            snprintf(words + strlen(words), sizeof words - strlen(words), "|%s", kCommands[i]->name);
    }
    tsr_print_stderr("tessera: unknown command '%s'%s; 'tessera --help' lists them\n", word,
                     tsr_did_you_mean(word, words, meant));
    return EXIT_USAGE;
}

/* Handles the machine-readable forms of `help` and `--version`. Returns -1 if the arguments are none of these. */
static int for_programs(bool asks, int n, char **words)
{
    tsr_err err = {0};
    tsr_status status;
    const bool json = n > 0 && n < 3 && strcmp(words[0], "--json") == 0;
    if (json && asks)
        status = tsr_help_json(kCommands, n > 1 ? words[1] : "-", &err);
    else if (json)
        status = tsr_version_json(n > 1 ? words[1] : "-", &err);
    else if (asks && n > 1 && n < 4 && strcmp(words[0], "--tensors") == 0)
        status = tsr_help_tensors(words[1], n > 2 ? words[2] : "", &err);
    else
        return -1;
    if (status != TSR_OK)
        tsr_print_stderr("tessera: %s\n", err.msg);
    return tsr_exit_code(status);
}

/* Runs a command line that begins with the name of a command. Returns the exit code. */
static int run_command(int argc, char **argv, bool confined)
{
    int n;
    const tsr_command *const command = tsr_command_find(kCommands, argc, argv, &n);
    tsr_command_context context;
    tsr_err err = {0};
    if (command == NULL)
        return unknown_command(argv[0]);
    tsr_status status = tsr_command_begin(&context, command, NULL, &err);
    context.commands = kCommands;
    context.confined = confined;
    if (status == TSR_OK)
        status = tsr_command_run(&context, argc - n, argv + n, &err);
    const int code = tsr_command_end(&context, status, &err);
    tsr_command_close(&context);
    return code;
}

/* Handles `help` and its variants: "help verify gemm" is "verify gemm --help". */
static int help(int argc, char **argv)
{
    char option[] = "--help";
    char *words[3] = {NULL, option, option};
    if (argc > 0 && argc < 3 && strcmp(argv[0], "errors") == 0)
        return tsr_help_errors(argc == 2 ? argv[1] : NULL);
    if (argc == 0) {
        print_help();
        return 0;
    }
    words[0] = argv[0];
    if (argc > 1)
        words[1] = argv[1];
    return run_command(argc > 1 ? 3 : 2, words, false);
}

static int run(int argc, char **argv)
{
    const bool confined = argc < 3 || strcmp(argv[1], "--no-sandbox") != 0;
    argc -= confined ? 1 : 2;
    argv += confined ? 1 : 2;
    if (argc < 1) {
        print_start();
        return EXIT_USAGE;
    }
    const bool asks = is_any(argv[0], "--help", "-h", "help"),
               of_version = is_any(argv[0], "--version", "-V", "version");
    const int code = asks || of_version ? for_programs(asks, argc - 1, argv + 1) : -1;
    if (code >= 0)
        return code;
    if (asks)
        return help(argc - 1, argv + 1);
    if (of_version) {
        tsr_print("tessera %s\n", TSR_VERSION);
        return 0;
    }
    return run_command(argc, argv, confined);
}

int main(int argc, char **argv)
{
    tsr_set_float_mode();
    if (!tsr_output_begin())
        return EXIT_IO;
    /* Every shard of a checkpoint stays open during a job, so the limit of open files is raised. */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    return tsr_output_end(run(argc, argv));
}
