/* The plan of a conversion: every output file, every output tensor, and the steps that make them.
 *
 * A plan is a pure function of headers and options; no weight is read to make it. A step names an operation, the source
 * tensors that it reads and the output tensors that it fills. The operation divides it into units, small pieces of work
 * that can be done in any order, on any thread. An operation declares what a unit reads and writes (windows), but does
 * no input or output itself. The engine does all of it, and can check, account for and repeat it. */
#pragma once

#include "common/arena.h"
#include "common/parallel/threads.h"
#include "common/status.h"
#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/importance/importance.h"
#include "formats/weights/weights.h"
#include "kernels/cpu/cpu.h"
#include "quantize/block_cells.h"
#include "quantize/gptq/factor_cache.h"
#include "quantize/quant_stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Limit of the bytes that one unit reads and writes, unless a single row of blocks is larger. It is a constant, because
 * statistics are summed unit by unit and must not depend on the machine, --memory or --threads. */
#define TSR_UNIT_BYTES (4u << 20)

/* approximate bytes that `run` makes between calls of tsr_unit_made; fits the L2 cache */
#define TSR_PIECE_BYTES (256u << 10)

enum { TSR_MAX_INPUTS = 16, TSR_MAX_OUTPUTS = 4 };

/* A rectangle of bytes in a tensor: `rows` runs of `row_bytes`, `pitch` apart, the first at `offset`. */
typedef struct tsr_window {
    uint64_t offset, rows, row_bytes, pitch;
} tsr_window;

enum { TSR_DECODED_INPUTS = 5 }; /* most inputs of a weight of codes */

/* Rows of a matrix that no file holds. They are decoded to FP32 (TSR_SOURCE_DECODED) or copied (TSR_SOURCE_GATHERED)
 * from tensors in files. A range of rows may begin and end anywhere in the matrix. */
typedef struct tsr_decoded {
    const tsr_tensor *in[TSR_MAX_INPUTS];
    uint32_t n_in;
    const void *params; /* parameters of the decoder; live as long as the plan */
    void (*windows)(const struct tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window in[TSR_MAX_INPUTS]);
    uint64_t (*memory)(const struct tsr_decoded *d, uint64_t rows); /* bytes of memory for the values and scratch */
    /* Decodes the rows. The result, [rows, cols] of the matrix's dtype, is in `memory` or in in[]. Thread-safe. */
    tsr_status (*decode)(const struct tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                         const tsr_cpu_kernels *kernels, const void **x, tsr_err *err);
} tsr_decoded;

/* The largest |x| of whole source tensors, for steps that need it before their first unit, such as the scale of a
 * tensor or of several that loaders run as one. The engine computes it in a separate pass, in pieces of TSR_UNIT_BYTES,
 * just ahead of the first step that needs it. So these tensors are read twice. A resumed run computes it again from the
 * same bytes. */
typedef struct tsr_amax {
    const tsr_tensor *const *of; /* array of n matrices of BF16, F16 or F32 */
    uint32_t n, index;           /* in plan->amaxes */
    /* NULL, or array of n: how each matrix is decoded if no file holds it */
    const tsr_decoded *const *decoded;
} tsr_amax;

/* A unit of this pass: some whole rows of one of the tensors. */
typedef struct tsr_amax_rows {
    const tsr_tensor *tensor;
    const tsr_decoded *decoded; /* NULL: the tensor is read directly */
    uint64_t row, rows;
    uint32_t n_in; /* number of windows: one for the tensor, or one for each of decoded->in */
    tsr_window in[TSR_MAX_INPUTS];
} tsr_amax_rows;

struct tsr_step;

/* The reference that a step's statistics compare its result with. */
typedef enum tsr_stats_of {
    TSR_STATS_NONE,
    TSR_STATS_SOURCE,   /* the source of the step */
    TSR_STATS_ORIGINAL, /* a tensor of the second checkpoint: --against */
    TSR_STATS_UPDATE,   /* the update of an adapter; compared with the change that was stored of it */
} tsr_stats_of;

/* Receives the output of an operation while it is computed, so that it is digested and written while it is in the
 * processor's cache. */
typedef struct tsr_sink {
    void (*accept)(struct tsr_sink *self, uint64_t bytes);
} tsr_sink;

