/* Searches the Hopper kernels for races: repeated launches compared bit for bit, and launches behind a slow producer.
 *
 *     test_races [LAUNCHES [WORDS...]]     subjects whose names contain all WORDS; 2000 launches of each by default
 *
 * "repeat" puts launches of one product back to back on a stream, over operands larger than L2 and in several waves of
 * CTAs. Each launch writes a poisoned buffer of its own, which is compared with the result of the first launch.
 *
 * "behind" launches the product as a programmatic dependent of a kernel that lets it begin at once, waits, and only
 * then writes the operands. Until then they are NaN. The producer also reads the result's buffer last, so that a
 * product that writes too early is found as well. */
#include "kernels/cuda/block_fp8_grouped.h"
#include "kernels/cuda/int8_gemm.h"
#include "kernels/cuda/prefill.h"
#include "kernels/cuda/weight_only_gemm.h"
#include "tests/gpu/races.cuh"

/* ---- block FP8 ---- */

struct fp8_operands {
    uint8_t *a, *w;
    float *scale_a, *scale_w;
    int64_t m, n, k, groups, tiles, ld_scale;
};

/* k is a multiple of 128; w has the rows of `groups` matrices of n. */
static fp8_operands make_fp8(int64_t m, int64_t n, int64_t k, int64_t groups)
{
    const int64_t tiles = k / 128, scales = groups * ((n + 127) / 128) * tiles, ld_scale = up(m, 4);
    const fp8_operands o = {device_array<uint8_t>(m * k),
                            device_array<uint8_t>(groups * n * k),
                            device_array<float>(tiles * ld_scale),
                            device_array<float>(scales),
                            m,
                            n,
                            k,
                            groups,
                            tiles,
                            ld_scale};
    random_codes<<<1024, 256>>>(o.a, m * k, seed += 1ull << 40);
    random_codes<<<1024, 256>>>(o.w, groups * n * k, seed += 1ull << 40);
    random_floats<<<256, 256>>>(o.scale_a, tiles * ld_scale, 1e-4f, 2e-3f, seed += 1ull << 40);
    random_floats<<<256, 256>>>(o.scale_w, scales, 1e-4f, 2e-3f, seed += 1ull << 40);
    CHECK(cudaGetLastError());
    return o;
}

static void release(const fp8_operands &o)
{
    void *const all[] = {o.a, o.w, o.scale_a, o.scale_w};
    for (void *p : all) {
        CHECK(cudaFree(p));
    }
}

static std::vector<operand> inputs_of(const fp8_operands &o)
{
    return {{o.a, NULL, (size_t)(o.m * o.k)},
            {o.w, NULL, (size_t)(o.groups * o.n * o.k)},
            {o.scale_a, NULL, (size_t)(o.tiles * o.ld_scale * 4)},
            {o.scale_w, NULL, (size_t)(o.groups * ((o.n + 127) / 128) * o.tiles * 4)}};
}

static tsr_block_fp8_gemm product_of(const fp8_operands &o, void *d)
{
    tsr_block_fp8_gemm g = {};
    g.a = o.a, g.w = o.w, g.scale_a = o.scale_a, g.scale_w = o.scale_w, g.d = d;
    g.m = o.m, g.n = o.n, g.k = o.k, g.lda = g.ldw = o.k, g.ldd = o.n, g.ld_scale_a = o.ld_scale;
    g.out = TSR_GEMM_BF16;
    return g;
}

static std::string tile_name(const tsr_gemm_config &config)
{
    static const char *const kKinds[] = {"auto", "plain", "few", "wide", "narrow", "mma"};
    return std::string(kKinds[config.kind]) + ", tile " + std::to_string(config.tokens) + " x " +
           std::to_string(config.rows);
}

static subject dense(const fp8_operands &o, const tsr_gemm_config &config)
{
    const std::string name = "dense " + tile_name(config) + ", cluster " + std::to_string(config.cluster);
    return {name, (size_t)(o.m * o.n * 2), [=](void *d) {
                tsr_err err;
                tsr_block_fp8_gemm g = product_of(o, d);
                g.config = config;
                CHECK_TSR(tsr_cuda_block_fp8_gemm(&g, 0, &err), err);
            }};
}

