/* Opens a checkpoint: a Hugging Face directory or one .safetensors file.
 *
 * Opening reads every header and compares them with the index; no weight is read. The headers define the contents of a
 * checkpoint: an index that does not agree with them is an error. X.safetensors.zst (formats/checkpoint/archive.h) is
 * read as the X.safetensors that it contains. */
#pragma once

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

/* The size limit of config.json. */
#define TSR_MAX_CONFIG_BYTES ((uint64_t)16 << 20)
/* The folder of an output in which Tessera keeps its journal and temporary files; never copied from a source. */
#define TSR_STATE_DIR ".tessera"
/* ModelOpt's file that describes a quantization, instead of config.json or in addition to it. */
#define TSR_HF_QUANT_CONFIG_NAME "hf_quant_config.json"
#define TSR_REPORT_NAME          "quantization_report.json"
#define TSR_CARD_NAME            "README.md"
/* The file that describes interleaved weights in raw files. A directory that has it may have no safetensors at all. */
#define TSR_LAYOUT_NAME "tessera-layout.json"

/* The file of one rank of DeepSeek's inference code; its name has the rank and the number of ranks. */
#define TSR_RANK_FILE "model%u-mp%u.safetensors"

typedef struct tsr_file {
    const char *name;     /* relative to the checkpoint's directory; for an archive, the name of the plain file */
    const char *path;     /* the user's path joined with the name on disk, for messages and for opening */
    uint64_t size;        /* for an archive, the size of the plain file */
    tsr_stamp stamp;      /* state of the file on disk when it was opened */
    uint64_t header_hash; /* XXH3-64 of a safetensors header; 0 for side files */
    int fd;               /* open for reading; -1: on a server */
    const tsr_remote_file *remote; /* NULL: on disk */
    tsr_archive *archive;          /* NULL: not an archive */
} tsr_file;

typedef struct tsr_checkpoint {
    const char *path; /* as given */
    const char *dir;  /* the directory; NULL for a single file */
    tsr_file *files;  /* n_files safetensors files, then n_side_files others, each part sorted by name */
    size_t n_files;
    size_t n_side_files; /* all files except config, index and an earlier report */
    tsr_tensors tensors; /* sorted by file and offset */
    const char *config;  /* text of config.json, NUL-terminated, a JSON object; NULL for a single file */
    size_t config_size;
    tsr_json_text config_file; /* text of config.json on disk, also for a view (tsr_checkpoint_see) */
    const char *index_path;    /* NULL if there is no index */
    bool without_data;         /* a view of an output that is not written yet: reading a tensor fails */
    const bool *ignored;       /* [n_ignore]: whether each glob that the checkpoint was opened with matches a file or
                                * folder */
    /* private */
    tsr_json_index config_index; /* asked by formats/checkpoint/config.h */
    tsr_json_text *mistyped;  /* the first value that config.h found with another type than requested; .data NULL: none.
                                  * NULL: not recorded */
    tsr_archive_cache *cache; /* NULL: no archive */
    tsr_remote *remote;       /* NULL: on disk */
    uint32_t *by_name;        /* open-addressing hash table: index + 1 into tensors */
    size_t by_name_mask;
    uint64_t endings; /* bit ending_of(name) is set for each tensor */
    tsr_arena arena;
} tsr_checkpoint;

/* Opens `path`. Files whose name matches one of `ignore` (n_ignore globs, may be NULL) are treated as absent.
 * Errors name the file, the tensor and the offset; all files stay open until tsr_checkpoint_close. */
tsr_status tsr_checkpoint_open(tsr_checkpoint **checkpoint, const char *path, const char *const *ignore,
                               size_t n_ignore, tsr_err *err);

/* Opens a directory of per-rank files with only one of its safetensors files. Its side files are listed, and its
 * config.json is not read. */
tsr_status tsr_checkpoint_open_shard(tsr_checkpoint **checkpoint, const char *dir, const char *shard,
                                     const char *const *ignore, size_t n_ignore, tsr_err *err);

/* A step of opening, called only by checkpoint.c: compares the index `name` with the headers, which have been read, and
 * stores its path. TSR_E_FORMAT: the index does not map every tensor to the file that holds it, or maps a tensor that
 * no file holds. */
tsr_status tsr_check_shard_index(tsr_checkpoint *checkpoint, const char *name, tsr_err *err);

/* A step of opening, called only by checkpoint.c: builds the table for tsr_checkpoint_find. TSR_E_FORMAT: two tensors
 * have the same name. */
tsr_status tsr_checkpoint_index_names(tsr_checkpoint *checkpoint, tsr_err *err);

/* Only checkpoint.c calls these. tsr_checkpoint_list lists the files of the directory, on disk or on a server.
 * tsr_checkpoint_open_file opens one file. Its path and the names of its tensors belong to the checkpoint's arena. */
tsr_status tsr_checkpoint_list(const tsr_checkpoint *checkpoint, tsr_listing *listing, tsr_err *err);
tsr_status tsr_checkpoint_open_file(tsr_checkpoint *checkpoint, const char *name, tsr_file *file, tsr_err *err);