/* A unit of a step. The engine packs the bytes of the windows into the buffers, rows without gaps. */
typedef struct tsr_unit {
    uint32_t from[TSR_MAX_INPUTS];   /* in[i] is a window of step->in[from[i]]; from[i] is i when windows() is called */
    tsr_window in[TSR_MAX_INPUTS];   /* a window with zero rows is not read */
    tsr_window out[TSR_MAX_OUTPUTS]; /* out[i] is a window of step->out[i]; unused for buffered outputs */
    void *in_data[TSR_MAX_INPUTS];
    void *out_data[TSR_MAX_OUTPUTS];        /* a buffered output is the whole tensor, shared by all units of the step */
    void *coproduced_data[TSR_MAX_OUTPUTS]; /* outputs of the step that this one coproduces; NULL: not needed */
    void *scratch;                          /* op->units.scratch_bytes */
    float amax;                             /* the value of step->amax; finite */
    uint64_t *appended;     /* for an appended file: `run` sets it to the bytes of out_data[0] to be written */
    tsr_sink *sink;         /* receives out_data[0] while `run` makes it; NULL: it is written after `run` has
                             * returned */
    tsr_block_notes *notes; /* receives statistics of single blocks; NULL: not needed */
} tsr_unit;

/* Announces that the first `bytes` of out_data[0] are final. Calling it is optional for an operation. */
static inline void tsr_unit_made(const tsr_unit *u, uint64_t bytes)
{
    if (u->sink != NULL)
        u->sink->accept(u->sink, bytes);
}

/* How a step is divided into units. All but `run` are pure functions of the step. */
typedef struct tsr_op_units {
    uint64_t (*count)(const struct tsr_step *step);
    void (*windows)(const struct tsr_step *step, uint64_t unit, tsr_unit *u);
    uint64_t (*scratch_bytes)(const struct tsr_step *step); /* NULL: none */
    /* Computes one unit and adds its error to *stats. Thread-safe. */
    tsr_status (*run)(const struct tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                      tsr_quant_stats *stats, tsr_err *err);
} tsr_op_units;

typedef struct tsr_op {
    const char *name;
    tsr_op_units units;
    uint64_t (*largest)(const struct tsr_step *step); /* the unit that needs most memory; NULL: the first */
    /* Called after the last unit, before the buffered outputs are written: makes final changes to them. May be NULL. */
    void (*seal)(const struct tsr_step *step, void *const *buffered);
    /* Called after that with the buffered outputs, which are freed afterwards. May be NULL. */
    tsr_status (*finish)(const struct tsr_step *step, void *const *buffered, tsr_quant_stats *stats, tsr_err *err);
    tsr_stats_of stats_of; /* the step appears in the report unless this is NONE */
    /* Describes the blocks that `run` reports, unfolded, and the format of its codes; NULL: it reports none. */
    void (*blocks)(const struct tsr_step *step, tsr_block_map *map, tsr_code_bins *bins);
} tsr_op;

typedef struct tsr_step {
    const tsr_op *op;
    const void *params;          /* parameters of the operation; live as long as the plan */
    const tsr_tensor *const *in; /* array of n_in, each a tensor of plan->sources[in[i]->source] */
    const tsr_tensor *out[TSR_MAX_OUTPUTS];
    uint32_t n_in;
    uint8_t n_out;
    uint8_t scales;   /* 1 + dtype of the scales that it copies (convert/io/copied_codes.h); 0: it copies none */
    uint8_t buffered; /* bit i: out[i] is small, kept in memory while the step runs and written when it is complete */
    uint32_t file;
    const tsr_amax *amax; /* NULL: not needed. All of amax->of are inputs of the step, even if it reads only one of
                           * them */
    uint32_t coproduces, coproduced_by; /* see tsr_plan_coproduce; 1 + number of that step, 0: none */
    const tsr_tensor *reported;         /* gives the name and shape of the row in the report; NULL: in[0] */
} tsr_step;

typedef struct tsr_out_file {
    const char *name; /* relative to the destination */
    bool raw;         /* contains only the output of its steps, without a safetensors header */
    /* A raw file of one step whose size is not known in advance. It contains what the units write of out[0], in order
     * and without gaps, followed by the buffered outputs. For windows of such a step, offsets are ignored and sizes are
     * upper bounds. */
    bool appended;
    const char *header;    /* header of header_bytes, written unchanged; NULL: made from the tensors */
    uint64_t header_bytes; /* 0 when raw */
    uint64_t bytes;        /* size of the whole file; an upper bound if it is appended */
    size_t first_step;     /* its steps are consecutive */
    size_t n_steps;
    bool begins_sequence; /* see tsr_plan_begin_sequence */
    tsr_tensor **tensors; /* ordered by offset */
    size_t n_tensors;
} tsr_out_file;

