/* Finds the section of docs/errors.md that explains an error. */
#include "cli/help/error_pages.h"

#include <stddef.h>

const char *tsr_error_heading(tsr_error_id id)
{
    static const char *const kHeadings[] = {[TSR_ERROR_NONE] = NULL,
#define X(name, heading) [TSR_ERROR_##name] = heading,
                                            TSR_ERROR_IDS(X)
#undef X
    };
    return kHeadings[id];
}
