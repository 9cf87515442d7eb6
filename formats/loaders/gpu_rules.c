/* The table of rules about GPUs: formats for which a loader has no kernel there. Sources: vLLM's
 * kernels/linear/__init__.py and its documentation of INT8; SGLang's compressed_tensors.py and fp8.py. */
#include "formats/checkpoint/config.h"
#include "formats/loaders/load_query.h"

typedef bool layer_fn(const tsr_load_query *q, const tsr_linear *l);

static bool is_int8(const tsr_load_query *q, const tsr_linear *l)
{
    (void)q;
    return tsr_linear_is_quantized(l) && l->coding == TSR_CODED_INT8;
}

static bool is_nvfp4(const tsr_load_query *q, const tsr_linear *l)
{
    (void)q;
    return tsr_linear_is_kind(l, "nvfp4-ct") || tsr_linear_is_kind(l, "nvfp4-modelopt");
}

static bool is_nvfp4_of_compressed_tensors(const tsr_load_query *q, const tsr_linear *l)
{
    (void)q;
    return tsr_linear_is_kind(l, "nvfp4-ct");
}

static bool is_nvfp4_with_inputs(const tsr_load_query *q, const tsr_linear *l)
{
    return is_nvfp4(q, l) && l->weight->input_scale != NULL;
}

static bool is_mxfp8(const tsr_load_query *q, const tsr_linear *l)
{
    (void)q;
    return tsr_linear_is_kind(l, "mxfp8");
}

static bool is_mxfp8_by_method(const tsr_load_query *q, const tsr_linear *l)
{
    return is_mxfp8(q, l) && tsr_query_method(q, "mxfp8");
}

/* Returns true for int4 whose layers quantize their inputs to FP8: SGLang's w4afp8, or compressed-tensors' in a
 * configuration of one group. */
static bool is_int4_with_fp8_inputs(const tsr_load_query *q, const tsr_linear *l)
{
    static const char kInputs[] = "config_groups.group_0.input_activations.type";
    const char *const path = tsr_quantization_path(q->s->checkpoint);
    tsr_json_text config, type;
    if (tsr_linear_is_kind(l, "int4-sglang"))
        return true;
    return tsr_linear_is_kind(l, "int4-ct") && path != NULL && tsr_config_find(q->s->checkpoint, path, &config) &&
           tsr_config_find_in(q->s->checkpoint, config, kInputs, &type) && tsr_json_is(type, "\"float\"");
}

enum { VLLM = 1 << TSR_LOADER_VLLM, SGLANG = 1 << TSR_LOADER_SGLANG };

#define FOR_MI300     "use `tessera quantize --scheme fp8-block` or `tessera quantize --scheme int4-weight-only`"
#define ONLY_HOPPER   "the loader's kernel for it needs compute capability 9.0"
#define WEIGHTS_ALONE "use `tessera quantize --scheme int4-weight-only`, which has the same codes"

static const struct {
    unsigned loaders; /* bit 1 << tsr_loader */
    tsr_gpu_model gpu;
    layer_fn *layer;
    const char *what, *why, *advice;
} kRules[] = {
    {VLLM, TSR_GPU_B200, is_int8, "int8 with quantized inputs",
     "the loader has no int8 kernel for compute capability 10.0", "use `tessera quantize --scheme fp8-channel`"},
    {VLLM | SGLANG, TSR_GPU_B200, is_int4_with_fp8_inputs, "int4 with FP8 inputs", ONLY_HOPPER, WEIGHTS_ALONE},
    {VLLM | SGLANG, TSR_GPU_MI300, is_int4_with_fp8_inputs, "int4 with FP8 inputs", ONLY_HOPPER, WEIGHTS_ALONE},
    {VLLM, TSR_GPU_MI300, is_nvfp4, "NVFP4", "the loader has no kernel for it on ROCm and emulates it in BF16",
     FOR_MI300},
    {VLLM, TSR_GPU_MI300, is_mxfp8, "MXFP8",
     "the loader's kernel needs gfx950, and elsewhere it emulates MXFP8 in BF16", FOR_MI300},
    {SGLANG, TSR_GPU_MI300, is_nvfp4_of_compressed_tensors, "NVFP4 of compressed-tensors",
     "the loader runs it by a CUDA kernel only", FOR_MI300},
    {VLLM | SGLANG, TSR_GPU_H100, is_nvfp4_with_inputs, "NVFP4 with scales of inputs",
     "the GPU has no FP4 instructions: the loader ignores these scales and runs the weights alone",
     "use `tessera quantize --scheme nvfp4-weight-only`"},
    {SGLANG, TSR_GPU_H100, is_mxfp8_by_method, "MXFP8", "the loader needs compute capability 10.0 for it",
     "use `tessera quantize --scheme fp8-block`"},
};

const char *tsr_gpu_name(tsr_gpu_model gpu)
{
    static const char *const kNames[TSR_GPU_COUNT] = {
        [TSR_GPU_H100] = "h100", [TSR_GPU_B200] = "b200", [TSR_GPU_MI300] = "mi300"};
    return kNames[gpu];
}

void tsr_rule_gpu(const tsr_load_query *q)
{
    for (size_t k = 0; k < COUNT(kRules); k++) {
        if (q->gpu != kRules[k].gpu || (kRules[k].loaders >> q->loader & 1) == 0)
            continue;
        for (size_t i = 0; i < q->linears->count; i++) {
            const tsr_linear *const l = &q->linears->items[i];
            if (tsr_query_reads(q, l) && kRules[k].layer(q, l))
                tsr_query_note(q, true, l->tensor->name, "GPU", kRules[k].advice, "%s on %s: %s", kRules[k].what,
                               tsr_gpu_name(q->gpu), kRules[k].why);
        }
    }
}

void tsr_gpu_rules_list(tsr_loader loader, tsr_list_rule_fn *list, void *context)
{
    for (size_t k = 0; k < COUNT(kRules); k++) {
        if ((kRules[k].loaders >> loader & 1) != 0)
            list(context, &(tsr_rule_text){.rule = "GPU",
                                           .what = kRules[k].what,
                                           .why = kRules[k].why,
                                           .advice = kRules[k].advice,
                                           .gpu = tsr_gpu_name(kRules[k].gpu)});
    }
}
