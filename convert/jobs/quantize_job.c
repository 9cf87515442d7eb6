/* Reads and checks the options of `quantize`, and makes its plan. */
#include "convert/jobs/quantize_job.h"
#include "convert/jobs/convert_inputs.h"
#include "convert/jobs/model_card.h"
#include "convert/jobs/provenance.h"

#include "convert/plans/restore_codes_plan.h"
#include "convert/plans/split_plan.h"

#include <string.h>

/* Returns true if only some schemes accept this option. */
static bool is_of_schemes(const char *option)
{
    for (tsr_scheme i = TSR_SCHEME_KEEP + 1; i < TSR_SCHEMES; i++) {
        const char *const options = tsr_scheme_row_of(i)->quantize_options;
        if (options != NULL && tsr_is_listed(options, option))
            return true;
    }
    return false;
}

tsr_quantize_job tsr_quantize_job_defaults(void)
{
    return (tsr_quantize_job){.of = tsr_scheme_defaults(), .experts = -1};
}

/* Appends the options of activations, of the KV cache and of the model card. */
static void append_activations_and_card(tsr_quantize_job *job, tsr_option *options)
{
    const tsr_option activations[] = {
        {"--activations", TSR_OPT_TEXT, &job->of.activations, "FILE",
         "int8-channel: static scales or ranges of the inputs; fp8-tensor, nvfp4, w4afp8 of sglang: ranges of the inputs "
         "(nvfp4, and fp8-tensor of modelopt: required); JSON or safetensors (docs/numerics.md)"},
        {"--input-scale", TSR_OPT_TEXT, &job->of.input_scale, "X",
         "fp8-tensor, nvfp4, w4afp8 of sglang: the static scale of all inputs, instead of measured ranges: input = code * X "
         "(nvfp4: the global scale, as ModelOpt stores it)"},
        {"--kv-scale", TSR_OPT_TEXT, &job->of.kv_scale, "X",
         "dialects compressed-tensors and modelopt: the scale of an FP8 KV cache in all layers: key = code * X"},
        {"--kv-ranges", TSR_OPT_TEXT, &job->of.kv_ranges, "FILE",
         "the same with a scale for each layer, from a file with ranges of keys and values (docs/numerics.md)"},
        {"--activation-zero-points", TSR_OPT_FLAG, &job->of.activation_zero_points, NULL,
         "int8-channel: quantize activations asymmetrically; with --activations their scales and zero points are "
         "static"},
        {0},
    };
    const tsr_option card[] = {
        {"--no-card", TSR_OPT_FLAG, &job->no_card, NULL,
         "write no README.md with the command, the errors and the source's license; that of the source stays README.md"},
        {0},
    };
    tsr_options_append_topic(options, "Activations", activations);
    tsr_options_append_topic(options, "Model card", card);
}

