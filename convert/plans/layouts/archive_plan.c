/* Divides shards into compressed frames, and copies text files. */
#include "convert/plans/layouts/archive_plan.h"

#include "common/checked.h"
#include "formats/blocks/block_file.h"
#include "formats/checkpoint/archive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

static const uint64_t kMaxTextBytes = 256u << 20;

/* ---- the operation: a unit is a frame; out[0] is the frames, out[1] the trailer ---- */

typedef struct shard {
    tsr_archive_options options;
    uint64_t frames;
    uint64_t *first;  /* [n_in + 1]: the first frame of each input */
    uint64_t largest; /* frame */
    uint64_t scratch;
} shard;

/* A piece of one input tensor. */
typedef struct piece {
    uint32_t input;
    uint64_t offset, bytes;
} piece;

static piece piece_of(const tsr_step *step, uint64_t unit)
{
    const shard *const s = step->params;
    uint32_t low = 0, high = step->n_in;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (s->first[middle] <= unit)
            low = middle;
        else
            high = middle;
    }
    const uint64_t offset = (unit - s->first[low]) * TSR_UNIT_BYTES;
    return (piece){low, offset, tsr_min_u64(TSR_UNIT_BYTES, step->in[low]->bytes - offset)};
}

/* Returns the number of byte planes: floats of two or four bytes have their exponents in the high bytes. */
static unsigned planes_of(const shard *s, const tsr_tensor *t)
{
    return s->options.shuffle && tsr_dtype_is_weight_float(t->dtype) ? (unsigned)tsr_dtype_bytes(t->dtype) : 1;
}

static uint64_t archive_units(const tsr_step *step)
{
    return ((const shard *)step->params)->frames;
}

static uint64_t archive_largest(const tsr_step *step)
{
    return ((const shard *)step->params)->largest;
}

static uint64_t archive_scratch(const tsr_step *step)
{
    return ((const shard *)step->params)->scratch;
}

static void archive_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const piece p = piece_of(step, unit);
    const uint64_t bound = tsr_archive_frame_bound(p.bytes);
    u->from[0] = p.input;
    u->in[0] = (tsr_window){.offset = p.offset, .rows = 1, .row_bytes = p.bytes, .pitch = p.bytes};
    u->out[0] = (tsr_window){.rows = 1, .row_bytes = bound, .pitch = bound};
}

static tsr_status archive_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                              tsr_quant_stats *stats, tsr_err *err)
{
    (void)kernels, (void)stats;
    const shard *const s = step->params;
    const unsigned width = planes_of(s, step->in[u->from[0]]);
    const size_t size = tsr_window_bytes(&u->in[0]);
    size_t packed = 0;
    TSR_TRY(tsr_archive_pack(u->in_data[0], size, width, s->options.level, u->scratch, u->out_data[0], &packed, err));
    tsr_archive_note(u->out_data[1], s->frames, unit, u->in_data[0], size, width, packed);
    *u->appended = packed;
    return TSR_OK;
}

static void archive_seal(const tsr_step *step, void *const *buffered)
{
    tsr_archive_seal(buffered[1], ((const shard *)step->params)->frames);
}

static const tsr_op kArchiveOp = {.name = "archive",
                                  .units = {archive_units, archive_windows, archive_scratch, archive_run},
                                  .largest = archive_largest,
                                  .seal = archive_seal};

/* ---- shards ---- */

/* Computes where the frames of each input begin, and an upper bound of their size. */
static tsr_status cut(tsr_plan *plan, shard *s, const tsr_step *step, uint64_t *bound, tsr_err *err)
{
    uint64_t most = 0;
    s->first = tsr_arena_alloc(&plan->arena, (step->n_in + 1) * sizeof *s->first);
    if (s->first == NULL)
        return tsr_out_of_memory(err, "while planning");
    *bound = 0;
    for (uint32_t i = 0; i < step->n_in; i++) {
        const uint64_t bytes = step->in[i]->bytes, whole = bytes / TSR_UNIT_BYTES, rest = bytes % TSR_UNIT_BYTES;
        if (tsr_min_u64(bytes, TSR_UNIT_BYTES) > most) {
            most = tsr_min_u64(bytes, TSR_UNIT_BYTES);
            s->largest = s->frames;
        }
        s->first[i] = s->frames;
        s->frames += tsr_ceil_div(bytes, TSR_UNIT_BYTES);
        *bound += whole * tsr_archive_frame_bound(TSR_UNIT_BYTES) + (rest == 0 ? 0 : tsr_archive_frame_bound(rest));
    }
    s->first[step->n_in] = s->frames;
    /* The planes, and the memory that libzstd allocates itself, so that --memory accounts for it. */
    s->scratch = most + tsr_archive_context_bytes(most, s->options.level);
    return TSR_OK;
}

