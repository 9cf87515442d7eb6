/* Owns the check of MLA decoding on a GPU: the plain and the fast kernel against FP64 on the host within the bound of
 * mla_decode.h on small shapes (ragged and empty sequences, shuffled pages, NaN in every unused cache row and page
 * number, poisoned outputs and workspace, two runs bit for bit); the fast against the plain kernel on long sequences.
 * Caches are BF16 or FP8, and queries attend to all tokens or list rows. `test_mla small` leaves out the long ones (for
 * compute-sanitizer). */
extern "C" {
#include "kernels/cpu/mla_attention.h"
}
#include "kernels/cuda/mla_decode.h"
#include "tests/gpu/attention_oracle.cuh"

#include <string>

struct shape {
    int64_t batch, s_q, heads;
    int32_t latent, rope, page;
    std::vector<int> lengths; /* lengths of the sequences, used in turn */
    int32_t fp8 = 0;
};

/* Where a list of rows has negative entries. */
enum holes { kNowhere, kAtEnds, kInMiddle, kInPlaces, kEverywhere };
static const char *const kHoles[] = {"nowhere", "at the ends", "in the middle", "in places", "in every second list"};

/* A batch whose queries list `top_k` of `rows` rows. */
struct listed {
    int64_t batch, s_q, heads, top_k, rows;
    holes none;
    int32_t fp8, latent = 512, rope = 64, page = 64;
    double steep = 12;  /* the largest |q| */
    bool twice = false; /* each row is listed twice */
};

struct operands {
    tsr_mla_decode args;            /* device pointers */
    std::vector<uint16_t> q, cache; /* the values of an FP8 cache */
    std::vector<int32_t> table, lengths, indices;
};

enum { kNaN = 0x7FC1 };

/* Uploads the cache. With `fp8` it is coded first, and the values of the codes replace the values. */
static void upload_cache(operands *o)
{
    tsr_mla_decode &a = o->args;
    if (!a.fp8) {
        a.cache = upload(o->cache);
        return;
    }
    const size_t width = (size_t)(a.latent + a.rope), bytes = tsr_mla_cache_row_bytes(a.latent, a.rope, true);
    const size_t rows = o->cache.size() / width;
    std::vector<uint8_t> coded(rows * bytes, 0xFF); /* NaN: codes, scales and BF16 */
    std::vector<float> values(width);
    for (size_t r = 0; r < rows; ++r) {
        uint16_t *const row = &o->cache[r * width];
        if (row[0] == kNaN) {
            continue;
        }
        std::transform(row, row + width, values.begin(), widen);
        tsr_mla_cache_write(values.data(), a.latent, a.rope, true, &coded[r * bytes]);
        tsr_mla_cache_read(&coded[r * bytes], a.latent, a.rope, true, values.data());
        std::transform(values.begin(), values.end(), row, narrow);
    }
    a.cache = upload(coded);
}

/* Scores spread over +-10 or so, growing or shrinking along each sequence: the running maximum moves, or stays. */
static operands make(const shape &s)
{
    operands o = {};
    const int64_t width = s.latent + s.rope;
    int64_t longest = 1, used = 0;
    for (int64_t b = 0; b < s.batch; ++b) {
        o.lengths.push_back(s.lengths[(size_t)b % s.lengths.size()]);
        longest = std::max<int64_t>(longest, o.lengths.back());
        used += (o.lengths.back() + s.page - 1) / s.page;
    }
    const int64_t max_pages = (longest + s.page - 1) / s.page + 1, pages = used + 3;
    std::vector<int32_t> free((size_t)pages);
    for (int64_t i = 0; i < pages; ++i) {
        free[(size_t)i] = (int32_t)i;
        std::swap(free[(size_t)i], free[(size_t)(mix(seed++) % (uint64_t)(i + 1))]);
    }
    o.q.resize((size_t)(s.batch * s.s_q * s.heads * width));
    o.cache.assign((size_t)(pages * s.page * width), kNaN);
    o.table.assign((size_t)(s.batch * max_pages), INT32_MAX);
    for (uint16_t &x : o.q) {
        x = narrow(12 * uniform());
    }
    for (int64_t b = 0; b < s.batch; ++b) {
        const int length = o.lengths[(size_t)b];
        for (int t = 0; t < length; ++t) {
            int32_t &page = o.table[(size_t)(b * max_pages + t / s.page)];
            if (t % s.page == 0) {
                page = free.back();
                free.pop_back();
            }
            const double size = b % 2 == 0 ? 0.1 + 0.9 * t / length : 1.0 - 0.9 * t / length;
            for (int64_t c = 0; c < width; ++c) {
                o.cache[(size_t)(((int64_t)page * s.page + t % s.page) * width + c)] = narrow(size * uniform());
            }
        }
    }
    tsr_mla_decode &a = o.args;
    a.batch = s.batch, a.s_q = s.s_q, a.heads = s.heads, a.pages = pages, a.max_pages = max_pages;
    a.latent = s.latent, a.rope = s.rope, a.page = s.page, a.fp8 = s.fp8;
    a.scale = 1.0f / sqrtf((float)width);
    a.q = upload(o.q), a.block_table = upload(o.table), a.seqlens = upload(o.lengths);
    upload_cache(&o);
    return o;
}

