/* The plan of a conversion: every output file, every output tensor, and the steps that make them.
 *
 * A plan is a pure function of headers and options, made before one weight is read. A step names an operation, the
 * source tensors that it reads and the output tensors that it fills; the operation cuts it into units, small pieces of
 * work that can be done in any order, on any thread. What a unit reads and writes is declared (windows), never done by
 * the operation itself: the engine does all input and output, and can check, account for and redo any of it. */
#ifndef TSR_CONVERT_PLAN_PLAN_H
#define TSR_CONVERT_PLAN_PLAN_H

#include "common/arena.h"
#include "common/status.h"
#include "common/text.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/weights/weights.h"
#include "kernels/cpu/cpu.h"
#include "quantize/block_cells.h"
#include "quantize/quant_stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The most that one unit reads and writes, unless a single row of blocks is larger. It is a constant and not a property
 * of the machine, because sums are added unit by unit and must not depend on --memory or --threads. */
#define TSR_UNIT_BYTES (4u << 20)

/* bytes that `run` makes before each call of tsr_unit_made, about: fits the second-level cache */
#define TSR_PIECE_BYTES (256u << 10)

enum { TSR_MAX_INPUTS = 16, TSR_MAX_OUTPUTS = 4 };

/* A rectangle of bytes in a tensor: `rows` runs of `row_bytes`, `pitch` apart, the first at `offset`. */
typedef struct tsr_window {
    uint64_t offset, rows, row_bytes, pitch;
} tsr_window;

enum { TSR_DECODED_INPUTS = 5 };

/* Rows of a matrix that no file holds: how they are decoded to FP32 (TSR_SOURCE_DECODED) or taken as they are
 * (TSR_SOURCE_GATHERED) from tensors that files do hold. `rows` may begin and end anywhere in the matrix. */
typedef struct tsr_decoded {
    const tsr_tensor *in[TSR_DECODED_INPUTS];
    uint32_t n_in;
    const void *params; /* the decoder's own; lives as long as the plan */
    void (*windows)(const struct tsr_decoded *d, uint64_t row, uint64_t rows, tsr_window in[TSR_DECODED_INPUTS]);
    uint64_t (*memory)(const struct tsr_decoded *d, uint64_t rows); /* bytes: the values, and scratch */
    /* *x is in `memory` or in in[]: [rows, cols], of the matrix's dtype. Thread-safe. */
    tsr_status (*decode)(const struct tsr_decoded *d, uint64_t row, uint64_t rows, void *const *in, void *memory,
                         const tsr_cpu_kernels *kernels, const void **x, tsr_err *err);
} tsr_decoded;

/* The largest |x| over whole source tensors, where a step needs it before its first unit: the scale of a tensor, or of
 * several that loaders run as one, follows from it. The engine finds it in a pass of its own, in pieces of
 * TSR_UNIT_BYTES, just ahead of the first step that asks for it. So these tensors are read twice; a resumed run finds it
 * again, from the same bytes. */
typedef struct tsr_amax {
    const tsr_tensor *const *of; /* n of them: matrices of BF16, F16 or F32 */
    uint32_t n, index;           /* in plan->amaxes */
    /* NULL, or n of them: how each is decoded, where no file holds it. */
    const tsr_decoded *const *decoded;
} tsr_amax;

/* A unit of this pass: some whole rows of one of the tensors. */
typedef struct tsr_amax_rows {
    const tsr_tensor *tensor;
    const tsr_decoded *decoded; /* NULL: the tensor is read as it is */
    uint64_t row, rows;
    uint32_t n_in; /* windows: one of the tensor, or those of decoded->in */
    tsr_window in[TSR_DECODED_INPUTS];
} tsr_amax_rows;

struct tsr_step;

/* The reference that a step's statistics compare its result with. */
typedef enum tsr_stats_of {
    TSR_STATS_NONE,
    TSR_STATS_SOURCE,   /* with what it was made from */
    TSR_STATS_ORIGINAL, /* with a second checkpoint's tensor: --against */
} tsr_stats_of;

/* Takes what an operation makes while it is still at work, so that it is digested and written from the processor's cache. */
typedef struct tsr_sink {
    void (*accept)(struct tsr_sink *self, uint64_t bytes);
} tsr_sink;

