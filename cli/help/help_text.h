/* Wraps the help of a command at the width of a line: paragraphs, examples and options. */
#ifndef TSR_CLI_HELP_HELP_TEXT_H
#define TSR_CLI_HELP_HELP_TEXT_H

#include "common/options.h"
#include "report/write/canvas.h"

/* Appends the text of a command. Unindented lines are filled as paragraphs; where the text begins with "tessera ", those up to
 * the first empty line are not. An indented
 * line is a row: a head, and behind two or more spaces what it means, which goes on in lines that are indented further. */
void tsr_help_draw(tsr_text *to, const tsr_style *style, const char *text);

/* Appends a line for the option, or several. */
void tsr_help_draw_option(tsr_text *to, const tsr_style *style, const tsr_option *option);

#endif
