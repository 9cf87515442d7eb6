/* Finds commands, parses their command lines, and frees their state. */
#include "cli/command.h"

#include "cli/io/output.h"
#include "formats/remote/settings/hub_access.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- finding a command ---- */

/* Returns true if `name` is "word" or, with `next`, "word next". */
static bool is_named(const char *name, const char *word, const char *next)
{
    const size_t n = strlen(word);
    if (strncmp(name, word, n) != 0)
        return false;
    return next == NULL ? name[n] == '\0' : name[n] == ' ' && strcmp(name + n + 1, next) == 0;
}

/* Returns true if `next` is the alias of a command whose first word is `word`. */
static bool is_alias(const tsr_command *command, const char *word, const char *next)
{
    const size_t n = strlen(word);
    return command->alias != NULL && strcmp(command->alias, next) == 0 && strncmp(command->name, word, n) == 0 &&
           command->name[n] == ' ';
}

const tsr_command *tsr_command_find(const tsr_command *const *commands, int argc, char **argv, int *n_words)
{
    const tsr_command *found = NULL;
    for (size_t i = 0; argc > 0 && commands[i] != NULL; i++) {
        if (argc > 1 && (is_named(commands[i]->name, argv[0], argv[1]) || is_alias(commands[i], argv[0], argv[1]))) {
            *n_words = 2;
            return commands[i];
        }
        if (is_named(commands[i]->name, argv[0], NULL))
            found = commands[i];
    }
    *n_words = 1;
    return found;
}

/* ---- before reading ---- */

tsr_status tsr_command_begin(tsr_command_context *c, const tsr_command *command, const tsr_command_context *parent,
                             tsr_err *err)
{
    *c = (tsr_command_context){.command = command, .schema = command->schema, .common = tsr_common_options_defaults()};
    if (parent != NULL)
        c->commands = parent->commands;
    c->job = calloc(1, command->job_size + 1);
    if (c->job == NULL)
        return tsr_out_of_memory(err, NULL);
    if (command->set_defaults != NULL)
        command->set_defaults(c);
    c->options = tsr_arena_alloc(&c->arena, TSR_MAX_OPTIONS * sizeof *c->options);
    if (c->options == NULL)
        return tsr_out_of_memory(err, NULL);
    c->options[0] = (tsr_option){0};
    if (command->add_options != NULL)
        command->add_options(c, c->options);
    tsr_common_options_append(&c->common, command->takes, c->options);
    return TSR_OK;
}

/* Lists the paths of the command line. A model that is only in the Hub's cache has its path there. */
static void list_paths(tsr_command_context *c)
{
    c->paths = (tsr_io_paths){.json = c->common.json, .junit = c->common.junit, .progress = c->common.progress.file};
    c->command->list_paths(c, &c->paths);
    for (size_t i = 0; i < TSR_MAX_SOURCES; i++) {
        char path[PATH_MAX];
        if (c->paths.sources[i] != NULL && access(c->paths.sources[i], F_OK) != 0 &&
            tsr_hub_cached(c->paths.sources[i], path))
            c->paths.sources[i] = tsr_arena_dup(&c->arena, path, strlen(path));
    }
    if (c->batch != NULL)
        c->paths.promised = c->batch->promised;
    c->prints = !c->common.quiet && !tsr_io_paths_take_stdout(&c->paths);
}

tsr_status tsr_command_parse(tsr_command_context *c, int argc, char **argv, tsr_err *err)
{
    const tsr_command *const command = c->command;
    if (command->check_words != NULL)
        TSR_TRY(command->check_words(argc, argv, err));
    TSR_TRY(tsr_options_parse(c->options, argc, argv, c->words, command->most_words, &c->n_words, &c->given, err));
    if (c->common.help || c->common.short_help) {
        if (c->common.help)
            tsr_options_print_help(command->help, c->options);
        else
            tsr_options_print_short_help(command->name, command->help, c->options);
        c->done = true;
        return TSR_OK;
    }
    TSR_TRY(command->check(c, err));
    if (c->done)
        return TSR_OK;
    TSR_TRY(tsr_common_options_check(&c->common, err));
    list_paths(c);
    return TSR_OK;
}

/* ---- services ---- */

bool tsr_command_has_reports(const tsr_command_context *c)
{
    return c->common.json != NULL || c->common.junit != NULL || (c->batch != NULL && c->batch->keep);
}

void tsr_command_warn(const tsr_command_context *c, const char *text)
{
    tsr_print_stderr("tessera: %s%s%s\n", c->batch == NULL ? "" : c->batch->job, c->batch == NULL ? "" : ": ", text);
}

void tsr_command_close(tsr_command_context *c)
{
    if (c->command != NULL && c->command->close != NULL && c->job != NULL)
        c->command->close(c);
    free(c->job);
    tsr_text_free(&c->result);
    tsr_arena_free(&c->arena);
    tsr_sandbox_end(&c->made);
    *c = (tsr_command_context){0};
}