/* The treatment of a source tensor and its reason, for --dry-run and the summary. */
typedef struct tsr_plan_note {
    const tsr_tensor *source;
    const char *action; /* one word: "quantize", "copy", "drop" */
    const char *reason;
} tsr_plan_note;

/* A text file written after all other files, in this order; config.json is last. */
typedef struct tsr_plan_text {
    const char *name;
    const char *data;
    size_t size;
} tsr_plan_text;

/* Summary of the file of block statistics (TSR_BLOCKS_NAME) for the report. No tensors: there is no such file. */
typedef struct tsr_plan_blocks {
    uint64_t tensors, folded; /* all tensors, and those for which a cell covers several blocks */
    uint64_t cells;           /* cells of all tensors */
    uint64_t bytes, digest;   /* size of the file; its XXH3-64 */
    uint64_t digest128[2];    /* XXH128, high half first */
} tsr_plan_blocks;

/* The result of a quantizing job, for its report. NULL: nothing to report. */
typedef struct tsr_plan_made {
    const char *scheme, *dialect; /* names as in the options */
    const char *rule;             /* the rule that derives a power of two from amax */
    const char *readers;          /* who loads it */
    const char *scales; /* "optimal": no other scale that can be stored has a smaller squared error; or NULL */
} tsr_plan_made;

/* A file named by an option. `text` is its contents if it is small, else NULL. */
typedef struct tsr_plan_input {
    const char *option, *name; /* the last component of its path */
    uint64_t bytes, digest[2]; /* size; XXH128, high half first */
    const char *text;
} tsr_plan_input;

/* The command line that reproduces the output, without the paths of source and destination. NULL: unknown. */
typedef struct tsr_plan_provenance {
    const char *command;
    const char *const *words;
    size_t n_words;
    const tsr_plan_input *inputs;
    size_t n_inputs;
} tsr_plan_provenance;

struct tsr_plan;

/* The model card of the output (TSR_CARD_NAME). */
typedef struct tsr_plan_card {
    /* Writes the card from rows[n_steps]; NULL: the output has none. */
    void (*write)(const struct tsr_plan *plan, const tsr_quant_stats *rows, tsr_text *out);
    const char *scheme, *dialect; /* NULL: none */
    const char *members;          /* lines of its front matter that the source determines */
    bool of_source;               /* the source has a card */
} tsr_plan_card;

typedef struct tsr_plan {
    const tsr_checkpoint *const *sources; /* inputs; side files and configuration come from the first */
    size_t n_sources;
    const char *command; /* the options that determine the output, in canonical spelling; a resumed run must have the
                          * same */
    tsr_step *steps;
    size_t n_steps, steps_capacity;
    const tsr_amax **amaxes; /* in the order in which steps need them */
    size_t n_amaxes, amaxes_capacity;
    tsr_out_file *files;
    size_t n_files, files_capacity;
    tsr_plan_note *notes; /* one per source tensor, so that the treatment of every tensor is reported */
    size_t n_notes, notes_capacity;
    tsr_plan_text *texts;
    size_t n_texts, texts_capacity;
    uint64_t view_bytes;   /* memory of the view that the sources are, and of the data behind it; 0: none */
    uint64_t bytes_in;     /* bytes read from source files if each chunk is read once */
    uint64_t bytes_wanted; /* bytes that all units read if nothing is shared */
    uint64_t bytes_again;  /* the part of them that amaxes read, that is, a second time */
    uint64_t widest;       /* largest span of a window with gaps in a source file, in bytes */
    uint64_t bytes_out;    /* size of all files with headers; an upper bound if one of them is appended */
    uint64_t fingerprint;
    /* set if the policy of quantize decided: */
    bool by_policy;
    const char *model_type; /* the model_type whose rules were used; NULL: config.json has none */
    bool general_rules;     /* no table of rules has this model_type, so the general rules were used */
    const char **warnings;  /* printed before the run, one sentence each */
    size_t n_warnings, warnings_capacity;
    const char *little;  /* why no command to serve the result is given: too few weights are quantized; or NULL */
    const char *advice;  /* one sentence on how to use the result; NULL: none */
    const char *next;    /* the command to run next, with SRC and DST as placeholders; NULL: verify DST --against SRC */
    const char *counted; /* the items that progress counts: "files"; NULL: "tensors" */
    size_t n_added;      /* tensors of the output that the source does not have */
    tsr_plan_made made;
    const tsr_importance *importance; /* --importance: weights of the columns in squared errors. Borrowed; or NULL */
    size_t n_weighted, n_unweighted;  /* quantized weights with and without data in it */
    const char *first_unweighted;
    tsr_factor_cache *factors;      /* --method gptq: factors of Hessians, for all steps; or NULL */
    uint64_t factor_bytes;          /* memory that they take */
    size_t n_calibrated, n_rounded; /* quantized weights with and without products for GPTQ */
    const char *first_rounded;
    tsr_plan_provenance provenance;
    uint64_t block_cells; /* limit of the cells that the blocks of a tensor are folded to */
    /* Work before the first unit, such as a search in all weights, whose results the steps use; NULL: none. It is not
     * done if the output is complete already. */
    tsr_status (*prepare)(const struct tsr_plan *plan, const tsr_run_options *run, unsigned cpu_flags, tsr_err *err);
    void *preparation; /* its data. Borrowed */
    /* Estimates the final size of appended files as a share of their upper bounds; reads samples of the source. NULL if
     * there are none. */
    tsr_status (*estimate)(const struct tsr_plan *plan, double *share, tsr_err *err);
    /* Writes the report from rows[n_steps]; NULL: the job has no report. */
    void (*report)(const struct tsr_plan *plan, const tsr_quant_stats *rows, const tsr_plan_blocks *blocks,
                   tsr_text *out);
    tsr_plan_card card;
    tsr_arena arena; /* owns all names, tensors, parameters and texts of the plan */
} tsr_plan;

