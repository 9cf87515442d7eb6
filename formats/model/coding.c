/* Names and dtypes that say what codes are. */
#include "formats/model/coding.h"

#include "common/text.h"

#include <stdio.h>
#include <string.h>

static const char kWeight[] = ".weight", kPacked[] = ".weight_packed";

const tsr_tensor *tsr_find_sibling(const tsr_checkpoint *c, const char *name, size_t length, const char *suffix)
{
    char text[1200];
    if (length + strlen(suffix) >= sizeof text)
        return NULL;
    snprintf(text, sizeof text, "%.*s%s", (int)length, name, suffix);
    return tsr_checkpoint_find(c, text);
}

tsr_coding tsr_coding_of(const tsr_checkpoint *c, const tsr_tensor *t)
{
    if (t->dtype == TSR_F8_E4M3)
        return TSR_CODED_E4M3;
    if (t->dtype == TSR_I32 && tsr_ends_with(t->name, kPacked))
        return TSR_CODED_PACKED;
    const bool scaled = t->dtype == TSR_I8 && t->rank == 2 && tsr_ends_with(t->name, kWeight) &&
                        tsr_find_sibling(c, t->name, strlen(t->name), "_scale") != NULL;
    return scaled ? TSR_CODED_INT8 : TSR_PLAIN;
}
