/* Compares scales with their rules. Errors are summed only for scales that follow no rule. */
#include "verify/values/group_scale.h"

#include <math.h>

/* Returns the smallest quotient amax / scale that a rule gives; all are below four times that. */
static double least_quotient(tsr_codes kind)
{
    return kind == TSR_CODES_E4M3 ? 128 : kind == TSR_CODES_E3M2 ? 8 : 2;
}

/* The smallest and largest scale of E8M0. */
static const double kSmallestPower = 0x1p-127, kLargestPower = 0x1p127;
/* Producers that use the bits of a subnormal amax give it this power or the smallest one. */
static const double kOfSubnormals = 0x1p-126;

static bool is_ruled_power(tsr_codes kind, double amax, double scale)
{
    const double quotient = amax / scale, least = least_quotient(kind);
    if (amax < kOfSubnormals && scale <= kOfSubnormals)
        return true;
    return (quotient >= least || scale <= kSmallestPower) && (quotient <= 4 * least || scale >= kLargestPower);
}

/* Finds the better of the two powers of two for which amax is in the range. */
static void rule_power(tsr_codes kind, const tsr_group *g, tsr_group_verdict *v)
{
    int exponent;
    (void)frexp(v->amax / least_quotient(kind), &exponent); /* amax is least * 2^exponent * [0.5, 1) */
    v->better2 = INFINITY;
    for (int k = exponent - 2; k <= exponent - 1; k++) {
        const tsr_rounding rounding = {.kind = kind, .scale = fmin(fmax(ldexp(1, k), kSmallestPower), kLargestPower)};
        const double error2 = tsr_rounding_error2(&rounding, g->x, g->n, g->stride);
        if (error2 < v->better2) {
            v->better2 = error2;
            v->ruled = rounding.scale;
        }
    }
}

/* Returns the scale that amax requires, before it is rounded to e4m3. */
static double wanted_scale(const tsr_group_rule *rule, double amax)
{
    return fmin(fmax(amax / (6 * rule->global), 0x1p-9), 448);
}

static bool is_ruled_product(const tsr_group_rule *rule, double amax, double scale)
{
    const double stored = scale / rule->global, wanted = wanted_scale(rule, amax);
    int exponent;
    (void)frexp(wanted, &exponent);
    const double half = ldexp(1, (exponent - 1 < -6 ? -6 : exponent - 1) - 4);
    if (fabs(stored - wanted) <= half + wanted * 0x1p-8)
        return true;
    return amax / (6 * rule->global) <= 0x1p-10 * (1 + 0x1p-8) && fabs(stored - 0.125) < 0x1p-20;
}

/* Finds the scale of largest error among those from which the search may have begun: intermediate results in BF16
 * change the wanted scale by up to 2^-8. */
static void rule_product(const tsr_group_rule *rule, const tsr_group *g, tsr_group_verdict *v)
{
    const double wanted = wanted_scale(rule, v->amax);
    v->better2 = -1;
    for (int side = -1; side <= 1; side++) {
        const double scale = tsr_nearest_e4m3(fmin(wanted * (1 + side * 0x1p-8), 448)) * rule->global;
        const tsr_rounding rounding = {.kind = rule->kind, .scale = scale};
        const double error2 = tsr_rounding_error2(&rounding, g->x, g->n, g->stride);
        if (error2 <= v->better2)
            continue;
        v->better2 = error2;
        v->ruled = scale;
    }
}

static double largest_of(const tsr_group *g)
{
    double amax = 0, sum = 0;
    for (size_t i = 0; i < g->n; i++) {
        const double a = fabs(g->x[i * g->stride]);
        amax = a > amax ? a : amax;
        sum += a; /* NaN and Inf are kept in the sum */
    }
    return isfinite(sum) ? amax : INFINITY;
}

bool tsr_group_is_misscaled(const tsr_group_rule *rule, const tsr_group *g, tsr_group_verdict *verdict)
{
    tsr_group_verdict v = {.amax = largest_of(g)};
    if (!(v.amax > 0) || isinf(v.amax) || !(g->scale > 0) || isinf(g->scale))
        return false;
    if (rule->global > 0 ? is_ruled_product(rule, v.amax, g->scale) : is_ruled_power(rule->kind, v.amax, g->scale))
        return false;
    for (size_t i = 0; i < g->n; i++) {
        const double d = g->x[i * g->stride] - g->y[i * g->stride];
        v.error2 += d * d;
    }
    if (rule->global > 0)
        rule_product(rule, g, &v);
    else
        rule_power(rule->kind, g, &v);
    if (verdict != NULL)
        *verdict = v;
    return !(v.error2 <= 1.01 * v.better2);
}
