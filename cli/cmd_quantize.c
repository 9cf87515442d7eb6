/* tessera quantize: options, the plan printed, the job run, the result told. */
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/terminal.h"
#include "convert/quantize_plan.h"
#include "formats/file.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define U64(x) ((unsigned long long)(x))

/* Healthy block FP8 sits at 31.5 +- 0.2 dB whatever the distribution; below this something is wrong. */
static const double kLowSqnr = 30;

enum { WORST = 10 };

typedef struct arguments {
    const char *src, *dst, *block, *json;
    int scheme, scale_fmt, scales, dialect;
    tsr_list include, exclude, ignore;
    uint64_t max_shard_bytes, threads, cpumask, memory;
    bool dry_run, force, quiet, help;
} arguments;

static const char kHelp[] =
    "tessera quantize SRC -o DST [options]\n\n"
    "Quantizes a checkpoint (BF16, F16 or F32 safetensors) to e4m3 with one scale per 128x128 block, the format of\n"
    "DeepSeek-V3 that vLLM, SGLang, transformers and DeepSeek's own code load. SRC is a Hugging Face directory or one\n"
    ".safetensors file; DST is a directory. Needs no GPU. A run that was killed is resumed by the same command.\n\n"
    "Examples:\n"
    "  tessera quantize Llama-3.1-8B -o Llama-3.1-8B-FP8\n"
    "  tessera quantize DeepSeek-V3-BF16 -o DeepSeek-V3-FP8 --scale-fmt ue8m0     for Blackwell\n"
    "  tessera quantize model -o out --dry-run                                    what would be done, and why\n"
    "  tessera quantize model -o out --exclude '*.kv_b_proj.*' --scales mse\n"
    "  tessera quantize model -o out --dialect compressed-tensors                 vLLM's llm-compressor format\n\n"
    "Options:\n";

static tsr_status parse(int argc, char **argv, arguments *a, tsr_err *err)
{
    const tsr_option options[] = {
        {"-o", TSR_OPT_TEXT, &a->dst, "DST", "the output directory; made if need be"},
        {"--scheme", TSR_OPT_CHOICE, &a->scheme, "fp8-block", "what to quantize to"},
        {"--block", TSR_OPT_TEXT, &a->block, "RxC", "rows and columns of a block (128x128)"},
        {"--scale-fmt", TSR_OPT_CHOICE, &a->scale_fmt, "f32|ue8m0",
         "scales as they come, or rounded up to powers of two (f32)"},
        {"--scales", TSR_OPT_CHOICE, &a->scales, "amax|mse",
         "amax/448, or the scale of least squared error: slower, never worse (amax)"},
        {"--dialect", TSR_OPT_CHOICE, &a->dialect, "deepseek|compressed-tensors",
         "names of the scales and form of the configuration (deepseek)"},
        {"--include", TSR_OPT_LIST, &a->include, "GLOB", "quantize these tensors too; may be repeated"},
        {"--exclude", TSR_OPT_LIST, &a->exclude, "GLOB", "keep these tensors as they are; may be repeated"},
        {"--ignore-file", TSR_OPT_LIST, &a->ignore, "GLOB", "treat these files of SRC as absent; may be repeated"},
        {"--max-shard-size", TSR_OPT_SIZE, &a->max_shard_bytes, "SIZE", "of tensor data in one output file (5GB)"},
        {"--threads", TSR_OPT_COUNT, &a->threads, "N", "workers (all CPUs); the output does not depend on it"},
        {"--cpumask", TSR_OPT_COUNT, &a->cpumask, "MASK",
         "instruction sets allowed: 1 AVX2, 2 AVX-512, 4 VBMI; 0 is scalar (all); same bits with any"},
        {"--memory", TSR_OPT_SIZE, &a->memory, "SIZE", "what the job may use at most (2GiB)"},
        {"--dry-run", TSR_OPT_FLAG, &a->dry_run, NULL, "print the plan: every tensor with its reason, and the sums"},
        {"--force", TSR_OPT_FLAG, &a->force, NULL, "start over, and write into DST whatever it holds"},
        {"--json", TSR_OPT_TEXT, &a->json, "FILE", "the result as JSON ('-': stdout)"},
        {"--quiet", TSR_OPT_FLAG, &a->quiet, NULL, "no progress, no summary"},
        {"--help", TSR_OPT_FLAG, &a->help, NULL, "this text"},
    };
    size_t n;
    const size_t n_options = sizeof options / sizeof *options;
    TSR_TRY(tsr_options_parse(options, n_options, argc, argv, &a->src, 1, &n, err));
    if (a->help) {
        fputs(kHelp, stdout);
        tsr_options_help(options, n_options);
        return TSR_OK;
    }
    if (a->src == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera quantize SRC -o DST");
    if (a->dst == NULL && !a->dry_run)
        return tsr_fail(err, TSR_E_USAGE, "where to? tessera quantize SRC -o DST");
    if (a->threads == 0)
        return tsr_fail(err, TSR_E_USAGE, "--threads: at least 1");
    if (a->max_shard_bytes == 0)
        return tsr_fail(err, TSR_E_USAGE, "--max-shard-size: at least 1 byte");
    return TSR_OK;
}

static tsr_status parse_block(const char *text, tsr_fp8_block *block, tsr_err *err)
{
    unsigned rows, cols;
    char rest;
    if (sscanf(text, "%ux%u%c", &rows, &cols, &rest) != 2 || rows == 0 || cols == 0 || rows > 4096 || cols > 4096)
        return tsr_fail(err, TSR_E_USAGE, "--block: '%s' is not ROWSxCOLUMNS, each from 1 to 4096", text);
    block->block_rows = rows;
    block->block_cols = cols;
    return TSR_OK;
}

/* The real path of `path`, or of the nearest folder above it that exists. */
static bool resolve(const char *path, char real[PATH_MAX])
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    for (;;) {
        if (realpath(copy[0] == '\0' ? "." : copy, real) != NULL)
            return true;
        char *const slash = strrchr(copy, '/');
        if (slash == copy || copy[0] == '\0')
            return false;
        copy[slash == NULL ? 0 : slash - copy] = '\0';
    }
}

