/* Recognizes tensors of formats that Tessera does not read, and plain data that may be copied. Every tensor is
 * quantized and paired by tsr_weights_pair, a companion of such a weight, or plain data by a rule of this file. All
 * others are rejected by name: codes that are copied without their meaning are wrong values, and no loader notices. */
#pragma once

#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"

#include <stdbool.h>

/* Returns the quantized format that the tensor seems to belong to, judged by its name and dtype and those of its
 * siblings ("MXFP4, as DeepSeek-V4 has it"). NULL: no known unsupported format. Static storage. */
const char *tsr_foreign_format(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor);

/* Returns true for scales of attention by their names: of keys and values in the cache, of queries and probabilities.
 * They scale no weight, whatever the format of the weights, and are copied. */
bool tsr_is_scale_of_attention(const char *name);

/* Returns the reason why a tensor is plain data: "floating point", "64-bit integers", "a table of positions", ...;
 * NULL: no rule applies. Static storage. */
const char *tsr_plain_rule(const tsr_tensor *tensor);

/* Returns true if the tensor's name says that it is a scale, zero point or order of another tensor. */
bool tsr_is_left_over(const char *name);

/* Returns TSR_E_UNSUPPORTED, with the name of the format, for a tensor that tsr_foreign_format recognizes. */
tsr_status tsr_refuse_foreign(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor, tsr_err *err);

/* Finds the rule by which a tensor that is neither codes nor a companion may be copied. TSR_E_FORMAT: the scale of a
 * weight that is missing or not quantized. TSR_E_UNSUPPORTED: no rule makes it plain data. */
tsr_status tsr_find_plain_rule(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor, const char **rule,
                               tsr_err *err);

/* Returns "fastertransformer" or "trtllm" if weights of the directory are in raw files according to its
 * tessera-layout.json, else NULL. Static storage. */
const char *tsr_layout_target(const tsr_checkpoint *checkpoint);

/* Rejects a sparsity_config in this object of config.json, unless it is absent, null or empty, or its format is dense.
 * `where` names the object in the message. */
tsr_status tsr_refuse_sparsity(tsr_json_text object, const char *where, tsr_err *err);