/* Every tile, with k or operands shared by a cluster and alone. */
static std::vector<tsr_gemm_config> dense_configs(tsr_gemm_kind kind)
{
    std::vector<tsr_gemm_config> all;
    if (kind == TSR_GEMM_NARROW) {
        for (int cluster = 1; cluster <= 3; cluster += 2) {
            all.push_back({kind, 64, 64, cluster});
            all.push_back({kind, 64, 128, cluster});
            all.push_back({kind, 128, 64, cluster});
            all.push_back({kind, 128, 128, cluster});
        }
    } else {
        for (int cluster = 1; cluster <= 2; ++cluster) {
            all.push_back({kind, 128, 128, cluster});
            all.push_back({kind, 128, 160, cluster});
            all.push_back({kind, 128, 192, cluster});
            all.push_back({kind, 256, 128, cluster});
        }
    }
    return all;
}

static void check_dense(void)
{
    const struct {
        tsr_gemm_kind kind;
        int64_t m;
    } kinds[] = {{TSR_GEMM_NARROW, 24}, {TSR_GEMM_NARROW, 200}, {TSR_GEMM_WIDE, 520}};
    for (const auto &of : kinds) {
        const fp8_operands large = make_fp8(of.m, 10240, 8192, 1), small = make_fp8(of.m, 640, 1024, 1);
        for (const tsr_gemm_config &config : dense_configs(of.kind)) {
            /* The tiles that split k are for a single wave. They get a tenth of the launches. */
            repeat(dense(large, config), config.cluster == 1 || of.kind == TSR_GEMM_WIDE ? launches : launches / 10);
            follow(dense(small, config), inputs_of(small));
        }
        repeat(dense(large, {TSR_GEMM_AUTO, 0, 0, 0}), launches);
        release(large);
        release(small);
    }
}

static subject grouped(const fp8_operands &o, const int32_t *rows_of_group, const int32_t *group_of_row,
                       const tsr_gemm_config &config)
{
    const std::string name =
        std::string("grouped ") + (rows_of_group != NULL ? "masked " : "contiguous ") + tile_name(config);
    return {name, (size_t)(o.m * o.n * 2), [=](void *d) {
                tsr_err err;
                tsr_block_fp8_grouped g = {product_of(o, d), o.groups, group_of_row, rows_of_group, 0};
                g.gemm.config = config;
                CHECK_TSR(tsr_cuda_block_fp8_grouped(&g, 0, &err), err);
            }};
}

/* `room` rows for each group; of one in four all are used, of the others some, of one in seven none. */
static void check_grouped(int64_t groups, int64_t room, int64_t n, int64_t k, bool behind)
{
    const fp8_operands o = make_fp8(groups * room, n, k, groups);
    std::vector<int32_t> rows, group_of_row;
    for (int64_t g = 0; g < groups; ++g) {
        rows.push_back((int32_t)(g % 7 == 3 ? 0 : g % 4 == 0 ? room : mix((uint64_t)g) % (uint64_t)room));
        for (int64_t i = 0; i < room; ++i) {
            group_of_row.push_back(i < rows.back() ? (int32_t)g : -1);
        }
    }
    int32_t *const of_group = upload(rows), *const of_row = upload(group_of_row);
    const auto check = [&](const int32_t *rows_of_group, const int32_t *groups_of_rows, const tsr_gemm_config &config) {
        const subject s = grouped(o, rows_of_group, groups_of_rows, config);
        if (!behind) {
            repeat(s, launches / 4);
            return;
        }
        std::vector<operand> inputs = inputs_of(o);
        inputs.push_back(rows_of_group != NULL ? operand{of_group, NULL, rows.size() * 4}
                                               : operand{of_row, NULL, group_of_row.size() * 4});
        follow(s, inputs);
    };
    for (const int tile : {128, 192}) {
        check(of_group, NULL, {TSR_GEMM_WIDE, 128, tile, 2});
        if (room % 128 == 0) {
            check(NULL, of_row, {TSR_GEMM_WIDE, 128, tile, 2});
        }
    }
    for (int tokens = 16; tokens <= 64; tokens *= 2) {
        check(of_group, NULL, {TSR_GEMM_FEW, tokens, 64, 1});
        check(of_group, NULL, {TSR_GEMM_FEW, tokens, 128, 1});
    }
    release(o);
    CHECK(cudaFree(of_group));
    CHECK(cudaFree(of_row));
}