/* One piece of a step. The engine packs the windows' bytes into the buffers (rows without gaps). */
typedef struct tsr_unit {
    uint32_t from[TSR_MAX_INPUTS];   /* in[i] is of step->in[from[i]]; from[i] = i when windows() is called */
    tsr_window in[TSR_MAX_INPUTS];   /* zero rows: not read */
    tsr_window out[TSR_MAX_OUTPUTS]; /* out[i] is of step->out[i]; unused for buffered outputs */
    void *in_data[TSR_MAX_INPUTS];
    void *out_data[TSR_MAX_OUTPUTS];        /* buffered outputs: the whole tensor, shared by all units of the step */
    void *coproduced_data[TSR_MAX_OUTPUTS]; /* outputs of the step that this one coproduces; NULL: not wanted */
    void *scratch;                          /* op->scratch_bytes */
    float amax;                             /* what step->amax came to; finite */
    uint64_t *appended;     /* in an appended file: to be set by run, how many bytes of out_data[0] are to be written */
    tsr_sink *sink;         /* takes out_data[0] while `run` makes it; NULL: it is written after `run` has returned */
    tsr_block_notes *notes; /* where figures of single blocks are to be noted; NULL: they are not wanted */
} tsr_unit;

/* By this `run` says that the first `bytes` of out_data[0] are made and will not change. An operation need not say so. */
static inline void tsr_unit_made(const tsr_unit *u, uint64_t bytes)
{
    if (u->sink != NULL)
        u->sink->accept(u->sink, bytes);
}

typedef struct tsr_op {
    const char *name;
    /* Pure functions of the step. */
    uint64_t (*units)(const struct tsr_step *step);
    void (*windows)(const struct tsr_step *step, uint64_t unit, tsr_unit *u);
    uint64_t (*scratch_bytes)(const struct tsr_step *step); /* NULL: none */
    uint64_t (*largest)(const struct tsr_step *step);       /* the unit that takes most memory; NULL: the first */
    /* The arithmetic of one unit; adds what it cost to *stats. Thread-safe. */
    tsr_status (*run)(const struct tsr_step *step, uint64_t unit, const tsr_unit *u, const tsr_cpu_kernels *kernels,
                      tsr_quant_stats *stats, tsr_err *err);
    /* After the last unit, before the buffered outputs are written: the last changes to them; NULL: none. */
    void (*seal)(const struct tsr_step *step, void *const *buffered);
    /* After that, with the buffered outputs, which are no longer needed; NULL: nothing to do. */
    tsr_status (*finish)(const struct tsr_step *step, void *const *buffered, tsr_quant_stats *stats, tsr_err *err);
    tsr_stats_of stats_of; /* the step appears in the report, unless NONE */
    /* Which blocks `run` notes, unfolded, and what its codes are; NULL: it notes none. */
    void (*blocks)(const struct tsr_step *step, tsr_block_map *map, tsr_code_bins *bins);
} tsr_op;

typedef struct tsr_step {
    const tsr_op *op;
    const void *params;          /* the operation's own; lives as long as the plan */
    const tsr_tensor *const *in; /* n_in of them, each of plan->sources[in[i]->source] */
    const tsr_tensor *out[TSR_MAX_OUTPUTS];
    uint32_t n_in;
    uint8_t n_out;
    uint8_t scales;   /* 1 + the dtype of scales that it copies (convert/io/copied_codes.h); 0: it copies none */
    uint8_t buffered; /* bit i: out[i] is small, kept in memory while the step runs and written when it is complete */
    uint32_t file;
    const tsr_amax *amax; /* NULL: it needs none. All of amax->of are among its inputs, even where it reads one */
    uint32_t coproduces, coproduced_by; /* see tsr_plan_coproduce; 1 + the number of that step, 0: none */
    const tsr_tensor *reported;         /* whose name and shape its row of the report has; NULL: in[0]'s */
} tsr_step;

typedef struct tsr_out_file {
    const char *name; /* relative to the destination */
    bool raw;         /* only what its steps make: no safetensors header */
    /* A raw file of one step whose size is not known beforehand: it holds what the units write of out[0], in their
     * order, without gaps, and then the buffered outputs. In windows of such a step offsets mean nothing, and sizes are
     * upper bounds. */
    bool appended;
    const char *header;    /* header_bytes to be written as they are; NULL: to be made from the tensors */
    uint64_t header_bytes; /* 0 when raw */
    uint64_t bytes;        /* of the whole file; at most, when appended */
    size_t first_step;     /* its steps follow one another */
    size_t n_steps;
    bool begins_sequence; /* see tsr_plan_begin_sequence */
    tsr_tensor **tensors; /* in the order of their bytes */
    size_t n_tensors;
} tsr_out_file;

/* Why a source tensor is treated as it is; for --dry-run and the count at the end. */
typedef struct tsr_plan_note {
    const tsr_tensor *source;
    const char *action; /* one word: "quantize", "copy", "drop" */
    const char *reason;
} tsr_plan_note;

