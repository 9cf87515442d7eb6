/* Shared declarations of make_checkpoint:
 *
 * make_checkpoint.c  the command line
 * make_kinds.c       the kinds of checkpoints
 * make_plan.c        tensors, planned by their names
 * make_write.c       values, shards, the index */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BLOCK         128
#define POOL_ELEMENTS (((uint64_t)1 << 25) - 39) /* odd, so that rows of a wrapped tensor do not repeat in step */
#define MAX_SHARDS    5

enum fill {
    FILL_WEIGHT,     /* Gaussian around 0 */
    FILL_NORM,       /* Gaussian around 1 */
    FILL_ZEROS,      /* blocks of +0 and -0 among Gaussian ones */
    FILL_OUTLIERS,   /* one value in 4096 a thousand times too large */
    FILL_SUBNORMALS, /* blocks of subnormal BF16 */
    FILL_HUGE,       /* blocks within a factor 2 of the largest finite BF16 */
    FILL_BIAS,       /* F32 */
    FILL_POOL,       /* out of the shared random pool */
    FILL_ROWS,       /* a hole, but for a few rows */
    FILL_HOLE,       /* never written */
};

struct tensor {
    char *name;
    enum fill fill;
    int rank;
    uint64_t dims[3];
    int shard;
    uint64_t offset; /* in the data of its shard */
};

struct plan {
    struct tensor *tensors;
    size_t count, capacity;
    int shards;
    uint16_t *pool; /* POOL_ELEMENTS values, or NULL */
};

struct options {
    const char *directory;
    uint64_t seed;
    enum scale { SCALE_SMALL, SCALE_HALF, SCALE_TINY } scale;
    bool ordinary;  /* blocks have no extreme values */
    uint64_t bytes; /* 0: the kind's default */
    uint64_t tensors;
};

/* End the program with a message on failure. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void *allocate(size_t size);

/* ---- make_plan.c ---- */

/* Add one tensor or several to the plan. A name is prefix and name concatenated. */
void add_vector(struct plan *plan, enum fill fill, const char *prefix, const char *name, uint64_t length);
void add_norm(struct plan *plan, const char *prefix, const char *name, uint64_t length);
void add_filled(struct plan *plan, enum fill fill, const char *prefix, const char *name, uint64_t rows,
                uint64_t columns);
void add_matrix(struct plan *plan, const char *prefix, const char *name, uint64_t rows, uint64_t columns);
void add_stack(struct plan *plan, const char *prefix, const char *name, uint64_t depth, uint64_t rows,
               uint64_t columns);

void add_mlp(struct plan *plan, const char *prefix, uint64_t hidden, uint64_t intermediate);
void add_experts(struct plan *plan, const char *prefix, uint64_t experts, uint64_t hidden, uint64_t intermediate);

/* Attention with grouped queries, and the two norms of a layer. */
void add_attention(struct plan *plan, const char *prefix, uint64_t hidden, uint64_t key_value_rows);

/* Embeddings, the last norm and lm_head. */
void add_ends(struct plan *plan, uint64_t vocabulary, uint64_t hidden);

/* "model.layers.N." in `buffer`, which is returned. */
const char *layer_prefix(char buffer[64], uint64_t layer);

/* ---- make_write.c ---- */

/* Returns approximately normal numbers with deviation 1: sums of four uniforms of 16 bits. */
float gaussian(uint64_t *state);

/* Distributes the tensors, in order, to shards of similar size, and writes shards and index. */
void write_weights(struct plan *plan, int shards, const struct options *options);

/* Writes a small file of a checkpoint. */
void write_text(const char *directory, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- make_kinds.c ---- */

/* Writes a whole directory from an empty plan. */
struct kind {
    const char *name; /* NULL: the end of the table */
    void (*make)(struct plan *plan, const struct options *options);
};

extern const struct kind kinds[];
