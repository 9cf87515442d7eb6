/* Private to the loaders' rules (loaders.c, load_*.c): one loader, and one checkpoint that it is to load. */
#ifndef TSR_FORMATS_LOADERS_LOAD_QUERY_H
#define TSR_FORMATS_LOADERS_LOAD_QUERY_H

#include "formats/json/json.h"
#include "formats/loaders/loaders.h"
#include "formats/names/ignore_list.h"
#include "formats/weights/linears.h"

#define COUNT(table) (sizeof(table) / sizeof *(table))

/* The properties of a loader that the rules ask for. */
typedef struct tsr_consumer {
    const char *name;
    const char *checked;     /* the version that its rules were checked against, and how */
    bool compressed_tensors; /* accepts this quant_method besides fp8 */
    bool any_e8m0;           /* reads scales of dtype F8_E8M0 whatever scale_fmt says */
    bool stated_e8m0;        /* reads them where scale_fmt says ue8m0 */
    bool lists;              /* reads from config.json which modules are not quantized */
    bool fuses;              /* runs q/k/v, gate/up and q_a/kv_a as one layer, and the experts of a layer as one */
    bool trusts_ue8m0;       /* relies on scale_fmt ue8m0 without looking at the scales */
    bool any_case;           /* accepts quant_method in upper and lower case */
    bool skips_empty;        /* reads the list of the second key when that of the first is empty */
    const char *keys[2];     /* names of the ignore list with quant_method fp8; the first present one counts */
    tsr_matching matching;   /* how entries of that list match */
} tsr_consumer;

/* Two members of a fused layer, or of an expert, whose global scales differ, or whose inputs' scales do. */
typedef struct tsr_unequal {
    const tsr_linear *member, *first;
    const char *tensor; /* of the member: the scale itself */
    float value, other; /* of the member, and of the first */
    bool input;
} tsr_unequal;

enum { TSR_LOAD_GROUPS = 16 }; /* groups of one configuration that are read; further ones are not */

typedef struct tsr_load_query {
    const tsr_load_subject *s;
    const tsr_linears *linears;
    const tsr_consumer *who;
    tsr_loader loader;
    const char *checked;       /* the version that the rule at hand was checked against */
    const char *family;        /* model_type, of the text model in a multimodal one; "" if absent */
    const char *model;         /* the model_type of the whole; "" if absent */
    tsr_json_text config;      /* the quantization's object; .data NULL: none */
    tsr_json_text side;        /* that of ModelOpt's hf_quant_config.json; .data NULL: none. Where config.json has none,
                             `config` is this one */
    bool mixed, nvfp4_experts; /* quant_algo MIXED_PRECISION; moe_quant_algo NVFP4 */
    const tsr_unequal *unequal;
    size_t n_unequal;
    const tsr_ignore_list *ignored;
    const tsr_ignore_list *targets; /* compressed-tensors: the targets of each group */
    const tsr_json_text *groups;    /* and its object */
    size_t n_targets;
    bool block; /* weights are e4m3 in blocks, or will be */
    tsr_issues *issues;
    unsigned tp; /* 0 while the rules run that hold at any TP size */
} tsr_load_query;

/* Adds an issue about this loader at q->tp; its rule, advice and format are literals. */
void tsr_query_note(const tsr_load_query *q, bool fatal, const char *tensor, const char *rule, const char *advice,
                    const char *fmt, ...) TSR_PRINTF(6, 7);

/* Returns true if the loader reads this layer. Only engines that decode with MTP read the layers of MTP. */
bool tsr_query_reads(const tsr_load_query *q, const tsr_linear *linear);

/* The length of "model.layers.3.mlp.experts." in a routed expert's module; 0 in others. */
size_t tsr_query_experts_length(const tsr_linear *linear);

/* Returns true if the checkpoint says quant_method compressed-tensors. */
bool tsr_query_compressed_tensors(const tsr_load_query *q);

/* Returns true if the checkpoint says this quant_method, in whatever case. */
bool tsr_query_method(const tsr_load_query *q, const char *method);

