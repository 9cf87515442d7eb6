/* One option of each group, of the least summed error within a budget of bytes: a multiple-choice knapsack.
 *
 * The options of a group that could ever be taken in a fractional solution lie on the lower convex hull of error over
 * bytes. Walking all hulls by falling slope until the budget is full solves the linear relaxation, and the slope at
 * which it ends is a price of a byte: no choice within the budget has a smaller error than
 *   the choice's error + price * (its bytes - budget), with the cheapest option of every group at that price.
 * From there groups are opened one after the other, those first in which a change costs least. All choices of the opened
 * groups that are not worse than another in both bytes and error are kept, unless their bound says that they cannot beat
 * the best one known. When there are too many, the least promising are given up, and the best of their bounds is what
 * is proven. So the result is exact, or it comes with its distance from the exact one at most. */
#ifndef TSR_CONVERT_SEARCH_SCHEME_CHOICE_H
#define TSR_CONVERT_SEARCH_SCHEME_CHOICE_H

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
    bool fits;      /* false: even the smallest options exceed the budget, and only `least` is set */
    uint64_t least; /* bytes of the smallest options */
    uint64_t bytes; /* of what was chosen: never above the budget */
    double error;
    double bound; /* no choice within the budget has a smaller error; equal to `error`: the choice is the best */
} tsr_choice;

/* picked[i] is the chosen option of groups[i]; the caller's array. The sums of all bytes stay below 2^63. TSR_E_NOMEM. */
tsr_status tsr_scheme_choice(const tsr_choice_group *groups, size_t n, uint64_t budget, size_t *picked,
                             tsr_choice *choice, tsr_err *err) TSR_WARN_UNUSED;

#endif
