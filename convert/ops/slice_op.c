/* Slices, joins and compares tensors. A unit is a rectangle. */
#include "convert/ops/slice_op.h"

#include "common/checked.h"
#include "convert/io/copied_codes.h"
#include "convert/ops/rows/rows.h"

#include <string.h>

typedef struct params {
    tsr_slicing cut;
    uint32_t k;       /* slicing: which part */
    uint64_t segment; /* bytes */
} params;

/* The position of a unit: whole rows, or a run of bytes in one segment of one row. */
typedef struct place {
    uint64_t row, rows;
    uint32_t part;
    uint64_t offset, bytes; /* in the segment */
} place;

static uint64_t pitch_of(const params *p)
{
    return p->segment * p->cut.parts;
}

static const params *keep(tsr_plan *plan, tsr_slicing cut, uint32_t k, const tsr_tensor *whole)
{
    params *const p = tsr_arena_alloc(&plan->arena, sizeof *p);
    if (p != NULL)
        *p = (params){.cut = cut, .k = k, .segment = whole->bytes / (cut.rows * cut.parts)};
    return p;
}

/* ---- slices ---- */

/* Short segments that are close together are read including the gaps: one long read costs less than many short ones. */
enum { SHORT_SEGMENT = 64 << 10, CLOSE = 64 };

static bool reads_all(const params *p)
{
    return p->segment < SHORT_SEGMENT && p->cut.parts <= CLOSE;
}

static uint64_t slice_rows(const params *p)
{
    return tsr_max_u64(1, TSR_UNIT_BYTES / tsr_max_u64(1, reads_all(p) ? pitch_of(p) : p->segment));
}

static uint64_t slice_chunks(const params *p)
{
    return tsr_max_u64(1, tsr_ceil_div(p->segment, TSR_UNIT_BYTES));
}

static place slice_place(const params *p, uint64_t unit)
{
    const uint64_t chunks = slice_chunks(p);
    place at = {.part = p->k, .row = unit / chunks, .rows = 1, .bytes = p->segment};
    if (chunks == 1) {
        at.row = unit * slice_rows(p);
        at.rows = tsr_min_u64(slice_rows(p), p->cut.rows - at.row);
    } else {
        at.offset = unit % chunks * TSR_UNIT_BYTES;
        at.bytes = tsr_min_u64(TSR_UNIT_BYTES, p->segment - at.offset);
    }
    return at;
}

static uint64_t slice_units(const tsr_step *step)
{
    const params *const p = step->params;
    const uint64_t chunks = slice_chunks(p);
    return p->segment == 0 ? 0 : chunks > 1 ? p->cut.rows * chunks : tsr_ceil_div(p->cut.rows, slice_rows(p));
}

static void slice_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = step->params;
    const place at = slice_place(p, unit);
    const uint64_t pitch = pitch_of(p), first = at.row * pitch + p->k * p->segment + at.offset;
    u->in[0] = reads_all(p) ? tsr_run_window(first, (at.rows - 1) * pitch + at.bytes)
                            : (tsr_window){.offset = first, .rows = at.rows, .row_bytes = at.bytes, .pitch = pitch};
    u->out[0] = tsr_run_window(at.row * p->segment + at.offset, at.rows * at.bytes);
}

static tsr_status slice_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                            tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    const params *const p = step->params;
    const place at = slice_place(p, unit);
    TSR_TRY(tsr_check_copied(step, u, 0, 0, tsr_window_bytes(&u->in[0]), kernels, err));
    const uint64_t pitch = reads_all(p) ? pitch_of(p) : at.bytes;
    for (uint64_t r = 0; r < at.rows; r++)
        memcpy((char *)u->out_data[0] + r * at.bytes, (const char *)u->in_data[0] + r * pitch, at.bytes);
    return TSR_OK;
}

static const tsr_op kSliceOp = {.name = "slice", .units = {slice_units, slice_windows, NULL, slice_run}};

