/* Chooses direct or buffered I/O by a trial on each file and file system. */
#include "convert/io/io_choice.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PROBES = 16, OUTPUT_DESCRIPTORS = 256 };

static void say(char *why, size_t size, const char *text)
{
    snprintf(why, size, "%s", text);
}

/* ---- contents of the page cache ---- */

/* Returns true if at least half of a file is in the page cache. Single bytes are sampled, without any read from the
 * disk. */
static bool is_cached(int fd, uint64_t bytes)
{
    unsigned found = 0;
    char byte;
    struct iovec to = {&byte, 1};
    for (uint64_t i = 0; i < PROBES; i++)
        found += preadv2(fd, &to, 1, (off_t)(bytes / PROBES * i + bytes / PROBES / 2), RWF_NOWAIT) == 1;
    return 2 * found >= PROBES;
}

/* ---- abilities of a file system ---- */

/* Returns true for network file systems and FUSE. Some of them read ahead only in the page cache and are slow without
 * it. */
static bool is_far(uint32_t type)
{
    static const uint32_t kFar[] = {
        NFS_SUPER_MAGIC,       SMB_SUPER_MAGIC, 0xFF534D42 /* cifs */, 0xFE534D42 /* smb2 */, 0x65735546 /* fuse */,
        0x00C36400 /* ceph */, V9FS_MAGIC,      AFS_FS_MAGIC};
    for (size_t i = 0; i < sizeof kFar / sizeof *kFar; i++) {
        if (kFar[i] == type)
            return true;
    }
    return false;
}

/* Returns true if this file, opened with O_DIRECT, accepts page-aligned direct requests. */
static bool takes_pages(tsr_io_mode mode, int fd, char *why, size_t size)
{
    struct statfs system = {.f_type = 0};
    (void)!fstatfs(fd, &system);
    if (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC) {
        say(why, size, "its file system is in memory");
        return false;
    }
    if (mode == TSR_IO_AUTO && is_far((uint32_t)system.f_type)) {
        say(why, size, "its file system is not on a local disk (--io direct tries it anyway)");
        return false;
    }
#ifdef STATX_DIOALIGN
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && (st.stx_mask & STATX_DIOALIGN) != 0 &&
        (st.stx_dio_offset_align == 0 || st.stx_dio_offset_align > tsr_io_page() ||
         st.stx_dio_mem_align > tsr_io_page())) {
        say(why, size, "its file system does not support direct I/O in units of a page");
        return false;
    }
#endif
    return true;
}

/* Reads or writes one page as a trial. */
static bool try_page(int fd, bool write, char *why, size_t size)
{
    const uint64_t page = tsr_io_page();
    void *const memory = aligned_alloc(page, page);
    if (memory == NULL) {
        say(why, size, "out of memory");
        return false;
    }
    memset(memory, 0, page);
    const bool fine = (write ? pwrite(fd, memory, page, 0) : pread(fd, memory, page, 0)) >= 0;
    if (!fine)
        say(why, size, strerror(errno));
    free(memory);
    return fine;
}

/* Returns true if both descriptors refer to the same file. The name of the first may since belong to another file. */
static bool is_same(int fd, int other)
{
    struct stat a, b;
    return fstat(fd, &a) == 0 && fstat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

int tsr_io_open_read(tsr_io_mode mode, const char *path, int fd, char *why, size_t size)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size < tsr_io_large(mode)) {
        say(why, size, "its files are small");
        return -1;
    }
    if (mode == TSR_IO_AUTO && is_cached(fd, (uint64_t)st.st_size)) {
        say(why, size, "it is in the page cache");
        return -1;
    }
    const int direct = tsr_open(path, O_RDONLY | O_DIRECT | O_NONBLOCK | O_NOCTTY);
    if (direct < 0) {
        say(why, size, strerror(errno));
        return -1;
    }
    if (is_same(fd, direct) && takes_pages(mode, direct, why, size) && try_page(direct, false, why, size))
        return direct;
    close(direct);
    return -1;
}

/* Tries direct writes in the output directory, on an unnamed temporary file that disappears when it is closed. */
static bool takes_writes(tsr_io_mode mode, const char *dst, char *why, size_t size)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/" TSR_STATE_DIR, dst);
    int fd = open(path, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0 && errno == ENOENT) /* another rank has just created it, and it is not visible here yet */
        fd = open(dst, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0) {
        say(why, size, strerror(errno));
        return false;
    }
    const bool takes = takes_pages(mode, fd, why, size) && try_page(fd, true, why, size);
    close(fd);
    return takes;
}

/* ---- choosing ---- */

