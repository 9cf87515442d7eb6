/* libtessera: reads, quantizes and verifies checkpoints of large language models.
 *
 *     tessera_error error;
 *     tessera_checkpoint *model;
 *     if (tessera_open(&model, "DeepSeek-V3", NULL, &error) != TESSERA_OK)
 *         return fail(error.message);
 *
 * The `tessera` command uses the same code, so both write the same bytes. The header is valid C11 and C++. Link with
 * `pkg-config --cflags --libs tessera`. Add --static for libtessera.a.
 *
 * Errors. A function that can fail returns a tessera_status and takes a `tessera_error *` last, which may be NULL. A
 * failure fills the struct; success leaves it unchanged. After a failure there is nothing to free: the object returned
 * through the first argument is NULL, and other results are unchanged. Only the contents of a buffer that was to be
 * filled (`out`) are undefined. Running out of memory is an ordinary status. The library prints nothing, installs no
 * signal handler and never ends the process.
 *
 * Messages. A message is one line that names the object, the fact and the remedy. It is the text that the command
 * prints after "tessera: ". It is always valid UTF-8: control characters and invalid bytes are escaped (\n, \x1b). The
 * middle of a line that is too long is left out. All other strings (names, notes, warnings, findings) are not escaped.
 * Escape them before printing.
 *
 * Ownership. An object returned through a first argument belongs to the caller. Free it with the function that the
 * comment names; these functions accept NULL. Strings and structs that an object contains belong to the object, and
 * stay valid until it is freed. Arguments are borrowed for the duration of the call, unless a comment says otherwise.
 *
 * Threads. There is no global state. Any number of threads may pass one object to functions that take it as `const`.
 * One thread creates it, and one thread frees it after all calls have returned. Calls set the floating-point mode that
 * the arithmetic requires, and restore the caller's mode.
 *
 * Options. Options are an array of words, as on the command line, with a final NULL. NULL instead of the array means no
 * options. `tessera quantize --help` lists those of that command.
 *
 *     const char *const options[] = {"--scheme", "nvfp4-weight-only", "--exclude", "*.kv_b_proj.*", NULL};
 *
 * Units. Shapes count elements, the slowest axis first. Sizes and offsets are in bytes. Dtypes have the names that
 * safetensors uses: "BF16", "F8_E4M3". */
#ifndef TESSERA_H
#define TESSERA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef TESSERA_API
#define TESSERA_API
#endif

/* ---- errors ---- */

/* These numbers never change. Later versions may add new ones. */
typedef enum tessera_status {
    TESSERA_OK = 0,
    TESSERA_E_USAGE = 1,           /* invalid or contradictory options; an index or name that does not exist */
    TESSERA_E_FORMAT = 2,          /* a file breaks the rules of its format */
    TESSERA_E_SHAPE = 3,           /* a shape that the target cannot take */
    TESSERA_E_UNSUPPORTED = 4,     /* valid input that Tessera does not support */
    TESSERA_E_VALUE = 5,           /* NaN or Inf where a finite number is required */
    TESSERA_E_MISMATCH = 6,        /* source, options or output differ from the record of an earlier run */
    TESSERA_E_EXISTS = 7,          /* the destination exists */
    TESSERA_E_IO = 8,              /* a system call failed: permission, device error */
    TESSERA_E_NOSPACE = 9,         /* disk full */
    TESSERA_E_NOMEM = 10,          /* memory exhausted, or --memory too small */
    TESSERA_E_CANCELLED = 11,      /* a callback asked to stop */
    TESSERA_E_DEVICE = 12,         /* no usable GPU */
    TESSERA_E_NOT_APPLICABLE = 13, /* valid input without anything that the request applies to */
    TESSERA_E_NOTHING = 14         /* the request would change nothing */
} tessera_status;

typedef struct tessera_error {
    tessera_status status;
    char message[1024];
} tessera_error;

/* Returns the version: "0.1.0". */
TESSERA_API const char *tessera_version(void);

/* Returns the name of a status: "format", "no space", ... Accepts any number. */
TESSERA_API const char *tessera_status_name(tessera_status status);

/* ---- checkpoints ---- */

enum { TESSERA_MAX_RANK = 8, TESSERA_MAX_STORED = 8 };

/* An open checkpoint: a Hugging Face directory, one .safetensors file, or arrays in memory. Opening it reads the
 * headers and config.json and checks that they agree. It reads no weights. Anything that Tessera cannot interpret is an
 * error. */
typedef struct tessera_checkpoint tessera_checkpoint;

/* Opens a directory or file in any format that Tessera reads. Free *checkpoint with tessera_close.
 * Options: --source-block RxC (the block size of FP8 weights if config.json has none), --ignore-file GLOB. */
TESSERA_API tessera_status tessera_open(tessera_checkpoint **checkpoint, const char *path, const char *const *options,
                                        tessera_error *error);

