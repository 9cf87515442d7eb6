/* Owns the check of prefill on a GPU: the plain and the fast kernel against FP64 on the host within the bound of
 * prefill.h on short sequences (ragged and empty ones, queries behind cached tokens, more queries than tokens, NaN
 * around the sequences, poisoned outputs and workspace, two runs bit for bit); the fast against the plain kernel on
 * long sequences and many tiles. `test_prefill small` leaves out the long ones (for compute-sanitizer). */
#include "kernels/cuda/prefill.h"
#include "tests/gpu/attention_oracle.cuh"

struct lengths {
    int q, k;
};

struct shape {
    int64_t heads, kv_heads;
    int32_t nope, rope, value;
    std::vector<lengths> sequences;
};

struct operands {
    tsr_prefill args; /* device pointers */
    std::vector<uint16_t> q, kv, k_rope;
    std::vector<int32_t> ends_q, ends_k;
};

enum { kAround = 3 }; /* rows of NaN in front of the first sequence and behind the last */

/* Scores spread over +-10 or so, growing or shrinking along each sequence: the running maximum moves, or stays. */
static operands make(const shape &s)
{
    operands o = {};
    o.ends_q.push_back(kAround);
    o.ends_k.push_back(kAround);
    for (const lengths &l : s.sequences) {
        o.ends_q.push_back(o.ends_q.back() + l.q);
        o.ends_k.push_back(o.ends_k.back() + l.k);
    }
    tsr_prefill &a = o.args;
    a.batch = (int64_t)s.sequences.size(), a.heads = s.heads, a.kv_heads = s.kv_heads;
    a.tokens_q = o.ends_q.back() + kAround, a.tokens_k = o.ends_k.back() + kAround;
    a.nope = s.nope, a.rope = s.rope, a.value = s.value;
    a.scale = 1.0f / sqrtf((float)(s.nope + s.rope));
    const int64_t width_q = s.heads * (s.nope + s.rope), width_kv = s.kv_heads * (s.nope + s.value);
    o.q.assign((size_t)(a.tokens_q * width_q), 0x7FC1); /* NaN */
    o.kv.assign((size_t)(a.tokens_k * width_kv), 0x7FC1);
    o.k_rope.assign((size_t)(a.tokens_k * s.rope), 0x7FC1);
    for (int64_t i = o.ends_q.front() * width_q; i < o.ends_q.back() * width_q; ++i) {
        o.q[(size_t)i] = narrow(12 * uniform());
    }
    for (size_t b = 0; b < s.sequences.size(); ++b) {
        const int64_t begin = o.ends_k[b], length = s.sequences[b].k;
        for (int64_t t = 0; t < length; ++t) {
            const double share = 0.9 * (double)t / (double)length, size = b % 2 == 0 ? 0.1 + share : 1.0 - share;
            for (int64_t c = 0; c < width_kv; ++c) {
                o.kv[(size_t)((begin + t) * width_kv + c)] = narrow(size * uniform());
            }
            for (int64_t c = 0; c < s.rope; ++c) {
                o.k_rope[(size_t)((begin + t) * s.rope + c)] = narrow(size * uniform());
            }
        }
    }
    a.q = upload(o.q), a.kv = upload(o.kv), a.k_rope = upload(o.k_rope);
    a.cu_seqlens_q = upload(o.ends_q), a.cu_seqlens_k = upload(o.ends_k);
    return o;
}

static void release(const operands &o)
{
    const void *const all[] = {o.args.q, o.args.kv, o.args.k_rope, o.args.cu_seqlens_q, o.args.cu_seqlens_k};
    for (const void *p : all) {
        CHECK(cudaFree(const_cast<void *>(p)));
    }
}

struct result {
    std::vector<uint16_t> out;
    std::vector<float> out_f32, lse;
};

template <typename T> static bool same_bits(const std::vector<T> &x, const std::vector<T> &y)
{
    return x.size() == y.size() && memcmp(x.data(), y.data(), x.size() * sizeof(T)) == 0;
}

/* Plans once and attends twice; `same` when both gave the same bits. */
static result run(tsr_prefill a, const tsr_cuda_device &device, bool *same)
{
    tsr_err err;
    const size_t rows = (size_t)(a.tokens_q * a.heads), elements = rows * (size_t)a.value;
    a.workspace = device_array<uint8_t>(tsr_cuda_prefill_workspace(&a, &device) + 1);
    CHECK_TSR(tsr_cuda_prefill_plan(&a, 0, &err), err);
    result found[2];
    for (result &r : found) {
        a.out = device_array<uint16_t>(elements);
        a.out_f32 = device_array<float>(elements);
        a.lse = device_array<float>(rows);
        CHECK_TSR(tsr_cuda_prefill(&a, 0, &err), err);
        CHECK(cudaDeviceSynchronize());
        r = {download(a.out, elements), download(a.out_f32, elements), download(a.lse, rows)};
        CHECK(cudaFree(a.out));
        CHECK(cudaFree(a.out_f32));
        CHECK(cudaFree(a.lse));
    }
    CHECK(cudaFree(a.workspace));
    *same = same_bits(found[0].out, found[1].out) && same_bits(found[0].out_f32, found[1].out_f32) &&
            same_bits(found[0].lse, found[1].lse);
    return found[0];
}

