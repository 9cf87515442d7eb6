/* Tests reading of MXFP4, NVFP4, MXFP8, AWQ and GPTQ piece by piece, with weights packed by their definitions. */
#include "common/float_bits.h"
#include "verify/values/weight_reader.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MATRICES = 2, ROWS = 48, COLS = 96, GROUP = 32, GROUPS = COLS / GROUP, CELLS = ROWS * COLS };

static const double kE2m1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6};

static unsigned char codes[MATRICES][ROWS][COLS];
static double scales[MATRICES][ROWS][GROUPS], zeros[ROWS][GROUPS];
static uint32_t group_of[COLS];
static double expected[MATRICES][ROWS][COLS];

static uint32_t state;

static uint32_t next(void)
{
    state = state * 1664525 + 1013904223;
    return state >> 8;
}

static void fill(unsigned bits)
{
    state = 7;
    for (size_t i = 0; i < sizeof codes; i++)
        (&codes[0][0][0])[i] = (unsigned char)(next() & ((1u << bits) - 1));
    for (size_t c = 0; c < COLS; c++)
        group_of[c] = (uint32_t)(c / GROUP);
}

/* The parts of a checkpoint of one file, which is removed when it is closed. */
typedef struct fixture {
    char path[32];
    tsr_file file;
    tsr_checkpoint checkpoint;
    uint64_t end;
    tsr_tensor data, values, scale, zero, global, index;
    tsr_weight weight;
} fixture;

static void open_fixture(fixture *f)
{
    memset(f, 0, sizeof *f);
    memcpy(f->path, "/tmp/tessera-test-XXXXXX", 25);
    f->file = (tsr_file){.path = f->path, .fd = mkstemp(f->path)};
    f->checkpoint = (tsr_checkpoint){.files = &f->file, .n_files = 1};
    f->end = 5;
    cr_assert_geq(f->file.fd, 0);
    unlink(f->path);
}

static void put(fixture *f, tsr_tensor *t, tsr_dtype dtype, const void *bytes, size_t size, uint64_t elements)
{
    *t = (tsr_tensor){
        .name = "w", .dtype = (uint8_t)dtype, .rank = 1, .shape = {elements}, .offset = f->end, .bytes = size};
    cr_assert_eq(pwrite(f->file.fd, bytes, size, (off_t)f->end), (ssize_t)size);
    f->end += size;
}

/* Sets properties that all weights share. The coding and its own properties follow. */
static void describe(fixture *f, uint64_t matrices, bool transposed)
{
    f->values = (tsr_tensor){.name = "values",
                             .dtype = f->data.dtype,
                             .rank = 3,
                             .shape = {matrices, transposed ? COLS : ROWS, transposed ? ROWS : COLS}};
    f->weight = (tsr_weight){.data = &f->data,
                             .values = &f->values,
                             .scale = &f->scale,
                             .bits = 4,
                             .matrices = matrices,
                             .rows = ROWS,
                             .cols = COLS,
                             .block.rows = 1,
                             .block.cols = GROUP,
                             .grid_rows = ROWS,
                             .grid_cols = GROUPS,
                             .transposed = transposed};
}

static double wanted(const tsr_weight *w, uint64_t matrix, uint64_t row, uint64_t col)
{
    return w->transposed ? expected[matrix][col][row] : expected[matrix][row][col];
}

