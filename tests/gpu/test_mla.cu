/* Owns the check of MLA decoding on a GPU: the plain and the fast kernel against FP64 on the host within the bound of
 * mla_decode.h on small shapes (ragged and empty sequences, shuffled pages, NaN in every unused cache row and page
 * number, poisoned outputs and workspace, two runs bit for bit); the fast against the plain kernel on long sequences.
 * `test_mla small` leaves out the long ones (for compute-sanitizer). */
#include "kernels/cuda/mla_decode.h"
#include "tests/gpu/attention_oracle.cuh"

struct shape {
    int64_t batch, s_q, heads;
    int32_t latent, rope, page;
    std::vector<int> lengths; /* lengths of the sequences, used in turn */
};

struct operands {
    tsr_mla_decode args; /* device pointers */
    std::vector<uint16_t> q, cache;
    std::vector<int32_t> table, lengths;
};

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
    o.cache.assign((size_t)(pages * s.page * width), 0x7FC1); /* NaN */
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
    a.latent = s.latent, a.rope = s.rope, a.page = s.page;
    a.scale = 1.0f / sqrtf((float)width);
    a.q = upload(o.q), a.cache = upload(o.cache), a.block_table = upload(o.table), a.seqlens = upload(o.lengths);
    return o;
}

/* One query and head in FP64 against what the kernel gave, within the header's bound. */
static void judge_row(const operands &o, int64_t row, const uint16_t *out, float lse, outcome *v)
{
    const tsr_mla_decode &a = o.args;
    const int64_t width = a.latent + a.rope, b = row / (a.s_q * a.heads), i = row % (a.s_q * a.heads) / a.heads;
    const int64_t visible = std::max<int64_t>(0, o.lengths[(size_t)b] - a.s_q + i + 1);
    const exact_row e = attend_exactly(
        a.latent, a.rope, a.latent, (double)a.scale, &o.q[(size_t)(row * width)], visible, [&](int64_t t) {
            const int64_t page = o.table[(size_t)(b * a.max_pages + t / a.page)];
            const uint16_t *const k = &o.cache[(size_t)((page * a.page + t % a.page) * width)];
            return token_rows{k, k + a.latent, k};
        });
    const double d = 36 * 17 * 0x1p-22 * e.largest;
    const double relative = 2 * d + 0x1p-8 + 0x1p-18 + 17 * ((double)((visible + 63) / 64) * 4 + 2) * 0x1p-22;
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
    const void *const all[] = {o.args.q, o.args.cache, o.args.block_table, o.args.seqlens};
    for (const void *p : all) {
        CHECK(cudaFree(const_cast<void *>(p)));
    }
}

static void check_small(const tsr_cuda_device &device, const shape &s)
{
    operands o = make(s);
    const size_t rows = (size_t)(s.batch * s.s_q * s.heads);
    const tsr_mla_kind kinds[] = {TSR_MLA_PLAIN, TSR_MLA_AUTO};
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
            judge_row(o, r, &out[(size_t)r * (size_t)s.latent], lse[(size_t)r], found);
        });
        checks += 1;
        const bool fine = v.beyond == 0 && same && !v.leans();
        failures += !fine;
        printf("%s batch %lld, queries %lld, heads %lld, first length %d, %d + %d, %s: relative error %.2e, bias %.1e, "
               "worst %.3f of the bound, %ld beyond%s\n",
               fine ? "ok    " : "FAILED", (long long)s.batch, (long long)s.s_q, (long long)s.heads, s.lengths[0],
               s.latent, s.rope, tsr_cuda_mla_choose(&o.args, &device) == TSR_MLA_FAST ? "fast" : "plain",
               v.relative_error(), v.slope(), v.worst, v.beyond, same ? "" : ", two runs differ");
    }
    release(o);
}

/* With the same operands the two kernels may differ by little more than the rounding of probabilities and output. */
static void check_long(const tsr_cuda_device &device, const shape &s)
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
    printf("%s batch %lld, queries %lld, heads %lld, first length %d, fast against plain: relative difference %.2e, of "
           "lse %.1e\n",
           fine ? "ok    " : "FAILED", (long long)s.batch, (long long)s.s_q, (long long)s.heads, s.lengths[0],
           sqrt(error / exact), lse_error);
    release(o);
}

static void check_refusals(const tsr_cuda_device &device)
{
    operands o = make({1, 1, 16, 512, 64, 64, {70}});
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
    CHECK(cudaFree(o.args.workspace));
    CHECK(cudaFree(o.args.out));
    release(o);
}

int main(int argc, char **argv)
{
    const tsr_cuda_device device = need_hopper();
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    check_small(device, {1, 1, 128, 512, 64, 64, {64}});
    check_small(device, {1, 1, 1, 512, 64, 64, {1}});
    check_small(device, {3, 1, 16, 512, 64, 64, {0, 130, 65}});
    check_small(device, {2, 2, 64, 512, 64, 64, {129, 1}});
    check_small(device, {3, 3, 5, 96, 16, 16, {50, 2, 0}});
    if (!small) {
        check_small(device, {1, 1, 128, 512, 64, 64, {1000}});
        check_small(device, {5, 1, 128, 512, 64, 64, {63, 0, 700, 128, 321}});
        check_small(device, {4, 2, 128, 512, 64, 64, {500, 1, 64, 193}});
        check_small(device, {300, 1, 7, 512, 64, 64, {0, 1, 64, 65, 200, 31, 0, 0, 90}});
        check_small(device, {70, 4, 24, 512, 64, 64, {130, 3, 0, 66, 257}});
        check_small(device, {2, 1, 192, 512, 64, 64, {640, 257}});
        check_small(device, {1100, 1, 1, 512, 64, 64, {5, 0, 66}});
        check_small(device, {2, 5, 3, 128, 64, 64, {200, 64}});
        check_long(device, {1, 1, 128, 512, 64, 64, {65536}});
        check_long(device, {6, 1, 128, 512, 64, 64, {8192, 100, 5000, 0, 16000, 777}});
        check_long(device, {5, 2, 64, 512, 64, 64, {4096, 4097, 9000}});
        check_long(device, {7, 1, 16, 512, 64, 64, {8192, 3000}});
    }
    check_refusals(device);
    printf("%d checks, %d failed\n", checks, failures);
    return failures != 0 || checks == 0;
}
