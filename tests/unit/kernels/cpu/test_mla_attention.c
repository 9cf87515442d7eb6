/* Tests decoding attention over a paged latent cache against sums in double: all tokens, and lists of rows. */
#include "common/float_bits.h"
#include "kernels/cpu/mla_attention.h"
#include "tests/unit/random_bits.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = 3,
    S_Q = 2,
    HEADS = 3,
    LATENT = 256,
    ROPE = 16,
    WIDTH = LATENT + ROPE,
    PAGE = 8,
    PAGES = 9,
    ROWS = PAGE * PAGES,
    TOP_K = 100,
    MAX_PAGES = 3,
    QUERIES = BATCH * S_Q
};

static uint16_t q[QUERIES * HEADS * WIDTH];
static uint8_t cache[ROWS * WIDTH * 2];
static float rows[ROWS][WIDTH], out[QUERIES * HEADS * LATENT], scratch[WIDTH];
static int32_t table[BATCH * MAX_PAGES], indices[QUERIES * TOP_K];
static const int32_t kLengths[BATCH] = {20, 1, 0};

static float draw(void)
{
    return (float)(int64_t)(random_bits() % 2001) / 1000 - 1;
}

/* Fills a cache whose pages are in reverse order. Rows that no sequence has are NaN. */
static void fill(bool fp8)
{
    const size_t bytes = tsr_mla_cache_row_bytes(LATENT, ROPE, fp8);
    float values[WIDTH];
    size_t next = PAGES;
    memset(cache, 0xFF, sizeof cache);
    memset(table, 0xFF, sizeof table);
    for (size_t i = 0; i < QUERIES * HEADS * WIDTH; i++)
        q[i] = tsr_bf16_from_f32(draw());
    for (size_t b = 0; b < BATCH; b++) {
        for (size_t t = 0; t < (size_t)kLengths[b]; t++) {
            if (t % PAGE == 0)
                table[b * MAX_PAGES + t / PAGE] = (int32_t)--next;
            const size_t row = (size_t)table[b * MAX_PAGES + t / PAGE] * PAGE + t % PAGE;
            for (size_t i = 0; i < WIDTH; i++)
                values[i] = draw() * (i < 128 ? 1 : 100);
            tsr_mla_cache_write(values, LATENT, ROPE, fp8, cache + row * bytes);
            tsr_mla_cache_read(cache + row * bytes, LATENT, ROPE, fp8, rows[row]);
        }
    }
}

static tsr_mla_attention arguments(bool fp8)
{
    return (tsr_mla_attention){.q = q,
                               .cache = cache,
                               .block_table = table,
                               .seqlens = kLengths,
                               .out = out,
                               .row = scratch,
                               .batch = BATCH,
                               .s_q = S_Q,
                               .heads = HEADS,
                               .latent = LATENT,
                               .rope = ROPE,
                               .page = PAGE,
                               .max_pages = MAX_PAGES,
                               .pages = PAGES,
                               .scale = 0.01f,
                               .fp8 = fp8};
}

/* Compares the result of one query with sums in double over the rows of a list, within the bound of the header. */
static void expect(const tsr_mla_attention *a, size_t query, const int32_t *list, size_t n)
{
    static double p[TOP_K];
    for (size_t h = 0; h < HEADS; h++) {
        const uint16_t *const x = q + (query * HEADS + h) * WIDTH;
        double largest = 0, most = -INFINITY, total = 0;
        size_t seen = 0;
        for (size_t t = 0; t < n; t++) {
            double size = 0, sum = 0;
            p[t] = -INFINITY;
            if (list[t] < 0)
                continue;
            for (size_t i = 0; i < WIDTH; i++) {
                const double product = (double)tsr_f32_from_bf16(x[i]) * (double)rows[list[t]][i];
                sum += product;
                size += fabs(product);
            }
            p[t] = sum * (double)a->scale;
            largest = fmax(largest, size);
            most = fmax(most, p[t]);
            seen++;
        }
        for (size_t t = 0; t < n; t++)
            total += p[t] = seen == 0 ? 0 : exp(p[t] - most);
        const double d = (double)a->scale * (WIDTH + 2) * 0x1p-24 * largest;
        const double bound = 2.1 * d + (2 * (double)seen + 16) * 0x1p-24;
        for (size_t i = 0; i < LATENT; i++) {
            double exact = 0, mass = 0;
            for (size_t t = 0; t < n; t++) {
                const double part = p[t] > 0 ? p[t] / total * (double)rows[list[t]][i] : 0;
                exact += part;
                mass += fabs(part);
            }
            const float got = out[(query * HEADS + h) * LATENT + i];
            cr_assert(fabs((double)got - exact) <= bound * mass, "query %zu, head %zu, element %zu: %g, not %g", query,
                      h, i, (double)got, exact);
        }
    }
}

