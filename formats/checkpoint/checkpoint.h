/* A checkpoint to read: a Hugging Face directory, or one .safetensors file.
 *
 * Opening reads every header and cross-checks them with the index; no weight is read. What a checkpoint holds is what
 * its headers say: the index must agree with them, or the checkpoint is refused.
 * X.safetensors.zst (formats/checkpoint/archive.h) is read as the X.safetensors that it holds. */
#ifndef TSR_FORMATS_CHECKPOINT_CHECKPOINT_H
#define TSR_FORMATS_CHECKPOINT_CHECKPOINT_H

#include "common/arena.h"
#include "common/file.h"
#include "common/status.h"
#include "formats/checkpoint/listing.h"
#include "formats/checkpoint/safetensors.h"
#include "formats/json/json_index.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSR_INDEX_NAME  "model.safetensors.index.json"
#define TSR_CONFIG_NAME "config.json"

/* The largest configuration that is read. */
#define TSR_MAX_CONFIG_BYTES ((uint64_t)16 << 20)
/* The folder of an output in which Tessera keeps its journal and temporary files; never copied from a source. */
#define TSR_STATE_DIR ".tessera"
/* ModelOpt's file for a quantization, instead of config.json or in addition to it. */
#define TSR_HF_QUANT_CONFIG_NAME "hf_quant_config.json"
#define TSR_REPORT_NAME          "quantization_report.json"
/* The file that describes preprocessed blobs. A directory that has it may have no safetensors at all. */
#define TSR_LAYOUT_NAME "tessera-layout.json"

/* The file of one rank, and how many ranks there are, as DeepSeek's inference code names it. */
#define TSR_RANK_FILE "model%u-mp%u.safetensors"

typedef struct tsr_file {
    const char *name;     /* relative to the checkpoint's directory; of an archive, the plain file's */
    const char *path;     /* as given by the user, joined with the name on disk: for messages and for opening */
    uint64_t size;        /* of an archive, the plain file's */
    tsr_stamp stamp;      /* of the file on disk, when it was opened */
    uint64_t header_hash; /* XXH3-64 of a safetensors header; 0 for side files */
    int fd;               /* open for reading */
    tsr_archive *archive; /* NULL: the bytes are the file's own */
} tsr_file;

typedef struct tsr_checkpoint {
    const char *path; /* as given */
    const char *dir;  /* the directory; NULL when the checkpoint is a single file */
    tsr_file *files;  /* n_files safetensors files, then n_side_files others; each in the order of their names */
    size_t n_files;
    size_t n_side_files; /* everything else but config, index and an earlier report */
    tsr_tensors tensors; /* in the order of their bytes, file by file */
    const char *config;  /* text of config.json, NUL-terminated, a JSON object; NULL for a single file */
    size_t config_size;
    tsr_json_text config_file; /* what config.json holds on disk, of a view (tsr_checkpoint_see) as well */
    const char *index_path;    /* NULL when there is no index */
    const bool *ignored; /* [n_ignore]: which of the globs that it was opened with fit a file of it, or a folder */
    /* private */
    tsr_json_index config_index; /* asked by formats/checkpoint/config.h */
    tsr_archive_cache *cache;    /* NULL: no archive */
    uint32_t *by_name;           /* open-addressing hash table: index + 1 into tensors */
    size_t by_name_mask;
    tsr_arena arena;
} tsr_checkpoint;

/* Opens `path`. Files whose name matches one of `ignore` (n_ignore globs, may be NULL) are treated as absent.
 * Errors name the file, the tensor and the offset; all files stay open until tsr_checkpoint_close. */
tsr_status tsr_checkpoint_open(tsr_checkpoint **checkpoint, const char *path, const char *const *ignore,
                               size_t n_ignore, tsr_err *err) TSR_WARN_UNUSED;

/* Opens a directory of per-rank files with only one of its safetensors files. Its side files are listed, and its
 * config.json is not read. */
tsr_status tsr_checkpoint_open_shard(tsr_checkpoint **checkpoint, const char *dir, const char *shard,
                                     const char *const *ignore, size_t n_ignore, tsr_err *err) TSR_WARN_UNUSED;

/* A step of opening, called by checkpoint.c only: compares the index `name` with the headers, which have been read, and
 * stores its path. TSR_E_FORMAT when it does not map every tensor to the file that holds it, or maps a tensor that no
 * file holds. */