/* Sets *exists if the directory has a file of this name. */
tsr_status tsr_checkpoint_has(const tsr_checkpoint *checkpoint, const char *name, bool *exists, tsr_err *err);

/* Reads a file of the directory, of at most `limit` bytes, into `arena`, NUL-terminated. */
tsr_status tsr_checkpoint_text(const tsr_checkpoint *checkpoint, const char *name, uint64_t limit, tsr_arena *arena,
                               const char **text, size_t *size, tsr_err *err);

/* Makes a view of the same files with other tensors and another configuration, for plans that read decoded weights.
 * Takes tensors->items over; `config` (NULL: none) and `of` are borrowed. Hides the side files in the NULL-terminated
 * list `without`. On failure there is nothing to free. */
tsr_status tsr_checkpoint_see(tsr_checkpoint *view, const tsr_checkpoint *of, tsr_tensors *tensors, const char *config,
                              size_t config_size, const char *const *without, tsr_err *err);

/* Frees a view made by tsr_checkpoint_see. A zeroed view is allowed. */
void tsr_checkpoint_unsee(tsr_checkpoint *view);

/* NULL is fine. */
void tsr_checkpoint_close(tsr_checkpoint *checkpoint);

/* Returns the tensor of this name, borrowed until close, or NULL. Thread-safe. */
const tsr_tensor *tsr_checkpoint_find(const tsr_checkpoint *checkpoint, const char *name);

/* Reads bytes [offset, offset + size) of a tensor. `tensor` may also describe any other byte range of one of the files.
 * Thread-safe. */
tsr_status tsr_checkpoint_read(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor, uint64_t offset, void *data,
                               size_t size, tsr_err *err);

/* Checks that file `file` has not changed since it was opened; `linked`: see tsr_check_stamp. TSR_E_IO: it has.
 * Thread-safe. */
tsr_status tsr_checkpoint_unchanged(const tsr_checkpoint *checkpoint, size_t file, bool linked, tsr_err *err);

/* Tells the kernel that these bytes will be needed soon. Thread-safe; cannot fail. */
void tsr_checkpoint_prefetch(const tsr_checkpoint *checkpoint, const tsr_tensor *tensor, uint64_t offset, size_t size);

/* Reads the text of the index into `arena` again, for conversions that copy it. The checkpoint must have an index. */
tsr_status tsr_checkpoint_index(const tsr_checkpoint *checkpoint, tsr_arena *arena, const char **text, size_t *size,
                                tsr_err *err);

/* Reads the header of safetensors file `file`, with its 8 length bytes, into `arena` again. */
tsr_status tsr_checkpoint_header(const tsr_checkpoint *checkpoint, size_t file, tsr_arena *arena, const char **header,
                                 size_t *size, tsr_err *err);

/* Fails if a folder without weights or config.json is an unfinished output, an adapter, or a folder of the hub's cache;
 * the message says which. TSR_OK: it is none of these. */
tsr_status tsr_checkpoint_name_folder(const char *path, tsr_err *err);

/* Returns the failure for a folder that has a LoRA adapter. */
tsr_status tsr_checkpoint_is_adapter(const char *path, tsr_err *err);

/* Returns a side file as a U8 tensor of its size, so that it can be read and copied like a tensor. `i` <
 * n_side_files. */
tsr_tensor tsr_checkpoint_side_file(const tsr_checkpoint *checkpoint, size_t i);

/* Finds a side file by its name. */
bool tsr_checkpoint_find_side_file(const tsr_checkpoint *checkpoint, const char *name, tsr_tensor *file);

/* Rejects a side file whose contents do not match its name: a Git LFS pointer, or an empty .json, .model or .tiktoken.
 * TSR_E_FORMAT. */
tsr_status tsr_checkpoint_check_side_file(const tsr_checkpoint *checkpoint, size_t i, tsr_err *err);

/* Reads the text of the side file `name`, a JSON object, into `arena`; NULL if there is none. */
tsr_status tsr_checkpoint_side_text(const tsr_checkpoint *checkpoint, const char *name, tsr_arena *arena,
                                    const char **text, size_t *size, tsr_err *err);

/* The text of a side file. */
typedef struct tsr_side_text {
    const char *path, *text; /* NULL: there is no such file */
    size_t size;
} tsr_side_text;

/* Reads a side file of any size, which must be valid JSON, into `arena`. */
tsr_status tsr_checkpoint_side_json(const tsr_checkpoint *checkpoint, const char *name, tsr_arena *arena,
                                    tsr_side_text *found, tsr_err *err);

/* Return a hash of names, sizes, times and headers of all files except config.json; and a hash of these, config.json
 * and Tessera's version. */
uint64_t tsr_checkpoint_files_fingerprint(const tsr_checkpoint *checkpoint, uint64_t seed);
uint64_t tsr_checkpoint_fingerprint(const tsr_checkpoint *checkpoint, uint64_t seed);

/* Returns the most bytes of memory that names, tables and unpacked frames of archives can take. */
size_t tsr_checkpoint_memory(const tsr_checkpoint *checkpoint);
