/* From decisions to steps: what each tensor becomes, the configuration that says so, and the report. */
#include "convert/quantize_plan.h"

#include "formats/checked.h"
#include "formats/config.h"
#include "formats/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the operation ---- */

/* A weight is one matrix, or a stack of them (experts), each with its own grid of blocks. A unit is part of one row of
 * blocks: all its columns, or as many whole blocks as fit TSR_UNIT_BYTES. */
typedef struct geometry {
    uint64_t matrices, rows, cols, block_rows, block_cols;
    uint64_t bands;          /* rows of blocks of one matrix */
    uint64_t pieces;         /* units of one row of blocks */
    uint64_t piece_cols;     /* columns of a unit, but for the last */
    uint64_t scales_per_row; /* blocks of one row of blocks */
    uint64_t element_bytes;
} geometry;

static geometry geometry_of(const tsr_step *step)
{
    const tsr_fp8_block *const scheme = step->params;
    const tsr_tensor *const t = step->in[0];
    geometry g = {
        .matrices = t->rank == 3 ? t->shape[0] : 1,
        .rows = t->shape[t->rank - 2],
        .cols = t->shape[t->rank - 1],
        .block_rows = scheme->block_rows,
        .block_cols = scheme->block_cols,
        .element_bytes = tsr_dtype_bytes(t->dtype),
    };
    g.bands = tsr_ceil_div(g.rows, g.block_rows);
    g.scales_per_row = tsr_ceil_div(g.cols, g.block_cols);
    const uint64_t block_bytes = g.block_rows * g.block_cols * g.element_bytes;
    const uint64_t fit = tsr_max_u64(1, TSR_UNIT_BYTES / block_bytes);
    g.pieces = tsr_ceil_div(g.scales_per_row, fit);
    g.piece_cols = tsr_ceil_div(g.scales_per_row, g.pieces) * g.block_cols;
    g.pieces = tsr_ceil_div(g.cols, g.piece_cols);
    return g;
}

/* Where a unit lies. */
typedef struct place {
    uint64_t matrix, band, col, rows, cols;
    uint64_t first; /* flat index of the first element */
} place;

static place place_of(const geometry *g, uint64_t unit)
{
    place p = {.matrix = unit / (g->bands * g->pieces),
               .band = unit / g->pieces % g->bands,
               .col = unit % g->pieces * g->piece_cols};
    p.rows = tsr_min_u64(g->block_rows, g->rows - p.band * g->block_rows);
    p.cols = tsr_min_u64(g->piece_cols, g->cols - p.col);
    p.first = (p.matrix * g->rows + p.band * g->block_rows) * g->cols + p.col;
    return p;
}

static uint64_t quantize_units(const tsr_step *step)
{
    const geometry g = geometry_of(step);
    return g.matrices * g.bands * g.pieces;
}

static void quantize_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const geometry g = geometry_of(step);
    const place p = place_of(&g, unit);
    u->in[0] = (tsr_window){.offset = p.first * g.element_bytes,
                            .rows = p.rows,
                            .row_bytes = p.cols * g.element_bytes,
                            .pitch = g.cols * g.element_bytes};
    u->out[0] = (tsr_window){.offset = p.first, .rows = p.rows, .row_bytes = p.cols, .pitch = g.cols};
}

static uint64_t quantize_scratch(const tsr_step *step)
{
    return tsr_fp8_block_scratch(step->params, step->in[0]->dtype);
}

static tsr_status quantize_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                               tsr_quant_stats *stats, tsr_err *err)
{
    const geometry g = geometry_of(step);
    const place p = place_of(&g, unit);
    const tsr_fp8_band band = {
        .tensor = step->in[0],
        .first = p.first,
        .x = u->in_data[0],
        .rows = p.rows,
        .cols = p.cols,
        .ld = p.cols,
        .codes = u->out_data[0],
        .ld_codes = p.cols,
        .scales = (float *)u->out_data[1] + (p.matrix * g.bands + p.band) * g.scales_per_row + p.col / g.block_cols,
        .scratch = u->scratch,
    };
    return tsr_fp8_block_quantize(step->params, kernels, &band, stats, err);
}

static tsr_status quantize_finish(const tsr_step *step, void *const *held, tsr_quant_stats *stats, tsr_err *err)
{
    (void)err;
    tsr_quant_stats_scales(stats, held[1], step->out[1]->bytes / sizeof(float));
    return TSR_OK;
}

static const tsr_op kQuantizeOp = {
    .name = "quantize fp8-block",
    .units = quantize_units,
    .windows = quantize_windows,
    .scratch_bytes = quantize_scratch,
    .run = quantize_run,
    .finish = quantize_finish,
    .has_stats = true,
};

/* ---- names, configuration ---- */

