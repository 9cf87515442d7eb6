/* Building plans: steps into files, offsets, index, fingerprint. */
#include "convert/plan.h"

#include "formats/checked.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

static tsr_status out_of_memory(tsr_err *err)
{
    return tsr_fail(err, TSR_E_NOMEM, "out of memory while planning");
}

/* Doubles an array that is full. */
static bool grow(void **items, size_t count, size_t *capacity, size_t item_size)
{
    if (count < *capacity)
        return true;
    const size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    void *const more = realloc(*items, wanted * item_size);
    if (more == NULL)
        return false;
    *items = more;
    *capacity = wanted;
    return true;
}

tsr_tensor *tsr_plan_tensor(tsr_plan *plan, const tsr_tensor *tensor)
{
    tsr_tensor *const copy = tsr_arena_alloc(&plan->arena, sizeof *copy);
    if (copy != NULL)
        *copy = *tensor;
    return copy;
}

tsr_status tsr_plan_step(tsr_plan *plan, const tsr_step *step, tsr_err *err)
{
    if (!grow((void **)&plan->steps, plan->n_steps, &plan->steps_capacity, sizeof *plan->steps))
        return out_of_memory(err);
    plan->steps[plan->n_steps++] = *step;
    return TSR_OK;
}

/* ---- copying ---- */

static uint64_t copy_units(const tsr_step *step)
{
    return tsr_ceil_div(step->in[0]->bytes, TSR_UNIT_BYTES);
}

static void copy_windows(const tsr_step *step, uint64_t unit, tsr_unit *u)
{
    const uint64_t offset = unit * TSR_UNIT_BYTES;
    const uint64_t bytes = tsr_min_u64(TSR_UNIT_BYTES, step->in[0]->bytes - offset);
    u->in[0] = u->out[0] = (tsr_window){.offset = offset, .rows = 1, .row_bytes = bytes, .pitch = bytes};
}

static tsr_status copy_run(const tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                           tsr_quant_stats *stats, tsr_err *err)
{
    (void)step, (void)unit, (void)kernels, (void)stats, (void)err;
    memcpy(u->out_data[0], u->in_data[0], tsr_window_bytes(&u->in[0]));
    return TSR_OK;
}

const tsr_op tsr_copy_op = {.name = "copy", .units = copy_units, .windows = copy_windows, .run = copy_run};

/* ---- files ---- */

static tsr_status add_file(tsr_plan *plan, const tsr_out_file *file, tsr_err *err)
{
    if (!grow((void **)&plan->files, plan->n_files, &plan->files_capacity, sizeof *plan->files))
        return out_of_memory(err);
    plan->files[plan->n_files++] = *file;
    return TSR_OK;
}

static int by_layout(const void *a, const void *b)
{
    const tsr_tensor *const x = *(tsr_tensor *const *)a, *const y = *(tsr_tensor *const *)b;
    const unsigned wide_x = tsr_dtype_bits(x->dtype), wide_y = tsr_dtype_bits(y->dtype);
    if (wide_x != wide_y)
        return wide_x > wide_y ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Puts the outputs of a file's steps in order, and gives each its offset. */
static tsr_status lay_out(tsr_plan *plan, size_t index, tsr_err *err)
{
    tsr_out_file *const f = &plan->files[index];
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++)
        f->n_tensors += plan->steps[s].n_out;
    f->tensors = tsr_arena_alloc(&plan->arena, (f->n_tensors + 1) * sizeof *f->tensors);
    if (f->tensors == NULL)
        return out_of_memory(err);
    size_t n = 0;
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++) {
        plan->steps[s].file = (uint32_t)index;
        for (unsigned i = 0; i < plan->steps[s].n_out; i++)
            f->tensors[n++] = (tsr_tensor *)plan->steps[s].out[i];
    }
    qsort(f->tensors, n, sizeof *f->tensors, by_layout);
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        f->tensors[i]->file = (uint32_t)index;
        f->tensors[i]->offset = end;
        end += f->tensors[i]->bytes;
    }
    if (!f->raw) {
        tsr_text header = {0};
        tsr_safetensors_write_header(&header, f->tensors, n);
        f->header_bytes = header.size;
        const tsr_status status = tsr_text_status(&header, err);
        tsr_text_free(&header);
        TSR_TRY(status);
    }
    for (size_t i = 0; i < n; i++)
        f->tensors[i]->offset += f->header_bytes;
    f->bytes = f->header_bytes + end;
    return TSR_OK;
}

