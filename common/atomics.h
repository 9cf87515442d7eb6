/* Makes C's names of atomic types available to headers that C++ also includes. */
#ifndef TSR_COMMON_ATOMICS_H
#define TSR_COMMON_ATOMICS_H

#ifdef __cplusplus
#include <atomic>
using std::atomic_bool;
using std::atomic_uint;
using std::atomic_ullong;
#else
#include <stdatomic.h>
#endif

#endif
