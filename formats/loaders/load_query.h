/* Private to the loader rules (loaders.c, load_*.c): one loader, and the checkpoint that it is to load. */
#pragma once

#include "formats/json/json.h"
#include "formats/loaders/loaders.h"
#include "formats/names/ignore_list.h"
#include "formats/weights/linears.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

/* Properties of a loader that rules depend on. */
typedef struct tsr_consumer {
    const char *name;
    const char *version;     /* version of the loader that its rules were checked against */
    const char *checked;     /* the same version, and how the rules were checked */
    bool compressed_tensors; /* accepts this quant_method besides fp8 */
    bool any_e8m0;           /* reads scales of dtype F8_E8M0 whatever scale_fmt is */
    bool stated_e8m0;        /* reads them if scale_fmt is ue8m0 */
    bool lists;              /* reads the list of unquantized modules from config.json */
    bool fuses;              /* runs q/k/v, gate/up and q_a/kv_a as one layer, and the experts of a layer as one */
    bool trusts_ue8m0;       /* assumes powers of two from scale_fmt ue8m0 without checking the scales */
    bool any_case;           /* accepts quant_method in upper and lower case */
    bool skips_empty;        /* reads the list of the second key if that of the first is empty */
    const char *keys[2];     /* keys of the ignore list with quant_method fp8; the first that exists is used */
    tsr_matching matching;   /* how entries of that list match */
} tsr_consumer;

/* Two members of a fused layer or of an expert with different global scales or input scales. */
typedef struct tsr_unequal {
    const tsr_linear *member, *first;
    const char *tensor; /* name of the member's scale tensor */
    float value, other; /* value of the member, and of the first member */
    bool input;
} tsr_unequal;

enum { TSR_LOAD_GROUPS = 16 }; /* limit of the groups of a configuration that are read */

typedef struct tsr_load_query {
    const tsr_load_subject *s;
    const tsr_linears *linears;
    const tsr_consumer *who;
    tsr_loader loader;
    tsr_gpu_model gpu;
    const char *checked;       /* the version that the current rule was checked against */
    const char *family;        /* model_type, of the text model in a multimodal one; "" if absent */
    const char *model;         /* model_type of the whole model; "" if absent */
    tsr_json_text config;      /* the quantization object; .data NULL: none */
    tsr_json_text side;        /* that of ModelOpt's hf_quant_config.json; .data NULL: none. If config.json has none,
                                * `config` is the same */
    bool mixed, nvfp4_experts; /* quant_algo MIXED_PRECISION; moe_quant_algo NVFP4 */
    const tsr_unequal *unequal;
    size_t n_unequal;
    const tsr_ignore_list *ignored;
    const tsr_ignore_list *targets; /* compressed-tensors: the targets of each group */
    const tsr_json_text *groups;    /* and its object */
    size_t n_targets;
    bool block; /* weights are block e4m3, or will be */
    tsr_issues *issues;
    unsigned tp; /* 0 while rules that do not depend on the TP size run */
} tsr_load_query;

/* Adds an issue for this loader at q->tp. `rule`, `advice` and `format` are string literals. */
void tsr_query_note(const tsr_load_query *q, bool fatal, const char *tensor, const char *rule, const char *advice,
                    const char *fmt, ...) TSR_PRINTF(6, 7);

/* Returns true if the loader reads this layer. Only engines that decode with MTP read MTP layers. */
bool tsr_query_reads(const tsr_load_query *q, const tsr_linear *linear);

/* Returns the length of "model.layers.3.mlp.experts." in a routed expert's module; 0 for others. */
size_t tsr_query_experts_length(const tsr_linear *linear);

/* Returns true if the checkpoint says quant_method compressed-tensors. */
bool tsr_query_compressed_tensors(const tsr_load_query *q);

/* Returns true if the checkpoint says this quant_method, in whatever case. */
bool tsr_query_method(const tsr_load_query *q, const char *method);

/* Returns true if tensors have DeepSeek-V4's own names, by model_type: X.weight with X.scale. */
bool tsr_query_deepseek_v4(const tsr_load_query *q);

/* Returns true if the checkpoint says quant_method fp8, in upper or lower case as this loader accepts it. */
bool tsr_query_fp8(const tsr_load_query *q);

/* Returns true if the model_type is one of `families`, words separated by spaces. */
bool tsr_query_family(const tsr_load_query *q, const char *families);

