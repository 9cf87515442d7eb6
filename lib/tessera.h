/* libtessera: the checkpoints of large language models, quantized or not, read and made.
 *
 *     tessera_error error;
 *     tessera_checkpoint *model;
 *     if (tessera_open(&model, "DeepSeek-V3", NULL, &error) != TESSERA_OK)
 *         return fail(error.message);
 *
 * It is what the `tessera` command stands on: the same code reads, the same arithmetic makes the same bytes. Link with
 * `pkg-config --cflags --libs tessera` (--static, too, for libtessera.a). C11, and C++.
 *
 * Errors. A function that can fail returns a tessera_status and takes a `tessera_error *` last, which may be NULL. It is written
 * where the function fails, and left alone where it does not. The message is one line: the object, the fact, and what to do, as the
 * command prints it behind "tessera: ". It is UTF-8 whatever the names in it hold: line ends, other control characters and bytes
 * that are no UTF-8 are spelled out (\n, \x1b), and a line that is too long loses its middle. Other strings (names, notes,
 * warnings, findings) hold names as the files have them: whoever prints these spells them out. On failure there is nothing to free,
 * and what a function would have given is NULL or untouched.
 *
 * Ownership. What a function gives through its first argument is the caller's, who ends it with the function named there; NULL is
 * fine for all of these. Strings and structs that are found in an object are the object's, and live until it is ended. What is
 * passed in is borrowed for the call, unless said otherwise.
 *
 * Threads. There is no global state. An object is read by any number of threads at a time (the `const` ones); making and ending
 * it is one thread's affair. Calls compute in the floating-point mode that the arithmetic is defined in, and leave the caller's
 * as it was.
 *
 * Nothing is printed, no signal is handled, and the process is never ended. Where memory runs out, that is a status.
 *
 * Options are words, as on the command line, in an array that NULL ends:
 *
 *     const char *const options[] = {"--scheme", "nvfp4-weight-only", "--exclude", "*.kv_b_proj.*", NULL};
 *
 * `tessera quantize --help` tells them all; NULL in place of the array stands for none. Dtypes are named as safetensors names
 * them: "BF16", "F8_E4M3". */
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

/* Numbers stay as they are in later versions, which may add some. */
typedef enum tessera_status {
    TESSERA_OK = 0,
    TESSERA_E_USAGE = 1,           /* options that make no sense, or not together; an index beyond the end */
    TESSERA_E_FORMAT = 2,          /* a file breaks the rules of its format */
    TESSERA_E_SHAPE = 3,           /* a shape that the target cannot take */
    TESSERA_E_UNSUPPORTED = 4,     /* well formed, but not something Tessera does */
    TESSERA_E_VALUE = 5,           /* NaN or Inf where a number is needed */
    TESSERA_E_MISMATCH = 6,        /* source, options or output are not what an earlier run recorded */
    TESSERA_E_EXISTS = 7,          /* the destination is taken */
    TESSERA_E_IO = 8,              /* the system refused: permission, device error */
    TESSERA_E_NOSPACE = 9,         /* disk full */
    TESSERA_E_NOMEM = 10,          /* memory exhausted, or --memory too small */
    TESSERA_E_CANCELLED = 11,      /* a callback asked to stop */
    TESSERA_E_DEVICE = 12,         /* no usable GPU */
    TESSERA_E_NOT_APPLICABLE = 13, /* well formed, but nothing of what was asked for */
    TESSERA_E_NOTHING = 14         /* there is nothing to do: what was asked for would change nothing */
} tessera_status;

typedef struct tessera_error {
    tessera_status status;
    char message[1024];
} tessera_error;

/* "0.1.0". */
TESSERA_API const char *tessera_version(void);

/* "format", "no space", ...; of any number. */
TESSERA_API const char *tessera_status_name(tessera_status status);

/* ---- checkpoints ---- */

enum { TESSERA_MAX_RANK = 8, TESSERA_MAX_STORED = 8 };

/* A checkpoint that is open: a Hugging Face directory, one .safetensors file, or arrays in memory. Opening reads the headers and
 * config.json, and holds them against one another; no weight is read. What Tessera cannot interpret is refused, by name. */
typedef struct tessera_checkpoint tessera_checkpoint;

/* Opens a directory or file, in any format that Tessera reads. End it with tessera_close.
 * Options: --source-block RxC (of FP8, where config.json states none), --ignore-file GLOB. */