/* Reads pieces that begin and end within bytes, words and groups, with the smallest memory for each. */
static void expect_pieces(fixture *f)
{
    const uint64_t height = f->weight.transposed ? COLS : ROWS, width = f->weight.transposed ? ROWS : COLS,
                   last = f->weight.matrices - 1;
    const tsr_piece pieces[] = {{0, 0, 0, height, width},  {last, 0, 0, height, width},
                                {last, 3, 5, 7, 9},        {0, 31, 31, 2, 2},
                                {last, 0, 1, 1, 1},        {0, 7, 0, 9, width},
                                {last, 0, 33, height, 15}, {0, height - 1, width - 1, 1, 1}};
    tsr_view view;
    tsr_weight_reader reader = {0};
    cr_assert_eq(tsr_view_init(&view, &f->checkpoint, &f->weight, NULL), TSR_OK);
    for (size_t k = 0; k < sizeof pieces / sizeof *pieces; k++) {
        const tsr_piece *const p = &pieces[k];
        double out[COLS];
        cr_assert_eq(tsr_weight_reader_load(&reader, &view, p, NULL), TSR_OK);
        for (uint64_t r = 0; r < p->rows; r++) {
            for (uint64_t from = 0; from < p->cols; from += 5) {
                tsr_weight_reader_row(&reader, r, from, (size_t)(p->cols - from), out);
                for (uint64_t c = from; c < p->cols; c++) {
                    const double want = wanted(&f->weight, p->matrix, p->row + r, p->col + c), got = out[c - from];
                    cr_assert(memcmp(&want, &got, sizeof got) == 0, "piece %zu, row %zu, column %zu: %a, not %a", k,
                              (size_t)r, (size_t)c, got, want);
                }
            }
        }
        const tsr_piece alone = *p;
        tsr_weight_reader fresh = {0};
        cr_assert_eq(tsr_weight_reader_load(&fresh, &view, &alone, NULL), TSR_OK);
        cr_assert(tsr_weight_reader_same(&fresh, &reader));
        const uint64_t held =
            fresh.bytes_capacity + fresh.codes_capacity + 24 * fresh.scales_capacity + 4 * fresh.groups_capacity;
        cr_assert_leq(held, tsr_weight_reader_memory(&view, p), "piece %zu", k);
        tsr_weight_reader_free(&fresh);
    }
    tsr_weight_reader_free(&reader);
    close(f->file.fd);
}

/* Two codes a byte, the even column in the low four bits. */
static void put_nibbles(fixture *f, uint64_t matrices)
{
    static unsigned char bytes[MATRICES * CELLS / 2];
    const unsigned char *const flat = &codes[0][0][0];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(flat[2 * i] | flat[2 * i + 1] << 4);
    put(f, &f->data, TSR_U8, bytes, matrices * CELLS / 2, matrices * CELLS / 2);
}

static void put_powers(fixture *f, uint64_t matrices)
{
    static unsigned char bytes[MATRICES * ROWS * GROUPS];
    double *const flat = &scales[0][0][0];
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (unsigned char)(i % 255); /* 2^-127, a subnormal of FP32, among them */
        flat[i] = ldexp(1, bytes[i] - 127);
    }
    put(f, &f->scale, TSR_U8, bytes, matrices * ROWS * GROUPS, matrices * ROWS * GROUPS);
}

static void expect_mxfp4(bool transposed)
{
    fixture f;
    open_fixture(&f);
    fill(4);
    put_nibbles(&f, MATRICES);
    put_powers(&f, MATRICES);
    describe(&f, MATRICES, transposed);
    f.weight.coding = TSR_CODED_E2M1;
    f.weight.scale_dtype = TSR_F8_E8M0;
    for (size_t i = 0; i < MATRICES * CELLS; i++)
        (&expected[0][0][0])[i] = kE2m1[(&codes[0][0][0])[i]] * (&scales[0][0][0])[i / GROUP];
    expect_pieces(&f);
}

Test(kinds, mxfp4)
{
    expect_mxfp4(false);
}

Test(kinds, mxfp4_of_gpt_oss)
{
    expect_mxfp4(true);
}

Test(kinds, mxfp8)
{
    fixture f;
    open_fixture(&f);
    fill(8);
    put(&f, &f.data, TSR_F8_E4M3, codes, sizeof codes, sizeof codes);
    put_powers(&f, MATRICES);
    describe(&f, MATRICES, false);
    f.weight.coding = TSR_CODED_E4M3;
    f.weight.bits = 8;
    f.weight.scale_dtype = TSR_F8_E8M0;
    for (size_t i = 0; i < MATRICES * CELLS; i++) {
        unsigned char *const code = &(&codes[0][0][0])[i];
        *code = (*code & 0x7F) == 0x7F ? 0x7E : *code; /* no NaN, which memcmp tells apart */
        (&expected[0][0][0])[i] = (double)tsr_e4m3_to_f32(*code) * (&scales[0][0][0])[i / GROUP];
    }
    cr_assert_eq(pwrite(f.file.fd, codes, sizeof codes, (off_t)f.data.offset), (ssize_t)sizeof codes);
    expect_pieces(&f);
}

