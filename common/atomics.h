/* Makes C's names of atomic types available to headers that C++ also includes. */
#pragma once

#ifdef __cplusplus
#include <atomic>
using std::atomic_bool;
using std::atomic_uint;
using std::atomic_ullong;
#else
#include <stdatomic.h>
#endif
