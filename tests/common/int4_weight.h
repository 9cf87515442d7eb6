/* A matrix of int4 codes with one scale for each group of a row, for tests and benchmarks. */
#pragma once

#include "formats/weights/weights.h"

/* Returns the weight [rows, cols] with `groups` scales a row. The tensors are the caller's. GPTQ's zero points are
 * stored less one. */
static inline tsr_weight int4_weight(tsr_coding coding, uint64_t rows, uint64_t cols, uint64_t groups,
                                     const tsr_tensor *data, const tsr_tensor *scale)
{
    tsr_weight w = {.data = data, .values = data, .scale = scale, .scale_dtype = scale->dtype};
    w.coding = (uint8_t)coding;
    w.bits = 4;
    w.matrices = 1;
    w.zeros_less_one = coding == TSR_CODED_GPTQ;
    w.rows = rows;
    w.cols = cols;
    w.block = (tsr_block){1, (uint32_t)(cols / groups)};
    w.grid_rows = rows;
    w.grid_cols = groups;
    return w;
}
