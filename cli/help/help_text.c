/* Wraps the help of commands. */
#include "cli/help/help_text.h"

#include <string.h>

/* The largest column where the text of an option begins; the length of a head that gets its own line; further
 * indentation. */
enum { HELP_COLUMN = 28, LONG_HEAD = 6, MORE = 6 };

/* Returns the length of the line at `text`, without its end; the next line is in *next. */
static size_t line_at(const char *text, const char **next)
{
    const size_t size = strcspn(text, "\n");
    *next = text + size + (text[size] == '\n');
    return size;
}

static size_t indent_of(const char *line)
{
    return strspn(line, " ");
}

/* Draws the words of `words` after `used` characters, and frees them. */
static void draw(tsr_text *to, const tsr_style *style, size_t used, size_t indent, tsr_text *words)
{
    if (words->data != NULL)
        tsr_draw_wrapped(to, style, (unsigned)used, (unsigned)indent, words->data);
    to->failed = to->failed || words->failed;
    tsr_text_free(words);
}

/* Returns the length of the head of a row, and finds where its text begins; 0: no head. */
static size_t head_of(const char *line, size_t size, size_t indent, size_t *meaning)
{
    size_t at = indent;
    while (at + 1 < size && !(line[at] == ' ' && line[at + 1] == ' '))
        at++;
    *meaning = at + 1 < size ? at + strspn(line + at, " ") : 0;
    return *meaning > 0 ? at : size;
}

/* Draws the row that begins at `line`. Returns the text after it. */
static const char *draw_row(tsr_text *to, const tsr_style *style, const char *line)
{
    const char *next;
    const size_t size = line_at(line, &next), indent = indent_of(line);
    size_t meaning;
    const size_t head = head_of(line, size, indent, &meaning);
    tsr_text words = {0};
    if (meaning > 0)
        tsr_text_append(&words, line + meaning, size - meaning);
    bool whole = size <= style->width;
    while (*next != '\0' && *next != '\n' && indent_of(next) > indent) {
        const char *const more = next + indent_of(next);
        const size_t n = line_at(more, &next);
        tsr_text_append(&words, " ", 1);
        tsr_text_append(&words, more, n);
        whole = false;
    }
    if (whole) {
        tsr_text_append(to, line, size);
        tsr_text_append(to, "\n", 1);
        tsr_text_free(&words);
    } else if (meaning > 0 && meaning <= HELP_COLUMN) {
        tsr_text_append(to, line, meaning);
        draw(to, style, meaning, meaning, &words);
    } else {
        tsr_text first = {0};
        tsr_text_append(&first, line + indent, head - indent);
        tsr_text_append(to, line, indent);
        draw(to, style, indent, indent + MORE, &first);
        if (words.size > 0)
            tsr_text_printf(to, "%*s", LONG_HEAD, "");
        draw(to, style, LONG_HEAD, LONG_HEAD, &words);
    }
    return next;
}

void tsr_help_draw(tsr_text *to, const tsr_style *style, const char *text)
{
    tsr_text paragraph = {0};
    bool usage = strncmp(text, "tessera ", 8) == 0;
    while (*text != '\0') {
        const char *next;
        const size_t size = line_at(text, &next);
        const bool filled = size > 0 && *text != ' ';
        if (!filled || usage)
            draw(to, style, 0, usage ? MORE : 0, &paragraph);
        usage = usage && size > 0;
        if (filled) {
            tsr_text_append(&paragraph, " ", paragraph.size > 0);
            tsr_text_append(&paragraph, text, size);
            text = next;
        } else if (size == 0) {
            tsr_text_append(to, "\n", 1);
            text = next;
        } else {
            text = draw_row(to, style, text);
        }
    }
    draw(to, style, 0, 0, &paragraph);
}

void tsr_help_draw_option(tsr_text *to, const tsr_style *style, const tsr_option *o)
{
    const char *const space = o->argument == NULL ? "" : " ", *const argument = o->argument == NULL ? "" : o->argument;
    const size_t length = 2 + strlen(o->name) + strlen(space) + strlen(argument);
    tsr_text words = {0};
    if (length <= style->width) {
        tsr_text_printf(to, "  %s%s%s", o->name, space, argument);
    } else { /* many choices */
        tsr_text_printf(to, "  %s ", o->name);
        for (const char *p = argument; *p != '\0'; p++)
            tsr_text_append(&words, *p == '|' ? "| " : p, *p == '|' ? 2 : 1);
        draw(to, style, 3 + strlen(o->name), LONG_HEAD, &words);
    }
    if (length < HELP_COLUMN)
        tsr_text_printf(to, "%*s", (int)(HELP_COLUMN - length), "");
    else
        tsr_text_printf(to, length <= style->width ? "\n%*s" : "%*s", HELP_COLUMN, "");
    tsr_text_printf(&words, "%s", o->help);
    draw(to, style, HELP_COLUMN, HELP_COLUMN, &words);
}
