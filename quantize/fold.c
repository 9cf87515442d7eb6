/* Multiplies rows and columns by powers of two, and checks that each product is exact. */
#include "quantize/fold.h"

#include "common/float_bits.h"

#include <math.h>

static float load(tsr_dtype dtype, const void *x, uint64_t i)
{
    if (dtype == TSR_F32)
        return ((const float *)x)[i];
    const uint16_t bits = ((const uint16_t *)x)[i];
    return dtype == TSR_BF16 ? tsr_f32_from_bf16(bits) : tsr_f32_from_f16(bits);
}

/* Stores a value, and returns the one that the dtype has for it. */
static float store(tsr_dtype dtype, void *x, uint64_t i, float value)
{
    if (dtype == TSR_F32)
        ((float *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = dtype == TSR_BF16 ? tsr_bf16_from_f32(value) : tsr_f16_from_f32(value);
    return load(dtype, x, i);
}

tsr_status tsr_fold_rows(const tsr_fold *fold, const tsr_tensor *t, uint64_t row, uint64_t rows, uint64_t cols, void *x,
                         tsr_err *err)
{
    const tsr_dtype dtype = (tsr_dtype)t->dtype;
    for (uint64_t r = 0; r < rows; r++) {
        const int of_row = fold->rows == NULL ? 0 : fold->rows[row + r];
        for (uint64_t c = 0; c < cols; c++) {
            const int exponent = of_row + (fold->columns == NULL ? 0 : fold->columns[c]);
            const float old = load(dtype, x, r * cols + c);
            if (exponent == 0 || old == 0 || !isfinite(old))
                continue;
            if (ldexpf(store(dtype, x, r * cols + c, ldexpf(old, exponent)), -exponent) != old)
                return tsr_fail_tensor(err, TSR_ERROR_NONE, TSR_E_VALUE, t->name,
                                       "%g at [%llu, %llu] times 2^%d is not exact in %s", (double)old, U64(row + r),
                                       U64(c), exponent, tsr_dtype_name(dtype));
        }
    }
    return TSR_OK;
}
