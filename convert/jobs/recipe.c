/* Finds and reads recipes, and sets their options. */
#include "convert/jobs/recipe.h"

#include "common/file.h"
#include "common/text.h"
#include "formats/checkpoint/config.h"
#include "formats/json/json.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 20, MOST_RECIPES = 256 };

static const char kSchema[] = "tessera-recipe/1";

/* ---- finding ---- */

/* The folders of recipes, relative to the program's own. */
static const char *const kFolders[] = {"../share/tessera/recipes", "../../recipes"};

/* Opens the folder of recipes, and writes its path. Returns NULL if there is none. */
static DIR *open_folder(char path[PATH_MAX])
{
    char program[PATH_MAX];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0)
        return NULL;
    program[n] = '\0';
    char *const slash = strrchr(program, '/');
    for (size_t i = 0; slash != NULL && i < sizeof kFolders / sizeof *kFolders; i++) {
        *slash = '\0';
        if (snprintf(path, PATH_MAX, "%.2000s/%s", program, kFolders[i]) >= PATH_MAX)
            continue;
        DIR *const dir = opendir(path);
        if (dir != NULL)
            return dir;
    }
    return NULL;
}

/* Lists the names of the recipes in the folder, sorted, separated by "|". */
static tsr_status list_recipes(DIR *dir, const char *path, tsr_arena *arena, tsr_text *words, tsr_err *err)
{
    const char *names[MOST_RECIPES];
    size_t n = 0;
    const struct dirent *entry;
    for (;;) {
        TSR_TRY(tsr_next_entry(dir, path, &entry, err));
        if (entry == NULL)
            break;
        if (!tsr_ends_with(entry->d_name, ".json") || n == MOST_RECIPES)
            continue;
        names[n] = tsr_arena_dup(arena, entry->d_name, strlen(entry->d_name) - strlen(".json"));
        if (names[n++] == NULL)
            return tsr_out_of_memory(err, path);
    }
    if (n > 0)
        qsort(names, n, sizeof *names, tsr_by_text);
    for (size_t i = 0; i < n; i++)
        tsr_text_printf(words, "%s%s", i == 0 ? "" : "|", names[i]);
    return tsr_text_status(words, err);
}

static tsr_status refuse_name(const char *name, const char *words, tsr_err *err)
{
    char meant[80];
    return tsr_fail(err, TSR_E_USAGE,
                    "--recipe: no recipe '%s'%s; recipes: %s; for a file of your own give a path, ./%s", name,
                    tsr_did_you_mean(name, words, meant), words, name);
}

/* Sets recipe->path to the file of a named recipe. */
static tsr_status find_recipe(tsr_recipe *recipe, const char *name, tsr_err *err)
{
    char folder[PATH_MAX];
    tsr_text words = {0};
    DIR *const dir = open_folder(folder);
    if (dir == NULL)
        return tsr_fail(
            err, TSR_E_USAGE,
            "--recipe %s: there is no folder ../share/tessera/recipes beside the program's; give the path of a "
            "recipe",
            name);
    tsr_status status = list_recipes(dir, folder, &recipe->arena, &words, err);
    closedir(dir);
    recipe->path = tsr_arena_printf(&recipe->arena, "%s/%s.json", folder, name);
    if (status == TSR_OK && recipe->path == NULL)
        status = tsr_out_of_memory(err, "for a recipe");
    if (status == TSR_OK && access(recipe->path, F_OK) != 0)
        status = refuse_name(name, words.data == NULL ? "none" : words.data, err);
    tsr_text_free(&words);
    return status;
}

/* ---- reading ---- */

typedef struct reading {
    tsr_recipe *recipe;
    tsr_json_reader json;
    tsr_err *err;
} reading;

/* Reads a list of strings. `most` is the room of `items`. */
static tsr_status read_list(reading *r, const char *what, const char **items, size_t most, size_t *n)
{
    bool more;
    tsr_json_kind kind;
    TSR_TRY(tsr_json_enter_array(&r->json, r->err));
    for (;;) {
        TSR_TRY(tsr_json_next_element(&r->json, &more, r->err));
        if (!more)
            return TSR_OK;
        TSR_TRY(tsr_json_peek(&r->json, &kind, r->err));
        if (kind != TSR_JSON_STRING || *n == most)
            return tsr_fail(r->err, TSR_E_FORMAT, "%s: byte %zu: %s has at most %zu strings", r->recipe->path,
                            r->json.pos, what, most);
        TSR_TRY(tsr_json_read_text(&r->json, &r->recipe->arena, &items[(*n)++], r->err));
    }
}

