/* Computes digests of pieces, tensors and files. */
#include "convert/records/digests.h"

#include "common/checked.h"

#include <stdlib.h>
#include <string.h>

/* Shorter inputs are digested at once, which is faster. */
enum { SHORT = 4096 };

/* ---- pieces ---- */

/* Finds the outputs for which each unit makes one run of bytes, directly after that of the unit before. */
static uint8_t find_by_unit(const tsr_step *step)
{
    uint64_t end[TSR_MAX_OUTPUTS] = {0};
    unsigned by_unit = 0;
    for (unsigned i = 0; i < step->n_out; i++)
        by_unit |= tsr_is_buffered(step, i) ? 0u : 1u << i;
    for (uint64_t unit = 0, n = step->op->units.count(step); unit < n && by_unit != 0; unit++) {
        const tsr_unit u = tsr_step_unit(step, unit);
        for (unsigned i = 0; i < step->n_out; i++) {
            const tsr_window *const w = &u.out[i];
            if (tsr_window_bytes(w) == 0 || !tsr_window_is_gapless(w) || w->offset != end[i])
                by_unit &= ~(1u << i);
            end[i] += tsr_window_bytes(w);
        }
    }
    for (unsigned i = 0; i < step->n_out; i++)
        by_unit &= end[i] == step->out[i]->bytes ? ~0u : ~(1u << i);
    return (uint8_t)by_unit;
}

static uint64_t pieces_in(uint64_t bytes)
{
    return tsr_ceil_div(bytes, TSR_DIGEST_PIECE);
}

static uint64_t pieces_of(const tsr_step *step, uint8_t by_unit, unsigned i)
{
    return (by_unit >> i & 1) != 0 ? step->op->units.count(step) : pieces_in(step->out[i]->bytes);
}

/* Returns the most pieces that a step has. */
static uint64_t most_pieces(const tsr_plan *plan, size_t index)
{
    const tsr_step *const step = &plan->steps[index];
    if (plan->files[step->file].appended)
        return pieces_in(plan->files[step->file].bytes);
    uint64_t n = 0;
    for (unsigned i = 0; i < step->n_out; i++)
        n += tsr_is_buffered(step, i) ? pieces_of(step, 0, i)
                                      : tsr_max_u64(step->op->units.count(step), pieces_of(step, 0, i));
    return n;
}

uint64_t tsr_digests_memory(const tsr_plan *plan)
{
    uint64_t pieces = plan->n_files;
    for (size_t s = 0; s < plan->n_steps; s++)
        pieces += most_pieces(plan, s);
    return pieces * sizeof(tsr_digest) + plan->n_steps * sizeof(tsr_step_pieces);
}

tsr_status tsr_digests_begin(tsr_digests *d, const tsr_plan *plan, tsr_err *err)
{
    uint64_t n = 0;
    *d = (tsr_digests){.plan = plan,
                       .steps = calloc(plan->n_steps + 1, sizeof *d->steps),
                       .headers = calloc(plan->n_files + 1, sizeof *d->headers),
                       .sizes = calloc(plan->n_files + 1, sizeof *d->sizes)};
    bool ok = d->steps != NULL && d->headers != NULL && d->sizes != NULL;
    for (size_t s = 0; ok && s < plan->n_steps; s++) {
        const tsr_step *const step = &plan->steps[s];
        const bool appended = plan->files[step->file].appended;
        d->steps[s] = (tsr_step_pieces){.first = n, .by_unit = appended ? 0 : find_by_unit(step)};
        n += appended ? most_pieces(plan, s) : 0;
        for (unsigned i = 0; !appended && i < step->n_out; i++)
            n += pieces_of(step, d->steps[s].by_unit, i);
    }
    d->pieces = ok ? calloc(n + 1, sizeof *d->pieces) : NULL;
    d->n_pieces = n;
    ok = d->pieces != NULL;
    if (!ok)
        tsr_digests_end(d);
    return ok ? TSR_OK : tsr_out_of_memory(err, "for the digests");
}

void tsr_digests_end(tsr_digests *d)
{
    free(d->steps);
    free(d->pieces);
    free(d->headers);
    free(d->sizes);
    *d = (tsr_digests){0};
}

tsr_digest *tsr_digests_of(const tsr_digests *d, size_t file, uint64_t *count)
{
    const tsr_out_file *const f = &d->plan->files[file];
    const size_t end_step = f->first_step + f->n_steps;
    *count = 0;
    if (f->n_steps == 0)
        return d->pieces;
    const uint64_t first = d->steps[f->first_step].first;
    *count = (end_step < d->plan->n_steps ? d->steps[end_step].first : d->n_pieces) - first;
    return &d->pieces[first];
}

void tsr_digests_clear(tsr_digests *d, size_t file)
{
    uint64_t n;
    tsr_digest *const pieces = tsr_digests_of(d, file, &n);
    memset(&d->headers[file], 0, sizeof *d->headers);
    d->sizes[file] = 0;
    memset(pieces, 0, n * sizeof *pieces);
}

uint64_t tsr_digests_count(const tsr_digests *d, size_t index, unsigned i)
{
    const tsr_step *const step = &d->plan->steps[index];
    if (d->plan->files[step->file].appended)
        return pieces_in(d->sizes[step->file]);
    return pieces_of(step, d->steps[index].by_unit, i);
}

tsr_digest *tsr_digests_at(const tsr_digests *d, size_t index, unsigned i)
{
    uint64_t at = d->steps[index].first;
    for (unsigned k = 0; k < i; k++)
        at += pieces_of(&d->plan->steps[index], d->steps[index].by_unit, k);
    return &d->pieces[at];
}

