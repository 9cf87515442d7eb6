/* Implements `tessera calibrate`: runs tokens through a model and writes statistics of the inputs of its layers. */
#include "cli/commands/commands.h"
#include "cli/help/next_command.h"
#include "cli/io/output.h"
#include "cli/show/pass_options.h"
#include "formats/json/json_write.h"
#include "verify/calibrate/calibrate.h"

#include <string.h>

typedef struct calibrating {
    const char *src, *out;
    tsr_pass_options pass;
    uint64_t least;
    bool hessians;
    const char *save_every;
    double save_seconds;
    size_t resumed; /* layers */
    tsr_calibrate_state state;

    tsr_checkpoint *checkpoint;
    tsr_weights weights;
    tsr_side side;
    tsr_collector collector;
    tsr_input_products products;
    tsr_expert_coverage coverage;
    tsr_forward_figures figures;
} calibrating;

static const char kHelp[] =
    "tessera calibrate SRC --tokens FILE -o STATS.safetensors [options]\n\n"
    "Runs tokens through a model, layer by layer, and writes statistics of the inputs of its linear layers:\n"
    "the mean square of each channel, the smallest and the largest value, and the number of tokens; also\n"
    "the ranges of keys and values. Weights are streamed from disk, so memory depends on the tokens and\n"
    "not on the model. quantize reads the file with --importance, --activations and --kv-ranges.\n\n"
    "Experts that see fewer than --min-tokens tokens get the statistics of all experts of their layer.\n\n"
    "Families: those of tessera verify forward.\n\n"
    "Examples:\n"
    "  tessera calibrate Llama-3.1-8B --tokens text.txt -o stats.safetensors\n"
    "  tessera quantize Llama-3.1-8B -o out --scheme nvfp4 --activations stats.safetensors --importance stats.safetensors\n"
    "  tessera calibrate Llama-3.1-8B --tokens text.txt --hessians -o stats.safetensors     for quantize --method gptq\n"
    "  tessera calibrate Qwen3-30B-A3B --tokens ids.npy --count 2048 --device cuda -o stats.safetensors\n\n"
    "Options:\n";

static void set_defaults(tsr_command_context *c)
{
    calibrating *const a = c->job;
    a->pass = tsr_pass_options_defaults();
    a->least = 32;
    a->save_seconds = 60;
    a->products.fd = -1;
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    calibrating *const a = c->job;
    const tsr_option own[] = {
        {"-o", TSR_OPT_TEXT, &a->out, "FILE", "write the statistics, as safetensors"},
        {"--min-tokens", TSR_OPT_COUNT, &a->least, "N",
         "experts that see fewer tokens get the statistics of all experts of their layer (32)"},
        {"--hessians", TSR_OPT_FLAG, &a->hessians, NULL,
         "also write the mean of x x^T of each input x, which quantize --method gptq needs (docs/gptq.md)"},
        {"--save-every", TSR_OPT_TEXT, &a->save_every, "SECONDS",
         "store the state in OUT.partial after a layer, if so much time has passed; the same command resumes (60)"},
        {0},
    };
    tsr_pass_options_append(&a->pass, options);
    tsr_options_append(options, own);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    calibrating *const a = c->job;
    a->src = c->words[0];
    if (a->src == NULL || a->pass.tokens == NULL || a->out == NULL)
        return tsr_fail(err, TSR_E_USAGE, "%s: tessera calibrate SRC --tokens FILE -o STATS.safetensors",
                        a->src == NULL           ? "no checkpoint given"
                        : a->pass.tokens == NULL ? "no text given"
                                                 : "no output given");
    if (!tsr_ends_with(a->out, ".safetensors"))
        return tsr_fail(err, TSR_E_USAGE, "-o %s: the name must end in .safetensors", a->out);
    TSR_TRY(tsr_pass_options_check(&a->pass, err));
    return tsr_parse_number("--save-every", a->save_every, TSR_FROM_ZERO, &a->save_seconds, err);
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const calibrating *const a = c->job;
    paths->sources[0] = a->src;
    paths->sources[1] = a->pass.tokens;
    paths->more[0] = (tsr_output){"-o", a->out, .tensors = true};
    paths->unconfined = tsr_pass_unconfined(&a->pass);
}

static tsr_status open_source(tsr_command_context *c, tsr_err *err)
{
    calibrating *const a = c->job;
    TSR_TRY(tsr_checkpoint_open(&a->checkpoint, a->src, c->common.ignore.items, c->common.ignore.count, err));
    TSR_TRY(tsr_weights_survey(&a->weights, a->checkpoint, (tsr_block){0, 0}, tsr_weights_pass_over, NULL, err));
    a->side = (tsr_side){a->checkpoint, &a->weights};
    return TSR_OK;
}

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    calibrating *const a = c->job;
    const tsr_forward_request request =
        tsr_pass_request(&a->pass, &a->side, tsr_terminal_run_options(terminal, c->common.threads, a->pass.memory));
    TSR_TRY(tsr_calibrate_state_open(&a->state, a->out, err));
    if (a->hessians)
        TSR_TRY(tsr_input_products_open(&a->products, a->state.products, err));
    const tsr_calibrate_options options = {
        .state = &a->state, .save_seconds = a->save_seconds, .products = a->hessians ? &a->products : NULL};
    TSR_TRY(tsr_calibrate(&request, &options, &a->collector, &a->figures, &a->resumed, err));
    TSR_TRY(tsr_collector_pool_experts(&a->collector, a->least, &a->coverage, err));
    TSR_TRY(tsr_collector_write(&a->collector, a->out, err));
    return tsr_calibrate_state_remove(&a->state, err);
}

