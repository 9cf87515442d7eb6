/* Memory nodes of the machine: a thread that stays on the processors of one, and touches its memory first, has it near. */
#ifndef TSR_COMMON_PARALLEL_NUMA_H
#define TSR_COMMON_PARALLEL_NUMA_H

#include <sched.h>
#include <stdbool.h>

#define TSR_NUMA_NODES "/sys/devices/system/node"

enum { TSR_MAX_NODES = 64 };

/* The processors of each node that the process may use; nodes without any are left out. */
typedef struct tsr_numa {
    unsigned n;
    cpu_set_t nodes[TSR_MAX_NODES];
} tsr_numa;

/* Reads `folder`/nodeN/cpulist; `allowed`: the processors that the process may use. */
void tsr_numa_read(tsr_numa *numa, const char *folder, const cpu_set_t *allowed);

/* This machine's. */
void tsr_numa_find(tsr_numa *numa);

/* Keeps the calling thread, the `index`-th of `n` workers, on one node: they go around the nodes in turn. Where there are fewer
 * workers than nodes, or one node, the system places them as it likes. */
void tsr_numa_bind(const tsr_numa *numa, unsigned index, unsigned n);

#endif