TESSERA_API tessera_status tessera_open(tessera_checkpoint **checkpoint, const char *path, const char *const *options,
                                        tessera_error *error);

TESSERA_API void tessera_close(tessera_checkpoint *checkpoint);

/* A tensor as it is stored: a plain one, codes, or what belongs to codes. */
typedef struct tessera_stored {
    const char *role; /* "codes", "scale", "zero_point", "global_scale", "group_index", "weight_shape", "input_scale",
                         "input_zero_point"; of a plain tensor "plain" */
    const char *name;
    const char *dtype;
    uint64_t shape[TESSERA_MAX_RANK];
    uint64_t rank;
    uint64_t bytes;
    const char *file; /* that holds the bytes as they are, to be read or mapped; NULL: an archive, or memory */
    uint64_t offset;  /* of the first byte in that file */
    const void *data; /* in memory: the bytes. NULL: a file's */
} tessera_stored;

/* A weight with its meaning: a plain tensor, or codes with all that belongs to them. Element [r, c] of codes stands for
 * (value(code) - zero_point) * scale * global_scale. */
typedef struct tessera_weight {
    const char *name;   /* as loaders of plain weights know it: that of the values */
    const char *format; /* "plain", "fp8-block", "nvfp4-ct", "gptq", ...: as `tessera inspect` has it */
    uint64_t shape[TESSERA_MAX_RANK];
    uint64_t rank;       /* of the values, whatever shape their codes are stored in */
    uint64_t bits;       /* of a code; plain: of an element */
    uint64_t block_rows; /* outputs and inputs that share a scale; plain: 0 */
    uint64_t block_cols;
    uint64_t n_stored;
    tessera_stored stored[TESSERA_MAX_STORED]; /* the first is the codes, or the plain tensor */
} tessera_weight;

/* How many weights there are: codes count once, with all that belongs to them. */
TESSERA_API size_t tessera_count(const tessera_checkpoint *checkpoint);

/* Weight `index`, in the order of the files. */
TESSERA_API tessera_status tessera_weight_at(const tessera_checkpoint *checkpoint, size_t index, tessera_weight *weight,
                                             tessera_error *error);

/* The index of the weight of this name. */
TESSERA_API tessera_status tessera_find(const tessera_checkpoint *checkpoint, const char *name, size_t *index,
                                        tessera_error *error);

/* Reads rows [first, first + rows) of a weight as numbers, dequantized if it is codes: `dtype` is "F32", "BF16" or "F16" of codes;
 * of a plain tensor its own, or "F32" of "BF16" and "F16". A row is what lies along the last axis; the axes before it count as
 * one. `out` has `size` bytes, exactly as many as are read. */
TESSERA_API tessera_status tessera_read(const tessera_checkpoint *checkpoint, size_t index, const char *dtype,
                                        uint64_t first, uint64_t rows, void *out, size_t size, tessera_error *error);

/* Reads bytes [offset, offset + size) of the stored tensor of this name, as they are. */
TESSERA_API tessera_status tessera_read_stored(const tessera_checkpoint *checkpoint, const char *name, uint64_t offset,
                                               void *out, size_t size, tessera_error *error);

/* ---- arrays ---- */

/* An array in the caller's memory: little-endian, rows one after another without gaps. */
typedef struct tessera_array {
    const char *name; /* as a checkpoint would call it; it tells codes from scales. NULL: "array.weight" */
    const char *dtype;
    uint64_t shape[TESSERA_MAX_RANK];
    uint64_t rank;
    const void *data;
    uint64_t bytes;
} tessera_array;

/* Takes arrays (copied) for a checkpoint of these tensors, with the text of a config.json (NULL: none): so codes and scales
 * that lie in memory are dequantized by tessera_read. End it with tessera_close. Options: --source-block RxC. */
TESSERA_API tessera_status tessera_open_arrays(tessera_checkpoint **checkpoint, const tessera_array *arrays, size_t n,
                                               const char *config, const char *const *options, tessera_error *error);

/* Quantizes a matrix [outputs, inputs] of "BF16", "F16" or "F32" to what `tessera quantize` makes of such a tensor, with the
 * options that say how: --scheme, --scales, --block, --group-size and so on. The result is a checkpoint of one weight, whose
 * codes and scales are in memory (tessera_stored.data). End it with tessera_close. */
TESSERA_API tessera_status tessera_quantize(tessera_checkpoint **quantized, const tessera_array *array,
                                            const char *const *options, tessera_error *error);