static bool is_hole(const listed &s, int64_t query, int64_t entry)
{
    const int64_t end = (s.top_k + 7) / 8;
    switch (s.none) {
    case kNowhere:
        return false;
    case kAtEnds:
        return entry < end || entry >= s.top_k - end;
    case kInMiddle:
        return entry >= s.top_k / 4 && entry < s.top_k - s.top_k / 4;
    case kInPlaces:
        return mix(seed + (uint64_t)(query * s.top_k + entry)) % 3 == 0;
    default:
        return query % 2 == 0;
    }
}

/* Only even rows of the cache from 2 on have numbers, and are listed. A list is in random order. */
static operands make(const listed &s)
{
    operands o = {};
    const int64_t width = s.latent + s.rope, pages = (s.rows + s.page - 1) / s.page, queries = s.batch * s.s_q;
    o.q.resize((size_t)(queries * s.heads * width));
    for (uint16_t &x : o.q) {
        x = narrow(s.steep * uniform());
    }
    o.cache.assign((size_t)(pages * s.page * width), kNaN);
    for (int64_t row = 2; row < s.rows; row += 2) {
        for (int64_t c = 0; c < width; ++c) {
            o.cache[(size_t)(row * width + c)] = narrow((0.1 + 0.9 * (double)row / (double)s.rows) * uniform());
        }
    }
    o.indices.resize((size_t)(queries * s.top_k));
    for (int64_t at = 0; at < queries * s.top_k; ++at) {
        const int64_t entry = at % s.top_k, from = s.twice ? at - entry + entry / 2 : at;
        const uint64_t row = 2 + 2 * (mix(seed ^ (uint64_t)from << 20) % (uint64_t)((s.rows - 2) / 2));
        o.indices[(size_t)at] = is_hole(s, at / s.top_k, entry) ? -1 - (int32_t)(at % 2) : (int32_t)row;
    }
    seed += 1 << 20;
    tsr_mla_decode &a = o.args;
    a.batch = s.batch, a.s_q = s.s_q, a.heads = s.heads, a.pages = pages, a.top_k = s.top_k;
    a.latent = s.latent, a.rope = s.rope, a.page = s.page, a.fp8 = s.fp8;
    a.scale = 1.0f / sqrtf((float)width);
    a.q = upload(o.q), a.indices = upload(o.indices);
    upload_cache(&o);
    return o;
}

/* Returns the rows of the cache that a query attends to. */
static std::vector<int64_t> rows_of(const operands &o, int64_t b, int64_t i)
{
    const tsr_mla_decode &a = o.args;
    std::vector<int64_t> rows;
    if (a.indices) {
        for (int64_t entry = 0; entry < a.top_k; ++entry) {
            const int32_t row = o.indices[(size_t)((b * a.s_q + i) * a.top_k + entry)];
            if (row >= 0) {
                rows.push_back(row);
            }
        }
        return rows;
    }
    for (int64_t t = 0; t < o.lengths[(size_t)b] - a.s_q + i + 1; ++t) {
        rows.push_back((int64_t)o.table[(size_t)(b * a.max_pages + t / a.page)] * a.page + t % a.page);
    }
    return rows;
}