tsr_status tsr_check_shard_index(tsr_checkpoint *checkpoint, const char *name, tsr_err *err) TSR_WARN_UNUSED;

/* A step of opening, called by checkpoint.c only: builds the table that tsr_checkpoint_find reads. TSR_E_FORMAT when two tensors
 * have the same name. */
tsr_status tsr_checkpoint_index_names(tsr_checkpoint *checkpoint, tsr_err *err) TSR_WARN_UNUSED;

/* Makes a view of the same files with other tensors and another configuration, for plans that read decoded weights.
 * Takes tensors->items over; `config` (NULL: none) and `of` are borrowed. Side files named in `without` (its last item
 * is NULL) are hidden. On failure there is nothing to free. */
tsr_status tsr_checkpoint_see(tsr_checkpoint *view, const tsr_checkpoint *of, tsr_tensors *tensors, const char *config,
                              size_t config_size, const char *const *without, tsr_err *err) TSR_WARN_UNUSED;

/* Frees a view made by tsr_checkpoint_see. A zeroed view is allowed. */
void tsr_checkpoint_unsee(tsr_checkpoint *view);

/* NULL is fine. */
void tsr_checkpoint_close(tsr_checkpoint *checkpoint);

/* Returns the tensor of this name, borrowed until close, or NULL. Thread-safe. */
const tsr_tensor *tsr_checkpoint_find(const tsr_checkpoint *checkpoint, const char *name);

/* Reads bytes [offset, offset + size) of a tensor. `tensor` may also describe any other byte range of one of the files.
 * Thread-safe. */
tsr_status tsr_checkpoint_read(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor, uint64_t offset, void *data,
                               size_t size, tsr_err *err) TSR_WARN_UNUSED;

/* TSR_E_IO: file `file` is no longer what was opened; `linked`: see tsr_check_stamp. Thread-safe. */
tsr_status tsr_checkpoint_unchanged(const tsr_checkpoint *checkpoint, size_t file, bool linked,
                                    tsr_err *err) TSR_WARN_UNUSED;

/* Tells the system that these bytes will be wanted soon. Thread-safe; cannot fail. */
void tsr_checkpoint_prefetch(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor, uint64_t offset, size_t size);

/* The text of the index, read again into `arena`, for conversions that copy it. The checkpoint must have an index. */
tsr_status tsr_checkpoint_index(const tsr_checkpoint *checkpoint, tsr_arena *arena, const char **text, size_t *size,
                                tsr_err *err) TSR_WARN_UNUSED;

/* The header of safetensors file `file` with its 8 length bytes, read again into `arena`. */
tsr_status tsr_checkpoint_header(const tsr_checkpoint *checkpoint, size_t file, tsr_arena *arena, const char **header,
                                 size_t *size, tsr_err *err) TSR_WARN_UNUSED;

/* Refuses a folder without weights or config.json that is an unfinished output, an adapter, or a folder of the hub's cache, by that.
 * TSR_OK: it is none of these. */
tsr_status tsr_checkpoint_name_folder(const char *path, tsr_err *err) TSR_WARN_UNUSED;

/* A side file as one U8 tensor of its size, so that it can be read and copied like one. `i` < n_side_files. */
tsr_tensor tsr_checkpoint_side_file(const tsr_checkpoint *checkpoint, size_t i);

/* Rejects a side file that is not what its name says: a Git LFS pointer, or an empty .json, .model or .tiktoken. TSR_E_FORMAT. */
tsr_status tsr_checkpoint_check_side_file(const tsr_checkpoint *checkpoint, size_t i, tsr_err *err) TSR_WARN_UNUSED;

/* Reads the text of the side file `name`, a JSON object, into `arena`; NULL if there is none. */
tsr_status tsr_checkpoint_side_text(const tsr_checkpoint *checkpoint, const char *name, tsr_arena *arena,
                                    const char **text, size_t *size, tsr_err *err) TSR_WARN_UNUSED;

/* A hash of names, sizes, times and headers of all files but config.json; and of these, config.json and Tessera's version. */
uint64_t tsr_checkpoint_files_fingerprint(const tsr_checkpoint *checkpoint, uint64_t seed);
uint64_t tsr_checkpoint_fingerprint(const tsr_checkpoint *checkpoint, uint64_t seed);

/* The most bytes of memory that names, tables and unpacked frames of archives will take. */
size_t tsr_checkpoint_memory(const tsr_checkpoint *checkpoint);

#endif