/* Writing a checkpoint into its own source would destroy it. A DST yet to be made may still lie above SRC. */
static tsr_status check_apart(const char *src, const char *dst, tsr_err *err)
{
    char from[PATH_MAX], to[PATH_MAX];
    if (realpath(src, from) == NULL || !resolve(dst, to))
        return TSR_OK;
    const bool exists = access(dst, F_OK) == 0;
    const size_t n = strlen(from), m = strlen(to);
    const bool nested = (exists && strncmp(from, to, m) == 0 && (from[m] == '/' || from[m] == '\0')) ||
                        (strncmp(from, to, n) == 0 && (to[n] == '/' || to[n] == '\0'));
    return nested ? tsr_fail(err, TSR_E_USAGE, "%s and %s: one lies in the other; the source must stay untouched", src,
                             dst)
                  : TSR_OK;
}

/* ---- telling ---- */

static void count_actions(const tsr_plan *plan, size_t *quantized, size_t *copied)
{
    *quantized = *copied = 0;
    for (size_t i = 0; i < plan->n_notes; i++)
        *(strcmp(plan->notes[i].action, "quantize") == 0 ? quantized : copied) += 1;
}

static void print_sums(const tsr_plan *plan, FILE *out)
{
    char in[32], written[32];
    size_t quantized, copied;
    count_actions(plan, &quantized, &copied);
    fprintf(out, "%zu tensors: %zu quantized, %zu copied, 0 dropped; %zu files, %s in, %s out\n", plan->n_notes,
            quantized, copied, plan->n_files, tsr_bytes_text((double)plan->bytes_in, in),
            tsr_bytes_text((double)plan->bytes_out, written));
}

static void print_plan(const tsr_plan *plan, const arguments *a)
{
    for (size_t i = 0; i < plan->n_notes; i++) {
        const tsr_plan_note *const n = &plan->notes[i];
        char shape[192];
        printf("%-8s %-5s %-18s %s  (%s)\n", n->action, tsr_dtype_name(n->source->dtype),
               tsr_shape_text(n->source, shape, sizeof shape), n->source->name, n->reason);
    }
    for (size_t i = 0; i < plan->n_files; i++)
        printf("write    %s, %llu bytes\n", plan->files[i].name, U64(plan->files[i].bytes));
    for (size_t i = 0; i < plan->n_texts; i++)
        printf("write    %s, %zu bytes\n", plan->texts[i].name, plan->texts[i].size);
    print_sums(plan, stdout);
    char memory[32], disk[32], space[32];
    uint64_t have;
    printf("memory: %s at most with %llu threads; disk: %s needed",
           tsr_bytes_text((double)tsr_plan_memory(plan, (unsigned)a->threads), memory), U64(a->threads),
           tsr_bytes_text((double)plan->bytes_out, disk));
    if (a->dst != NULL && tsr_free_space(access(a->dst, F_OK) == 0 ? a->dst : ".", &have, NULL) == TSR_OK)
        printf(", %s free there", tsr_bytes_text((double)have, space));
    printf("\n");
}

