/* Stores the block statistics of single files and joins them into one file. */
#include "convert/records/blocks_file.h"

#include "common/checked.h"
#include "common/file.h"
#include "convert/records/destination.h"
#include "formats/blocks/block_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEPT_SUFFIX ".blocks"

enum { PIECE = 1 << 18 };

/* The header of a file of stored frames. */
typedef struct kept_head {
    char magic[8];
    uint64_t fingerprint, size, digest; /* fingerprint of the plan; size and XXH3-64 of the frames */
} kept_head;

static const char kMagic[8] = "TSRKEPT1";

static const char *kept_path(const char *dst, size_t index, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/" TSR_STATE_DIR "/%zu" KEPT_SUFFIX, dst, index);
    return path;
}

static bool has_blocks(const tsr_plan *plan, size_t file)
{
    return tsr_plan_block_bytes(plan, file) > 0;
}

tsr_status tsr_blocks_keep(const tsr_plan *plan, const char *dst, size_t index, const tsr_text *frames, tsr_err *err)
{
    char path[PATH_MAX], part[PATH_MAX];
    kept_head head = {
        .fingerprint = plan->fingerprint, .size = frames->size, .digest = XXH3_64bits(frames->data, frames->size)};
    tsr_text all = {0};
    memcpy(head.magic, kMagic, sizeof kMagic);
    tsr_text_append(&all, &head, sizeof head);
    tsr_text_append(&all, frames->data, frames->size);
    tsr_status status = tsr_text_status(&all, err);
    if (status == TSR_OK)
        status =
            tsr_replace_file(kept_path(dst, index, path), tsr_part_path(dst, index, part), all.data, all.size, err);
    tsr_text_free(&all);
    return status;
}

/* The destination of frames: a hash, and a file unless fd is -1. */
typedef struct sink {
    XXH3_state_t *hash;
    int fd;
    const char *path;
    uint64_t size;
} sink;

static tsr_status pour(sink *to, const void *data, size_t size, tsr_err *err)
{
    (void)XXH3_64bits_update(to->hash, data, size);
    to->size += size;
    return to->fd < 0 ? TSR_OK : tsr_write_at(to->fd, to->path, data, size, to->size - size, err);
}

/* Opens the stored frames of a file. TSR_E_FORMAT: they belong to another plan. */
static tsr_status open_kept(const tsr_plan *plan, const char *path, int *fd, kept_head *head, tsr_err *err)
{
    uint64_t size;
    TSR_TRY(tsr_open_input(path, fd, &size, NULL, err));
    if (size >= sizeof *head)
        TSR_TRY(tsr_read_at(*fd, path, head, sizeof *head, 0, err));
    if (size < sizeof *head || memcmp(head->magic, kMagic, sizeof kMagic) != 0 ||
        head->fingerprint != plan->fingerprint || head->size != size - sizeof *head)
        return tsr_fail(err, TSR_E_FORMAT, "%s: not written by this run", path);
    return TSR_OK;
}

/* Reads the stored frames of a file piece by piece. */
static tsr_status pour_kept(const tsr_plan *plan, const char *dst, size_t index, sink *to, tsr_err *err)
{
    char path[PATH_MAX];
    int fd = -1;
    kept_head head = {.size = 0};
    XXH3_state_t *const hash = XXH3_createState();
    char *const piece = malloc(PIECE);
    tsr_status status = hash == NULL || piece == NULL ? tsr_out_of_memory(err, "for the figures of blocks") : TSR_OK;
    if (status == TSR_OK)
        status = open_kept(plan, kept_path(dst, index, path), &fd, &head, err);
    if (status == TSR_OK)
        (void)XXH3_64bits_reset(hash);
    for (uint64_t at = 0; status == TSR_OK && at < head.size; at += PIECE) {
        const size_t n = (size_t)tsr_min_u64(PIECE, head.size - at);
        status = tsr_read_at(fd, path, piece, n, sizeof head + at, err);
        if (status == TSR_OK)
            (void)XXH3_64bits_update(hash, piece, n);
        if (status == TSR_OK && to != NULL)
            status = pour(to, piece, n, err);
    }
    if (status == TSR_OK && XXH3_64bits_digest(hash) != head.digest)
        status = tsr_fail(err, TSR_E_FORMAT, "%s: damaged; repeat the command", path);
    if (fd >= 0)
        close(fd);
    free(piece);
    (void)XXH3_freeState(hash);
    return status;
}

