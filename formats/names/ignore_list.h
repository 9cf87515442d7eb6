/* The lists in quantization_config of modules that stay unquantized, and the ways in which loaders read them.
 *
 * The same list means different things: one loader wants the exact name of a module, another takes any name that holds
 * an entry, a third knows regular expressions; and those that run q, k and v (or gate and up) as one layer look for the
 * members, not for the name of the joined layer. */
#ifndef TSR_FORMATS_NAMES_IGNORE_LIST_H
#define TSR_FORMATS_NAMES_IGNORE_LIST_H

#include "common/arena.h"
#include "formats/json/json.h"
#include "formats/names/pattern.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tsr_matching {
    TSR_MATCH_EXACT, /* the whole name (vLLM, quant_method fp8) */
    TSR_MATCH_PATH,  /* the entry's components somewhere in the name, with or without "model." (SGLang) */
    TSR_MATCH_ENDS,  /* the name begins or ends with the entry (transformers) */
    TSR_MATCH_REGEX, /* the whole name, or "re:" and an expression that fits from its start (compressed-tensors) */
    TSR_MATCH_SUFFIX_REGEX, /* the same, or the name's last components (SGLang, compressed-tensors) */
    TSR_MATCH_GLOB,         /* shell patterns (TensorRT-LLM) */
    TSR_MATCH_WITHIN,       /* the other way round: the name is a part of the entry (vLLM and SGLang, experts) */
} tsr_matching;

typedef struct tsr_ignore_list {
    const char *key; /* "modules_to_not_convert"; NULL: there is no list */
    const char **entries;
    size_t count;
    const char *odd;     /* what is in the list and can be no module's name ("entry 3 is no text"); NULL */
    const char *unknown; /* the first expression that Tessera cannot match; NULL */
    const char *why;     /* it cannot */
    /* private */
    tsr_pattern *patterns;
    tsr_arena arena;
} tsr_ignore_list;

/* Reads the array of `key`. An entry of any kind does not stop those after it. False when memory is
 * exhausted. */
bool tsr_ignore_list_read(tsr_ignore_list *list, const char *key, tsr_json_text array);

/* The first expression that cannot be asked about `module`: it wants to know what a letter is, and the name has others
 * than ASCII's. NULL when there is none. */
const char *tsr_ignore_list_unsure(const tsr_ignore_list *list, const char *module);

/* The first entry that covers `module` ("model.layers.0.mlp.down_proj"), or NULL. */
const char *tsr_ignore_list_find(const tsr_ignore_list *list, tsr_matching matching, const char *module);

void tsr_ignore_list_free(tsr_ignore_list *list);

#endif