/* The steps with the lowest SQNR, worst first. */
static size_t find_worst(const tsr_plan *plan, const tsr_quant_stats *rows, size_t worst[WORST])
{
    size_t n = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (!plan->steps[s].op->has_stats)
            continue;
        const double sqnr = tsr_quant_stats_sqnr(&rows[s]);
        size_t at = n;
        while (at > 0 && tsr_quant_stats_sqnr(&rows[worst[at - 1]]) > sqnr)
            at--;
        if (at == WORST)
            continue;
        n += n < WORST;
        memmove(&worst[at + 1], &worst[at], (n - at - 1) * sizeof *worst);
        worst[at] = s;
    }
    return n;
}

static tsr_quant_stats add_all(const tsr_plan *plan, const tsr_quant_stats *rows, size_t *low)
{
    tsr_quant_stats whole = {0};
    *low = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (!plan->steps[s].op->has_stats)
            continue;
        tsr_quant_stats_add(&whole, &rows[s]);
        *low += rows[s].sum_x2 > 0 && tsr_quant_stats_sqnr(&rows[s]) < kLowSqnr;
    }
    return whole;
}

static void print_summary(const tsr_plan *plan, const tsr_engine_result *result, const char *dst)
{
    size_t low, worst[WORST + 1];
    const tsr_quant_stats whole = add_all(plan, result->rows, &low);
    print_sums(plan, stdout);
    if (whole.elements > 0) {
        printf("whole: SQNR %.2f dB, relative error %.5f, cosine %.6f, %llu saturated, %llu flushed to zero, %llu zero "
               "blocks\n",
               tsr_quant_stats_sqnr(&whole), tsr_quant_stats_relative_error(&whole), tsr_quant_stats_cosine(&whole),
               U64(whole.saturated), U64(whole.flushed), U64(whole.zero_blocks));
        const size_t n = find_worst(plan, result->rows, worst);
        printf("worst tensors:\n");
        for (size_t i = 0; i < n; i++) {
            const tsr_quant_stats *const row = &result->rows[worst[i]];
            printf("  %6.2f dB  max error %.3g of amax %.3g  %s%s\n", tsr_quant_stats_sqnr(row), row->max_error,
                   row->amax, plan->steps[worst[i]].in[0]->name,
                   row->sum_x2 > 0 && tsr_quant_stats_sqnr(row) < kLowSqnr ? "  <- below 30 dB: look at it" : "");
        }
        if (low > 0)
            printf("%zu tensors are below %.0f dB, where block FP8 should reach 31.5: outliers or tiny values in a "
                   "block\n",
                   low, kLowSqnr);
    }
    char read[32], written[32], rate[32];
    printf("%s read, %s written in %.1f s (%s/s), %u threads\n", tsr_bytes_text((double)result->bytes_read, read),
           tsr_bytes_text((double)result->bytes_written, written), result->seconds,
           tsr_bytes_text((double)result->bytes_read / fmax(result->seconds, 1e-9), rate), result->threads);
    if (result->files_redone > 0)
        printf("%llu files were not what the journal says and were made again\n", U64(result->files_redone));
    if (result->already_complete)
        printf("%s was complete already: all %zu files verified\n", dst, plan->n_files);
    else if (result->files_resumed > 0)
        printf("resumed: %llu finished files verified and kept\n", U64(result->files_resumed));
    if (plan->source->config == NULL)
        printf("no config.json beside a single file: loaders need one with a quantization_config\n");
    printf("next: load %s, or read %s/" TSR_REPORT_NAME "\n", dst, dst);
}