void tsr_quantize_job_options(tsr_quantize_job *job, tsr_option *options)
{
    const tsr_option scheme[] = {
        {"--scheme", TSR_OPT_CHOICE, &job->word, tsr_scheme_words(), "the scheme to quantize to (fp8-block)"},
        {"--rules", TSR_OPT_TEXT, &job->rules, "FILE",
         "a file of rules that give each weight a scheme, which tessera plan-schemes writes (docs/plan-schemes.md); the "
         "output is in the dialect compressed-tensors or modelopt"},
        {"--recipe", TSR_OPT_TEXT, &job->recipe, "NAME",
         "the format of a released checkpoint: the name of a recipe (docs/recipes.md), or the path of one"},
        {"--dialect", TSR_OPT_CHOICE, &job->of.dialect, TSR_DIALECT_WORDS,
         "names of the scales and form of the configuration (fp8-block: deepseek; mxfp4 of gpt-oss: gpt-oss; others: "
         "compressed-tensors); sglang: w4afp8 with experts in int4 beside block FP8"},
        {0},
    };
    const tsr_option weights[] = {
        {"--include", TSR_OPT_LIST, &job->of.include, "GLOB",
         "also quantize tensors with these names (*, ?, [0-3]: docs/policy.md), with --rules those that a rule matches; "
         "may be repeated"},
        {"--exclude", TSR_OPT_LIST, &job->of.exclude, "GLOB",
         "keep tensors with these names as they are (*, ?, [0-3]: docs/policy.md); may be repeated"},
        {"--experts", TSR_OPT_CHOICE, &job->experts, "split|stack",
         "split: write one tensor for each expert and projection; stack: keep stacks of experts (split, where the "
         "model_type is known; with --rules stack)"},
        {0},
    };
    const tsr_option scales[] = {
        {"--scales", TSR_OPT_CHOICE, &job->of.scales, TSR_SCALES_WORDS,
         "amax: the scale follows from the largest value; mse: the scale of least squared error among some near it, "
         "slower and never worse; best: among all that the format can store, if it is not FP32; "
         "four-six: nvfp4: the better of two, for largest elements of 4 and 6 (amax)"},
        {"--importance", TSR_OPT_TEXT, &job->of.importance, "FILE",
         "mean squares of the layers' inputs, by which errors are weighted: an importance matrix of llama.cpp (GGUF), "
         "safetensors or JSON (docs/importance.md); implies --scales best where the format allows it"},
        {"--method", TSR_OPT_CHOICE, &job->of.method, TSR_METHOD_WORDS,
         "int and fp4: rtn: the nearest codes; gptq: codes that also make up for the errors of other columns, by the "
         "products of inputs that calibrate --hessians wrote to the file of --importance; for AWQ see tessera fold (rtn)"},
        {"--block", TSR_OPT_TEXT, &job->of.block, "RxC", "fp8-block: rows and columns of a block (128x128)"},
        {"--scale-fmt", TSR_OPT_CHOICE, &job->of.scale_fmt, TSR_SCALE_FMT_WORDS,
         "fp8-block: f32: any scale; ue8m0: scales rounded up to powers of two (f32)"},
        {"--scale-dtype", TSR_OPT_CHOICE, &job->of.scale_dtype, TSR_SCALE_DTYPE_WORDS,
         "dtype of the stored scales, which codes are computed with; f16 with int schemes only (channel: f32; "
         "weight-only: bf16)"},
        {"--mx-scale", TSR_OPT_CHOICE, &job->of.mx_scale, TSR_MX_SCALE_WORDS,
         "mxfp: how the power of two of a group follows from its largest value (compressed-tensors: even; others: "
         "rceil)"},
        {"--group-size", TSR_OPT_COUNT, &job->of.group_size, "N",
         "weight-only: number of columns that share a scale; 0: a whole row (int8: 0, int4: 128)"},
        {"--zero-points", TSR_OPT_FLAG, &job->of.zero_points, NULL,
         "int4: quantize weights asymmetrically, with zero points"},
        {"--scales-from", TSR_OPT_TEXT, &job->scales_from, "ORIGINAL",
         "int4: SRC is ORIGINAL, an int4 checkpoint, decoded to BF16; its scales must give the same codes again, or "
         "the command fails"},
        {"--rounding", TSR_OPT_CHOICE, &job->of.away, TSR_ROUNDING_WORDS,
         "int: rounding of ties, to even or away from zero (even)"},
        {"--divisor", TSR_OPT_CHOICE, &job->of.divisor, TSR_DIVISOR_WORDS,
         "int: symmetric scales are the largest magnitude divided by this (127.5; int4: 7.5)"},
        {0},
    };
    tsr_options_append_topic(options, "Scheme", scheme);
    tsr_options_append_topic(options, "Weights", weights);
    tsr_options_append_topic(options, "Scales and codes", scales);
    append_activations_and_card(job, options);
}

