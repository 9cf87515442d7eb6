/* Compares paired tensors piece by piece, on threads and ranks. */
#include "verify/compare/compare.h"

#include "common/checked.h"
#include "common/parallel/work_queue.h"
#include "verify/compare/compare_groups.h"
#include "verify/compare/pairs.h"

#include <stdlib.h>
#include <string.h>

enum {
    PIECE_BYTES = 2 << 20, /* bytes of the wider side */
    CHUNK_TILES = 8,       /* tiles decoded at a time, so that the doubles of both sides fit the L1 cache */
    CHUNK = CHUNK_TILES * TSR_TILE,
    ACROSS_ROWS = 1024, /* rows of a piece if a side is stored column-major: both sides then read long runs */
};

/* Result of one piece. */
typedef struct partial {
    tsr_metrics metrics;
    double seconds;
    bool same;
} partial;

/* The division of a pair into pieces. */
typedef struct cutting {
    tsr_view view[2];
    tsr_piece size; /* size of a piece that is not at an edge */
    uint64_t pieces;
} cutting;

/* A pair whose pieces are being compared. */
typedef struct flight {
    uint64_t pieces, left;
    partial partials[]; /* [pieces]: added in order once all are complete */
} flight;

typedef struct run {
    const tsr_side *side[2];
    const tsr_compare_options *options;
    tsr_comparison *out;
    flight **flights; /* [count]; NULL if not in progress */
    size_t next_pair;
    uint64_t next_piece;
    tsr_claims claims; /* on pairs */
    bool *mine;        /* [count]: pairs that this rank compares */
    tsr_progress progress;
} run;

typedef struct worker {
    size_t pair; /* `cut` belongs to pair - 1; 0: to none yet */
    cutting cut;
    tsr_weight_reader reader[2];
    double x[CHUNK], y[CHUNK];
    tsr_group_values groups;
    tsr_tile tiles[CHUNK_TILES];
} worker;

tsr_status tsr_pair_view(tsr_view *view, const tsr_side *side, const tsr_pair *pair, unsigned which, tsr_err *err)
{
    TSR_TRY(tsr_view_init(view, side->checkpoint, which == 0 ? pair->a : pair->b, err));
    view->derived = pair->made[which] == NULL ? NULL : &pair->made[which]->derived;
    return TSR_OK;
}

static bool comparable(const tsr_pair *p)
{
    return p->state <= TSR_PAIR_DIFFERS;
}

/* ---- pieces ---- */

/* Divides both sides in the same way along tiles: whole rows if they are short enough, else TSR_TILE rows of a part. */
static tsr_status cut(const run *r, const tsr_pair *p, cutting *f, tsr_err *err)
{
    *f = (cutting){.pieces = 0};
    const bool stored = p->made[0] == NULL && p->made[1] == NULL;
    TSR_TRY(tsr_pair_view(&f->view[0], r->side[0], p, 0, err));
    TSR_TRY(tsr_pair_view(&f->view[1], r->side[1], p, 1, err));
    if (stored && p->a->scale == NULL && p->b->scale == NULL && f->view[0].rows < TSR_TILE) {
        /* A stack of matrices with few rows, such as convolutions, is treated as one matrix of all rows. */
        for (size_t i = 0; i < 2; i++) {
            f->view[i].rows *= f->view[i].matrices;
            f->view[i].matrices = 1;
        }
    }
    const tsr_view *const v = &f->view[0];
    const uint64_t width = tsr_max_u64(tsr_view_width(v), tsr_view_width(&f->view[1]));
    if (v->matrices == 0 || v->rows == 0 || v->cols == 0)
        return TSR_OK;
    const bool across = tsr_view_lies_across(v) || tsr_view_lies_across(&f->view[1]);
    const uint64_t fitting = PIECE_BYTES / width,
                   whole_rows = across ? ACROSS_ROWS : fitting / v->cols / TSR_TILE * TSR_TILE;
    f->size.rows = tsr_min_u64(tsr_max_u64(whole_rows, TSR_TILE), v->rows);
    f->size.cols = tsr_min_u64(fitting / f->size.rows / TSR_TILE * TSR_TILE, v->cols);
    if (!across && whole_rows > 0)
        f->size.cols = v->cols;
    f->pieces = v->matrices * tsr_ceil_div(v->rows, f->size.rows) * tsr_ceil_div(v->cols, f->size.cols);
    return TSR_OK;
}