/* Begins a plan. `sources` is borrowed and must outlive the plan. */
tsr_plan tsr_plan_begin(const tsr_checkpoint *const *sources, size_t n_sources);

/* Copies *tensor to the plan's arena, for an output whose offset is not known yet, or for an input from a source other
 * than the first. Returns NULL when memory is exhausted. */
tsr_tensor *tsr_plan_tensor(tsr_plan *plan, const tsr_tensor *tensor);

/* Makes an output tensor. Its size in bytes follows from dtype and shape[rank]. `name` is in the plan's arena. If
 * `name` is NULL because memory is exhausted, the result is NULL too. */
tsr_tensor *tsr_plan_new_tensor(tsr_plan *plan, const char *name, tsr_dtype dtype, unsigned rank,
                                const uint64_t *shape);

/* Makes an output tensor of the module of `weight`: X.weight and "_scale" give "X_scale"; X.weight and ".weight_scale"
 * give "X.weight_scale". Otherwise as tsr_plan_new_tensor. */
tsr_tensor *tsr_plan_new_member(tsr_plan *plan, const tsr_tensor *weight, const char *ending, tsr_dtype dtype,
                                unsigned rank, const uint64_t *shape);

/* Appends a step (step->in is copied). The outputs of one step are always in the same file. */
tsr_status tsr_plan_step(tsr_plan *plan, const tsr_step *step, tsr_err *err);

/* Requests the largest |x| over these tensors for step->amax of each of them. The array is copied. Returns NULL when
 * memory is exhausted. */
const tsr_amax *tsr_plan_amax(tsr_plan *plan, const tsr_tensor *const *tensors, size_t n);

/* The same for matrices that are decoded: decoded[i] makes tensors[i] (array of n, copied). */
const tsr_amax *tsr_plan_amax_decoded(tsr_plan *plan, const tsr_tensor *const *tensors,
                                      const tsr_decoded *const *decoded, size_t n);

/* Appends the tensors of *amax except in[0] == weight to in[], and returns the number of inputs. `amax` may be NULL. */
uint32_t tsr_amax_inputs(const tsr_amax *amax, const tsr_tensor *weight, const tsr_tensor *in[TSR_MAX_INPUTS]);

/* Replaces plan->amaxes[i] by instead[i], also in all steps, unless instead[i].n is 0. The arrays are borrowed. */
tsr_status tsr_plan_replace_amaxes(tsr_plan *plan, const tsr_amax *instead, tsr_err *err);

/* Appends the inputs that the members of step->amax are decoded from to the step's own inputs. */
tsr_status tsr_plan_add_amax_inputs(tsr_plan *plan, tsr_step *step, tsr_err *err);

