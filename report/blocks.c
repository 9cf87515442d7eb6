/* Finds and checks the blocks file of a result, and reduces its maps. */
#include "report/blocks.h"

#include "common/checked.h"
#include "common/file.h"
#include "formats/blocks/block_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *tsr_code_bins_name(tsr_code_bins bins)
{
    static const char *const kNames[] = {
        [TSR_BINS_E4M3] = "e4m3", [TSR_BINS_E2M1] = "e2m1", [TSR_BINS_INT8] = "int8", [TSR_BINS_INT4] = "int4"};
    return kNames[bins];
}

/* ---- places ---- */

static const char *place(const tsr_block_map *map, uint64_t row, uint64_t col, char text[96])
{
    if (map->shape[0] > 1)
        snprintf(text, 96, "[%llu, %llu, %llu]", U64(row / map->shape[1]), U64(row % map->shape[1]), U64(col));
    else
        snprintf(text, 96, "[%llu, %llu]", U64(row), U64(col));
    return text;
}

const char *tsr_element_place(const tsr_block_map *map, uint64_t at, char text[96])
{
    return place(map, at / map->shape[2], at % map->shape[2], text);
}

const char *tsr_cell_place(const tsr_shown_blocks *b, uint64_t row, uint64_t col, char text[96])
{
    return place(&b->record.map, row * b->map.cell_rows, col * b->map.cell_cols, text);
}

/* ---- maps ---- */

/* Returns the map of stacked matrices as one matrix of all their rows, if cells end where matrices end. Otherwise
 * returns the map of the first matrix, because its last cells would extend into the second. */
static tsr_block_map flattened(const tsr_block_map *map)
{
    const uint64_t tall = map->block[1] << map->fold[1];
    tsr_block_map flat = *map;
    if (map->shape[0] == 1)
        return flat;
    if (map->fold[0] == 0 && map->shape[1] % tall == 0) {
        flat.shape[1] = map->shape[0] * map->shape[1];
    } else { /* one or more rows of cells per matrix */
        flat.shape[1] = map->shape[0] * map->shape[1];
        flat.block[1] = map->shape[1];
        flat.fold[1] = map->fold[0];
    }
    flat.shape[0] = 1;
    flat.fold[0] = 0;
    return flat;
}

/* Raises the cells of `to` to the maximum with a plane of the record. */
static void fold_plane(const tsr_block_record *r, const uint8_t *from, const tsr_block_map *flat, tsr_shown_map *to,
                       const unsigned more[2], uint8_t *plane)
{
    const uint64_t cols = tsr_block_map_extent(&r->map, 2), rows = tsr_block_map_extent(&r->map, 1);
    const uint64_t all = tsr_block_map_extent(&r->map, 0) * rows;
    const uint64_t of_flat = tsr_block_map_extent(flat, 1), together = of_flat == all ? 1 : rows;
    for (uint64_t row = 0; row < all; row++) {
        const uint64_t into = (row / together) >> more[0];
        for (uint64_t col = 0; col < cols; col++) {
            uint8_t *const cell = &plane[into * to->cols + (col >> more[1])];
            const uint8_t code = from[row * cols + col];
            *cell = code > *cell ? code : *cell;
        }
    }
}

static bool make_map(tsr_shown_blocks *b, tsr_arena *arena)
{
    const tsr_block_map flat = flattened(&b->record.map);
    tsr_shown_map *const to = &b->map;
    unsigned more[2] = {0, 0};
    for (unsigned i = 0; i < 2; i++) {
        while ((tsr_block_map_extent(&flat, 1 + i) - 1) >> more[i] >= TSR_BLOCKS_SIDE)
            more[i]++;
    }
    to->rows = ((tsr_block_map_extent(&flat, 1) - 1) >> more[0]) + 1;
    to->cols = ((tsr_block_map_extent(&flat, 2) - 1) >> more[1]) + 1;
    to->cell_rows = tsr_min_u64(flat.shape[1], flat.block[1] << flat.fold[1] << more[0]);
    to->cell_cols = tsr_min_u64(flat.shape[2], flat.block[2] << flat.fold[2] << more[1]);
    b->folded = to->cell_rows > b->record.map.block[1] || to->cell_cols > b->record.map.block[2];
    for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++) {
        to->planes[p] = tsr_arena_alloc(arena, to->rows * to->cols);
        if (to->planes[p] == NULL)
            return false;
        fold_plane(&b->record, b->record.planes[p], &flat, to, more, to->planes[p]);
        b->record.planes[p] = NULL;
    }
    return true;
}

/* ---- reading ---- */

