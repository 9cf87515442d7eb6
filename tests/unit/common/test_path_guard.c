/* Tests common/path_guard: identity by device and inode, races with other processes, and resolved paths. */
#include "common/path_guard.h"

#include "tests/unit/fixture.h"

#include <fcntl.h>
#include <limits.h>

/* A path that another process creates: it exists from the second call of stat or lstat after `looks` was 0. */
static char made_meanwhile[PATH_MAX];
static int looks;

static int look_at(const char *path, struct stat *st, int flags)
{
    if (strcmp(path, made_meanwhile) == 0 && looks++ == 1)
        cr_assert_eq(mkdir(path, 0700), 0);
    return fstatat(AT_FDCWD, path, st, flags);
}

/* These replace the functions of the C library, so calls of common/path_guard.c arrive here. */
int stat(const char *restrict path, struct stat *restrict st)
{
    return look_at(path, st, 0);
}

int lstat(const char *restrict path, struct stat *restrict st)
{
    return look_at(path, st, AT_SYMLINK_NOFOLLOW);
}

static struct stat look(const char *path)
{
    struct stat st;
    cr_assert_eq(stat(path, &st), 0, "%s", path);
    return st;
}

Test(guard, an_inode_belongs_to_a_device, .init = fixture_make, .fini = fixture_remove)
{
    struct stat st = look(fixture_folder);
    tsr_err err = {0};
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
        tsr_path_guard guard = {0};
        st.st_dev += (dev_t)elsewhere;
        cr_assert_eq(tsr_path_guard_add_folder(&guard, "source", &st, &err), TSR_OK);
        cr_assert_eq(tsr_path_guard_check_outside(&guard, "output", fixture_folder, &err),
                     elsewhere ? TSR_OK : TSR_E_USAGE);
        tsr_path_guard_free(&guard);
    }
    fixture_text("weights", "x");
    const char *const sources[] = {fixture_path("weights"), NULL};
    tsr_path_guard guard = {0};
    cr_assert_eq(tsr_path_guard_read(&guard, sources, 2, &err), TSR_OK);
    st = look(sources[0]);
    cr_assert_eq(tsr_path_guard_check_file(&guard, "output", &st, &err), TSR_E_USAGE);
    cr_assert_not_null(strstr(err.msg, sources[0]), "%s", err.msg);
    st.st_dev++;
    cr_assert_eq(tsr_path_guard_check_file(&guard, "output", &st, &err), TSR_OK);
    tsr_path_guard_free(&guard);
}

/* Shards of a job start together; the first one creates the folder for all. */
Test(guard, a_folder_that_another_process_makes_meanwhile_is_no_link, .init = fixture_make, .fini = fixture_remove)
{
    char existing[PATH_MAX];
    size_t missing;
    tsr_err err = {0};
    for (int first = 0; first < 2; first++) {
        snprintf(made_meanwhile, sizeof made_meanwhile, "%s/made-%d", fixture_folder, first);
        looks = first; /* 0: created between the two calls; 1: before both */
        cr_assert_eq(tsr_path_guard_resolve(made_meanwhile, existing, &missing, &err), TSR_OK, "%s", err.msg);
        cr_assert(missing == 0 && looks > 1, "%zu missing, %d looks", missing, looks);
        cr_assert_str_eq(existing, made_meanwhile);
    }
    looks = 5;
    snprintf(made_meanwhile, sizeof made_meanwhile, "%s/link", fixture_folder);
    cr_assert_eq(symlink("nowhere", made_meanwhile), 0);
    cr_assert_eq(tsr_path_guard_resolve(made_meanwhile, existing, &missing, &err), TSR_E_USAGE);
    cr_assert_not_null(strstr(err.msg, "dangling symlink"), "%s", err.msg);
}

Test(guard, existing_part_of_a_path_has_single_slashes, .init = fixture_make, .fini = fixture_remove)
{
    static const struct {
        const char *path, *existing;
        size_t missing;
    } cases[] = {
        {"/", "/", 0}, {"//tmp/", "/tmp", 0}, {"/no-such-folder/a/b", "/", 3}, {"no-such-folder/../x", ".", 1},
        {".", ".", 0},
    };
    tsr_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char existing[PATH_MAX];
        size_t missing;
        cr_assert_eq(tsr_path_guard_resolve(cases[i].path, existing, &missing, &err), TSR_OK, "%s", err.msg);
        cr_assert_str_eq(existing, cases[i].existing);
        cr_assert_eq(missing, cases[i].missing, "%s: %zu", cases[i].path, missing);
    }
}