/* Writes the name under which engines build the fused layer of l to `name`, of `size` bytes. (load_lists.c) */
void tsr_query_joined_name(const tsr_linear *l, char *name, size_t size);

/* For SGLang with compressed-tensors: returns true if its class of this model lists the members of l's fused layer. If
 * not, it looks up only the fused layer's own name in targets and ignore. (load_lists.c) */
bool tsr_query_sglang_maps(const tsr_load_query *q, const tsr_linear *l);

/* Returns true for int4 of compressed-tensors if every group of config_groups quantizes inputs. */
bool tsr_query_w4afp8(const tsr_load_query *q, const tsr_weight *weight);

/* Reports a layer without a scale of its input, of which config.json says that it is static. */
void tsr_query_need_input_scale(const tsr_load_query *q, const tsr_linear *l);

/* Returns true if the output head is quantized. */
bool tsr_query_quantized_head(const tsr_load_query *q);

enum { TSR_MODULE_NAME = 1200 }; /* bytes of a buffer for the name of a module */

/* Returns the name of a module in the loader's class of this model, in `name` or in the buffer. (load_lists.c) */
const char *tsr_query_built(const tsr_load_query *q, const char *name, char buffer[TSR_MODULE_NAME]);

/* Writes the name under which engines build a layer: that of the fused layer, of all experts, or its own.
 * (load_modelopt.c) */
void tsr_modelopt_built_name(const tsr_load_query *q, const tsr_linear *l, char *name, size_t size);

/* Returns true if ModelOpt's list makes the loader build the layer unquantized. (load_modelopt.c) */
bool tsr_modelopt_excludes(const tsr_load_query *q, const tsr_linear *l);

/* Checks a layer under its stated algorithm, given in quotation marks. (load_modelopt.c) */
void tsr_modelopt_check_layer(const tsr_load_query *q, const tsr_linear *l, tsr_json_text algorithm);

/* The rules. load_config.c: */
void tsr_rule_config(const tsr_load_query *q);
void tsr_rule_scales(const tsr_load_query *q);
void tsr_rule_dtypes(const tsr_load_query *q);

/* load_lists.c: */
void tsr_rule_lists(const tsr_load_query *q);

/* load_kinds.c: which loader reads which kind */
void tsr_rule_kinds(const tsr_load_query *q);

/* load_small_groups.c: NVFP4, MXFP4, MXFP8, AWQ and GPTQ */
void tsr_rule_small_groups(const tsr_load_query *q);

/* load_targets.c: config_groups of compressed-tensors */
void tsr_rule_targets(const tsr_load_query *q);

/* load_deepseek_v4.c: DeepSeek-V4 and V4.1 */
void tsr_rule_deepseek_v4(const tsr_load_query *q);

/* Returns true if SGLang looks up this layer of DeepSeek-V4 under its own name, which load_deepseek_v4.c checks. */
bool tsr_deepseek_v4_asks(const tsr_load_query *q, const tsr_linear *l);

/* load_modelopt.c: */
void tsr_rule_modelopt(const tsr_load_query *q);

/* load_mixed.c: ModelOpt's MIXED_PRECISION */
void tsr_rule_mixed(const tsr_load_query *q);

/* load_globals.c. The first function reads the data of the second, once for all loaders. */
tsr_status tsr_globals_compare(tsr_load_query *q, tsr_arena *arena, tsr_err *err);
void tsr_rule_globals(const tsr_load_query *q);

/* load_experts.c: */
void tsr_rule_experts(const tsr_load_query *q);
void tsr_rule_router(const tsr_load_query *q);
void tsr_rule_linear_attention(const tsr_load_query *q);

/* class_rules.c: the table of rules about model classes */
void tsr_rule_classes(const tsr_load_query *q);

/* gpu_rules.c: the table of rules about GPUs, and a function that lists them */
void tsr_rule_gpu(const tsr_load_query *q);
void tsr_gpu_rules_list(tsr_loader loader, tsr_list_rule_fn *list, void *context);

/* load_contents.c: */
void tsr_rule_presence(const tsr_load_query *q);
void tsr_rule_transformers(const tsr_load_query *q);
void tsr_rule_head_scales(const tsr_load_query *q);
void tsr_rule_deepseek(const tsr_load_query *q);

/* load_shapes.c: rules for each TP size */
void tsr_rule_shapes(const tsr_load_query *q);