static const char kWeight[] = ".weight";

static bool is_weight(const char *name)
{
    const size_t n = strlen(name), m = sizeof kWeight - 1;
    return n > m && strcmp(name + n - m, kWeight) == 0;
}

/* X.weight -> X.weight_scale_inv; fused experts without that ending -> NAME_scale_inv. */
static const char *scale_name(tsr_plan *plan, const char *name, tsr_dialect dialect)
{
    return tsr_arena_printf(&plan->arena, "%s%s", name, dialect == TSR_DIALECT_DEEPSEEK ? "_scale_inv" : "_scale");
}

/* The modules that a loader would take for linear layers and that stay unquantized, from what the plan writes. */
static void unquantized_modules(tsr_text *t, const tsr_plan *plan, const tsr_decision *decisions)
{
    const tsr_tensors *const all = &plan->sources[0]->tensors;
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < all->count; i++) {
        const tsr_tensor *const x = &all->items[i];
        if (decisions[i].treatment != TSR_KEEP || x->rank < 2 || !tsr_dtype_is_weight_float(x->dtype))
            continue;
        char module[1024];
        const size_t n = strlen(x->name) - (is_weight(x->name) ? sizeof kWeight - 1 : 0);
        snprintf(module, sizeof module, "%.*s", (int)n, x->name);
        tsr_json_string(t, module);
    }
    tsr_json_end_array(t);
}

static void block_size(tsr_text *t, const tsr_quantize_options *o)
{
    tsr_json_begin_array(t, true);
    tsr_json_u64(t, o->block.block_rows);
    tsr_json_u64(t, o->block.block_cols);
    tsr_json_end_array(t);
}

static void member_string(tsr_text *t, const char *key, const char *value)
{
    tsr_json_key(t, key);
    tsr_json_string(t, value);
}

static void deepseek_config(tsr_text *t, const tsr_plan *plan, const tsr_quantize_options *o,
                            const tsr_decision *decisions)
{
    tsr_json_begin_object(t, false);
    member_string(t, "quant_method", "fp8");
    member_string(t, "fmt", "e4m3");
    member_string(t, "activation_scheme", "dynamic");
    tsr_json_key(t, "weight_block_size");
    block_size(t, o);
    if (o->block.scale_fmt == TSR_SCALE_UE8M0)
        member_string(t, "scale_fmt", "ue8m0");
    tsr_json_key(t, "modules_to_not_convert");
    unquantized_modules(t, plan, decisions);
    tsr_json_end_object(t);
}

/* Only keys that every released reader knows: its models forbid others (quant_args.py, quant_scheme.py). */
static void compressed_tensors_args(tsr_text *t, const char *strategy, const tsr_quantize_options *o, bool dynamic)
{
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "num_bits");
    tsr_json_u64(t, 8);
    member_string(t, "type", "float");
    tsr_json_key(t, "symmetric");
    tsr_json_bool(t, true);
    member_string(t, "strategy", strategy);
    if (dynamic) {
        tsr_json_key(t, "group_size");
        tsr_json_u64(t, o->block.block_cols);
    } else {
        tsr_json_key(t, "block_structure");
        block_size(t, o);
    }
    tsr_json_key(t, "dynamic");
    tsr_json_bool(t, dynamic);
    tsr_json_end_object(t);
}

static void compressed_tensors_config(tsr_text *t, const tsr_plan *plan, const tsr_quantize_options *o,
                                      const tsr_decision *decisions)
{
    tsr_json_begin_object(t, false);
    member_string(t, "quant_method", "compressed-tensors");
    member_string(t, "format", "float-quantized");
    member_string(t, "quantization_status", "compressed");
    tsr_json_key(t, "config_groups");
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "group_0");
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "targets");
    tsr_json_begin_array(t, true);
    tsr_json_string(t, "Linear");
    tsr_json_end_array(t);
    tsr_json_key(t, "weights");
    compressed_tensors_args(t, "block", o, false);
    tsr_json_key(t, "input_activations");
    compressed_tensors_args(t, "group", o, true);
    tsr_json_key(t, "output_activations");
    tsr_json_null(t);
    tsr_json_end_object(t);
    tsr_json_end_object(t);
    tsr_json_key(t, "ignore");
    unquantized_modules(t, plan, decisions);
    tsr_json_key(t, "kv_cache_scheme");
    tsr_json_null(t);
    tsr_json_end_object(t);
}