static tsr_piece piece_at(const cutting *f, uint64_t index)
{
    const tsr_view *const v = &f->view[0];
    const uint64_t across = tsr_ceil_div(v->cols, f->size.cols), down = tsr_ceil_div(v->rows, f->size.rows);
    tsr_piece p = {
        .matrix = index / across / down,
        .row = index / across % down * f->size.rows,
        .col = index % across * f->size.cols,
    };
    p.rows = tsr_min_u64(f->size.rows, v->rows - p.row);
    p.cols = tsr_min_u64(f->size.cols, v->cols - p.col);
    return p;
}

static void note_misrounded(const worker *w, const cutting *f, const tsr_piece *chunk, uint32_t row, tsr_metrics *out)
{
    const tsr_piece *const piece = &w->reader[1].piece;
    size_t first = 0;
    const uint64_t found = tsr_weight_reader_misrounded(
        &w->reader[1], chunk->row - piece->row + row, chunk->col - piece->col, (size_t)chunk->cols, w->x, w->y, &first);
    if (out->misrounded == 0 && found > 0)
        out->misrounded_at = tsr_flat_index(&f->view[1], chunk->matrix, chunk->row + row, chunk->col + first);
    out->misrounded += found;
}

/* Compares one chunk of a row of tiles. */
static void compare_chunk(worker *w, const cutting *f, const tsr_piece *chunk, bool same, tsr_metrics *out)
{
    const tsr_piece *const piece = &w->reader[0].piece;
    const size_t n = (size_t)chunk->cols, n_tiles = (size_t)tsr_ceil_div(n, TSR_TILE);
    const uint64_t col = chunk->col - piece->col;
    tsr_group_rule rule;
    const bool ruled = !same && tsr_weight_reader_rule(&w->reader[1], &rule), down = f->view[1].block.rows > 1;
    for (size_t t = 0; t < n_tiles; t++) {
        const tsr_tile_metrics place = {
            .matrix = chunk->matrix,
            .row = chunk->row,
            .col = chunk->col + t * TSR_TILE,
            .rows = (uint32_t)chunk->rows,
            .cols = (uint32_t)tsr_min_u64(TSR_TILE, n - t * TSR_TILE),
        };
        tsr_tile_begin(&w->tiles[t], &place, f->view[0].rows, f->view[0].cols);
    }
    for (uint32_t row = 0; row < chunk->rows; row++) {
        const uint64_t at = chunk->row - piece->row + row;
        tsr_weight_reader_row(&w->reader[0], at, col, n, w->x);
        if (!same)
            tsr_weight_reader_row(&w->reader[1], at, col, n, w->y);
        const double *const y = same ? w->x : w->y;
        if (!same && f->view[1].weight.scale != NULL)
            note_misrounded(w, f, chunk, row, out);
        if (ruled && !down)
            tsr_check_groups_along(&w->reader[1], chunk, row, w->x, w->y, &rule, out);
        for (size_t t = 0; t < n_tiles; t++)
            tsr_tile_row(&w->tiles[t], row, w->x + t * TSR_TILE, y + t * TSR_TILE);
    }
    for (size_t t = 0; t < n_tiles; t++)
        tsr_tile_end(&w->tiles[t], out);
    if (ruled && down)
        tsr_check_groups_down(w->reader, chunk, &rule, &w->groups, out);
}

