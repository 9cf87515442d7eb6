/* Implements the compression of tokens to entries of a cache on the CPU. */
#include "verify/forward/forward_ops.h"

#include "common/parallel/parallel_for.h"

#include <math.h>

/* The tokens of a window, whose columns begin at `column`. */
typedef struct window {
    const tsr_op_compress *a;
    size_t token, column, width;
} window;

static double gate_of(const window *w, size_t i, size_t channel)
{
    const size_t at = w->column + channel;
    return tsr_doubles(w->a->gates)[(w->token + i) * w->width + at] + w->a->bias[i * w->width + at];
}

/* Computes one channel of the entry of n windows. */
static double compress_channel(const window *windows, size_t n, size_t channel)
{
    const size_t rate = windows->a->rate;
    double most = -INFINITY, sum = 0, total = 0;
    for (size_t i = 0; i < n * rate; i++)
        most = fmax(most, gate_of(&windows[i / rate], i % rate, channel));
    for (size_t i = 0; i < n * rate; i++) {
        const window *const w = &windows[i / rate];
        const double share = exp(gate_of(w, i % rate, channel) - most);
        total += share;
        sum += share * tsr_doubles(w->a->values)[(w->token + i % rate) * w->width + w->column + channel];
    }
    return sum / total;
}

static tsr_status compress_entry(void *context, size_t entry, size_t worker, tsr_err *err)
{
    const tsr_op_compress *const a = context;
    const size_t width = a->overlaps ? 2 * a->dim : a->dim;
    size_t s = 0;
    (void)worker, (void)err;
    while (a->entries->first[s + 1] <= entry)
        s++;
    const size_t number = entry - a->entries->first[s], token = a->tokens->first[s] + number * a->rate;
    const window own = {a, token, width - a->dim, width}, before = {a, token - a->rate, 0, width};
    const bool has_before = a->overlaps && number > 0;
    const window windows[] = {has_before ? before : own, own};
    for (size_t c = 0; c < a->dim; c++)
        tsr_doubles(a->out)[entry * a->dim + c] = compress_channel(windows, has_before ? 2 : 1, c);
    return TSR_OK;
}

tsr_status tsr_cpu_compress(tsr_ops *ops, const tsr_op_compress *a, tsr_err *err)
{
    tsr_op_compress args = *a;
    return tsr_parallel_for(a->entries->count, ops->threads, ops->cancel, compress_entry, &args, err);
}
