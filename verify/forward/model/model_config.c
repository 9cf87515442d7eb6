/* Reads values of config.json that several files of the forward pass need. */
#include "verify/forward/forward_parts.h"

#include "common/checked.h"
#include "formats/checkpoint/config.h"

size_t tsr_forward_size(const tsr_forward *f, const char *key, size_t otherwise)
{
    uint64_t x;
    return tsr_config_find_u64(f->side->checkpoint, key, &x) ? (size_t)tsr_min_u64(x, TSR_MAX_SIZE) : otherwise;
}

bool tsr_forward_is(const tsr_forward *f, const char *key, const char *literal)
{
    return tsr_config_model_is(f->side->checkpoint, key, literal);
}
