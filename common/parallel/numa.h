/* Memory nodes of the machine. A thread that runs on the processors of one node and touches its memory first has that
 * memory nearby. */
#pragma once

#include <sched.h>
#include <stdbool.h>

#define TSR_NUMA_NODES "/sys/devices/system/node"

enum { TSR_MAX_NODES = 64 };

/* The processors of each node that the process may use. Nodes without any are left out. */
typedef struct tsr_numa {
    unsigned n;
    cpu_set_t nodes[TSR_MAX_NODES];
} tsr_numa;

/* Reads `folder`/nodeN/cpulist; `allowed`: the processors that the process may use. */
void tsr_numa_read(tsr_numa *numa, const char *folder, const cpu_set_t *allowed);

/* This machine's. */
void tsr_numa_find(tsr_numa *numa);

/* Binds the calling thread, number `index` of `n` workers, to one node, round-robin. With fewer workers than nodes, or
 * only one node, the system places them. */
void tsr_numa_bind(const tsr_numa *numa, unsigned index, unsigned n);