static tsr_status compare_piece(worker *w, const tsr_piece *piece, partial *out, tsr_err *err)
{
    const cutting *const f = &w->cut;
    for (size_t i = 0; i < 2; i++)
        TSR_TRY(tsr_weight_reader_load(&w->reader[i], &f->view[i], piece, err));
    *out = (partial){.same = tsr_weight_reader_same(&w->reader[0], &w->reader[1])};
    for (uint64_t row = 0; row < piece->rows; row += TSR_TILE) {
        for (uint64_t col = 0; col < piece->cols; col += CHUNK) {
            const tsr_piece chunk = {
                .matrix = piece->matrix,
                .row = piece->row + row,
                .col = piece->col + col,
                .rows = tsr_min_u64(TSR_TILE, piece->rows - row),
                .cols = tsr_min_u64(CHUNK, piece->cols - col),
            };
            compare_chunk(w, f, &chunk, out->same, &out->metrics);
        }
    }
    return TSR_OK;
}

/* ---- taking and finishing pieces ---- */

static uint64_t stored_bytes(const tsr_weight *w)
{
    return w->data->bytes + (w->scale == NULL ? 0 : w->scale->bytes) +
           (w->zero_point == NULL ? 0 : w->zero_point->bytes);
}

static void end_flight(run *r, size_t index)
{
    flight *const f = r->flights[index];
    tsr_pair *const p = &r->out->pairs[index];
    bool same = p->a->data->dtype == p->b->data->dtype && p->a->coding == p->b->coding;
    for (uint64_t i = 0; i < f->pieces; i++) {
        tsr_metrics_add(&p->metrics, &f->partials[i].metrics);
        same = same && f->partials[i].same;
        p->seconds += f->partials[i].seconds;
    }
    /* 64-bit integers may differ even if their doubles do not. */
    const bool wide_integers = p->a->data->dtype >= TSR_I64 && p->b->data->dtype >= TSR_I64;
    p->state = same ? TSR_PAIR_IDENTICAL : p->metrics.differ > 0 || wide_integers ? TSR_PAIR_DIFFERS : TSR_PAIR_EQUAL;
    free(f);
    r->flights[index] = NULL;
    r->progress.items_done++;
}

static tsr_status begin_flight(run *r, size_t index, tsr_err *err)
{
    cutting c;
    TSR_TRY(cut(r, &r->out->pairs[index], &c, err));
    flight *const f = calloc(1, sizeof *f + c.pieces * sizeof *f->partials);
    if (f == NULL)
        return tsr_out_of_memory(err, NULL);
    f->pieces = f->left = c.pieces;
    r->flights[index] = f;
    return TSR_OK;
}

/* Counts a pair of another rank as done. */
static void skip_pair(run *r, const tsr_pair *p)
{
    r->progress.bytes_done += stored_bytes(p->a) + stored_bytes(p->b);
    r->progress.items_done++;
}

/* Finds the next pair that this rank compares, if there is one. */
static tsr_status find_pair(run *r, tsr_err *err)
{
    for (; r->next_pair < r->out->count; r->next_pair++) {
        const tsr_pair *const p = &r->out->pairs[r->next_pair];
        if (!comparable(p))
            continue;
        TSR_TRY(tsr_claims_take(&r->claims, r->next_pair, &r->mine[r->next_pair], err));
        if (r->mine[r->next_pair])
            break;
        skip_pair(r, p);
    }
    return TSR_OK;
}

/* Takes the next piece in order. */
static tsr_status take_piece(void *job, tsr_job_part *part, bool *taken, tsr_err *err)
{
    run *const r = job;
    while (!*taken) {
        TSR_TRY(find_pair(r, err));
        const size_t index = r->next_pair;
        if (index >= r->out->count)
            break;
        if (r->flights[index] == NULL)
            TSR_TRY(begin_flight(r, index, err));
        const uint64_t pieces = r->flights[index]->pieces;
        *part = (tsr_job_part){index, r->next_piece++};
        *taken = pieces > 0;
        if (!*taken) /* an empty tensor */
            end_flight(r, index);
        if (r->next_piece >= pieces) {
            r->next_pair++;
            r->next_piece = 0;
        }
    }
    return TSR_OK;
}

