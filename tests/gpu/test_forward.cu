/* Checks the quantization of inputs and the rounding of a forward pass on a GPU against the CPU's, bit for bit, in FP64
 * and FP32. */
#include <math.h>
#include <string.h>
#include <string>

#include "kernels/cuda/activation_ops.h"
#include "tests/gpu/gpu_common.cuh"
#include "tests/gpu/verdicts.cuh"

extern "C" {
#include "verify/forward/inputs.h"
}

enum { kRows = 192, kColumns = 1000 /* groups of 16, 32 and 128 end with a shorter one */ };

static double unit(uint64_t at)
{
    return (double)(mix(at) >> 11) * 0x1p-52 - 1;
}

/* Rows of many sizes. The largest number of every third row makes a scale that is a power of two; rows are of one sign,
 * have zeros only, or hold one value, too. */
static std::vector<double> make_rows(void)
{
    std::vector<double> x((size_t)kRows * kColumns);
    for (int i = 0; i < kRows; ++i) {
        double *const row = &x[(size_t)i * kColumns];
        const double size = ldexp(1.0, i % 40 - 20);
        for (int j = 0; j < kColumns; ++j) {
            const double v = unit((uint64_t)i << 32 | (uint64_t)j) * size;
            row[j] = i % 11 == 5   ? 0
                     : i % 11 == 6 ? size
                     : i % 11 == 7 ? fabs(v) + size
                     : i % 11 == 8 ? -fabs(v) - size
                                   : v;
        }
        for (int j = 0; i % 3 == 0 && j < kColumns; j += 16) {
            row[j] = (j % 32 == 0 ? 1.75 : -1.5) * size; /* 448 and 6 times a power of two */
        }
        for (int j = 5; i % 13 == 1 && j < kColumns; j += 50) {
            row[j] = NAN;
        }
    }
    return x;
}

template <typename T> static size_t count_different(const std::vector<T> &x, const std::vector<double> &y)
{
    size_t found = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        const T expected = (T)y[i];
        found += !(isnan(x[i]) && isnan(expected)) && memcmp(&x[i], &expected, sizeof expected) != 0;
    }
    return found;
}

template <typename T> static const tsr_precision kPrecision = TSR_PRECISION_FP64;
template <> const tsr_precision kPrecision<float> = TSR_PRECISION_FP32;

/* Runs an operation on a copy of the rows in T. Its results have to be `expected`. */
template <typename T, typename RUN>
static void compare(const char *name, const std::vector<double> &rows, const std::vector<double> &expected, RUN run)
{
    T *const x = upload(std::vector<T>(rows.begin(), rows.end()));
    tsr_err err;
    CHECK_TSR(run(x, &err), err);
    const size_t found = count_different(download(x, rows.size()), expected);
    verdict(found == 0, (std::string(name) + (sizeof(T) == 4 ? ", FP32" : ", FP64")).c_str(),
            (std::to_string(found) + " values differ from the CPU's").c_str());
    CHECK(cudaFree(x));
}

/* Returns the rows as T holds them. */
template <typename T> static std::vector<double> as_held(std::vector<double> rows)
{
    for (double &v : rows) {
        v = (double)(T)v;
    }
    return rows;
}

template <typename T> static void check_quantize(const tsr_input_coding &c, const std::vector<double> &numbers)
{
    const std::vector<double> rows = as_held<T>(numbers);
    std::vector<double> expected = rows;
    for (int i = 0; i < kRows; ++i) {
        tsr_input_quantize(&c, &expected[(size_t)i * kColumns], kColumns);
    }
    char name[128], text[80];
    snprintf(name, sizeof name, "%s%s, scale %g, zero point %g", tsr_input_coding_text(&c, text, sizeof text),
             c.powers_of_two ? ", powers of two" : "", c.scale, c.zero);
    compare<T>(name, rows, expected, [&](T *x, tsr_err *err) {
        tsr_act_quantize q = {};
        q.x = x, q.rows = kRows, q.n = kColumns, q.group = c.group > 0 ? c.group : kColumns, q.type = (int)c.type;
        q.zero_points = c.zero_points, q.powers_of_two = c.powers_of_two, q.scale = c.scale, q.zero = c.zero;
        return tsr_cuda_act_quantize(&q, kPrecision<T>, 0, err);
    });
}

template <typename T> static void check_round(std::vector<double> rows)
{
    for (const double edge : {0x1.FEp127, 0x1.FEFFFFFFp127, 0x1.FFp127, 0x1.FFFFFEp127, 0x1p-133, 0x1.8p-134, 0x1p-134,
                              0x1p-140, 0x1.01p0, 0x1.03p0, 0x1.0100000001p0, 0.0, -0.0, (double)INFINITY}) {
        rows.push_back(edge);
        rows.push_back(-edge);
    }
    rows = as_held<T>(rows);
    std::vector<double> expected = rows;
    for (double &v : expected) {
        v = tsr_round_bf16(v);
    }
    compare<T>("rounding to BF16", rows, expected,
               [&](T *x, tsr_err *err) { return tsr_cuda_act_round(x, rows.size(), kPrecision<T>, 0, err); });
}

int main(void)
{
    (void)need_gpu();
    static const tsr_input_coding kCodings[] = {
        {TSR_INPUT_FP8, 128, false, false, 0, 0},     {TSR_INPUT_FP8, 0, false, false, 0, 0},
        {TSR_INPUT_FP8, 128, false, true, 0, 0},      {TSR_INPUT_FP8, 32, false, true, 0, 0},
        {TSR_INPUT_FP8, 0, false, false, 0.0123, 0},  {TSR_INPUT_INT8, 0, false, false, 0, 0},
        {TSR_INPUT_INT8, 0, true, false, 0, 0},       {TSR_INPUT_INT8, 0, false, false, 0.017, 0},
        {TSR_INPUT_INT8, 0, true, false, 0.017, -37}, {TSR_INPUT_FP4, 32, false, true, 0, 0},
        {TSR_INPUT_FP4, 16, false, false, 448, 0},    {TSR_INPUT_FP4, 16, false, false, 3.7, 0}};
    const std::vector<double> rows = make_rows();
    for (const tsr_input_coding &c : kCodings) {
        check_quantize<double>(c, rows);
        check_quantize<float>(c, rows);
    }
    check_round<double>(rows);
    check_round<float>(rows);
    return conclude();
}
