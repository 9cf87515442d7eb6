/* Sources and outputs are told apart by device and inode, both of them. */
#include "common/apart.h"

#include "tests/unit/fixture.h"

static struct stat look(const char *path)
{
    struct stat st;
    cr_assert_eq(stat(path, &st), 0, "%s", path);
    return st;
}

Test(apart, an_inode_belongs_to_a_device, .init = fixture_make, .fini = fixture_remove)
{
    struct stat st = look(fixture_folder);
    tsr_err err = {{0}};
    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
        tsr_apart apart = {0};
        st.st_dev += (dev_t)elsewhere;
        cr_assert_eq(tsr_apart_add_folder(&apart, "source", &st, &err), TSR_OK);
        cr_assert_eq(tsr_apart_check_outside(&apart, "output", fixture_folder, &err), elsewhere ? TSR_OK : TSR_E_USAGE);
        tsr_apart_free(&apart);
    }
    fixture_text("weights", "x");
    const char *const sources[] = {fixture_path("weights"), NULL};
    tsr_apart apart = {0};
    cr_assert_eq(tsr_apart_read(&apart, sources, 2, &err), TSR_OK);
    st = look(sources[0]);
    cr_assert_eq(tsr_apart_check_file(&apart, "output", &st, &err), TSR_E_USAGE);
    cr_assert_not_null(strstr(err.msg, sources[0]), "%s", err.msg);
    st.st_dev++;
    cr_assert_eq(tsr_apart_check_file(&apart, "output", &st, &err), TSR_OK);
    tsr_apart_free(&apart);
}
