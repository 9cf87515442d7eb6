/* Reads memory nodes from sysfs. */
#include "common/parallel/numa.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Parses "0-15,32-47". Returns false if the text is invalid. */
static bool parse_list(const char *text, cpu_set_t *cpus)
{
    CPU_ZERO(cpus);
    while (*text != '\0' && *text != '\n') {
        char *end;
        const unsigned long first = strtoul(text, &end, 10);
        unsigned long last = first;
        if (end == text)
            return false;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        if (last < first || last >= CPU_SETSIZE)
            return false;
        for (unsigned long cpu = first; cpu <= last; cpu++)
            CPU_SET(cpu, cpus);
        text = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != '\0' && *end != '\n')
            return false;
    }
    return true;
}

static bool read_node(const char *folder, unsigned node, cpu_set_t *cpus)
{
    char path[256], text[4096];
    snprintf(path, sizeof path, "%s/node%u/cpulist", folder, node);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n < 0 ? 0 : n] = '\0';
    return n > 0 && parse_list(text, cpus);
}

void tsr_numa_read(tsr_numa *numa, const char *folder, const cpu_set_t *allowed)
{
    numa->n = 0;
    for (unsigned node = 0; node < TSR_MAX_NODES; node++) {
        cpu_set_t *const cpus = &numa->nodes[numa->n];
        if (!read_node(folder, node, cpus))
            continue;
        CPU_AND(cpus, cpus, allowed);
        numa->n += CPU_COUNT(cpus) > 0;
    }
}

void tsr_numa_find(tsr_numa *numa)
{
    cpu_set_t allowed;
    numa->n = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        tsr_numa_read(numa, TSR_NUMA_NODES, &allowed);
}

void tsr_numa_bind(const tsr_numa *numa, unsigned index, unsigned n)
{
    if (numa->n > 1 && n >= numa->n)
        (void)sched_setaffinity(0, sizeof *numa->nodes, &numa->nodes[index % numa->n]);
}