tsr_status tsr_plan_slice(tsr_plan *plan, const tsr_tensor *tensor, const tsr_tensor *out, tsr_slicing cut, uint32_t k,
                          tsr_err *err)
{
    const params *const p = keep(plan, cut, k, tensor);
    if (p == NULL)
        return tsr_out_of_memory(err, "while planning");
    const tsr_step step = {.op = &kSliceOp, .params = p, .in = &tensor, .n_in = 1, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}

/* ---- joints ---- */

/* Joins whole rows of all parts at once, unless a row is too long or has too many parts for one unit. */
static bool joins_rows(const params *p)
{
    return p->cut.parts <= TSR_MAX_INPUTS && pitch_of(p) <= TSR_UNIT_BYTES;
}

static uint64_t join_rows(const params *p)
{
    return tsr_max_u64(1, TSR_UNIT_BYTES / tsr_max_u64(1, pitch_of(p)));
}

static place join_place(const params *p, uint64_t unit)
{
    if (joins_rows(p)) {
        const uint64_t row = unit * join_rows(p);
        return (place){.row = row, .rows = tsr_min_u64(join_rows(p), p->cut.rows - row), .bytes = p->segment};
    }
    const uint64_t chunks = tsr_ceil_div(p->segment, TSR_UNIT_BYTES), offset = unit % chunks * TSR_UNIT_BYTES;
    return (place){.row = unit / chunks / p->cut.parts,
                   .rows = 1,
                   .part = (uint32_t)(unit / chunks % p->cut.parts),
                   .offset = offset,
                   .bytes = tsr_min_u64(TSR_UNIT_BYTES, p->segment - offset)};
}

static uint64_t join_units(const tsr_step *step)
{
    const params *const p = step->params;
    if (p->segment == 0)
        return 0;
    return joins_rows(p) ? tsr_ceil_div(p->cut.rows, join_rows(p))
                         : p->cut.rows * p->cut.parts * tsr_ceil_div(p->segment, TSR_UNIT_BYTES);
}

static void join_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const params *const p = step->params;
    const place at = join_place(p, unit);
    const uint64_t pitch = pitch_of(p);
    if (joins_rows(p)) {
        for (uint32_t k = 0; k < p->cut.parts; k++)
            u->in[k] = tsr_run_window(at.row * p->segment, at.rows * p->segment);
        u->out[0] = tsr_run_window(at.row * pitch, at.rows * pitch);
        return;
    }
    u->from[0] = at.part;
    u->in[0] = tsr_run_window(at.row * p->segment + at.offset, at.bytes);
    u->out[0] = tsr_run_window(at.row * pitch + at.part * p->segment + at.offset, at.bytes);
}

static tsr_status join_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)stats;
    const params *const p = step->params;
    const place at = join_place(p, unit);
    for (uint32_t k = 0; k < (joins_rows(p) ? p->cut.parts : 1); k++)
        TSR_TRY(tsr_check_copied(step, u, k, 0, tsr_window_bytes(&u->in[k]), kernels, err));
    if (!joins_rows(p)) {
        memcpy(u->out_data[0], u->in_data[0], at.bytes);
        return TSR_OK;
    }
    for (uint64_t r = 0; r < at.rows; r++) {
        for (uint32_t k = 0; k < p->cut.parts; k++)
            memcpy((char *)u->out_data[0] + r * pitch_of(p) + k * p->segment,
                   (const char *)u->in_data[k] + r * p->segment, p->segment);
    }
    return TSR_OK;
}

static const tsr_op kJoinOp = {.name = "join", .units = {join_units, join_windows, NULL, join_run}};

tsr_status tsr_plan_join(tsr_plan *plan, const tsr_tensor *const *parts, const tsr_tensor *out, tsr_slicing cut,
                         tsr_err *err)
{
    const params *const p = keep(plan, cut, 0, out);
    if (p == NULL)
        return tsr_out_of_memory(err, "while planning");
    const tsr_step step = {.op = &kJoinOp, .params = p, .in = parts, .n_in = cut.parts, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}

/* ---- comparisons ---- */

static uint64_t same_units(const tsr_step *step)
{
    return tsr_ceil_div(step->in[0]->bytes, TSR_UNIT_BYTES);
}

static void same_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const uint64_t offset = unit * TSR_UNIT_BYTES;
    u->in[0] = u->in[1] = tsr_run_window(offset, tsr_min_u64(TSR_UNIT_BYTES, step->in[0]->bytes - offset));
}

