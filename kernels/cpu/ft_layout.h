/* Declares the weight layouts of the mixed GEMMs of FasterTransformer and TensorRT-LLM.
 *
 * It gives the layout that a target reads, the shapes that it accepts, and the position of each weight. The kernels of
 * kernels/cpu/interleave.h convert weights.
 *
 * A logical weight matrix W has K rows (k: input features) and N columns (n: output features); a PyTorch Linear stores
 * it as [N, K]. Every layout takes exactly K*N*bits/8 bytes. Experts, [E, K, N], are laid out one after another, each
 * on its own. Words are 32 bits, little-endian. Of an int4 byte, nibble 0 is the low one.
 *
 * The layouts (FasterTransformer df4a753, TensorRT-LLM v0.5.0 to b35ac1b6, cutlass_preprocessors.cc and
 * mixed_gemm_B_layout.h), by what is done to column-major signed codes:
 *
 *               rows permuted    columns take turns   bias and order inside a word
 *   P           no               no                   no
 *   CM          no               no                   yes
 *   R           no; row-major    no                   yes (words run along n)
 *   H           yes              no                   yes
 *   T           yes              every 64 rows        yes
 *   H_AFP8      otherwise        no                   yes
 *   T_AFP8      otherwise        every 128 rows       yes
 *
 * - Rows are permuted inside groups of 128/bits, so that after `ldmatrix` one lane holds the weights of its own
 *   fragment of an `mma.m16n8k16` (with FP8 activations: m16n8k32).
 * - Columns take turns: 64 rows of column 0, the same 64 rows of column 1 (int8: 2 columns; int4: 4), then the next
 *   rows, so that a thread block reads whole 128-byte lines. With FP8 activations 128 rows and 2 columns.
 * - Bias 128 or 8 makes codes unsigned, and inside a word even elements precede odd ones: what the register tricks of
 *   kernels/cpu/fast_dequant.h need.
 *
 * All functions are pure and thread-safe. */
#pragma once

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tsr_ft_layout {
    TSR_FT_R,
    TSR_FT_CM,
    TSR_FT_P,
    TSR_FT_H,
    TSR_FT_T,
    TSR_FT_H_AFP8,
    TSR_FT_T_AFP8,
    TSR_FT_LAYOUTS,
} tsr_ft_layout;

/* The software that reads the weights. "sm90" alone is ambiguous: T, P or H, depending on the version. */
typedef enum tsr_ft_producer {
    TSR_FT_FASTERTRANSFORMER,
    TSR_FT_TRTLLM_0_5, /* 0.5, 0.6 */
    TSR_FT_TRTLLM_0_7, /* 0.7, 0.8 */
    TSR_FT_TRTLLM_0_9,
    TSR_FT_TRTLLM_0_10, /* as of 66ef1df, April 2024 */
    TSR_FT_TRTLLM_MAIN, /* the C++ code as of b35ac1b6, 2025 */
    TSR_FT_TRTLLM_PY,   /* preprocess_weights_for_mixed_gemm in quantization/functional.py; read, never run */
    TSR_FT_PRODUCERS,
} tsr_ft_producer;

/* "ft", "trtllm-0.5" to "trtllm-0.10" (a patch level or "-dev" may follow), "trtllm-main", "trtllm-py". */
tsr_status tsr_ft_producer_parse(const char *name, tsr_ft_producer *producer, tsr_err *err);
const char *tsr_ft_producer_name(tsr_ft_producer producer);
const char *tsr_ft_layout_name(tsr_ft_layout layout);

typedef struct tsr_ft_target {
    tsr_ft_producer producer;
    int arch;                /* compute capability times 10: 75, 80, 90, ... */
    int bits;                /* bits of a weight: 8 or 4 */
    bool fp8_activations;    /* W4_AFP8; else fp16 or bf16, which share a layout */
    bool force_interleave;   /* TensorRT-LLM >= 0.9: sm90 takes the layout of sm80 (its MoE layers do) */
    bool mixture_of_experts; /* a 3-D weight: makes a difference for TSR_FT_TRTLLM_PY only */
} tsr_ft_target;

/* A layout at one width, with the shapes that its reader takes. Treat as read-only. */
typedef struct tsr_ft_format {
    tsr_ft_layout layout;
    int bits;
    int group;      /* weights that share 16 bytes: 16 or 32 consecutive rows of a column (R: of the row-major run) */
    int tile;       /* rows before the next column of the tile begins; 0: whole columns */
    int columns;    /* number of alternating columns; 1: columns are stored one after another */
    int k_multiple; /* K must be a multiple */
    int n_multiple; /* N must be a multiple; a band of this many columns is a whole number of lines */
    bool row_major; /* layout R */
    uint8_t bias;   /* flips the sign bit of a code: 0x80, 0x08, or 0 for layout P */
    uint8_t order[32]; /* order[p]: the row of its group stored p-th (int4: byte p/2, nibble p%2) */
    uint8_t place[32]; /* the inverse */
} tsr_ft_format;

/* Returns the layout that `target` reads. TSR_E_UNSUPPORTED: it has none; the message gives the supported ones. */
tsr_status tsr_ft_format_of(const tsr_ft_target *target, tsr_ft_format *format, tsr_err *err);

/* Checks K and N. TSR_E_SHAPE: the reader rejects them, or would corrupt its memory (FasterTransformer's int8 with K
 * = 96 passes its own checks and writes past the buffer). The message gives the nearest legal values. */
tsr_status tsr_ft_format_check(const tsr_ft_format *format, int64_t k, int64_t n, tsr_err *err);

/* Position of a weight: bits 0-7 of a byte (nibble 0), or for int4 bits 4*nibble .. 4*nibble + 3. */
typedef struct tsr_ft_place {
    size_t byte;
    unsigned nibble;
} tsr_ft_place;

typedef struct tsr_ft_element {
    size_t k, n;
} tsr_ft_element;

/* The address of W[k][n] in a matrix of `rows` x `cols` (K x N, checked), and the inverse. With C columns taking turns
 * every T rows, p = place[k % group]:
 *   position = n/C * C*K  +  k/T * C*T  +  n%C * T  +  (k%T)/group * group  +  p      (whole columns: C = 1, T = K)
 * and for R, of the row-major run e = k*N + n: position = e/group * group + place[e % group].
 * An int8 weight is byte `position`; an int4 weight nibble position%2 of byte position/2. */
tsr_ft_place tsr_ft_place_of(const tsr_ft_format *format, size_t rows, size_t cols, size_t k, size_t n);
tsr_ft_element tsr_ft_element_at(const tsr_ft_format *format, size_t rows, size_t cols, tsr_ft_place place);
