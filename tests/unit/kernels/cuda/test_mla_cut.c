/* Tests how MLA decoding divides sequences: each token is in one part, and no part is much longer than the average. */
#include "kernels/cuda/mla_decode_cut.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/random_bits.h"

enum { MOST_BATCH = 400, MOST_PARTS = 144, F = TSR_MLA_FIXED_COST };

/* A batch by its sequences' pages, and the schedule for it. */
typedef struct batch {
    int count, parts, tried; /* tried: the one that was taken */
    int32_t start[MOST_BATCH + 1];
    tsr_mla_pair begin[MOST_PARTS + 1], span[MOST_BATCH];
} batch;

/* The resulting schedule. */
typedef struct outcome {
    int32_t longest;   /* part, in pages and fixed costs */
    int cut, smallest; /* sequences that lie in several parts; pages of the shortest share of those */
} outcome;

static int32_t pages_of(const batch *b, int i)
{
    return b->start[i + 1] - b->start[i] - F;
}

static void add(batch *b, int32_t pages)
{
    b->start[b->count + 1] = b->start[b->count] + F + pages;
    b->count++;
}

static int32_t even_part(const batch *b)
{
    return (b->start[b->count] + b->parts - 1) / b->parts;
}

/* As the plan's warp does it: the first try that holds everything. */
static void schedule(batch *b)
{
    for (b->tried = 0; b->tried < TSR_MLA_TRIES; b->tried++) {
        const tsr_mla_payload p = tsr_mla_try(b->tried, b->start[b->count], b->parts);
        if (tsr_mla_deal(b->start, b->count, b->parts, p, NULL, NULL)) {
            cr_assert(tsr_mla_deal(b->start, b->count, b->parts, p, b->begin, b->span));
            return;
        }
    }
    cr_assert_fail("no try holds %d sequences in %d parts", b->count, b->parts);
}

/* Walks the parts as the kernel does, and holds what it finds to the sequences. */
static outcome walk(const batch *b)
{
    outcome o = {.longest = 0, .cut = 0, .smallest = INT32_MAX};
    int32_t covered[MOST_BATCH] = {0};
    int shares[MOST_BATCH] = {0};
    for (int part = 0; part < b->parts; part++) {
        const tsr_mla_pair end = b->begin[part + 1];
        tsr_mla_pair at = b->begin[part];
        int32_t length = 0;
        while (at.x < end.x || (at.x == end.x && at.y < end.y)) {
            const int32_t last = at.x == end.x ? end.y : pages_of(b, at.x);
            cr_assert_eq(covered[at.x], at.y, "sequence %d goes on at page %d, not %d", at.x, covered[at.x], at.y);
            cr_assert(b->span[at.x].x <= part && part <= b->span[at.x].y);
            cr_assert(shares[at.x] > 0 || b->span[at.x].x == part, "span begins elsewhere");
            const bool whole = at.y == 0 && last == pages_of(b, at.x);
            cr_assert_eq(whole, b->span[at.x].x == b->span[at.x].y);
            if (!whole) {
                cr_assert(at.x == b->begin[part].x || at.x == end.x,
                          "a part has slots for its first and its last sequence");
                o.smallest = last - at.y < o.smallest ? last - at.y : o.smallest;
            }
            covered[at.x] = last;
            shares[at.x]++;
            length += last - at.y + F;
            at.x++, at.y = 0;
        }
        o.longest = length > o.longest ? length : o.longest;
    }
    for (int i = 0; i < b->count; i++) {
        cr_assert_eq(covered[i], pages_of(b, i), "sequence %d: %d of %d pages", i, covered[i], pages_of(b, i));
        cr_assert_eq(shares[i], b->span[i].y - b->span[i].x + 1);
        o.cut += shares[i] > 1;
    }
    return o;
}

/* No schedule has a longest part below `even_part`: each sequence costs its pages and the fixed cost once at least. */
static outcome check(batch *b)
{
    schedule(b);
    const outcome o = walk(b);
    const int32_t even = even_part(b), least = even > F + 1 ? even : F + 1;
    const int32_t slack = least / TSR_MLA_NEAR > F ? least / TSR_MLA_NEAR : F;
    cr_assert_leq(o.longest, least + slack, "%d sequences, %d parts: %d against %d", b->count, b->parts, o.longest,
                  even);
    cr_assert(o.cut == 0 || o.longest <= even + F, "cut, and longer than needed: %d against %d", o.longest, even);
    cr_assert_geq(o.smallest, 1, "a share without pages");
    return o;
}