/* ---- the int8 product ---- */

/* Scales of a behind subject are operands, so that a launch that reads them too early finds NaN. */
static void check_int8(int64_t m, int64_t n, int64_t k, bool behind)
{
    int8_t *const a = device_array<int8_t>(m * k), *const w = device_array<int8_t>(n * k);
    float *const scales = device_array<float>(m + n);
    random_codes<<<1024, 256>>>(reinterpret_cast<uint8_t *>(a), m * k, seed += 1ull << 40);
    random_codes<<<1024, 256>>>(reinterpret_cast<uint8_t *>(w), n * k, seed += 1ull << 40);
    random_floats<<<64, 256>>>(scales, m + n, 1e-3f, 1.0f, seed += 1ull << 40);
    for (const tsr_gemm_config &config : std::initializer_list<tsr_gemm_config>{{TSR_GEMM_NARROW, 64, 64, 1},
                                                                                {TSR_GEMM_NARROW, 64, 128, 4},
                                                                                {TSR_GEMM_NARROW, 128, 128, 1},
                                                                                {TSR_GEMM_NARROW, 128, 128, 3},
                                                                                {TSR_GEMM_WIDE, 64, 128, 2},
                                                                                {TSR_GEMM_WIDE, 128, 128, 1},
                                                                                {TSR_GEMM_WIDE, 128, 128, 2},
                                                                                {TSR_GEMM_WIDE, 128, 256, 1},
                                                                                {TSR_GEMM_WIDE, 128, 256, 2}}) {
        const std::string name = std::string("int8 ") + (config.kind == TSR_GEMM_WIDE ? "wide " : "narrow ") +
                                 std::to_string(config.tokens) + " x " + std::to_string(config.rows) + " / " +
                                 std::to_string(config.cluster);
        const subject s = {name, (size_t)(m * n * 2), [=](void *d) {
                               tsr_err err;
                               tsr_int8_gemm g = {};
                               g.a = a, g.w = w, g.scale_a = scales, g.scale_w = scales + m, g.bias = scales + m;
                               g.d = d, g.m = m, g.n = n, g.k = k, g.lda = g.ldw = k, g.ldd = n, g.config = config;
                               CHECK_TSR(tsr_cuda_int8_gemm(&g, 0, &err), err);
                           }};
        if (behind) {
            follow(s, {{a, NULL, (size_t)(m * k)}, {w, NULL, (size_t)(n * k)}, {scales, NULL, (size_t)((m + n) * 4)}});
        } else {
            repeat(s, launches / 4);
        }
    }
    CHECK(cudaFree(a));
    CHECK(cudaFree(w));
    CHECK(cudaFree(scales));
}

/* ---- int8 and int4 weights ---- */

static void check_weight_only(int64_t n, int64_t k, bool behind)
{
    uint8_t *const w = device_array<uint8_t>(n * k);
    uint16_t *const a = device_array<uint16_t>(200 * k), *const scales = device_array<uint16_t>(n * k / 32);
    random_codes<<<1024, 256>>>(w, n * k, seed += 1ull << 40);
    random_units<<<1024, 256>>>(a, 200 * k, seed += 1ull << 40);
    random_units<<<1024, 256>>>(scales, n * k / 32, seed += 1ull << 40);
    for (const int bits : {4, 8}) {
        for (const int64_t group : {0, 128}) {
            for (const int64_t m : {4, 16, 28, 64, 200}) {
                const std::string name = "weight-only int" + std::to_string(bits) + ", groups of " +
                                         std::to_string(group) + ", " + std::to_string(m) + " tokens";
                const subject s = {name, (size_t)(m * n * 2), [=](void *d) {
                                       tsr_err err;
                                       tsr_weight_only_gemm g = {a, w, scales, NULL,  d,    m,    n,
                                                                 k, k, n,      group, bits, true, TSR_WEIGHT_ONLY_AUTO};
                                       CHECK_TSR(tsr_cuda_weight_only_gemm(&g, 0, &err), err);
                                   }};
                if (behind) {
                    follow(s, {{a, NULL, (size_t)(m * k * 2)}}); /* weights may be read before: weight_only_gemm.h */
                } else {
                    repeat(s, launches / 4);
                }
            }
        }
    }
    CHECK(cudaFree(w));
    CHECK(cudaFree(a));
    CHECK(cudaFree(scales));
}