/* A text file written when all else is done, in this order; config.json comes last. */
typedef struct tsr_plan_text {
    const char *name;
    const char *data;
    size_t size;
} tsr_plan_text;

/* The outcome of block figures (TSR_BLOCKS_NAME), for the report. No tensors: there is no such file. */
typedef struct tsr_plan_blocks {
    uint64_t tensors, folded; /* all of them, and those of which a cell stands for several blocks */
    uint64_t cells;           /* of all tensors */
    uint64_t bytes, digest;   /* of the file; XXH3-64 */
    uint64_t digest128[2];    /* XXH128, the higher half first */
} tsr_plan_blocks;

/* The result of a quantizing job, for its report. NULL: nothing to report. */
typedef struct tsr_plan_made {
    const char *scheme, *dialect; /* as the options call them */
    const char *rule;             /* by which powers of two follow from amax */
    const char *readers;          /* who loads it */
} tsr_plan_made;

/* A file that an option names: `text` where it is small, else NULL. */
typedef struct tsr_plan_input {
    const char *option, *name; /* the last name of its path */
    uint64_t bytes, digest[2]; /* XXH128, the higher half first */
    const char *text;
} tsr_plan_input;

/* The command line that makes these bytes again, but for paths of source and destination. NULL: nobody has said. */
typedef struct tsr_plan_provenance {
    const char *command;
    const char *const *words;
    size_t n_words;
    const tsr_plan_input *inputs;
    size_t n_inputs;
} tsr_plan_provenance;

typedef struct tsr_plan {
    const tsr_checkpoint *const *sources; /* what is read; the first gives side files and configuration */
    size_t n_sources;
    const char *command; /* the options that shape the output, spelled canonically: what a resumed run must repeat */
    tsr_step *steps;
    size_t n_steps, steps_capacity;
    const tsr_amax **amaxes; /* in the order in which steps ask for them */
    size_t n_amaxes, amaxes_capacity;
    tsr_out_file *files;
    size_t n_files, files_capacity;
    tsr_plan_note *notes; /* one per source tensor: none is lost without a word */
    size_t n_notes, notes_capacity;
    tsr_plan_text *texts;
    size_t n_texts, texts_capacity;
    uint64_t view_bytes;   /* memory of the view that the sources are, and of what is behind it; 0: none */
    uint64_t bytes_in;     /* bytes read from source files if each chunk is read once */
    uint64_t bytes_wanted; /* by all units together: what is read where nothing is shared */
    uint64_t bytes_again;  /* of them for amaxes: what is wanted a second time */
    uint64_t widest;       /* bytes of a source file over which a window with gaps is spread, at most */
    uint64_t bytes_out;    /* all files, headers included; at most, when one of them is appended */
    uint64_t fingerprint;
    /* Where the policy of quantize decided: */
    bool by_policy;
    const char *model_type; /* whose table of rules was used; NULL: config.json states none */
    bool general_rules;     /* no table has this model_type, so the general rules were used */
    const char **warnings;  /* printed before the run, a sentence each */
    size_t n_warnings, warnings_capacity;
    const char *little;  /* why the result is not worth serving: most weights stay as they are; NULL: they do not */
    const char *advice;  /* one sentence on how to use the result; NULL: none */
    const char *next;    /* the command to run next, with SRC and DST for the paths; NULL: verify DST --against SRC */
    const char *counted; /* what progress counts: "files"; NULL: "tensors" */
    size_t n_added;      /* tensors of the result that the source does not have */
    tsr_plan_made made;
    tsr_plan_provenance provenance;
    uint64_t block_cells; /* the most that the blocks of a tensor are folded to */
    /* How much of their upper bounds appended files will come to, about: reads some of the source. NULL where there are none. */
    tsr_status (*estimate)(const struct tsr_plan *plan, double *share, tsr_err *err);
    /* Writes the report about rows[n_steps]; NULL: the job has none. */
    void (*report)(const struct tsr_plan *plan, const tsr_quant_stats *rows, const tsr_plan_blocks *blocks,
                   tsr_text *out);
    tsr_arena arena; /* names, tensors, parameters, texts: all that the plan points to */
} tsr_plan;

/* Begins a plan. `sources` is borrowed and outlives the plan. */
tsr_plan tsr_plan_begin(const tsr_checkpoint *const *sources, size_t n_sources);

/* A copy of *tensor in the plan's arena, for an output, whose place in a file is not known yet, or for an input from
 * another source than the first. NULL when memory is exhausted. */
