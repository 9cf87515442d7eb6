/* Builds plans: steps, files and the offsets of tensors in them. */
#include "convert/plan/plan.h"

#include "common/checked.h"
#include "common/glob.h"
#include "common/grow.h"
#include "formats/blocks/block_file.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

tsr_plan tsr_plan_begin(const tsr_checkpoint *const *sources, size_t n_sources)
{
    return (tsr_plan){.sources = sources, .n_sources = n_sources};
}

tsr_tensor *tsr_plan_tensor(tsr_plan *plan, const tsr_tensor *tensor)
{
    tsr_tensor *const copy = tsr_arena_alloc(&plan->arena, sizeof *copy);
    if (copy != NULL)
        *copy = *tensor;
    return copy;
}

tsr_tensor *tsr_plan_new_tensor(tsr_plan *plan, const char *name, tsr_dtype dtype, unsigned rank, const uint64_t *shape)
{
    tsr_tensor t = {.name = name, .dtype = (uint8_t)dtype, .rank = (uint8_t)rank};
    memcpy(t.shape, shape, rank * sizeof *shape);
    t.bytes = tsr_tensor_elements(&t) * tsr_dtype_bytes(dtype);
    return name == NULL ? NULL : tsr_plan_tensor(plan, &t);
}

tsr_tensor *tsr_plan_new_member(tsr_plan *plan, const tsr_tensor *weight, const char *ending, tsr_dtype dtype,
                                unsigned rank, const uint64_t *shape)
{
    const char *const name =
        tsr_arena_printf(&plan->arena, "%.*s%s", (int)tsr_module_length(weight->name), weight->name, ending);
    return tsr_plan_new_tensor(plan, name, dtype, rank, shape);
}

tsr_status tsr_plan_warn(tsr_plan *plan, tsr_err *err, const char *fmt, ...)
{
    tsr_err text;
    va_list args;
    va_start(args, fmt);
    tsr_write_message(&text, fmt, args);
    va_end(args);
    const char *const copy = tsr_arena_dup(&plan->arena, text.msg, strlen(text.msg));
    if (copy == NULL || !tsr_grow(&plan->warnings, plan->n_warnings, &plan->warnings_capacity, sizeof *plan->warnings))
        return tsr_out_of_memory(err, "while planning");
    plan->warnings[plan->n_warnings++] = copy;
    return TSR_OK;
}

tsr_status tsr_plan_step(tsr_plan *plan, const tsr_step *step, tsr_err *err)
{
    const tsr_tensor **const in = tsr_arena_alloc(&plan->arena, (step->n_in + 1) * sizeof *in);
    if (in == NULL || !tsr_grow(&plan->steps, plan->n_steps, &plan->steps_capacity, sizeof *plan->steps))
        return tsr_out_of_memory(err, "while planning");
    memcpy(in, step->in, step->n_in * sizeof *in);
    plan->steps[plan->n_steps] = *step;
    plan->steps[plan->n_steps++].in = in;
    return TSR_OK;
}

void tsr_plan_coproduce(tsr_plan *plan, size_t from, size_t to)
{
    plan->steps[from].coproduces = (uint32_t)to + 1;
    plan->steps[to].coproduced_by = (uint32_t)from + 1;
}

tsr_status tsr_plan_copy(tsr_plan *plan, const tsr_tensor *tensor, const char *name, tsr_err *err)
{
    tsr_tensor *const out = tsr_plan_tensor(plan, tensor);
    if (out == NULL)
        return tsr_out_of_memory(err, "while planning");
    out->name = name;
    const tsr_step step = {.op = &tsr_copy_op, .in = &tensor, .out = {out}, .n_in = 1, .n_out = 1};
    return tsr_plan_step(plan, &step, err);
}

tsr_status tsr_plan_add_note(tsr_plan *plan, const tsr_tensor *source, const char *action, const char *reason,
                             tsr_err *err)
{
    if (!tsr_grow(&plan->notes, plan->n_notes, &plan->notes_capacity, sizeof *plan->notes))
        return tsr_out_of_memory(err, "while planning");
    plan->notes[plan->n_notes++] = (tsr_plan_note){.source = source, .action = action, .reason = reason};
    return TSR_OK;
}