/* Returns true if its tensors have DeepSeek-V4's own names, by model_type: X.weight with X.scale. */
bool tsr_query_deepseek_v4(const tsr_load_query *q);

/* Returns true if the checkpoint says quant_method fp8, in upper or lower case as this loader accepts it. */
bool tsr_query_fp8(const tsr_load_query *q);

/* Returns true if the model_type is one of `families`, words between spaces. */
bool tsr_query_family(const tsr_load_query *q, const char *families);

/* The same for the model_type of the whole, where that is a multimodal model, too. */
bool tsr_query_model(const tsr_load_query *q, const char *families);

/* The name under which engines build the fused layer that l is a member of; `size` bytes at `name`. (load_lists.c) */
void tsr_query_joined_name(const tsr_linear *l, char *name, size_t size);

/* SGLang with compressed-tensors: whether its class of this model says which members the fused layer of l has. Where it
 * does not, targets and ignore are asked for the fused layer's own name only. (load_lists.c) */
bool tsr_query_sglang_maps(const tsr_load_query *q, const tsr_linear *l);

/* Returns true if the output head is quantized. */
bool tsr_query_quantized_head(const tsr_load_query *q);

/* The name of a module as the loader's class of this model builds it, in `name`. (load_lists.c) */
const char *tsr_query_built(const tsr_load_query *q, const char *name);

/* The name under which engines build a layer: that of the fused layer, of all experts, or its own. (load_modelopt.c) */
void tsr_modelopt_built_name(const tsr_linear *l, char *name, size_t size);

/* Returns true if ModelOpt's list makes the loader build the layer as a plain one. (load_modelopt.c) */
bool tsr_modelopt_excludes(const tsr_load_query *q, const tsr_linear *l);

/* A layer that is joined in the file, under the algorithm that is stated for it, in quotation marks. (load_modelopt.c) */
void tsr_modelopt_check_joined(const tsr_load_query *q, const tsr_linear *l, tsr_json_text algorithm);

/* The rules. load_config.c: */
void tsr_rule_config(const tsr_load_query *q);
void tsr_rule_scales(const tsr_load_query *q);
void tsr_rule_dtypes(const tsr_load_query *q);

/* load_lists.c: */
void tsr_rule_lists(const tsr_load_query *q);

/* load_kinds.c, who reads which kind at all: */
void tsr_rule_kinds(const tsr_load_query *q);

/* load_small_groups.c, of NVFP4, MXFP4, MXFP8, AWQ and GPTQ: */
void tsr_rule_small_groups(const tsr_load_query *q);

/* load_targets.c, of compressed-tensors' config_groups: */
void tsr_rule_targets(const tsr_load_query *q);

/* load_native.c, of DeepSeek-V4 and V4.1: */
void tsr_rule_deepseek_v4(const tsr_load_query *q);

/* Returns true if SGLang asks for this layer of DeepSeek-V4 under a name of its own, which is a rule of load_native.c. */
bool tsr_deepseek_v4_asks(const tsr_load_query *q, const tsr_linear *l);

/* load_modelopt.c: */
void tsr_rule_modelopt(const tsr_load_query *q);

/* load_mixed.c, of ModelOpt's MIXED_PRECISION: */
void tsr_rule_mixed(const tsr_load_query *q);

/* load_globals.c. The first reads what the second is about, once for all loaders: */
tsr_status tsr_globals_compare(tsr_load_query *q, tsr_arena *arena, tsr_err *err) TSR_WARN_UNUSED;
void tsr_rule_globals(const tsr_load_query *q);

/* load_classes.c, what single model classes do: */
void tsr_rule_experts(const tsr_load_query *q);
void tsr_rule_classes(const tsr_load_query *q);

/* load_contents.c: */
void tsr_rule_presence(const tsr_load_query *q);
void tsr_rule_transformers(const tsr_load_query *q);
void tsr_rule_head_scales(const tsr_load_query *q);
void tsr_rule_deepseek(const tsr_load_query *q);

/* load_shapes.c, at each TP size: */
void tsr_rule_shapes(const tsr_load_query *q);

#endif
