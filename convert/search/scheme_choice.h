/* Chooses one option of each group with the least summed error within a budget of bytes: a multiple-choice knapsack.
 *
 * The options of a group that can appear in a fractional solution lie on the lower convex hull of error over bytes.
 * Walking all hulls by falling slope until the budget is full solves the linear relaxation. The slope at its end is the
 * price of a byte: no choice within the budget has a smaller error than
 *   the choice's error + price * (its bytes - budget),
 * with the cheapest option of every group at that price. From there, groups are opened one after the other, beginning
 * with those in which a change costs least. Choices of the opened groups are kept unless another one is better in both
 * bytes and error, or their bound shows that they cannot beat the best known one. When there are too many, the least
 * promising are dropped, and the best of their bounds is what is proven. So the result is exact, or comes with a bound
 * of its distance from the exact one. */
#pragma once

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tsr_choice_option {
    uint64_t bytes;
    double error; /* finite, not negative */
} tsr_choice_option;

typedef struct tsr_choice_group {
    const tsr_choice_option *options;
    size_t n; /* at least 1 */
} tsr_choice_group;

typedef struct tsr_choice {
    bool fits;      /* false: even the smallest options exceed the budget; only `least` is set */
    uint64_t least; /* total bytes of the smallest options */
    uint64_t bytes; /* total bytes of the choice: never above the budget */
    double error;
    double bound; /* no choice within the budget has a smaller error; if equal to `error`, the choice is optimal */
} tsr_choice;

/* Sets picked[i], the caller's array, to the chosen option of groups[i]. The sum of all bytes must stay below 2^63.
 * TSR_E_NOMEM. */
tsr_status tsr_scheme_choice(const tsr_choice_group *groups, size_t n, uint64_t budget, size_t *picked,
                             tsr_choice *choice, tsr_err *err);
