/* Composes the command, and quotes paths for a shell. */
#include "cli/help/next_command.h"

#include "cli/io/output.h"
#include "common/text.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Returns true if a path holds control characters or invalid UTF-8. */
static bool is_hidden(const char *path)
{
    tsr_text shown = {0};
    tsr_text_visible(&shown, path, strlen(path));
    const bool hidden = shown.failed || shown.size != strlen(path) || memcmp(shown.data, path, shown.size) != 0;
    tsr_text_free(&shown);
    return hidden;
}

/* Prints a path as an escaped string of the shell: $'a\012b'. */
static void print_escaped(const char *path)
{
    tsr_print("$'");
    for (; *path != '\0'; path++) {
        const unsigned char c = (unsigned char)*path;
        if (c < ' ' || c > '~' || c == '\'' || c == '\\')
            tsr_print("\\%03o", c);
        else
            tsr_print("%c", c);
    }
    tsr_print("'");
}

void tsr_print_quoted(const char *path)
{
    static const char kPlain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=:,@%";
    if (path[0] != '\0' && path[strspn(path, kPlain)] == '\0') {
        tsr_print("%s", path);
        return;
    }
    if (is_hidden(path)) {
        print_escaped(path);
        return;
    }
    tsr_print("'");
    for (; *path != '\0'; path++) {
        if (*path == '\'')
            tsr_print("'\\''");
        else
            tsr_print("%c", *path);
    }
    tsr_print("'");
}

void tsr_print_path(const char *path)
{
    if (path[0] == '-') /* otherwise it would be parsed as an option */
        tsr_print("./");
    tsr_print_quoted(path);
}

void tsr_print_next_diff(const char *a, const char *b, const char *tensor)
{
    tsr_print("next: tessera diff ");
    tsr_print_path(a);
    tsr_print(" ");
    tsr_print_path(b);
    tsr_print(" --tensors ");
    tsr_print_quoted(tensor);
}

static bool has_config(const tsr_plan *plan)
{
    for (size_t i = 0; i < plan->n_texts; i++) {
        const char *const slash = strrchr(plan->texts[i].name, '/');
        if (strcmp(slash == NULL ? plan->texts[i].name : slash + 1, TSR_CONFIG_NAME) == 0)
            return true;
    }
    return false;
}

/* A single file without a configuration can only be named as a file, not as a directory. */
void tsr_print_next(const char *src_path, const char *dst_path, bool partial, const tsr_plan *plan)
{
    const bool bare = plan->sources[0]->config == NULL && !has_config(plan);
    /* If files of SRC were left out, the rest cannot be compared with all of SRC. */
    static const char kVerify[] = "tessera verify DST --against SRC";
    const char *p = plan->next != NULL ? plan->next : partial ? "tessera inspect DST" : kVerify;
    const char *const method = strncmp(p, kVerify, sizeof kVerify - 1) != 0 ? ""
                               : plan->factors != NULL                      ? " --method gptq"
                               : plan->n_weighted > 0                       ? " --method importance"
                                                                            : "";
    if (bare)
        tsr_print("no config.json beside a single file, and loaders need one\n");
    if (bare && (plan->next == NULL || plan->n_files != 1))
        return;
    tsr_print("next: ");
    while (*p != '\0') {
        const bool src = strncmp(p, "SRC", 3) == 0, dst = strncmp(p, "DST", 3) == 0;
        if (!src && !dst) {
            tsr_print("%c", *p++);
            continue;
        }
        /* The rest of the word belongs to the path. */
        const size_t n = strcspn(p, " ");
        char word[2 * PATH_MAX];
        snprintf(word, sizeof word, "%s%.*s%s%s", src ? src_path : dst_path, (int)(n - 3), p + 3,
                 bare && dst ? "/" : "", bare && dst ? plan->files[0].name : "");
        tsr_print_path(word);
        p += n;
    }
    tsr_print("%s\n", method);
}