static uint64_t step_bytes(const tsr_step *step)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < step->n_out; i++)
        bytes += step->out[i]->bytes;
    return bytes;
}

tsr_status tsr_plan_pack(tsr_plan *plan, uint64_t max_bytes, tsr_err *err)
{
    uint64_t room = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        const uint64_t bytes = step_bytes(&plan->steps[s]);
        if (plan->n_files == 0 || (bytes > room && room < max_bytes)) {
            TSR_TRY(add_file(plan, &(tsr_out_file){.first_step = s}, err));
            room = max_bytes;
        }
        plan->files[plan->n_files - 1].n_steps++;
        room -= tsr_min_u64(room, bytes);
    }
    for (size_t i = 0; i < plan->n_files; i++) {
        tsr_out_file *const f = &plan->files[i];
        f->name = plan->n_files == 1
                      ? "model.safetensors"
                      : tsr_arena_printf(&plan->arena, "model-%05zu-of-%05zu.safetensors", i + 1, plan->n_files);
        if (f->name == NULL)
            return out_of_memory(err);
        TSR_TRY(lay_out(plan, i, err));
    }
    return TSR_OK;
}

tsr_status tsr_plan_side_files(tsr_plan *plan, tsr_err *err)
{
    for (size_t i = 0; i < plan->source->n_side_files; i++) {
        const tsr_tensor side = tsr_checkpoint_side_file(plan->source, i);
        const tsr_tensor *const in = tsr_plan_tensor(plan, &side), *const out = tsr_plan_tensor(plan, &side);
        if (in == NULL || out == NULL)
            return out_of_memory(err);
        TSR_TRY(add_file(
            plan, &(tsr_out_file){.name = side.name, .raw = true, .first_step = plan->n_steps, .n_steps = 1}, err));
        TSR_TRY(
            tsr_plan_step(plan, &(tsr_step){.op = &tsr_copy_op, .in = {in}, .out = {out}, .n_in = 1, .n_out = 1}, err));
        TSR_TRY(lay_out(plan, plan->n_files - 1, err));
    }
    return TSR_OK;
}

tsr_status tsr_plan_text_file(tsr_plan *plan, const char *name, const char *data, size_t size, tsr_err *err)
{
    const char *const copy = tsr_arena_dup(&plan->arena, data, size);
    if (copy == NULL)
        return out_of_memory(err);
    plan->texts[plan->n_texts++] = (tsr_plan_text){.name = name, .data = copy, .size = size};
    return TSR_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(tsr_tensor *const *)a)->name, (*(tsr_tensor *const *)b)->name);
}

tsr_status tsr_plan_index(tsr_plan *plan, tsr_err *err)
{
    size_t n = 0, models = 0;
    for (size_t i = 0; i < plan->n_files; i++) {
        models += !plan->files[i].raw;
        n += plan->files[i].raw ? 0 : plan->files[i].n_tensors;
    }
    if (models < 2)
        return TSR_OK;
    tsr_tensor **const all = malloc((n + 1) * sizeof *all);
    if (all == NULL)
        return out_of_memory(err);
    n = 0;
    uint64_t total = 0;
    for (size_t i = 0; i < plan->n_files; i++) {
        for (size_t k = 0; !plan->files[i].raw && k < plan->files[i].n_tensors; k++) {
            all[n++] = plan->files[i].tensors[k];
            total += plan->files[i].tensors[k]->bytes;
        }
    }
    qsort(all, n, sizeof *all, by_name);
    tsr_text t = {0};
    tsr_json_begin_object(&t, false);
    tsr_json_key(&t, "metadata");
    tsr_json_begin_object(&t, false);
    tsr_json_key(&t, "total_size");
    tsr_json_u64(&t, total);
    tsr_json_end_object(&t);
    tsr_json_key(&t, "weight_map");
    tsr_json_begin_object(&t, false);
    for (size_t i = 0; i < n; i++) {
        tsr_json_key(&t, all[i]->name);
        tsr_json_string(&t, plan->files[all[i]->file].name);
    }
    tsr_json_end_object(&t);
    tsr_json_end_object(&t);
    tsr_text_append(&t, "\n", 1);
    tsr_status status = tsr_text_status(&t, err);
    if (status == TSR_OK)
        status = tsr_plan_text_file(plan, TSR_INDEX_NAME, t.data, t.size, err);
    tsr_text_free(&t);
    free(all);
    return status;
}

