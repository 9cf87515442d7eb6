/* Divides the sequences of MLA decoding into parts for the multiprocessors, in plain arithmetic: the plan kernel runs
 * it on the device, its unit test on the host.
 *
 * The sequences are placed one after another on a line, each as long as its pages plus a fixed cost, and assigned to
 * the parts in order. A part takes as much as its payload allows. If a sequence is cut, the part that continues it pays
 * the fixed cost again. So payloads of (line / parts, rounded up) + the fixed cost are sufficient: a part that ends
 * with a cut is full, and pays at most one fixed cost that is not on the line; a part that ends with a sequence has at
 * most the fixed cost left. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TSR_MLA_ANYWHERE static __host__ __device__ inline
#else
#define TSR_MLA_ANYWHERE static inline
#endif

enum {
    TSR_MLA_FIXED_COST = 3, /* cost of a sequence's share for a part, besides its pages, in pages */
    TSR_MLA_TRIES = 32,     /* schedules that are tried, one per lane of a warp */
    TSR_MLA_NEAR = 20,      /* parts may be longer by 1 / this if no sequence is cut then, */
    TSR_MLA_COMBINE = 2,    /* or by this many pages, in whose time parts are combined otherwise */
};

/* The sequence and page where a part begins; or the first and the last part of a sequence. */
typedef struct __attribute__((aligned(8))) tsr_mla_pair {
    int32_t x, y;
} tsr_mla_pair;

/* The capacity of a part, and whether it may end within a sequence. */
typedef struct tsr_mla_payload {
    int32_t most;
    bool cuts;
} tsr_mla_payload;

/* Returns the schedules to try, best first: parts that are somewhat longer but cut no sequence, so that nothing must be
 * combined; then the shortest sufficient parts. A part of a cut sequence has at least one page besides the fixed
 * cost. */
TSR_MLA_ANYWHERE tsr_mla_payload tsr_mla_try(int lane, int32_t line, int parts)
{
    enum { kWhole = TSR_MLA_TRIES / 2, kLeast = TSR_MLA_FIXED_COST + 1 };
    const int32_t even = (line + parts - 1) / parts, least = even > kLeast ? even : kLeast;
    tsr_mla_payload p = {least + lane - kWhole, true};
    if (lane < kWhole) {
        const int32_t near = least / TSR_MLA_NEAR, more = near > TSR_MLA_COMBINE ? near : TSR_MLA_COMBINE;
        p.most = least + more * lane / (kWhole - 1);
        p.cuts = false;
    }
    return p;
}

/* Assigns the sequences to parts. start[b] is the position of sequence b on the line, start[batch] its end. Returns
 * true if the parts are sufficient. begin [parts + 1] and span [batch] may both be NULL. */
TSR_MLA_ANYWHERE bool tsr_mla_deal(const int32_t *start, int batch, int parts, tsr_mla_payload payload,
                                   tsr_mla_pair *begin, tsr_mla_pair *span)
{
    int b = 0, page = 0, head = 0;                  /* head: the part that contains page 0 of b */
    int32_t at = start[0], next = start[batch > 0]; /* the position of b, and of the next sequence */
    for (int part = 0; part < parts; ++part) {
        if (begin) {
            begin[part].x = b, begin[part].y = page;
        }
        int room = payload.most;
        while (b < batch && next - at - page <= room) {
            room -= next - at - page;
            if (span) {
                span[b].x = page == 0 ? part : head, span[b].y = part;
            }
            b += 1;
            page = 0;
            at = next;
            next = b < batch ? start[b + 1] : at;
        }
        if (payload.cuts && b < batch && room > TSR_MLA_FIXED_COST) {
            head = page == 0 ? part : head;
            page += room - TSR_MLA_FIXED_COST;
        }
    }
    if (begin) {
        begin[parts].x = batch, begin[parts].y = 0;
    }
    return b == batch;
}

/* Does the same for sequences that are all `each` long on the line, in steps of parts instead of sequences. Of span it
 * writes entry 0 and those of sequences that are cut. */
TSR_MLA_ANYWHERE bool tsr_mla_deal_alike(int32_t each, int batch, int parts, tsr_mla_payload payload,
                                         tsr_mla_pair *begin, tsr_mla_pair *span)
{
    int b = 0, page = 0, head = 0; /* head: the part that contains page 0 of b */
    if (span) {
        span[0].x = 0, span[0].y = 0;
    }
    for (int part = 0; part < parts; ++part) {
        if (begin) {
            begin[part].x = b, begin[part].y = page;
        }
        int room = payload.most;
        if (b < batch && each - page <= room) {
            room -= each - page;
            if (span && page > 0) {
                span[b].x = head, span[b].y = part;
            }
            const int others = batch - b - 1, whole = room / each < others ? room / each : others;
            room -= whole * each;
            b += 1 + whole;
            page = 0;
        }
        if (payload.cuts && b < batch && room > TSR_MLA_FIXED_COST) {
            head = page > 0 ? head : part;
            page += room - TSR_MLA_FIXED_COST;
        }
    }
    if (begin) {
        begin[parts].x = batch, begin[parts].y = 0;
    }
    return b == batch;
}
