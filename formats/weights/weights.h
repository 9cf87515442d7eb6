/* Pairs the quantized weights of a checkpoint with their scales and block sizes.
 *
 * Pairing looks at names, shapes, dtypes and config.json; no weight is read. It is strict: every quantized tensor has
 * exactly one scale, with the grid that its shape and config.json require, and every scale has one weight. Otherwise
 * the checkpoint is refused, and the tensor is named. (An e4m3 weight without its scale is wrong by a factor of
 * thousands, and nothing crashes.)
 *
 * Spellings of the scale of X.weight: X.weight_scale_inv (DeepSeek, Hugging Face), X.weight_scale (compressed-tensors,
 * Quark), X.scale (DeepSeek's inference code), X.scale_weight (ComfyUI); of experts.gate_up_proj, a stack:
 * experts.gate_up_proj_scale_inv, _scales_inv or _scale. All of them are multipliers: y = value(code) * scale.
 *
 * The parts of an absorbed kv_b_proj have names of their own, and so have their scales (formats/names/absorbed.h).
 *
 * Integers are compressed-tensors': X.weight I8 with X.weight_scale (int-quantized), or X.weight_packed, words of I32
 * with X.weight_scale and X.weight_shape (pack-quantized); both may have X.weight_zero_point, in the same form as the
 * codes: y = (code - zero_point) * scale, and X.weight_g_idx, the group of each column, where that is not in order
 * (actorder). (compressors/pack_quantized/helpers.py)
 *
 * MXFP4, NVFP4, MXFP8, AWQ and GPTQ: formats/weights/kinds.h has the tensors of each. */
#ifndef TSR_FORMATS_WEIGHTS_WEIGHTS_H
#define TSR_FORMATS_WEIGHTS_WEIGHTS_H

#include "common/arena.h"
#include "common/block.h"
#include "common/status.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/names/coding.h"
#include "formats/weights/kinds.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A tensor with its meaning: a plain one, or codes with their scales.
 * Rows are a layer's outputs and columns its inputs, whichever way they are stored; element [m, r, c] of codes is
 *     (value(code) - zero_point) * scale * global_scale
 * with the scale and the zero point of [m, r / block.rows, c / block.cols]. All products are taken in FP32, scale and
 * global first. */
typedef struct tsr_weight {
    const tsr_tensor *data;         /* what is stored */
    const tsr_tensor *values;       /* name, rank and shape of the values, as loaders of plain weights know them */
    const tsr_tensor *scale;        /* NULL: plain */
    const tsr_tensor *zero_point;   /* NULL: 0. As the codes: I8, of the scale's shape, or I32, packed along R */
    const tsr_tensor *global_scale; /* NULL: 1. F32: one value, or one for each matrix */
    const tsr_tensor *group_index;  /* g_idx, I32 or I64 [C]: the group of each column. NULL: in order */
    const tsr_weight_kind *kind;    /* NULL: plain */
    uint8_t coding, bits;           /* tsr_coding; of a code, 8 or 4 */
    uint8_t scale_dtype; /* how the scale's bytes read: F32, F16, BF16, F8_E4M3, or F8_E8M0, also where they are U8 */
    bool global_divides; /* scale / global_scale (compressed-tensors), not scale * global_scale (ModelOpt) */
    bool zeros_less_one; /* stored zero points are one too low (GPTQ's first format): 15 means 16 */
    bool transposed;     /* values is [M, C, R] where the codes are [M, R, C] (gpt-oss) */
    bool reordered;      /* group_index is not c / block.cols: it says which scale and zero point a column has */
    uint64_t matrices, rows, cols; /* M (1 for a matrix), R, C; 0 when plain */
    tsr_block block;               /* rows x 1 block for one scale a row, R x C for one a matrix */
    bool coarse;                   /* one scale a row or a matrix: no blocks that a cut could split */
    /* Grid of the scales, at least ceil(R / block.rows), ..., as stored; but AWQ and GPTQ store the transpose,
     * [grid_cols, grid_rows]. */
    uint64_t grid_rows, grid_cols;
    const struct tsr_absorbed_part
        *part;      /* codes of a part of an absorbed kv_b_proj (formats/names/absorbed.h); else NULL */
    bool one_scale; /* of a part: one value for all its matrices, and for the other part's */
    /* The static scale (of NVFP4, the global one) and zero point of the layer's input, and a packed weight's stored
     * shape. They mean nothing without the codes. NULL where there are none. */
    const tsr_tensor *input_scale, *input_zero_point, *shape;
    const char *odd;  /* NULL; or what config.json says against its tensors, which are read by themselves */
    const char *rule; /* plain: by which rule (tsr_plain_rule); NULL with codes. Static storage */
} tsr_weight;

/* Names of tensors and form of the configuration, after the tool that defined them. */
typedef enum tsr_dialect {
    TSR_DIALECT_DEEPSEEK,           /* weight_scale_inv; quant_method fp8 or mxfp8 */
    TSR_DIALECT_COMPRESSED_TENSORS, /* weight_scale; quant_method compressed-tensors, as llm-compressor writes it */
    TSR_DIALECT_MODELOPT,           /* weight_scale; quant_method modelopt, and hf_quant_config.json */
    TSR_DIALECT_GPT_OSS,            /* stacks of experts as _blocks and _scales; quant_method mxfp4 */
    TSR_DIALECT_DEEPSEEK_V4,        /* as the first, but the scale of X.weight is X.scale: DeepSeek-V4's own names */
    TSR_DIALECTS,
} tsr_dialect;

