/* Tests how a copy of a tensor is divided into units. */
#include "convert/plan/plan.h"

#include <criterion/criterion.h>

/* Copies of every size around the unit cover each byte once, and no more. */
Test(plan, copy_windows_cover_a_tensor_exactly)
{
    static const uint64_t kSizes[] = {
        0, 1, TSR_UNIT_BYTES - 1, TSR_UNIT_BYTES, TSR_UNIT_BYTES + 1, 5 * TSR_UNIT_BYTES + 7};
    for (size_t i = 0; i < sizeof kSizes / sizeof *kSizes; i++) {
        const tsr_tensor t = {.name = "t", .rank = 1, .shape = {kSizes[i]}, .dtype = TSR_U8, .bytes = kSizes[i]};
        const tsr_step step = {
            .op = &tsr_copy_op, .in = (const tsr_tensor *[]){&t}, .out = {&t}, .n_in = 1, .n_out = 1};
        uint64_t end = 0;
        for (uint64_t unit = 0; unit < tsr_copy_op.units.count(&step); unit++) {
            const tsr_unit u = tsr_step_unit(&step, unit);
            cr_expect_eq(u.out[0].offset, end);
            end += tsr_window_bytes(&u.out[0]);
        }
        cr_expect_eq(end, kSizes[i]);
    }
}