static tsr_status plan_config(tsr_plan *plan, const tsr_quantize_options *o, const tsr_decision *decisions,
                              tsr_err *err)
{
    if (plan->sources[0]->config == NULL)
        return TSR_OK;
    tsr_text value = {0}, config = {0};
    (o->dialect == TSR_DIALECT_DEEPSEEK ? deepseek_config : compressed_tensors_config)(&value, plan, o, decisions);
    tsr_status status = tsr_text_status(&value, err);
    if (status == TSR_OK)
        status = tsr_config_set(&config, plan->sources[0]->config, plan->sources[0]->config_size, "quantization_config",
                                value.data, err);
    if (status == TSR_OK)
        status = tsr_plan_text_file(plan, "", TSR_CONFIG_NAME, config.data, config.size, err);
    tsr_text_free(&value);
    tsr_text_free(&config);
    return status;
}

/* ---- refusing what is quantized already ---- */

static tsr_status check_unquantized(const tsr_checkpoint *c, tsr_err *err)
{
    static const char kAdvice[] = "already quantized; start from the BF16 original, or dequantize it first";
    static const char *const kKeys[] = {"quantization_config", "compression_config", "text_config.quantization_config"};
    for (size_t i = 0; c->config != NULL && i < sizeof kKeys / sizeof *kKeys; i++) {
        tsr_json_text value;
        if (!tsr_json_find(c->config, c->config_size, kKeys[i], &value) || tsr_json_is(value, "null"))
            continue;
        tsr_arena scratch = {0};
        const char *const method = tsr_json_find_string(value.data, value.size, "quant_method", &scratch);
        const tsr_status status = tsr_fail(err, TSR_E_UNSUPPORTED, "%s/" TSR_CONFIG_NAME ": %s (quant_method %s): %s",
                                           c->path, kKeys[i], method == NULL ? "unknown" : method, kAdvice);
        tsr_arena_free(&scratch);
        return status;
    }
    for (size_t i = 0; i < c->tensors.count; i++) {
        const tsr_tensor *const t = &c->tensors.items[i];
        const bool scaled = t->dtype >= TSR_F8_E5M2 && t->dtype <= TSR_F8_E5M2FNUZ;
        if (scaled || t->dtype == TSR_F4)
            return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: '%s' is %s: %s", c->files[t->file].path, t->name,
                            tsr_dtype_name(t->dtype), kAdvice);
    }
    return TSR_OK;
}

/* ---- the report ---- */

static void report(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_text *t)
{
    tsr_quant_stats whole = {0};
    uint64_t quantized = 0;
    tsr_json_begin_object(t, false);
    member_string(t, "schema", "tessera-quantization-report/1");
    member_string(t, "version", TSR_VERSION);
    member_string(t, "command", plan->command);
    tsr_json_key(t, "tensors");
    tsr_json_begin_array(t, false);
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (!plan->steps[s].op->has_stats)
            continue;
        const tsr_tensor *const x = plan->steps[s].in[0];
        quantized++;
        tsr_quant_stats_add(&whole, &rows[s]);
        tsr_json_begin_object(t, true);
        member_string(t, "name", x->name);
        member_string(t, "file", plan->files[plan->steps[s].file].name);
        tsr_json_key(t, "shape");
        tsr_json_begin_array(t, true);
        for (unsigned i = 0; i < x->rank; i++)
            tsr_json_u64(t, x->shape[i]);
        tsr_json_end_array(t);
        tsr_quant_stats_json(t, &rows[s]);
        tsr_json_key(t, "max_abs_error_at");
        tsr_json_begin_array(t, true);
        uint64_t at = rows[s].max_error_at, size = tsr_tensor_elements(x);
        for (unsigned i = 0; i < x->rank; i++) {
            size /= x->shape[i];
            tsr_json_u64(t, at / size);
            at %= size;
        }
        tsr_json_end_array(t);
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
    tsr_json_key(t, "whole");
    tsr_json_begin_object(t, false);
    tsr_json_key(t, "tensors_quantized");
    tsr_json_u64(t, quantized);
    tsr_json_key(t, "tensors_kept");
    tsr_json_u64(t, plan->n_notes - quantized);
    tsr_quant_stats_json(t, &whole);
    tsr_json_end_object(t);
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
}

/* ---- the plan ---- */

