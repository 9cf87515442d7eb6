/* Helpers for pairing weights with their scales: file paths, claims and companion tensors. */
#include "formats/weights/pairing.h"

#include <string.h>

const char *tsr_pairing_path(const tsr_pairing *p, const tsr_tensor *t)
{
    return p->c->files[t->file].path;
}

void tsr_pairing_claim(const tsr_pairing *p, const tsr_tensor *t)
{
    p->claimed[t - p->c->tensors.items] = true;
}

typedef struct companion {
    const tsr_tensor *tensor;
    const char *role;
} companion;

/* Lists the tensors that may accompany codes; NULL for absent ones. */
static void list_companions(const tsr_weight *w, companion all[TSR_MAX_COMPANIONS])
{
    const companion listed[TSR_MAX_COMPANIONS] = {
        {w->scale, "scale"},
        {w->zero_point, "zero_point"},
        {w->global_scale, "global_scale"},
        {w->group_index, "group_index"},
        {w->shape, "weight_shape"},
        {w->input_scale, "input_scale"},
        {w->input_zero_point, "input_zero_point"},
    };
    memcpy(all, listed, sizeof listed);
}

size_t tsr_weight_companions(const tsr_weight *w, const tsr_tensor *companions[TSR_MAX_COMPANIONS],
                             const char *roles[TSR_MAX_COMPANIONS])
{
    companion all[TSR_MAX_COMPANIONS];
    size_t n = 0;
    list_companions(w, all);
    for (size_t i = 0; i < TSR_MAX_COMPANIONS; i++) {
        if (all[i].tensor == NULL)
            continue;
        if (roles != NULL)
            roles[n] = all[i].role;
        companions[n++] = all[i].tensor;
    }
    return n;
}

const tsr_weight *tsr_weights_owner(const tsr_weights *weights, const tsr_tensor *tensor, const char **role)
{
    for (size_t i = 0; i < weights->count; i++) {
        companion all[TSR_MAX_COMPANIONS];
        list_companions(&weights->items[i], all);
        for (size_t k = 0; k < TSR_MAX_COMPANIONS; k++) {
            if (all[k].tensor == tensor) {
                *role = all[k].role;
                return &weights->items[i];
            }
        }
    }
    return NULL;
}
