/* Defines the interleaving: moves one code at a time by the address formula. */
#include "kernels/cpu/interleave.h"

#include "kernels/cpu/variants.h"

/* Returns the position of a code: the byte from the start, and its half. */
static tsr_ft_place code_place(const tsr_interleave_args *args, size_t k, size_t n)
{
    const size_t row = args->order == TSR_CODES_NK ? n : k, col = args->order == TSR_CODES_NK ? k : n;
    return args->packed ? (tsr_ft_place){row * args->ld + col / 2, col % 2} : (tsr_ft_place){row * args->ld + col, 0};
}

static void put_nibble(uint8_t *byte, unsigned nibble, unsigned value)
{
    const unsigned shift = 4 * nibble;
    *byte = (uint8_t)((*byte & ~(0xFu << shift)) | (value & 0xF) << shift);
}

void tsr_interleave_ref(const tsr_interleave_args *args, const uint8_t *codes, uint8_t *out)
{
    const tsr_ft_format *const f = args->format;
    for (size_t n = 0; n < args->n; n++) {
        for (size_t k = 0; k < args->k; k++) {
            const tsr_ft_place from = code_place(args, k, n), to = tsr_ft_place_of(f, args->k, args->n, k, n);
            const unsigned stored = (unsigned)(codes[from.byte] >> 4 * from.nibble) ^ f->bias;
            if (f->bits == 8) {
                out[to.byte] = (uint8_t)stored;
            } else {
                put_nibble(&out[to.byte], to.nibble, stored);
            }
        }
    }
}

void tsr_deinterleave_ref(const tsr_interleave_args *args, const uint8_t *in, uint8_t *codes)
{
    const tsr_ft_format *const f = args->format;
    for (size_t n = 0; n < args->n; n++) {
        for (size_t k = 0; k < args->k; k++) {
            const tsr_ft_place from = tsr_ft_place_of(f, args->k, args->n, k, n), to = code_place(args, k, n);
            const unsigned code = (unsigned)(in[from.byte] >> 4 * from.nibble) ^ f->bias;
            if (args->packed) {
                put_nibble(&codes[to.byte], to.nibble, code);
            } else {
                codes[to.byte] = (uint8_t)(f->bits == 8 ? code : ((code & 0xF) ^ 8u) - 8u);
            }
        }
    }
}