static tsr_status plan_quantize(tsr_plan *plan, const tsr_tensor *t, const tsr_quantize_options *o, tsr_err *err)
{
    tsr_tensor *const codes = tsr_plan_tensor(plan, t), *const scales = tsr_plan_tensor(plan, t);
    if (codes == NULL || scales == NULL || (scales->name = scale_name(plan, t->name, o->dialect)) == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory while planning");
    if (tsr_checkpoint_find(plan->sources[0], scales->name) != NULL)
        return tsr_fail(err, TSR_E_FORMAT, "%s: '%s' is there already: is the checkpoint quantized?",
                        plan->sources[0]->files[t->file].path, scales->name);
    codes->dtype = TSR_F8_E4M3;
    codes->bytes = tsr_tensor_elements(t);
    scales->dtype = TSR_F32;
    scales->shape[t->rank - 2] = tsr_ceil_div(t->shape[t->rank - 2], o->block.block_rows);
    scales->shape[t->rank - 1] = tsr_ceil_div(t->shape[t->rank - 1], o->block.block_cols);
    scales->bytes = tsr_tensor_elements(scales) * sizeof(float);
    return tsr_plan_step(plan,
                         &(tsr_step){.op = &kQuantizeOp,
                                     .params = &o->block,
                                     .in = &t,
                                     .out = {codes, scales},
                                     .n_in = 1,
                                     .n_out = 2,
                                     .held = 1u << 1},
                         err);
}

static tsr_status plan_tensors(tsr_plan *plan, const tsr_quantize_options *o, const tsr_decision *decisions,
                               tsr_err *err)
{
    const tsr_tensors *const all = &plan->sources[0]->tensors;
    for (size_t i = 0; i < all->count; i++) {
        const tsr_tensor *const t = &all->items[i];
        const bool quantize = decisions[i].treatment == TSR_QUANTIZE;
        TSR_TRY(quantize ? plan_quantize(plan, t, o, err) : tsr_plan_copy(plan, t, t->name, err));
        TSR_TRY(tsr_plan_add_note(plan, t, quantize ? "quantize" : "copy", decisions[i].reason, err));
    }
    return TSR_OK;
}

/* The options that shape the output, in one spelling. */
static tsr_status spell_command(tsr_plan *plan, const tsr_quantize_options *o, tsr_err *err)
{
    tsr_text t = {0};
    tsr_text_printf(&t,
                    "quantize --scheme fp8-block --block %ux%u --scale-fmt %s --scales %s --dialect %s "
                    "--max-shard-size %llu",
                    o->block.block_rows, o->block.block_cols, o->block.scale_fmt == TSR_SCALE_UE8M0 ? "ue8m0" : "f32",
                    o->block.search ? "mse" : "amax",
                    o->dialect == TSR_DIALECT_DEEPSEEK ? "deepseek" : "compressed-tensors",
                    (unsigned long long)o->max_shard_bytes);
    for (size_t i = 0; i < o->policy.n_include; i++)
        tsr_text_printf(&t, " --include %s", o->policy.include[i]);
    for (size_t i = 0; i < o->policy.n_exclude; i++)
        tsr_text_printf(&t, " --exclude %s", o->policy.exclude[i]);
    tsr_status status = tsr_text_status(&t, err);
    if (status == TSR_OK && (plan->command = tsr_arena_dup(&plan->arena, t.data, t.size)) == NULL)
        status = tsr_fail(err, TSR_E_NOMEM, "out of memory while planning");
    tsr_text_free(&t);
    return status;
}

/* A multimodal model's language part has a configuration, and so a model_type, of its own. */
static const char *model_type(tsr_plan *plan)
{
    const tsr_checkpoint *const c = plan->sources[0];
    if (c->config == NULL)
        return NULL;
    const char *const type = tsr_json_find_string(c->config, c->config_size, "model_type", &plan->arena);
    if (tsr_policy_knows(type))
        return type;
    const char *const text = tsr_json_find_string(c->config, c->config_size, "text_config.model_type", &plan->arena);
    return text == NULL ? type : text;
}

tsr_status tsr_quantize_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_quantize_options *options,
                             tsr_err *err)
{
    *plan = tsr_plan_begin(source, 1);
    plan->report = report;
    tsr_policy_options policy = options->policy;
    policy.block_rows = options->block.block_rows;
    tsr_decision *const decisions = calloc((*source)->tensors.count + 1, sizeof *decisions);
    tsr_status status = decisions == NULL ? tsr_fail(err, TSR_E_NOMEM, "out of memory while planning") : TSR_OK;
    if (status == TSR_OK)
        status = check_unquantized(*source, err);
    if (status == TSR_OK)
        status = spell_command(plan, options, err);
    if (status == TSR_OK)
        status = tsr_policy_decide(*source, model_type(plan), &policy, &plan->arena, decisions, err);
    if (status == TSR_OK)
        status = plan_tensors(plan, options, decisions, err);
    if (status == TSR_OK)
        status = tsr_plan_pack(plan, "", options->max_shard_bytes, err);
    if (status == TSR_OK)
        status = tsr_plan_side_files(plan, "", "*", err);
    if (status == TSR_OK)
        status = tsr_plan_index(plan, "", err);
    if (status == TSR_OK)
        status = plan_config(plan, options, decisions, err);
    if (status == TSR_OK)
        status = tsr_plan_finish(plan, err);
    free(decisions);
    if (status != TSR_OK)
        tsr_plan_free(plan);
    return status;
}
