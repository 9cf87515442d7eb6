/* Rules files: which weights get which scheme, and weights of modules (sensitivities), both as JSON that is meant to be
 * written by hand. docs/plan-schemes.md shows them.
 *
 * A pattern is a module's name ("model.layers.0.mlp.up_proj"), a tensor's, or a glob over either
 * (convert/plans/rules_match.h). */
#ifndef TSR_CONVERT_PLANS_RULES_H
#define TSR_CONVERT_PLANS_RULES_H

#include "common/arena.h"
#include "common/block.h"
#include "convert/plans/mx_plan.h"
#include "formats/checkpoint/checkpoint.h"
#include "quantize/int_weight.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The schemes of which a checkpoint can hold several in compressed-tensors' dialect; in ModelOpt's nvfp4,
 * nvfp4-weight-only and mxfp8. */
typedef enum tsr_mix {
    TSR_MIX_KEEP,
    TSR_MIX_NVFP4,
    TSR_MIX_NVFP4_WEIGHT_ONLY,
    TSR_MIX_MXFP4,
    TSR_MIX_MXFP4_WEIGHT_ONLY,
    TSR_MIX_MXFP8,
    TSR_MIX_MXFP8_WEIGHT_ONLY,
    TSR_MIX_FP8_BLOCK,
    TSR_MIX_FP8_CHANNEL,
    TSR_MIX_INT8_WEIGHT_ONLY,
    TSR_MIX_INT4_WEIGHT_ONLY,
    TSR_MIXES,
} tsr_mix;

/* The word for it: that of `quantize --scheme`, or "keep". */
const char *tsr_mix_name(tsr_mix mix);

typedef enum tsr_mix_form {
    TSR_MIX_PLAIN,  /* keep: none */
    TSR_MIX_GROUPS, /* `target`, in small groups */
    TSR_MIX_E4M3,   /* e4m3, a scale for each `block`, or for each row where that is 0 x 0 */
    TSR_MIX_PACKED, /* `integers`, packed */
} tsr_mix_form;

/* What codes a scheme makes. */
typedef struct tsr_mix_codes {
    tsr_mix_form form;
    tsr_mx_target target;
    tsr_block block;
    tsr_int_scheme integers;
} tsr_mix_codes;

const tsr_mix_codes *tsr_mix_codes_of(tsr_mix mix);

/* The same for those of TSR_MIX_GROUPS. */
tsr_mx_description tsr_mix_describe(tsr_mix mix, tsr_mx_dialect dialect);

/* "keep" is also called bf16. TSR_E_USAGE: no scheme has this name, or it cannot be mixed, and why. */
tsr_status tsr_mix_parse(const char *word, tsr_mix *mix, tsr_err *err) TSR_WARN_UNUSED;

/* TSR_E_UNSUPPORTED: two of these schemes cannot stand in one checkpoint, or one of them not in this dialect, and why. */
tsr_status tsr_mix_check(const bool used[TSR_MIXES], tsr_mx_dialect dialect, tsr_err *err) TSR_WARN_UNUSED;

/* Whether a plan can make codes of this weight by the scheme, given that the policy would: not of stacked experts, nor
 * where groups do not divide a row. */
bool tsr_mix_takes(tsr_mix mix, const tsr_checkpoint *source, const tsr_tensor *t);

typedef struct tsr_rules_item {
    const char *pattern;
    tsr_mix scheme;
    double weight; /* of a sensitivity */
} tsr_rules_item;

typedef struct tsr_rules {
    const char *path;
    tsr_mx_dialect dialect; /* compressed-tensors, or ModelOpt's MIXED_PRECISION */
    tsr_rules_item *items;
    size_t count, capacity;
    uint64_t hash; /* of the patterns and what they say */
    tsr_arena arena;
} tsr_rules;

/* {"schema": "tessera-rules/1", "dialect": "compressed-tensors", "rules": [{"match": "GLOB", "scheme": "mxfp8"}, ...]};
 * `match` may be a list of patterns; `schema` and `dialect` may be left out, and so may a "note" of a rule and of the
 * file. TSR_E_FORMAT, TSR_E_UNSUPPORTED: a scheme or dialect that cannot be mixed. On failure *rules is empty. */
tsr_status tsr_rules_read(tsr_rules *rules, const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* {"GLOB": 4, "other": 0.5}: positive finite numbers, in order. */
tsr_status tsr_sensitivity_read(tsr_rules *rules, const char *path, tsr_err *err) TSR_WARN_UNUSED;

void tsr_rules_free(tsr_rules *rules);

/* Whether an item's pattern is one name. */
bool tsr_rules_is_name(const tsr_rules_item *item);

#endif
