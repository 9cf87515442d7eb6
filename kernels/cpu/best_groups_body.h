/* Implements best_groups as TSR_BEST(name), for each form to include.
 *
 * LANES groups are searched together, an element of each side by side. Losses are computed in FP32 first. Only
 * candidates whose FP32 loss is near the smallest one are compared by the definition. The result is that of the
 * definition, for three reasons.
 *
 * 1. Large candidates. Let t be a scale that clips nothing: amax <= largest * t. The values of codes under 2 t that are
 *    at most amax are also values under t. Quotients by 2 t are half of those by t. A rounded quotient that is no tie
 *    lies on the same side of the tie as the exact one, so its code is the nearest. At a tie to even, both scales choose
 *    the same value, or t alone has a neighbour there, and chooses the value that 2 t has too. Hence |e| under 2 t is at
 *    least |e| under t for each element. FP64 operations are monotone, so the loss is not smaller either. Of E8M0 scales
 *    that clip nothing only the smallest remains, of e4m3 scales the first 8, and those below 2^-5, which have no half.
 *
 * 2. Small candidates. An element x clips to largest * t at most. So the loss is at least the sum of w * (|x| - largest
 *    * t)^2 over the elements with |x| > largest * t. This grows as t shrinks. Once it exceeds the smallest loss, no
 *    smaller scale can be the result.
 *
 * 3. FP32 losses. The FP32 quotient is within 2^-22 of the exact one, relatively. If it chooses another code than the
 *    definition, it lies that close to a tie. A tie is at most 31 times as large as its distance from the neighbours.
 *    Then |e| differs by less than 62 * 2^-22, its square by 2^-15. Other operations add less than 40 * 2^-24. So FP32
 *    losses are within 2^-14 of the definition, and a ratio of two within 2^-12. Products that underflow add less than
 *    2^-122 within the limits below. */
#include "common/float_bits.h"
#include "kernels/cpu/always_inline.h"
#include "kernels/cpu/variants.h"

#include <math.h>

enum {
    MOST_COLUMNS = 32,
    SLOTS = 256, /* candidates of a group */
};

typedef uint32_t vu __attribute__((vector_size(LANES * 4)));
typedef int32_t vi __attribute__((vector_size(LANES * 4)));

/* Other groups are left to the definition. */
#define LEAST_AMAX  0x1p-40f
#define MOST_AMAX   0x1p40f
#define MOST_WEIGHT 0x1p40f

/* A candidate is compared by the definition if its FP32 loss is at most NEAR times the smallest plus MARGIN. */
#define NEAR   (1 + 0x1p-12f)
#define MARGIN 0x1p-118f

/* Factor that makes a bound smaller by more than its rounding errors. */
#define CAUTION (1 - 0x1p-18f)

/* LANES groups. */
typedef struct group_tile {
    vf x[MOST_COLUMNS]; /* |x| */
    vf weight[MOST_COLUMNS];
    vf least;              /* the smallest FP32 loss so far */
    vf loss[SLOTS];        /* the FP32 loss of each slot; infinity: none */
    vi scale[SLOTS];       /* its candidate */
    size_t slots;          /* used so far */
    vi given, first, last; /* first: the smallest scale that clips nothing; last: see 1 */
    vi live;               /* -1: searched in FP32 */
} group_tile;

/* The parameters that all groups of a row share. */
typedef struct tile_context {
    const tsr_best_groups *candidates;
    const float *inverse; /* 1 / t */
    float largest;
} tile_context;

ALWAYS_INLINE vi where(vi mask, vi yes, vi no)
{
    return (yes & mask) | (no & ~mask);
}

/* Returns the magnitude of the code of a quotient that is not negative. */
ALWAYS_INLINE vf rounded_to_code(vf quotient, bool e4m3)
{
    const vf normal = f_set1(e4m3 ? 0x1p-6f : 1), q = f_min(quotient, f_set1(e4m3 ? 448 : 6));
    const vi exponent = (vi)f_set1(INFINITY), raise = (vi){0} + ((e4m3 ? 20 : 22) << 23);
    /* Adding a number whose ulp is the distance of codes rounds to a code, ties to even. */
    const vf large = (vf)(((vi)f_max(q, normal) & exponent) + raise);
    return (q + large) - large;
}

