/* What is on stage, and what it reads and writes. */
#include "cli/stage.h"

#include <string.h>

static tsr_stage *on_stage;

void tsr_stage_set(tsr_stage *stage)
{
    on_stage = stage;
}

tsr_stage *tsr_stage_now(void)
{
    return on_stage;
}

tsr_status tsr_stage_note(const tsr_stage_path *path, tsr_err *err)
{
    tsr_stage *const s = on_stage;
    if (s == NULL || path->path == NULL || tsr_stage_owns(path->path))
        return TSR_OK;
    if (s->n_paths == s->capacity) {
        const size_t capacity = s->capacity == 0 ? 8 : 2 * s->capacity;
        tsr_stage_path *const paths = tsr_arena_alloc(&s->arena, capacity * sizeof *paths);
        if (paths == NULL)
            return tsr_out_of_memory(err, NULL);
        if (s->n_paths > 0)
            memcpy(paths, s->paths, s->n_paths * sizeof *paths);
        s->paths = paths;
        s->capacity = capacity;
    }
    tsr_stage_path *const mine = &s->paths[s->n_paths++];
    *mine = *path;
    mine->path = tsr_arena_dup(&s->arena, path->path, strlen(path->path));
    return mine->path == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
}

tsr_status tsr_stage_end_rehearsal(tsr_err *err)
{
    if (on_stage == NULL || !on_stage->rehearsal)
        return TSR_OK;
    on_stage->rehearsed = true;
    return tsr_fail(err, TSR_E_CANCELLED, "rehearsed");
}

bool tsr_stage_owns(const char *path)
{
    return on_stage != NULL && on_stage->json != NULL && strcmp(path, on_stage->json) == 0;
}

tsr_status tsr_stage_keep(const tsr_text *text, tsr_err *err)
{
    tsr_text_free(&on_stage->result);
    tsr_text_append(&on_stage->result, text->data, text->size);
    return tsr_text_status(&on_stage->result, err);
}

void tsr_stage_free(tsr_stage *stage)
{
    tsr_text_free(&stage->result);
    tsr_arena_free(&stage->arena);
    *stage = (tsr_stage){.progress_fd = -1};
}
