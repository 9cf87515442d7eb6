/* Collects the mean of x x^T, the Hessian of a layer's squared output error, for each input x of linear layers.
 *
 * Layers with one input share a matrix (formats/names/shared_input.h). Sums are in double, in the order of the tokens.
 * Finished matrices go to a file, as FP32, so that memory is bounded by one layer of the model. */
#pragma once

#include "common/arena.h"
#include "verify/forward/forward_ops.h"

/* A finished matrix [cols][cols], or one for each expert of a stack; zeros for experts with too few tokens. */
typedef struct tsr_finished_products {
    const char *name;
    size_t matrices, cols;
    uint64_t offset; /* in the file, of FP32 values */
} tsr_finished_products;

struct tsr_open_products;

typedef struct tsr_input_products {
    tsr_finished_products *done; /* in the order of the file */
    size_t count, capacity;
    struct tsr_open_products *open; /* those of the current layer */
    size_t n_open, open_capacity;
    size_t skipped; /* experts that saw fewer tokens than they have channels: their matrix would be singular */
    int fd;
    uint64_t bytes;
    const char *path; /* for messages */
    tsr_ops *ops;     /* the memory of inputs and sums. Borrowed */
    tsr_arena arena;
} tsr_input_products;

/* Rows of an input; see tsr_collected_rows. */
typedef struct tsr_product_rows {
    const char *module;
    size_t matrices, matrix;
    const tsr_activation *x; /* [n][cols], in memory of the operations */
    size_t n, cols;
} tsr_product_rows;

/* Opens the file `path`, which is borrowed, for reading and writing, and creates it if necessary. The caller sets `ops`
 * before it adds rows. */
tsr_status tsr_input_products_open(tsr_input_products *products, const char *path, tsr_err *err);

/* Adds rows. The calls for one expert follow one another. TSR_E_NOMEM, TSR_E_IO. */
tsr_status tsr_input_products_add(tsr_input_products *products, const tsr_product_rows *rows, tsr_err *err);

/* Writes all open matrices. To be called after each layer of the model. */
tsr_status tsr_input_products_end_layer(tsr_input_products *products, tsr_err *err);

/* Frees open matrices. To be called before `ops` is closed. */
void tsr_input_products_drop(tsr_input_products *products);

void tsr_input_products_close(tsr_input_products *products);