tsr_tensor *tsr_plan_tensor(tsr_plan *plan, const tsr_tensor *tensor);

/* A new output tensor; its size in bytes follows from dtype and shape[rank]. `name` is in the plan's arena. When `name`
 * is NULL, because memory ran out while it was made, the result is NULL, too. */
tsr_tensor *tsr_plan_new_tensor(tsr_plan *plan, const char *name, tsr_dtype dtype, unsigned rank,
                                const uint64_t *shape);

/* Appends a step (step->in is copied). The outputs of one step always share a file. */
tsr_status tsr_plan_step(tsr_plan *plan, const tsr_step *step, tsr_err *err) TSR_WARN_UNUSED;

/* Announces that steps need the largest |x| over these tensors (their array is copied): for step->amax of each of them.
 * NULL when memory is exhausted. */
const tsr_amax *tsr_plan_amax(tsr_plan *plan, const tsr_tensor *const *tensors, size_t n);

/* Puts instead[i] in the place of plan->amaxes[i], in all steps too; where instead[i].n is 0, nothing. (Their arrays are
 * borrowed.) */
tsr_status tsr_plan_replace_amaxes(tsr_plan *plan, const tsr_amax *instead, tsr_err *err) TSR_WARN_UNUSED;

/* Puts what the members of step->amax are decoded from behind the step's own inputs. */
tsr_status tsr_plan_add_amax_inputs(tsr_plan *plan, tsr_step *step, tsr_err *err) TSR_WARN_UNUSED;

/* The units of step `from` make the outputs of step `to` as well, in the order in which they are made: those lie in another file, and
 * all of them are buffered. `to` follows, reads the same, and is run by itself only where `from` is not: its file was finished in an
 * earlier run, or is made by another shard. */
void tsr_plan_coproduce(tsr_plan *plan, size_t from, size_t to);

/* Copies one tensor, or a side file. */
extern const tsr_op tsr_copy_op;

/* A step that copies `tensor` under `name`. */
tsr_status tsr_plan_copy(tsr_plan *plan, const tsr_tensor *tensor, const char *name, tsr_err *err) TSR_WARN_UNUSED;

/* Notes what becomes of a source tensor, and why. `reason` is static or in the plan's arena. */
tsr_status tsr_plan_add_note(tsr_plan *plan, const tsr_tensor *source, const char *action, const char *reason,
                             tsr_err *err) TSR_WARN_UNUSED;

/* Adds a warning, which is printed before the job runs. */
tsr_status tsr_plan_warn(tsr_plan *plan, tsr_err *err, const char *fmt, ...) TSR_PRINTF(3, 4) TSR_WARN_UNUSED;

/* Adds the warning of the source's weights, if there is one. */
static inline tsr_status tsr_plan_warn_of(tsr_plan *plan, const tsr_weights *weights, tsr_err *err)
{
    return weights->warning == NULL ? TSR_OK : tsr_plan_warn(plan, err, "%s", weights->warning);
}

/* Puts all steps that have no file yet into one, `name` (borrowed), and lays out its offsets and header: the widest
 * dtype first, then names in order. */
tsr_status tsr_plan_file(tsr_plan *plan, const char *name, tsr_err *err) TSR_WARN_UNUSED;

/* The same with a given header, which includes the 8 length bytes and is borrowed. It must name exactly the outputs of
 * these steps, and decides where their bytes go. */
tsr_status tsr_plan_file_as(tsr_plan *plan, const char *name, const char *header, size_t header_bytes,
                            tsr_err *err) TSR_WARN_UNUSED;

/* Puts all steps that have no file yet into one raw file, `name` (borrowed). */
tsr_status tsr_plan_raw_file(tsr_plan *plan, const char *name, bool appended, tsr_err *err) TSR_WARN_UNUSED;

/* Distributes all steps that have no file yet, in order, over files of at most `max_bytes` of tensor data (a larger
 * tensor gets a file of its own), named model.safetensors or model-00001-of-0000N.safetensors. Each is laid out as by
 * tsr_plan_file. `folder` is "" or ends in a slash, here and below. */
tsr_status tsr_plan_pack(tsr_plan *plan, const char *folder, uint64_t max_bytes, tsr_err *err) TSR_WARN_UNUSED;

/* Files from `first_file` on go through the source once more than those before it: the engine makes both side by side, so that
 * what they read is read once. (Until the next call, or the last file: one sequence.) */
void tsr_plan_begin_sequence(tsr_plan *plan, size_t first_file);

/* How many sequences the plan has, one at least. */
size_t tsr_plan_sequences(const tsr_plan *plan);

