/* The sets of instructions for which a kernel may have a form of its own. */
#ifndef TSR_TESTS_UNIT_KERNELS_CPU_INSTRUCTION_SETS_H
#define TSR_TESTS_UNIT_KERNELS_CPU_INSTRUCTION_SETS_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variants.h"

enum { SETS = 3 };

static const unsigned kSets[SETS] = {TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};

/* The set's kernels; false if this machine has not got it. */
static inline bool take_set(int s, tsr_cpu_kernels *k)
{
    tsr_cpu_kernels_init(k, kSets[s] & tsr_cpu_flags());
    return (kSets[s] & tsr_cpu_flags()) == kSets[s];
}

#endif