static tsr_status plan_shard(tsr_plan *plan, uint32_t file, const tsr_tensor *const *in, uint32_t n_in,
                             const tsr_archive_options *o, tsr_err *err)
{
    const char *const plain = plan->sources[0]->files[file].name;
    const char *const name = tsr_arena_printf(&plan->arena, "%s" TSR_ARCHIVE_SUFFIX, plain);
    const char *const tail_name = tsr_arena_printf(&plan->arena, "%s, seek table", plain);
    shard *const s = tsr_arena_alloc(&plan->arena, sizeof *s);
    tsr_tensor *const frames = tsr_plan_tensor(plan, &(tsr_tensor){.name = name, .dtype = TSR_U8, .rank = 1});
    tsr_tensor *const tail = tsr_plan_tensor(plan, &(tsr_tensor){.name = tail_name, .dtype = TSR_U8, .rank = 1});
    if (name == NULL || tail_name == NULL || s == NULL || frames == NULL || tail == NULL)
        return tsr_out_of_memory(err, "while planning");
    s->options = *o;
    const tsr_step step = {
        .op = &kArchiveOp, .params = s, .in = in, .n_in = n_in, .out = {frames, tail}, .n_out = 2, .buffered = 1u << 1};
    TSR_TRY(cut(plan, s, &step, &frames->bytes, err));
    tail->bytes = tsr_archive_tail_bytes(s->frames);
    frames->shape[0] = frames->bytes;
    tail->shape[0] = tail->bytes;
    TSR_TRY(tsr_plan_step(plan, &step, err));
    return tsr_plan_raw_file(plan, name, true, err);
}

/* Returns bytes [0, bytes) of a file as a tensor. */
static tsr_tensor *head_of_file(tsr_plan *plan, uint32_t file, uint64_t bytes)
{
    const tsr_tensor head = {.name = plan->sources[0]->files[file].name,
                             .dtype = TSR_U8,
                             .rank = 1,
                             .shape = {bytes},
                             .bytes = bytes,
                             .file = file};
    return tsr_plan_tensor(plan, &head);
}

/* Plans one shard per file. The tensors of a file are consecutive in the table, from *next on; a shard has *n_in
 * inputs, the header first. */
static tsr_status plan_shards(tsr_plan *plan, const tsr_archive_options *o, const char *reason, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    const tsr_tensor **const in = tsr_arena_alloc(&plan->arena, (c->tensors.count + 1) * sizeof *in);
    if (in == NULL)
        return tsr_out_of_memory(err, "while planning");
    size_t next = 0;
    for (uint32_t file = 0; file < c->n_files; file++) {
        uint32_t n = 1;
        for (; next < c->tensors.count && c->tensors.items[next].file == file; next++) {
            in[n++] = &c->tensors.items[next];
            TSR_TRY(tsr_plan_add_note(plan, &c->tensors.items[next], "archive", reason, err));
        }
        in[0] = head_of_file(plan, file, n > 1 ? in[1]->offset : c->files[file].size);
        if (in[0] == NULL)
            return tsr_out_of_memory(err, "while planning");
        TSR_TRY(plan_shard(plan, file, in, n, o, err));
    }
    return TSR_OK;
}

/* ---- texts ---- */

/* Adds a copy of a text file of the source. An `optional` file may be missing. */
static tsr_status plan_text(tsr_plan *plan, const char *name, bool optional, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    tsr_arena scratch = {0};
    const char *data;
    size_t size;
    bool exists = true;
    tsr_status status = optional ? tsr_checkpoint_has(c, name, &exists, err) : TSR_OK;
    if (status == TSR_OK && exists)
        status = tsr_checkpoint_text(c, name, kMaxTextBytes, &scratch, &data, &size, err);
    if (status == TSR_OK && exists)
        status = tsr_plan_text_file(plan, "", name, data, size, err);
    tsr_arena_free(&scratch);
    return status;
}

/* Copies all other files unchanged. */
static tsr_status plan_others(tsr_plan *plan, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    if (c->dir == NULL)
        return TSR_OK;
    TSR_TRY(tsr_plan_side_files(plan, "", "*", NULL, err));
    TSR_TRY(plan_text(plan, TSR_REPORT_NAME, true, err));
    TSR_TRY(tsr_plan_side_files(plan, "", TSR_BLOCKS_NAME, NULL, err));
    if (c->index_path != NULL)
        TSR_TRY(plan_text(plan, strrchr(c->index_path, '/') + 1, false, err));
    return tsr_plan_text_file(plan, "", TSR_CONFIG_NAME, c->config, c->config_size, err);
}

/* ---- the estimate ---- */

enum { SAMPLES = 48, SAMPLE_BYTES = 256 << 10 };

/* Returns the input that contains byte `at` of the concatenated inputs of the plan's shards, and the offset in it.
 * NULL: past the end. */
static const tsr_tensor *find_byte(const tsr_plan *plan, uint64_t at, const shard **s, uint64_t *offset)
{
    for (size_t i = 0; i < plan->n_steps; i++) {
        const tsr_step *const step = &plan->steps[i];
        for (uint32_t k = 0; step->op == &kArchiveOp && k < step->n_in; k++) {
            *s = step->params;
            *offset = at;
            if (at < step->in[k]->bytes)
                return step->in[k];
            at -= step->in[k]->bytes;
        }
    }
    return NULL;
}

