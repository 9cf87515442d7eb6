/* Checks the shapes of AWQ and GPTQ weights, and reads the order of their groups. */
#include "common/checked.h"
#include "formats/weights/pairing.h"

#include <string.h>

/* Returns the kind that matches the shapes of codes and scales [groups, R]: AWQ packs outputs, GPTQ inputs. */
static const tsr_weight_kind *kind_of(const tsr_weight *x)
{
    const uint64_t width = x->data->shape[1], outputs = x->scale->shape[1];
    const uint8_t coding = width == outputs ? TSR_CODED_GPTQ : TSR_CODED_AWQ;
    const tsr_weight_kind *kind = x->kind;
    if (width != outputs && (outputs % 8 != 0 || width != outputs / 8))
        return NULL;
    while (kind->name != NULL && kind->coding != coding)
        kind++;
    return kind;
}

static tsr_status refuse(const tsr_pairing *p, const tsr_weight *x, const char *why)
{
    char codes[192], scales[192], zeros[192] = "none";
    if (x->zero_point != NULL)
        tsr_shape_text(x->zero_point, zeros, sizeof zeros);
    return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' %s, scales %s, qzeros %s: %s", tsr_pairing_path(p, x->data),
                    x->data->name, tsr_shape_text(x->data, codes, sizeof codes),
                    tsr_shape_text(x->scale, scales, sizeof scales), zeros, why);
}

static bool fits_zeros(const tsr_weight *x, uint64_t bits)
{
    return x->zero_point->shape[1] == tsr_ceil_div(x->scale->shape[1] * bits, 32);
}

/* Returns the bits of a code, from the number of words of a group's zero points. Stated bits are preferred over others
 * that fit. */
static uint64_t bits_of(const tsr_pairing *p, const tsr_weight *x)
{
    for (size_t i = 0; i < p->n_stated; i++) {
        if (p->stated[i].integer && p->stated[i].bits <= 32 && fits_zeros(x, p->stated[i].bits))
            return p->stated[i].bits;
    }
    uint64_t bits = 8;
    while (bits > 0 && !fits_zeros(x, bits))
        bits--;
    return bits;
}

static tsr_status take_shape(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data;
    tsr_tensor *const values = tsr_arena_alloc(&p->w->arena, sizeof *values);
    if (values == NULL)
        return tsr_out_of_memory(p->err, "while pairing");
    x->matrices = 1;
    x->rows = x->scale->shape[1];
    x->cols = x->coding == TSR_CODED_AWQ ? t->shape[0] : t->shape[0] * (32 / x->bits);
    const uint64_t listed = x->group_index == NULL ? x->cols : tsr_tensor_elements(x->group_index);
    if (x->cols > listed && x->cols - listed < 32 / x->bits)
        x->cols = listed; /* the last word is padded */
    *values = *x->values;
    values->shape[0] = x->rows;
    values->shape[1] = x->cols;
    x->values = values;
    return TSR_OK;
}

/* Sets the consecutive columns per group: the value in config.json, if it gives the stored number of groups. */
static bool take_groups(const tsr_pairing *p, tsr_weight *x)
{
    const uint64_t groups = x->scale->shape[0];
    x->block.rows = 1;
    x->block.cols = groups == 0 ? 0 : tsr_ceil_div(x->cols, groups);
    for (size_t i = 0; i < p->n_stated; i++) {
        const tsr_stated_coding *const s = &p->stated[i];
        const uint64_t group = s->block.cols == 0 ? x->cols : s->block.cols;
        if (s->integer && s->bits == x->bits && tsr_ceil_div(x->cols, tsr_max_u64(1, group)) == groups) {
            x->block.cols = tsr_min_u64(group, x->cols);
            break;
        }
    }
    x->coarse = groups == 1;
    x->grid_rows = x->rows;
    x->grid_cols = groups;
    return x->block.cols > 0 && tsr_ceil_div(x->cols, x->block.cols) == groups;
}