/* One query and head in FP64 against what the kernel gave, within the header's bound. */
static void judge_row(const operands &o, int64_t row, const uint16_t *out, float lse, outcome *v)
{
    const tsr_mla_decode &a = o.args;
    const int64_t width = a.latent + a.rope, b = row / (a.s_q * a.heads), i = row % (a.s_q * a.heads) / a.heads;
    const std::vector<int64_t> rows = rows_of(o, b, i);
    const int64_t tokens = a.indices ? a.top_k : (int64_t)rows.size();
    const exact_row e = attend_exactly(a.latent, a.rope, a.latent, (double)a.scale, &o.q[(size_t)(row * width)],
                                       (int64_t)rows.size(), [&](int64_t t) {
                                           const uint16_t *const k = &o.cache[(size_t)(rows[(size_t)t] * width)];
                                           return token_rows{k, k + a.latent, k};
                                       });
    const double d = 36 * 17 * 0x1p-22 * e.largest;
    const double relative = 2 * d + 0x1p-8 + 0x1p-18 + 17 * ((double)((tokens + 63) / 64) * 4 + 2) * 0x1p-22;
    for (size_t c = 0; c < (size_t)a.latent; ++c) {
        v->add((double)widen(out[c]), e.sum[c], with_rounding(e.sum[c], relative * e.mass[c]));
    }
    v->add_lse((double)lse, e.lse, d);
}