/* ---- MLA ---- */

/* Decodes `a` again and again. All operands but q are given. Frees all of them. */
static void repeat_decode(const std::string &name, const tsr_cuda_device &device, tsr_mla_decode a)
{
    const int64_t rows = a.batch * a.s_q * a.heads;
    uint16_t *const q = device_array<uint16_t>((size_t)rows * 576);
    random_units<<<1024, 256>>>(q, rows * 576, seed += 1ull << 40);
    a.q = q, a.latent = 512, a.rope = 64, a.page = 64, a.scale = 0.04f, a.kind = TSR_MLA_FAST;
    a.workspace = device_array<uint8_t>(tsr_cuda_mla_workspace(&a, &device) + 1);
    tsr_err err;
    CHECK_TSR(tsr_cuda_mla_plan(&a, 0, &err), err);
    repeat({"decode, " + name, (size_t)(rows * 512 * 2),
            [=](void *d) {
                tsr_err failed;
                tsr_mla_decode g = a;
                g.out = static_cast<uint16_t *>(d);
                CHECK_TSR(tsr_cuda_mla_decode(&g, 0, &failed), failed);
            }},
           launches / 4);
    const void *const device_memory[] = {q, a.cache, a.block_table, a.seqlens, a.indices, a.workspace};
    for (const void *p : device_memory) {
        CHECK(cudaFree(const_cast<void *>(p)));
    }
}

/* Lists of rows of a cache of `pages` pages, every ninth of which has no row. */
static void check_listed(const char *what, const tsr_cuda_device &device, int64_t queries, int64_t heads, int64_t top_k,
                         int64_t pages, bool fp8)
{
    std::vector<int32_t> indices;
    for (int64_t i = 0; i < queries * top_k; ++i) {
        indices.push_back(i % 9 == 0 ? -1 : (int32_t)(mix(seed + (uint64_t)i) % (uint64_t)(pages * 64)));
    }
    tsr_mla_decode a = {};
    a.batch = 1, a.s_q = queries, a.heads = heads, a.pages = pages, a.top_k = top_k, a.fp8 = fp8;
    a.indices = upload(indices);
    if (fp8) {
        std::vector<uint8_t> rows((size_t)(pages * 64) * 656);
        for (size_t i = 0; i < rows.size(); ++i) {
            const size_t column = i % 656; /* scales of 0.25, which is 0x3E800000; rope columns of 0x3E3E */
            const uint8_t code = (uint8_t)(mix(seed + i) >> 20 & 0xB7);
            rows[i] = column < 512 ? code : column >= 528 || i % 4 == 3 ? 0x3E : i % 4 == 2 ? 0x80 : 0;
        }
        a.cache = upload(rows);
    } else {
        uint16_t *const cache = device_array<uint16_t>((size_t)(pages * 64 * 576));
        random_units<<<1024, 256>>>(cache, pages * 64 * 576, seed += 1ull << 40);
        a.cache = cache;
    }
    repeat_decode(what, device, a);
}

