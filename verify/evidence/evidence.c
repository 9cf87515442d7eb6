/* Growing lists of evidence. Texts are copied to their owner's arena. */
#include "verify/evidence/evidence.h"

#include "common/grow.h"

#include <stdlib.h>
#include <string.h>

const char *tsr_error_kind_name(tsr_error_kind kind)
{
    static const char *const kNames[] = {"quantization", "absorption", "kernel", "checkpoint"};
    return kNames[kind];
}

const char *tsr_phase_name(tsr_phase phase)
{
    static const char *const kNames[TSR_N_PHASES] = {"read", "quantize and decode", "oracle", "kernels", "judge"};
    return kNames[phase];
}

static bool copy(tsr_arena *arena, const char **text)
{
    if (*text == NULL)
        return true;
    *text = tsr_arena_dup(arena, *text, strlen(*text));
    return *text != NULL;
}

tsr_status tsr_evidence_add(tsr_evidence *e, const tsr_judgement *judgement, tsr_err *err)
{
    tsr_judgement j = *judgement;
    if (!copy(&e->arena, &j.subject) || !copy(&e->arena, &j.what) || !copy(&e->arena, &j.fault) ||
        !tsr_grow(&e->items, e->count, &e->capacity, sizeof j))
        return tsr_out_of_memory(err, "for results");
    e->items[e->count++] = j;
    e->failed += j.fault != NULL;
    return TSR_OK;
}

tsr_status tsr_evidence_skip(tsr_evidence *e, const char *subject, const char *why, tsr_err *err)
{
    tsr_skipped s = {subject, why};
    if (!copy(&e->arena, &s.subject) || !copy(&e->arena, &s.why) ||
        !tsr_grow(&e->skipped, e->n_skipped, &e->skipped_capacity, sizeof s))
        return tsr_out_of_memory(err, "for results");
    e->skipped[e->n_skipped++] = s;
    return TSR_OK;
}

tsr_status tsr_evidence_join(tsr_evidence *e, tsr_evidence *more, tsr_err *err)
{
    tsr_status status = TSR_OK;
    for (size_t i = 0; status == TSR_OK && i < more->count; i++)
        status = tsr_evidence_add(e, &more->items[i], err);
    for (size_t i = 0; status == TSR_OK && i < more->n_skipped; i++)
        status = tsr_evidence_skip(e, more->skipped[i].subject, more->skipped[i].why, err);
    for (size_t i = 0; i < TSR_N_PHASES; i++)
        e->phases[i] += more->phases[i];
    e->bytes_read += more->bytes_read;
    tsr_evidence_free(more);
    return status;
}

tsr_status tsr_evidence_require(const tsr_evidence *e, bool kernels, const char *path, tsr_err *err)
{
    size_t found = 0;
    for (size_t i = 0; i < e->count; i++)
        found += !kernels || e->items[i].kind == TSR_ERROR_KERNEL || e->items[i].fault != NULL;
    if (found > 0)
        return TSR_OK;
    const bool why = e->n_skipped > 0;
    return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: nothing could be judged%s%s%s%s", path, why ? "; skipped " : "",
                    why ? e->skipped[0].subject : "", why ? ": " : "", why ? e->skipped[0].why : "");
}

void tsr_evidence_free(tsr_evidence *e)
{
    free(e->items);
    free(e->skipped);
    tsr_arena_free(&e->arena);
    *e = (tsr_evidence){0};
}
