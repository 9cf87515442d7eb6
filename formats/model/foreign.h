/* What Tessera does not interpret, and why all else may be copied.
 *
 * A tensor is codes that tsr_weights_pair has paired, or stands with some; or it is plain data by one of the rules
 * here; or it is refused by name. Nothing is copied because nobody knew what it was: codes without their meaning are
 * wrong values, and no loader notices. */
#ifndef TSR_FORMATS_MODEL_FOREIGN_H
#define TSR_FORMATS_MODEL_FOREIGN_H

#include "formats/checkpoint/checkpoint.h"

#include <stdbool.h>

/* What the tensor seems to be a part of, by its name and dtype and those of its neighbours: "MXFP4, as DeepSeek-V4 has
 * it", ...; NULL when no quantized format that Tessera does not read is known to look like this. Static storage. */
const char *tsr_foreign_format(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor);

/* Why a tensor that is not codes is plain data: "floating point", "64-bit integers", "a table of positions", ...; NULL
 * when no rule says so. Static storage. */
const char *tsr_plain_rule(const tsr_tensor *tensor);

/* Whether by its name the tensor says how codes of another one are to be read: a scale, a zero point, an order. */
bool tsr_is_left_over(const char *name);

/* TSR_E_UNSUPPORTED, with the name of the format, for what tsr_foreign_format knows. */
tsr_status tsr_refuse_foreign(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor, tsr_err *err) TSR_WARN_UNUSED;

/* The rule by which a tensor that is no codes, and stands with none, may be copied. TSR_E_FORMAT for the scale of a
 * weight that is missing, or is no codes any more; TSR_E_UNSUPPORTED for all else that no rule has for plain data. */
tsr_status tsr_find_plain_rule(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor, const char **rule,
                               tsr_err *err) TSR_WARN_UNUSED;

/* "fastertransformer" or "trtllm" when weights of the directory lie in blobs as its tessera-layout.json says; NULL when
 * there is none. Static storage. */
const char *tsr_layout_target(const tsr_checkpoint *checkpoint);

#endif