/* The scale of a group is e4m3 over or times the global one, rounded to FP32; a global one for each matrix or for
 * all. */
static void expect_nvfp4(bool divides, size_t globals)
{
    static unsigned char bytes[MATRICES * ROWS * GROUPS];
    const float global[MATRICES] = {divides ? 3011.7f : 0.000331f, divides ? 77.0f : 0.0131f};
    fixture f;
    open_fixture(&f);
    fill(4);
    put_nibbles(&f, MATRICES);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(1 + i % 0x7E); /* 2^-9 .. 448 */
    put(&f, &f.scale, TSR_F8_E4M3, bytes, sizeof bytes, sizeof bytes);
    put(&f, &f.global, TSR_F32, global, globals * sizeof *global, globals);
    describe(&f, MATRICES, false);
    f.weight.coding = TSR_CODED_E2M1;
    f.weight.scale_dtype = TSR_F8_E4M3;
    f.weight.global_scale = &f.global;
    f.weight.global_divides = divides;
    for (size_t i = 0; i < MATRICES * CELLS; i++) {
        const float s = tsr_e4m3_to_f32(bytes[i / GROUP]), g = global[globals == 1 ? 0 : i / CELLS];
        const volatile float t = divides ? s / g : s * g;
        (&expected[0][0][0])[i] = kE2m1[(&codes[0][0][0])[i]] * (double)t;
    }
    expect_pieces(&f);
}

Test(kinds, nvfp4_of_compressed_tensors)
{
    expect_nvfp4(true, 1);
    expect_nvfp4(true, MATRICES);
}

Test(kinds, nvfp4_of_modelopt)
{
    expect_nvfp4(false, 1);
    expect_nvfp4(false, MATRICES);
}

/* ---- AWQ and GPTQ ---- */

static void put_f16_across(fixture *f)
{
    static uint16_t bits[GROUPS][ROWS];
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t g = 0; g < GROUPS; g++) {
            bits[g][r] = (uint16_t)(0x2000 + (r * GROUPS + g) * 7);
            scales[0][r][g] = (double)tsr_f32_from_f16(bits[g][r]);
        }
    }
    put(f, &f->scale, TSR_F16, bits, sizeof bits, GROUPS * ROWS);
}

static void expect_integers(fixture *f)
{
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t c = 0; c < COLS; c++)
            expected[0][r][c] = (codes[0][r][c] - zeros[r][group_of[c]]) * scales[0][r][group_of[c]];
    }
    expect_pieces(f);
}

Test(kinds, awq)
{
    static const unsigned kColumns[8] = {0, 2, 4, 6, 1, 3, 5, 7}; /* column of nibble k */
    static uint32_t words[COLS][ROWS / 8], zero_words[GROUPS][ROWS / 8];
    fixture f;
    open_fixture(&f);
    fill(4);
    for (size_t c = 0; c < COLS; c++) {
        for (size_t r = 0; r < ROWS; r++) {
            for (unsigned k = 0; k < 8; k++)
                words[c][r / 8] |= kColumns[k] == r % 8 ? (uint32_t)codes[0][r][c] << 4 * k : 0;
        }
    }
    for (size_t g = 0; g < GROUPS; g++) {
        for (size_t r = 0; r < ROWS; r++) {
            zeros[r][g] = next() & 15;
            for (unsigned k = 0; k < 8; k++)
                zero_words[g][r / 8] |= kColumns[k] == r % 8 ? (uint32_t)zeros[r][g] << 4 * k : 0;
        }
    }
    put(&f, &f.data, TSR_I32, words, sizeof words, COLS * ROWS / 8);
    put(&f, &f.zero, TSR_I32, zero_words, sizeof zero_words, GROUPS * ROWS / 8);
    put_f16_across(&f);
    describe(&f, 1, false);
    f.weight.coding = TSR_CODED_AWQ;
    f.weight.scale_dtype = TSR_F16;
    f.weight.zero_point = &f.zero;
    expect_integers(&f);
}