/* ---- the result ---- */

static size_t count_layers(const calibrating *a)
{
    size_t n = 0;
    for (size_t i = 0; i < a->collector.count; i++)
        n += a->collector.items[i].sum_x2 != NULL;
    return n;
}

static tsr_status print(tsr_command_context *c, tsr_err *err)
{
    const calibrating *const a = c->job;
    const tsr_expert_coverage *const e = &a->coverage;
    (void)err;
    tsr_print("%zu tokens in %zu sequences, on %s: statistics of the inputs of %zu layers in ", a->figures.tokens,
              a->figures.sequences, a->figures.device, count_layers(a));
    tsr_print_path(a->out);
    tsr_print("\n");
    if (e->experts > 0)
        tsr_print(
            "%zu experts in %zu layer%s: the fewest tokens are %llu ('%s'); %zu saw fewer than %llu (%zu none) and "
            "got the statistics of all experts of their layer\n",
            e->experts, e->layers, tsr_plural(e->layers), U64(e->fewest), e->fewest_name, e->few, U64(a->least),
            e->unseen);
    if (a->resumed > 0)
        tsr_print("resumed after %zu layer%s of an earlier run\n", a->resumed, tsr_plural(a->resumed));
    if (a->hessians)
        tsr_print(
            "products of %zu inputs, %llu MB; %zu matrices of experts with fewer tokens than channels are left out\n",
            a->products.count, U64(a->products.bytes / 1000000), a->products.skipped);
    tsr_print("next: tessera quantize ");
    tsr_print_path(a->src);
    tsr_print(" -o DST --scheme nvfp4-weight-only --importance ");
    tsr_print_path(a->out);
    tsr_print(a->hessians ? " --method gptq\n" : "\n");
    return TSR_OK;
}

static void write_modules(tsr_text *t, const calibrating *a)
{
    tsr_json_member_array(t, "modules", false);
    for (size_t i = 0; i < a->collector.count; i++) {
        const tsr_collected *const e = &a->collector.items[i];
        for (size_t k = 0; k < e->matrices; k++) {
            tsr_json_begin_object(t, true);
            tsr_json_member_string(t, "name", e->module);
            if (e->matrices > 1)
                tsr_json_member_u64(t, "matrix", k);
            tsr_json_member_u64(t, "tokens", e->tokens[k]);
            tsr_json_member_bool(t, "pooled", e->pooled[k]);
            tsr_json_member_number(t, "min", e->least[k]);
            tsr_json_member_number(t, "max", e->largest[k]);
            tsr_json_end_object(t);
        }
    }
    tsr_json_end_array(t);
}

static void write_json(const tsr_command_context *c, tsr_text *t)
{
    const calibrating *const a = c->job;
    const tsr_expert_coverage *const e = &a->coverage;
    tsr_json_member_string(t, "checkpoint", a->src);
    tsr_json_member_string(t, "statistics", a->out);
    tsr_json_member_u64(t, "sequences", a->figures.sequences);
    tsr_json_member_u64(t, "tokens", a->figures.tokens);
    tsr_json_member_string(t, "device", a->figures.device);
    tsr_json_member_u64(t, "weight_bytes_read", a->figures.weight_bytes);
    tsr_json_member_u64(t, "activation_bytes", a->figures.activation_bytes);
    tsr_json_member_u64(t, "layers", count_layers(a));
    tsr_json_member_u64(t, "layers_resumed", a->resumed);
    tsr_json_member_u64(t, "product_inputs", a->products.count);
    tsr_json_member_u64(t, "product_bytes", a->products.bytes);
    tsr_json_member_u64(t, "product_experts_left_out", a->products.skipped);
    tsr_json_member_u64(t, "experts", e->experts);
    tsr_json_member_u64(t, "fewest_tokens", e->fewest);
    tsr_json_member_u64(t, "experts_pooled", e->few);
    tsr_json_member_u64(t, "experts_unseen", e->unseen);
    write_modules(t, a);
}

static void close_job(tsr_command_context *c)
{
    calibrating *const a = c->job;
    tsr_collector_free(&a->collector);
    tsr_input_products_close(&a->products);
    tsr_calibrate_state_free(&a->state);
    tsr_weights_free(&a->weights);
    tsr_checkpoint_close(a->checkpoint);
}

const tsr_command tsr_command_calibrate = {
    .name = "calibrate",
    .summary = "means and ranges of layer inputs, measured on text",
    .schema = "tessera-calibrate/1",
    TSR_COMMAND(1, TSR_TAKES_IGNORE_FILE | TSR_TAKES_THREADS | TSR_TAKES_PROGRESS, calibrating),
    .set_defaults = set_defaults,
    .open = open_source,
    .print = print,
    .write_json = write_json,
};
