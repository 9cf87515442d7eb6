/* Pairs the quantized weights of a checkpoint with their scales and block sizes.
 *
 * Pairing looks at names, shapes, dtypes and config.json; no weight is read. It is strict: every quantized tensor has
 * exactly one scale, with the grid that its shape and config.json require, and every scale has one weight. Otherwise
 * the checkpoint is rejected, with the name of the tensor. (An e4m3 weight without its scale is wrong by a factor of
 * thousands, without any error.)
 *
 * Names of the scale of X.weight: X.weight_scale_inv (DeepSeek, Hugging Face), X.weight_scale (compressed-tensors,
 * Quark), X.scale (DeepSeek's inference code), X.scale_weight (ComfyUI); for a stack, experts.gate_up_proj:
 * experts.gate_up_proj_scale_inv, _scales_inv or _scale. All of them are multipliers: y = value(code) * scale.
 *
 * The parts of an absorbed kv_b_proj and their scales have special names (formats/names/absorbed.h).
 *
 * Integers have the names of compressed-tensors: X.weight I8 with X.weight_scale (int-quantized), or X.weight_packed,
 * words of I32 with X.weight_scale and X.weight_shape (pack-quantized). Both may have X.weight_zero_point, stored like
 * the codes: y = (code - zero_point) * scale. If groups are not consecutive columns (actorder), X.weight_g_idx has the
 * group of each column. (compressors/pack_quantized/helpers.py)
 *
 * MXFP4, MXFP6, NVFP4, MXFP8, AWQ and GPTQ: formats/weights/kinds.h has the tensors of each. */
#pragma once

#include "common/arena.h"
#include "common/block.h"
#include "common/status.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/names/coding.h"
#include "formats/weights/kinds.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A tensor with its meaning: plain data, or codes with their scales.
 * Rows are a layer's outputs and columns its inputs, whichever way they are stored; element [m, r, c] of codes is
 *     (value(code) - zero_point) * scale * global_scale
 * with the scale and the zero point of [m, r / block.rows, c / block.cols]. All products are taken in FP32, scale and
 * global first. */
typedef struct tsr_weight {
    const tsr_tensor *data;         /* what is stored */
    const tsr_tensor *values;       /* name, rank and shape of the values, as in an unquantized checkpoint */
    const tsr_tensor *scale;        /* NULL: plain */
    const tsr_tensor *zero_point;   /* NULL: 0. Stored like the codes: I8 with the scale's shape, or I32 packed along
                                     * R */
    const tsr_tensor *global_scale; /* NULL: 1. F32: one value, or one per matrix */
    const tsr_tensor *group_index;  /* g_idx, I32 or I64 [C]: the group of each column. NULL: consecutive */
    const tsr_weight_kind *kind;    /* NULL: plain */
    uint8_t coding, bits;           /* a tsr_coding; bits of a code, 8 or 4 */
    uint8_t scale_dtype; /* dtype of the scale's bytes: F32, F16, BF16, F8_E4M3, or F8_E8M0, also if stored as U8 */
    bool global_divides; /* scale / global_scale (compressed-tensors), not scale * global_scale (ModelOpt) */
    bool zeros_less_one; /* stored zero points are one too low (GPTQ's first format): 15 means 16 */
    bool transposed;     /* values is [M, C, R] and the codes are [M, R, C] (gpt-oss) */
    bool reordered;      /* group_index is not c / block.cols: it selects the scale and zero point of a column */
    uint64_t matrices, rows, cols; /* M (1 for a matrix), R, C; 0 when plain */
    tsr_block block;               /* rows x 1 block for one scale per row, R x C for one per matrix */
    bool coarse;                   /* one scale per row or matrix, so a cut splits no block */
    /* Grid of the scales as stored, at least ceil(R / block.rows), ... AWQ and GPTQ store the transpose, [grid_cols,
     * grid_rows]. */
    uint64_t grid_rows, grid_cols;
    const struct tsr_absorbed_part
        *part;      /* for codes of a part of an absorbed kv_b_proj (formats/names/absorbed.h); else NULL */
    bool one_scale; /* for a part: one scale for all its matrices and for the other part */
    /* The static scale (for NVFP4, the global one) and zero point of the layer's input, and a packed weight's stored
     * shape. They have no meaning without the codes. NULL: absent. */
    const tsr_tensor *input_scale, *input_zero_point, *shape;
    const char *odd;  /* NULL, or the contradiction between config.json and the weight's tensors; the tensors are
                       * used */
    const char *rule; /* plain: the rule that makes it plain data (tsr_plain_rule); NULL with codes. Static storage */
} tsr_weight;

/* Tensor names and form of the configuration, called after the tool that defined them. */
typedef enum tsr_dialect {
    TSR_DIALECT_DEEPSEEK,           /* weight_scale_inv; quant_method fp8 or mxfp8 */
    TSR_DIALECT_COMPRESSED_TENSORS, /* weight_scale; quant_method compressed-tensors, as llm-compressor writes it */
    TSR_DIALECT_MODELOPT,           /* weight_scale; quant_method modelopt, and hf_quant_config.json */
    TSR_DIALECT_GPT_OSS,            /* stacks of experts as _blocks and _scales; quant_method mxfp4 */
    TSR_DIALECT_SGLANG,             /* experts in int4 beside block FP8; quant_method w4afp8 */
    TSR_DIALECT_DEEPSEEK_V4,        /* as the first, but the scale of X.weight is X.scale: DeepSeek-V4's own names */
    TSR_DIALECTS,
} tsr_dialect;

/* The format of the KV cache stated in the configuration. */
typedef enum tsr_kv_cache { TSR_KV_UNSTATED, TSR_KV_FP8, TSR_KV_OTHER } tsr_kv_cache;