/* ---- files ---- */

/* Returns the first step that is not assigned to a file yet. */
static size_t first_open_step(const tsr_plan *plan)
{
    const tsr_out_file *const last = plan->n_files == 0 ? NULL : &plan->files[plan->n_files - 1];
    return last == NULL ? 0 : last->first_step + last->n_steps;
}

static tsr_status add_file(tsr_plan *plan, const tsr_out_file *file, tsr_err *err)
{
    if (!tsr_grow(&plan->files, plan->n_files, &plan->files_capacity, sizeof *plan->files))
        return tsr_out_of_memory(err, "while planning");
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

/* Collects the outputs of a file's steps, in no particular order. */
static tsr_status collect_tensors(tsr_plan *plan, size_t index, tsr_err *err)
{
    tsr_out_file *const f = &plan->files[index];
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++)
        f->n_tensors += plan->steps[s].n_out;
    f->tensors = tsr_arena_alloc(&plan->arena, (f->n_tensors + 1) * sizeof *f->tensors);
    if (f->tensors == NULL)
        return tsr_out_of_memory(err, "while planning");
    size_t n = 0;
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++) {
        plan->steps[s].file = (uint32_t)index;
        for (unsigned i = 0; i < plan->steps[s].n_out; i++)
            f->tensors[n++] = (tsr_tensor *)plan->steps[s].out[i];
    }
    for (size_t i = 0; i < n; i++)
        f->tensors[i]->file = (uint32_t)index;
    return TSR_OK;
}

/* Sorts the tensors of a file and assigns their offsets. */
static tsr_status lay_out(tsr_plan *plan, size_t index, tsr_err *err)
{
    tsr_out_file *const f = &plan->files[index];
    TSR_TRY(collect_tensors(plan, index, err));
    const size_t n = f->n_tensors;
    if (!f->raw)
        qsort(f->tensors, n, sizeof *f->tensors, by_layout);
    uint64_t end = 0;
    for (size_t i = 0; i < n; i++) {
        f->tensors[i]->offset = end;
        end += f->tensors[i]->bytes;
    }
    if (!f->raw) {
        tsr_text header = {0};
        tsr_safetensors_write_header(&header, f->tensors, n);
        f->header_bytes = header.size;
        tsr_status status = tsr_text_status(&header, err);
        if (status == TSR_OK && header.size > TSR_MAX_HEADER_BYTES) /* the limit includes padding */
            status = tsr_fail(err, TSR_E_USAGE,
                              "%s: %zu tensors need a header of %zu bytes, above the format's limit of %u; make "
                              "smaller files with --max-shard-size",
                              f->name, n, header.size, TSR_MAX_HEADER_BYTES);
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

tsr_status tsr_plan_file(tsr_plan *plan, const char *name, tsr_err *err)
{
    const size_t first = first_open_step(plan);
    TSR_TRY(add_file(plan, &(tsr_out_file){.name = name, .first_step = first, .n_steps = plan->n_steps - first}, err));
    return lay_out(plan, plan->n_files - 1, err);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(tsr_tensor *const *)a)->name, (*(tsr_tensor *const *)b)->name);
}

/* Assigns each tensor of the file the offset that the given header has for it. */
static tsr_status place_by_header(const tsr_out_file *f, tsr_tensors *places, tsr_err *err)
{
    bool same = places->count == f->n_tensors;
    tsr_tensor **const sorted = calloc(places->count + 1, sizeof *sorted);
    if (sorted == NULL)
        return tsr_out_of_memory(err, "while planning");
    for (size_t i = 0; i < places->count; i++)
        sorted[i] = &places->items[i];
    qsort(sorted, places->count, sizeof *sorted, by_name);
    qsort(f->tensors, f->n_tensors, sizeof *f->tensors, by_name);
    for (size_t i = 0; same && i < f->n_tensors; i++) {
        tsr_tensor *const t = f->tensors[i];
        const tsr_tensor *const place = sorted[i];
        same = strcmp(t->name, place->name) == 0 && t->dtype == place->dtype && t->bytes == place->bytes;
        t->offset = place->offset;
    }
    free(sorted);
    return same ? TSR_OK : tsr_fail(err, TSR_E_FORMAT, "%s: its stored header is of other tensors", f->name);
}

