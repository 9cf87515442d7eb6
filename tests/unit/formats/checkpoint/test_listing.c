/* Tests symlinks in a checkpoint's directory: inside it, into a Hugging Face cache, and out of it. */
#include "formats/checkpoint/listing.h"

#include "tests/unit/fixture.h"

static void folder(const char *name)
{
    cr_assert_eq(mkdir(fixture_path(name), 0777), 0, "%s", name);
}

/* Returns true if a link of `dir` that leads to `to` stays inside. */
static bool stays(const char *dir, const char *to)
{
    char name[64];
    tsr_err err = {0};
    snprintf(name, sizeof name, "%s/link", dir);
    const char *const link = fixture_path(name);
    (void)unlink(link);
    cr_assert_eq(symlink(fixture_path(to), link), 0);
    const tsr_status status = tsr_check_inside(fixture_path(dir), link, &err);
    cr_assert(status == TSR_OK || strstr(err.msg, fixture_path(to)) != NULL, "%s", err.msg);
    return status == TSR_OK;
}

Test(listing, links_stay_inside, .init = fixture_make, .fini = fixture_remove)
{
    static const char *const kFolders[] = {"model",           "model/deep",        "model-other", "cache",
                                           "cache/snapshots", "cache/snapshots/1", "cache/blobs", "cache/blobs-other"};
    for (size_t i = 0; i < sizeof kFolders / sizeof *kFolders; i++)
        folder(kFolders[i]);
    fixture_text("file", "x");
    fixture_text("model/file", "x");
    fixture_text("model/deep/file", "x");
    fixture_text("model-other/file", "x");
    fixture_text("cache/blobs/file", "x");
    fixture_text("cache/blobs-other/file", "x");
    cr_expect(stays("model", "model/file"));
    cr_expect(stays("model", "model/deep/file"));
    cr_expect_not(stays("model", "file"));
    cr_expect_not(stays("model", "model-other/file"), "a folder whose name begins alike is another one");
    cr_expect(stays("cache/snapshots/1", "cache/blobs/file"));
    cr_expect_not(stays("cache/snapshots/1", "cache/blobs-other/file"));
    cr_expect_not(stays("cache/snapshots/1", "model/file"));
}
