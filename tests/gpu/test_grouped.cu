/* Owns the check of the grouped block-FP8 products on a GPU: every kernel and tile in both layouts, over random group
 * sizes with empty groups and single rows among them, against the dense kernel for each group alone, bit for bit
 * (test_gemm holds that one to FP64). Padding is NaN, results are poisoned, and rows of no group have to stay as they
 * were. For compute-sanitizer `test_grouped small` leaves out the large shapes. */
#include <string.h>
#include <string>

#include "kernels/cuda/block_fp8_grouped.h"
#include "tests/gpu/gpu_common.cuh"
#include "tests/gpu/verdicts.cuh"

static uint64_t seed = 20261122;
static tsr_cuda_device device;

/* Where the rows of every group are. */
struct layout {
    bool masked;
    int64_t m, room;
    std::vector<int32_t> rows;  /* number of rows of each group */
    std::vector<int64_t> first; /* first row of each group */
    std::vector<int32_t> group_of_row;
};

static layout lay_out(const std::vector<int32_t> &rows, bool masked, int64_t room)
{
    layout l = {masked, 0, room, rows, {}, {}};
    for (const int32_t count : rows) {
        l.first.push_back(l.m);
        l.m += masked ? room : up(count, 128);
    }
    l.group_of_row.assign((size_t)l.m, -1);
    for (size_t g = 0; g < rows.size(); ++g) {
        for (int32_t i = 0; i < rows[g]; ++i) {
            l.group_of_row[(size_t)(l.first[g] + i)] = (int32_t)g;
        }
    }
    return l;
}

/* NaN for the codes and scales of rows of no group. */
__global__ void poison_padding(uint8_t *a, float *scale_a, const int32_t *group_of_row, int64_t m, int64_t ld,
                               int64_t k, int64_t tiles, int64_t ld_scale)
{
    for (int64_t i = blockIdx.x; i < m; i += gridDim.x) {
        for (int64_t x = threadIdx.x; group_of_row[i] < 0 && x < k; x += blockDim.x) {
            a[i * ld + x] = 0x7F;
        }
        for (int64_t t = threadIdx.x; group_of_row[i] < 0 && t < tiles; t += blockDim.x) {
            scale_a[t * ld_scale + i] = __int_as_float(0x7FC00000);
        }
    }
}

__global__ void differing(const uint8_t *x, const uint8_t *y, int64_t bytes, unsigned long long *count)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < bytes; i += (int64_t)gridDim.x * blockDim.x) {
        if (x[i] != y[i]) {
            atomicAdd(count, 1ull);
        }
    }
}

/* The operands of one case on the device. */
struct operands {
    layout l;
    int64_t n, k, ld, ldd, ld_scale, tiles, blocks;
    uint8_t *a, *w, *d, *expected;
    float *scale_a, *scale_w;
    int32_t *group_of_row, *rows_of_group;
    unsigned long long *count;
};

static operands make(const layout &l, int64_t n, int64_t k, int64_t pad)
{
    operands o = {l, n, k, up(k, 16) + 16 * pad, n + 3 * pad, up(l.m, 4) + 4 * pad, (k + 127) / 128, (n + 127) / 128};
    const int64_t groups = (int64_t)l.rows.size();
    o.a = device_array<uint8_t>(l.m * o.ld), o.w = device_array<uint8_t>(groups * n * o.ld);
    o.scale_a = device_array<float>(o.tiles * o.ld_scale);
    o.scale_w = device_array<float>(groups * o.blocks * o.tiles);
    o.d = device_array<uint8_t>(l.m * o.ldd * 4), o.expected = device_array<uint8_t>(l.m * o.ldd * 4);
    o.group_of_row = upload(l.group_of_row), o.rows_of_group = upload(l.rows);
    o.count = device_array<unsigned long long>(1);
    random_codes<<<1024, 256>>>(o.a, l.m * o.ld, seed += 1ull << 40);
    random_codes<<<1024, 256>>>(o.w, groups * n * o.ld, seed += 1ull << 40);
    random_floats<<<256, 256>>>(o.scale_a, o.tiles * o.ld_scale, 1e-4f, 2e-3f, seed += 1ull << 40);
    random_floats<<<256, 256>>>(o.scale_w, groups * o.blocks * o.tiles, 1e-4f, 2e-3f, seed += 1ull << 40);
    poison_padding<<<256, 128>>>(o.a, o.scale_a, o.group_of_row, l.m, o.ld, k, o.tiles, o.ld_scale);
    CHECK(cudaGetLastError());
    return o;
}

static void release(const operands &o)
{
    void *const all[] = {o.a, o.w, o.scale_a, o.scale_w, o.d, o.expected, o.group_of_row, o.rows_of_group, o.count};
    for (void *p : all) {
        CHECK(cudaFree(p));
    }
}