/* Reads the recipe and sets its options. */
static tsr_status apply_recipe(tsr_quantize_job *job, const tsr_option *options, uint64_t *given, tsr_err *err)
{
    if (job->recipe == NULL)
        return TSR_OK;
    TSR_TRY(tsr_recipe_read(&job->recipe_read, job->recipe, err));
    TSR_TRY(tsr_recipe_apply(&job->recipe_read, options, given, err));
    if (job->recipe_read.has_rules && job->rules != NULL)
        return tsr_fail(err, TSR_E_USAGE, "--rules cannot be combined with --recipe, which has rules: %s",
                        job->recipe_read.path);
    job->recipe = job->recipe_read.path;
    job->rules = job->recipe_read.has_rules ? job->recipe : job->rules;
    return TSR_OK;
}

tsr_status tsr_quantize_job_check(tsr_quantize_job *job, const tsr_option *options, uint64_t given, tsr_err *err)
{
    TSR_TRY(apply_recipe(job, options, &given, err));
    job->of.scheme = tsr_scheme_named((size_t)job->word);
    const tsr_scheme_row *const row = tsr_scheme_row_of(job->of.scheme);
    for (size_t i = 0; options[i].name != NULL; i++) {
        if ((given >> i & 1) == 0)
            continue;
        if (job->rules != NULL &&
            !tsr_is_listed("--activations --input-scale --dialect --kv-scale --kv-ranges --importance --method",
                           options[i].name) &&
            (is_of_schemes(options[i].name) || tsr_is_listed("--scheme --exclude", options[i].name)))
            return tsr_fail(err, TSR_E_USAGE, "%s cannot be combined with --rules, which takes it from the file",
                            options[i].name);
        if (job->scales_from != NULL &&
            tsr_is_listed(
                "--dialect --kv-scale --kv-ranges --scales --importance --method --scale-dtype --rounding --divisor --group-size --zero-points --include "
                "--exclude --experts",
                options[i].name))
            return tsr_fail(err, TSR_E_USAGE,
                            "%s cannot be combined with --scales-from, which takes it from the original",
                            options[i].name);
        if (job->of.zero_points && tsr_is_listed("--divisor", options[i].name))
            return tsr_fail(
                err, TSR_E_USAGE,
                "--divisor cannot be combined with --zero-points, whose scales also depend on the smallest value");
        if (job->rules == NULL && is_of_schemes(options[i].name) &&
            !tsr_is_listed(row->quantize_options, options[i].name))
            return tsr_fail(err, TSR_E_USAGE, "%s cannot be combined with --scheme %s", options[i].name, row->name);
    }
    return TSR_OK;
}

/* ---- the plan ---- */

static tsr_status open_source(const tsr_job_source *from, const char *path, size_t i, tsr_quantize_job *q, tsr_err *err)
{
    if (q->sources[i] != NULL)
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_open(&q->opened[i], path, from->ignore.items, from->ignore.count, err));
    q->sources[i] = q->opened[i];
    return TSR_OK;
}

static tsr_status make_scheme(tsr_plan *plan, const tsr_checkpoint *const *source, const void *options, tsr_err *err)
{
    const tsr_quantize_job *const q = options;
    return q->by_scheme ? tsr_plan_named_scheme(plan, source, &q->of, &q->scheme, err)
                        : tsr_rules_plan(plan, source, &q->by_rules, err);
}

/* Settles the options that depend on the model. */
static tsr_status settle(tsr_quantize_job *q, tsr_experts *experts, tsr_err *err)
{
    tsr_scheme_settle(&q->of, q->sources[0], *experts == TSR_EXPERTS_SPLIT, &q->scheme);
    if (!tsr_scheme_stacks(&q->of, &q->scheme))
        return TSR_OK;
    if (*experts == TSR_EXPERTS_SPLIT)
        return tsr_fail(err, TSR_E_USAGE,
                        "--experts split cannot be combined with --dialect gpt-oss, which stores stacks of experts");
    *experts = TSR_EXPERTS_TURN;
    return TSR_OK;
}