static void add_piece(void *job, const tsr_job_part *part, const void *result)
{
    run *const r = job;
    flight *const f = r->flights[part->item];
    const tsr_pair *const p = &r->out->pairs[part->item];
    const uint64_t all = stored_bytes(p->a) + stored_bytes(p->b);
    memcpy(&f->partials[part->number], result, sizeof *f->partials);
    /* Counts an equal share of the bytes for each piece; the last one gets the remainder. */
    r->progress.bytes_done += part->number + 1 < f->pieces ? all / f->pieces : all - all / f->pieces * (f->pieces - 1);
    if (--f->left == 0)
        end_flight(r, part->item);
}

static void *begin_worker(void *job)
{
    (void)job;
    return calloc(1, sizeof(worker));
}

static void end_worker(void *state)
{
    worker *const w = state;
    for (size_t i = 0; i < 2; i++)
        tsr_weight_reader_free(&w->reader[i]);
    free(w);
}

static tsr_status make_piece(void *job, void *state, const tsr_job_part *part, void *result, tsr_err *err)
{
    const run *const r = job;
    worker *const w = state;
    partial *const p = result;
    const double began = tsr_now();
    if (w->pair != part->item + 1) {
        w->pair = 0;
        TSR_TRY(cut(r, &r->out->pairs[part->item], &w->cut, err));
        w->pair = part->item + 1;
    }
    const tsr_piece at = piece_at(&w->cut, part->number);
    TSR_TRY(compare_piece(w, &at, p, err));
    p->seconds = tsr_now() - began;
    return TSR_OK;
}

/* ---- all pairs ---- */

/* Sums the bytes and computes how many threads the memory allows. */
static tsr_status choose_threads(run *r, unsigned *threads, tsr_err *err)
{
    uint64_t largest = 0;
    for (size_t i = 0; i < r->out->count; i++) {
        const tsr_pair *const p = &r->out->pairs[i];
        cutting f;
        if (!comparable(p))
            continue;
        TSR_TRY(cut(r, p, &f, err));
        largest = tsr_max_u64(largest, tsr_weight_reader_memory(&f.view[0], &f.size) +
                                           tsr_weight_reader_memory(&f.view[1], &f.size) + f.pieces * sizeof(partial));
        r->progress.bytes_total += stored_bytes(p->a) + stored_bytes(p->b);
        r->progress.items_total++;
    }
    const uint64_t fixed = tsr_checkpoint_memory(r->side[0]->checkpoint) +
                           tsr_checkpoint_memory(r->side[1]->checkpoint) +
                           r->out->count * (sizeof *r->out->pairs + sizeof *r->flights);
    return tsr_choose_threads(&r->options->run, fixed, largest + sizeof(worker) + sizeof(partial), threads, err);
}

/* Returns a number that is equal on ranks with the same two checkpoints and the same tensors. */
static uint64_t fingerprint(const run *r)
{
    uint64_t hash = 0;
    for (unsigned i = 0; i < 2; i++)
        hash = tsr_checkpoint_fingerprint(r->side[i]->checkpoint, hash);
    return hash + r->progress.bytes_total + r->progress.items_total + r->out->count;
}

/* The result of a pair, without pointers. */
typedef struct pair_result {
    tsr_metrics metrics;
    double seconds;
    uint32_t state, unused;
} pair_result;

static void store_results(const run *r, pair_result *results)
{
    for (size_t i = 0; i < r->out->count; i++) {
        const tsr_pair *const p = &r->out->pairs[i];
        if (r->mine[i])
            results[i] = (pair_result){.metrics = p->metrics, .seconds = p->seconds, .state = p->state};
    }
}

