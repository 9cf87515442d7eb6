/* Which loaders can load a checkpoint, and at which tensor-parallel (TP) sizes. The rules for five loaders are tables
 * and checks of headers and config.json.
 *
 * vllm           vLLM: formats/loaders/load_kinds.c has the kinds of weights that each reads, by quant_method
 * sglang         SGLang: the same
 * transformers   Hugging Face transformers on one device or with layers spread over several: shapes do not depend on TP
 * deepseek       DeepSeek-V3's inference code, after its own convert.py; TP is its --model-parallel
 * trtllm         TensorRT-LLM's PyTorch backend */
#pragma once

#include "formats/loaders/issues.h"
#include "formats/names/model.h"
#include "formats/weights/weights.h"

typedef enum tsr_loader {
    TSR_LOADER_VLLM,
    TSR_LOADER_SGLANG,
    TSR_LOADER_TRANSFORMERS,
    TSR_LOADER_DEEPSEEK,
    TSR_LOADER_TRTLLM,
    TSR_LOADER_COUNT
} tsr_loader;

/* GPUs for which loaders have different kernels. */
typedef enum tsr_gpu_model {
    TSR_GPU_ANY,   /* rules about GPUs do not apply */
    TSR_GPU_H100,  /* sm_90: also H200 */
    TSR_GPU_B200,  /* sm_100: also GB200 */
    TSR_GPU_MI300, /* gfx942: also MI325 */
    TSR_GPU_COUNT
} tsr_gpu_model;

enum { TSR_MAX_TP_SIZES = 16 };

/* The checkpoint to check. All pointers are borrowed. */
typedef struct tsr_load_subject {
    const tsr_checkpoint *checkpoint;
    const tsr_weights *weights; /* from tsr_weights_survey */
    const tsr_model *model;
    const tsr_tensor *odd_scale; /* a scale tensor with a value that is not a power of two; NULL: none */
    /* An E8M0 scale tensor with the byte 0 over codes that are not all zero, and the position of that byte; NULL:
     * none. */
    const tsr_tensor *zero_exponent;
    uint64_t zero_exponent_at;
    bool index_metadata; /* the index has the key "metadata" */
    bool unsound;        /* weights and scales do not pair, or scales are NaN: no loader can read it */
} tsr_load_subject;

typedef struct tsr_load_table {
    tsr_loader loaders[TSR_LOADER_COUNT];
    size_t n_loaders;
    unsigned tp[TSR_MAX_TP_SIZES];
    size_t n_tp;
    tsr_gpu_model gpu;
    bool ok[TSR_LOADER_COUNT][TSR_MAX_TP_SIZES]; /* [of loaders][of tp] */
} tsr_load_table;

/* Returns the name: "vllm", ... Static storage. */
const char *tsr_loader_name(tsr_loader loader);

/* Returns the name of a GPU as --gpu takes it: "h100", ... Static storage; not for TSR_GPU_ANY. */
const char *tsr_gpu_name(tsr_gpu_model gpu);

/* Returns the version that the loader's rules were checked against, and how ("vLLM 0.33.0, load_weights run on the
 * CPU"). Static storage. */
const char *tsr_loader_checked(tsr_loader loader);

/* Returns the version alone, "0.33.0". Static storage. */
const char *tsr_loader_version(tsr_loader loader);

/* A rule in words; all members have static storage. */
typedef struct tsr_rule_text {
    const char *rule;   /* its name in findings; NULL: a check with several rules */
    const char *what;   /* the layer and the condition, or the subject of a check */
    const char *why;    /* the loader's behaviour with such a layer; NULL for a check */
    const char *advice; /* NULL for a check */
    bool of_class;      /* it is a rule about this model_type */
    const char *gpu;    /* the GPU that it is limited to; NULL: any */
} tsr_rule_text;

/* Calls list(context, rule) for each rule of a loader that concerns a model_type. */
typedef void tsr_list_rule_fn(void *context, const tsr_rule_text *rule);
void tsr_loader_list_rules(tsr_loader loader, const char *model_type, tsr_list_rule_fn *list, void *context);

/* Fills table->ok for the loaders and TP sizes (each at least 1) of the table. `issues` receives the reasons if a
 * loader fails. */
tsr_status tsr_loaders_check(tsr_load_table *table, const tsr_load_subject *subject, tsr_issues *issues, tsr_err *err);
