/* Wraps the help of a command to the width of a line: paragraphs, examples and options. */
#pragma once

#include "common/options.h"
#include "report/write/terminal/canvas.h"

/* Appends the text of a command. Unindented lines are joined to paragraphs, except that if the text begins with
 * "tessera ", the lines up to the first empty one are kept. An indented line is a row: a head, two or more spaces, and
 * its text, which continues in lines that are indented further. */
void tsr_help_draw(tsr_text *to, const tsr_style *style, const char *text);

/* Appends one or more lines for the option. */
void tsr_help_draw_option(tsr_text *to, const tsr_style *style, const tsr_option *option);
