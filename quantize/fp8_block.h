/* Quantizes one band of blocks of a weight matrix to block FP8: e4m3 codes and one scale per block.
 *
 * For each block, in FP32: amax over the real elements (ragged edges are not padded); scale = amax / 448, or 1 for a
 * block of zeros; code = e4m3(clamp(x / scale, +-448)). Readers compute y = value(code) * scale (DeepSeek-V3's
 * README_WEIGHTS.md), although files call the scale weight_scale_inv. docs/numerics.md has every corner case. */
#pragma once

#include "common/status.h"
#include "formats/checkpoint/safetensors.h"
#include "kernels/cpu/cpu.h"
#include "quantize/block_cells.h"
#include "quantize/quant_stats.h"
#include "quantize/scales/scale_search.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tsr_scale_fmt {
    TSR_SCALE_F32,
    TSR_SCALE_UE8M0, /* rounded up to a power of two before codes are computed; stored as FP32 */
    TSR_SCALE_BF16,  /* rounded to the nearest BF16 before codes are computed; returned as FP32 */
} tsr_scale_fmt;

typedef struct tsr_fp8_block {
    uint32_t block_rows, block_cols;
    tsr_scale_fmt scale_fmt;
    tsr_scale_search search; /* BEST: with UE8M0 or BF16 */
} tsr_fp8_block;

/* Part of a tensor: at most block_rows rows, all from one row of blocks. All its blocks except the last have full
 * width. */
typedef struct tsr_fp8_band {
    const tsr_tensor *tensor; /* the source (BF16, F16 or F32), for positions in errors and statistics */
    uint64_t first;           /* flat index of the band's first element in the tensor */
    const void *x;            /* [rows, cols], rows `ld` elements apart */
    uint64_t rows, cols, ld;
    uint8_t *codes; /* output [rows, cols], rows `ld_codes` apart */
    uint64_t ld_codes;
    float *scales;           /* output [ceil(cols / block_cols)] */
    const float *importance; /* [cols]: weights of the columns in the squared error; NULL: all are 1 */
    const float *amax;       /* all blocks get the scale of this amax; NULL: each has that of its own */
    float *scratch;          /* tsr_fp8_block_scratch bytes; may be NULL without F16, best scales and importance */
    tsr_block_notes *notes;  /* NULL: no statistics of single blocks */
} tsr_fp8_band;

/* Returns the scale for values up to `amax`: rounded to the scheme's form; 1 for 0. */
float tsr_fp8_scale(const tsr_fp8_block *scheme, const tsr_cpu_kernels *kernels, float amax);

/* Returns the bytes of scratch that a band of this dtype needs. */
size_t tsr_fp8_block_scratch(const tsr_fp8_block *scheme, tsr_dtype dtype);

/* Quantizes the band and adds its errors to *stats, without the statistics of scales. Thread-safe. TSR_E_VALUE: NaN or
 * Inf, with its position in the tensor. */
tsr_status tsr_fp8_block_quantize(const tsr_fp8_block *scheme, const tsr_cpu_kernels *kernels, const tsr_fp8_band *band,
                                  tsr_quant_stats *stats, tsr_err *err);

/* Adds to *stats the errors of given codes and scales against the band's x; otherwise like tsr_fp8_block_quantize. */
tsr_status tsr_fp8_block_measure(const tsr_fp8_block *scheme, const tsr_cpu_kernels *kernels, const tsr_fp8_band *band,
                                 tsr_quant_stats *stats, tsr_err *err);