tsr_status tsr_read_order(const tsr_pairing *p, tsr_weight *x)
{
    enum { CHUNK = 1024 };
    const tsr_tensor *const g = x->group_index;
    unsigned char bytes[CHUNK * 8];
    if (g == NULL)
        return TSR_OK;
    const size_t width = tsr_dtype_bytes((tsr_dtype)g->dtype);
    if ((g->dtype != TSR_I32 && g->dtype != TSR_I64) || !tsr_is_column(g, 2, 1, x->cols))
        return tsr_fail(p->err, TSR_E_FORMAT, "%s: '%s' must have one group index for each of the %llu inputs of '%s'",
                        tsr_pairing_path(p, g), g->name, U64(x->cols), x->data->name);
    for (uint64_t at = 0; at < x->cols; at += CHUNK) {
        const size_t n = (size_t)tsr_min_u64(CHUNK, x->cols - at);
        TSR_TRY(tsr_checkpoint_read(p->c, g, at * width, bytes, n * width, p->err));
        for (size_t i = 0; i < n; i++) {
            uint64_t group = 0; /* a negative value reads as too large */
            memcpy(&group, bytes + i * width, width);
            if (group >= x->grid_cols)
                return tsr_fail(p->err, TSR_E_VALUE,
                                "%s: '%s': input %llu is in group %lld of %llu, which does not exist",
                                tsr_pairing_path(p, g), g->name, U64(at + i),
                                width == 4 ? (long long)(int32_t)group : (long long)group, U64(x->grid_cols));
            x->reordered = x->reordered || group != (at + i) / x->block.cols;
        }
    }
    return TSR_OK;
}

/* Rejects zero points that are not the middle value although config.json says sym: the version of the format may be
 * wrong, which shifts all of them. The first ones show it. */
static tsr_status check_middle(const tsr_pairing *p, const tsr_weight *x)
{
    enum { MOST = 256 };
    const tsr_tensor *const z = x->zero_point;
    const bool less_one = p->zeros == TSR_ZEROS_LESS_ONE;
    const uint32_t middle = 1u << (x->bits - 1), expected = middle - less_one;
    const size_t words = (size_t)tsr_min_u64(MOST, x->rows * x->bits / 32);
    uint32_t stored[MOST];
    if (!p->all_middle || p->c->without_data || z->bytes == 0)
        return TSR_OK;
    TSR_TRY(tsr_checkpoint_read(p->c, z, 0, stored, words * sizeof *stored, p->err));
    for (size_t i = 0; i < words * 32 / x->bits; i++) {
        const uint32_t zero = stored[i * x->bits / 32] >> (i * x->bits % 32) & (2 * middle - 1);
        if (zero == expected)
            continue;
        const bool other = zero == middle - !less_one;
        return tsr_fail(p->err, TSR_E_FORMAT,
                        "%s: '%s' stores the zero point %u, but " TSR_CONFIG_NAME
                        " says sym true, and its checkpoint_format stores %u for symmetric weights: set %s",
                        tsr_pairing_path(p, z), z->name, zero, expected,
                        !other     ? "sym false if the zero points are right"
                        : less_one ? "checkpoint_format gptq_v2, which stores them unchanged"
                                   : "checkpoint_format gptq, which stores them less one");
    }
    return TSR_OK;
}

static tsr_status check_gptq_zeros(const tsr_pairing *p, tsr_weight *x)
{
    x->zeros_less_one = p->zeros == TSR_ZEROS_LESS_ONE;
    if (p->zeros != TSR_ZEROS_UNSTATED)
        return check_middle(p, x);
    return tsr_fail(p->err, TSR_E_UNSUPPORTED,
                    "%s: '%s' is GPTQ, but no config.json has quant_method gptq or auto-round, which is needed to "
                    "tell whether zero points are stored as z or z - 1",
                    tsr_pairing_path(p, x->data), x->data->name);
}

tsr_status tsr_check_gptq(const tsr_pairing *p, tsr_weight *x)
{
    const tsr_tensor *const t = x->data, *const s = x->scale, *const z = x->zero_point;
    if (t->rank != 2 || s->rank != 2)
        return refuse(p, x, "AWQ and GPTQ weights must be matrices");
    if (z == NULL || z->dtype != TSR_I32 || z->rank != 2 || z->shape[0] != s->shape[0])
        return refuse(p, x, "qzeros must be I32 [groups, words], with as many groups as the scales");
    const tsr_weight_kind *const kind = kind_of(x);
    if (kind == NULL)
        return refuse(p, x, "neither AWQ [in, out / 8] nor GPTQ [in * bits / 32, out] for scales [groups, out]");
    x->kind = kind;
    x->coding = kind->coding;
    const uint64_t bits = bits_of(p, x);
    if (bits != 4 && (bits != 8 || x->coding == TSR_CODED_AWQ))
        return tsr_fail(
            p->err, TSR_E_UNSUPPORTED,
            "%s: '%s' is %s with %llu bits, by its zero points; supported: AWQ with 4 bits, GPTQ with 4 or 8 bits",
            tsr_pairing_path(p, t), t->name, kind->title, U64(bits));
    x->bits = (uint8_t)bits;
    TSR_TRY(take_shape(p, x));
    if (!take_groups(p, x))
        return refuse(p, x, "this number of groups does not divide the inputs");
    TSR_TRY(tsr_read_order(p, x));
    return x->coding == TSR_CODED_GPTQ ? check_gptq_zeros(p, x) : TSR_OK;
}
