/* Tests a step that produces the outputs of another step, in another file, and the other step alone. */
#include "convert/run/engine.h"
#include "tests/unit/fixture.h"

enum { ROWS = 64, COLS = 4096, UNITS = 16 };

static atomic_int copies, sums;

static uint64_t units(const tsr_step *step)
{
    (void)step;
    return UNITS;
}

static void windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const uint64_t bytes = step->in[0]->bytes / UNITS;
    u->in[0] = (tsr_window){.offset = unit * bytes, .rows = 1, .row_bytes = bytes, .pitch = bytes};
    if (step->buffered == 0)
        u->out[0] = u->in[0];
}

static void sum_rows(uint64_t unit, const unsigned char *x, void *to)
{
    for (unsigned r = 0; r < ROWS / UNITS; r++) {
        int32_t sum = 0;
        for (unsigned c = 0; c < COLS; c++)
            sum += x[r * COLS + c];
        ((int32_t *)to)[unit * (ROWS / UNITS) + r] = sum;
    }
}

static tsr_status copy(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                       tsr_quant_stats *stats, tsr_err *err)
{
    (void)kernels, (void)stats, (void)err;
    atomic_fetch_add(&copies, 1);
    memcpy(u->out_data[0], u->in_data[0], step->in[0]->bytes / UNITS);
    if (u->coproduced_data[0] != NULL)
        sum_rows(unit, u->in_data[0], u->coproduced_data[0]);
    return TSR_OK;
}

static tsr_status sum(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                      tsr_quant_stats *stats, tsr_err *err)
{
    (void)step, (void)kernels, (void)stats, (void)err;
    atomic_fetch_add(&sums, 1);
    sum_rows(unit, u->in_data[0], u->out_data[0]);
    return TSR_OK;
}

static const tsr_op kCopy = {.name = "copy", .units = {units, windows, NULL, copy}};
static const tsr_op kSum = {.name = "sum", .units = {units, windows, NULL, sum}};

static void make_plan(tsr_plan *plan, const tsr_checkpoint *const *source)
{
    const tsr_tensor *const x = tsr_checkpoint_find(*source, "x");
    *plan = tsr_plan_begin(source, 1);
    plan->command = "test";
    const tsr_step codes = {.op = &kCopy, .in = &x, .out = {tsr_plan_tensor(plan, x)}, .n_in = 1, .n_out = 1};
    const tsr_step rows = {.op = &kSum,
                           .in = &x,
                           .out = {tsr_plan_new_tensor(plan, "sums", TSR_I32, 1, (const uint64_t[]){ROWS})},
                           .n_in = 1,
                           .n_out = 1,
                           .buffered = 1};
    cr_assert_eq(tsr_plan_step(plan, &codes, NULL), TSR_OK);
    cr_assert_eq(tsr_plan_file(plan, "codes.safetensors", NULL), TSR_OK);
    cr_assert_eq(tsr_plan_step(plan, &rows, NULL), TSR_OK);
    tsr_plan_coproduce(plan, 0, 1);
    cr_assert_eq(tsr_plan_file(plan, "sums.safetensors", NULL), TSR_OK);
    cr_assert_eq(tsr_plan_finish(plan, NULL), TSR_OK);
}

/* Runs the plan, and expects these numbers of units. Returns the number of bytes read. */
static uint64_t run(const tsr_plan *plan, const char *dst, unsigned threads, int expected_copies, int expected_sums)
{
    const tsr_engine_options options = {.run = {.threads = threads, .memory = 1u << 30}, .io = TSR_IO_BUFFERED};
    tsr_engine_result result;
    tsr_err err = {0};
    atomic_store(&copies, 0);
    atomic_store(&sums, 0);
    cr_assert_eq(tsr_engine_run(plan, dst, &options, &result, &err), TSR_OK, "%s", err.msg);
    cr_expect_eq(copies, expected_copies);
    cr_expect_eq(sums, expected_sums);
    const uint64_t bytes_read = result.bytes_read;
    tsr_engine_result_free(&result);
    return bytes_read;
}

static void write_source(void)
{
    uint64_t bytes;
    FILE *const file = fixture_header("x.safetensors", &(fixture_tensor){"x", {ROWS, COLS}, "U8"}, 1, &bytes);
    for (unsigned i = 0; i < ROWS * COLS; i++)
        fputc((int)(i * 2654435761u >> 24), file);
    fclose(file);
}

static void expect_sums(const char *path)
{
    int32_t found[ROWS], expected = 0;
    FILE *const file = fopen(path, "rb");
    cr_assert_not_null(file);
    fseek(file, -(long)sizeof found, SEEK_END);
    cr_assert_eq(fread(found, sizeof found, 1, file), 1);
    fclose(file);
    for (unsigned r = 0; r < ROWS; r++, expected = 0) {
        for (unsigned c = 0; c < COLS; c++)
            expected += (int)((r * COLS + c) * 2654435761u >> 24);
        cr_expect_eq(found[r], expected);
    }
}

TestSuite(give, .init = fixture_make, .fini = fixture_remove);

Test(give, what_is_given_is_made_once)
{
    const char *const dst = fixture_path("out"), *const path = fixture_path("out/sums.safetensors");
    tsr_checkpoint *c;
    tsr_plan plan;
    write_source();
    cr_assert_eq(tsr_checkpoint_open(&c, fixture_path("x.safetensors"), NULL, 0, NULL), TSR_OK);
    make_plan(&plan, (const tsr_checkpoint *const *)&c);
    cr_expect_eq(plan.bytes_wanted, ROWS * COLS);
    cr_expect_eq(run(&plan, dst, 3, UNITS, 0), ROWS * COLS);
    expect_sums(path);
    unlink(path); /* the other file exists, so its step does not write them */
    (void)run(&plan, dst, 2, 0, UNITS);
    expect_sums(path);
    tsr_plan_free(&plan);
    tsr_checkpoint_close(c);
}
