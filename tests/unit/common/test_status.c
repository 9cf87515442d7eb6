/* Tests error messages: names are shortened to fit, and the reason stays complete. */
#include "common/status.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Returns an allocated name of `length` bytes with a unique beginning and end. */
static char *name_of(size_t length, const char *piece)
{
    char *const name = malloc(length + 1);
    cr_assert_not_null(name);
    for (size_t i = 0; i < length; i++)
        name[i] = piece[i % strlen(piece)];
    name[length] = '\0';
    memcpy(name, "begin", 5);
    memcpy(name + length - 3, "end", 3);
    return name;
}

Test(status, the_tensor_of_an_error)
{
    char *const name = name_of(sizeof((tsr_err *)0)->tensor, "abc");
    tsr_err err;
    cr_assert_eq(tsr_fail_as(&err, TSR_ERROR_NO_SCALE, TSR_E_FORMAT, "no scale"), TSR_E_FORMAT);
    cr_expect_str_eq(err.tensor, "");
    cr_assert_eq(tsr_fail_at(&err, TSR_E_FORMAT, "m.weight"), TSR_E_FORMAT);
    cr_assert_eq(tsr_prepend(&err, TSR_E_FORMAT, "%s", "job"), TSR_E_FORMAT);
    cr_expect_str_eq(err.msg, "job: no scale");
    cr_expect_str_eq(err.tensor, "m.weight");
    cr_expect_eq(err.id, TSR_ERROR_NO_SCALE);
    cr_assert_eq(tsr_fail(&err, TSR_E_FORMAT, "another"), TSR_E_FORMAT);
    cr_expect_str_eq(err.tensor, "");
    cr_assert_eq(tsr_fail_at(&err, TSR_E_FORMAT, name), TSR_E_FORMAT); /* one byte too long: none rather than a part */
    cr_expect_str_eq(err.tensor, "");
    cr_expect_eq(tsr_fail_at(NULL, TSR_E_FORMAT, "m.weight"), TSR_E_FORMAT);
    free(name);
}

Test(status, the_reason_stands_behind_any_name)
{
    const size_t lengths[] = {900, 1000, 1010, 1023, 1024, 4095, 100000};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char *const name = name_of(lengths[i], "abc");
        tsr_err err;
        cr_assert_eq(tsr_fail(&err, TSR_E_FORMAT, "%s: '%s' is too long; make it shorter", name, name), TSR_E_FORMAT);
        cr_assert_eq(strncmp(err.msg, "begin", 5), 0);
        cr_assert_not_null(strstr(err.msg, "end: 'begin"), "%s", err.msg);
        cr_assert_not_null(strstr(err.msg, "end' is too long; make it shorter"), "%s", err.msg);
        errno = ENOSPC;
        cr_assert_eq(tsr_fail_errno(&err, "%s: cannot write %s", name, name), TSR_E_NOSPACE);
        cr_assert_not_null(strstr(err.msg, "end: No space left on device"), "%s", err.msg);
        cr_assert_eq(tsr_prepend(&err, TSR_E_IO, "job '%s'", name), TSR_E_IO);
        cr_assert_eq(strncmp(err.msg, "job 'begin", 10), 0);
        cr_assert_not_null(strstr(err.msg, "end: No space left on device"), "%s", err.msg);
        free(name);
    }
}

Test(status, what_fits_is_left_alone)
{
    char *const name = name_of(1013, "abc");
    tsr_err err;
    (void)tsr_fail(&err, TSR_E_IO, "%s: a reason", name);
    cr_assert_eq(strlen(err.msg), 1023);
    cr_assert_null(strstr(err.msg, "..."));
    free(name);
}

Test(status, no_character_is_cut)
{
    static const char kOctopus[] = "\xF0\x9F\x90\x99";
    for (size_t before = 0; before < 12; before++) {
        char name[12 + 4 * 600 + 1] = "aaaaaaaaaaaa";
        for (size_t i = 0; i < 600; i++)
            strcpy(name + before + 4 * i, kOctopus);
        tsr_err err;
        (void)tsr_fail(&err, TSR_E_IO, "%s: a reason", name);
        for (const char *c = err.msg; *c != '\0'; c += (unsigned char)*c == 0xF0 ? 4 : 1)
            cr_assert((unsigned char)*c < 0x80 || memcmp(c, kOctopus, 4) == 0, "byte %zu of %s", (size_t)(c - err.msg),
                      err.msg);
        cr_assert_not_null(strstr(err.msg, "...\xF0"));
    }
}

Test(status, a_text_of_short_words_keeps_its_ends)
{
    char text[3000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i % 10 == 9 ? ' ' : 'x';
    text[sizeof text - 1] = '\0';
    tsr_err err;
    (void)tsr_fail(&err, TSR_E_IO, "FILE: %s: a reason", text);
    cr_assert_eq(strlen(err.msg), 1023);
    cr_assert_eq(strncmp(err.msg, "FILE: ", 6), 0);
    cr_assert_str_eq(err.msg + strlen(err.msg) - 10, ": a reason");
}