/* Closes and frees a checkpoint. NULL is allowed. */
TESSERA_API void tessera_close(tessera_checkpoint *checkpoint);

/* A tensor as it is stored: a plain tensor, codes, or a tensor that belongs to codes. */
typedef struct tessera_stored {
    const char *role; /* "plain" for a plain tensor; else "codes", "scale", "zero_point", "global_scale", "group_index",
                         "weight_shape", "input_scale" or "input_zero_point" */
    const char *name;
    const char *dtype;
    uint64_t shape[TESSERA_MAX_RANK]; /* the first `rank` are used */
    uint64_t rank;
    uint64_t bytes;
    const char *file; /* file with the unchanged bytes, to be read or mapped; NULL for archives and arrays in memory */
    uint64_t offset;  /* offset of the first byte in that file */
    const void *data; /* the bytes of an array in memory; NULL for files */
} tessera_stored;

/* A logical weight: a plain tensor, or codes with their scales and zero points. The value of code [r, c] is
 * (value(code) - zero_point) * scale * global_scale. */
typedef struct tessera_weight {
    const char *name;   /* name of the values, as in an unquantized checkpoint */
    const char *format; /* "plain", "fp8-block", "nvfp4-ct", "gptq", ...: the names of `tessera inspect` */
    uint64_t shape[TESSERA_MAX_RANK]; /* shape of the values; the stored shape of codes may differ */
    uint64_t rank;
    uint64_t bits;       /* bits per code; plain: bits per element */
    uint64_t block_rows; /* outputs and inputs that share one scale; plain: 0 */
    uint64_t block_cols;
    uint64_t n_stored;
    tessera_stored stored[TESSERA_MAX_STORED]; /* stored[0] is the codes or the plain tensor */
} tessera_weight;

/* Returns the number of weights. Codes and the tensors that belong to them count as one. */
TESSERA_API size_t tessera_count(const tessera_checkpoint *checkpoint);

/* Describes weight `index`, counted from 0 in the order of the files. TESSERA_E_USAGE: there is no such index. */
TESSERA_API tessera_status tessera_weight_at(const tessera_checkpoint *checkpoint, size_t index, tessera_weight *weight,
                                             tessera_error *error);

/* Finds the index of the weight with this name. TESSERA_E_USAGE: there is none. */
TESSERA_API tessera_status tessera_find(const tessera_checkpoint *checkpoint, const char *name, size_t *index,
                                        tessera_error *error);

/* Reads rows [first, first + rows) of a weight as numbers; codes are dequantized. A row is the elements along the
 * last axis; the other axes are flattened into one. `dtype` is "F32", "BF16" or "F16" for codes. For a plain tensor
 * it is the stored dtype, or "F32" if that is "BF16" or "F16". `size` must equal the size of the rows in bytes.
 * TESSERA_E_USAGE: no such index or rows, or another size. TESSERA_E_UNSUPPORTED: the weight is not readable as this
 * dtype. */
TESSERA_API tessera_status tessera_read(const tessera_checkpoint *checkpoint, size_t index, const char *dtype,
                                        uint64_t first, uint64_t rows, void *out, size_t size, tessera_error *error);

/* Reads bytes [offset, offset + size) of the stored tensor with this name, without conversion. TESSERA_E_USAGE:
 * there is no such tensor, or it has fewer bytes. */
TESSERA_API tessera_status tessera_read_stored(const tessera_checkpoint *checkpoint, const char *name, uint64_t offset,
                                               void *out, size_t size, tessera_error *error);

/* ---- arrays ---- */

/* An array in the caller's memory: little-endian, row-major, without padding. */
typedef struct tessera_array {
    const char *name; /* as in a checkpoint; distinguishes codes from scales. NULL: "array.weight" */
    const char *dtype;
    uint64_t shape[TESSERA_MAX_RANK];
    uint64_t rank;
    const void *data;
    uint64_t bytes;
} tessera_array;

/* Opens arrays as a checkpoint, for example to dequantize codes and scales with tessera_read. The arrays are copied.
 * `config` is the text of a config.json, or NULL. Free *checkpoint with tessera_close. Options: --source-block RxC. */
TESSERA_API tessera_status tessera_open_arrays(tessera_checkpoint **checkpoint, const tessera_array *arrays, size_t n,
                                               const char *config, const char *const *options, tessera_error *error);

/* Quantizes a matrix [outputs, inputs] of dtype "BF16", "F16" or "F32", as `tessera quantize` does with such a
 * tensor. Options: those that define the codes (--scheme, --scales, --block, --group-size, ...). The result is a
 * checkpoint with one weight whose codes and scales are in memory (tessera_stored.data). Free *quantized with
 * tessera_close. TESSERA_E_SHAPE: the array is no matrix, or the scheme does not fit its shape. */
TESSERA_API tessera_status tessera_quantize(tessera_checkpoint **quantized, const tessera_array *array,
                                            const char *const *options, tessera_error *error);