static void load_results(run *r, const pair_result *results)
{
    for (size_t i = 0; i < r->out->count; i++) {
        tsr_pair *const p = &r->out->pairs[i];
        if (!comparable(p))
            continue;
        p->metrics = results[i].metrics;
        p->seconds = results[i].seconds;
        p->state = (tsr_pair_state)results[i].state;
    }
}

/* Shares the results of all ranks, and the number of their threads. */
static tsr_status combine_results(run *r, tsr_err *err)
{
    tsr_ranks *const ranks = r->options->ranks;
    const unsigned n = tsr_ranks_count(ranks);
    pair_result *const results = calloc(r->out->count + 1, sizeof *results);
    uint32_t *const threads = calloc(n, sizeof *threads);
    tsr_status status = results == NULL || threads == NULL ? tsr_out_of_memory(err, "for the results") : TSR_OK;
    status = tsr_ranks_share_status(ranks, status, err);
    if (status == TSR_OK) {
        store_results(r, results);
        threads[tsr_ranks_mine(ranks)] = r->out->threads;
        status = tsr_ranks_combine(ranks, results, r->out->count * sizeof *results, err);
    }
    if (status == TSR_OK)
        status = tsr_ranks_combine(ranks, threads, n * sizeof *threads, err);
    if (status == TSR_OK) {
        load_results(r, results);
        r->out->threads = 0;
        for (unsigned k = 0; k < n; k++)
            r->out->threads += threads[k];
    }
    free(results);
    free(threads);
    return status;
}

static tsr_status compare_all(run *r, tsr_err *err)
{
    const tsr_work_queue job = {
        .job = r,
        .result_bytes = sizeof(partial),
        .options = &r->options->run,
        .progress = &r->progress,
        .take = take_piece,
        .add = add_piece,
        .begin = begin_worker,
        .end = end_worker,
        .make = make_piece,
    };
    tsr_ranks *const ranks = r->options->ranks;
    unsigned threads;
    tsr_status status = choose_threads(r, &threads, err);
    status = tsr_ranks_agree(ranks, status, ranks == NULL ? 0 : fingerprint(r), err);
    if (status != TSR_OK)
        return status;
    r->out->threads = threads;
    status = tsr_work_queue_run(&job, threads, err);
    if (status != TSR_OK)
        tsr_claims_stop(&r->claims);
    TSR_TRY(tsr_ranks_share_status(ranks, status, err));
    return ranks == NULL ? TSR_OK : combine_results(r, err);
}

tsr_status tsr_compare(const tsr_side *a, const tsr_side *b, const tsr_compare_options *options,
                       tsr_comparison *comparison, tsr_err *err)
{
    run r = {
        .side = {a, b},
        .options = options,
        .out = comparison,
        .claims = {.ranks = options->ranks},
        .progress = {.phase = "comparing", .items = "tensors"},
    };
    const double began = tsr_now();
    tsr_status status;
    *comparison = (tsr_comparison){0};
    TSR_GOTO(tsr_pairs_find(a, b, options, comparison, err));
    r.flights = calloc(comparison->count, sizeof *r.flights);
    r.mine = calloc(comparison->count, sizeof *r.mine);
    if (r.flights == NULL || r.mine == NULL) {
        status = tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu tensors", comparison->count);
        goto out;
    }
    status = compare_all(&r, err);
    comparison->bytes_read = r.progress.bytes_done;
    comparison->seconds = tsr_now() - began;
out:
    for (size_t i = 0; r.flights != NULL && i < comparison->count; i++)
        free(r.flights[i]);
    free(r.flights);
    free(r.mine);
    if (status != TSR_OK)
        tsr_comparison_free(comparison);
    return status;
}

void tsr_comparison_free(tsr_comparison *comparison)
{
    free(comparison->pairs);
    tsr_arena_free(&comparison->arena);
    *comparison = (tsr_comparison){0};
}
