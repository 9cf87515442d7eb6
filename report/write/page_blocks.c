/* Writes block maps as hexadecimal digits, 8 kB per plane of 64 x 64 cells. */
#include "report/write/page_rows.h"

#include "formats/json/json_write.h"
#include "report/blocks.h"

static void member_plane(tsr_text *t, const char *key, const tsr_shown_blocks *b, tsr_block_plane plane)
{
    static const char kDigits[] = "0123456789abcdef";
    tsr_text hex = {0};
    for (uint64_t i = 0; i < b->map.rows * b->map.cols; i++) {
        const uint8_t code = b->map.planes[plane][i];
        tsr_text_append(&hex, (char[]){kDigits[code >> 4], kDigits[code & 15]}, 2);
    }
    tsr_json_member_object(t, key, true);
    tsr_json_member_u64(t, "base", b->record.base[plane]);
    tsr_page_member(t, "codes", hex.data);
    tsr_json_end_object(t);
    t->failed = t->failed || hex.failed;
    tsr_text_free(&hex);
}

static void write_peaks(tsr_text *t, const tsr_block_record *r)
{
    char place[96];
    tsr_json_member_array(t, "peaks", true);
    for (unsigned i = 0; i < r->n_peaks; i++) {
        tsr_json_begin_array(t, true);
        tsr_page_string(t, tsr_element_place(&r->map, r->peaks[i].at, place));
        tsr_page_number(t, (double)r->peaks[i].x);
        tsr_page_number(t, (double)r->peaks[i].y);
        tsr_json_end_array(t);
    }
    tsr_json_end_array(t);
}

static void write_counts(tsr_text *t, const tsr_block_record *r)
{
    tsr_json_member_u64(t, "counted_rows", r->counted_rows);
    tsr_page_member(t, "kind", tsr_code_bins_name(r->bins));
    tsr_json_member_u64s(t, "counts", r->counts, tsr_code_bins_count(r->bins));
}

static void write_tensor(tsr_text *t, const tsr_shown_blocks *b, uint32_t row)
{
    const tsr_block_map *const m = &b->record.map;
    tsr_json_begin_object(t, true);
    tsr_json_member_u64(t, "row", row);
    tsr_json_member_u64(t, "rows", b->map.rows);
    tsr_json_member_u64(t, "cols", b->map.cols);
    tsr_json_member_u64(t, "cell_rows", b->map.cell_rows);
    tsr_json_member_u64(t, "cell_cols", b->map.cell_cols);
    tsr_json_member_u64(t, "matrices", m->shape[0]);
    tsr_json_member_u64(t, "matrix_rows", m->shape[1]);
    tsr_json_member_u64(t, "matrix_cols", m->shape[2]);
    tsr_json_member_u64(t, "block_rows", m->block[1]);
    tsr_json_member_u64(t, "block_cols", m->block[2]);
    tsr_json_member_bool(t, "folded", b->folded);
    member_plane(t, "error", b, TSR_BLOCK_ERROR);
    member_plane(t, "scale", b, TSR_BLOCK_SCALE);
    member_plane(t, "amax", b, TSR_BLOCK_AMAX);
    write_counts(t, &b->record);
    write_peaks(t, &b->record);
    tsr_json_end_object(t);
}

void tsr_page_blocks(tsr_text *t, const tsr_result *result, const tsr_page_choice *choice)
{
    const struct tsr_result_blocks *const blocks = result->blocks;
    tsr_json_key(t, "maps");
    if (blocks == NULL) {
        tsr_json_null(t);
        return;
    }
    tsr_json_begin_object(t, true);
    tsr_page_member(t, "why_not", blocks->why_not);
    tsr_json_member_array(t, "tensors", true);
    for (size_t i = 0; i < blocks->count; i++) {
        const uint32_t row = choice->at[blocks->items[i].row];
        if (row != TSR_NO_ROW)
            write_tensor(t, &blocks->items[i], row);
    }
    tsr_json_end_array(t);
    tsr_json_end_object(t);
}
