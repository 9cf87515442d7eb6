/* Compares stored weights with the codings stated in config.json. */
#include "formats/names/model.h"
#include "formats/weights/pairing.h"

#include <stdio.h>
#include <string.h>

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

/* Formats the stated codings: "float 4 bits, 1x32; int 8 bits". */
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

/* Checks a routed expert against expert_dtype, which applies only to quantized experts. */
static tsr_status check_expert(const tsr_pairing *p, const tsr_weight *x)
{
    if (p->expert_bits == 0 || x->bits == p->expert_bits || tsr_part_of(x->values->name) != TSR_PART_ROUTED_EXPERTS)
        return TSR_OK;
    return tsr_fail(p->err, TSR_E_FORMAT,
                    "%s: '%s' is %s, %u bits, but " TSR_CONFIG_NAME
                    " says expert_dtype fp%u: they belong to different checkpoints",
                    tsr_pairing_path(p, x->data), x->data->name, x->kind->title, x->bits, p->expert_bits);
}

tsr_status tsr_refuse_unstated(const tsr_pairing *p, const tsr_weight *x)
{
    char stated[512], sizes[96] = "";
    list_stated(p, stated, sizeof stated);
    if (x->block.rows != 0)
        snprintf(sizes, sizeof sizes, " (%u bits, a scale for %llux%llu)", x->bits, U64(x->block.rows),
                 U64(x->block.cols));
    return tsr_fail(
        p->err, TSR_E_FORMAT,
        "%s: '%s' is %s%s, but the configuration (quant_method '%s') states %s: they belong to different checkpoints",
        tsr_pairing_path(p, x->data), x->data->name, x->kind->title, sizes, p->w->method, stated);
}

/* ---- compressed-tensors' names of codings ---- */

tsr_status tsr_refuse_format(const tsr_pairing *p, const char *format, const char *where)
{
    static const char *const kFormats[] = {
        "\"dense\"",           "\"int-quantized\"",        "\"float-quantized\"",
        "\"naive-quantized\"", "\"pack-quantized\"",       "\"mixed-precision\"",
        "\"mxfp8-quantized\"", "\"nvfp4-pack-quantized\"", "\"mxfp4-pack-quantized\"",
        "\"fakequant\"",       "\"mxfp6-pack-quantized\""};
    size_t i = 0;
    while (format != NULL && i < sizeof kFormats / sizeof *kFormats && strcmp(format, kFormats[i]) != 0)
        i++;
    if (i < sizeof kFormats / sizeof *kFormats)
        return TSR_OK;
    return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                    "%s.format: unsupported format %.64s; correct it, or save the model in another format", where,
                    format);
}

static bool is_one_of(const char *word, const char *first, const char *second)
{
    return strcmp(word, first) == 0 || strcmp(word, second) == 0;
}

/* Returns true if `strategy` matches the arrangement of scales. For blocks and small groups of floating point, the
 * shapes decide. */
static bool fits_strategy(const tsr_weight *x, const char *strategy)
{
    if (!is_integer(x) && !x->coarse)
        return true;
    if (!x->coarse)
        return is_one_of(strategy, "\"group\"", "\"tensor_group\"");
    return (x->grid_rows == 1 && strcmp(strategy, "\"tensor\"") == 0) ||
           (x->grid_rows == x->rows && strcmp(strategy, "\"channel\"") == 0) ||
           (x->block.cols == x->cols && strcmp(strategy, "\"group\"") == 0 && x->grid_rows == x->rows);
}

/* "fakequant" is compressed-tensors' default for every kind of codes. */
static bool fits_format(const tsr_weight *x, const char *format)
{
    const char *wanted = "\"float-quantized\"";
    if (x->coding == TSR_CODED_PACKED)
        wanted = "\"pack-quantized\"";
    else if (x->coding == TSR_CODED_INT8)
        wanted = "\"int-quantized\"";
    else if (x->coding == TSR_CODED_E2M1)
        wanted = x->global_scale != NULL ? "\"nvfp4-pack-quantized\"" : "\"mxfp4-pack-quantized\"";
    else if (x->kind->family == TSR_FAMILY_MXFP6)
        wanted = "\"mxfp6-pack-quantized\"";
    else if (x->kind->family == TSR_FAMILY_MX)
        wanted = "\"mxfp8-quantized\"";
    const bool bytes = x->coding == TSR_CODED_INT8 || x->coding == TSR_CODED_E4M3;
    return is_one_of(format, wanted, "\"mixed-precision\"") || strcmp(format, "\"fakequant\"") == 0 ||
           (bytes && strcmp(format, "\"naive-quantized\"") == 0);
}

