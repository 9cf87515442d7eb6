/* Detects instruction sets, and fills the table of CPU kernels from kernels.inc. */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/variants.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <stdbool.h>

/* Not every compiler's __builtin_cpu_supports knows F16C. That the OS saves the registers follows from AVX2. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

unsigned tsr_cpu_flags(void)
{
    unsigned flags = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2") && has_f16c()) {
        flags |= TSR_CPU_AVX2;
    }
    /* The AVX-512 files are compiled with the AVX2 set as well. */
    if ((flags & TSR_CPU_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512cd")) {
        flags |= TSR_CPU_AVX512;
    }
    if ((flags & TSR_CPU_AVX512) && __builtin_cpu_supports("avx512vbmi")) {
        flags |= TSR_CPU_VBMI;
    }
    return flags;
}

const char *tsr_cpu_name(unsigned flags)
{
    if (flags & TSR_CPU_VBMI) {
        return "avx512+vbmi";
    }
    if (flags & TSR_CPU_AVX512) {
        return "avx512";
    }
    return flags & TSR_CPU_AVX2 ? "avx2" : "scalar";
}
#elif defined __aarch64__
#include <sys/auxv.h>

unsigned tsr_cpu_flags(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMD ? TSR_CPU_NEON : 0;
}

const char *tsr_cpu_name(unsigned flags)
{
    return flags & TSR_CPU_NEON ? "neon" : "scalar";
}
#else
unsigned tsr_cpu_flags(void)
{
    return 0;
}

const char *tsr_cpu_name(unsigned flags)
{
    (void)flags;
    return "scalar";
}
#endif

void tsr_cpu_kernels_init(tsr_cpu_kernels *kernels, unsigned flags)
{
    (void)flags; /* for architectures that have only the references */
#define TSR_OP(op, type) kernels->op = tsr_##op##_ref;
#define TSR_KERNEL(op, needed, variant)     \
    if ((flags & (needed)) == (needed)) {   \
        kernels->op = tsr_##op##_##variant; \
    }
#include "kernels/cpu/kernels.inc"
#undef TSR_OP
#undef TSR_KERNEL
}