/* ---- plans ---- */

/* A planned conversion, made from headers and options without reading weights. It keeps its source open. */
typedef struct tessera_plan tessera_plan;

/* Plans the work of `tessera COMMAND SOURCE OPTIONS`. `command` is "quantize" or "convert". Options: those that
 * define the output, and --ignore-file, --max-shard-size, --threads, --memory, --io, --cpumask, --force. Free *plan
 * with tessera_plan_free. */
TESSERA_API tessera_status tessera_plan_make(tessera_plan **plan, const char *command, const char *source,
                                             const char *const *options, tessera_error *error);

/* Frees a plan and closes its source. NULL is allowed. */
TESSERA_API void tessera_plan_free(tessera_plan *plan);

typedef struct tessera_plan_sums {
    uint64_t tensors;   /* tensors of the source, which is also the number of notes */
    uint64_t files;     /* files with tensors to write */
    uint64_t bytes_in;  /* bytes of source files to read */
    uint64_t bytes_out; /* most bytes to write */
    uint64_t memory;    /* most memory of a run, in bytes */
    uint64_t warnings;
} tessera_plan_sums;

/* Sums up a plan. */
TESSERA_API void tessera_plan_sum(const tessera_plan *plan, tessera_plan_sums *sums);

/* The action planned for a source tensor, with its reason. */
typedef struct tessera_plan_note {
    const char *name;
    const char *action; /* "quantize", "copy", "drop", ... */
    const char *reason;
} tessera_plan_note;

/* Returns note `index`, counted from 0. TESSERA_E_USAGE: there is no such index. */
TESSERA_API tessera_status tessera_plan_note_at(const tessera_plan *plan, size_t index, tessera_plan_note *note,
                                                tessera_error *error);

/* Returns warning `index` as one sentence, or NULL if there is no such index. */
TESSERA_API const char *tessera_plan_warning(const tessera_plan *plan, size_t index);

typedef struct tessera_progress {
    const char *phase;                /* "converting", "verifying", ... */
    uint64_t bytes_done, bytes_total; /* bytes read in this phase */
    uint64_t items_done, items_total;
    const char *items; /* the counted items: "tensors", "files" */
    double seconds;    /* since the phase began */
} tessera_progress;

/* Reports progress about five times a second. Calls never overlap, but may come from another thread than the
 * caller's. A return value other than 0 stops the job, which then returns TESSERA_E_CANCELLED. */
typedef int tessera_progress_fn(const tessera_progress *progress, void *data);

typedef struct tessera_result {
    int already_complete;   /* not 0: the output was complete, and was only verified */
    uint64_t files_resumed; /* files of an earlier run that were verified and kept */
    uint64_t bytes_read, bytes_written;
    double seconds;
    uint64_t threads;
    double sqnr; /* SQNR of all quantized weights in dB; NaN: none were quantized */
} tessera_result;

/* Runs a plan and writes to the directory `destination`. The directory is created if it does not exist; it must not
 * overlap the source. A second run of the same plan with the same directory continues a run that was stopped or
 * killed. `progress` and `result` may be NULL; `data` is passed to `progress`. A plan may run several times, but
 * only one run at a time. */
TESSERA_API tessera_status tessera_plan_run(tessera_plan *plan, const char *destination, tessera_progress_fn *progress,
                                            void *data, tessera_result *result, tessera_error *error);

/* ---- verifying ---- */

typedef struct tessera_finding {
    const char *check; /* "names", "shapes", "scales", "codes", "values", "blocks", "config" */
    const char *where; /* name of a tensor, a file, or a key of config.json */
    const char *what;  /* description of the fault */
} tessera_finding;

typedef struct tessera_verdict {
    uint64_t tensors;               /* number of compared tensors */
    uint64_t findings;              /* number of findings; 0: every check passed */
    const tessera_finding *finding; /* array of `findings` elements */
    double sqnr;                    /* total SQNR in dB of the tensors that differ; NaN: none differ */
} tessera_verdict;

/* Compares the checkpoint `path` with its source, as `tessera verify PATH --against SOURCE` does. The decoders share
 * no code with those above. Faults of the checkpoint are findings, not failures. `progress` may be NULL; `data` is
 * passed to it. Free *verdict with tessera_verdict_free. Options: --tensors GLOB, --source-block RxC, --threads N,
 * --memory SIZE, and the limits --min-sqnr DB, --max-block-error X, --max-misrounded N, --max-cast-error X and
 * --method rtn|importance|gptq. */
TESSERA_API tessera_status tessera_verify(tessera_verdict **verdict, const char *path, const char *source,
                                          const char *const *options, tessera_progress_fn *progress, void *data,
                                          tessera_error *error);

/* Frees a verdict. NULL is allowed. */
TESSERA_API void tessera_verdict_free(tessera_verdict *verdict);

#ifdef __cplusplus
}
#endif
#endif