/* ---- sums ---- */

static void mix(uint64_t *hash, const void *data, size_t size)
{
    *hash = XXH3_64bits_withSeed(data, size, *hash);
}

static void mix_text(uint64_t *hash, const char *text)
{
    mix(hash, text, strlen(text) + 1);
}

static void mix_tensor(uint64_t *hash, const tsr_tensor *t)
{
    const uint64_t place[] = {t->file, t->offset, t->bytes, t->dtype, t->rank};
    mix_text(hash, t->name);
    mix(hash, place, sizeof place);
    mix(hash, t->shape, t->rank * sizeof *t->shape);
}

static uint64_t fingerprint(const tsr_plan *plan)
{
    uint64_t hash = 0;
    mix_text(&hash, TSR_VERSION);
    mix_text(&hash, plan->command);
    const tsr_checkpoint *const c = plan->source;
    for (size_t i = 0; i < c->n_files + c->n_side_files; i++) {
        const uint64_t facts[] = {c->files[i].size, (uint64_t)c->files[i].mtime_ns, c->files[i].header_hash};
        mix_text(&hash, c->files[i].name);
        mix(&hash, facts, sizeof facts);
    }
    for (size_t s = 0; s < plan->n_steps; s++) {
        const tsr_step *const step = &plan->steps[s];
        mix_text(&hash, step->op->name);
        for (unsigned i = 0; i < step->n_in; i++)
            mix_tensor(&hash, step->in[i]);
        for (unsigned i = 0; i < step->n_out; i++)
            mix_tensor(&hash, step->out[i]);
    }
    for (size_t i = 0; i < plan->n_texts; i++) {
        mix_text(&hash, plan->texts[i].name);
        mix(&hash, plan->texts[i].data, plan->texts[i].size);
    }
    return hash;
}

tsr_status tsr_plan_finish(tsr_plan *plan, tsr_err *err)
{
    plan->bytes_in = plan->bytes_out = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        for (unsigned i = 0; i < plan->steps[s].n_in; i++)
            plan->bytes_in += plan->steps[s].in[i]->bytes;
    }
    for (size_t i = 0; i < plan->n_files; i++)
        plan->bytes_out += plan->files[i].bytes;
    for (size_t i = 0; i < plan->n_texts; i++)
        plan->bytes_out += plan->texts[i].size;
    plan->fingerprint = fingerprint(plan);
    return plan->n_steps == 0 ? tsr_fail(err, TSR_E_FORMAT, "%s: no tensor to convert", plan->source->path) : TSR_OK;
}

uint64_t tsr_unit_bytes(const tsr_step *step, const tsr_unit *unit)
{
    uint64_t bytes = step->op->scratch_bytes == NULL ? 0 : step->op->scratch_bytes(step);
    for (unsigned i = 0; i < step->n_in; i++)
        bytes += tsr_round_up(tsr_window_bytes(&unit->in[i]), 64);
    for (unsigned i = 0; i < step->n_out; i++)
        bytes += (step->held >> i & 1) != 0 ? 0 : tsr_round_up(tsr_window_bytes(&unit->out[i]), 64);
    return bytes;
}

uint64_t tsr_plan_memory(const tsr_plan *plan, unsigned threads)
{
    uint64_t unit = 0, held = 0;
    for (size_t s = 0; s < plan->n_steps; s++) {
        const tsr_step *const step = &plan->steps[s];
        const uint64_t units = step->op->units(step);
        if (units > 0) {
            tsr_unit u = {0};
            step->op->windows(step, 0, &u); /* the first unit is the largest */
            unit = tsr_max_u64(unit, tsr_unit_bytes(step, &u));
        }
        uint64_t kept = units * sizeof(tsr_quant_stats);
        for (unsigned i = 0; i < step->n_out; i++)
            kept += (step->held >> i & 1) != 0 ? step->out[i]->bytes : 0;
        held = tsr_max_u64(held, kept);
    }
    const uint64_t tables = plan->arena.bytes + plan->steps_capacity * sizeof *plan->steps +
                            plan->n_notes * sizeof *plan->notes + plan->n_steps * sizeof(tsr_quant_stats) +
                            tsr_checkpoint_memory(plan->source);
    return tables + threads * (unit + held);
}

void tsr_plan_free(tsr_plan *plan)
{
    free(plan->steps);
    free(plan->files);
    free(plan->notes);
    tsr_arena_free(&plan->arena);
    *plan = (tsr_plan){0};
}
