/* Owns the check of index scores on a GPU: the plain kernel against the bits of the CPU's definition, the fast one
 * against FP64 on the host within the bound of index_scores.h (ragged sizes, NaN in keys that no query sees, poisoned
 * results, two runs bit for bit), and the fast against the plain one on many keys. `test_index small` leaves out the
 * latter (for compute-sanitizer). */
extern "C" {
#include "common/float_bits.h"
#include "kernels/cpu/index_scores.h"
}
#include "kernels/cuda/index_scores.h"
#include "tests/gpu/attention_oracle.cuh"

struct shape {
    size_t queries, keys, heads, width;
};

struct operands {
    shape s;
    std::vector<uint8_t> q, k;
    std::vector<float> k_scale, weights;
    std::vector<int32_t> seen;
    tsr_index_scores args; /* device pointers */
};

static uint8_t random_code(void)
{
    const uint8_t code = (uint8_t)(mix(seed++) >> 20);
    return (code & 0x7F) == 0x7F ? code ^ 0x10 : code;
}

/* Query i sees up to 2 i / queries of the keys, query 1 none, and no query the last fifth. */
static operands make(const shape &s)
{
    operands o = {};
    o.s = s;
    o.q.resize(s.queries * s.heads * s.width);
    o.k.assign(s.keys * s.width, 0x7F); /* NaN */
    o.k_scale.assign(s.keys, NAN);
    int32_t most = 0;
    for (size_t i = 0; i < s.queries; ++i) {
        const size_t sees = std::min(s.keys - s.keys / 5, 2 * s.keys * (i + 1) / (s.queries + 1));
        o.seen.push_back(i == 1 ? 0 : (int32_t)sees);
        most = std::max(most, o.seen.back());
        for (size_t h = 0; h < s.heads; ++h) {
            o.weights.push_back((float)(0.2 * uniform()));
        }
    }
    std::generate(o.q.begin(), o.q.end(), random_code);
    std::generate(o.k.begin(), o.k.begin() + (ptrdiff_t)((size_t)most * s.width), random_code);
    std::generate(o.k_scale.begin(), o.k_scale.begin() + most, [] { return (float)(1.5 + uniform()); });
    o.args = {upload(o.q), upload(o.k), upload(o.k_scale), upload(o.weights), upload(o.seen), NULL, s.queries, s.keys,
              s.heads,     s.width};
    return o;
}

static void release(const operands &o)
{
    const void *const all[] = {o.args.q, o.args.k, o.args.k_scale, o.args.weights, o.args.seen};
    for (const void *p : all) {
        CHECK(cudaFree(const_cast<void *>(p)));
    }
}

static std::vector<float> run(const operands &o, tsr_index_kind kind)
{
    tsr_err err;
    tsr_index_scores a = o.args;
    a.logits = device_array<float>(a.queries * a.keys);
    CHECK_TSR(tsr_cuda_index_scores(&a, kind, 0, &err), err);
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> logits = download(a.logits, a.queries * a.keys);
    CHECK(cudaFree(a.logits));
    return logits;
}

/* Judges the scores of a query within the header's bound. */
static void judge_query(const operands &o, size_t i, const float *logits, outcome *v)
{
    const shape &s = o.s;
    for (size_t j = 0; j < s.keys; ++j) {
        if ((int32_t)j >= o.seen[i]) {
            v->beyond += !(isinf(logits[j]) && logits[j] < 0);
            continue;
        }
        double exact = 0, bound = 0;
        for (size_t h = 0; h < s.heads; ++h) {
            const double weight = (double)o.weights[i * s.heads + h];
            double sum = 0, lost = 0;
            for (size_t step = 0; step < s.width; step += 32) {
                double most = fabs(sum), added = 0;
                for (size_t d = step; d < std::min(s.width, step + 32); ++d) {
                    const double product = (double)tsr_e4m3_to_f32(o.q[(i * s.heads + h) * s.width + d]) *
                                           (double)tsr_e4m3_to_f32(o.k[j * s.width + d]);
                    most = std::max(most, fabs(product));
                    added += product;
                }
                lost += 33 * 0x1p-13 * 1.01 * most;
                sum += added;
            }
            const double relu = std::max(sum, 0.0);
            exact += weight * relu;
            bound += fabs(weight) * (lost + 1.01 * (double)(s.heads + 8) * 0x1p-24 * (relu + lost));
        }
        const double scale = (double)o.k_scale[j];
        v->add((double)logits[j], exact * scale, fabs(scale) * bound + 0x1p-126);
    }
}

