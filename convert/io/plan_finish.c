/* Ends planning: checks names, sums sizes, and computes a fingerprint of everything that the output depends on. */
#include "convert/plan/plan.h"

#include "convert/io/plan_reads.h"
#include "convert/plan/plan_names.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <string.h>

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
    const uint64_t place[] = {t->source, t->file, t->offset, t->bytes, t->dtype, t->rank};
    mix_text(hash, t->name);
    mix(hash, place, sizeof place);
    mix(hash, t->shape, t->rank * sizeof *t->shape);
}

static uint64_t fingerprint(const tsr_plan *plan)
{
    uint64_t hash = 0;
    mix_text(&hash, plan->command);
    for (size_t k = 0; k < plan->n_sources; k++)
        hash = tsr_checkpoint_files_fingerprint(plan->sources[k], hash);
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
    TSR_TRY(tsr_arena_status(&plan->arena, TSR_OK, err));
    TSR_TRY(tsr_plan_check_names(plan, err));
    TSR_TRY(tsr_plan_warn_of_unweighted(plan, err));
    plan->bytes_out = 0;
    TSR_TRY(tsr_plan_count_reads(plan, err));
    for (size_t i = 0; i < plan->n_files; i++)
        plan->bytes_out += plan->files[i].bytes;
    for (size_t i = 0; i < plan->n_texts; i++)
        plan->bytes_out += plan->texts[i].size;
    tsr_plan_fold_blocks(plan);
    plan->fingerprint = fingerprint(plan);
    return plan->n_steps == 0 ? tsr_fail(err, TSR_E_FORMAT, "%s: no tensor to convert", plan->sources[0]->path)
                              : TSR_OK;
}
