/* Tests that Tessera sets the default floating-point mode, whatever mode the caller had set. */
#include "common/float_bits.h"
#include "common/parallel/threads.h"

#include <criterion/criterion.h>
#include <stdint.h>

/* Sets modes of a caller that change results: rounding up, subnormals flushed; on ARM also NaN without payloads, and
 * the other format of halves. */
static void set_another_mode(void)
{
#ifdef __x86_64__
    __builtin_ia32_ldmxcsr(0xDFC0);
#elif defined __aarch64__
    __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0x07480000))); /* AHP, DN, FZ, rounding up, FZ16 */
#endif
}

/* Operands and results that the compiler neither knows nor moves. */
static volatile float tiny = 0x1p-140f, third = 1.0f / 3.0f, one = 1.0f, product, sum;

static void compute(void)
{
    product = tiny * one;
    sum = one + 0x1p-30f;
}

Test(float_mode, results_are_defined_in_every_mode_that_others_leave)
{
    set_another_mode();
    compute();
    const uint32_t flushed = tsr_f32_bits(product), up = tsr_f32_bits(sum);
    tsr_set_float_mode();
    compute();
    cr_expect(product == 0x1p-140f && sum == 1.0f && third * 3 == 1.0f);
#if defined __x86_64__ || defined __aarch64__
    cr_expect(flushed == 0 && up == tsr_f32_bits(1.0f) + 1, "there was no other mode");
#endif
}

#ifdef __aarch64__
Test(float_mode, halves_and_payloads_are_those_of_ieee)
{
    static volatile uint32_t payload = 0x7FC12345;
    set_another_mode();
    tsr_set_float_mode();
    cr_expect_eq(tsr_f32_bits(tsr_f32_from_bits(payload) + one), 0x7FC12345);
    uint32_t half;
    __asm__ volatile("fcvt %h0, %s1" : "=w"(half) : "w"(65536.0f));
    cr_expect_eq(half & 0xFFFF, 0x7C00, "infinity, which the other format of halves has not");
}
#endif
