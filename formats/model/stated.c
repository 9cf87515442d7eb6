/* Holding what the tensors are to what config.json says that they are. */
#include "formats/model/model.h"
#include "formats/model/pairing.h"

#include <stdio.h>

static bool is_integer(const tsr_weight *x)
{
    return x->kind->family == TSR_FAMILY_INTEGERS || x->kind->family == TSR_FAMILY_GPTQ;
}

static bool is_in(const tsr_weight *x, const tsr_stated_coding *s)
{
    if (s->integer != is_integer(x) || s->bits != x->bits)
        return false;
    if (x->coarse)
        return s->block.rows == 0 || s->block.cols >= x->cols;
    return tsr_block_equal(s->block, x->block);
}

/* "float 4 bits, 1x32; int 8 bits" */
static void list_stated(const tsr_pairing *p, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < p->n_stated && at < size; i++) {
        const tsr_stated_coding *const s = &p->stated[i];
        at += (size_t)snprintf(text + at, size - at, "%s%s of %llu bits", i == 0 ? "" : "; ",
                               s->integer ? "integers" : "floating point", U64(s->bits));
        if (s->block.rows != 0 && at < size)
            at += (size_t)snprintf(text + at, size - at, ", a scale for %llux%llu", U64(s->block.rows),
                                   U64(s->block.cols));
    }
}

/* expert_dtype speaks of the experts that are quantized at all. */
static tsr_status check_expert(const tsr_pairing *p, const tsr_weight *x)
{
    if (p->expert_bits == 0 || x->bits == p->expert_bits || tsr_part_of(x->values->name) != TSR_PART_ROUTED_EXPERTS)
        return TSR_OK;
    return tsr_fail(p->err, TSR_E_FORMAT,
                    "%s: '%s' is %s, %u bits, but " TSR_CONFIG_NAME
                    " says expert_dtype fp%u: one of them is of another "
                    "checkpoint",
                    tsr_pairing_path(p, x->data), x->data->name, x->kind->title, x->bits, p->expert_bits);
}

tsr_status tsr_refuse_unstated(const tsr_pairing *p, const tsr_weight *x)
{
    char stated[512], sizes[96] = "";
    list_stated(p, stated, sizeof stated);
    if (x->block.rows != 0)
        snprintf(sizes, sizeof sizes, " (%u bits, a scale for %llux%llu)", x->bits, U64(x->block.rows),
                 U64(x->block.cols));
    return tsr_fail(p->err, TSR_E_FORMAT,
                    "%s: '%s' is %s%s, but the configuration (quant_method '%s') states %s: one of them is of another "
                    "checkpoint",
                    tsr_pairing_path(p, x->data), x->data->name, x->kind->title, sizes, p->w->method, stated);
}

tsr_status tsr_check_stated(const tsr_pairing *p, const tsr_weight *x)
{
    if (x->part != NULL)
        return TSR_OK;
    TSR_TRY(check_expert(p, x));
    for (size_t i = 0; i < p->n_stated; i++) {
        if (is_in(x, &p->stated[i]))
            return TSR_OK;
    }
    return p->holds ? tsr_refuse_unstated(p, x) : TSR_OK;
}
