/* Owns what the tests of attention kernels judge by: attention of one query in FP64 on the host, the comparison with
 * what a kernel gave within a header's bound, and BF16 operands on the host. Included once a program. */
#pragma once

#include <math.h>
#include <string.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/gpu/gpu_common.cuh"
#include "tests/gpu/verdicts.cuh"

static uint64_t seed = 20261121;

static double uniform(void) /* in [-1, 1) */
{
    return (double)(mix(seed++) >> 11) * 0x1p-52 - 1.0;
}

static float widen(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t narrow(double x)
{
    const float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* A token's key, in two pieces, and value. */
struct token_rows {
    const uint16_t *nope, *rope, *value;
};

struct exact_row {
    std::vector<double> sum, mass; /* sums of p v and p |v| */
    double lse = -INFINITY;
    double largest = 0; /* scale times the largest sum of |q k| */
};

/* token(t) is a token_rows. */
template <typename Token>
static exact_row attend_exactly(int nope, int rope, int value, double scale, const uint16_t *query, int64_t visible,
                                const Token &token)
{
    exact_row e;
    e.sum.resize((size_t)value);
    e.mass.resize((size_t)value);
    std::vector<double> p;
    double most = -INFINITY, total = 0;
    for (int64_t t = 0; t < visible; ++t) {
        const token_rows k = token(t);
        double score = 0, absolute = 0;
        for (int c = 0; c < nope + rope; ++c) {
            const double product = (double)widen(query[c]) * (double)widen(c < nope ? k.nope[c] : k.rope[c - nope]);
            score += product;
            absolute += fabs(product);
        }
        p.push_back(score * scale);
        most = std::max(most, p.back());
        e.largest = std::max(e.largest, absolute * scale);
    }
    for (double &x : p) {
        x = exp(x - most);
        total += x;
    }
    for (int64_t t = 0; t < visible; ++t) {
        const uint16_t *const v = token(t).value;
        const double weight = p[(size_t)t] / total;
        for (int c = 0; c < value; ++c) {
            const double x = weight * (double)widen(v[c]);
            e.sum[(size_t)c] += x;
            e.mass[(size_t)c] += fabs(x);
        }
    }
    if (visible > 0) {
        e.lse = most + log(total);
    }
    return e;
}

struct outcome {
    long beyond = 0;
    double worst = 0, error = 0, exact = 0;
    double lean = 0; /* sum of error * exact, the error with its sign */
    long rows = 0;

    void add(double got, double want, double bound)
    {
        const double off = fabs(got - want);
        lean += (got - want) * want;
        beyond += !(off <= bound);
        worst = std::max(worst, off / bound);
        error += off * off;
        exact += want * want;
    }

    /* `d` bounds the error of a score. */
    void add_lse(double got, double want, double d)
    {
        beyond += isinf(want) ? got != want : !(fabs(got - want) <= d + 0x1p-18 * (1 + fabs(want)));
    }

    void add(const outcome &other)
    {
        beyond += other.beyond;
        worst = std::max(worst, other.worst);
        error += other.error, exact += other.exact;
        lean += other.lean, rows += other.rows;
    }

    /* By which part of themselves results are too large. */
    double slope() const
    {
        return exact > 0 ? lean / exact : 0.0;
    }

    /* Returns true if that is more than roundings leave: a row shares those of its probabilities, about 2^-10 of its
     * values, so that 64 rows leave an eighth of it. No single result shows that all are 0.2 % too large. */
    bool leans() const
    {
        return rows >= 64 && !(fabs(slope()) <= 0x1p-10);
    }

    double relative_error() const
    {
        return exact > 0 ? sqrt(error / exact) : 0.0;
    }
};

/* The share of a bound for rounding to BF16. */
static double with_rounding(double want, double bound)
{
    return bound + (fabs(want) + bound) * 0x1p-8 + 0x1p-133;
}

/* judge(row, &outcome) of every row, by up to 16 threads. */
template <typename Judge> static outcome judge_rows(size_t rows, const Judge &judge)
{
    const size_t workers = std::min<size_t>(rows, 16);
    std::vector<outcome> found(workers);
    std::vector<std::thread> threads;
    for (size_t w = 0; w < workers; ++w) {
        threads.emplace_back([&, w] {
            for (size_t r = w; r < rows; r += workers) {
                judge((int64_t)r, &found[w]);
                found[w].rows += 1;
            }
        });
    }
    outcome all;
    for (size_t w = 0; w < workers; ++w) {
        threads[w].join();
        all.add(found[w]);
    }
    return all;
}