/* Makes the units of step `from` also compute the outputs of step `to`, in the same order. All outputs of `to` are
 * buffered and lie in another file. `to` follows `from` and reads the same inputs. `to` runs by itself only if `from`
 * does not run, because its file was finished in an earlier run or is made by another shard. */
void tsr_plan_coproduce(tsr_plan *plan, size_t from, size_t to);

/* Copies one tensor or a side file. */
extern const tsr_op tsr_copy_op;

/* Adds a step that copies `tensor` under `name`. */
tsr_status tsr_plan_copy(tsr_plan *plan, const tsr_tensor *tensor, const char *name, tsr_err *err);

/* Records the treatment of a source tensor and its reason. `reason` is static or in the plan's arena. */
tsr_status tsr_plan_add_note(tsr_plan *plan, const tsr_tensor *source, const char *action, const char *reason,
                             tsr_err *err);

/* Adds a warning, which is printed before the job runs. */
tsr_status tsr_plan_warn(tsr_plan *plan, tsr_err *err, const char *fmt, ...) TSR_PRINTF(3, 4);

/* Finds the data of plan->importance for a weight that is quantized, and counts it. TSR_E_MISMATCH:
 * tsr_importance_find. */
tsr_status tsr_plan_weigh(tsr_plan *plan, const tsr_tensor *weight, tsr_column_importance *importance, tsr_err *err);

/* Counts a weight that GPTQ quantizes with importance->products, if --method gptq was given, and sets *factors. A
 * weight without products is rounded to nearest. */
tsr_status tsr_plan_calibrate(tsr_plan *plan, const tsr_tensor *weight, const tsr_column_importance *importance,
                              tsr_factor_cache **factors, tsr_err *err);

/* Warns about quantized weights without importance, or without products for GPTQ. TSR_E_MISMATCH: none of them has
 * any. */
tsr_status tsr_plan_warn_of_unweighted(tsr_plan *plan, tsr_err *err);

/* Adds the warning of the source's weights, if there is one. */
static inline tsr_status tsr_plan_warn_of(tsr_plan *plan, const tsr_weights *weights, tsr_err *err)
{
    return weights->warning == NULL ? TSR_OK : tsr_plan_warn(plan, err, "%s", weights->warning);
}

/* Puts all steps that are not assigned to a file yet into one file, `name` (borrowed). Assigns offsets and makes its
 * header: the widest dtype first, then by name. */
tsr_status tsr_plan_file(tsr_plan *plan, const char *name, tsr_err *err);

/* The same with a given header (borrowed), which includes the 8 length bytes. It must name exactly the outputs of these
 * steps, and determines their offsets. */
tsr_status tsr_plan_file_as(tsr_plan *plan, const char *name, const char *header, size_t header_bytes, tsr_err *err);

/* Puts all steps that are not assigned to a file yet into one raw file, `name` (borrowed). */
tsr_status tsr_plan_raw_file(tsr_plan *plan, const char *name, bool appended, tsr_err *err);

/* Distributes all steps that are not assigned to a file yet, in order, over files named model.safetensors or
 * model-00001-of-0000N.safetensors. A file has at most `max_bytes` of tensor data; a larger tensor gets a file of its
 * own. Each is laid out as by tsr_plan_file. `folder` is "" or ends in a slash, here and below. */
tsr_status tsr_plan_pack(tsr_plan *plan, const char *folder, uint64_t max_bytes, tsr_err *err);

/* Begins a file sequence at `first_file`: these files read the source once more than the files before them. The engine
 * makes sequences side by side, so that shared bytes are read once. A sequence ends at the next call or the last
 * file. */
void tsr_plan_begin_sequence(tsr_plan *plan, size_t first_file);

/* Returns the number of file sequences, at least one. */
size_t tsr_plan_sequences(const tsr_plan *plan);

/* Adds a raw copy of every side file of the first source whose name matches `glob`, except those in the NULL-terminated
 * list `except` (may be NULL). */
tsr_status tsr_plan_side_files(tsr_plan *plan, const char *folder, const char *glob, const char *const *except,
                               tsr_err *err);

/* Adds a raw copy of every side file except those in `except`, for an output with other weights. Leaves out files that
 * may hold the weights of the source in another format, and warns of them. */
tsr_status tsr_plan_files_beside(tsr_plan *plan, const char *const *except, tsr_err *err);

/* Adds FOLDER/model.safetensors.index.json for the safetensors files that the folder has so far, if there is more than
 * one or `always` is set. */