/* Opens the source and makes the plan. */
static tsr_status plan_scheme(tsr_quantize_job *q, const tsr_job_source *from, tsr_experts experts, tsr_plan *plan,
                              tsr_err *err)
{
    TSR_TRY(open_source(from, from->path, 0, q, err));
    TSR_TRY(tsr_recipe_check(&q->recipe_read, q->sources[0], err));
    if (q->by_scheme)
        TSR_TRY(settle(q, &experts, err));
    return tsr_split_plan(plan, &q->view, q->sources, experts, make_scheme, q, err);
}

/* Plans codes with the scales of an original (--scales-from). */
static tsr_status plan_again(tsr_quantize_job *q, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    TSR_TRY(open_source(from, from->path, 0, q, err));
    TSR_TRY(open_source(from, q->scales_from, 1, q, err));
    return tsr_restore_codes_plan(plan, q->sources, from->max_shard_bytes, err);
}

static tsr_status plan_by_scheme(tsr_quantize_job *q, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    static const tsr_experts kExperts[] = {TSR_EXPERTS_AS_NEEDED, TSR_EXPERTS_SPLIT, TSR_EXPERTS_STACK};
    q->by_scheme = true;
    q->of.max_shard_bytes = from->max_shard_bytes;
    TSR_TRY(tsr_scheme_read(&q->of, true, &q->scheme, err));
    return plan_scheme(q, from, kExperts[q->experts + 1], plan, err);
}

static tsr_status plan_by_rules(tsr_quantize_job *q, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    const bool calibrated = q->of.activations != NULL;
    float input_scale;
    TSR_TRY(tsr_read_input_scale(&q->of, &input_scale, err));
    if (q->of.dialect >= 0 && q->of.dialect != TSR_DIALECT_COMPRESSED_TENSORS && q->of.dialect != TSR_DIALECT_MODELOPT)
        return tsr_fail(err, TSR_E_USAGE,
                        "--dialect %s supports one scheme for all layers only; use compressed-tensors or modelopt for "
                        "several schemes",
                        tsr_dialect_name((tsr_dialect)q->of.dialect));
    TSR_TRY(q->recipe_read.has_rules ? tsr_rules_read_recipe(&q->rules_read, q->rules, err)
                                     : tsr_rules_read(&q->rules_read, q->rules, err));
    if (q->of.dialect >= 0)
        q->rules_read.dialect = (tsr_dialect)q->of.dialect;
    if (calibrated)
        TSR_TRY(tsr_calibration_read(&q->calibration, q->of.activations, err));
    TSR_TRY(tsr_read_importance(&q->of, &q->importance, err));
    q->by_rules = (tsr_rules_options){.rules = &q->rules_read,
                                      .search = tsr_scheme_chosen_search(&q->of, TSR_SCHEME_NVFP4, TSR_F32),
                                      .importance = q->of.importance == NULL ? NULL : &q->importance,
                                      .calibration = calibrated ? &q->calibration : NULL,
                                      .input_scale = input_scale,
                                      .include = q->of.include.items,
                                      .n_include = q->of.include.count,
                                      .plain = q->plain,
                                      .max_shard_bytes = from->max_shard_bytes};
    TSR_TRY(tsr_read_kv_origin(&q->of, &q->kv_ranges, &q->by_rules.kv, err));
    return plan_scheme(q, from, q->experts == 0 ? TSR_EXPERTS_SPLIT : TSR_EXPERTS_STACK, plan, err);
}

/* Records the options as given, before defaults are settled. */
static tsr_status note_words(tsr_quantize_job *job, const tsr_job_source *from, tsr_plan_provenance *with, tsr_err *err)
{
    tsr_quantize_job nothing = tsr_quantize_job_defaults();
    tsr_option given[TSR_MAX_OPTIONS] = {{0}}, defaults[TSR_MAX_OPTIONS] = {{0}};
    tsr_quantize_job_options(job, given);
    tsr_quantize_job_options(&nothing, defaults);
    uint64_t set = 0;
    TSR_TRY(tsr_recipe_apply(&job->recipe_read, defaults, &set, err)); /* they are options of the recipe */
    nothing.rules = job->recipe_read.has_rules ? job->rules : NULL;
    return tsr_provenance_note(with, "quantize", from, given, defaults, &job->words, err);
}