static bool poisoned(const result &r, size_t row, size_t value)
{
    const auto ones = [](const void *p, size_t bytes) {
        const uint8_t *const byte = static_cast<const uint8_t *>(p);
        return std::all_of(byte, byte + bytes, [](uint8_t x) { return x == 0xFF; });
    };
    return ones(&r.out[row * value], value * 2) && ones(&r.out_f32[row * value], value * 4) && ones(&r.lse[row], 4);
}

/* One query and head in FP64 against what the kernel gave, within the header's bound; rows of no sequence must have
 * kept their poison. */
static void judge_row(const operands &o, int64_t row, const result &r, outcome *v)
{
    const tsr_prefill &a = o.args;
    const int64_t i = row / a.heads, h = row % a.heads;
    const size_t value = (size_t)a.value;
    if (i < o.ends_q.front() || i >= o.ends_q.back()) {
        v->beyond += !poisoned(r, (size_t)row, value);
        return;
    }
    const size_t b = (size_t)(std::upper_bound(o.ends_q.begin(), o.ends_q.end(), i) - o.ends_q.begin() - 1);
    const int64_t visible = std::max<int64_t>(0, o.ends_k[b + 1] - o.ends_k[b] - (o.ends_q[b + 1] - 1 - i));
    const exact_row e = attend_exactly(
        a.nope, a.rope, a.value, (double)a.scale, &o.q[(size_t)(row * (a.nope + a.rope))], visible, [&](int64_t t) {
            const int64_t at = o.ends_k[b] + t;
            const uint16_t *const kv =
                &o.kv[(size_t)((at * a.kv_heads + h / (a.heads / a.kv_heads)) * (a.nope + a.value))];
            return token_rows{kv, &o.k_rope[(size_t)(at * a.rope)], kv + a.nope};
        });
    const double d = 12 * 17 * 0x1p-22 * e.largest;
    const double relative = 2 * d + 0x1p-8 + 0x1p-18 + 17 * ((double)((visible + 127) / 128) * 8 + 2) * 0x1p-22;
    for (size_t c = 0; c < value; ++c) {
        const size_t at = (size_t)row * value + c;
        v->add((double)r.out_f32[at], e.sum[c], relative * e.mass[c]);
        v->add((double)widen(r.out[at]), e.sum[c], with_rounding(e.sum[c], relative * e.mass[c]));
        v->beyond += r.out[at] != narrow((double)r.out_f32[at]);
    }
    v->add_lse((double)r.lse[(size_t)row], e.lse, d);
}

static void print_shape(const shape &s)
{
    printf("%lld heads, %lld with keys, %d + %d and %d columns, queries/tokens", (long long)s.heads,
           (long long)s.kv_heads, s.nope, s.rope, s.value);
    for (size_t b = 0; b < std::min<size_t>(s.sequences.size(), 8); ++b) {
        printf(" %d/%d", s.sequences[b].q, s.sequences[b].k);
    }
    printf("%s", s.sequences.size() > 8 ? " ..." : "");
}

static void check_short(const tsr_cuda_device &device, const shape &s)
{
    operands o = make(s);
    const tsr_mla_kind kinds[] = {TSR_MLA_PLAIN, TSR_MLA_AUTO};
    for (const tsr_mla_kind kind : kinds) {
        o.args.kind = kind;
        bool same;
        const result r = run(o.args, device, &same);
        const outcome v = judge_rows((size_t)(o.args.tokens_q * o.args.heads),
                                     [&](int64_t row, outcome *found) { judge_row(o, row, r, found); });
        checks += 1;
        const bool fine = v.beyond == 0 && same && !v.leans();
        failures += !fine;
        printf("%s ", fine ? "ok    " : "FAILED");
        print_shape(s);
        printf(", %s: relative error %.2e, bias %.1e, worst %.3f of the bound, %ld beyond%s\n",
               tsr_cuda_prefill_choose(&o.args, &device) == TSR_MLA_FAST ? "fast" : "plain", v.relative_error(),
               v.slope(), v.worst, v.beyond, same ? "" : ", two runs differ");
    }
    release(o);
}