/* Takes a slot for one candidate of each lane. Lanes with `on` 0, not -1, have none. */
ALWAYS_INLINE void try_scales(group_tile *tile, const tile_context *with, vi scale, vi on, bool weighted, size_t group,
                              bool e4m3)
{
    const vf t = f_gather(with->candidates->t, scale), inverse = f_gather(with->inverse, scale);
    vf sum = f_set1(0);
#pragma GCC unroll 32
    for (size_t i = 0; i < group; i++) {
        const vf x = tile->x[i];
        const vf e = f_fnmadd(rounded_to_code(x * inverse, e4m3), t, x);
        sum = weighted ? f_fmadd(tile->weight[i] * e, e, sum) : f_fmadd(e, e, sum);
    }
    const vf loss = (vf)where(on, (vi)sum, (vi)f_set1(INFINITY));
    tile->scale[tile->slots] = scale;
    tile->loss[tile->slots++] = loss;
    tile->least = f_min(loss, tile->least);
}

/* Returns less than the losses due to clipping under t. */
ALWAYS_INLINE vf bound_of(const group_tile *tile, vf largest, vf t, bool weighted, size_t group)
{
    const vf end = largest * t, zero = f_set1(0), caution = f_set1(CAUTION);
    vf sum = zero;
#pragma GCC unroll 32
    for (size_t i = 0; i < group; i++) {
        const vf beyond = f_max(tile->x[i] * caution - end, zero);
        sum = weighted ? f_fmadd(tile->weight[i] * beyond, beyond, sum) : f_fmadd(beyond, beyond, sum);
    }
    return sum * caution;
}

/* Tries the smallest scales that clip nothing, and the given one. */
ALWAYS_INLINE void try_large(group_tile *tile, const tile_context *with, bool weighted, size_t group, bool e4m3)
{
    const vi last = tile->last;
    vi scale = tile->first, on = scale <= last;
    while (v_any(on)) {
        try_scales(tile, with, where(on, scale, last), on, weighted, group, e4m3);
        scale += 1;
        on = scale <= last;
    }
    on = (tile->given > last) & (tile->given <= with->candidates->most);
    if (v_any(on))
        try_scales(tile, with, where(on, tile->given, last), on, weighted, group, e4m3);
}

/* Tries smaller and smaller scales until clipping excludes the rest. */
ALWAYS_INLINE void try_small(group_tile *tile, const tile_context *with, bool weighted, size_t group, bool e4m3)
{
    const vi lowest = (vi){0} + with->candidates->least;
    const vf largest = f_set1(with->largest), near = f_set1(NEAR), margin = f_set1(MARGIN);
    vi scale = tile->first, on = tile->live;
    for (;;) {
        scale -= 1;
        on &= scale >= lowest;
        scale = where(on, scale, lowest);
        const vf bound = bound_of(tile, largest, f_gather(with->candidates->t, scale), weighted, group);
        on &= f_at_most(bound, tile->least * near + margin);
        if (!v_any(on))
            return;
        try_scales(tile, with, scale, on, weighted, group, e4m3);
    }
}

/* Sets the range of candidates of lane l, whose largest |x| is amax. */
ALWAYS_INLINE void set_range(group_tile *tile, const tile_context *with, size_t l, float amax)
{
    const tsr_best_groups *const c = with->candidates;
    /* 16 is the first byte of an e4m3 scale whose half is a byte. */
    const int least = c->least, most = c->most, above = c->e8m0 ? 0 : 7, halved = c->e8m0 ? 0 : 15;
    int first = tile->given[l];
    first = first < least ? least : first > most ? most : first;
    while (first > least && (double)with->largest * (double)c->t[first - 1] >= (double)amax)
        first--;
    while (first < most && (double)with->largest * (double)c->t[first] < (double)amax)
        first++;
    const int last = first + above > halved ? first + above : halved;
    tile->first[l] = first;
    tile->last[l] = last < most ? last : most;
}

/* Copies group l to its lane. */
ALWAYS_INLINE void load_lane(group_tile *tile, size_t l, const float *x, const float *weight, size_t group)
{
    float *const to = (float *)tile->x + l, *const to_weight = (float *)tile->weight + l;
#pragma GCC unroll 32
    for (size_t i = 0; i < group; i++) {
        to[i * LANES] = fabsf(x[i]);
        if (weight != NULL)
            to_weight[i * LANES] = weight[i];
    }
}

