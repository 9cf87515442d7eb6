/* Tests reading memory nodes from sysfs, and the assignment of workers to nodes. */
#include "common/parallel/numa.h"

#include "tests/unit/fixture.h"

static tsr_numa numa;
static cpu_set_t allowed;

static void node(unsigned number, const char *list)
{
    char name[32];
    snprintf(name, sizeof name, "node%u", number);
    cr_assert_eq(mkdir(fixture_path(name), 0777), 0);
    snprintf(name, sizeof name, "node%u/cpulist", number);
    fixture_text(name, list);
}

static void begin(void)
{
    fixture_make();
    CPU_ZERO(&allowed);
    for (int cpu = 0; cpu < 48; cpu++)
        CPU_SET(cpu, &allowed);
}

TestSuite(numa, .init = begin, .fini = fixture_remove);

Test(numa, lists_are_read)
{
    node(0, "0-15,32\n");
    node(1, "\n"); /* memory alone */
    node(2, "16,18-19\n");
    node(5, "33-90\n");
    node(6, "90-95\n"); /* none that may be used */
    node(7, "7-what\n");
    tsr_numa_read(&numa, fixture_folder, &allowed);
    cr_assert_eq(numa.n, 3);
    cr_assert_eq(CPU_COUNT(&numa.nodes[0]), 17);
    cr_assert(CPU_ISSET(32, &numa.nodes[0]) && !CPU_ISSET(16, &numa.nodes[0]));
    cr_assert_eq(CPU_COUNT(&numa.nodes[1]), 3);
    cr_assert(!CPU_ISSET(17, &numa.nodes[1]));
    cr_assert_eq(CPU_COUNT(&numa.nodes[2]), 15);
}

Test(numa, workers_go_around)
{
    cpu_set_t mine, now;
    cr_assert_eq(sched_getaffinity(0, sizeof mine, &mine), 0);
    if (CPU_COUNT(&mine) < 2)
        cr_skip_test("one processor has no two nodes");
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE && seen < 2; cpu++) {
        char list[16];
        if (!CPU_ISSET(cpu, &mine))
            continue;
        snprintf(list, sizeof list, "%d\n", cpu);
        node((unsigned)seen++, list);
    }
    tsr_numa_read(&numa, fixture_folder, &mine);
    cr_assert_eq(numa.n, 2);
    tsr_numa_bind(&numa, 0, 1);
    cr_assert(sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &mine), "fewer workers than nodes");
    for (unsigned i = 0; i < 4; i++) {
        tsr_numa_bind(&numa, i, 4);
        cr_assert(sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &numa.nodes[i % 2]), "worker %u", i);
    }
}
