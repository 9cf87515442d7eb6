/* Generates random tokens, and reads them from tensors. */
#include "verify/forward/tokens/tokens.h"

#include "common/checked.h"
#include "verify/evidence/activations.h"
#include "verify/values/weight_reader.h"

#include <stdlib.h>
#include <string.h>

tsr_status tsr_tokens_reserve(tsr_tokens *t, size_t sequences, size_t count, tsr_err *err)
{
    *t = (tsr_tokens){.first = calloc(sequences + 1, sizeof *t->first), .ids = malloc((count + 1) * sizeof *t->ids)};
    return t->first == NULL || t->ids == NULL ? tsr_fail(err, TSR_E_NOMEM, "out of memory for %zu tokens", count)
                                              : TSR_OK;
}

void tsr_tokens_end_sequence(tsr_tokens *t)
{
    const size_t length = t->count - t->first[t->sequences];
    t->first[++t->sequences] = t->count;
    t->longest = tsr_max_u64(t->longest, length);
}

tsr_status tsr_tokens_draw(tsr_tokens *t, uint64_t seed, size_t sequences, size_t length, uint64_t vocabulary,
                           tsr_err *err)
{
    const uint64_t state = tsr_seed_of(seed, "tokens");
    TSR_TRY(tsr_tokens_reserve(t, sequences, sequences * length, err));
    for (size_t s = 0; s < sequences; s++) {
        for (size_t i = 0; i < length; i++, t->count++)
            t->ids[t->count] = tsr_mix_bits(state + t->count) % vocabulary;
        tsr_tokens_end_sequence(t);
    }
    return TSR_OK;
}

tsr_status tsr_tokens_load(tsr_tokens *t, const tsr_checkpoint *file, const tsr_tensor *tensor, uint64_t vocabulary,
                           tsr_err *err)
{
    const size_t n = (size_t)tsr_tensor_elements(tensor);
    if (tensor->rank != 2 || n == 0 || (tensor->dtype != TSR_I64 && tensor->dtype != TSR_I32))
        return tsr_fail(err, TSR_E_SHAPE, "%s: '%s' is not [sequences, length] of I64 or I32", file->path,
                        tensor->name);
    const size_t sequences = (size_t)tensor->shape[0], length = (size_t)tensor->shape[1];
    double *const values = malloc(n * sizeof *values);
    tsr_status status = values == NULL ? tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", tensor->name)
                                       : tsr_decode_tensor(file, tensor, values, err);
    if (status == TSR_OK)
        status = tsr_tokens_reserve(t, sequences, n, err);
    for (size_t i = 0; status == TSR_OK && i < n; i++) {
        if (values[i] < 0 || values[i] >= (double)vocabulary)
            status = tsr_fail(err, TSR_E_VALUE, "%s: '%s'[%zu, %zu] is not below the vocabulary size %llu", file->path,
                              tensor->name, i / length, i % length, (unsigned long long)vocabulary);
        else
            t->ids[t->count++] = (uint64_t)values[i];
        if (status == TSR_OK && (i + 1) % length == 0)
            tsr_tokens_end_sequence(t);
    }
    free(values);
    return status;
}

/* Appends a copy of sequence s of `from`. */
static void append_sequence(tsr_tokens *t, const tsr_tokens *from, size_t s)
{
    const size_t first = from->first[s], length = from->first[s + 1] - first;
    memcpy(t->ids + t->count, from->ids + first, length * sizeof *t->ids);
    t->count += length;
    tsr_tokens_end_sequence(t);
}

tsr_status tsr_tokens_repeat(const tsr_tokens *t, size_t times, tsr_tokens *repeated, tsr_err *err)
{
    TSR_TRY(tsr_tokens_reserve(repeated, times * t->sequences, times * t->count, err));
    for (size_t s = 0; s < times * t->sequences; s++)
        append_sequence(repeated, t, s % t->sequences);
    return TSR_OK;
}

tsr_status tsr_tokens_take(const tsr_tokens *t, size_t from, size_t to, tsr_tokens *taken, tsr_err *err)
{
    TSR_TRY(tsr_tokens_reserve(taken, to - from, t->first[to] - t->first[from], err));
    for (size_t s = from; s < to; s++)
        append_sequence(taken, t, s);
    return TSR_OK;
}

size_t tsr_token_position(const tsr_tokens *t, size_t token)
{
    size_t low = 0, high = t->sequences;
    while (low + 1 < high) {
        const size_t middle = low + (high - low) / 2;
        *(t->first[middle] <= token ? &low : &high) = middle;
    }
    return token - t->first[low];
}

void tsr_tokens_free(tsr_tokens *t)
{
    free(t->first);
    free(t->ids);
    *t = (tsr_tokens){0};
}