tsr_status tsr_plan_index(tsr_plan *plan, const char *folder, bool always, tsr_err *err);

/* Makes the files of a model from all steps: tsr_plan_pack, tsr_plan_files_beside, and the index. */
tsr_status tsr_plan_model_files(tsr_plan *plan, uint64_t max_bytes, const char *const *except, tsr_err *err);

/* Returns the config.json that the plan writes, or NULL. */
const tsr_plan_text *tsr_plan_config(const tsr_plan *plan);

/* Adds a text file. The text is copied. */
tsr_status tsr_plan_text_file(tsr_plan *plan, const char *folder, const char *name, const char *data, size_t size,
                              tsr_err *err);

/* Adds a text that the caller has just composed, and frees it. `status` is the result of composing it. If that is a
 * failure, adds nothing and returns the failure. */
tsr_status tsr_plan_take_text(tsr_plan *plan, const char *folder, const char *name, tsr_text *text, tsr_status status,
                              tsr_err *err);

/* Sets the plan's command to a copy of `text` with --importance and --method, and frees `text`. */
tsr_status tsr_plan_take_command(tsr_plan *plan, tsr_text *text, tsr_err *err);

/* Checks that no two outputs have the same name, sums sizes and computes the fingerprint. The fingerprint covers the
 * sources' names, sizes, times and headers, the command, the layout and Tessera's version. Must be called last. */
tsr_status tsr_plan_finish(tsr_plan *plan, tsr_err *err);

/* Returns the tensor of a step's row in the report. */
const tsr_tensor *tsr_step_reported(const tsr_step *step);

/* Returns true if statistics of single blocks of step `index` are written. Then sets its folded map and the format of
 * its codes. */
bool tsr_plan_has_blocks(const tsr_plan *plan, size_t index, tsr_block_map *map, tsr_code_bins *bins);

/* Sets block_cells so that all planes together stay within the limits of formats/blocks/block_file.h. */
void tsr_plan_fold_blocks(tsr_plan *plan);

/* Returns an upper bound of the bytes of the block records of a file's steps, before compression. */
uint64_t tsr_plan_block_bytes(const tsr_plan *plan, size_t file);

/* Returns the memory that the block statistics of a step need while it runs and while its record is made. */
uint64_t tsr_step_block_memory(const tsr_plan *plan, size_t index);

/* Returns the part of bytes_out that is only an upper bound: that of appended files. */
uint64_t tsr_plan_bounded_bytes(const tsr_plan *plan);

/* Returns the bytes of memory that the engine needs with `threads` workers, tables included. */
uint64_t tsr_plan_memory(const tsr_plan *plan, unsigned threads);

/* Returns a unit with its windows filled in. */
tsr_unit tsr_step_unit(const tsr_step *step, uint64_t unit);

/* Returns the bytes that all units of the step read. */
uint64_t tsr_step_input(const tsr_step *step);

/* Units of an amax: their number, one of them, the bytes that all of them read, the bytes that one reads, and the most
 * memory that one needs. */
uint64_t tsr_amax_units(const tsr_amax *amax);
tsr_amax_rows tsr_amax_unit(const tsr_amax *amax, uint64_t unit);
uint64_t tsr_amax_bytes(const tsr_amax *amax);
uint64_t tsr_amax_rows_bytes(const tsr_amax_rows *rows);
uint64_t tsr_amax_unit_bytes(const tsr_amax *amax);

/* Returns the most memory that one unit of any step or amax needs. */
uint64_t tsr_plan_unit_bytes(const tsr_plan *plan);

/* Frees the plan's memory, but not the sources. */
void tsr_plan_free(tsr_plan *plan);

/* Ends a function that makes a plan: frees *plan unless `status` is TSR_OK. Returns `status`. */
tsr_status tsr_plan_ended(tsr_plan *plan, tsr_status status);

/* Returns true if output i of a step is kept in memory until the step ends. */
static inline bool tsr_is_buffered(const tsr_step *step, unsigned i)
{
    return (step->buffered >> i & 1) != 0;
}

static inline uint64_t tsr_window_bytes(const tsr_window *w)
{
    return w->rows * w->row_bytes;
}

/* Returns true if the rows are contiguous in the source, so that one read fetches all of them. */
static inline bool tsr_window_is_gapless(const tsr_window *w)
{
    return w->rows <= 1 || w->pitch == w->row_bytes;
}