/* ---- plans ---- */

/* What a conversion will do, made of headers and options before one weight is read. Its source stays open until it is ended. */
typedef struct tessera_plan tessera_plan;

/* Plans what `tessera COMMAND SOURCE OPTIONS` would do: `command` is "quantize" or "convert". Besides the options that say what is
 * made: --ignore-file, --max-shard-size, --threads, --memory, --io, --cpumask, --force. End it with tessera_plan_free. */
TESSERA_API tessera_status tessera_plan_make(tessera_plan **plan, const char *command, const char *source,
                                             const char *const *options, tessera_error *error);

TESSERA_API void tessera_plan_free(tessera_plan *plan);

typedef struct tessera_plan_sums {
    uint64_t tensors;   /* of the source: each has a note */
    uint64_t files;     /* with tensors, that will be written */
    uint64_t bytes_in;  /* of source files that will be read */
    uint64_t bytes_out; /* that will be written, at most */
    uint64_t memory;    /* that running it takes, at most */
    uint64_t warnings;
} tessera_plan_sums;

TESSERA_API void tessera_plan_sum(const tessera_plan *plan, tessera_plan_sums *sums);

/* What becomes of a tensor of the source, and why. */
typedef struct tessera_plan_note {
    const char *name;
    const char *action; /* "quantize", "copy", "drop", ... */
    const char *reason;
} tessera_plan_note;

TESSERA_API tessera_status tessera_plan_note_at(const tessera_plan *plan, size_t index, tessera_plan_note *note,
                                                tessera_error *error);

/* A sentence; NULL beyond the last one. */
TESSERA_API const char *tessera_plan_warning(const tessera_plan *plan, size_t index);

typedef struct tessera_progress {
    const char *phase;                /* "converting", "verifying", ... */
    uint64_t bytes_done, bytes_total; /* read in this phase */
    uint64_t items_done, items_total;
    const char *items; /* what is counted: "tensors", "files" */
    double seconds;    /* since the phase began */
} tessera_progress;

/* Called about five times a second, from one thread at a time, which need not be the caller's. Anything but 0 asks the job to
 * stop: it ends with TESSERA_E_CANCELLED. */
typedef int tessera_progress_fn(const tessera_progress *progress, void *data);

typedef struct tessera_result {
    int already_complete;   /* nothing was left to do: the output was verified */
    uint64_t files_resumed; /* found finished, and verified */
    uint64_t bytes_read, bytes_written;
    double seconds;
    uint64_t threads;
    double sqnr; /* in dB, of all that was quantized; NaN: nothing was */
} tessera_result;

/* Carries the plan out into the directory `destination`, which is made if need be and must lie apart from the source. A run that
 * was stopped or killed is carried on by the same plan into the same directory. `progress` and `result` may be NULL. A plan may
 * be run again, by one thread at a time. */
TESSERA_API tessera_status tessera_plan_run(tessera_plan *plan, const char *destination, tessera_progress_fn *progress,
                                            void *data, tessera_result *result, tessera_error *error);

/* ---- verifying ---- */

typedef struct tessera_finding {
    const char *check; /* "names", "shapes", "scales", "codes", "values", "blocks", "config" */
    const char *where; /* a tensor, a file, or a key of config.json */
    const char *what;
} tessera_finding;

typedef struct tessera_verdict {
    uint64_t tensors;  /* that were compared */
    uint64_t findings; /* 0: every check passed */
    const tessera_finding *finding;
    double sqnr; /* in dB, of the tensors that differ, together; NaN: none does */
} tessera_verdict;

/* Judges the checkpoint `path` by the one that it was made from, as `tessera verify PATH --against SOURCE` does, with decoders that
 * share no code with those above. What it finds is a result; it fails only where it cannot judge. End it with
 * tessera_verdict_free. Options: --tensors GLOB, --source-block RxC, --threads N, --memory SIZE, and the limits of that command:
 * --min-sqnr DB, --max-block-error X, --max-misrounded N, --max-cast-error X. */
TESSERA_API tessera_status tessera_verify(tessera_verdict **verdict, const char *path, const char *source,
                                          const char *const *options, tessera_progress_fn *progress, void *data,
                                          tessera_error *error);

TESSERA_API void tessera_verdict_free(tessera_verdict *verdict);

#ifdef __cplusplus
}
#endif
#endif
