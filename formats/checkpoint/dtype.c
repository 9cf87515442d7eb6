/* The traits table of element types. */
#include "formats/checkpoint/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    unsigned bits;
} kTraits[TSR_DTYPE_COUNT] = {
    [TSR_BOOL] = {"BOOL", 8},
    [TSR_F4] = {"F4", 4},
    [TSR_F6_E2M3] = {"F6_E2M3", 6},
    [TSR_F6_E3M2] = {"F6_E3M2", 6},
    [TSR_U8] = {"U8", 8},
    [TSR_I8] = {"I8", 8},
    [TSR_F8_E5M2] = {"F8_E5M2", 8},
    [TSR_F8_E4M3] = {"F8_E4M3", 8},
    [TSR_F8_E8M0] = {"F8_E8M0", 8},
    [TSR_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
    [TSR_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
    [TSR_I16] = {"I16", 16},
    [TSR_U16] = {"U16", 16},
    [TSR_F16] = {"F16", 16},
    [TSR_BF16] = {"BF16", 16},
    [TSR_I32] = {"I32", 32},
    [TSR_U32] = {"U32", 32},
    [TSR_F32] = {"F32", 32},
    [TSR_C64] = {"C64", 64},
    [TSR_F64] = {"F64", 64},
    [TSR_I64] = {"I64", 64},
    [TSR_U64] = {"U64", 64},
};

const char *tsr_dtype_name(tsr_dtype dtype)
{
    return kTraits[dtype].name;
}

unsigned tsr_dtype_bits(tsr_dtype dtype)
{
    return kTraits[dtype].bits;
}

size_t tsr_dtype_bytes(tsr_dtype dtype)
{
    return kTraits[dtype].bits / 8;
}

bool tsr_dtype_is_weight_float(tsr_dtype dtype)
{
    return dtype == TSR_BF16 || dtype == TSR_F16 || dtype == TSR_F32;
}

bool tsr_dtype_from_name(const char *name, size_t size, tsr_dtype *dtype)
{
    for (int i = 0; i < TSR_DTYPE_COUNT; i++) {
        if (strlen(kTraits[i].name) == size && memcmp(kTraits[i].name, name, size) == 0) {
            *dtype = (tsr_dtype)i;
            return true;
        }
    }
    return false;
}