/* Returns a contradiction between a stated coding and the weight that leaves its values unknown, or NULL. */
static const char *find_missing_meaning(const tsr_pairing *p, const tsr_weight *x, const tsr_stated_coding *s)
{
    tsr_arena *const arena = &p->w->arena;
    const char *const values = x->values->name;
    if (x->zero_point != NULL && s->symmetric != NULL && strcmp(s->symmetric, "true") == 0)
        return tsr_arena_printf(arena, "symmetric true, but it has zero points, '%s': correct the one that is wrong",
                                x->zero_point->name);
    if (s->symmetric != NULL && strcmp(s->symmetric, "false") == 0 && x->zero_point == NULL && is_integer(x))
        return tsr_arena_printf(arena,
                                "symmetric false, but it has no zero points: restore '%s_zero_point', or set symmetric "
                                "true if the weight has none",
                                values);
    /* compressed-tensors omits the order of weights whose groups are consecutive; GPTQ has one for every weight */
    if (s->ordered && x->coding == TSR_CODED_GPTQ && x->group_index == NULL && !x->coarse)
        return tsr_arena_printf(arena,
                                "desc_act true, but there is no '%.*s.g_idx', the group of each column: restore it, or "
                                "set desc_act false if groups are consecutive columns",
                                (int)tsr_module_length(values), values);
    return NULL;
}

/* Returns another contradiction between a stated coding and the weight, or NULL: the tensors have one meaning only. */
static const char *find_oddity(const tsr_pairing *p, const tsr_weight *x, const tsr_stated_coding *s)
{
    tsr_arena *const arena = &p->w->arena;
    if (s->strategy != NULL && !fits_strategy(x, s->strategy))
        return tsr_arena_printf(arena, "strategy %.32s, but it has a scale for %llux%llu", s->strategy,
                                U64(x->block.rows), U64(x->block.cols));
    if (s->format != NULL && !fits_format(x, s->format))
        return tsr_arena_printf(arena, "format %.32s, but it is %s", s->format, x->kind->title);
    return NULL;
}

static tsr_status note_contradiction(const tsr_pairing *p, tsr_weight *x, const char *claim, bool refused)
{
    if (refused)
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s': " TSR_CONFIG_NAME " says %s", tsr_pairing_path(p, x->data),
                        x->data->name, claim);
    x->odd = claim;
    if (claim != NULL && p->w->n_warned++ == 0)
        p->w->warning = tsr_arena_printf(&p->w->arena,
                                         "%s: '%s': " TSR_CONFIG_NAME
                                         " says %s: Tessera reads it as its tensors are, but loaders may not",
                                         tsr_pairing_path(p, x->data), x->data->name, claim);
    return TSR_OK;
}

tsr_status tsr_check_stated(const tsr_pairing *p, tsr_weight *x)
{
    const char *claim = NULL;
    bool found = false, refused = false;
    if (x->part != NULL)
        return TSR_OK;
    TSR_TRY(check_expert(p, x));
    for (size_t i = 0; i < p->n_stated; i++) {
        if (!is_in(x, &p->stated[i]))
            continue;
        const char *const missing = find_missing_meaning(p, x, &p->stated[i]);
        const char *const against = missing != NULL ? missing : find_oddity(p, x, &p->stated[i]);
        if (against == NULL)
            return TSR_OK;
        claim = found ? claim : against;
        refused = found ? refused : missing != NULL;
        found = true;
    }
    if (found)
        return note_contradiction(p, x, claim, refused);
    return p->holds ? tsr_refuse_unstated(p, x) : TSR_OK;
}
