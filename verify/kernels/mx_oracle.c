/* Computes exact sums of groups in doubles, and the error bounds of the plain sum. */
#include "verify/kernels/mx_oracle.h"

#include "kernels/cpu/mx_gemm.h"
#include "verify/kernels/gemm_oracle.h"
#include "verify/values/lanes.h"

#include <math.h>

/* Partial sums over all groups, one per vector element. */
typedef struct lane_sums {
    f64_lanes mass, raw, squares; /* sums of |t_a A t_w W|, of |A W|, of (t_a A t_w W)^2 */
} lane_sums;

static ALWAYS_INLINE double add_lanes(const f64_lanes *x)
{
    double sum = 0;
    for (size_t lane = 0; lane < LANES; lane++)
        sum += (*x)[lane];
    return sum;
}

/* Adds the products of one group, and returns their sum without scales. */
static ALWAYS_INLINE double add_group(const double *a, const double *w, size_t group, double scale, lane_sums *to)
{
    f64_lanes sum = {0};
    for (size_t x = 0; x < group; x += LANES) {
        f64_lanes p;
        MULTIPLY(p, a + x, w + x);
        sum += p;
        to->raw += (f64_lanes)((i64_lanes)p & INT64_MAX);
        p *= scale;
        to->mass += (f64_lanes)((i64_lanes)p & INT64_MAX);
        to->squares += p * p;
    }
    return add_lanes(&sum);
}

/* Computes one element: row `a` with scales `s`, row `w` with scales `t`. Each FP32 operation of a group may lose
 * 2^-126 below the normal numbers: the products, the product of scales, its product with the sum, the addition. */
static ALWAYS_INLINE void find_exact(const double *a, const double *s, const double *w, const double *t, size_t groups,
                                     size_t group, tsr_mx_exact *e)
{
    lane_sums sums = {{0}, {0}, {0}};
    double value = 0, squares = 0, sizes = 0;
    for (size_t g = 0; g < groups; g++) {
        const double scale = s[g] * t[g], part = add_group(a + g * group, w + g * group, group, scale, &sums) * scale;
        value += part;
        squares += part * part;
        sizes += fabs(scale);
    }
    const double raw = add_lanes(&sums.raw);
    *e = (tsr_mx_exact){
        .value = value,
        .mass = add_lanes(&sums.mass),
        .squares = squares + add_lanes(&sums.squares),
        .underflow = 0x1p-126 * (raw + sizes * (double)group + 2 * (double)groups),
        .peak = fmax(sizes, raw),
    };
}

FOR_EVERY_ISA(find_exact,
              (const double *a, const double *s, const double *w, const double *t, size_t groups, size_t group,
               tsr_mx_exact *e),
              (a, s, w, t, groups, group, e))

void tsr_mx_exact_product(const tsr_mx_decoded *a, size_t m, const tsr_mx_decoded *w, size_t n, size_t k, size_t group,
                          tsr_mx_exact *exact, size_t ld)
{
    const size_t groups = k / group;
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++)
            find_exact_best(a->codes + i * k, a->t + i * groups, w->codes + j * k, w->t + j * groups, groups, group,
                            &exact[i * ld + j]);
    }
}

static double worst_sum(const tsr_mx_exact *e, size_t k, size_t group)
{
    return 1.01 * (double)tsr_mx_gemm_roundings(k, group) * 0x1p-24 * e->mass + e->underflow;
}

double tsr_mx_bound(const tsr_mx_exact *e, tsr_out out, size_t k, size_t group)
{
    const double worst = worst_sum(e, k, group);
    return worst + tsr_half_step(out, fabs(e->value) + worst);
}

double tsr_mx_variance(const tsr_mx_exact *e, tsr_out out, size_t k, size_t group)
{
    const double half = tsr_half_step(out, fabs(e->value)), steps = (double)tsr_mx_gemm_roundings(k, group);
    return steps * 0x1p-48 / 3 * (e->squares + e->value * e->value) + e->underflow * e->underflow + half * half / 3;
}

bool tsr_mx_may_overflow(const tsr_mx_exact *e, tsr_out out, size_t k, size_t group)
{
    return e->peak >= 0x1p127 || tsr_may_overflow(out, fabs(e->value) + worst_sum(e, k, group), e->mass);
}