static tsr_block_fp8_gemm whole(const operands &o, tsr_gemm_out out, uint8_t *d)
{
    tsr_block_fp8_gemm g = {};
    g.a = o.a, g.w = o.w, g.scale_a = o.scale_a, g.scale_w = o.scale_w, g.d = d;
    g.m = o.l.m, g.n = o.n, g.k = o.k, g.lda = g.ldw = o.ld, g.ldd = o.ldd, g.ld_scale_a = o.ld_scale, g.out = out;
    return g;
}

/* Each group by the dense kernel, into o.expected. A group's scales may begin anywhere, and the fast kernel wants them
 * on 16 bytes: they are copied. */
static void expect(const operands &o, tsr_gemm_out out, tsr_gemm_kind kind)
{
    const int size = out == TSR_GEMM_F32 ? 4 : 2;
    tsr_err err;
    CHECK(cudaMemset(o.expected, 0xFF, o.l.m * o.ldd * size));
    for (size_t g = 0; g < o.l.rows.size(); ++g) {
        const int64_t rows = o.l.rows[g], first = o.l.first[g], ld_scale = up(rows, 4);
        if (rows == 0) {
            continue;
        }
        float *const scales = device_array<float>(o.tiles * ld_scale);
        CHECK(cudaMemcpy2D(scales, ld_scale * 4, o.scale_a + first, o.ld_scale * 4, rows * 4, o.tiles,
                           cudaMemcpyDeviceToDevice));
        tsr_block_fp8_gemm dense = whole(o, out, o.expected + first * o.ldd * size);
        dense.a += first * o.ld, dense.w += (int64_t)g * o.n * o.ld;
        dense.scale_a = scales, dense.ld_scale_a = ld_scale;
        dense.scale_w += (int64_t)g * o.blocks * o.tiles, dense.m = rows;
        dense.config = kind == TSR_GEMM_PLAIN ? tsr_gemm_config{TSR_GEMM_PLAIN, 0, 0, 0}
                                              : tsr_gemm_config{TSR_GEMM_WIDE, 128, 128, 2};
        CHECK_TSR(tsr_cuda_block_fp8_gemm(&dense, 0, &err), err);
        CHECK(cudaFree(scales));
    }
}

static unsigned long long difference(const operands &o, int size)
{
    unsigned long long found;
    CHECK(cudaMemset(o.count, 0, sizeof found));
    differing<<<1024, 256>>>(o.d, o.expected, o.l.m * o.ldd * size, o.count);
    CHECK(cudaMemcpy(&found, o.count, sizeof found, cudaMemcpyDeviceToHost));
    return found;
}

/* `configs` ends with TSR_GEMM_AUTO, which is checked too. */
static void check(const operands &o, const tsr_gemm_config *configs)
{
    for (int out = TSR_GEMM_BF16; out <= TSR_GEMM_F32; ++out) {
        tsr_gemm_kind expected = TSR_GEMM_AUTO;
        for (const tsr_gemm_config *config = configs;; ++config) {
            const int size = out == TSR_GEMM_F32 ? 4 : 2;
            tsr_err err;
            if (o.l.masked || config->kind != TSR_GEMM_FEW) {
                tsr_block_fp8_grouped grouped = {whole(o, (tsr_gemm_out)out, o.d), (int64_t)o.l.rows.size()};
                grouped.group_of_row = o.l.masked ? NULL : o.group_of_row;
                grouped.rows_of_group = o.l.masked ? o.rows_of_group : NULL;
                grouped.gemm.config = *config;
                const tsr_gemm_kind chosen = config->kind == TSR_GEMM_AUTO
                                                 ? tsr_cuda_block_fp8_grouped_choose(&grouped, &device).kind
                                                 : config->kind;
                const tsr_gemm_kind kind = chosen == TSR_GEMM_PLAIN ? TSR_GEMM_PLAIN : TSR_GEMM_WIDE;
                if (kind != expected) {
                    expect(o, (tsr_gemm_out)out, kind);
                    expected = kind;
                }
                CHECK(cudaMemset(o.d, 0xFF, o.l.m * o.ldd * size));
                CHECK_TSR(tsr_cuda_block_fp8_grouped(&grouped, 0, &err), err);
                const unsigned long long wrong = difference(o, size);
                const std::string what = "grouped " + std::string(o.l.masked ? "masked" : "contiguous") + ", " +
                                         std::to_string(o.l.rows.size()) + " groups, m " + std::to_string(o.l.m) +
                                         ", n " + std::to_string(o.n) + ", k " + std::to_string(o.k) + ", kind " +
                                         std::to_string((int)config->kind) + ", tile " +
                                         std::to_string(config->tokens) + " x " + std::to_string(config->rows) +
                                         ", out " + std::to_string(out);
                verdict(wrong == 0, what.c_str(), (std::to_string(wrong) + " bytes differ").c_str());
            }
            if (config->kind == TSR_GEMM_AUTO) {
                break;
            }
        }
    }
}

