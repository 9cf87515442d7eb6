/* Implements the part of Criterion that the unit tests use, for builds that run under an emulator.
 *
 * Criterion starts each test by tracing a new process, which qemu-user cannot do. Here each test runs in a fork. A
 * test file is one program, so this header also defines `main`. */
#pragma once

#pragma GCC system_header /* includes it like an installed header: it is not part of the tests */

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct unit_case {
    const char *suite, *name;
    void (*run)(void), (*init)(void), (*fini)(void);
    struct unit_case *next;
} unit_case;

static unit_case *unit_cases, *unit_suites;
static unsigned unit_failures;

static inline void unit_append(unit_case **list, unit_case *added)
{
    while (*list != NULL)
        list = &(*list)->next;
    *list = added;
}

#define Test(of, called, ...)                                                           \
    static void unit_run_##of##_##called(void);                                         \
    static unit_case unit_case_##of##_##called = {                                      \
        .suite = #of, .name = #called, .run = unit_run_##of##_##called, ##__VA_ARGS__}; \
    static void __attribute__((constructor)) unit_add_##of##_##called(void)             \
    {                                                                                   \
        unit_append(&unit_cases, &unit_case_##of##_##called);                           \
    }                                                                                   \
    static void unit_run_##of##_##called(void)

#define TestSuite(of, ...)                                             \
    static unit_case unit_suite_##of = {.suite = #of, ##__VA_ARGS__};  \
    static void __attribute__((constructor)) unit_add_suite_##of(void) \
    {                                                                  \
        unit_append(&unit_suites, &unit_suite_##of);                   \
    }                                                                  \
    struct unit_case

static inline __attribute__((format(printf, 5, 6))) bool unit_judge(bool holds, const char *what, const char *file,
                                                                    int line, const char *format, ...)
{
    if (holds)
        return true;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s:%d: %s:", file, line, what);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    unit_failures++;
    return false;
}

static inline int unit_end_case(const unit_case *test, const unit_case *suite)
{
    if (test->fini != NULL)
        test->fini();
    if (suite != NULL && suite->fini != NULL)
        suite->fini();
    fflush(NULL);
    return unit_failures == 0 ? 0 : 1;
}

static const unit_case *unit_running, *unit_running_suite;

#define UNIT_EXPECT(holds, what, ...) ((void)unit_judge(holds, what, __FILE__, __LINE__, " " __VA_ARGS__))
#define UNIT_ASSERT(holds, what, ...)                             \
    (unit_judge(holds, what, __FILE__, __LINE__, " " __VA_ARGS__) \
         ? (void)0                                                \
         : _exit(unit_end_case(unit_running, unit_running_suite)))

#define cr_expect(holds, ...)          UNIT_EXPECT((holds), #holds, __VA_ARGS__)
#define cr_expect_not(holds, ...)      UNIT_EXPECT(!(holds), "not " #holds, __VA_ARGS__)
#define cr_expect_null(p, ...)         UNIT_EXPECT((p) == NULL, #p " == NULL", __VA_ARGS__)
#define cr_expect_not_null(p, ...)     UNIT_EXPECT((p) != NULL, #p " != NULL", __VA_ARGS__)
#define cr_expect_eq(a, b, ...)        UNIT_EXPECT((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_expect_neq(a, b, ...)       UNIT_EXPECT((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_expect_lt(a, b, ...)        UNIT_EXPECT((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_expect_leq(a, b, ...)       UNIT_EXPECT((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_expect_gt(a, b, ...)        UNIT_EXPECT((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_expect_geq(a, b, ...)       UNIT_EXPECT((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_expect_str_eq(a, b, ...)    UNIT_EXPECT(strcmp((a), (b)) == 0, #a " is the text " #b, __VA_ARGS__)
#define cr_expect_arr_eq(a, b, n, ...) UNIT_EXPECT(memcmp((a), (b), (n)) == 0, #a " has the bytes of " #b, __VA_ARGS__)
#define cr_expect_float_eq(a, b, e, ...) \
    UNIT_EXPECT(fabs((double)(a) - (double)(b)) <= (double)(e), #a " is near " #b, __VA_ARGS__)
#define cr_assert(holds, ...)          UNIT_ASSERT((holds), #holds, __VA_ARGS__)
#define cr_assert_not(holds, ...)      UNIT_ASSERT(!(holds), "not " #holds, __VA_ARGS__)
#define cr_assert_null(p, ...)         UNIT_ASSERT((p) == NULL, #p " == NULL", __VA_ARGS__)
#define cr_assert_not_null(p, ...)     UNIT_ASSERT((p) != NULL, #p " != NULL", __VA_ARGS__)
#define cr_assert_eq(a, b, ...)        UNIT_ASSERT((a) == (b), #a " == " #b, __VA_ARGS__)
#define cr_assert_neq(a, b, ...)       UNIT_ASSERT((a) != (b), #a " != " #b, __VA_ARGS__)
#define cr_assert_lt(a, b, ...)        UNIT_ASSERT((a) < (b), #a " < " #b, __VA_ARGS__)
#define cr_assert_leq(a, b, ...)       UNIT_ASSERT((a) <= (b), #a " <= " #b, __VA_ARGS__)
#define cr_assert_gt(a, b, ...)        UNIT_ASSERT((a) > (b), #a " > " #b, __VA_ARGS__)
#define cr_assert_geq(a, b, ...)       UNIT_ASSERT((a) >= (b), #a " >= " #b, __VA_ARGS__)
#define cr_assert_str_eq(a, b, ...)    UNIT_ASSERT(strcmp((a), (b)) == 0, #a " is the text " #b, __VA_ARGS__)
#define cr_assert_arr_eq(a, b, n, ...) UNIT_ASSERT(memcmp((a), (b), (n)) == 0, #a " has the bytes of " #b, __VA_ARGS__)
#define cr_assert_float_eq(a, b, e, ...) \
    UNIT_ASSERT(fabs((double)(a) - (double)(b)) <= (double)(e), #a " is near " #b, __VA_ARGS__)

/* Runs the test in the child process. */
static inline int unit_run_case(const unit_case *test)
{
    const unit_case *suite = unit_suites;
    while (suite != NULL && strcmp(suite->suite, test->suite) != 0)
        suite = suite->next;
    unit_running = test, unit_running_suite = suite;
    if (suite != NULL && suite->init != NULL)
        suite->init();
    if (test->init != NULL)
        test->init();
    test->run();
    return unit_end_case(test, suite);
}

int main(void)
{
    unsigned tests = 0, failed = 0;
    for (const unit_case *test = unit_cases; test != NULL; test = test->next, tests++) {
        int status = 1;
        const pid_t child = fork();
        if (child == 0)
            _exit(unit_run_case(test));
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            failed++;
            fprintf(stderr, "failed: %s, %s (status %d)\n", test->suite, test->name, status);
        }
    }
    fprintf(stderr, "Synthesis: Tested: %u | Passing: %u | Failing: %u\n", tests, tests - failed, failed);
    return tests > 0 && failed == 0 ? 0 : 1;
}
