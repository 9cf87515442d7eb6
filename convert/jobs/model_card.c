/* Composes the model card of an output. */
#include "convert/jobs/model_card.h"

#include "formats/checkpoint/config.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CARD = 1 << 20, MOST_WORST = 5 };

/* ---- the source's card ---- */

/* Returns true for README.md, README.source.md, README.source.source.md and so on. */
static bool is_card(const char *name)
{
    static const char kStem[] = "README", kMore[] = ".source";
    if (strncmp(name, kStem, strlen(kStem)) != 0)
        return false;
    name += strlen(kStem);
    while (strncmp(name, kMore, strlen(kMore)) == 0)
        name += strlen(kMore);
    return strcmp(name, ".md") == 0;
}

/* Gives the copies of the source's cards their names. */
static tsr_status rename_cards(tsr_plan *plan, tsr_err *err)
{
    for (size_t i = 0; i < plan->n_files; i++) {
        tsr_out_file *const f = &plan->files[i];
        if (!f->raw || f->n_steps != 1 || !is_card(f->name))
            continue;
        tsr_step *const step = &plan->steps[f->first_step];
        tsr_tensor *const out = tsr_plan_tensor(plan, step->out[0]);
        const char *const name = tsr_arena_printf(&plan->arena, "%.*s.source.md", (int)strlen(f->name) - 3, f->name);
        if (out == NULL || name == NULL)
            return tsr_out_of_memory(err, "while planning");
        out->name = name;
        f->name = name;
        step->out[0] = out;
    }
    return TSR_OK;
}

/* Reads README.md of the source into the arena. Sets *text to NULL if there is none, or if it is no text of a usual
 * size. */
static tsr_status read_card(tsr_plan *plan, const char **text, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    *text = NULL;
    for (size_t i = 0; i < c->n_side_files; i++) {
        const tsr_tensor side = tsr_checkpoint_side_file(c, i);
        if (strcmp(side.name, "README.md") != 0 || side.bytes > MOST_CARD)
            continue;
        char *const data = tsr_arena_alloc(&plan->arena, side.bytes + 1);
        if (data == NULL)
            return tsr_out_of_memory(err, "for the model card");
        TSR_TRY(tsr_checkpoint_check_side_file(c, i, err));
        TSR_TRY(tsr_checkpoint_read(c, &side, 0, data, side.bytes, err));
        data[side.bytes] = '\0';
        *text = strlen(data) == side.bytes ? data : NULL;
    }
    return TSR_OK;
}

static bool has_card(const tsr_checkpoint *c)
{
    bool has = false;
    for (size_t i = 0; i < c->n_side_files; i++)
        has = has || strcmp(tsr_checkpoint_side_file(c, i).name, "README.md") == 0;
    return has;
}

/* Returns true if a line of YAML is a member with a plain value on the same line: "license: mit". */
static bool is_member(const char *line, size_t size, const char *key)
{
    const size_t n = strlen(key);
    if (size < n + 3 || strncmp(line, key, n) != 0 || line[n] != ':' || line[n + 1] != ' ')
        return false;
    for (size_t i = n + 2; i < size; i++) {
        if (iscntrl((unsigned char)line[i]))
            return false;
    }
    return strchr("[{|>&*!%@`", line[n + 2]) == NULL;
}

/* Appends the members of the source's front matter that hold for the output, too. */
static void take_members(tsr_text *out, const char *card)
{
    static const char *const kKeys[] = {"license",  "license_name", "license_link",
                                        "language", "library_name", "pipeline_tag"};
    if (card == NULL || strncmp(card, "---\n", 4) != 0)
        return;
    const char *const end = strstr(card + 3, "\n---");
    for (const char *line = card + 4; end != NULL && line < end; line = strchr(line, '\n') + 1) {
        const size_t size = strcspn(line, "\n");
        for (size_t k = 0; k < sizeof kKeys / sizeof *kKeys; k++) {
            if (is_member(line, size, kKeys[k]))
                tsr_text_printf(out, "%.*s\n", (int)size, line);
        }
    }
}

/* ---- the card ---- */

/* Returns true for the name of a repository on a hub: "org/name". */
static bool is_repository(const char *name)
{
    const char *const slash = name == NULL ? NULL : strchr(name, '/');
    if (slash == NULL || slash == name || slash[1] == '\0' || strchr(slash + 1, '/') != NULL)
        return false;
    for (const char *c = name; *c != '\0'; c++) {
        if (!isalnum((unsigned char)*c) && strchr("-_./", *c) == NULL)
            return false;
    }
    return name[0] != '.';
}

static void front_matter(const tsr_plan *plan, tsr_text *t)
{
    tsr_text_printf(t, "---\n%stags:\n- tessera\n", plan->card.members);
    if (plan->card.scheme != NULL)
        tsr_text_printf(t, "- quantized\n- %s\n", plan->card.scheme);
    if (plan->card.dialect != NULL)
        tsr_text_printf(t, "- %s\n", plan->card.dialect);
    tsr_text_printf(t, "---\n\n");
}

