/* Finds globs that match no name. */
#include "cli/io/globs.h"

#include "common/glob.h"

static bool fits(const char *glob, tsr_glob_name_fn *name, const void *context, size_t n)
{
    size_t i = 0;
    while (i < n && !tsr_glob_match(glob, name(context, i)))
        i++;
    return i < n;
}

tsr_status tsr_check_tensor_globs(const char *const *globs, size_t n_globs, tsr_glob_name_fn *name, const void *context,
                                  size_t n, tsr_err *err)
{
    for (size_t i = 0; i < n_globs; i++) {
        if (!fits(globs[i], name, context, n))
            return tsr_fail(err, TSR_E_USAGE, "--tensors '%s' matches no tensor: " TSR_GLOB_HELP, globs[i]);
    }
    return TSR_OK;
}

void tsr_warn_unfit_files(const tsr_command_context *c, const tsr_checkpoint *checkpoint)
{
    const tsr_list *const globs = &c->common.ignore;
    for (size_t i = 0; i < globs->count; i++) {
        tsr_text text = {0};
        if (checkpoint->ignored[i])
            continue;
        tsr_text_printf(&text, "--ignore-file '%s' matches no file", globs->items[i]);
        tsr_command_warn(c, text.failed ? "out of memory" : text.data);
        tsr_text_free(&text);
    }
}