/* `lengths` over and over. Empty sequences let one group of warps run ahead of the other. */
static void check_decode(const char *what, const tsr_cuda_device &device, int64_t batch, int64_t heads,
                         const std::vector<int32_t> &lengths)
{
    std::vector<int32_t> all, table;
    int32_t longest = 0, pages = 0;
    for (int64_t b = 0; b < batch; ++b) {
        all.push_back(lengths[(size_t)b % lengths.size()]);
        longest = all.back() > longest ? all.back() : longest;
    }
    const int64_t max_pages = (longest + 63) / 64;
    for (const int32_t length : all) {
        for (int64_t p = 0; p < max_pages; ++p) {
            table.push_back(p * 64 < length ? pages++ : 0);
        }
    }
    uint16_t *const cache = device_array<uint16_t>((size_t)pages * 64 * 576);
    random_units<<<1024, 256>>>(cache, (int64_t)pages * 64 * 576, seed += 1ull << 40);
    tsr_mla_decode a = {};
    a.cache = cache, a.block_table = upload(table), a.seqlens = upload(all);
    a.batch = batch, a.s_q = 1, a.heads = heads, a.pages = pages, a.max_pages = max_pages;
    repeat_decode(what, device, a);
}

static void check_prefill(const tsr_cuda_device &device)
{
    enum { kHeads = 16 };
    const std::vector<int32_t> ends = {0, 700, 701, 701, 1900, 2048};
    const int64_t tokens = ends.back(), rows = tokens * kHeads;
    uint16_t *const q = device_array<uint16_t>(rows * 192), *const kv = device_array<uint16_t>(rows * 256),
                    *const k_rope = device_array<uint16_t>(tokens * 64);
    random_units<<<1024, 256>>>(q, rows * 192, seed += 1ull << 40);
    random_units<<<1024, 256>>>(kv, rows * 256, seed += 1ull << 40);
    random_units<<<1024, 256>>>(k_rope, tokens * 64, seed += 1ull << 40);
    tsr_prefill a = {};
    a.q = q, a.kv = kv, a.k_rope = k_rope, a.cu_seqlens_q = a.cu_seqlens_k = upload(ends);
    a.batch = (int64_t)ends.size() - 1, a.heads = a.kv_heads = kHeads, a.tokens_q = a.tokens_k = tokens;
    a.nope = 128, a.rope = 64, a.value = 128, a.scale = 0.07f, a.kind = TSR_MLA_FAST;
    a.workspace = device_array<uint8_t>(tsr_cuda_prefill_workspace(&a, &device) + 1);
    tsr_err err;
    CHECK_TSR(tsr_cuda_prefill_plan(&a, 0, &err), err);
    repeat({"prefill", (size_t)(rows * 128 * 2),
            [=](void *d) {
                tsr_err failed;
                tsr_prefill g = a;
                g.out = static_cast<uint16_t *>(d);
                CHECK_TSR(tsr_cuda_prefill(&g, 0, &failed), failed);
            }},
           launches / 4);
    const void *const device_memory[] = {q, kv, k_rope, a.cu_seqlens_q, a.workspace};
    for (const void *p : device_memory) {
        CHECK(cudaFree(const_cast<void *>(p)));
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (argc > 1) {
        char *end;
        launches = strtol(argv[1], &end, 10);
        if (*end != 0 || launches < 1) {
            fprintf(stderr, "test_races [LAUNCHES [WORDS...]]\n");
            return 2;
        }
    }
    wanted.assign(argv + (argc > 1 ? 2 : 1), argv + argc);
    const tsr_cuda_device device = need_hopper();
    differing = device_array<unsigned long long>(1);
    CHECK(
        cudaFuncSetAttribute(produce, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
    check_dense();
    check_grouped(48, 256, 2048, 2048, false);
    check_grouped(5, 256, 320, 512, true);
    check_int8(1500, 4104, 2048, false);
    check_int8(1500, 4104, 256, false);
    check_int8(160, 1024, 512, true);
    check_weight_only(14336, 8192, false);
    check_weight_only(512, 1024, true);
    check_decode("short and empty sequences", device, 2000, 16, {64, 0, 1, 0, 65, 0, 130, 0});
    check_decode("ragged sequences of 128 heads", device, 40, 128, {1000, 63, 300, 0, 2000});
    for (const bool fp8 : {false, true}) {
        check_listed(fp8 ? "lists of rows in FP8" : "lists of rows", device, 1500, 16, 130, 300, fp8);
        check_listed(fp8 ? "few lists of rows in FP8, 128 heads" : "few lists of rows, 128 heads", device, 40, 128,
                     2048, 300, fp8);
    }
    check_prefill(device);
    return conclude();
}
