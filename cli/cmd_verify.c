/* tessera verify: the options of comparing weights, and the way to the other kinds. */
#include "cli/commands.h"
#include "cli/places.h"
#include "cli/sandbox.h"
#include "cli/together.h"
#include "cli/verify_weights.h"

#include <string.h>
#include <unistd.h>

static const char kHelp[] =
    "tessera verify DST --against SRC [options]\n\n"
    "Compares a checkpoint with the one that it was made from. Every tensor must be there, with its shape; scales in\n"
    "range; no NaN; errors no larger than the format's; config.json in order. Names the fault where it leaves a "
    "trace:\n"
    "a transposed or shifted scale grid, 1/scale, swapped tensors, a stale shard, single flipped bits.\n"
    "Exit code 0: all checks pass; 1: one does not.\n"
    "Kernels on a checkpoint's own tensors: tessera verify gemm|epilogue|dequant|mla DST. The same tokens "
    "through\ntwo models: tessera verify forward DST --against SRC. All that apply, with one verdict: tessera verify "
    "all\n"
    "DST --against SRC. Each has a --help of its own. An output by its own digests: tessera verify\n"
    "--manifest DST.\n\n"
    "Examples:\n"
    "  tessera verify DeepSeek-V3-FP8 --against DeepSeek-V3-BF16\n"
    "  tessera verify out --against model --junit result.xml --json result.json     for CI\n"
    "  tessera verify out --against model --tensors '*.layers.3.*' --min-sqnr 31\n"
    "  mpirun -n 4 tessera verify out --against model --mpi                         on many machines\n\n"
    "Options:\n";

static tsr_status parse(int argc, char **argv, tsr_verify_weights *v, tsr_check_options *last, tsr_err *err)
{
    tsr_compare_job *const job = &v->compared;
    tsr_weight_limit_texts texts = {.min_sqnr = NULL};
    tsr_option options[TSR_MAX_OPTIONS] = {
        {"--against", TSR_OPT_TEXT, &job->path[0], "SRC", "what DST was made from"},
        TSR_MPI_OPTION(&v->mpi),
    };
    size_t n;
    tsr_weight_limit_options(options, &texts, &v->limits);
    tsr_compare_job_options(job, options);
    TSR_TRY(tsr_options_parse(options, argc, argv, &job->path[1], 1, &n, NULL, err));
    if (job->help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    if (job->path[1] == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which checkpoint? tessera verify DST --against SRC");
    if (job->path[0] == NULL)
        return tsr_fail(err, TSR_E_USAGE, "held to what? --against SRC");
    if (!v->mpi)
        TSR_TRY(tsr_check_alone("--mpi has them work together", err));
    last->json = job->json;
    last->junit = job->junit;
    last->progress = job->progress;
    last->quiet = job->quiet;
    TSR_TRY(tsr_weight_limits_parse(&v->limits, &texts, err));
    const tsr_places places = {.sources = {job->path[0], job->path[1]},
                               .json = job->json,
                               .junit = job->junit,
                               .progress = job->progress.file,
                               .unconfined = tsr_unconfined_ranks(v->mpi)};
    return tsr_places_check(&places, err);
}

/* A first word that is not a checkpoint but close to the name of a check is taken for that check, misspelled. */
static tsr_status check_word(const char *word, tsr_err *err)
{
    char meant[80];
    if (access(word, F_OK) == 0 || *tsr_did_you_mean(word, TSR_VERIFY_CHECKS, meant) == '\0')
        return TSR_OK;
    return tsr_fail(err, TSR_E_USAGE, "there is no checkpoint '%s', and no check%s", word, meant);
}

int tsr_cmd_verify(int argc, char **argv)
{
    if (argc > 0 && strcmp(argv[0], "all") == 0)
        return tsr_cmd_verify_all(argc, argv);
    if (argc > 0 && strcmp(argv[0], "forward") == 0)
        return tsr_cmd_verify_forward(argc, argv);
    /* "verify --manifest DST" says the same as "verify manifest DST". */
    if (argc > 0 && (strcmp(argv[0], "manifest") == 0 || strcmp(argv[0], "--manifest") == 0))
        return tsr_cmd_verify_manifest(argc, argv);
    if (argc > 0 && tsr_is_kernel_check(argv[0]))
        return tsr_cmd_verify_kernels(argc, argv);
    tsr_verify_weights v = tsr_verify_weights_defaults();
    tsr_check_options last = {.json = NULL};
    tsr_err err = {{0}};
    tsr_status status = argc > 0 ? check_word(argv[0], &err) : TSR_OK;
    if (status == TSR_OK)
        status = parse(argc, argv, &v, &last, &err);
    if (status == TSR_OK && v.mpi && !v.compared.help)
        status =
            tsr_together_begin(&v.compared.ranks, &(tsr_told_where){&last.json, &last.junit, &last.progress}, &err);
    if (status == TSR_OK && !v.compared.help)
        status = tsr_verify_one(&tsr_kind_weights, &v, &last, &err);
    const bool fine = tsr_kind_weights.fine(&v);
    tsr_ranks *const ranks = v.compared.ranks;
    tsr_kind_weights.close(&v);
    return tsr_together_end(ranks, "verify", status, fine, &err);
}
