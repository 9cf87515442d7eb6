/* Reads rules files (which weights get which scheme) and sensitivity files (weighting of modules). Both are JSON meant
 * to be written by hand; docs/plan-schemes.md shows them.
 *
 * A pattern is a module's name ("model.layers.0.mlp.up_proj"), a tensor's name, or a glob over either
 * (convert/search/rules_match.h). */
#pragma once

#include "common/arena.h"
#include "common/block.h"
#include "convert/plans/mx_plan.h"
#include "formats/checkpoint/checkpoint.h"
#include "quantize/int_weight.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the scheme of a word in a rules file; "bf16" is an alias of "keep". TSR_E_USAGE: no scheme has this name, or
 * it cannot be mixed; the message has the reason. */
tsr_status tsr_mixed_scheme_parse(const char *word, tsr_scheme *scheme, tsr_err *err);

/* Rejects schemes that cannot be combined in one checkpoint. TSR_E_UNSUPPORTED, with the reason; also for a scheme that
 * this dialect cannot hold. */
tsr_status tsr_mixed_schemes_check(const bool used[TSR_SCHEMES], tsr_dialect dialect, tsr_err *err);

/* Returns true if a plan can quantize this weight with the scheme, provided that the policy would. It cannot for
 * stacked experts, or if groups do not divide a row. */
bool tsr_mixed_scheme_takes(tsr_scheme scheme, const tsr_checkpoint *source, const tsr_tensor *t);

typedef struct tsr_rules_item {
    const char *pattern;
    tsr_scheme scheme;
    double weight; /* weight of a sensitivity */
} tsr_rules_item;

typedef struct tsr_scheme_rules {
    const char *path;
    tsr_dialect dialect; /* compressed-tensors, or ModelOpt's MIXED_PRECISION */
    tsr_rules_item *items;
    size_t count, capacity;
    uint64_t hash; /* hash of the patterns, schemes and weights */
    bool measured; /* by tessera sensitivities: a weight is a divergence in nats per error of a weight */
    bool weighted; /* measured with errors that are weighted by importance */
    tsr_arena arena;
} tsr_scheme_rules;

/* Reads a file of the form {"schema": "tessera-rules/1", "dialect": "compressed-tensors", "rules": [{"match": "GLOB",
 * "scheme": "mxfp8"}, ...]}; `match` may be a list of patterns. `schema` and `dialect` are optional, as are "note"
 * members of a rule and of the file. TSR_E_FORMAT, TSR_E_UNSUPPORTED: a scheme or dialect that cannot be mixed. On
 * failure *rules is empty. */
tsr_status tsr_rules_read(tsr_scheme_rules *rules, const char *path, tsr_err *err);

/* Reads the rules of a recipe (convert/jobs/recipe.h). */
tsr_status tsr_rules_read_recipe(tsr_scheme_rules *rules, const char *path, tsr_err *err);

/* Reads a file of the form {"GLOB": 4, "other": 0.5}: positive finite numbers, in order. Or reads a result of tessera
 * sensitivities, {"schema": "tessera-sensitivities/1", "weighted": true, "groups": [{"match": [..], "sensitivity":
 * 0.5}, ..], "otherwise": 1}. */
tsr_status tsr_sensitivity_read(tsr_scheme_rules *rules, const char *path, tsr_err *err);

void tsr_rules_free(tsr_scheme_rules *rules);

/* Returns true if an item's pattern has no wildcard. */
bool tsr_rules_is_name(const tsr_rules_item *item);