tsr_status tsr_blocks_kept(const tsr_plan *plan, const char *dst, size_t index, bool *kept, tsr_err *err)
{
    char path[PATH_MAX];
    bool there = true;
    if (has_blocks(plan, index))
        TSR_TRY(tsr_exists(kept_path(dst, index, path), &there, err));
    const tsr_status status = has_blocks(plan, index) && there ? pour_kept(plan, dst, index, NULL, err) : TSR_OK;
    *kept = there && status == TSR_OK;
    return status == TSR_E_FORMAT ? TSR_OK : status; /* damaged frames are made again; a failed read is an error */
}

/* Writes the joined file to its destination. */
static tsr_status pour_all(const tsr_plan *plan, const char *dst, const tsr_plan_blocks *made, sink *to, tsr_err *err)
{
    tsr_text header = {0};
    to->size = 0;
    (void)XXH3_64bits_reset(to->hash);
    tsr_status status = tsr_blocks_add_header(&header, made->tensors, err);
    if (status == TSR_OK)
        status = pour(to, header.data, header.size, err);
    tsr_text_free(&header);
    for (size_t i = 0; status == TSR_OK && i < plan->n_files; i++) {
        if (has_blocks(plan, i))
            status = pour_kept(plan, dst, i, to, err);
    }
    return status;
}

/* Returns true if the file already has these contents. */
static bool holds(const char *path, const tsr_plan_blocks *made, XXH3_state_t *hash)
{
    uint64_t size = 0;
    int fd;
    char *const piece = malloc(PIECE);
    bool same = piece != NULL && tsr_open_input(path, &fd, &size, NULL, NULL) == TSR_OK;
    if (!same) {
        free(piece);
        return false;
    }
    same = size == made->bytes;
    (void)XXH3_64bits_reset(hash);
    for (uint64_t at = 0; same && at < size; at += PIECE) {
        const size_t n = (size_t)tsr_min_u64(PIECE, size - at);
        same = tsr_read_at(fd, path, piece, n, at, NULL) == TSR_OK;
        if (same)
            (void)XXH3_64bits_update(hash, piece, n);
    }
    close(fd);
    free(piece);
    return same && XXH3_64bits_digest(hash) == made->digest;
}

static tsr_status write_file(const tsr_plan *plan, const char *dst, const char *path, const tsr_plan_blocks *made,
                             sink *to, tsr_err *err)
{
    char part[PATH_MAX];
    tsr_part_path(dst, SIZE_MAX, part);
    to->path = part;
    to->fd = tsr_open(part, O_RDWR | O_CREAT | O_EXCL);
    if (to->fd < 0)
        return tsr_fail_errno(err, "%s: cannot create", part);
    tsr_status status = pour_all(plan, dst, made, to, err);
    if (status == TSR_OK)
        status = tsr_commit_file(to->fd, part, path, err);
    if (status != TSR_OK)
        unlink(part);
    close(to->fd);
    return status;
}

/* Computes what is to be written. */
static tsr_plan_blocks count(const tsr_plan *plan)
{
    tsr_plan_blocks made = {0};
    for (size_t s = 0; s < plan->n_steps; s++) {
        tsr_block_map map;
        tsr_code_bins bins;
        if (!tsr_plan_has_blocks(plan, s, &map, &bins))
            continue;
        made.tensors++;
        made.folded += map.fold[0] + map.fold[1] + map.fold[2] > 0;
        made.cells += tsr_block_map_cells(&map);
    }
    return made;
}

tsr_status tsr_blocks_write(const tsr_plan *plan, const char *dst, tsr_plan_blocks *made, tsr_err *err)
{
    char path[PATH_MAX];
    *made = count(plan);
    if (made->tensors == 0)
        return TSR_OK;
    sink to = {.hash = XXH3_createState(), .fd = -1};
    if (to.hash == NULL)
        return tsr_out_of_memory(err, "for the figures of blocks");
    tsr_output_path(dst, TSR_BLOCKS_NAME, path);
    tsr_status status = pour_all(plan, dst, made, &to, err);
    made->bytes = to.size;
    made->digest = XXH3_64bits_digest(to.hash);
    const XXH128_hash_t whole = XXH3_128bits_digest(to.hash);
    made->digest128[0] = whole.high64;
    made->digest128[1] = whole.low64;
    if (status == TSR_OK && !holds(path, made, to.hash))
        status = write_file(plan, dst, path, made, &to, err);
    (void)XXH3_freeState(to.hash);
    return status;
}

tsr_status tsr_blocks_remove(const char *dst, tsr_err *err)
{
    char path[PATH_MAX];
    tsr_remove_state_files(dst, KEPT_SUFFIX);
    return tsr_remove_file(tsr_output_path(dst, TSR_BLOCKS_NAME, path), err);
}