typedef struct tsr_weights {
    tsr_weight *items; /* in the order of the checkpoint; scales appear only with their weights. In the arena */
    size_t count;
    size_t n_scaled;    /* number of items that are codes */
    size_t n_unread;    /* number of items that are TSR_UNREAD */
    const char *method; /* quant_method of config.json; NULL: none */
    tsr_dialect dialect;
    tsr_block block; /* stated block size; 0 x 0: none */
    bool ue8m0;      /* config.json says that scales are powers of two */
    tsr_kv_cache kv_cache;
    bool symmetric;      /* config.json says that all zero points of AWQ or GPTQ have the middle value */
    const char *warning; /* Something unusual that can still be read: the first of n_warned tensors. NULL: none. */
    size_t n_warned;
    tsr_arena arena;
} tsr_weights;

/* Pairs the weights of a checkpoint. A tensor that is neither codes nor plain data by a rule of
 * formats/weights/foreign.h is rejected; the message has the format that it seems to have. `block` overrides
 * config.json unless it is 0 x 0. The block size is never guessed from shapes. A grid may be larger than its weight
 * needs, up to the next multiple of 8 blocks (padded for tensor parallelism), if the surplus is 0, 1 or NaN.
 * TSR_E_FORMAT: a weight without scale or with two, a scale without weight, a grid that does not fit.
 * TSR_E_UNSUPPORTED: a quantization that Tessera does not read. TSR_E_USAGE: a block size is needed, or
 * `block` has no effect. */
tsr_status tsr_weights_pair(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block block, tsr_err *err);

/* Rejects a given block size (TSR_E_USAGE) if no weight of these `n` checkpoints is FP8 in blocks, or none is read with
 * this size: it would have no effect. Accepts 0 x 0. */
tsr_status tsr_weights_refuse_block(const tsr_weights *weights, size_t n, tsr_block block, tsr_err *err);

/* Pairs with the block size of config.json. If one is needed and it has none, or its size does not fit, uses
 * `otherwise`, unless that is 0 x 0. */
tsr_status tsr_weights_pair_or(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block otherwise,
                               tsr_err *err);

/* Rejects kinds that an operation does not support: TSR_E_UNSUPPORTED, with the first weight of a family outside this
 * set (of tsr_family), or with an FP8 part of an absorbed kv_b_proj. `doing` names the operation, as in "cutting". */
tsr_status tsr_weights_refuse_kinds(const tsr_weights *weights, const tsr_checkpoint *checkpoint, unsigned families,
                                    const char *doing, tsr_err *err);
tsr_status tsr_weights_refuse_parts(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *doing,
                                    tsr_err *err);

/* Calls tsr_weights_pair, then rejects everything except FP8 in blocks, per channel or per tensor. */
tsr_status tsr_weights_pair_fp8(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block block,
                                const char *doing, tsr_err *err);

/* Called for each problem that makes tsr_weights_pair fail, with the status that it would return. `tensor` is NULL if
 * config.json is at fault. `message` is valid only during the call. */
typedef void tsr_weights_problem_fn(void *data, const tsr_tensor *tensor, tsr_status status, const char *message);

/* Pairs a checkpoint that may be invalid: reports to `problem` what tsr_weights_pair would reject, and pairs the other
 * tensors. A rejected tensor becomes TSR_UNREAD if Tessera cannot interpret it; otherwise it counts as plain, and its
 * scale is not shown. */
tsr_status tsr_weights_survey(tsr_weights *weights, const tsr_checkpoint *checkpoint, tsr_block block,
                              tsr_weights_problem_fn *problem, void *data, tsr_err *err);

/* A problem callback that ignores everything. */
void tsr_weights_pass_over(void *data, const tsr_tensor *tensor, tsr_status status, const char *message);

void tsr_weights_free(tsr_weights *weights);

/* Lists the companions of a quantized weight, the scale first, and the role of each (see tsr_weights_owner; `roles` may
 * be NULL). Returns their number. */
enum { TSR_MAX_COMPANIONS = 7 };
size_t tsr_weight_companions(const tsr_weight *weight, const tsr_tensor *companions[TSR_MAX_COMPANIONS],
                             const char *roles[TSR_MAX_COMPANIONS]);

/* Returns the quantized weight that a companion belongs to, and its role: "scale", "zero_point", "global_scale",
 * "group_index", "weight_shape", "input_scale" or "input_zero_point". If several parts share a scale, returns the
 * first. NULL: the tensor is not a companion. Linear in the number of weights. */
const tsr_weight *tsr_weights_owner(const tsr_weights *weights, const tsr_tensor *tensor, const char **role);

/* Returns the reason why a plain tensor is copied, for the plan: "not quantized", or the rule that makes it plain
 * data. */
const char *tsr_plain_reason(const tsr_weight *weight);

/* Returns the entry of the weight of this name, or NULL. The name of a scale is not found; X.weight finds
 * X.weight_packed. Logarithmic time. */
const tsr_weight *tsr_weights_find(const tsr_weights *weights, const tsr_checkpoint *checkpoint, const char *name);

/* Returns the dotted path of the quantization object in config.json: at the top level, or in a multimodal model's
 * text_config. NULL: the model is not quantized. */
const char *tsr_quantization_path(const tsr_checkpoint *checkpoint);

/* Finds all paths at which config.json states a quantization, beginning with the one that is used. Kimi-K2.5 states it
 * at the top level and in text_config. Returns their number. */
enum { TSR_QUANTIZATION_PATHS = 3 };
size_t tsr_quantization_paths(const tsr_checkpoint *checkpoint, const char *paths[TSR_QUANTIZATION_PATHS]);
