/* Decodes one row of one dtype, eight elements at a time. */
#include "verify/values/decode.h"

#include "verify/values/lanes.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A float format with fewer bits than FP32. */
typedef struct small_float {
    uint32_t magnitude;       /* mask of all bits except the sign */
    uint32_t smallest_normal; /* smaller magnitudes are subnormal */
    uint32_t special;         /* larger or equal magnitudes are Inf or NaN */
    unsigned mantissa_shift, sign_shift;
    uint32_t rebase; /* 127 minus the exponent bias */
} small_float;

/* The only special code of e4m3 has mantissa bits, so it becomes NaN in FP32, not Inf. */
static const small_float kE4m3 = {0x7F, 8, 0x7F, 20, 24, 120};
static const small_float kE2m1 = {7, 2, 8, 22, 28, 126}; /* no code is special */
static const small_float kE2m3 = {0x1F, 8, 0x20, 20, 26, 126};
static const small_float kE3m2 = {0x1F, 4, 0x20, 21, 26, 124};
static const small_float kF16 = {0x7FFF, 0x400, 0x7C00, 13, 16, 112};

/* Moves sign, exponent and mantissa to their positions in FP32. A subnormal is then read as 2^e * (1 + f), and 2^e is
 * subtracted again. This is exact and needs no subnormal operand, which processors handle slowly. */
static ALWAYS_INLINE void widen(const u32_lanes *bits, small_float format, f32_lanes *value)
{
    const u32_lanes magnitude = *bits & format.magnitude, sign = *bits & (format.magnitude + 1);
    const u32_lanes subnormal = (u32_lanes)(magnitude < format.smallest_normal);
    const u32_lanes special = (u32_lanes)(magnitude >= format.special) & 0x7F800000u;
    const u32_lanes placed = (magnitude << format.mantissa_shift) + (format.rebase << 23) + (subnormal & (1u << 23));
    const f32_lanes number = (f32_lanes)placed - (f32_lanes)(subnormal & ((format.rebase + 1) << 23));
    *value = (f32_lanes)((u32_lanes)number | special | sign << format.sign_shift);
}

/* Decodes codes of a byte each. */
static ALWAYS_INLINE void decode_bytes(const unsigned char *codes, size_t n, small_float format, double scale,
                                       double *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        u8_lanes c = {0};
        f32_lanes value;
        LOAD(c, codes + i, n - i);
        const u32_lanes bits = __builtin_convertvector(c, u32_lanes);
        widen(&bits, format, &value);
        const f64_lanes product = __builtin_convertvector(value, f64_lanes) * scale;
        STORE(out + i, product, n - i);
    }
}

static ALWAYS_INLINE void decode_words(const unsigned char *bytes, size_t n, bool bf16, double *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        u16_lanes x = {0};
        LOAD(x, bytes + 2 * i, n - i);
        const u32_lanes bits = __builtin_convertvector(x, u32_lanes);
        f32_lanes value;
        if (bf16)
            value = (f32_lanes)(bits << 16);
        else
            widen(&bits, kF16, &value);
        const f64_lanes wide = __builtin_convertvector(value, f64_lanes);
        STORE(out + i, wide, n - i);
    }
}

static ALWAYS_INLINE void decode_f32(const unsigned char *bytes, size_t n, double *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        f32_lanes x = {0};
        LOAD(x, bytes + 4 * i, n - i);
        const f64_lanes wide = __builtin_convertvector(x, f64_lanes);
        STORE(out + i, wide, n - i);
    }
}

