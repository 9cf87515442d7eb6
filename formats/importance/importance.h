/* The importance of the input channels of linear layers: the mean square of each input, E[x^2], measured on text.
 *
 * The error that a layer's output gets from the error of its weights is about sum_j E[x_j^2] sum_i (w_ij - y_ij)^2. So
 * these means are the weights of the columns in a weighted squared error. Three kinds of files are read:
 *     llama.cpp's importance matrix (GGUF): NAME.in_sum2, F32 [channels, matrices], and NAME.counts
 *     safetensors: MODULE.input_mean_square, F32 [channels], or [experts, channels] for a stack of experts
 *     JSON: {"model.layers.0.mlp.up_proj": {"input_mean_square": [0.5, 0.125, ..]}, ..}
 *
 * Safetensors may also have INPUT.input_products, F32 [channels, channels] or [experts, channels, channels]: the mean
 * of x x^T for an input x (formats/names/shared_input.h), which GPTQ needs.
 *
 * A file is mapped into memory, so that only the parts in use take memory. */
#pragma once

#include "common/arena.h"
#include "common/file.h"
#include "common/status.h"
#include "formats/checkpoint/safetensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The member of JSON, and the ending of names in safetensors. */
#define TSR_IMPORTANCE_MEMBER "input_mean_square"

/* The ending of the names of products in safetensors. */
#define TSR_PRODUCTS_MEMBER "input_products"

/* The importance of the columns of one matrix, or of each matrix of a stack. */
typedef struct tsr_importance_entry {
    const char *name;
    uint64_t matrices, cols;
    const unsigned char *values; /* FP32 [matrices, cols], finite and not negative; may be unaligned */
    float *inverse_mean;         /* [matrices]: 1 / mean of the values of a matrix; 0: it has no data */
} tsr_importance_entry;

/* The mean of x x^T of one input, or of each expert's. */
typedef struct tsr_input_matrix {
    const char *name;
    uint64_t matrices, cols;
    const unsigned char *values; /* FP32 [matrices, cols, cols]; may be unaligned; zeros: there is no data */
} tsr_input_matrix;

/* Zero-initialised is empty. */
typedef struct tsr_importance {
    const char *path;
    bool gguf; /* names are those of llama.cpp */
    tsr_importance_entry *items;
    size_t count, capacity; /* ordered by name */
    tsr_input_matrix *products;
    size_t n_products, products_capacity; /* ordered by name */
    bool gptq;                            /* --method gptq: the products are used */
    uint64_t hash; /* equal tables have equal hashes. The diagonals of products are the values of items */
    const unsigned char *map;
    size_t map_size;
    tsr_arena arena;
} tsr_importance;

/* Reads a file. Its kind is recognized by its contents, and JSON by its name. On failure *importance is empty.
 * TSR_E_FORMAT: it is of another kind, or a value is negative, NaN or infinite. TSR_E_UNSUPPORTED: a GGUF file that is
 * no importance matrix. */
tsr_status tsr_importance_read(tsr_importance *importance, const char *path, tsr_err *err);

/* A step of reading: adds the entries of a JSON file. */
tsr_status tsr_importance_read_json(tsr_importance *importance, tsr_err *err);

/* A step of reading: appends an entry, whose name and values are kept. */
tsr_status tsr_importance_add(tsr_importance *importance, const tsr_importance_entry *entry, tsr_err *err);

void tsr_importance_free(tsr_importance *importance);

/* The importance of the columns of a weight. */
typedef struct tsr_column_importance {
    const tsr_importance_entry *entry; /* NULL: there is none */
    uint64_t matrix;                   /* its matrix for the weight's first matrix */
    const tsr_input_matrix *products;  /* NULL: there are none, or they are not used */
} tsr_column_importance;

/* Finds the importance for a weight [R, C], or a stack [M, R, C]. TSR_E_MISMATCH: the entry has another number of
 * channels or experts, so the file belongs to another model. */
tsr_status tsr_importance_find(const tsr_importance *importance, const tsr_tensor *weight, tsr_column_importance *found,
                               tsr_err *err);

/* Returns true if any matrix of the weight has data: some experts may have seen no text. */
bool tsr_importance_has(const tsr_column_importance *columns, const tsr_tensor *weight);

/* Writes the importance of columns first .. first + n of the weight's matrix `matrix` to `out`, divided by its mean
 * over all columns. Returns false, and writes nothing, if there is no data. */
bool tsr_importance_of(const tsr_column_importance *columns, uint64_t matrix, uint64_t first, uint64_t n, float *out);

/* Returns the products for the weight's matrix `matrix`, FP32 [cols, cols]; NULL: there are none. */
const unsigned char *tsr_importance_products(const tsr_column_importance *columns, uint64_t matrix);