/* Random sizes up to `most`; of each dozen groups one is empty, one has one row and one has all that fit. */
static std::vector<int32_t> random_rows(int groups, int most)
{
    std::vector<int32_t> rows;
    for (int g = 0; g < groups; ++g) {
        const uint64_t r = mix(seed += 1ull << 40);
        const int kind = (int)(r >> 40) % 12;
        rows.push_back(kind == 0 ? 0 : kind == 1 ? 1 : kind == 2 ? most : (int32_t)(r % (uint64_t)(most + 1)));
    }
    return rows;
}

static const tsr_gemm_config kEvery[] = {
    {TSR_GEMM_PLAIN, 0, 0, 0},    {TSR_GEMM_FEW, 16, 64, 1}, {TSR_GEMM_FEW, 16, 128, 1}, {TSR_GEMM_FEW, 32, 64, 1},
    {TSR_GEMM_FEW, 32, 128, 1},   {TSR_GEMM_FEW, 64, 64, 1}, {TSR_GEMM_FEW, 64, 128, 1}, {TSR_GEMM_WIDE, 128, 128, 2},
    {TSR_GEMM_WIDE, 128, 192, 2}, {TSR_GEMM_AUTO, 0, 0, 0}};
static const tsr_gemm_config *const kAutomatic = &kEvery[sizeof kEvery / sizeof *kEvery - 1];

static void check_both(const std::vector<int32_t> &rows, int64_t room, int64_t n, int64_t k, int64_t pad,
                       const tsr_gemm_config *configs)
{
    for (const bool masked : {true, false}) {
        const layout l = lay_out(rows, masked, room);
        if (l.m > 0) {
            const operands o = make(l, n, k, pad);
            check(o, configs);
            release(o);
        }
    }
}

/* Arguments that are of no product, each with a word of its refusal. */
static void check_refusals()
{
    const operands o = make(lay_out({3, 5}, true, 8), 64, 128, 0);
    tsr_block_fp8_grouped good = {whole(o, TSR_GEMM_BF16, o.d), 2};
    good.rows_of_group = o.rows_of_group;
    tsr_block_fp8_grouped neither = good, both = good, uneven = good, none = good, tile = good, odd = good;
    neither.rows_of_group = NULL;
    both.group_of_row = o.group_of_row;
    uneven.groups = 3;
    none.groups = 0;
    tile.gemm.config = {TSR_GEMM_WIDE, 256, 128, 2};
    odd.gemm.m = 12, odd.gemm.ld_scale_a = 12, odd.gemm.config = {TSR_GEMM_FEW, 16, 64, 1};
    const struct {
        const tsr_block_fp8_grouped *args;
        tsr_status status;
        const char *word;
    } cases[] = {{&neither, TSR_E_SHAPE, "exactly one"},  {&both, TSR_E_SHAPE, "exactly one"},
                 {&uneven, TSR_E_SHAPE, "evenly"},        {&none, TSR_E_SHAPE, "0 groups"},
                 {&tile, TSR_E_UNSUPPORTED, "256 x 128"}, {&odd, TSR_E_UNSUPPORTED, "multiple of 4"}};
    for (const auto &c : cases) {
        tsr_err err = {};
        const tsr_status status = tsr_cuda_block_fp8_grouped(c.args, 0, &err);
        verdict(status == c.status && strstr(err.msg, c.word) != NULL, "refusal", err.msg);
    }
    release(o);
}

int main(int argc, char **argv)
{
    device = need_hopper();
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    check_refusals();
    check_both({1}, 4, 1, 1, 0, kEvery);
    check_both({0, 0, 3, 0}, 8, 130, 144, 1, kEvery);
    check_both({200, 0, 1, 129, 128, 0, 64, 65, 300, 16, 0}, 300, 257, 640, 0, kEvery);
    check_both({31, 17, 0, 90, 1}, 132, 576, 1040, 1, kEvery);
    check_both(random_rows(70, 37), 40, 320, 256, 0, kEvery);
    check_both(random_rows(9, 37), 37, 320, 256, 0, kAutomatic); /* scales of a group that begin anywhere */
    check_both(random_rows(1030, 3), 4, 64, 128, 0, kAutomatic); /* more groups than the fast kernels take */
    if (!small) {
        check_both(random_rows(33, 32), 128, 1536, 4112, 0, kEvery);
        check_both(random_rows(12, 700), 776, 2112, 1536, 0, kEvery);
        check_both(random_rows(8, 5000), 5000, 4096, 2048, 0, kAutomatic);
        check_both(std::vector<int32_t>(4, 140000), 140000, 130, 256, 0, kAutomatic); /* more than one launch takes */
    }
    return conclude();
}
