/* Tests block statistics: resolution of coded numbers, round trips of records, and rejected files. */
#include "formats/blocks/block_file.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

static float there_and_back(float x, float largest)
{
    const float both[] = {x, largest};
    uint8_t codes[2];
    const uint16_t base = tsr_block_encode(both, 2, codes);
    return tsr_block_decode(base, codes[0]);
}

Test(block_codes, numbers_come_back_within_a_thirty_second)
{
    for (int exponent = -126; exponent < 128; exponent++) {
        for (int i = 0; i < 64; i++) {
            const float x = ldexpf(1 + (float)i / 64 + 1e-4f, exponent);
            const float y = there_and_back(x, exponent < 120 ? ldexpf(1, exponent + 8) : x);
            cr_assert(isfinite(y) && fabsf(y - x) <= x / 32, "%a became %a", (double)x, (double)y);
        }
    }
}

Test(block_codes, every_class_is_told_from_the_others)
{
    const float x[] = {0, 0x1p-149f, 1e-30f, 1, 0x1.FFFFFEp127f, INFINITY, NAN};
    uint8_t codes[7];
    const uint16_t base = tsr_block_encode(x, 7, codes);
    cr_assert(codes[0] == TSR_BLOCK_ZERO && codes[1] == TSR_BLOCK_LOW && codes[2] == TSR_BLOCK_LOW);
    cr_assert(codes[3] == TSR_BLOCK_LOW && codes[4] == TSR_BLOCK_TOP && codes[5] == TSR_BLOCK_INF &&
              codes[6] == TSR_BLOCK_NAN);
    cr_assert_eq(base, TSR_BLOCK_LAST_STEP - TSR_BLOCK_TOP);
    cr_assert(tsr_block_decode(base, codes[0]) == 0 && isinf(tsr_block_decode(base, codes[5])) &&
              isnan(tsr_block_decode(base, codes[6])));
    cr_assert(isfinite(tsr_block_decode(base, codes[4])));
    cr_assert_geq(tsr_block_decode(base, TSR_BLOCK_LOW), 1);
    const float tiny[] = {0, 0x1p-149f, 0x1p-140f};
    cr_assert_eq(tsr_block_encode(tiny, 3, codes), 0);
    cr_assert(codes[0] == TSR_BLOCK_ZERO && codes[1] > 0 && codes[2] > 0);
}

/* ---- maps ---- */

Test(block_map, folds_to_squares_and_keeps_matrices_apart_while_it_can)
{
    tsr_block_map m = {.shape = {3, 4096, 7168}, .block = {1, 1, 16}};
    cr_assert_eq(tsr_block_map_cells(&m), UINT64_C(3) * 4096 * 448);
    tsr_block_map_fold(&m, 3 * 32 * 56);
    cr_assert(m.fold[0] == 0 && m.fold[1] == 7 && m.fold[2] == 3, "%u %u %u", m.fold[0], m.fold[1], m.fold[2]);
    cr_assert_eq(tsr_block_map_cells(&m), 3 * 32 * 56);
    tsr_block_map_fold(&m, 3);
    cr_assert(m.fold[0] == 0 && tsr_block_map_cells(&m) == 3);
    tsr_block_map_fold(&m, 1);
    cr_assert(m.fold[0] == 2 && tsr_block_map_cells(&m) == 1);
    m = (tsr_block_map){.shape = {1, 1000, 1 << 20}, .block = {1, 1, 1 << 20}}; /* rows, of which each is a block */
    tsr_block_map_fold(&m, 300);
    cr_assert(m.fold[1] == 2 && m.fold[2] == 0 && tsr_block_map_cells(&m) == 250);
}

Test(block_map, what_is_no_map_is_found)
{
    const tsr_block_map good = {.shape = {1, 300, 640}, .block = {1, 128, 128}};
    cr_assert(tsr_block_map_check(&good));
    for (unsigned axis = 0; axis < TSR_BLOCK_AXES; axis++) {
        tsr_block_map m = good;
        m.shape[axis] = 0;
        cr_assert_not(tsr_block_map_check(&m));
        m = good;
        m.block[axis] = 0;
        cr_assert_not(tsr_block_map_check(&m));
        m = good;
        m.fold[axis] = 64;
        cr_assert_not(tsr_block_map_check(&m));
        m = good;
        m.shape[axis] = UINT64_C(1) << 60;
        cr_assert_not(tsr_block_map_check(&m));
    }
}

/* ---- records and files ---- */

enum { CELLS = 15 };

static tsr_block_record example(void)
{
    static uint8_t planes[TSR_BLOCK_PLANES][CELLS];
    tsr_block_record r = {.name = "model.up_proj.weight",
                          .name_size = 20,
                          .map = {.shape = {1, 300, 640}, .block = {1, 128, 128}},
                          .bins = TSR_BINS_E4M3,
                          .mean_rms = 0.02,
                          .base = {1700, 1600, 1800},
                          .counted_rows = 1,
                          .n_peaks = 2,
                          .peaks = {{.at = 191999, .x = 3, .y = 2.5f}, {.at = 0, .x = -1, .y = -1.25f}}};
    for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++) {
        for (unsigned i = 0; i < CELLS; i++)
            planes[p][i] = (uint8_t)(17 * i + p);
        r.planes[p] = planes[p];
    }
    r.counts[0] = 1;
    r.counts[126] = 127;
    r.counts[127] = 128;
    r.counts[255] = 190000;
    return r;
}