/* Writes the rows of the first n tokens of a sequence to a list. */
static void list_tokens(size_t b, size_t n, int32_t *list)
{
    for (size_t t = 0; t < n; t++)
        list[t] = table[b * MAX_PAGES + t / PAGE] * PAGE + (int32_t)(t % PAGE);
}

Test(mla_attention, all_tokens)
{
    for (int fp8 = 0; fp8 < 2; fp8++) {
        fill(fp8);
        const tsr_mla_attention a = arguments(fp8);
        memset(out, 0xFF, sizeof out);
        tsr_mla_attention_run(&a);
        for (size_t i = 0; i < QUERIES; i++) {
            const size_t length = (size_t)kLengths[i / S_Q], last = length + i % S_Q + 1;
            const size_t n = last > S_Q ? last - S_Q : 0;
            list_tokens(i / S_Q, n, indices);
            expect(&a, i, indices, n);
        }
    }
}

/* Lists of each kind: all tokens of a sequence, some of them, one, one twice, a row of another sequence, and none. */
Test(mla_attention, lists_of_rows)
{
    for (int fp8 = 0; fp8 < 2; fp8++) {
        fill(fp8);
        tsr_mla_attention a = arguments(fp8);
        memset(indices, 0xFF, sizeof indices);
        list_tokens(0, 20, indices + 40);    /* at the end of many entries without a row */
        list_tokens(0, 20, indices + TOP_K); /* all in another order, with entries of -1 between them */
        for (size_t t = 0; t < 20; t++) {
            const size_t to = t * 37 % 41;
            const int32_t moved = indices[TOP_K + to];
            indices[TOP_K + to] = indices[TOP_K + t];
            indices[TOP_K + t] = moved;
        }
        indices[2 * TOP_K + 99] = table[0] * PAGE + 3; /* one */
        indices[3 * TOP_K] = indices[3 * TOP_K + 7] = indices[3 * TOP_K + 8] =
            table[0] * PAGE + 1; /* one, three times */
        indices[3 * TOP_K + 1] = table[0] * PAGE + 2;
        indices[4 * TOP_K + 50] = table[MAX_PAGES] * PAGE; /* a row of another sequence */
        a.indices = indices;
        a.top_k = TOP_K;
        a.block_table = a.seqlens = NULL;
        memset(out, 0xFF, sizeof out);
        tsr_mla_attention_run(&a);
        for (size_t i = 0; i < QUERIES; i++)
            expect(&a, i, indices + i * TOP_K, TOP_K);
        for (size_t i = 5 * HEADS * LATENT; i < 6 * HEADS * LATENT; i++)
            cr_assert_eq(out[i], 0);        /* a query whose entries are all -1 */
        for (size_t i = 0; i < LATENT; i++) /* the only row has all the weight */
            cr_assert_eq(out[2 * HEADS * LATENT + i], rows[table[0] * PAGE + 3][i]);
    }
}

Test(mla_attention, an_empty_list_gives_zeros)
{
    fill(false);
    tsr_mla_attention a = arguments(false);
    a.indices = indices;
    a.top_k = 0;
    memset(out, 0xFF, sizeof out);
    tsr_mla_attention_run(&a);
    for (size_t i = 0; i < QUERIES * HEADS * LATENT; i++)
        cr_assert_eq(out[i], 0);
}

/* A list of all tokens in their order takes the same steps as no list. */
Test(mla_attention, a_whole_list_has_the_bits_of_no_list)
{
    static float whole[QUERIES * HEADS * LATENT];
    fill(true);
    tsr_mla_attention a = arguments(true);
    tsr_mla_attention_run(&a);
    memcpy(whole, out, sizeof out);
    memset(indices, 0xFF, sizeof indices);
    for (size_t i = 0; i < QUERIES; i++) {
        const size_t last = (size_t)kLengths[i / S_Q] + i % S_Q + 1;
        list_tokens(i / S_Q, last > S_Q ? last - S_Q : 0, indices + i * TOP_K);
    }
    a.indices = indices;
    a.top_k = TOP_K;
    tsr_mla_attention_run(&a);
    cr_assert_arr_eq(out, whole, sizeof out);
}