/* Appends a word of the command, quoted for a shell if it needs to be. */
static void add_word(tsr_text *t, const char *word)
{
    const bool plain =
        word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./,:+%@")] == '\0';
    tsr_text_printf(t, " %s", plain ? "" : "'");
    for (; *word != '\0'; word++)
        tsr_text_printf(t, *word == '\'' ? "'\\''" : "%c", *word);
    tsr_text_printf(t, "%s", plain ? "" : "'");
}

static void add_command(const tsr_plan *plan, tsr_text *t)
{
    const tsr_plan_provenance *const with = &plan->provenance;
    if (with->command == NULL)
        return;
    tsr_text_printf(t, "Made with Tessera " TSR_VERSION ":\n\n    tessera %s SRC -o DST", with->command);
    for (size_t i = 0; i < with->n_words; i++)
        add_word(t, with->words[i]);
    tsr_text_printf(t, "\n\n");
}

static void add_errors(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_text *t)
{
    tsr_quant_stats whole = {0};
    size_t worst[MOST_WORST] = {0}, n = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        if (plan->steps[s].op->stats_of != TSR_STATS_SOURCE)
            continue;
        tsr_quant_stats_add(&whole, &rows[s]);
        size_t at = n;
        while (at > 0 &&
               tsr_quant_stats_relative_error(&rows[worst[at - 1]]) < tsr_quant_stats_relative_error(&rows[s]))
            at--;
        if (at == MOST_WORST)
            continue;
        n += n < MOST_WORST;
        memmove(&worst[at + 1], &worst[at], (n - at - 1) * sizeof *worst);
        worst[at] = s;
    }
    if (whole.elements == 0)
        return;
    tsr_text_printf(
        t,
        "## Error of the weights\n\nAgainst the source: SQNR %.2f dB, relative error %.5f, %llu values clamped.\n"
        "The largest relative errors:\n\n| tensor | SQNR dB | relative error |\n|---|---|---|\n",
        tsr_quant_stats_sqnr(&whole), tsr_quant_stats_relative_error(&whole), U64(whole.saturated));
    for (size_t i = 0; i < n; i++)
        tsr_text_printf(t, "| `%s` | %.2f | %.5f |\n", tsr_step_reported(&plan->steps[worst[i]])->name,
                        tsr_quant_stats_sqnr(&rows[worst[i]]), tsr_quant_stats_relative_error(&rows[worst[i]]));
    tsr_text_printf(t, "\n`" TSR_REPORT_NAME "` has every tensor.\n\n");
}

static void write_card(const tsr_plan *plan, const tsr_quant_stats *rows, tsr_text *t)
{
    const tsr_plan_made *const made = &plan->made;
    front_matter(plan, t);
    tsr_text_printf(t, "# %s\n\n", plan->card.scheme == NULL ? "A converted checkpoint" : "A quantized checkpoint");
    if (plan->card.of_source)
        tsr_text_printf(t, "[README.source.md](README.source.md) is the card of the model that it was made of.\n\n");
    if (plan->card.scheme != NULL)
        tsr_text_printf(t, "- Scheme: %s\n", plan->card.scheme);
    if (plan->card.dialect != NULL)
        tsr_text_printf(t, "- Dialect: %s\n", plan->card.dialect);
    if (made->rule != NULL)
        tsr_text_printf(t, "- Rule of scales: %s\n", made->rule);
    if (made->readers != NULL)
        tsr_text_printf(t, "- Loaders: %s\n", made->readers);
    tsr_text_printf(t, "%s`tessera inspect DIR --can-load all` says which loaders take it, and why not.\n\n",
                    plan->card.scheme == NULL ? "" : "\n");
    add_command(plan, t);
    add_errors(plan, rows, t);
}

tsr_status tsr_plan_model_card(tsr_plan *plan, const char *scheme, const char *dialect, tsr_err *err)
{
    static const char kName[] = "model card";
    const char *card;
    tsr_text members = {0};
    if (plan->sources[0]->config == NULL)
        return TSR_OK;
    plan->card.scheme = plan->made.scheme == NULL ? scheme : plan->made.scheme;
    plan->card.dialect = plan->made.dialect == NULL ? dialect : plan->made.dialect;
    if (!has_card(plan->sources[0]))
        return TSR_OK;
    TSR_TRY(read_card(plan, &card, err));
    TSR_TRY(rename_cards(plan, err));
    const char *const from = tsr_config_find_string(plan->sources[0], "_name_or_path", &plan->arena);
    take_members(&members, card);
    if (is_repository(from))
        tsr_text_printf(&members, "base_model: %s\n%s", from,
                        plan->card.scheme == NULL ? "" : "base_model_relation: quantized\n");
    tsr_status status = tsr_text_status(&members, err);
    plan->card.members =
        status == TSR_OK ? tsr_arena_dup(&plan->arena, members.size == 0 ? "" : members.data, members.size) : NULL;
    tsr_text_free(&members);
    if (status == TSR_OK && plan->card.members == NULL)
        status = tsr_out_of_memory(err, "for the model card");
    plan->card.of_source = card != NULL;
    plan->card.write = write_card;
    plan->fingerprint = XXH3_64bits_withSeed(kName, sizeof kName, plan->fingerprint);
    return status;
}
