/* The `tessera` command: picks the subcommand. */
#include "cli/commands.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static const struct {
    const char *name, *help;
    int (*run)(int argc, char **argv);
} kCommands[] = {
    {"quantize", "a BF16 checkpoint to block FP8, int8 or int4", tsr_cmd_quantize},
    {"convert", "dtypes, names, shards and layouts of a checkpoint", tsr_cmd_convert},
    {"compare-schemes", "what each scheme would cost a model, in one table", tsr_cmd_compare_schemes},
    {"diff", "two checkpoints, tensor by tensor, by value", tsr_cmd_diff},
    {"verify", "a checkpoint against the one that it was made from; kernels and whole passes on it", tsr_cmd_verify},
    {"inspect", "what is in a checkpoint or tensor, and who can load it", tsr_cmd_inspect},
};

static void print_help(FILE *out)
{
    fprintf(out, "tessera %s: offline quantization of LLM checkpoints\n\n", TSR_VERSION);
    for (size_t i = 0; i < sizeof kCommands / sizeof *kCommands; i++)
        fprintf(out, "  tessera %-16s %s\n", kCommands[i].name, kCommands[i].help);
    fprintf(out, "\n'tessera COMMAND --help' tells more.\n"
                 "Exit codes: 0 fine, 1 a check fell short, 2 usage, 3 bad input, 4 I/O or memory, 5 no device, "
                 "130 interrupted.\n");
}

int main(int argc, char **argv)
{
    /* Every shard of a checkpoint stays open while a job runs. */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tessera %s\n", TSR_VERSION);
        return 0;
    }
    for (size_t i = 0; i < sizeof kCommands / sizeof *kCommands; i++) {
        if (strcmp(argv[1], kCommands[i].name) == 0)
            return kCommands[i].run(argc - 2, argv + 2);
    }
    fprintf(stderr, "tessera: unknown command '%s'; 'tessera --help' lists them\n", argv[1]);
    return 2;
}
