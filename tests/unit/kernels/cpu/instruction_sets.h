/* The instruction sets for which a kernel may have its own form. */
#pragma once

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/variants.h"

#include <stdbool.h>
#include <stdlib.h>

enum { SETS = 3 };

static const unsigned kSets[SETS] = {TSR_CPU_AVX2, TSR_CPU_AVX2 | TSR_CPU_AVX512, TSR_CPU_ALL};

/* Returns the flags of this machine, read once: on a virtual machine this takes longer than most kernels. */
static inline unsigned machines_flags(void)
{
    static unsigned flags;
    static bool asked;
    flags = asked ? flags : tsr_cpu_flags();
    asked = true;
    return flags;
}

/* Returns the set's kernels; false if this machine does not support it. */
static inline bool take_set(int s, tsr_cpu_kernels *k)
{
    tsr_cpu_kernels_init(k, kSets[s] & machines_flags());
    return (kSets[s] & machines_flags()) == kSets[s];
}

/* Works like take_set(), with the reference kernels for set -1. */
static inline bool take_set_or_reference(int s, tsr_cpu_kernels *k)
{
    if (s >= 0)
        return take_set(s, k);
    tsr_cpu_kernels_init(k, 0);
    return true;
}

/* Writes the kernels of all sets of this machine. Returns their number. */
static inline int take_sets(tsr_cpu_kernels k[SETS])
{
    int count = 0;
    while (count < SETS && take_set(count, &k[count]))
        count++;
    return count;
}

/* Returns the step of a sweep over scales, each with all its numbers: 1, or a larger step for an emulator or a
 * sanitizer (tests/aarch64/run.sh, tests/run.sh). */
static inline int sweep_step(void)
{
    const char *const asked = getenv("TESSERA_SWEEP_STEP");
    return asked == NULL ? 1 : atoi(asked);
}