/* Opens source files. Returns the percentage of their bytes that are read directly. */
static unsigned open_sources(tsr_io_choice *c, const tsr_plan *plan, char *why, size_t size)
{
    uint64_t direct = 0, all = 0;
    for (size_t k = 0; k < plan->n_sources; k++) {
        const tsr_checkpoint *const s = plan->sources[k];
        for (size_t i = 0; i < s->n_files; i++) {
            const tsr_file *const f = &s->files[i];
            int *const to = &c->sources[c->first[k] + i];
            if (f->remote != NULL)
                say(why, size, "it is on a server");
            else if (f->archive == NULL)
                *to = tsr_io_open_read(c->mode, f->path, f->fd, why, size);
            else
                say(why, size, "it is compressed");
            all += f->size;
            direct += *to >= 0 ? f->size : 0;
        }
    }
    return all == 0 ? 0 : (unsigned)(100.0 * (double)direct / (double)all);
}

static bool make_tables(tsr_io_choice *c, const tsr_plan *plan)
{
    c->n = 0;
    c->first = calloc(plan->n_sources + 1, sizeof *c->first);
    for (size_t k = 0; c->first != NULL && k < plan->n_sources; k++) {
        c->first[k] = c->n;
        c->n += plan->sources[k]->n_files + plan->sources[k]->n_side_files;
    }
    c->sources = malloc((c->n + 1) * sizeof *c->sources);
    for (size_t i = 0; c->sources != NULL && i < c->n; i++)
        c->sources[i] = -1;
    return c->first != NULL && c->sources != NULL;
}

/* Returns true if the file descriptor limit allows opening each source file twice, besides the outputs. */
static bool has_descriptors(const tsr_io_choice *c)
{
    struct rlimit files;
    return getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY ||
           2 * c->n + OUTPUT_DESCRIPTORS <= files.rlim_cur;
}

/* Chooses for reads only, as the next function does for writes. `why` receives the reason for not using direct I/O. */
static void choose_reads(tsr_io_choice *c, const tsr_plan *plan, char *why, size_t size)
{
    say(why, size, "too many files to open each twice (ulimit -n)");
    if (c->mode == TSR_IO_BUFFERED) {
        say(why, size, "--io buffered");
    } else if (!make_tables(c, plan)) {
        tsr_io_choice_end(c);
        say(why, size, "out of memory for a table of files");
    } else {
        c->summary.reads = has_descriptors(c) && open_sources(c, plan, why, size) >= 50;
    }
}

static void choose_writes(tsr_io_choice *c, const tsr_plan *plan, const char *dst, char *why, size_t size)
{
    uint64_t most = 0;
    say(why, size, "its files are small");
    for (size_t i = 0; i < plan->n_files; i++)
        most = !plan->files[i].appended && plan->files[i].bytes > most ? plan->files[i].bytes : most;
    c->summary.writes =
        c->mode != TSR_IO_BUFFERED && most >= tsr_io_large(c->mode) && takes_writes(c->mode, dst, why, size);
}

void tsr_io_choose(tsr_io_choice *c, const tsr_plan *plan, const char *dst)
{
    tsr_io_summary *const summary = &c->summary;
    char reads[64], writes[64];
    choose_reads(c, plan, reads, sizeof reads);
    choose_writes(c, plan, dst, writes, sizeof writes);
    if (c->mode == TSR_IO_BUFFERED)
        say(summary->why, sizeof summary->why, reads);
    else
        snprintf(summary->why, sizeof summary->why, "%s%s%s%s%s",
                 summary->reads ? "" : "source: ", summary->reads ? "" : reads,
                 summary->reads || summary->writes ? "" : "; ",
                 summary->writes ? "" : "output: ", summary->writes ? "" : writes);
}

int tsr_io_source(const tsr_io_choice *c, const tsr_tensor *t)
{
    return c->sources == NULL ? -1 : c->sources[c->first[t->source] + t->file];
}

tsr_status tsr_io_open_write(const tsr_io_choice *c, const char *path, int fd, uint64_t bytes, int *direct,
                             tsr_err *err)
{
    *direct = -1;
    if (!c->summary.writes || bytes < tsr_io_large(c->mode))
        return TSR_OK;
    /* Preallocate: if a file has its final size and blocks, the kernel need not lock the whole file for each direct
     * write. */
    if (fallocate(fd, 0, 0, (off_t)bytes) != 0 && (errno == ENOSPC || errno == EDQUOT))
        return tsr_fail_errno(err, "%s: cannot allocate %llu bytes on disk", path, U64(bytes));
    *direct = tsr_open(path, O_WRONLY | O_DIRECT);
    return TSR_OK;
}

void tsr_io_choice_end(tsr_io_choice *c)
{
    for (size_t i = 0; c->sources != NULL && i < c->n; i++) {
        if (c->sources[i] >= 0)
            close(c->sources[i]);
    }
    free(c->first);
    free(c->sources);
    c->first = NULL;
    c->sources = NULL;
}
