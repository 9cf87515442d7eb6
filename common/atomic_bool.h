/* Makes C's name atomic_bool available to headers that C++ includes as well. */
#ifndef TSR_COMMON_ATOMIC_BOOL_H
#define TSR_COMMON_ATOMIC_BOOL_H

#ifdef __cplusplus
#include <atomic>
using std::atomic_bool;
#else
#include <stdatomic.h>
#endif

#endif