/* Selects the rows whose maps are kept: those with the largest loss by either measure. */
static size_t wanted(const tsr_overview *o, uint32_t rows[TSR_BLOCKS_SHOWN])
{
    size_t n = 0;
    for (size_t i = 0; i < o->n_blocks; i++)
        rows[n++] = o->blocks[i];
    for (size_t i = 0; i < o->n_lowest; i++) {
        bool there = false;
        for (size_t k = 0; k < o->n_blocks; k++)
            there = there || rows[k] == o->lowest[i];
        if (!there)
            rows[n++] = o->lowest[i];
    }
    return n;
}

static bool is_named(const tsr_result *result, uint32_t row, const tsr_block_record *r)
{
    const char *const name = result->rows[row].name;
    return strlen(name) == r->name_size && memcmp(name, r->name, r->name_size) == 0;
}

/* Reads all records, which detects any damage, and keeps the selected ones. */
static tsr_status keep_records(tsr_result *result, const tsr_overview *overview, tsr_blocks_reader *reader,
                               tsr_err *err)
{
    uint32_t rows[TSR_BLOCKS_SHOWN];
    const size_t n = wanted(overview, rows);
    struct tsr_result_blocks *const blocks = result->blocks;
    bool more = true;
    while (more) {
        tsr_block_record r;
        TSR_TRY(tsr_blocks_reader_next(reader, &r, &more, err));
        for (size_t i = 0; more && i < n && blocks->count < TSR_BLOCKS_SHOWN; i++) {
            if (!is_named(result, rows[i], &r))
                continue;
            tsr_shown_blocks *const b = &blocks->items[blocks->count++];
            *b = (tsr_shown_blocks){.row = rows[i], .record = r};
            if (!make_map(b, &result->arena))
                return tsr_out_of_memory(err, "for the maps of blocks");
            b->record.name = NULL;
            break;
        }
    }
    return TSR_OK;
}

static tsr_status begin(tsr_result *result, tsr_err *err)
{
    result->blocks = tsr_arena_alloc(&result->arena, sizeof *result->blocks);
    return result->blocks == NULL ? tsr_out_of_memory(err, NULL) : TSR_OK;
}

/* Frees the maps and records why none are shown. */
static void leave(tsr_result *result, const char *why)
{
    result->blocks->why_not = why == NULL ? "memory ran out" : why;
    result->blocks->count = 0;
}

tsr_status tsr_blocks_take(tsr_result *result, const tsr_overview *overview, const char *path, const void *data,
                           size_t size, tsr_err *err)
{
    tsr_blocks_reader reader;
    TSR_TRY(begin(result, err));
    tsr_status status = tsr_blocks_reader_begin(&reader, path, data, size, err);
    if (status == TSR_OK)
        status = keep_records(result, overview, &reader, err);
    tsr_blocks_reader_end(&reader);
    return status;
}

/* Returns the path of the blocks file, which is in the folder of the result. */
static const char *path_beside(const tsr_result *result, tsr_arena *arena)
{
    const char *const slash = strrchr(result->path, '/');
    const int folder = slash == NULL ? 0 : (int)(slash + 1 - result->path);
    return tsr_arena_printf(arena, "%.*s" TSR_BLOCKS_NAME, folder, result->path);
}

static tsr_status read_beside(tsr_result *result, const tsr_overview *overview, tsr_err *err)
{
    tsr_arena file = {0};
    const char *data, *const path = path_beside(result, &result->arena);
    size_t size;
    char digest[17];
    if (path == NULL)
        return tsr_out_of_memory(err, NULL);
    TSR_TRY(begin(result, err));
    bool exists;
    TSR_TRY(tsr_exists(path, &exists, err));
    if (!exists) {
        leave(result, tsr_arena_printf(&result->arena, "%s is missing: repeat the command that made the report", path));
        return TSR_OK;
    }
    tsr_status status = tsr_read_file(path, TSR_BLOCKS_MOST_BYTES, &file, &data, &size, err);
    if (status == TSR_OK)
        status = tsr_blocks_take(result, overview, path, data, size, err);
    if (status == TSR_OK) {
        snprintf(digest, sizeof digest, "%016llx", U64(XXH3_64bits(data, size)));
        if (result->said_blocks.digest == NULL || strcmp(digest, result->said_blocks.digest) != 0)
            leave(result,
                  tsr_arena_printf(&result->arena,
                                   "%s does not belong to this report, which names another file of blocks", path));
    }
    tsr_arena_free(&file);
    return status;
}

tsr_status tsr_report_read_blocks(tsr_report *report, tsr_err *err)
{
    for (size_t i = 0; i < report->count; i++) {
        if (report->results[i].said_blocks.there)
            TSR_TRY(read_beside(&report->results[i], &report->overviews[i], err));
    }
    return TSR_OK;
}

const tsr_shown_blocks *tsr_blocks_of(const tsr_result *result, uint32_t row)
{
    for (size_t i = 0; result->blocks != NULL && i < result->blocks->count; i++) {
        if (result->blocks->items[i].row == row)
            return &result->blocks->items[i];
    }
    return NULL;
}
