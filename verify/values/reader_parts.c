/* Locates packed elements in the file and reads runs of bytes for the weight reader. */
#include "verify/values/reader_parts.h"

#include "common/checked.h"

#include <stdlib.h>

bool tsr_view_lies_across(const tsr_view *v)
{
    return v->weight.transposed || v->weight.coding == TSR_CODED_AWQ || v->weight.coding == TSR_CODED_GPTQ;
}

tsr_order tsr_view_code_order(const tsr_view *v)
{
    const bool in_order = v->misreading == TSR_AWQ_IN_ORDER || v->misreading == TSR_CODES_IN_ORDER;
    return v->weight.coding == TSR_CODED_GPTQ               ? TSR_ORDER_GPTQ
           : v->weight.coding == TSR_CODED_AWQ && !in_order ? TSR_ORDER_AWQ
                                                            : TSR_ORDER_ALONG;
}

tsr_order tsr_view_zero_order(const tsr_view *v)
{
    return v->weight.coding == TSR_CODED_AWQ && v->misreading != TSR_AWQ_IN_ORDER ? TSR_ORDER_AWQ : TSR_ORDER_ALONG;
}

tsr_span tsr_span_of(uint64_t at, uint64_t n, uint64_t bits, uint64_t unit)
{
    const uint64_t from = at * bits / unit;
    return (tsr_span){from * unit / 8, (tsr_ceil_div((at + n) * bits, unit) - from) * unit / 8};
}

tsr_status tsr_read_runs(const tsr_view *v, const tsr_tensor *t, uint64_t offset, uint64_t n, uint64_t bytes,
                         uint64_t pitch, unsigned char *to, tsr_err *err)
{
    if (bytes == pitch)
        return tsr_checkpoint_read(v->checkpoint, t, offset, to, n * bytes, err);
    for (uint64_t i = 0; i < n; i++)
        TSR_TRY(tsr_checkpoint_read(v->checkpoint, t, offset + i * pitch, to + i * bytes, bytes, err));
    return TSR_OK;
}

tsr_status tsr_reader_room(void **memory, size_t *capacity, uint64_t n, size_t size, const tsr_view *view, tsr_err *err)
{
    if (n <= *capacity)
        return TSR_OK;
    free(*memory);
    *memory = malloc(n * size);
    *capacity = *memory == NULL ? 0 : n;
    return *memory != NULL ? TSR_OK
                           : tsr_fail(err, TSR_E_NOMEM, "out of memory for a piece of '%s'", view->weight.values->name);
}