static tsr_status read_member(reading *r, tsr_json_text key)
{
    static const char kSkipped[] = "source published loaders note rules dialect";
    tsr_recipe *const recipe = r->recipe;
    tsr_json_text value;
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)(key.size < 31 ? key.size : 31), key.data);
    if (tsr_json_is(key, "model_types"))
        return read_list(r, name, recipe->model_types, TSR_RECIPE_TYPES, &recipe->n_types);
    if (tsr_json_is(key, "options"))
        return read_list(r, name, (const char **)recipe->words, TSR_RECIPE_WORDS, &recipe->n_words);
    if (tsr_json_is(key, "release"))
        return tsr_json_read_text(&r->json, &recipe->arena, &recipe->release, r->err);
    recipe->has_rules = recipe->has_rules || tsr_json_is(key, "rules");
    if (!tsr_is_listed(kSkipped, name))
        return tsr_fail(r->err, TSR_E_FORMAT,
                        "%s: byte %zu: unknown key '%s'; known keys: schema, release, model_types, options, %s",
                        recipe->path, r->json.pos, name, kSkipped);
    return tsr_json_skip(&r->json, &value, r->err);
}

static tsr_status read_members(reading *r)
{
    tsr_json_text key;
    const char *schema = NULL;
    bool more;
    TSR_TRY(tsr_json_enter_object(&r->json, r->err));
    for (;;) {
        TSR_TRY(tsr_json_next_member(&r->json, &key, &more, r->err));
        if (!more)
            break;
        if (schema == NULL && tsr_json_is(key, "schema"))
            TSR_TRY(tsr_json_read_text(&r->json, &r->recipe->arena, &schema, r->err));
        else
            TSR_TRY(read_member(r, key));
        if (schema == NULL || strcmp(schema, kSchema) != 0)
            return tsr_fail(
                r->err, TSR_E_FORMAT,
                "%s: no recipe: its first member must be \"schema\": \"%s\" (a rules file is given by --rules)",
                r->recipe->path, kSchema);
    }
    if (r->recipe->n_types > 0 && r->recipe->release != NULL && (r->recipe->n_words > 0 || r->recipe->has_rules))
        return tsr_json_finish(&r->json, r->err);
    return tsr_fail(r->err, TSR_E_FORMAT, "%s: a recipe needs release, model_types, and options or rules",
                    r->recipe->path);
}

tsr_status tsr_recipe_read(tsr_recipe *recipe, const char *name, tsr_err *err)
{
    const char *text;
    size_t size;
    *recipe = (tsr_recipe){.path = name};
    tsr_status status =
        strchr(name, '/') == NULL && !tsr_ends_with(name, ".json") ? find_recipe(recipe, name, err) : TSR_OK;
    if (status == TSR_OK)
        status = tsr_read_file(recipe->path, MOST_BYTES, &recipe->arena, &text, &size, err);
    if (status == TSR_OK)
        status = read_members(&(reading){recipe, tsr_json_open(recipe->path, text, size), err});
    status = tsr_arena_status(&recipe->arena, status, err);
    if (status != TSR_OK)
        tsr_recipe_free(recipe);
    return status;
}

/* ---- using ---- */

tsr_status tsr_recipe_apply(const tsr_recipe *recipe, const tsr_option *options, uint64_t *given, tsr_err *err)
{
    char *words[TSR_RECIPE_WORDS];
    uint64_t set = 0;
    size_t n = 0;
    memcpy(words, recipe->words, sizeof words);
    const tsr_status status = tsr_options_parse(options, (int)recipe->n_words, words, NULL, 0, &n, &set, err);
    if (status != TSR_OK)
        return tsr_prepend(err, status, "%s", recipe->path);
    for (size_t i = 0; options[i].name != NULL; i++) {
        if ((set & *given) >> i & 1 && options[i].kind != TSR_OPT_LIST)
            return tsr_fail(err, TSR_E_USAGE, "%s cannot be combined with --recipe, which sets it: %s", options[i].name,
                            recipe->path);
    }
    *given |= set;
    return TSR_OK;
}

tsr_status tsr_recipe_check(const tsr_recipe *recipe, const tsr_checkpoint *source, tsr_err *err)
{
    static const char *const kPaths[] = {"model_type", "text_config.model_type"};
    tsr_arena scratch = {0};
    tsr_text known = {0};
    bool found = recipe->n_types == 0;
    const char *type = NULL;
    for (size_t i = 0; i < recipe->n_types; i++) {
        tsr_text_printf(&known, "%s%s", i == 0 ? "" : ", ", recipe->model_types[i]);
        for (size_t k = 0; k < 2 && source->config != NULL; k++) {
            const char *const here = tsr_config_find_string(source, kPaths[k], &scratch);
            type = type == NULL ? here : type;
            found = found || (here != NULL && strcmp(here, recipe->model_types[i]) == 0);
        }
    }
    tsr_status status = tsr_text_status(&known, err);
    if (status == TSR_OK && !found)
        status = tsr_fail(err, TSR_E_USAGE, "%s: model_type is %s, but --recipe is for %s (%s)", source->path,
                          type == NULL ? "not stated" : type, known.data, recipe->release);
    tsr_text_free(&known);
    tsr_arena_free(&scratch);
    return status;
}

void tsr_recipe_free(tsr_recipe *recipe)
{
    tsr_arena_free(&recipe->arena);
    *recipe = (tsr_recipe){.path = NULL};
}
