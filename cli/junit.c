/* Text in XML. */
#include "cli/junit.h"

void tsr_junit_text(tsr_text *t, const char *text)
{
    for (const char *p = text; *p != '\0'; p++) {
        switch (*p) {
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
            if ((unsigned char)*p >= 0x20)
                tsr_text_append(t, p, 1);
        }
    }
}