Test(mla_cut, random_batches)
{
    for (int run = 0; run < 3000; run++) {
        const int count = 1 + (int)(random_bits() % MOST_BATCH), longest = 1 << random_bits() % 12;
        batch b = {.parts = 1 + (int)(random_bits() % MOST_PARTS)};
        while (b.count < count) {
            add(&b, random_bits() % 50 == 0 ? 3000 : (int32_t)(random_bits() % (uint64_t)longest));
        }
        (void)check(&b);
    }
}

Test(mla_cut, ragged_lengths_of_the_benchmark)
{
    static const int kParts[] = {132, 66};
    for (int run = 0; run < 200; run++) {
        batch b = {.parts = kParts[run % 2]};
        while (b.count < 128) {
            add(&b, (int32_t)((1 + random_bits() % 8191 + 63) / 64));
        }
        cr_assert_gt(check(&b).cut, 0);
    }
}

Test(mla_cut, even_lengths_are_not_cut)
{
    static const struct {
        int count, pages, parts;
    } kBatches[] = {{128, 64, 66},   {128, 128, 66}, {64, 256, 66}, {132, 128, 132},
                    {128, 128, 132}, {128, 64, 33},  {1, 9, 1},     {1, 2, 66}};
    for (size_t i = 0; i < sizeof kBatches / sizeof *kBatches; i++) {
        batch b = {.parts = kBatches[i].parts};
        while (b.count < kBatches[i].count) {
            add(&b, kBatches[i].pages);
        }
        cr_assert_eq(check(&b).cut, 0, "batch %zu", i);
    }
}

/* Deals sequences of `pages` pages without their positions, and compares with the schedule by positions. */
static void check_alike(int count, int32_t pages, int parts)
{
    batch b = {.parts = parts};
    tsr_mla_pair begin[MOST_PARTS + 1], span[MOST_BATCH];
    while (b.count < count) {
        add(&b, pages);
    }
    schedule(&b);
    memset(span, 0xFF, sizeof span);
    for (int tried = 0; tried <= b.tried; tried++) {
        const tsr_mla_payload p = tsr_mla_try(tried, b.start[b.count], parts);
        cr_assert_eq(tsr_mla_deal_alike(pages + F, count, parts, p, begin, span), tried == b.tried);
    }
    cr_assert_arr_eq(begin, b.begin, sizeof *begin * ((size_t)parts + 1), "%d of %d in %d", count, pages, parts);
    cr_assert(span[0].x >= 0 && span[0].y < parts, "entry 0 is read even if no sequence is cut");
    for (int i = 0; i < count; i++) {
        if (b.span[i].x != b.span[i].y) {
            cr_assert_arr_eq(&span[i], &b.span[i], sizeof *span, "%d of %d in %d: %d", count, pages, parts, i);
        }
    }
    cr_assert(count < TSR_MLA_NEAR * parts || walk(&b).cut == 0, "%d of %d in %d: cut", count, pages, parts);
}

Test(mla_cut, sequences_of_one_length)
{
    for (int run = 0; run < 3000; run++) {
        const int count = 1 + (int)(random_bits() % MOST_BATCH), parts = 1 + (int)(random_bits() % MOST_PARTS);
        check_alike(count, (int32_t)(random_bits() % 100), parts);
    }
    for (int parts = 1; parts < 20; parts++) {
        check_alike(MOST_BATCH, 32, parts);
    }
}

Test(mla_cut, one_long_sequence_is_shared_by_all)
{
    batch b = {.parts = 66};
    add(&b, 1024);
    const outcome o = check(&b);
    cr_assert_eq(b.span[0].x, 0);
    cr_assert_geq(b.span[0].y, 63);
    cr_assert_eq(o.longest, (1024 + 65) / 66 + F);
}

Test(mla_cut, empty_sequences_are_taken_once)
{
    batch b = {.parts = 132};
    while (b.count < 300) {
        add(&b, b.count == 150 ? 700 : 0);
    }
    (void)check(&b);
}