static int by_offset(const void *a, const void *b)
{
    const tsr_tensor *const x = *(tsr_tensor *const *)a, *const y = *(tsr_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

tsr_status tsr_plan_file_as(tsr_plan *plan, const char *name, const char *header, size_t header_bytes, tsr_err *err)
{
    const size_t first = first_open_step(plan), index = plan->n_files;
    TSR_TRY(add_file(plan,
                     &(tsr_out_file){.name = name,
                                     .header = header,
                                     .header_bytes = header_bytes,
                                     .first_step = first,
                                     .n_steps = plan->n_steps - first},
                     err));
    TSR_TRY(collect_tensors(plan, index, err));
    tsr_out_file *const f = &plan->files[index];
    uint64_t data = 0;
    for (size_t i = 0; i < f->n_tensors; i++)
        data += f->tensors[i]->bytes;
    tsr_arena names = {0};
    tsr_tensors places = {0};
    tsr_status status = header_bytes < 8 ? tsr_fail(err, TSR_E_FORMAT, "%s: it has no stored header", name)
                                         : tsr_safetensors_parse(name, header + 8, header_bytes - 8, data,
                                                                 (uint32_t)index, &names, &places, err);
    if (status == TSR_OK)
        status = place_by_header(f, &places, err);
    tsr_tensors_free(&places);
    tsr_arena_free(&names);
    qsort(f->tensors, f->n_tensors, sizeof *f->tensors, by_offset);
    f->bytes = header_bytes + data;
    return status;
}

tsr_status tsr_plan_raw_file(tsr_plan *plan, const char *name, bool appended, tsr_err *err)
{
    const size_t first = first_open_step(plan);
    const tsr_out_file file = {
        .name = name, .raw = true, .appended = appended, .first_step = first, .n_steps = plan->n_steps - first};
    TSR_TRY(add_file(plan, &file, err));
    return lay_out(plan, plan->n_files - 1, err);
}

tsr_status tsr_plan_pack(tsr_plan *plan, const char *folder, uint64_t max_bytes, tsr_err *err)
{
    const size_t first_file = plan->n_files;
    uint64_t room = 0;
    for (size_t s = first_open_step(plan); s < plan->n_steps; s++) {
        const uint64_t bytes = step_bytes(&plan->steps[s]);
        if (plan->n_files == first_file || (bytes > room && room < max_bytes)) {
            TSR_TRY(add_file(plan, &(tsr_out_file){.first_step = s}, err));
            room = max_bytes;
        }
        plan->files[plan->n_files - 1].n_steps++;
        room -= tsr_min_u64(room, bytes);
    }
    const size_t n = plan->n_files - first_file;
    for (size_t i = 0; i < n; i++) {
        tsr_out_file *const f = &plan->files[first_file + i];
        f->name = n == 1 ? tsr_arena_printf(&plan->arena, "%smodel.safetensors", folder)
                         : tsr_arena_printf(&plan->arena, "%smodel-%05zu-of-%05zu.safetensors", folder, i + 1, n);
        if (f->name == NULL)
            return tsr_out_of_memory(err, "while planning");
        TSR_TRY(lay_out(plan, first_file + i, err));
    }
    return TSR_OK;
}

void tsr_plan_begin_sequence(tsr_plan *plan, size_t first_file)
{
    if (first_file > 0 && first_file < plan->n_files)
        plan->files[first_file].begins_sequence = true;
}

size_t tsr_plan_sequences(const tsr_plan *plan)
{
    size_t n = 1;
    for (size_t i = 1; i < plan->n_files; i++)
        n += plan->files[i].begins_sequence;
    return n;
}

static bool is_listed(const char *name, const char *const *list)
{
    while (list != NULL && *list != NULL && strcmp(name, *list) != 0)
        list++;
    return list != NULL && *list != NULL;
}

static tsr_status copy_side_file(tsr_plan *plan, const char *folder, size_t i, tsr_err *err)
{
    const tsr_tensor side = tsr_checkpoint_side_file(plan->sources[0], i);
    TSR_TRY(tsr_checkpoint_check_side_file(plan->sources[0], i, err));
    const tsr_tensor *const in = tsr_plan_tensor(plan, &side);
    const char *const name = tsr_arena_printf(&plan->arena, "%s%s", folder, side.name);
    if (in == NULL || name == NULL)
        return tsr_out_of_memory(err, "while planning");
    TSR_TRY(tsr_plan_copy(plan, in, name, err));
    return tsr_plan_raw_file(plan, name, false, err);
}

tsr_status tsr_plan_side_files(tsr_plan *plan, const char *folder, const char *glob, const char *const *except,
                               tsr_err *err)
{
    const tsr_checkpoint *const source = plan->sources[0];
    for (size_t i = 0; i < source->n_side_files; i++) {
        const char *const name = tsr_checkpoint_side_file(source, i).name;
        if (!tsr_glob_match(glob, name) || is_listed(name, except))
            continue;
        /* The block file belongs to the report, which is not copied either, unless a plan asks for it by name. */
        if (strcmp(name, TSR_BLOCKS_NAME) != 0 || strcmp(glob, TSR_BLOCKS_NAME) == 0)
            TSR_TRY(copy_side_file(plan, folder, i, err));
    }
    return TSR_OK;
}

tsr_status tsr_plan_files_beside(tsr_plan *plan, const char *const *except, tsr_err *err)
{
    const tsr_checkpoint *const source = plan->sources[0];
    tsr_text left_out = {0};
    tsr_status status = TSR_OK;
    for (size_t i = 0; i < source->n_side_files && status == TSR_OK; i++) {
        const char *const name = tsr_checkpoint_side_file(source, i).name;
        if (tsr_listing_is_other_weights(name))
            tsr_text_printf(&left_out, "%s%s", left_out.size == 0 ? "" : ", ", name);
        else if (!is_listed(name, except) && strcmp(name, TSR_BLOCKS_NAME) != 0)
            status = copy_side_file(plan, "", i, err);
    }
    if (status == TSR_OK && left_out.size > 0)
        status = tsr_text_status(&left_out, err);
    if (status == TSR_OK && left_out.size > 0)
        status =
            tsr_plan_warn(plan, err, "not copied, because they may hold the weights of the source: %s", left_out.data);
    tsr_text_free(&left_out);
    return status;
}

const tsr_plan_text *tsr_plan_config(const tsr_plan *plan)
{
    for (size_t i = 0; i < plan->n_texts; i++) {
        if (strcmp(plan->texts[i].name, TSR_CONFIG_NAME) == 0)
            return &plan->texts[i];
    }
    return NULL;
}

tsr_status tsr_plan_text_file(tsr_plan *plan, const char *folder, const char *name, const char *data, size_t size,
                              tsr_err *err)
{
    const tsr_plan_text text = {.name = tsr_arena_printf(&plan->arena, "%s%s", folder, name),
                                .data = tsr_arena_dup(&plan->arena, data, size),
                                .size = size};
    if (text.name == NULL || text.data == NULL ||
        !tsr_grow(&plan->texts, plan->n_texts, &plan->texts_capacity, sizeof *plan->texts))
        return tsr_out_of_memory(err, "while planning");
    plan->texts[plan->n_texts++] = text;
    return TSR_OK;
}

tsr_status tsr_plan_take_text(tsr_plan *plan, const char *folder, const char *name, tsr_text *text, tsr_status status,
                              tsr_err *err)
{
    if (status == TSR_OK)
        status = tsr_text_status(text, err);
    if (status == TSR_OK)
        status = tsr_plan_text_file(plan, folder, name, text->data, text->size, err);
    tsr_text_free(text);
    return status;
}

tsr_status tsr_plan_weigh(tsr_plan *plan, const tsr_tensor *weight, tsr_column_importance *importance, tsr_err *err)
{
    *importance = (tsr_column_importance){.entry = NULL};
    if (plan->importance == NULL)
        return TSR_OK;
    TSR_TRY(tsr_importance_find(plan->importance, weight, importance, err));
    const bool found = tsr_importance_has(importance, weight);
    plan->n_weighted += found;
    plan->n_unweighted += !found;
    if (!found && plan->first_unweighted == NULL)
        plan->first_unweighted = weight->name;
    return TSR_OK;
}

tsr_status tsr_plan_calibrate(tsr_plan *plan, const tsr_tensor *weight, const tsr_column_importance *importance,
                              tsr_factor_cache **factors, tsr_err *err)
{
    *factors = NULL;
    if (plan->importance == NULL || !plan->importance->gptq)
        return TSR_OK;
    if (importance->products == NULL) {
        plan->n_rounded++;
        plan->first_rounded = plan->first_rounded == NULL ? weight->name : plan->first_rounded;
        return TSR_OK;
    }
    if (plan->factors == NULL)
        plan->factors = tsr_factor_cache_new();
    if (plan->factors == NULL)
        return tsr_out_of_memory(err, "while planning");
    const size_t cols = (size_t)importance->products->cols;
    const uint64_t bytes = (TSR_FACTORS - 1) * tsr_hessian_factor_bytes(cols) + tsr_hessian_factor_work_bytes(cols);
    plan->factor_bytes = bytes > plan->factor_bytes ? bytes : plan->factor_bytes;
    plan->n_calibrated++;
    *factors = plan->factors;
    return TSR_OK;
}

/* Warns about weights without products. TSR_E_MISMATCH: no weight has any. */
static tsr_status warn_of_rounded(tsr_plan *plan, tsr_err *err)
{
    if (plan->n_rounded == 0)
        return TSR_OK;
    if (plan->n_calibrated == 0)
        return tsr_fail(err, TSR_E_MISMATCH,
                        "%s: has " TSR_PRODUCTS_MEMBER
                        " for none of the %zu weights that --method gptq would quantize, "
                        "the first of which is '%s': the file belongs to another model",
                        plan->importance->path, plan->n_rounded, plan->first_rounded);
    return tsr_plan_warn(
        plan, err,
        "%s has no " TSR_PRODUCTS_MEMBER " for %zu of %zu weights, the first is '%s': they are rounded to "
        "nearest (rows without gptq_gain_db in " TSR_REPORT_NAME ")",
        plan->importance->path, plan->n_rounded, plan->n_calibrated + plan->n_rounded, plan->first_rounded);
}

tsr_status tsr_plan_warn_of_unweighted(tsr_plan *plan, tsr_err *err)
{
    TSR_TRY(warn_of_rounded(plan, err));
    if (plan->n_unweighted == 0)
        return TSR_OK;
    if (plan->n_weighted == 0)
        return tsr_fail(err, TSR_E_MISMATCH,
                        "%s: has data for none of the %zu weights that are quantized, the first of which is '%s': the "
                        "file belongs to another model",
                        plan->importance->path, plan->n_unweighted, plan->first_unweighted);
    return tsr_plan_warn(plan, err,
                         "%s has no data for %zu of %zu weights, the first is '%s': their errors are not weighted "
                         "(rows without weighted_sqnr_db in " TSR_REPORT_NAME ")",
                         plan->importance->path, plan->n_unweighted, plan->n_weighted + plan->n_unweighted,
                         plan->first_unweighted);
}

tsr_status tsr_plan_take_command(tsr_plan *plan, tsr_text *text, tsr_err *err)
{
    if (plan->importance != NULL)
        tsr_text_printf(text, " --importance %016llx%s", U64(plan->importance->hash),
                        plan->importance->gptq ? " --method gptq" : "");
    tsr_status status = tsr_text_status(text, err);
    if (status == TSR_OK && (plan->command = tsr_arena_dup(&plan->arena, text->data, text->size)) == NULL)
        status = tsr_out_of_memory(err, "while planning");
    tsr_text_free(text);
    return status;
}

void tsr_plan_free(tsr_plan *plan)
{
    free(plan->steps);
    free(plan->files);
    free(plan->notes);
    free(plan->texts);
    free(plan->warnings);
    free(plan->amaxes);
    tsr_factor_cache_free(plan->factors);
    tsr_arena_free(&plan->arena);
    *plan = (tsr_plan){0};
}

tsr_status tsr_plan_ended(tsr_plan *plan, tsr_status status)
{
    if (status != TSR_OK)
        tsr_plan_free(plan);
    return status;
}
