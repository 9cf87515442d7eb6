/* Finds files that are whole copies of source files, and links them. */
#include "convert/io/links.h"

#include "common/file.h"
#include "convert/io/copied_codes.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

const tsr_file *tsr_links_source(const tsr_plan *plan, size_t index)
{
    const tsr_tensor *const t = plan->steps[plan->files[index].first_step].in[0];
    return &plan->sources[t->source]->files[t->file];
}

/* Returns true if all steps of a file copy bytes of one source file to the same offsets, and no codes are among them.
 * Codes must be read, because NaN ends the job. */
static bool keeps_places(const tsr_plan *plan, const tsr_out_file *f)
{
    const tsr_tensor *const first = plan->steps[f->first_step].in[0];
    for (size_t s = f->first_step; s < f->first_step + f->n_steps; s++) {
        const tsr_step *const step = &plan->steps[s];
        const tsr_tensor *const in = step->in[0];
        if (step->op != &tsr_copy_op || tsr_copies_codes(step) || tsr_tensor_is_made(in) ||
            in->source != first->source || in->file != first->file || in->offset != step->out[0]->offset ||
            in->bytes != step->out[0]->bytes)
            return false;
    }
    return true;
}

/* Compares the header of an output file with that of its source. */
static tsr_status compare_headers(const tsr_plan *plan, const tsr_out_file *f, bool *same, tsr_err *err)
{
    const tsr_tensor *const t = plan->steps[f->first_step].in[0];
    tsr_arena scratch = {0};
    tsr_text planned = {0};
    const char *header;
    size_t size;
    tsr_status status = tsr_checkpoint_header(plan->sources[t->source], t->file, &scratch, &header, &size, err);
    if (f->header != NULL)
        tsr_text_append(&planned, f->header, f->header_bytes);
    else
        tsr_safetensors_write_header(&planned, f->tensors, f->n_tensors);
    if (status == TSR_OK)
        status = tsr_text_status(&planned, err);
    *same = status == TSR_OK && size == planned.size && memcmp(header, planned.data, size) == 0;
    tsr_text_free(&planned);
    tsr_arena_free(&scratch);
    return status;
}

tsr_status tsr_links_find(const tsr_plan *plan, bool *whole, tsr_err *err)
{
    for (size_t i = 0; i < plan->n_files; i++) {
        const tsr_out_file *const f = &plan->files[i];
        whole[i] = !f->appended && f->n_steps > 0 && keeps_places(plan, f);
        if (!whole[i])
            continue;
        const tsr_file *const source = tsr_links_source(plan, i);
        whole[i] = source->archive == NULL && source->remote == NULL && source->size == f->bytes &&
                   (!f->raw || f->n_steps == 1);
        if (whole[i] && !f->raw)
            TSR_TRY(compare_headers(plan, f, &whole[i], err));
    }
    return TSR_OK;
}

bool tsr_links_share(int fd, const tsr_file *source)
{
    int rc;
    do
        rc = ioctl(fd, FICLONE, source->fd);
    while (rc != 0 && errno == EINTR);
    return rc == 0;
}

/* Opens the new link. Fails if another file has replaced the source since it was opened. */
static int open_linked(const char *path, const tsr_stamp *stamp)
{
    struct stat st;
    const int fd = tsr_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -1;
    if (fstat(fd, &st) == 0 && (uint64_t)st.st_ino == stamp->inode && (uint64_t)st.st_dev == stamp->device)
        return fd;
    close(fd);
    errno = ESTALE;
    return -1;
}

int tsr_links_name(const char *path, const tsr_file *source)
{
    if (linkat(AT_FDCWD, source->path, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0)
        return -1;
    const int fd = open_linked(path, &source->stamp), code = errno;
    if (fd < 0)
        unlink(path);
    errno = code;
    return fd;
}

void tsr_links_note(tsr_links_summary *summary, const char *name, int code)
{
    if (code == 0) {
        summary->linked++;
        return;
    }
    if (summary->copied++ == 0)
        snprintf(summary->why, sizeof summary->why, "%.160s: %s", name, strerror(code));
}