static tsr_status write_json(const arguments *a, const tsr_plan *plan, const tsr_engine_result *result, tsr_err *err)
{
    if (a->json == NULL)
        return TSR_OK;
    size_t quantized, copied, low;
    count_actions(plan, &quantized, &copied);
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        {"tensors", plan->n_notes},
        {"quantized", quantized},
        {"copied", copied},
        {"files", plan->n_files},
        {"bytes_in", plan->bytes_in},
        {"bytes_out", plan->bytes_out},
        {"memory", tsr_plan_memory(plan, (unsigned)a->threads)},
    };
    tsr_text t = {0};
    tsr_json_begin_object(&t, false);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        tsr_json_key(&t, counts[i].key);
        tsr_json_u64(&t, counts[i].value);
    }
    if (result == NULL) {
        tsr_json_key(&t, "plan");
        tsr_json_begin_array(&t, false);
        for (size_t i = 0; i < plan->n_notes; i++) {
            tsr_json_begin_object(&t, true);
            tsr_json_key(&t, "name");
            tsr_json_string(&t, plan->notes[i].source->name);
            tsr_json_key(&t, "action");
            tsr_json_string(&t, plan->notes[i].action);
            tsr_json_key(&t, "reason");
            tsr_json_string(&t, plan->notes[i].reason);
            tsr_json_end_object(&t);
        }
        tsr_json_end_array(&t);
    } else {
        const tsr_quant_stats whole = add_all(plan, result->rows, &low);
        tsr_json_key(&t, "seconds");
        tsr_json_number(&t, result->seconds);
        tsr_json_key(&t, "threads");
        tsr_json_u64(&t, result->threads);
        tsr_json_key(&t, "files_resumed");
        tsr_json_u64(&t, result->files_resumed);
        tsr_json_key(&t, "tensors_below_30_db");
        tsr_json_u64(&t, low);
        tsr_quant_stats_json(&t, &whole);
    }
    tsr_json_end_object(&t);
    tsr_text_append(&t, "\n", 1);
    tsr_status status = tsr_text_status(&t, err);
    if (status == TSR_OK && strcmp(a->json, "-") == 0)
        fwrite(t.data, 1, t.size, stdout);
    else if (status == TSR_OK)
        status = tsr_write_file(a->json, t.data, t.size, err);
    tsr_text_free(&t);
    return status;
}

/* ---- doing ---- */

static tsr_status execute(const arguments *a, const tsr_plan *plan, tsr_err *err)
{
    tsr_terminal terminal = tsr_terminal_open(a->quiet);
    const tsr_engine_options options = {
        .threads = a->threads > 256 ? 256 : (unsigned)a->threads,
        .memory = a->memory,
        .force = a->force,
        .cpu_flags = tsr_cpu_flags() & (unsigned)a->cpumask,
        .cancel = tsr_terminal_catch_interrupt(),
        .progress = tsr_terminal_progress,
        .progress_data = &terminal,
    };
    tsr_engine_result result;
    tsr_status status = tsr_engine_run(plan, a->dst, &options, &result, err);
    tsr_terminal_close(&terminal);
    if (status == TSR_OK && !a->quiet && (a->json == NULL || strcmp(a->json, "-") != 0))
        print_summary(plan, &result, a->dst);
    if (status == TSR_OK)
        status = write_json(a, plan, &result, err);
    tsr_engine_result_free(&result);
    if (status == TSR_E_CANCELLED)
        return tsr_fail(err, status, "interrupted; finished files are kept: repeat the command to carry on");
    return status;
}

static tsr_status quantize(const arguments *a, tsr_err *err)
{
    tsr_checkpoint *source = NULL;
    tsr_plan plan = {0};
    tsr_quantize_options options = {
        .block = {.scale_fmt = (tsr_scale_fmt)a->scale_fmt, .search = a->scales == 1},
        .dialect = (tsr_dialect)a->dialect,
        .policy = {.include = a->include.items,
                   .n_include = a->include.count,
                   .exclude = a->exclude.items,
                   .n_exclude = a->exclude.count},
        .max_shard_bytes = a->max_shard_bytes,
    };
    tsr_status status = parse_block(a->block, &options.block, err);
    if (status == TSR_OK && a->dst != NULL)
        status = check_apart(a->src, a->dst, err);
    if (status == TSR_OK)
        status = tsr_checkpoint_open(&source, a->src, a->ignore.items, a->ignore.count, err);
    if (status == TSR_OK)
        status = tsr_quantize_plan(&plan, source, &options, err);
    if (status == TSR_OK && a->dry_run) {
        if (a->json == NULL || strcmp(a->json, "-") != 0)
            print_plan(&plan, a);
        status = write_json(a, &plan, NULL, err);
    } else if (status == TSR_OK) {
        status = execute(a, &plan, err);
    }
    tsr_plan_free(&plan);
    tsr_checkpoint_close(source);
    return status;
}

int tsr_cmd_quantize(int argc, char **argv)
{
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    arguments a = {
        .block = "128x128",
        .max_shard_bytes = 5000000000u,
        .threads = cpus < 1 ? 1 : (uint64_t)cpus,
        .cpumask = TSR_CPU_ALL,
        .memory = (uint64_t)2 << 30,
    };
    tsr_err err = {{0}};
    tsr_status status = parse(argc, argv, &a, &err);
    if (status == TSR_OK && !a.help)
        status = quantize(&a, &err);
    if (status != TSR_OK)
        fprintf(stderr, "tessera: %s%s\n", err.msg, status == TSR_E_USAGE ? " ('tessera quantize --help')" : "");
    return tsr_exit_code(status);
}