/* The format of the KV cache that the configuration states. */
typedef enum tsr_kv_cache { TSR_KV_UNSTATED, TSR_KV_FP8, TSR_KV_OTHER } tsr_kv_cache;

typedef struct tsr_weights {
    tsr_weight *items; /* in the order of the checkpoint; scales appear with their weights only. In its arena */
    size_t count;
    size_t n_scaled;    /* of them are codes */
    size_t n_unread;    /* of them are TSR_UNREAD */
    const char *method; /* quant_method as config.json has it; NULL when it has none */
    tsr_dialect dialect;
    tsr_block block; /* as stated; 0 x 0 when no block size is */
    bool ue8m0;      /* config.json says that scales are powers of two */
    tsr_kv_cache kv_cache;
    bool symmetric;      /* config.json says that AWQ's or GPTQ's zero points are all in the middle */
    const char *warning; /* NULL: none. What is odd, but can be read: the first of n_warned tensors */
    size_t n_warned;
    tsr_arena arena;
} tsr_weights;

/* Pairs. A tensor that is neither codes nor plain data by a rule of formats/weights/foreign.h is refused, and named with
 * the format that it seems to be in. `block` overrules config.json when it is not 0 x 0; the size of blocks is
 * never guessed from shapes. A grid may be larger than its weight needs, up to the next multiple of 8 blocks (padded for
 * tensor parallelism), if the surplus is 0, 1 or NaN. TSR_E_FORMAT: a weight without scale or with two, a scale without
 * weight, a grid that does not fit. TSR_E_UNSUPPORTED: a quantization that Tessera does not read. TSR_E_USAGE: a block
 * size is needed. */
tsr_status tsr_weights_pair(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block block,
                            tsr_err *err) TSR_WARN_UNUSED;

/* Pairs with the block size of config.json; if it states none and one is needed, with `otherwise`, unless that is 0 x
 * 0. */
tsr_status tsr_weights_pair_or(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block otherwise,
                               tsr_err *err) TSR_WARN_UNUSED;

/* For what cannot do its work on every kind of codes: TSR_E_UNSUPPORTED, naming the first weight of another family than
 * these (a set of tsr_family), or an FP8 part of an absorbed kv_b_proj. `doing` names that work, as in "cutting". */
tsr_status tsr_weights_refuse_kinds(const tsr_weights *weights, const tsr_checkpoint *checkpoint, unsigned families,
                                    const char *doing, tsr_err *err) TSR_WARN_UNUSED;
tsr_status tsr_weights_refuse_parts(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *doing,
                                    tsr_err *err) TSR_WARN_UNUSED;

/* tsr_weights_pair, then both of these refusals: of FP8 only, in blocks, a channel or a tensor. */
tsr_status tsr_weights_pair_fp8(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block block,
                                const char *doing, tsr_err *err) TSR_WARN_UNUSED;

/* Called for each thing that tsr_weights_pair would refuse, with the status that it would return. `tensor` is NULL where
 * config.json is at fault. `message` is valid during the call only. */
typedef void tsr_weights_problem_fn(void *data, const tsr_tensor *tensor, tsr_status status, const char *message);

/* Pairs a checkpoint that may be invalid: reports to `problem` what tsr_weights_pair would refuse, and pairs the other
 * tensors. The refused tensor becomes TSR_UNREAD if Tessera cannot interpret it; otherwise it counts as plain, and its
 * scale is not shown. */
tsr_status tsr_weights_survey(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block block,
                              tsr_weights_problem_fn *problem, void *data, tsr_err *err) TSR_WARN_UNUSED;

/* A problem callback that ignores everything. */
void tsr_weights_pass_over(void *data, const tsr_tensor *tensor, tsr_status status, const char *message);

void tsr_weights_free(tsr_weights *weights);

/* The tensors that belong to a quantized weight besides its codes, the scale first, and what each is to it (see
 * tsr_weights_owner; `roles` may be NULL). Returns how many there are. */
enum { TSR_MAX_COMPANIONS = 7 };
size_t tsr_weight_companions(const tsr_weight *weight, const tsr_tensor *companions[TSR_MAX_COMPANIONS],
                             const char *roles[TSR_MAX_COMPANIONS]);

/* Returns the quantized weight that a companion belongs to, and its role: "scale", "zero_point", "global_scale",
 * "group_index", "weight_shape", "input_scale" or "input_zero_point". For a scale that several parts share, the first
 * of them. NULL: the tensor is no companion. Linear in the number of weights. */
const tsr_weight *tsr_weights_owner(const tsr_weights *weights, const tsr_tensor *tensor, const char **role);

/* Why a plain tensor is copied, for the plan: "not quantized", or the rule that makes it plain data. */
const char *tsr_plain_reason(const tsr_weight *weight);

/* The entry of the weight of this name (not of a scale; of packed codes, X.weight finds X.weight_packed), or NULL.
 * Logarithmic. */
const tsr_weight *tsr_weights_find(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *name);

/* Dotted path of the quantization's object in config.json: at the top, or in a multimodal model's text_config. NULL
 * when the model is not quantized. */
const char *tsr_quantization_path(const tsr_checkpoint *checkpoint);

/* All paths at which config.json states a quantization, the one that holds first: Kimi-K2.5 states it at the top and
 * in text_config. Returns how many there are. */
enum { TSR_QUANTIZATION_PATHS = 3 };
size_t tsr_quantization_paths(const tsr_checkpoint *checkpoint, const char *paths[TSR_QUANTIZATION_PATHS]);

#endif