/* Sets *r to the example. Returns its bytes. */
static tsr_text written(tsr_block_record *r)
{
    tsr_text bytes = {0};
    *r = example();
    tsr_block_record_write(&bytes, r);
    return bytes;
}

Test(block_record, comes_back_whole)
{
    tsr_block_record r, back;
    tsr_text bytes = written(&r);
    cr_assert_leq(bytes.size, tsr_block_record_bound(r.name_size, CELLS, r.bins));
    cr_assert_eq(tsr_block_record_read((const uint8_t *)bytes.data, bytes.size, &back, NULL), TSR_OK);
    cr_assert(back.name_size == r.name_size && memcmp(back.name, r.name, r.name_size) == 0);
    cr_assert(memcmp(&back.map, &r.map, sizeof r.map) == 0 && back.bins == r.bins && back.mean_rms == r.mean_rms);
    cr_assert(memcmp(back.base, r.base, sizeof r.base) == 0 && memcmp(back.counts, r.counts, sizeof r.counts) == 0);
    for (unsigned p = 0; p < TSR_BLOCK_PLANES; p++)
        cr_assert_arr_eq(back.planes[p], r.planes[p], CELLS);
    cr_assert(back.n_peaks == 2 && back.peaks[0].at == 191999 && back.peaks[1].y == -1.25f && back.counted_rows == 1);
    tsr_text_free(&bytes);
}

/* No changed byte and no truncation causes an invalid access. An accepted input is a valid record. */
Test(block_record, survives_every_changed_byte_and_every_cut)
{
    tsr_block_record r, back;
    tsr_text bytes = written(&r);
    for (size_t size = 0; size < bytes.size; size++) {
        uint8_t *const cut = malloc(size + 1); /* so that a sanitizer sees reads behind it */
        memcpy(cut, bytes.data, size);
        tsr_err err = {0};
        cr_assert_eq(tsr_block_record_read(cut, size, &back, &err), TSR_E_FORMAT, "%zu", size);
        cr_assert(strstr(err.msg, "byte") != NULL);
        free(cut);
    }
    size_t refused = 0;
    for (size_t i = 0; i < bytes.size; i++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            bytes.data[i] ^= (char)(1 << bit);
            refused += tsr_block_record_read((const uint8_t *)bytes.data, bytes.size, &back, NULL) != TSR_OK;
            bytes.data[i] ^= (char)(1 << bit);
        }
    }
    cr_assert_gt(refused, 8 * 24); /* shapes, blocks and lengths at the least */
    tsr_text_free(&bytes);
}

static tsr_status read_all(const tsr_text *file, unsigned *found, tsr_err *err)
{
    tsr_blocks_reader reader;
    tsr_block_record r;
    bool more = true;
    *found = 0;
    tsr_status status = tsr_blocks_reader_begin(&reader, "x.zst", file->data, file->size, err);
    while (status == TSR_OK && more) {
        status = tsr_blocks_reader_next(&reader, &r, &more, err);
        *found += status == TSR_OK && more;
    }
    tsr_blocks_reader_end(&reader);
    return status;
}

Test(block_file, is_read_whole_or_refused_with_its_place)
{
    const tsr_block_record r = example();
    tsr_text record = {0}, file = {0};
    tsr_err err;
    unsigned found;
    tsr_block_record_write(&record, &r);
    cr_assert_eq(tsr_blocks_add_header(&file, 3, NULL), TSR_OK);
    for (unsigned i = 0; i < 3; i++)
        cr_assert_eq(tsr_blocks_add_frame(&file, record.data, record.size, NULL), TSR_OK);
    cr_assert(read_all(&file, &found, &err) == TSR_OK && found == 3, "%s", err.msg);
    const size_t whole = file.size;
    for (file.size = 0; file.size < whole; file.size++) {
        cr_assert_eq(read_all(&file, &found, &err), TSR_E_FORMAT, "cut to %zu", file.size);
        cr_assert(strstr(err.msg, "x.zst: damaged at byte") != NULL, "%s", err.msg);
    }
    for (size_t i = 0; i < whole; i++) {
        file.data[i] ^= 0x04;
        cr_assert_neq(read_all(&file, &found, &err), TSR_OK, "byte %zu", i);
        file.data[i] ^= 0x04;
    }
    tsr_text_append(&file, "x", 1);
    cr_assert_eq(read_all(&file, &found, &err), TSR_E_FORMAT);
    cr_assert(strstr(err.msg, "extra bytes after the last tensor") != NULL, "%s", err.msg);
    tsr_text_free(&file);
    tsr_text_free(&record);
}