uint64_t tsr_piece_bytes(const tsr_digests *d, size_t index, unsigned i, uint64_t k)
{
    const tsr_step *const step = &d->plan->steps[index];
    if (tsr_is_by_unit(d, index, i)) {
        const tsr_unit u = tsr_step_unit(step, k);
        return tsr_window_bytes(&u.out[i]);
    }
    const uint64_t all = d->plan->files[step->file].appended ? d->sizes[step->file] : step->out[i]->bytes;
    return tsr_min_u64(TSR_DIGEST_PIECE, all - k * TSR_DIGEST_PIECE);
}

/* ---- digests ---- */

tsr_digest tsr_digest_of(const tsr_cpu_kernels *kernels, const void *data, uint64_t size)
{
    if (size < SHORT)
        return XXH3_128bits(data, size);
    XXH3_state_t hash;
    (void)XXH3_128bits_reset(&hash);
    kernels->hash_xxh3(&hash, data, size);
    return XXH3_128bits_digest(&hash);
}

void tsr_digests_take(const tsr_digests *d, const tsr_cpu_kernels *kernels, size_t step, unsigned i, const void *data)
{
    tsr_digest *const to = tsr_digests_at(d, step, i);
    const uint64_t bytes = d->plan->steps[step].out[i]->bytes;
    for (uint64_t at = 0; at < bytes; at += TSR_DIGEST_PIECE)
        to[at / TSR_DIGEST_PIECE] =
            tsr_digest_of(kernels, (const char *)data + at, tsr_min_u64(TSR_DIGEST_PIECE, bytes - at));
}

void tsr_digests_feed(tsr_digests *d, const tsr_cpu_kernels *kernels, size_t step, XXH3_state_t *stream, uint64_t *fed,
                      const void *data, uint64_t size)
{
    tsr_digest *const to = &d->pieces[d->steps[step].first];
    const char *from = data;
    while (size > 0) {
        const uint64_t n = tsr_min_u64(size, TSR_DIGEST_PIECE - *fed % TSR_DIGEST_PIECE);
        if (*fed % TSR_DIGEST_PIECE == 0)
            (void)XXH3_128bits_reset(stream);
        kernels->hash_xxh3(stream, from, n);
        from += n;
        size -= n;
        *fed += n;
        to[(*fed - 1) / TSR_DIGEST_PIECE] = XXH3_128bits_digest(stream); /* bytes hashed so far */
    }
    d->sizes[d->plan->steps[step].file] = *fed;
}

/* ---- of pieces, tensors and files ---- */

enum { AT_A_TIME = 64 };

tsr_digest tsr_digest_of_digests(const tsr_digest *items, uint64_t n)
{
    XXH128_canonical_t bytes[AT_A_TIME];
    XXH3_state_t hash;
    if (n == 1)
        return items[0];
    (void)XXH3_128bits_reset(&hash);
    for (uint64_t i = 0; i < n; i += AT_A_TIME) {
        const uint64_t some = tsr_min_u64(AT_A_TIME, n - i);
        for (uint64_t k = 0; k < some; k++)
            XXH128_canonicalFromHash(&bytes[k], items[i + k]);
        (void)XXH3_128bits_update(&hash, bytes, some * sizeof *bytes);
    }
    return XXH3_128bits_digest(&hash);
}

static int by_place(const void *a, const void *b)
{
    const tsr_file_part *const x = a, *const y = b;
    if (x->tensor->offset != y->tensor->offset)
        return x->tensor->offset < y->tensor->offset ? -1 : 1;
    /* an empty tensor sorts before the tensor at the same offset */
    if ((x->tensor->bytes == 0) != (y->tensor->bytes == 0))
        return x->tensor->bytes == 0 ? -1 : 1;
    return x->step != y->step ? (x->step < y->step ? -1 : 1) : (int)x->output - (int)y->output;
}

size_t tsr_file_parts(const tsr_plan *plan, size_t file, tsr_file_part *parts)
{
    const tsr_out_file *const f = &plan->files[file];
    size_t n = 0;
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++) {
        for (unsigned i = 0; i < plan->steps[s].n_out; i++)
            parts[n++] = (tsr_file_part){.tensor = plan->steps[s].out[i], .step = s, .output = i};
    }
    qsort(parts, n, sizeof *parts, by_place);
    return n;
}

tsr_status tsr_digests_file(const tsr_digests *d, size_t file, tsr_digest *digest, tsr_err *err)
{
    const tsr_out_file *const f = &d->plan->files[file];
    if (f->appended) {
        const uint64_t n = tsr_digests_count(d, f->first_step, 0);
        *digest = tsr_digest_of_digests(tsr_digests_at(d, f->first_step, 0), n);
        return TSR_OK;
    }
    const size_t most = TSR_MAX_OUTPUTS * f->n_steps + 1;
    tsr_file_part *const parts = malloc(most * sizeof *parts);
    tsr_digest *const all = malloc(most * sizeof *all);
    const bool ok = parts != NULL && all != NULL;
    if (ok) {
        const size_t head = f->raw ? 0 : 1, n = tsr_file_parts(d->plan, file, parts);
        all[0] = d->headers[file];
        for (size_t k = 0; k < n; k++)
            all[head + k] = tsr_digest_of_digests(tsr_digests_at(d, parts[k].step, parts[k].output),
                                                  tsr_digests_count(d, parts[k].step, parts[k].output));
        *digest = tsr_digest_of_digests(all, head + n);
    }
    free(parts);
    free(all);
    return ok ? TSR_OK : tsr_out_of_memory(err, "for the digest of a file");
}