/* Packs a sample of whole elements near byte `at`. Adds its sizes before and after. */
static tsr_status pack_sample(const tsr_plan *plan, uint64_t at, char *memory, uint64_t sums[2], tsr_err *err)
{
    const shard *s;
    uint64_t offset;
    const tsr_tensor *const t = find_byte(plan, at, &s, &offset);
    size_t packed = 0;
    if (t == NULL)
        return TSR_OK;
    offset -= offset % 64;
    const size_t size = (size_t)tsr_min_u64(SAMPLE_BYTES, t->bytes - offset);
    TSR_TRY(tsr_checkpoint_read(plan->sources[0], t, offset, memory, size, err));
    TSR_TRY(tsr_archive_pack(memory, size, planes_of(s, t), s->options.level, memory + SAMPLE_BYTES,
                             memory + 2 * SAMPLE_BYTES, &packed, err));
    sums[0] += size;
    sums[1] += packed;
    return TSR_OK;
}

static tsr_status estimate(const tsr_plan *plan, double *share, tsr_err *err)
{
    char *const memory = malloc(2 * SAMPLE_BYTES + tsr_archive_frame_bound(SAMPLE_BYTES));
    uint64_t all = 0, sums[2] = {0, 0};
    tsr_status status = memory == NULL ? tsr_out_of_memory(err, "for samples") : TSR_OK;
    for (size_t i = 0; i < plan->n_steps; i++)
        all += plan->steps[i].op == &kArchiveOp ? tsr_step_input(&plan->steps[i]) : 0;
    for (uint64_t k = 0; k < SAMPLES && status == TSR_OK; k++)
        status = pack_sample(plan, (uint64_t)((double)all * ((double)k + 0.5) / (double)SAMPLES), memory, sums, err);
    free(memory);
    *share = sums[0] == 0 ? 1 : fmin(1, (double)sums[1] / (double)sums[0]);
    return status;
}

/* ---- the plans ---- */

static tsr_status plan_archive(tsr_plan *plan, const tsr_archive_options *o, tsr_err *err)
{
    /* The bytes depend on the version of libzstd, so another version must not finish the output. */
    plan->command = tsr_arena_printf(&plan->arena, "convert --to archive --level %d%s (zstd %s)", o->level,
                                     o->shuffle ? " --shuffle" : "", ZSTD_versionString());
    plan->advice = o->shuffle ? "every command reads it as it is; 'zstd -d' alone does not restore shuffled files, "
                                "'tessera convert --to safetensors' does"
                              : "every command reads it as it is; 'zstd -d' restores the plain files";
    const char *const reason =
        tsr_arena_printf(&plan->arena, "zstd level %d%s", o->level, o->shuffle ? ", byte planes" : "");
    if (plan->command == NULL || reason == NULL)
        return tsr_out_of_memory(err, "while planning");
    plan->estimate = estimate;
    TSR_TRY(plan_shards(plan, o, reason, err));
    TSR_TRY(plan_others(plan, err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_archive_plan(tsr_plan *plan, const tsr_checkpoint *const *source, const tsr_archive_options *options,
                            tsr_err *err)
{
    *plan = tsr_plan_begin(source, 1);
    plan->counted = "files";
    const tsr_status status = plan_archive(plan, options, err);
    return tsr_plan_ended(plan, status);
}

static tsr_status plan_unarchive(tsr_plan *plan, tsr_err *err)
{
    const tsr_checkpoint *const c = plan->sources[0];
    size_t archives = 0;
    plan->command = "convert --to safetensors";
    for (uint32_t file = 0; file < c->n_files; file++) {
        const tsr_file *const f = &c->files[file];
        const tsr_tensor *const whole = head_of_file(plan, file, f->size);
        if (whole == NULL)
            return tsr_out_of_memory(err, "while planning");
        TSR_TRY(tsr_plan_copy(plan, whole, f->name, err));
        TSR_TRY(tsr_plan_raw_file(plan, f->name, false, err));
        archives += f->archive != NULL;
    }
    if (archives == 0)
        return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: no .safetensors" TSR_ARCHIVE_SUFFIX " to restore", c->path);
    for (size_t i = 0; i < c->tensors.count; i++)
        TSR_TRY(tsr_plan_add_note(plan, &c->tensors.items[i], "restore", "unpacked", err));
    TSR_TRY(plan_others(plan, err));
    return tsr_plan_finish(plan, err);
}

tsr_status tsr_unarchive_plan(tsr_plan *plan, const tsr_checkpoint *const *source, tsr_err *err)
{
    *plan = tsr_plan_begin(source, 1);
    plan->counted = "files";
    const tsr_status status = plan_unarchive(plan, err);
    return tsr_plan_ended(plan, status);
}