static void report(bool fine, const shape &s, const char *what, const outcome &v)
{
    checks += 1;
    failures += !fine;
    printf("%s %zu queries, %zu keys, %zu heads of %zu, %s: relative error %.2e, worst %.3f of the bound, %ld beyond\n",
           fine ? "ok    " : "FAILED", s.queries, s.keys, s.heads, s.width, what, v.relative_error(), v.worst,
           v.beyond);
}

static void check_small(const shape &s)
{
    const operands o = make(s);
    std::vector<float> defined(s.queries * s.keys);
    tsr_index_scores on_host = o.args;
    on_host.q = o.q.data(), on_host.k = o.k.data(), on_host.k_scale = o.k_scale.data();
    on_host.weights = o.weights.data(), on_host.seen = o.seen.data(), on_host.logits = defined.data();
    tsr_index_scores_run(&on_host);
    const std::vector<float> plain = run(o, TSR_INDEX_PLAIN);
    report(memcmp(plain.data(), defined.data(), plain.size() * sizeof(float)) == 0, s, "plain, bits", outcome());
    if (s.width == 128 && (s.heads == 32 || s.heads == 64)) {
        const std::vector<float> fast = run(o, TSR_INDEX_FAST), again = run(o, TSR_INDEX_FAST);
        const outcome v = judge_rows(
            s.queries, [&](int64_t i, outcome *found) { judge_query(o, (size_t)i, &fast[(size_t)i * s.keys], found); });
        const bool near = v.relative_error() < 1e-2; /* the bound of each score would allow more for all */
        report(near && v.beyond == 0 && memcmp(fast.data(), again.data(), fast.size() * sizeof(float)) == 0, s, "fast",
               v);
    }
    release(o);
}

/* Sums of 13 bits over 128 products, weighed, differ by far less than a hundredth of the scores. */
static void check_long(const shape &s)
{
    const operands o = make(s);
    const std::vector<float> plain = run(o, TSR_INDEX_PLAIN), fast = run(o, TSR_INDEX_FAST);
    outcome v;
    for (size_t at = 0; at < plain.size(); ++at) {
        if (isinf(plain[at])) {
            v.beyond += fast[at] != plain[at];
        } else {
            v.add((double)fast[at], (double)plain[at], INFINITY);
        }
    }
    report(v.beyond == 0 && v.relative_error() < 5e-3, s, "fast against plain", v);
    release(o);
}

static void check_refusals(void)
{
    const operands o = make({2, 10, 64, 128});
    tsr_err err;
    const auto expect = [&](const tsr_index_scores &a, tsr_index_kind kind, tsr_status status, const char *what) {
        checks += 1;
        if (tsr_cuda_index_scores(&a, kind, 0, &err) != status) {
            failures += 1;
            printf("FAILED %s is not refused as it should be\n", what);
        }
    };
    tsr_index_scores a = o.args;
    a.heads = 48;
    expect(a, TSR_INDEX_FAST, TSR_E_UNSUPPORTED, "the fast kernel for 48 heads");
    a = o.args, a.k += 4;
    expect(a, TSR_INDEX_FAST, TSR_E_UNSUPPORTED, "the fast kernel for codes that are not aligned");
    a = o.args, a.keys = (size_t)1 << 40;
    expect(a, TSR_INDEX_PLAIN, TSR_E_SHAPE, "2^40 keys");
    a = o.args, a.queries = 0;
    expect(a, TSR_INDEX_FAST, TSR_OK, "no query");
    release(o);
}

int main(int argc, char **argv)
{
    (void)need_hopper();
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    for (const size_t heads : {32, 64}) {
        for (const size_t keys : {1, 127, 128, 129, 1000}) {
            check_small({3, keys, heads, 128});
        }
        check_small({1, 300, heads, 128});
        check_small({70, 700, heads, 128});
    }
    check_small({5, 200, 5, 40});
    check_small({2, 130, 64, 96});
    check_refusals();
    if (argc < 2 || strcmp(argv[1], "small") != 0) {
        check_long({1, 131072, 64, 128});
        check_long({600, 20000, 64, 128});
        check_long({1000, 9001, 32, 128});
    }
    return conclude();
}
