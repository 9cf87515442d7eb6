/* Parses tensor names by their components, separated by dots. */
#include "report/model/place.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Names of a module's tensors. The component before such a name is the module. */
static const char *const kOwn[] = {"weight", "weight_packed", "weight_scale", "weight_scale_inv", "qweight", "bias",
                                   "blocks", "scale",         "scales",       "qzeros",           "g_idx",   NULL};

typedef struct part {
    const char *text;
    size_t size;
} part;

/* Returns the component that ends before `end`, in a name that begins at `name`. */
static part before(const char *name, const char *end)
{
    const char *begin = end;
    while (begin > name && begin[-1] != '.')
        begin--;
    return (part){begin, (size_t)(end - begin)};
}

/* Returns the number of a component, or TSR_NO_NUMBER. */
static uint32_t number_of(part p)
{
    uint32_t number = 0;
    if (p.size == 0 || p.size > 7)
        return TSR_NO_NUMBER;
    for (size_t i = 0; i < p.size; i++) {
        if (p.text[i] < '0' || p.text[i] > '9')
            return TSR_NO_NUMBER;
        number = 10 * number + (uint32_t)(p.text[i] - '0');
    }
    return number;
}

static bool is_of_experts(part p)
{
    static const char kWord[] = "experts";
    const size_t n = sizeof kWord - 1;
    return p.size >= n && memcmp(p.text + p.size - n, kWord, n) == 0;
}

static bool is_own(part p)
{
    for (size_t i = 0; kOwn[i] != NULL; i++) {
        if (strlen(kOwn[i]) == p.size && memcmp(kOwn[i], p.text, p.size) == 0)
            return true;
    }
    return false;
}

tsr_place tsr_place_of(const char *name)
{
    tsr_place place = {.layer = TSR_NO_NUMBER, .expert = TSR_NO_NUMBER};
    for (const char *at = name;;) {
        const char *const end = at + strcspn(at, ".");
        const part here = {at, (size_t)(end - at)};
        const uint32_t number = number_of(here);
        if (number != TSR_NO_NUMBER && at > name) {
            if (is_of_experts(before(name, at - 1)))
                place.expert = place.expert == TSR_NO_NUMBER ? number : place.expert;
            else if (place.layer == TSR_NO_NUMBER) {
                place.layer = number;
                place.stack_size = (uint32_t)(at - 1 - name);
            }
        }
        if (*end == '\0')
            return place;
        at = end + 1;
    }
}

const char *tsr_module_of(const char *name, char module[TSR_MAX_MODULE])
{
    const char *end = name + strlen(name);
    part last = before(name, end);
    while (last.text > name && (is_own(last) || number_of(last) != TSR_NO_NUMBER))
        last = before(name, last.text - 1);
    const char *experts = "";
    size_t experts_size = 0;
    for (const char *at = last.text; at > name;) {
        const part p = before(name, at - 1);
        if (is_of_experts(p)) {
            experts = p.text;
            experts_size = p.size;
            break;
        }
        at = p.text;
    }
    const int cut = TSR_MAX_MODULE / 2;
    snprintf(module, TSR_MAX_MODULE, "%.*s%s%.*s", (int)experts_size < cut ? (int)experts_size : cut, experts,
             experts_size > 0 ? "." : "", (int)last.size < cut - 1 ? (int)last.size : cut - 1, last.text);
    return module;
}
