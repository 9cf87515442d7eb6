/* The help of all commands for programs. */
#include "cli/help.h"

#include "cli/options.h"
#include "cli/output.h"
#include "cli/places.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const tsr_exit_meaning tsr_exit_meanings[] = {{0, "fine"},
                                              {1, "a check fell short"},
                                              {2, "usage"},
                                              {3, "bad input"},
                                              {4, "I/O or memory"},
                                              {5, "no device"},
                                              {130, "interrupted"},
                                              {141, "the reader of stdout left"},
                                              {0}};

/* A command, or one of its checks: it is asked for its help as on the command line. */
static void gather(tsr_text *to, const tsr_command *command, const char *check)
{
    char word[32], name[64], help[] = "--help";
    char *words[] = {word, help, NULL};
    snprintf(word, sizeof word, "%s", check);
    snprintf(name, sizeof name, "%s%s%s", command->name, *check == '\0' ? "" : " ", check);
    tsr_json_begin_object(to, false);
    tsr_json_member_string(to, "name", name);
    tsr_json_member_string(to, "summary", command->help);
    (void)(*check == '\0' ? command->run(1, words + 1) : command->run(2, words));
    tsr_json_end_object(to);
}

tsr_status tsr_help_json(const tsr_command *commands, size_t n, const char *path, tsr_err *err)
{
    tsr_text t = {0};
    tsr_options_gather_help(&t);
    tsr_json_begin_object(&t, false);
    tsr_json_member_string(&t, "schema", "tessera-help/1");
    tsr_json_member_string(&t, "version", TSR_VERSION);
    tsr_json_key(&t, "exit_codes");
    tsr_json_begin_array(&t, false);
    for (const tsr_exit_meaning *e = tsr_exit_meanings; e->meaning != NULL; e++) {
        tsr_json_begin_object(&t, true);
        tsr_json_member_u64(&t, "code", (uint64_t)e->code);
        tsr_json_member_string(&t, "meaning", e->meaning);
        tsr_json_end_object(&t);
    }
    tsr_json_end_array(&t);
    tsr_json_key(&t, "commands");
    tsr_json_begin_array(&t, false);
    for (size_t i = 0; i < n; i++) {
        gather(&t, &commands[i], "");
        for (const char *p = commands[i].checks; p != NULL && *p != '\0'; p += *p == '|') {
            char check[32];
            const size_t length = strcspn(p, "|");
            snprintf(check, sizeof check, "%.*s", (int)length, p);
            gather(&t, &commands[i], check);
            p += length;
        }
    }
    tsr_json_end_array(&t);
    tsr_json_end_object(&t);
    tsr_text_append(&t, "\n", 1);
    tsr_options_gather_help(NULL);
    const tsr_status status = tsr_write_report(path, &t, err);
    tsr_text_free(&t);
    return status;
}

/* ---- tensors ---- */

/* How many digits `at` begins with, if they are all of a part of `name` between dots; else 0. */
static size_t whole_number(const char *name, const char *at)
{
    const size_t n = strspn(at, "0123456789");
    return (at == name || at[-1] == '.') && (at[n] == '.' || at[n] == '\0') ? n : 0;
}

/* `name` as a glob that begins with `beginning`, into `glob`. False: it does not begin so. */
static bool as_glob(const char *name, const char *beginning, tsr_text *glob)
{
    const char *p = name;
    for (; *beginning != '\0'; beginning++) {
        const size_t number = *beginning == '*' ? whole_number(name, p) : 0;
        if (number == 0 && *p != *beginning)
            return false;
        tsr_text_append(glob, beginning, 1);
        p += number == 0 ? 1 : number;
    }
    while (*p != '\0') {
        const size_t number = whole_number(name, p);
        tsr_text_append(glob, number == 0 ? p : "*", 1);
        p += number == 0 ? 1 : number;
    }
    tsr_text_append(glob, "", 1);
    return true;
}

static void print_globs(char **globs, size_t n)
{
    qsort(globs, n, sizeof *globs, tsr_by_text);
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || strcmp(globs[i - 1], globs[i]) != 0)
            tsr_print("%s\n", globs[i]);
        if (i > 0)
            free(globs[i - 1]);
    }
    if (n > 0)
        free(globs[n - 1]);
}

tsr_status tsr_help_tensors(const char *path, const char *beginning, tsr_err *err)
{
    tsr_checkpoint *checkpoint = NULL;
    TSR_TRY(tsr_checkpoint_open(&checkpoint, path, NULL, 0, err));
    const tsr_tensors *const all = &checkpoint->tensors;
    char **const globs = calloc(all->count + 1, sizeof *globs);
    tsr_status status = globs == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
    size_t n = 0;
    for (size_t i = 0; i < all->count && status == TSR_OK; i++) {
        tsr_text glob = {0};
        const bool begins = as_glob(all->items[i].name, beginning, &glob);
        status = tsr_text_status(&glob, err);
        if (begins && status == TSR_OK)
            globs[n++] = glob.data;
        else
            tsr_text_free(&glob);
    }
    if (globs != NULL)
        print_globs(globs, n);
    free(globs);
    tsr_checkpoint_close(checkpoint);
    return status;
}
