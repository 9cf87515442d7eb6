/* Looks for a name that each glob fits. */
#include "cli/globs.h"

#include "cli/output.h"
#include "cli/stage.h"
#include "common/glob.h"

static void tell(const char *option, const char *glob, const char *what)
{
    const tsr_stage *const stage = tsr_stage_now();
    tsr_tell("tessera: %s%s%s '%s' matches no %s\n", stage == NULL ? "" : stage->job, stage == NULL ? "" : ": ", option,
             glob, what);
}

static bool fits(const char *glob, tsr_glob_name_fn *name, const void *context, size_t n)
{
    size_t i = 0;
    while (i < n && !tsr_glob_match(glob, name(context, i)))
        i++;
    return i < n;
}

void tsr_tell_unfit_tensors(const tsr_list *globs, tsr_glob_name_fn *name, const void *context, size_t n)
{
    bool any = false;
    for (size_t i = 0; i < globs->count && !any; i++)
        any = fits(globs->items[i], name, context, n);
    for (size_t i = 0; i < globs->count && any; i++) {
        if (!fits(globs->items[i], name, context, n))
            tell("--tensors", globs->items[i], "tensor");
    }
}

void tsr_tell_unfit_files(const tsr_list *globs, const tsr_checkpoint *checkpoint)
{
    for (size_t i = 0; i < globs->count; i++) {
        if (!checkpoint->ignored[i])
            tell("--ignore-file", globs->items[i], "file");
    }
}