static tsr_status same_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)unit, (void)kernels, (void)stats;
    if (memcmp(u->in_data[0], u->in_data[1], u->in[0].row_bytes) == 0)
        return TSR_OK;
    return tsr_fail(err, TSR_E_MISMATCH,
                    "'%s' is not the same in ranks %u and %u, each of which must hold all of it; the ranks belong to "
                    "different models, or one is damaged",
                    step->in[0]->name, step->in[0]->source, step->in[1]->source);
}

static const tsr_op kSameOp = {.name = "compare", .units = {same_units, same_windows, NULL, same_run}};

tsr_status tsr_plan_same(tsr_plan *plan, const tsr_tensor *a, const tsr_tensor *b, tsr_err *err)
{
    const tsr_tensor *const in[] = {a, b};
    return tsr_plan_step(plan, &(tsr_step){.op = &kSameOp, .in = in, .n_in = 2}, err);
}

/* ---- parts of any size ---- */

static uint64_t chunks_of(uint64_t bytes)
{
    return tsr_ceil_div(bytes, TSR_UNIT_BYTES);
}

static tsr_window chunk_of(uint64_t bytes, uint64_t chunk)
{
    const uint64_t offset = chunk * TSR_UNIT_BYTES;
    return tsr_run_window(offset, tsr_min_u64(TSR_UNIT_BYTES, bytes - offset));
}

static uint64_t concatenate_units(const tsr_step *step)
{
    uint64_t units = 0;
    for (uint32_t i = 0; i < step->n_in; i++)
        units += chunks_of(step->in[i]->bytes);
    return units;
}

static void concatenate_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    uint64_t before = 0;
    uint32_t part = 0;
    while (unit >= chunks_of(step->in[part]->bytes)) {
        unit -= chunks_of(step->in[part]->bytes);
        before += step->in[part++]->bytes;
    }
    u->from[0] = part;
    u->in[0] = u->out[0] = chunk_of(step->in[part]->bytes, unit);
    u->out[0].offset += before;
}

static tsr_status pass_on(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                          tsr_quant_stats *stats, tsr_err *err)
{
    (void)unit, (void)stats;
    TSR_TRY(tsr_check_copied(step, u, 0, 0, tsr_window_bytes(&u->in[0]), kernels, err));
    memcpy(u->out_data[0], u->in_data[0], tsr_window_bytes(&u->in[0]));
    return TSR_OK;
}

static const tsr_op kConcatenateOp = {.name = "concatenate",
                                      .units = {concatenate_units, concatenate_windows, NULL, pass_on}};

tsr_status tsr_plan_concatenate(tsr_plan *plan, const tsr_tensor *const *parts, uint32_t n, const tsr_tensor *out,
                                tsr_err *err)
{
    const tsr_step step = {.op = &kConcatenateOp, .in = parts, .n_in = n, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}

static uint64_t range_units(const tsr_step *step)
{
    return chunks_of(step->out[0]->bytes);
}

static void range_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    u->in[0] = u->out[0] = chunk_of(step->out[0]->bytes, unit);
    u->in[0].offset += *(const uint64_t *)step->params;
}

static const tsr_op kRangeOp = {.name = "range", .units = {range_units, range_windows, NULL, pass_on}};

tsr_status tsr_plan_range(tsr_plan *plan, const tsr_tensor *tensor, uint64_t offset, const tsr_tensor *out,
                          tsr_err *err)
{
    uint64_t *const from = tsr_arena_alloc(&plan->arena, sizeof *from);
    if (from == NULL)
        return tsr_out_of_memory(err, "while planning");
    *from = offset;
    const tsr_step step = {.op = &kRangeOp, .params = from, .in = &tensor, .n_in = 1, .out = {out}, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}
