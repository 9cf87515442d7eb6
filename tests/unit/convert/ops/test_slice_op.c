/* Tests slicing and joining for sizes around a unit: each byte is copied once to its part, and back to its place. */
#include "convert/ops/slice_op.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    uint64_t rows, segment;
    uint32_t parts;
} shape;

/* Tests many short rows, rows of which a unit has several but not a whole number, rows longer than a unit, and parts of
 * one row. */
static const shape kShapes[] = {
    {1000, 24, 2},
    {9, 1 << 20, 3},
    {3, TSR_UNIT_BYTES / 2 + 24, 2},
    {1, 3 * TSR_UNIT_BYTES + 40, 2},
    {2, TSR_UNIT_BYTES + 8, 3},
    {70000, 65, 3},
    {5, 2000, 70},
};

/* The byte at `offset` of segment k of a row. */
static uint8_t byte_of(uint64_t row, uint32_t k, uint64_t offset)
{
    return (uint8_t)(row * 131 + k * 57 + offset * 7 + offset / 251);
}

static void take(uint8_t *to, const uint8_t *from, const tsr_window *w)
{
    for (uint64_t r = 0; r < w->rows; r++)
        memcpy(to + r * w->row_bytes, from + w->offset + r * w->pitch, w->row_bytes);
}

static void put(uint8_t *to, uint8_t *written, const uint8_t *from, const tsr_window *w)
{
    for (uint64_t r = 0; r < w->rows; r++) {
        memcpy(to + w->offset + r * w->pitch, from + r * w->row_bytes, w->row_bytes);
        uint8_t *const count = written + w->offset + r * w->pitch;
        for (uint64_t i = 0; i < w->row_bytes; i++)
            count[i]++;
    }
}

/* Runs the plan's last step with `sources`. */
static void carry_out(const tsr_plan *plan, uint8_t *const *sources, uint8_t *out, uint64_t bytes)
{
    const tsr_step *const step = &plan->steps[plan->n_steps - 1];
    uint8_t *const written = calloc(1, bytes);
    cr_assert_not_null(written);
    for (uint64_t unit = 0; unit < step->op->units.count(step); unit++) {
        tsr_unit u = tsr_step_unit(step, unit);
        tsr_quant_stats stats = {0};
        tsr_err err = {0};
        for (unsigned i = 0; i < TSR_MAX_INPUTS; i++) {
            if (u.in[i].rows == 0)
                continue;
            u.in_data[i] = malloc(tsr_window_bytes(&u.in[i]) + 1);
            cr_assert_not_null(u.in_data[i]);
            take(u.in_data[i], sources[u.from[i]], &u.in[i]);
        }
        u.out_data[0] = malloc(tsr_window_bytes(&u.out[0]) + 1);
        cr_assert_not_null(u.out_data[0]);
        cr_assert_eq(step->op->units.run(step, unit, &u, NULL, &stats, &err), TSR_OK);
        put(out, written, u.out_data[0], &u.out[0]);
        free(u.out_data[0]);
        for (unsigned i = 0; i < TSR_MAX_INPUTS; i++)
            free(u.in_data[i]);
    }
    for (uint64_t i = 0; i < bytes; i++) {
        if (written[i] != 1)
            cr_assert_fail("byte %zu is written %d times", (size_t)i, written[i]);
    }
    free(written);
}

static tsr_tensor bytes_tensor(const char *name, uint64_t bytes)
{
    return (tsr_tensor){.name = name, .dtype = TSR_U8, .rank = 1, .shape = {bytes}, .bytes = bytes};
}

static void check(const shape *s)
{
    const uint64_t part_bytes = s->rows * s->segment, bytes = part_bytes * s->parts;
    const tsr_slicing cut = {s->rows, s->parts};
    uint8_t *const whole = malloc(bytes), *const again = malloc(bytes);
    uint8_t **const parts = calloc(s->parts, sizeof *parts);
    const tsr_tensor all = bytes_tensor("whole", bytes);
    tsr_tensor *const tensors = calloc(s->parts, sizeof *tensors);
    const tsr_tensor **const in = calloc(s->parts, sizeof *in);
    tsr_plan plan = {0};
    tsr_err err = {0};
    cr_assert(whole != NULL && again != NULL && parts != NULL && tensors != NULL && in != NULL);
    for (uint64_t row = 0, at = 0; row < s->rows; row++) {
        for (uint32_t k = 0; k < s->parts; k++) {
            for (uint64_t i = 0; i < s->segment; i++)
                whole[at++] = byte_of(row, k, i);
        }
    }
    for (uint32_t k = 0; k < s->parts; k++) {
        tensors[k] = bytes_tensor("part", part_bytes);
        in[k] = &tensors[k];
        parts[k] = malloc(part_bytes);
        cr_assert_not_null(parts[k]);
        cr_assert_eq(tsr_plan_slice(&plan, &all, &tensors[k], cut, k, &err), TSR_OK, "%s", err.msg);
        carry_out(&plan, (uint8_t *const[]){whole}, parts[k], part_bytes);
        for (uint64_t row = 0, at = 0; row < s->rows; row++) {
            for (uint64_t offset = 0; offset < s->segment; offset++, at++) {
                if (parts[k][at] != byte_of(row, k, offset))
                    cr_assert_fail("part %u, byte %zu", k, (size_t)at);
            }
        }
    }
    cr_assert_eq(tsr_plan_join(&plan, in, &all, cut, &err), TSR_OK, "%s", err.msg);
    carry_out(&plan, parts, again, bytes);
    cr_assert_eq(memcmp(whole, again, bytes), 0, "the parts do not make the whole again");
    for (uint32_t k = 0; k < s->parts; k++)
        free(parts[k]);
    free(parts);
    free(tensors);
    free(in);
    free(whole);
    free(again);
    tsr_plan_free(&plan);
}

Test(slice, every_byte_goes_to_its_part_and_back)
{
    for (size_t i = 0; i < sizeof kShapes / sizeof *kShapes; i++)
        check(&kShapes[i]);
}
