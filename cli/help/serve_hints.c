/* Makes the commands that serve an output with each loader, or the reason why a loader cannot load it. */
#include "cli/help/serve_hints.h"

#include "cli/io/output.h"
#include "formats/json/json_write.h"

#include <string.h>

static const unsigned kSizes[] = {1, 2, 4, 8};
enum { SIZES = sizeof kSizes / sizeof *kSizes };

/* The loaders for which a command is printed. DeepSeek's own code is not included: it reads its own files, which a
 * conversion makes. %s is the path, quoted for a shell if necessary. */
static const struct {
    tsr_loader loader;
    const char *command;
    bool by_tp, always; /* always: printed even if the loader cannot load the output */
} kCommands[] = {
    {TSR_LOADER_VLLM, "vllm serve %s", true, true},
    {TSR_LOADER_SGLANG, "python -m sglang.launch_server --model-path %s", true, true},
    {TSR_LOADER_TRANSFORMERS, "python -c 'import sys, transformers as t; t.AutoModel.from_pretrained(sys.argv[1])' %s",
     false, true},
    {TSR_LOADER_TRTLLM, "trtllm-serve %s", true, false},
};

/* Returns the path, quoted for a shell if necessary; NULL: memory is exhausted. */
static const char *quoted(const char *path, tsr_arena *arena)
{
    static const char kPlain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    if (path[0] != '-' && path[0] != '\0' && path[strspn(path, kPlain)] == '\0')
        return path;
    char *const text = tsr_arena_alloc(arena, 4 * strlen(path) + 8), *to = text;
    if (text == NULL)
        return NULL;
    if (path[0] == '-')
        to = stpcpy(to, "./");
    *to++ = '\'';
    for (const char *p = path; *p != '\0'; p++) {
        if (*p == '\'')
            to = stpcpy(to, "'\\''");
        else
            *to++ = *p;
    }
    strcpy(to, "'");
    return text;
}

/* Returns the reason of an issue as text. */
static const char *reason_of(tsr_arena *arena, const tsr_issue *issue)
{
    if (issue == NULL)
        return "tessera inspect --can-load says why";
    return tsr_arena_printf(arena, "%s%s%s%s%s", issue->tensor == NULL ? "" : issue->tensor,
                            issue->tensor == NULL ? "" : ": ", issue->detail, issue->advice == NULL ? "" : "; ",
                            issue->advice == NULL ? "" : issue->advice);
}

/* Applies the rules of the loaders, and adds an item for each loader. */
static tsr_status check_loaders(tsr_serve_hints *hints, const char *path, const tsr_checkpoint *c,
                                const tsr_weights *weights, tsr_err *err)
{
    tsr_load_table table = {.n_tp = SIZES};
    tsr_issues issues = {0};
    const tsr_model model = tsr_model_read(c);
    const tsr_load_subject subject = {.checkpoint = c, .weights = weights, .model = &model, .index_metadata = true};
    memcpy(table.tp, kSizes, sizeof kSizes);
    for (size_t i = 0; i < sizeof kCommands / sizeof *kCommands; i++)
        table.loaders[table.n_loaders++] = kCommands[i].loader;
    tsr_status status = tsr_loaders_check(&table, &subject, &issues, err);
    const char *const name = quoted(path, &hints->arena);
    for (size_t i = 0; status == TSR_OK && i < table.n_loaders; i++) {
        const char *const loader = tsr_loader_name(table.loaders[i]);
        unsigned n = 0, sizes[SIZES] = {0};
        for (size_t k = 0; k < SIZES; k++) {
            if (table.ok[i][k] && (kCommands[i].by_tp || k == 0))
                sizes[n++] = kSizes[k];
        }
        if (n == 0 && !kCommands[i].always)
            continue;
        const char *const reason =
            n > 0 ? hints->against : reason_of(&hints->arena, tsr_issues_first_fatal(&issues, loader));
        n = hints->against != NULL ? 0 : n;
        const char *const command =
            n == 0 || name == NULL ? NULL : tsr_arena_printf(&hints->arena, kCommands[i].command, name);
        if (command == NULL && reason == NULL) {
            status = tsr_out_of_memory(err, NULL);
            break;
        }
        hints->items[hints->count].loader = loader;
        hints->items[hints->count].command = command;
        hints->items[hints->count].reason = reason;
        hints->items[hints->count].n_tp = kCommands[i].by_tp ? n : 0;
        memcpy(hints->items[hints->count].tp, sizes, sizeof sizes);
        hints->count++;
    }
    tsr_issues_free(&issues);
    return status;
}

tsr_status tsr_serve_hints_find(tsr_serve_hints *hints, const char *path, const char *against, tsr_err *err)
{
    tsr_checkpoint *c;
    tsr_weights weights;
    *hints = (tsr_serve_hints){.against = against};
    TSR_TRY(tsr_checkpoint_open(&c, path, NULL, 0, err));
    tsr_status status = tsr_weights_survey(&weights, c, (tsr_block){0, 0}, tsr_weights_pass_over, NULL, err);
    if (status == TSR_OK) {
        status = check_loaders(hints, path, c, &weights, err);
        tsr_weights_free(&weights);
    }
    tsr_checkpoint_close(c);
    if (status != TSR_OK)
        tsr_serve_hints_free(hints);
    return status;
}

void tsr_serve_hints_print(const tsr_serve_hints *hints)
{
    if (hints->against != NULL)
        tsr_print("no command to serve it: %s\n", hints->against);
    else if (hints->count > 0)
        tsr_print("commands to serve it, judged by names, shapes and config.json:\n");
    for (size_t i = 0; i < hints->count; i++) {
        if (hints->items[i].reason != NULL && hints->items[i].reason != hints->against)
            tsr_print("  not with %s: %s\n", hints->items[i].loader, hints->items[i].reason);
        if (hints->items[i].command == NULL)
            continue;
        tsr_print("  %s", hints->items[i].command);
        for (unsigned k = 0; k < hints->items[i].n_tp; k++)
            tsr_print("%s%u", k == 0 ? "    # tensor-parallel " : ", ", hints->items[i].tp[k]);
        tsr_print("\n");
    }
}

void tsr_serve_hints_json(tsr_text *t, const tsr_serve_hints *hints)
{
    tsr_json_member_array(t, "serve", false);
    for (size_t i = 0; i < hints->count; i++) {
        tsr_json_begin_object(t, true);
        tsr_json_member_string(t, "loader", hints->items[i].loader);
        tsr_json_member_string(t, hints->items[i].command == NULL ? "reason" : "command",
                               hints->items[i].command == NULL ? hints->items[i].reason : hints->items[i].command);
        if (hints->items[i].n_tp > 0) {
            tsr_json_member_array(t, "tp", true);
            for (unsigned k = 0; k < hints->items[i].n_tp; k++)
                tsr_json_u64(t, hints->items[i].tp[k]);
            tsr_json_end_array(t);
        }
        tsr_json_end_object(t);
    }
    tsr_json_end_array(t);
}

void tsr_serve_hints_free(tsr_serve_hints *hints)
{
    tsr_arena_free(&hints->arena);
    *hints = (tsr_serve_hints){.count = 0};
}
