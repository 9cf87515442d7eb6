/* Recipes: the options of `quantize` that make the format of a released checkpoint, in a file for each release.
 *
 * A recipe is JSON. It may have rules, and is then a rules file (convert/search/rules.h) with more members:
 *     {"schema": "tessera-recipe/1", "release": "deepseek-ai/DeepSeek-V3", "model_types": ["deepseek_v3"],
 *      "options": ["--scheme", "fp8-block"], "source": "where the published form was read",
 *      "published": {"quant_method": "fp8"}, "loaders": ["vllm"], "note": "what differs"}
 * `schema` comes first. `published` is the quantization_config of the release, and `loaders` read its form; tests compare
 * both with the output. */
#pragma once

#include "common/arena.h"
#include "common/options.h"
#include "common/status.h"
#include "formats/checkpoint/checkpoint.h"

enum { TSR_RECIPE_TYPES = 8, TSR_RECIPE_WORDS = 32 };

/* Zero-initialised is none. */
typedef struct tsr_recipe {
    const char *path, *release;
    const char *model_types[TSR_RECIPE_TYPES];
    size_t n_types;
    char *words[TSR_RECIPE_WORDS]; /* options */
    size_t n_words;
    bool has_rules;
    tsr_arena arena;
} tsr_recipe;

/* Reads a recipe. A name without a slash or .json is that of a file in the folder of recipes, share/tessera/recipes
 * beside the program's folder (in a build, the source's recipes/); other names are paths. TSR_E_USAGE: there is no such
 * recipe; the message lists those that there are. TSR_E_FORMAT: the file is no recipe. On failure *recipe is empty. */
tsr_status tsr_recipe_read(tsr_recipe *recipe, const char *name, tsr_err *err);

/* Sets the options of the recipe in the table. *given gains their bits. TSR_E_USAGE: one of them is in *given already
 * and cannot be repeated. */
tsr_status tsr_recipe_apply(const tsr_recipe *recipe, const tsr_option *options, uint64_t *given, tsr_err *err);

/* Rejects a model that the recipe is not for. */
tsr_status tsr_recipe_check(const tsr_recipe *recipe, const tsr_checkpoint *source, tsr_err *err);

void tsr_recipe_free(tsr_recipe *recipe);
