/* Owns the invented checkpoints of the tests: whole Hugging Face directories, a function of kind, size and seed alone.
 * Shares no code with Tessera, so that a misreading of the format there cannot hide here.
 *
 *     make_checkpoint KIND -o DIR [--seed S] [--scale tiny|half|small] [--weights extreme|ordinary] [--bytes N[K|M|G]]
 *                     [--tensors N]
 *
 * deepseek-v3   MLA with a ragged kv_a_proj, a dense layer, MoE layers, an MTP layer, 3 shards. --scale sets the size:
 * 2, 75
 *               or 150 MB.
 *               Expert 0's gate_proj has blocks of zeros, its up_proj outliers, its down_proj blocks of subnormals,
 *               and expert 1's gate_proj blocks next to the largest finite BF16: no pass in BF16 gets through that one.
 *               With --weights ordinary all are as training leaves them.
 * llama, qwen3-moe   tiny, one file, loadable by transformers
 * fused-experts  experts stacked in tensors of rank 3
 * bench         Llama's shapes, --bytes in 5 shards (default 4G); one random pool, written at shifting offsets
 * giant         one tensor of --bytes (default 6G), sparse but for a few rows
 * many          --tensors tensors of [128, 128] (default 50000), sparse but for every thousandth, 5 shards
 */
#include "tests/make/make_checkpoint.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("make_checkpoint: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void *allocate(size_t size)
{
    void *memory = malloc(size);
    if (!memory) {
        die("out of memory");
    }
    return memory;
}

static uint64_t parse_number(const char *text)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    const char *unit = *end ? strchr("KMG", *end) : NULL;
    if (unit) {
        value <<= 10 * (*unit == 'K' ? 1 : *unit == 'M' ? 2 : 3);
        end++;
    }
    if (errno || end == text || *end || *text == '-') {
        die("'%s' is not a number", text);
    }
    return value;
}

static enum scale parse_scale(const char *text)
{
    static const char *const names[] = {[SCALE_SMALL] = "small", [SCALE_HALF] = "half", [SCALE_TINY] = "tiny"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(text, names[i]) == 0) {
            return (enum scale)i;
        }
    }
    die("--scale is tiny, half or small");
}

/* Returns true for ordinary weights. */
static bool parse_weights(const char *text)
{
    const bool ordinary = strcmp(text, "ordinary") == 0;
    if (!ordinary && strcmp(text, "extreme") != 0) {
        die("--weights is extreme or ordinary");
    }
    return ordinary;
}

static struct options parse_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"seed", required_argument, NULL, 's'},    {"scale", required_argument, NULL, 'c'},
        {"weights", required_argument, NULL, 'w'}, {"bytes", required_argument, NULL, 'b'},
        {"tensors", required_argument, NULL, 't'}, {NULL, 0, NULL, 0}};
    struct options options = {.seed = 1, .tensors = 50000};
    for (int option; (option = getopt_long(argc, argv, "o:", names, NULL)) != -1;) {
        switch (option) {
        case 'o':
            options.directory = optarg;
            break;
        case 's':
            options.seed = parse_number(optarg);
            break;
        case 'c':
            options.scale = parse_scale(optarg);
            break;
        case 'w':
            options.ordinary = parse_weights(optarg);
            break;
        case 'b':
            options.bytes = parse_number(optarg);
            break;
        case 't':
            options.tensors = parse_number(optarg);
            break;
        default:
            exit(2);
        }
    }
    if (!options.directory || optind + 1 != argc || options.tensors < MAX_SHARDS) {
        die("usage: make_checkpoint KIND -o DIR [--seed S] [--scale tiny|half|small] [--weights extreme|ordinary] "
            "[--bytes N[K|M|G]] [--tensors N]");
    }
    return options;
}

int main(int argc, char **argv)
{
    const struct options options = parse_options(argc, argv);
    if (mkdir(options.directory, 0777) && errno != EEXIST) {
        die("%s: %s", options.directory, strerror(errno));
    }
    for (size_t i = 0; kinds[i].name != NULL; i++) {
        if (strcmp(kinds[i].name, argv[optind]) == 0) {
            struct plan plan = {0};
            kinds[i].make(&plan, &options);
            for (size_t t = 0; t < plan.count; t++) {
                free(plan.tensors[t].name);
            }
            free(plan.tensors);
            free(plan.pool);
            return 0;
        }
    }
    die("no kind '%s'", argv[optind]);
}
