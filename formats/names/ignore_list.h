/* Lists of unquantized modules in quantization_config, and the ways in which loaders match them.
 *
 * The same list means different things to different loaders. One needs the exact name of a module, another matches any
 * name that contains an entry, a third supports regular expressions. Loaders that run q, k and v (or gate and up) as
 * one layer look up the members, not the name of the joined layer. */
#pragma once

#include "common/arena.h"
#include "formats/json/json.h"
#include "formats/names/pattern.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tsr_matching {
    TSR_MATCH_EXACT, /* the whole name (vLLM, quant_method fp8) */
    TSR_MATCH_PATH,  /* the entry's components anywhere in the name, with or without "model." (SGLang) */
    TSR_MATCH_ENDS,  /* the name begins or ends with the entry (transformers) */
    TSR_MATCH_REGEX, /* the whole name, or "re:" and an expression that matches from its start (compressed-tensors) */
    TSR_MATCH_SUFFIX_REGEX, /* the same, or the name's last components (SGLang, compressed-tensors) */
    TSR_MATCH_GLOB,         /* shell patterns (TensorRT-LLM) */
    TSR_MATCH_WITHIN,       /* reverse: the entry contains the name (vLLM and SGLang, experts) */
} tsr_matching;

typedef struct tsr_ignore_list {
    const char *key; /* "modules_to_not_convert"; NULL: there is no list */
    const char **entries;
    size_t count;
    const char *odd;     /* describes an entry that cannot be a module's name ("entry 3 is no text"); NULL */
    const char *unknown; /* the first expression that Tessera cannot match; NULL */
    const char *why;     /* it cannot */
    /* private */
    tsr_pattern *patterns;
    tsr_arena arena;
} tsr_ignore_list;

/* Reads the array of `key`. An invalid entry does not stop the following ones from being read. Returns false when
 * memory is exhausted. */
bool tsr_ignore_list_read(tsr_ignore_list *list, const char *key, tsr_json_text array);

/* Returns the first expression that cannot be evaluated for `module`: it tests character classes, and the name has
 * characters beyond ASCII. NULL if there is none. */
const char *tsr_ignore_list_unsure(const tsr_ignore_list *list, const char *module);

/* Returns the first entry that covers `module` ("model.layers.0.mlp.down_proj"), or NULL. */
const char *tsr_ignore_list_find(const tsr_ignore_list *list, tsr_matching matching, const char *module);

void tsr_ignore_list_free(tsr_ignore_list *list);
