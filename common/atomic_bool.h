/* atomic_bool, by the name that C gives it, where C++ includes the header too. */
#ifndef TSR_COMMON_ATOMIC_BOOL_H
#define TSR_COMMON_ATOMIC_BOOL_H

#ifdef __cplusplus
#include <atomic>
using std::atomic_bool;
#else
#include <stdatomic.h>
#endif

#endif