/* Sets the ranges of candidates of all lanes. */
ALWAYS_INLINE void set_ranges(group_tile *tile, const tile_context *with, bool weighted, size_t group)
{
    vf amax = f_set1(0), most = f_set1(0);
    for (size_t i = 0; i < group; i++) {
        amax = f_max(amax, tile->x[i]);
        most = weighted ? f_max(most, tile->weight[i]) : most;
    }
    tile->live =
        f_at_most(f_set1(LEAST_AMAX), amax) & f_at_most(amax, f_set1(MOST_AMAX)) & f_at_most(most, f_set1(MOST_WEIGHT));
    for (size_t l = 0; l < LANES; l++) {
        if (tile->live[l])
            set_range(tile, with, l, amax[l]);
        else
            tile->first[l] = tile->last[l] = tile->given[l] = with->candidates->least;
    }
}

/* Returns the best of the candidates of lane l that are near, by the definition. */
static int choose(const group_tile *tile, const tile_context *with, size_t l, const float *x, const float *weight)
{
    const float limit = tile->least[l] * NEAR + MARGIN;
    const int given = tile->given[l];
    int best = -1;
    double least = 0;
    for (size_t s = 0; s < tile->slots; s++) {
        if (!(tile->loss[s][l] <= limit))
            continue;
        const int scale = tile->scale[s][l];
        const double loss = tsr_best_group_loss(x, weight, with->candidates, scale);
        const bool before = scale == given || (best != given && scale < best);
        if (best >= 0 && (loss > least || (loss == least && !before)))
            continue;
        best = scale;
        least = loss;
    }
    return best;
}

/* Stores the best candidates of the first n lanes. */
ALWAYS_INLINE void store_best(const group_tile *tile, const tile_context *with, const float *x, const float *weight,
                              size_t group, size_t n, uint8_t *scales)
{
    const vf limit = tile->least * f_set1(NEAR) + f_set1(MARGIN);
    vi count = {0}, found = {0};
    for (size_t s = 0; s < tile->slots; s++) {
        const vi is_near = f_at_most(tile->loss[s], limit);
        count -= is_near;
        found |= is_near & tile->scale[s];
    }
    for (size_t l = 0; l < n; l++) {
        const float *const of = x + l * group, *const w = weight == NULL ? NULL : weight + l * group;
        if (!tile->live[l])
            tsr_best_groups_ref(of, w, group, with->candidates, &scales[l]);
        else
            scales[l] = (uint8_t)(count[l] == 1 ? found[l] : choose(tile, with, l, of, w));
    }
}

ALWAYS_INLINE void search_groups(const float *x, const float *weight, size_t n, const tsr_best_groups *candidates,
                                 uint8_t *scales, bool weighted, size_t group, bool e4m3)
{
    float inverse[256];
    for (int i = 0; i < 256; i++)
        inverse[i] = i >= candidates->least && i <= candidates->most ? 1 / candidates->t[i] : 0;
    const tile_context with = {candidates, inverse, e4m3 ? 448 : 6};
    const size_t groups = n / group;
    for (size_t g = 0; g < groups; g += LANES) {
        const size_t lanes = groups - g < LANES ? groups - g : LANES;
        const float *const from = x + g * group, *const w = weighted ? weight + g * group : NULL;
        group_tile tile;
        tile.slots = 0;
        tile.least = f_set1(INFINITY);
        for (size_t l = 0; l < LANES; l++) {
            const size_t at = l < lanes ? l : 0;
            tile.given[l] = scales[g + at];
            load_lane(&tile, l, from + at * group, weighted ? w + at * group : NULL, group);
        }
        set_ranges(&tile, &with, weighted, group);
        try_large(&tile, &with, weighted, group, e4m3);
        try_small(&tile, &with, weighted, group, e4m3);
        store_best(&tile, &with, from, w, group, lanes, scales + g);
    }
}

void TSR_BEST(best_groups)(const float *x, const float *weight, size_t n, const tsr_best_groups *candidates,
                           uint8_t *scales)
{
    const bool weighted = weight != NULL;
    if (candidates->least > candidates->most)
        return;
    /* Halves of e4m3 scales are exact if all are normal. */
    if (candidates->t[candidates->least] < 0x1p-126f && !candidates->e8m0)
        tsr_best_groups_ref(x, weight, n, candidates, scales);
    else if (candidates->e4m3 && weighted)
        search_groups(x, weight, n, candidates, scales, true, 32, true);
    else if (candidates->e4m3)
        search_groups(x, weight, n, candidates, scales, false, 32, true);
    else if (candidates->group == 32 && weighted)
        search_groups(x, weight, n, candidates, scales, true, 32, false);
    else if (candidates->group == 32)
        search_groups(x, weight, n, candidates, scales, false, 32, false);
    else if (weighted)
        search_groups(x, weight, n, candidates, scales, true, 16, false);
    else
        search_groups(x, weight, n, candidates, scales, false, 16, false);
}
