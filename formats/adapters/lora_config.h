/* Reads adapter_config.json of a LoRA adapter in PEFT's format, and evaluates its names.
 *
 * Only options that leave an update of the form scale * B * A are accepted. An option that changes the meaning of the
 * tensors (DoRA, biases, PiSSA) is rejected, and so is one that this version does not know, unless it is unset: null,
 * false, or empty. Source: peft/tuners/lora/config.py, peft/tuners/tuners_utils.py and peft/utils/other.py of PEFT
 * 0.21. */
#pragma once

#include "common/arena.h"
#include "common/status.h"
#include "formats/names/pattern.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSR_LORA_CONFIG_NAME "adapter_config.json"

/* Names that a module matches if it is one of them, or ends in a dot and one of them; or an expression that the whole
 * name must match. */
typedef struct tsr_lora_names {
    const char **items;
    size_t count, capacity;
    const tsr_pattern *pattern; /* NULL: a list */
    bool all;                   /* "all-linear" */
    bool given;
} tsr_lora_names;

/* One entry of rank_pattern or alpha_pattern. */
typedef struct tsr_lora_rule {
    tsr_pattern pattern; /* (.*\.)?(KEY)$, matched from the start of the name */
    const char *key;
    double value;
} tsr_lora_rule;

typedef struct tsr_lora_rules {
    tsr_lora_rule *items; /* the first one that matches is used */
    size_t count, capacity;
} tsr_lora_rules;

typedef struct tsr_lora_config {
    const char *path; /* for messages */
    double rank, alpha;
    bool rslora; /* alpha / sqrt(rank) instead of alpha / rank */
    bool turned; /* fan_in_fan_out: weights are stored as [in, out] */
    tsr_lora_names targets, exclude, parameters;
    uint64_t *layers; /* layers_to_transform */
    size_t n_layers, layers_capacity;
    tsr_lora_names layers_pattern;
    tsr_lora_rules ranks, alphas;
} tsr_lora_config;

/* Reads the file at `path` from its text. Everything is in the arena, except arrays, which tsr_lora_config_free frees.
 * TSR_E_FORMAT: the file is damaged or a value has the wrong type. TSR_E_UNSUPPORTED: an option that cannot be
 * merged. Messages name the file and the option. On failure there is nothing to free. */
tsr_status tsr_lora_config_read(tsr_lora_config *config, const char *path, const char *text, size_t size,
                                tsr_arena *arena, tsr_err *err);

/* Returns true if the first `length` characters of a name are `entry`, or end in a dot and `entry`. */
bool tsr_lora_is_named(const char *name, size_t length, const char *entry);

/* Returns true if PEFT adapts this module ("model.layers.0.self_attn.q_proj"). */
bool tsr_lora_targets_module(const tsr_lora_config *config, const char *module);

/* Returns true if PEFT adapts this parameter ("model.layers.0.mlp.experts.down_proj"). */
bool tsr_lora_targets_parameter(const tsr_lora_config *config, const char *parameter);

/* Returns the rank of a module or parameter, and the factor of its B * A. */
uint64_t tsr_lora_rank(const tsr_lora_config *config, const char *module);
double tsr_lora_scale(const tsr_lora_config *config, const char *module);

void tsr_lora_config_free(tsr_lora_config *config);
