/* Writes the help of all commands as JSON, and prints the page about errors and tensor names for completion. */
#include "cli/help/help.h"

#include "cli/help/error_pages.h"
#include "cli/help/help_text.h"
#include "cli/io/output.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const tsr_exit_meaning tsr_exit_meanings[] = {{0, "fine"},
                                              {1, "a check failed"},
                                              {2, "usage"},
                                              {3, "bad input"},
                                              {4, "I/O or memory"},
                                              {5, "no device"},
                                              {130, "interrupted"},
                                              {141, "the reader of stdout closed it"},
                                              {0}};

/* Returns the summary of a command. A check of `verify` has that of the command before it. */
static const char *summary_of(const tsr_command *const *commands, size_t i)
{
    while (commands[i]->summary == NULL)
        i--;
    return commands[i]->summary;
}

static tsr_status json_command(tsr_text *to, const tsr_command *const *commands, size_t i, tsr_err *err)
{
    tsr_command_context context;
    tsr_status status = tsr_command_begin(&context, commands[i], NULL, err);
    if (status == TSR_OK) {
        tsr_json_begin_object(to, false);
        tsr_json_member_string(to, "name", commands[i]->name);
        tsr_json_member_string(to, "summary", summary_of(commands, i));
        tsr_options_json(to, commands[i]->help, context.options);
        tsr_json_end_object(to);
    }
    tsr_command_close(&context);
    return status;
}

tsr_status tsr_help_json(const tsr_command *const *commands, const char *path, tsr_err *err)
{
    tsr_text t = {0};
    tsr_status status = TSR_OK;
    tsr_json_begin_document(&t, "tessera-help/1");
    tsr_json_member_array(&t, "exit_codes", false);
    for (const tsr_exit_meaning *e = tsr_exit_meanings; e->meaning != NULL; e++) {
        tsr_json_begin_object(&t, true);
        tsr_json_member_u64(&t, "code", (uint64_t)e->code);
        tsr_json_member_string(&t, "meaning", e->meaning);
        tsr_json_end_object(&t);
    }
    tsr_json_end_array(&t);
    tsr_json_member_array(&t, "commands", false);
    for (size_t i = 0; commands[i] != NULL && status == TSR_OK; i++)
        status = json_command(&t, commands, i, err);
    tsr_json_end_array(&t);
    tsr_json_end_document(&t);
    if (status == TSR_OK)
        status = tsr_text_status(&t, err);
    if (status == TSR_OK)
        status = tsr_write_report(path, &t, err);
    tsr_text_free(&t);
    return status;
}

/* ---- errors ---- */

int tsr_help_errors(const char *heading)
{
    enum { EXIT_IO = 4, EXIT_USAGE = 2 };
    const tsr_style style = {.width = tsr_line_width()};
    tsr_text text = {0}, headings = {0};
    for (const tsr_error_section *s = tsr_error_sections; s->heading != NULL; s++) {
        tsr_text_printf(&headings, "%s%s", headings.size == 0 ? "" : "|", s->heading);
        if (heading != NULL && strcmp(heading, s->heading) != 0)
            continue;
        tsr_text_printf(&text, "%s%s\n\n", text.size == 0 ? "" : "\n", s->heading);
        tsr_help_draw(&text, &style, s->text);
    }
    const bool failed = text.failed || headings.failed, found = text.size > 0;
    char meant[80];
    if (failed)
        tsr_print_stderr("tessera: out of memory\n");
    else if (found)
        tsr_print_raw(text.data, text.size);
    else
        tsr_print_stderr("tessera: unknown error '%s'%s; 'tessera help errors' lists all\n", heading,
                         tsr_did_you_mean(heading, headings.data, meant));
    tsr_text_free(&text);
    tsr_text_free(&headings);
    return failed ? EXIT_IO : found ? 0 : EXIT_USAGE;
}

/* ---- tensors ---- */

/* Returns the number of digits at `at` if they are a whole component of `name`; else 0. */
static size_t whole_number(const char *name, const char *at)
{
    const size_t n = strspn(at, "0123456789");
    return (at == name || at[-1] == '.') && (at[n] == '.' || at[n] == '\0') ? n : 0;
}

/* Writes `name` as a glob that begins with `beginning`. Returns false if it has another beginning. */
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
