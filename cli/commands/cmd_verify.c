/* Implements `tessera verify`: compares weights with their source. */
#include "cli/commands/commands.h"
#include "cli/io/mpi_session.h"
#include "cli/show/verify_weights.h"

#include <unistd.h>

static const char kHelp[] =
    "tessera verify DST --against SRC [options]\n\n"
    "Compares a checkpoint with the one that it was made from. Every tensor must be there with its shape,\n"
    "scales must be in range, values must not be NaN, errors must not exceed those of the format, and\n"
    "config.json must agree. Finds transposed or shifted grids of scales, inverted scales, swapped\n"
    "tensors, stale shards and flipped bits, and names the tensor.\n\n"
    "Exit code 0: all checks pass. 1: a check fails.\n\n"
    "Other checks, each with its own --help: 'tessera verify gemm|epilogue|dequant|mla DST' runs kernels\n"
    "on the tensors of a checkpoint. 'tessera verify forward DST --against SRC' runs tokens through both\n"
    "models. 'tessera verify all DST --against SRC' runs all checks that apply. 'tessera verify\n"
    "--manifest DST' compares an output with its own digests.\n\n"
    "Examples:\n"
    "  tessera verify DeepSeek-V3-FP8 --against DeepSeek-V3-BF16\n"
    "  tessera verify out --against model --junit result.xml --json result.json     for CI\n"
    "  tessera verify out --against model --tensors '*.layers.3.*' --min-sqnr 31\n"
    "  mpirun -n 4 tessera verify out --against model --mpi                         on many machines\n\n"
    "Options:\n";

static void set_defaults(tsr_command_context *c)
{
    tsr_verify_weights *const v = c->job;
    v->limits = tsr_weight_limits_defaults();
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    tsr_verify_weights *const v = c->job;
    const tsr_option own[] = {
        {"--against", TSR_OPT_TEXT, &v->compared.path[0], "SRC", "the checkpoint that DST was made from"},
        {0},
    };
    tsr_options_append(options, own);
    tsr_weight_limit_options(options, &v->texts, &v->limits);
    tsr_compare_job_options(&v->compared, options);
}

/* Rejects a first word that is not a checkpoint but similar to the name of a check. */
static tsr_status check_words(int argc, char **argv, tsr_err *err)
{
    char meant[80];
    const char *const word = argc > 0 ? argv[0] : "";
    if (argc == 0 || access(word, F_OK) == 0 || *tsr_did_you_mean(word, TSR_VERIFY_CHECKS, meant) == '\0')
        return TSR_OK;
    return tsr_fail(err, TSR_E_USAGE, "no checkpoint '%s', and no check of that name%s", word, meant);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    tsr_verify_weights *const v = c->job;
    tsr_compare_job *const job = &v->compared;
    job->path[1] = c->words[0];
    if (job->path[1] == NULL)
        return tsr_fail(err, TSR_E_USAGE, "no checkpoint given: tessera verify DST --against SRC");
    if (job->path[0] == NULL)
        return tsr_fail(
            err, TSR_E_USAGE,
            "no source given: add --against SRC. Without a source, 'tessera verify --manifest %s' checks the bytes "
            "of an output of Tessera",
            job->path[1]);
    if (!c->common.mpi)
        TSR_TRY(tsr_check_alone("use --mpi to share the work between them", err));
    return tsr_weight_limits_parse(&v->limits, &v->texts, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const tsr_verify_weights *const v = c->job;
    paths->sources[0] = v->compared.path[0];
    paths->sources[1] = v->compared.path[1];
    paths->unconfined = tsr_unconfined_ranks(c->common.mpi);
}

static tsr_status open_sides(tsr_command_context *c, tsr_err *err)
{
    tsr_verify_weights *const v = c->job;
    TSR_TRY(tsr_compare_job_open(&v->compared, c, err));
    return tsr_weight_limits_refuse(&v->limits, &v->compared.weights[1], &v->compared.tensors, err);
}

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    tsr_verify_weights *const v = c->job;
    tsr_compare_job *const job = &v->compared;
    TSR_TRY(tsr_compare_job_run(job, c, terminal, err));
    const tsr_side src = {job->checkpoint[0], &job->weights[0]}, dst = {job->checkpoint[1], &job->weights[1]};
    if (tsr_ranks_mine(c->ranks) == 0) /* rank 0 judges */
        TSR_TRY(tsr_check_weights(&src, &dst, &job->comparison, &v->limits, &v->findings, err));
    return tsr_verify_weights_fill(v, c->schema, err);
}

static int exit_code(const tsr_command_context *c)
{
    const tsr_verify_weights *const v = c->job;
    return v->findings.count > 0;
}

static void summarize(const tsr_command_context *c, tsr_text *text)
{
    const tsr_verify_weights *const v = c->job;
    const size_t n = v->compared.comparison.count;
    tsr_text_printf(text, "%zu tensor%s", n, tsr_plural(n));
}

static void close_job(tsr_command_context *c)
{
    tsr_verify_weights *const v = c->job;
    tsr_result_free(&v->result);
    tsr_findings_free(&v->findings);
    tsr_compare_job_close(&v->compared);
}

const tsr_command tsr_command_verify = {
    .name = "verify",
    .summary = "a checkpoint against its source; kernels on it",
    .schema = "tessera-verify/1",
    TSR_COMMAND(1, TSR_COMPARE_TAKES | TSR_TAKES_MPI, tsr_verify_weights),
    .set_defaults = set_defaults,
    .check_words = check_words,
    .open = open_sides,
    .print = tsr_verify_weights_print,
    .write_json = tsr_verify_weights_json,
    .exit_code = exit_code,
    .summarize = summarize,
};
