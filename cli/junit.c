/* Escapes text for XML. */
#include "cli/junit.h"

#include <string.h>

void tsr_junit_text(tsr_text *t, const char *text)
{
    tsr_text shown = {0};
    tsr_text_visible(&shown, text, strlen(text));
    for (size_t i = 0; i < shown.size; i++) {
        switch (shown.data[i]) {
        case '<':
            tsr_text_printf(t, "&lt;");
            break;
        case '>':
            tsr_text_printf(t, "&gt;");
            break;
        case '&':
            tsr_text_printf(t, "&amp;");
            break;
        case '"':
            tsr_text_printf(t, "&quot;");
            break;
        default:
            tsr_text_append(t, shown.data + i, 1);
        }
    }
    t->failed = t->failed || shown.failed;
    tsr_text_free(&shown);
}