/* Adds a raw copy of every side file of the first source whose name matches `glob`, but for those named in `except` (may
 * be NULL; its last item is). */
tsr_status tsr_plan_side_files(tsr_plan *plan, const char *folder, const char *glob, const char *const *except,
                               tsr_err *err) TSR_WARN_UNUSED;

/* Adds FOLDER/model.safetensors.index.json of the safetensors files that the folder has so far, when there are more
 * than one, or `always`. */
tsr_status tsr_plan_index(tsr_plan *plan, const char *folder, bool always, tsr_err *err) TSR_WARN_UNUSED;

/* The config.json that the plan writes; NULL: none. */
const tsr_plan_text *tsr_plan_config(const tsr_plan *plan);

/* Adds a text (copied). */
tsr_status tsr_plan_text_file(tsr_plan *plan, const char *folder, const char *name, const char *data, size_t size,
                              tsr_err *err) TSR_WARN_UNUSED;

/* The same for a text that the caller has just composed; frees it. `status` is the result of composing it: when that is
 * a failure, nothing is added and the failure is returned. */
tsr_status tsr_plan_take_text(tsr_plan *plan, const char *folder, const char *name, tsr_text *text, tsr_status status,
                              tsr_err *err) TSR_WARN_UNUSED;

/* Sets the plan's command to a copy of `text`, and frees `text`. */
tsr_status tsr_plan_take_command(tsr_plan *plan, tsr_text *text, tsr_err *err) TSR_WARN_UNUSED;

/* Checks that no two outputs have one name, sums up bytes and computes the fingerprint, which covers the sources'
 * names, sizes, times and headers, the command, the layout and Tessera's version. Call last. */
tsr_status tsr_plan_finish(tsr_plan *plan, tsr_err *err) TSR_WARN_UNUSED;

/* Returns the tensor of a step's row in the report. */
const tsr_tensor *tsr_step_reported(const tsr_step *step);

/* Returns true if figures of single blocks of step `index` are written; if so, its folded map and what its codes are. */
bool tsr_plan_has_blocks(const tsr_plan *plan, size_t index, tsr_block_map *map, tsr_code_bins *bins);

/* Chooses block_cells, so that all planes together stay within the bounds of formats/blocks/block_file.h. */
void tsr_plan_fold_blocks(tsr_plan *plan);

/* The most bytes that the records of a file's steps have, before they are compressed. */
uint64_t tsr_plan_block_bytes(const tsr_plan *plan, size_t file);

/* Memory that the blocks of a step take while it runs, and while its record is made. */
uint64_t tsr_step_block_memory(const tsr_plan *plan, size_t index);

/* How many of bytes_out are no more than an upper bound: those of appended files. */
uint64_t tsr_plan_bounded_bytes(const tsr_plan *plan);

/* Bytes of memory that the engine needs with `threads` workers, tables included. */
uint64_t tsr_plan_memory(const tsr_plan *plan, unsigned threads);

/* A unit with its windows filled in. */
tsr_unit tsr_step_unit(const tsr_step *step, uint64_t unit);

/* Bytes that the step reads, all units together. */
uint64_t tsr_step_input(const tsr_step *step);

/* The most memory that one unit of the step needs: inputs, outputs that are not buffered, scratch. */
uint64_t tsr_step_unit_bytes(const tsr_step *step);

/* The units of an amax: how many, one of them, what all of them read, what one reads, and the most memory that one
 * needs. */
uint64_t tsr_amax_units(const tsr_amax *amax);
tsr_amax_rows tsr_amax_unit(const tsr_amax *amax, uint64_t unit);
uint64_t tsr_amax_bytes(const tsr_amax *amax);
uint64_t tsr_amax_rows_bytes(const tsr_amax_rows *rows);
uint64_t tsr_amax_unit_bytes(const tsr_amax *amax);

/* The most memory that one unit of any step, or of an amax, needs. */
uint64_t tsr_plan_unit_bytes(const tsr_plan *plan);

/* Frees what the plan holds; not the sources. */
void tsr_plan_free(tsr_plan *plan);

/* Returns true if output i of a step is kept in memory until the step ends. */
static inline bool tsr_is_buffered(const tsr_step *step, unsigned i)
{
    return (step->buffered >> i & 1) != 0;
}

static inline uint64_t tsr_window_bytes(const tsr_window *w)
{
    return w->rows * w->row_bytes;
}

/* Returns true if the rows follow one another in the source, so that one read takes them all. */
static inline bool tsr_window_is_gapless(const tsr_window *w)
{
    return w->rows <= 1 || w->pitch == w->row_bytes;
}

#endif
