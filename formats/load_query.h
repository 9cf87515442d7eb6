/* Private to the loaders' rules (loaders.c, load_*.c): one loader being asked about one checkpoint. */
#ifndef TSR_FORMATS_LOAD_QUERY_H
#define TSR_FORMATS_LOAD_QUERY_H

#include "formats/ignore_list.h"
#include "formats/json.h"
#include "formats/linears.h"
#include "formats/loaders.h"

/* What sets a consumer apart. */
typedef struct tsr_consumer {
    const char *name;
    bool compressed_tensors; /* knows this quant_method besides fp8 */
    bool e8m0;               /* reads scales of dtype F8_E8M0, where scale_fmt says ue8m0 */
    bool lists;              /* asks config.json which modules are not quantized */
    bool fuses;              /* runs q/k/v, gate/up and q_a/kv_a as one layer */
    bool stacks;             /* reads experts that are stacked in one tensor */
    bool trusts_ue8m0;       /* takes scale_fmt ue8m0 at its word */
    tsr_matching matching;   /* of the lists, with quant_method fp8 */
} tsr_consumer;

typedef struct tsr_load_query {
    const tsr_load_subject *s;
    const tsr_linears *linears;
    const tsr_consumer *who;
    tsr_loader loader;
    tsr_json_text config; /* the quantization's object; .data NULL: none */
    const tsr_ignore_list *ignored;
    bool block; /* weights are e4m3 in blocks */
    tsr_issues *issues;
    unsigned tp; /* 0 while rules are asked that hold at any */
} tsr_load_query;

/* Adds an issue about this loader at q->tp; its rule, advice and format are literals. */
void tsr_query_note(const tsr_load_query *q, bool fatal, const char *tensor, const char *rule, const char *advice,
                    const char *fmt, ...) TSR_PRINTF(6, 7);

/* Whether the loader reads this layer: MTP is left to engines that decode with it. */
bool tsr_query_reads(const tsr_load_query *q, const tsr_linear *linear);

/* Whether the checkpoint says quant_method compressed-tensors. */
bool tsr_query_compressed_tensors(const tsr_load_query *q);

/* The rules. load_config.c: */
void tsr_rule_config(const tsr_load_query *q);
void tsr_rule_scales(const tsr_load_query *q);
void tsr_rule_dtypes(const tsr_load_query *q);
void tsr_rule_lists(const tsr_load_query *q);

/* load_contents.c: */
void tsr_rule_presence(const tsr_load_query *q);
void tsr_rule_transformers(const tsr_load_query *q);
void tsr_rule_head_scales(const tsr_load_query *q);
void tsr_rule_deepseek(const tsr_load_query *q);

/* load_shapes.c, at each TP size: */
void tsr_rule_shapes(const tsr_load_query *q);

#endif