static void expect_gptq(unsigned bits, bool less_one, tsr_dtype index)
{
    const size_t per_word = 32 / bits;
    const uint32_t mask = (1u << bits) - 1;
    uint32_t *const words = calloc(CELLS / per_word, sizeof *words), *const zero_words = calloc(
                                                                         GROUPS * ROWS / per_word, sizeof *zero_words);
    int64_t wide[COLS];
    int32_t narrow[COLS];
    fixture f;
    open_fixture(&f);
    fill(bits);
    for (size_t c = 0; c < COLS; c++) {
        for (size_t r = 0; r < ROWS; r++)
            words[c / per_word * ROWS + r] |= (uint32_t)codes[0][r][c] << c % per_word * bits;
        if (index != TSR_BOOL)
            group_of[c] = (uint32_t)((c * 29 + c / 7) % GROUPS);
        wide[c] = narrow[c] = (int32_t)group_of[c];
    }
    for (size_t g = 0; g < GROUPS; g++) {
        for (size_t r = 0; r < ROWS; r++) {
            const uint32_t stored = r == 0 ? mask : next() & mask; /* the largest, which one more does not wrap */
            zeros[r][g] = stored + (less_one ? 1 : 0);
            zero_words[g * (ROWS / per_word) + r / per_word] |= stored << r % per_word * bits;
        }
    }
    put(&f, &f.data, TSR_I32, words, CELLS / per_word * 4, CELLS / per_word);
    put(&f, &f.zero, TSR_I32, zero_words, GROUPS * ROWS / per_word * 4, GROUPS * ROWS / per_word);
    put_f16_across(&f);
    put(&f, &f.index, index == TSR_I64 ? TSR_I64 : TSR_I32, index == TSR_I64 ? (void *)wide : (void *)narrow,
        index == TSR_I64 ? sizeof wide : sizeof narrow, COLS);
    describe(&f, 1, false);
    f.weight.coding = TSR_CODED_GPTQ;
    f.weight.bits = (uint8_t)bits;
    f.weight.scale_dtype = TSR_F16;
    f.weight.zero_point = &f.zero;
    f.weight.zeros_less_one = less_one;
    f.weight.group_index = index == TSR_BOOL ? NULL : &f.index;
    f.weight.reordered = index != TSR_BOOL;
    expect_integers(&f);
    free(words);
    free(zero_words);
}

Test(kinds, gptq)
{
    expect_gptq(4, true, TSR_BOOL);
    expect_gptq(4, false, TSR_BOOL);
    expect_gptq(8, true, TSR_BOOL);
}

Test(kinds, gptq_in_the_order_of_activations)
{
    expect_gptq(4, true, TSR_I32);
    expect_gptq(4, false, TSR_I64);
    expect_gptq(8, true, TSR_I32);
}

Test(kinds, a_group_that_is_not_there_is_refused)
{
    fixture f;
    tsr_view view;
    tsr_weight_reader reader = {0};
    tsr_err err = {0};
    int32_t index[COLS] = {0};
    index[40] = GROUPS;
    open_fixture(&f);
    put(&f, &f.data, TSR_I32, codes, CELLS / 2, CELLS / 8);
    put_f16_across(&f);
    put(&f, &f.index, TSR_I32, index, sizeof index, COLS);
    describe(&f, 1, false);
    f.weight.coding = TSR_CODED_GPTQ;
    f.weight.scale_dtype = TSR_F16;
    f.weight.group_index = &f.index;
    f.weight.reordered = true;
    cr_assert_eq(tsr_view_init(&view, &f.checkpoint, &f.weight, NULL), TSR_OK);
    cr_expect_eq(tsr_weight_reader_load(&reader, &view, &(tsr_piece){.rows = ROWS, .cols = COLS}, &err), TSR_E_FORMAT);
    cr_expect(strstr(err.msg, "column 40 has the group index 3") != NULL, "%s", err.msg);
    cr_expect_eq(tsr_weight_reader_load(&reader, &view, &(tsr_piece){.rows = ROWS, .cols = 40}, &err), TSR_OK);
    tsr_weight_reader_free(&reader);
    close(f.file.fd);
}