/* With the same operands the two kernels may differ by little more than the rounding of probabilities. */
static void check_long(const tsr_cuda_device &device, const shape &s)
{
    operands o = make(s);
    bool same, plain_same;
    o.args.kind = TSR_MLA_FAST;
    const result fast = run(o.args, device, &same);
    o.args.kind = TSR_MLA_PLAIN;
    const result plain = run(o.args, device, &plain_same);
    const size_t value = (size_t)s.value, first = (size_t)(kAround * s.heads), last = fast.lse.size() - first;
    double error = 0, exact = 0, lse_error = 0;
    long wrong = 0;
    for (size_t row = first; row < last; ++row) {
        double row_error = 0, row_exact = 0;
        for (size_t i = row * value; i < (row + 1) * value; ++i) {
            const double difference = (double)fast.out_f32[i] - (double)plain.out_f32[i];
            row_error += difference * difference;
            row_exact += (double)plain.out_f32[i] * (double)plain.out_f32[i];
        }
        wrong += !(row_error <= row_exact * (0.02 * 0.02));
        error += row_error, exact += row_exact;
        const double off = fabs((double)fast.lse[row] - (double)plain.lse[row]);
        lse_error = fast.lse[row] == plain.lse[row] ? lse_error : std::max(lse_error, off);
    }
    const bool fine = same && wrong == 0 && sqrt(error / exact) < 4e-3 && lse_error < 1e-3;
    checks += 1;
    failures += !fine;
    printf("%s ", fine ? "ok    " : "FAILED");
    print_shape(s);
    printf(", fast against plain: relative difference %.2e, of lse %.1e, %ld rows off%s\n", sqrt(error / exact),
           lse_error, wrong, same ? "" : ", two runs differ");
    release(o);
}

static void check_refusals(const tsr_cuda_device &device)
{
    operands o = make({2, 2, 128, 64, 128, {{70, 70}}});
    tsr_prefill good = o.args;
    const size_t rows = (size_t)(good.tokens_q * good.heads);
    good.workspace = device_array<uint8_t>(tsr_cuda_prefill_workspace(&good, &device));
    good.out = device_array<uint16_t>(rows * 128);
    tsr_err err;
    const auto expect = [&](const tsr_prefill &a, tsr_status status, const char *what) {
        checks += 1;
        if (tsr_cuda_prefill(&a, 0, &err) != status) {
            failures += 1;
            printf("FAILED %s is not refused as it should be\n", what);
        }
    };
    tsr_prefill a = good;
    a.scale = 0;
    expect(a, TSR_E_SHAPE, "scale 0");
    a = good, a.heads = -1;
    expect(a, TSR_E_SHAPE, "a negative number of heads");
    a = good, a.kv_heads = 3;
    expect(a, TSR_E_SHAPE, "heads that keys do not divide");
    a = good, a.workspace = static_cast<uint8_t *>(a.workspace) + 16;
    expect(a, TSR_E_SHAPE, "a workspace out of line");
    a = good, a.kind = TSR_MLA_FAST, a.value = 64;
    expect(a, TSR_E_UNSUPPORTED, "the fast kernel on values of 64 columns");
    a = good, a.kind = TSR_MLA_FAST, a.kv += 1;
    expect(a, TSR_E_UNSUPPORTED, "the fast kernel on kv out of line");
    a = good, a.batch = 0;
    expect(a, TSR_OK, "an empty batch");
    CHECK(cudaFree(good.workspace));
    CHECK(cudaFree(good.out));
    release(o);
}

int main(int argc, char **argv)
{
    const tsr_cuda_device device = need_hopper();
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    check_short(device, {1, 1, 128, 64, 128, {{1, 1}}});
    check_short(device, {1, 1, 128, 64, 128, {{129, 129}}});
    check_short(device, {2, 2, 128, 64, 128, {{1, 1}, {0, 0}, {63, 63}, {64, 64}, {0, 9}, {65, 65}, {127, 127}}});
    check_short(device, {3, 3, 128, 64, 128, {{5, 0}, {1, 300}, {64, 200}, {140, 70}, {0, 0}}});
    check_short(device, {3, 3, 48, 16, 40, {{30, 30}, {0, 7}, {2, 150}, {6, 3}}});
    check_short(device, {6, 2, 128, 0, 128, {{65, 65}, {0, 0}, {5, 0}, {1, 300}, {140, 70}}});
    check_short(device, {4, 2, 48, 0, 40, {{30, 30}, {2, 150}}});
    if (!small) {
        for (const int length : {1, 63, 64, 65, 127, 128, 129, 1000}) {
            check_short(device, {2, 2, 128, 64, 128, {{length, length}}});
        }
        check_short(device, {5, 5, 128, 64, 128, {{128, 128}, {129, 129}, {0, 0}, {1000, 1000}, {1, 1}, {65, 65}}});
        check_short(device, {4, 4, 128, 64, 128, {{1, 1000}, {129, 700}, {100, 128}, {0, 50}, {200, 100}, {256, 512}}});
        check_short(device, {7, 7, 128, 64, 128, std::vector<lengths>(150, lengths{3, 40})});
        check_short(device, {2, 2, 192, 64, 128, {{150, 150}}});
        check_long(device, {128, 128, 128, 64, 128, {{300, 300}, {1, 1}, {0, 0}, {129, 513}, {640, 640}}});
        check_long(device, {16, 16, 128, 64, 128, {{2048, 2048}, {100, 5000}, {1500, 1500}}});
        check_short(device, {8, 1, 128, 0, 128, {{1000, 1000}, {129, 700}, {127, 127}}});
        check_short(device, {4, 2, 128, 64, 128, {{200, 300}}});
        check_long(device, {32, 8, 128, 0, 128, {{2048, 2048}, {100, 5000}, {1500, 1500}}});
        check_long(device, {3, 3, 128, 64, 128, {{5000, 5000}}});
    }
    check_refusals(device);
    return conclude();
}