/* Returns the dialect of a plan that does not name it. */
static const char *dialect_of(const tsr_quantize_job *job)
{
    const bool blocks = tsr_scheme_row_of(job->of.scheme)->form == TSR_FORM_BLOCKS && job->scales_from == NULL;
    return tsr_dialect_name(job->of.dialect >= 0 ? (tsr_dialect)job->of.dialect
                            : blocks             ? TSR_DIALECT_DEEPSEEK
                                                 : TSR_DIALECT_COMPRESSED_TENSORS);
}

/* Gives the plan of a plain job a command of its own. */
static tsr_status name_plain(tsr_plan *plan, tsr_err *err)
{
    plan->command = tsr_arena_printf(&plan->arena, "%s, for --prove", plan->command);
    return plan->command == NULL ? tsr_out_of_memory(err, "while planning") : tsr_plan_finish(plan, err);
}

tsr_status tsr_quantize_job_plan(tsr_quantize_job *job, const tsr_job_source *from, tsr_plan *plan, tsr_err *err)
{
    tsr_plan_provenance with;
    TSR_TRY(note_words(job, from, &with, err));
    TSR_TRY(job->rules != NULL         ? plan_by_rules(job, from, plan, err)
            : job->scales_from != NULL ? plan_again(job, from, plan, err)
                                       : plan_by_scheme(job, from, plan, err));
    TSR_TRY(tsr_warn_of_ignored(plan, from, job->opened, 2, err));
    plan->provenance = with;
    if (!job->no_card)
        TSR_TRY(tsr_plan_model_card(plan, tsr_scheme_name(job->of.scheme), dialect_of(job), err));
    if (job->by_scheme && job->scheme.search == TSR_SCALES_BEST)
        plan->made.scales = "optimal";
    return job->plain ? name_plain(plan, err) : TSR_OK;
}

/* ---- plain rounding ---- */

bool tsr_quantize_job_is_plain(const tsr_quantize_job *job)
{
    bool plain = job->of.importance == NULL && job->of.method == 0 && job->of.scales <= (int)TSR_SCALES_AMAX;
    for (size_t i = 0; i < job->rules_read.count; i++)
        plain = plain && tsr_scheme_row_search(tsr_scheme_row_of(job->rules_read.items[i].scheme)) == TSR_SCALES_AMAX;
    return plain;
}

tsr_status tsr_quantize_job_make_plain(tsr_quantize_job *plain, const tsr_quantize_job *job, tsr_err *err)
{
    *plain = tsr_quantize_job_defaults();
    plain->plain = plain->no_card = true;
    plain->word = job->word;
    plain->of = job->of;
    plain->of.importance = NULL;
    plain->of.method = 0;
    plain->of.scales = -1;
    plain->rules = job->rules;
    plain->recipe = job->recipe;
    plain->experts = job->experts;
    memcpy(plain->sources, job->sources, sizeof plain->sources);
    return job->recipe == NULL ? TSR_OK : tsr_recipe_read(&plain->recipe_read, job->recipe, err);
}

void tsr_quantize_job_free(tsr_quantize_job *job)
{
    tsr_decoded_view_free(&job->view);
    for (size_t i = 0; i < 2; i++)
        tsr_checkpoint_close(job->opened[i]);
    tsr_scheme_free(&job->scheme);
    tsr_calibration_free(&job->calibration);
    tsr_calibration_free(&job->kv_ranges);
    tsr_importance_free(&job->importance);
    tsr_rules_free(&job->rules_read);
    tsr_recipe_free(&job->recipe_read);
    tsr_arena_free(&job->words);
    *job = tsr_quantize_job_defaults();
}