static double power_of_two(unsigned char exponent)
{
    const uint64_t bits = exponent == 0xFF ? 0x7FF8000000000000u : (uint64_t)(exponent + 1023 - 127) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

#define DECODE_PLAIN(type)                          \
    for (size_t i = 0; i < n; i++) {                \
        type x;                                     \
        memcpy(&x, bytes + i * sizeof x, sizeof x); \
        out[i] = (double)x;                         \
    }                                               \
    break

static void decode_rare(tsr_dtype dtype, const unsigned char *bytes, size_t n, double *out)
{
    switch (dtype) {
    case TSR_F8_E8M0:
        for (size_t i = 0; i < n; i++)
            out[i] = power_of_two(bytes[i]);
        break;
    case TSR_F64:
        memcpy(out, bytes, n * sizeof *out);
        break;
    case TSR_I8:
        DECODE_PLAIN(int8_t);
    case TSR_I16:
        DECODE_PLAIN(int16_t);
    case TSR_U16:
        DECODE_PLAIN(uint16_t);
    case TSR_I32:
        DECODE_PLAIN(int32_t);
    case TSR_U32:
        DECODE_PLAIN(uint32_t);
    case TSR_I64:
        DECODE_PLAIN(int64_t);
    case TSR_U64:
        DECODE_PLAIN(uint64_t);
    default: /* U8, BOOL */
        DECODE_PLAIN(uint8_t);
    }
}

static ALWAYS_INLINE void decode(tsr_dtype dtype, const unsigned char *bytes, size_t n, double scale, double *out)
{
    if (dtype == TSR_F8_E4M3)
        decode_bytes(bytes, n, kE4m3, scale, out);
    else if (dtype == TSR_BF16)
        decode_words(bytes, n, true, out);
    else if (dtype == TSR_F16)
        decode_words(bytes, n, false, out);
    else if (dtype == TSR_F32)
        decode_f32(bytes, n, out);
    else
        decode_rare(dtype, bytes, n, out);
}

static ALWAYS_INLINE void decode_int4(const unsigned char *words, uint64_t at, size_t n, double zero, double scale,
                                      double *out)
{
    const u32_lanes shifts = {0, 4, 8, 12, 16, 20, 24, 28};
    for (size_t i = 0; i < n;) {
        uint32_t word;
        const uint64_t first = (at + i) % LANES;
        memcpy(&word, words + (at + i) / LANES * sizeof word, sizeof word);
        const u32_lanes codes = (((u32_lanes){0} + word) >> shifts & 15);
        const f64_lanes value = (__builtin_convertvector(codes, f64_lanes) - (8 + zero)) * scale;
        if (first == 0 && n - i >= LANES) {
            memcpy(out + i, &value, sizeof value);
            i += LANES;
        } else {
            for (uint64_t k = first; k < LANES && i < n; k++)
                out[i++] = value[k];
        }
    }
}

static ALWAYS_INLINE void decode_e2m1(const unsigned char *bytes, uint64_t at, size_t n, double scale, double *out)
{
    const u32_lanes shifts = {0, 4, 8, 12, 16, 20, 24, 28};
    const uint64_t end = (at + n + 1) / 2; /* bytes */
    for (size_t i = 0; i < n;) {
        uint32_t word = 0;
        f32_lanes value;
        const uint64_t first = (at + i) % LANES, from = (at + i) / LANES * sizeof word;
        if (end - from >= sizeof word) {
            memcpy(&word, bytes + from, sizeof word);
        } else {
            for (uint64_t k = 0; k < end - from; k++)
                word |= (uint32_t)bytes[from + k] << 8 * k;
        }
        const u32_lanes codes = ((u32_lanes){0} + word) >> shifts & 15;
        widen(&codes, kE2m1, &value);
        const f64_lanes product = __builtin_convertvector(value, f64_lanes) * scale;
        if (first == 0 && n - i >= LANES) {
            memcpy(out + i, &product, sizeof product);
            i += LANES;
        } else {
            for (uint64_t k = first; k < LANES && i < n; k++)
                out[i++] = product[k];
        }
    }
}

static ALWAYS_INLINE void decode_int8(const unsigned char *codes, unsigned char middle, size_t n, double zero,
                                      double scale, double *out)
{
    for (size_t i = 0; i < n; i += LANES) {
        u8_lanes c = {0};
        LOAD(c, codes + i, n - i);
        const u32_lanes wide = __builtin_convertvector(c ^ (unsigned char)(middle ^ 0x80), u32_lanes);
        const f64_lanes value = (__builtin_convertvector(wide, f64_lanes) - (128 + zero)) * scale;
        STORE(out + i, value, n - i);
    }
}

static ALWAYS_INLINE void decode_e2m1_codes(const unsigned char *codes, size_t n, double scale, double *out)
{
    decode_bytes(codes, n, kE2m1, scale, out);
}

static ALWAYS_INLINE void decode_six_bits(const unsigned char *codes, size_t n, bool e3m2, double scale, double *out)
{
    if (e3m2)
        decode_bytes(codes, n, kE3m2, scale, out);
    else
        decode_bytes(codes, n, kE2m3, scale, out);
}

FOR_EVERY_ISA(decode_six_bits, (const unsigned char *codes, size_t n, bool e3m2, double scale, double *out),
              (codes, n, e3m2, scale, out))
FOR_EVERY_ISA(decode_int4, (const unsigned char *words, uint64_t at, size_t n, double zero, double scale, double *out),
              (words, at, n, zero, scale, out))
FOR_EVERY_ISA(decode_e2m1, (const unsigned char *bytes, uint64_t at, size_t n, double scale, double *out),
              (bytes, at, n, scale, out))
FOR_EVERY_ISA(decode_e2m1_codes, (const unsigned char *codes, size_t n, double scale, double *out),
              (codes, n, scale, out))
FOR_EVERY_ISA(decode_int8,
              (const unsigned char *codes, unsigned char middle, size_t n, double zero, double scale, double *out),
              (codes, middle, n, zero, scale, out))

FOR_EVERY_ISA(decode, (tsr_dtype dtype, const unsigned char *bytes, size_t n, double scale, double *out),
              (dtype, bytes, n, scale, out))

void tsr_decode_scaled(tsr_dtype dtype, const unsigned char *bytes, size_t n, double scale, double *out)
{
    decode_best(dtype, bytes, n, scale, out);
}

void tsr_decode_int4(const unsigned char *words, uint64_t at, size_t n, double zero, double scale, double *out)
{
    decode_int4_best(words, at, n, zero, scale, out);
}

void tsr_decode_e2m1(const unsigned char *bytes, uint64_t at, size_t n, double scale, double *out)
{
    decode_e2m1_best(bytes, at, n, scale, out);
}

void tsr_decode_six_bits(const unsigned char *bytes, uint64_t at, size_t n, bool e3m2, double scale, double *out)
{
    enum { CHUNK = 64 };
    unsigned char codes[CHUNK];
    for (size_t done = 0; done < n; done += CHUNK) {
        const size_t count = n - done < CHUNK ? n - done : CHUNK;
        for (size_t i = 0; i < count; i++) {
            const unsigned char *const b = bytes + (at + done + i) / 4 * 3;
            const unsigned shift = (unsigned)((at + done + i) % 4) * 6;
            codes[i] = (unsigned char)((b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16) >> shift & 0x3F);
        }
        decode_six_bits_best(codes, count, e3m2, scale, out + done);
    }
}

void tsr_decode_e2m1_codes(const unsigned char *codes, size_t n, double scale, double *out)
{
    decode_e2m1_codes_best(codes, n, scale, out);
}

void tsr_decode_int8(const unsigned char *codes, unsigned char middle, size_t n, double zero, double scale, double *out)
{
    decode_int8_best(codes, middle, n, zero, scale, out);
}

void tsr_decode(unsigned char dtype, const unsigned char *bytes, size_t n, double *out)
{
    decode_best((tsr_dtype)dtype, bytes, n, 1, out);
}

tsr_status tsr_decode_tensor(const tsr_checkpoint *checkpoint, const tsr_tensor *t, double *out, tsr_err *err)
{
    unsigned char *const bytes = malloc(t->bytes + 1);
    if (bytes == NULL)
        return tsr_fail(err, TSR_E_NOMEM, "out of memory for '%s'", t->name);
    const tsr_status status = tsr_checkpoint_read(checkpoint, t, 0, bytes, t->bytes, err);
    if (status == TSR_OK)
        tsr_decode(t->dtype, bytes, (size_t)tsr_tensor_elements(t), out);
    free(bytes);
    return status;
}

tsr_status tsr_find_bad_scale(const tsr_checkpoint *checkpoint, const tsr_tensor *t, uint64_t *at, double *value,
                              tsr_err *err)
{
    const uint64_t n = tsr_tensor_elements(t);
    double *const values = malloc((size_t)(n + 1) * sizeof *values);
    const tsr_status status =
        values == NULL ? tsr_out_of_memory(err, "for scales") : tsr_decode_tensor(checkpoint, t, values, err);
    for (*at = 0; status == TSR_OK && *at < n && values[*at] > 0 && isfinite(values[*at]);)
        ++*at;
    *value = status == TSR_OK && *at < n ? values[*at] : 0;
    free(values);
    return status;
}