static void run(tsr_mla_decode a, size_t workspace_bytes, std::vector<uint16_t> *out, std::vector<float> *lse)
{
    tsr_err err;
    const size_t rows = (size_t)(a.batch * a.s_q * a.heads);
    out->resize(rows * (size_t)a.latent);
    lse->resize(rows);
    a.out = device_array<uint16_t>(out->size());
    a.lse = device_array<float>(rows);
    a.workspace = device_array<uint8_t>(workspace_bytes + 1);
    CHECK_TSR(tsr_cuda_mla_plan(&a, 0, &err), err);
    CHECK_TSR(tsr_cuda_mla_decode(&a, 0, &err), err);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(out->data(), a.out, out->size() * 2, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(lse->data(), a.lse, rows * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(a.out));
    CHECK(cudaFree(a.lse));
    CHECK(cudaFree(a.workspace));
}

static void release(const operands &o)
{
    const void *const all[] = {o.args.q, o.args.cache, o.args.block_table, o.args.seqlens, o.args.indices};
    for (const void *p : all) {
        CHECK(cudaFree(const_cast<void *>(p)));
    }
}

/* Judges all kernels that support the operands. `what` describes them. */
static void check_all(const tsr_cuda_device &device, operands o, const std::string &what)
{
    const tsr_mla_decode &a = o.args;
    const size_t rows = (size_t)(a.batch * a.s_q * a.heads);
    const bool fast = a.latent == 512 && a.rope == 64 && (a.page == 64 || a.indices);
    const tsr_mla_kind kinds[] = {TSR_MLA_PLAIN, fast ? TSR_MLA_FAST : TSR_MLA_AUTO};
    for (const tsr_mla_kind kind : kinds) {
        o.args.kind = kind;
        std::vector<uint16_t> out, again;
        std::vector<float> lse, lse_again;
        const size_t workspace = tsr_cuda_mla_workspace(&o.args, &device);
        run(o.args, workspace, &out, &lse);
        run(o.args, workspace, &again, &lse_again);
        const bool same = memcmp(out.data(), again.data(), out.size() * 2) == 0 &&
                          memcmp(lse.data(), lse_again.data(), rows * 4) == 0;
        const outcome v = judge_rows(rows, [&](int64_t r, outcome *found) {
            judge_row(o, r, &out[(size_t)r * (size_t)a.latent], lse[(size_t)r], found);
        });
        checks += 1;
        const bool fine = v.beyond == 0 && same && !v.leans();
        failures += !fine;
        printf("%s batch %lld, queries %lld, heads %lld, %s, %d + %d%s, %s: relative error %.2e, bias %.1e, "
               "worst %.3f of the bound, %ld beyond%s\n",
               fine ? "ok    " : "FAILED", (long long)a.batch, (long long)a.s_q, (long long)a.heads, what.c_str(),
               a.latent, a.rope, a.fp8 ? " in FP8" : "",
               tsr_cuda_mla_choose(&o.args, &device) == TSR_MLA_FAST ? "fast" : "plain", v.relative_error(), v.slope(),
               v.worst, v.beyond, same ? "" : ", two runs differ");
    }
    release(o);
}

static std::string described(const shape &s)
{
    return "first length " + std::to_string(s.lengths[0]);
}

static std::string described(const listed &s)
{
    return std::to_string(s.top_k) + " of " + std::to_string(s.rows) + " rows" + (s.twice ? " twice" : "") +
           (s.steep > 12 ? ", steep" : "") + ", none " + kHoles[s.none];
}

template <typename SHAPE> static void check_small(const tsr_cuda_device &device, const SHAPE &s)
{
    check_all(device, make(s), described(s));
}

/* With the same operands the two kernels may differ by little more than the rounding of probabilities and output. */
template <typename SHAPE> static void check_long(const tsr_cuda_device &device, const SHAPE &s)
{
    operands o = make(s);
    std::vector<uint16_t> fast, plain;
    std::vector<float> fast_lse, plain_lse;
    o.args.kind = TSR_MLA_FAST;
    run(o.args, tsr_cuda_mla_workspace(&o.args, &device), &fast, &fast_lse);
    o.args.kind = TSR_MLA_PLAIN;
    run(o.args, 0, &plain, &plain_lse);
    double error = 0, exact = 0, lse_error = 0;
    for (size_t i = 0; i < fast.size(); ++i) {
        const double difference = (double)widen(fast[i]) - (double)widen(plain[i]);
        error += difference * difference;
        exact += (double)widen(plain[i]) * (double)widen(plain[i]);
    }
    for (size_t i = 0; i < fast_lse.size(); ++i) {
        lse_error = std::max(lse_error, fabs((double)fast_lse[i] - (double)plain_lse[i]));
    }
    const bool fine = sqrt(error / exact) < 4e-3 && lse_error < 1e-3;
    checks += 1;
    failures += !fine;
    printf("%s batch %lld, queries %lld, heads %lld, %s%s, fast against plain: relative difference %.2e, of lse %.1e\n",
           fine ? "ok    " : "FAILED", (long long)s.batch, (long long)s.s_q, (long long)s.heads, described(s).c_str(),
           s.fp8 ? " in FP8" : "", sqrt(error / exact), lse_error);
    release(o);
}

static void check_refusals(const tsr_cuda_device &device)
{
    operands o = make(shape{1, 1, 16, 512, 64, 64, {70}});
    const size_t workspace = tsr_cuda_mla_workspace(&o.args, &device);
    o.args.workspace = device_array<uint8_t>(workspace);
    o.args.out = device_array<uint16_t>(16 * 512);
    tsr_err err;
    const auto expect = [&](tsr_mla_decode a, tsr_status status, const char *what) {
        checks += 1;
        if (tsr_cuda_mla_decode(&a, 0, &err) != status) {
            failures += 1;
            printf("FAILED %s is not refused as it should be\n", what);
        }
    };
    tsr_mla_decode a = o.args;
    a.scale = 0;
    expect(a, TSR_E_SHAPE, "scale 0");
    a = o.args, a.heads = -1;
    expect(a, TSR_E_SHAPE, "a negative number of heads");
    a = o.args, a.workspace = static_cast<uint8_t *>(a.workspace) + 16;
    expect(a, TSR_E_SHAPE, "a workspace out of line");
    a = o.args, a.kind = TSR_MLA_FAST, a.latent = 256;
    expect(a, TSR_E_UNSUPPORTED, "the fast kernel on 256 columns");
    a = o.args, a.batch = 0;
    expect(a, TSR_OK, "an empty batch");
    a = o.args, a.indices = a.seqlens, a.top_k = -1;
    expect(a, TSR_E_SHAPE, "lists of -1 rows");
    a = o.args, a.indices = a.seqlens, a.top_k = 1 << 20, a.s_q = 1 << 20;
    expect(a, TSR_E_SHAPE, "lists of more pages than can be counted");
    a = o.args, a.fp8 = 1, a.latent = 96;
    expect(a, TSR_E_SHAPE, "96 columns in FP8");
    a = o.args, a.fp8 = 1, a.rope = 63;
    expect(a, TSR_E_SHAPE, "an odd number of columns after those in FP8");
    CHECK(cudaFree(o.args.workspace));
    CHECK(cudaFree(o.args.out));
    release(o);
}

/* Every number of heads, and of rows around that of a page, with BF16 and FP8. */
static void check_listed(const tsr_cuda_device &device, bool small)
{
    const int64_t heads[] = {1, 16, 64, 128, 130}, top_k[] = {1, 63, 64, 65, 2048};
    for (const int32_t fp8 : {0, 1}) {
        for (size_t h = 0; h < 5; ++h) {
            for (size_t k = 0; k < 5; ++k) {
                if (!small || (h == k && h < 4)) {
                    check_small(device, listed{2, 1, heads[h], top_k[k], 3000, (holes)((h + k) % 5), fp8});
                }
            }
        }
        check_small(device, listed{1, 2, 128, 200, 500, kInPlaces, fp8});
        check_small(device, listed{3, 3, 5, 150, 400, kInPlaces, fp8, 128, 16, 16});
        check_small(device, listed{2, 1, 64, 0, 64, kNowhere, fp8});
        check_small(device, shape{3, 2, 64, 512, 64, 64, {129, 1, 64}, fp8});
        if (small) {
            continue;
        }
        for (const holes none : {kNowhere, kAtEnds, kInMiddle, kInPlaces, kEverywhere}) {
            check_small(device, listed{3, 2, 128, 300, 1000, none, fp8, 512, 64, 16});
        }
        check_small(device, listed{1, 4096, 1, 65, 9000, kInPlaces, fp8});
        check_small(device, listed{1, 4096, 16, 130, 9000, kAtEnds, fp8});
        check_small(device, listed{1, 67, 128, 640, 5000, kInMiddle, fp8});
        listed s = {2, 2, 128, 2048, 1000, kInPlaces, fp8};
        s.steep = 48;
        check_small(device, s);
        s.steep = 12, s.twice = true;
        check_small(device, s);
        check_small(device, shape{5, 1, 128, 512, 64, 64, {63, 0, 700, 128, 321}, fp8});
        check_small(device, shape{4, 2, 128, 512, 64, 64, {500, 1, 64, 193}, fp8});
        check_small(device, shape{2, 5, 3, 128, 64, 64, {200, 64}, fp8});
        check_long(device, listed{1, 200, 128, 2048, 30000, kInPlaces, fp8});
        check_long(device, listed{132, 1, 64, 2048, 30000, kAtEnds, fp8});
        check_long(device, shape{7, 1, 16, 512, 64, 64, {8192, 3000}, fp8});
    }
}

int main(int argc, char **argv)
{
    const tsr_cuda_device device = need_hopper();
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    check_small(device, shape{1, 1, 128, 512, 64, 64, {64}});
    check_small(device, shape{1, 1, 1, 512, 64, 64, {1}});
    check_small(device, shape{3, 1, 16, 512, 64, 64, {0, 130, 65}});
    check_small(device, shape{2, 2, 64, 512, 64, 64, {129, 1}});
    check_small(device, shape{3, 3, 5, 96, 16, 16, {50, 2, 0}});
    if (!small) {
        check_small(device, shape{1, 1, 128, 512, 64, 64, {1000}});
        check_small(device, shape{5, 1, 128, 512, 64, 64, {63, 0, 700, 128, 321}});
        check_small(device, shape{4, 2, 128, 512, 64, 64, {500, 1, 64, 193}});
        check_small(device, shape{300, 1, 7, 512, 64, 64, {0, 1, 64, 65, 200, 31, 0, 0, 90}});
        check_small(device, shape{70, 4, 24, 512, 64, 64, {130, 3, 0, 66, 257}});
        check_small(device, shape{2, 1, 192, 512, 64, 64, {640, 257}});
        check_small(device, shape{1100, 1, 1, 512, 64, 64, {5, 0, 66}});
        check_small(device, shape{2, 5, 3, 128, 64, 64, {200, 64}});
        check_long(device, shape{1, 1, 128, 512, 64, 64, {65536}});
        check_long(device, shape{6, 1, 128, 512, 64, 64, {8192, 100, 5000, 0, 16000, 777}});
        check_long(device, shape{5, 2, 64, 512, 64, 64, {4096, 4097, 9000}});
        check_long(device, shape{7, 1, 16, 512, 64, 64, {8192, 3000}});
    }
    check_listed(device, small);
    check_refusals(device);
    return conclude();
}
