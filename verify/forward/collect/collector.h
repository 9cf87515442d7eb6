/* Collects statistics of the inputs of linear layers while a model runs, and of keys and values in the cache.
 *
 * For each input channel: the mean of x^2 over the tokens; for each layer: the smallest and the largest x, and the
 * number of tokens. Sums are in double, in the order of the tokens, so results do not depend on the number of
 * threads. */
#pragma once

#include "common/arena.h"
#include "common/status.h"
#include "common/text.h"
#include "verify/forward/collect/input_products.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The inputs of a layer, or of each expert of a stack. */
typedef struct tsr_collected {
    const char *module; /* "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.k_cache" */
    size_t matrices, cols;
    double *sum_x2;          /* [matrices][cols]; NULL: only ranges are collected */
    double *least, *largest; /* [matrices]; unset without tokens */
    uint64_t *tokens;        /* [matrices] */
    bool *pooled;            /* [matrices]: the statistics are those of all experts of the layer */
    size_t twin;             /* 1 + index of an earlier module of the layer with the same input; 0: none */
} tsr_collected;

typedef struct tsr_collector {
    tsr_collected *items; /* in the order of the model */
    size_t count, capacity;
    size_t first;                 /* item of the current layer */
    tsr_ops *ops;                 /* the operations that hold the inputs. Borrowed */
    tsr_input_products *products; /* collected too; NULL: they are not. Borrowed */
    tsr_arena arena;
} tsr_collector;

/* The rows of an input that belong to one matrix of a module. */
typedef struct tsr_collected_rows {
    const char *module;
    size_t matrices, matrix;
    const tsr_activation *x; /* [n][cols], in memory of the operations; NULL: no token reached the module */
    size_t n, cols;
} tsr_collected_rows;

/* Begins a layer of the model. Modules of one layer are not those of another. */
void tsr_collector_begin_layer(tsr_collector *collector);

/* Adds rows to a module's statistics, and to the products if they are collected. A module is added when it is first
 * seen. TSR_E_VALUE: an input is NaN or infinite. TSR_E_NOMEM. */
tsr_status tsr_collect(tsr_collector *collector, const tsr_collected_rows *rows, tsr_err *err);

/* Adds n values to the range of a module that has no channels: keys or values. TSR_E_VALUE, TSR_E_NOMEM. */
tsr_status tsr_collect_range(tsr_collector *collector, const char *module, const tsr_activation *x, size_t n,
                             tsr_err *err);

/* The tokens that experts saw. */
typedef struct tsr_expert_coverage {
    size_t layers, experts;  /* layers with experts, and experts of all of them */
    uint64_t fewest;         /* tokens of the expert that saw the fewest */
    const char *fewest_name; /* its module, or the stack of its layer. Borrowed from the collector */
    size_t few, unseen;      /* experts with fewer tokens than requested, and with none */
} tsr_expert_coverage;

/* Replaces the statistics of experts that saw fewer than `least` tokens by those of all experts of their layer, and
 * fills *coverage. Their numbers of tokens stay. TSR_E_NOMEM. */
tsr_status tsr_collector_pool_experts(tsr_collector *collector, uint64_t least, tsr_expert_coverage *coverage,
                                      tsr_err *err);

/* Writes the statistics to a safetensors file: MODULE.input_mean_square, MODULE.input_min, MODULE.input_max, as F32,
 * MODULE.input_tokens as I64, and INPUT.input_products as F32. TSR_E_IO. */
tsr_status tsr_collector_write(const tsr_collector *collector, const char *path, tsr_err *err);

/* Appends the collector and the table of finished products to *to, for a run that continues after a layer. */
void tsr_collector_store(const tsr_collector *collector, tsr_text *to);

/* Fills a new collector, and its products, from what tsr_collector_store wrote. Returns false if the data are damaged
 * or memory is exhausted. */
bool tsr_collector_take_up(tsr_collector *collector, const char *data, size_t size);

void tsr_collector_free(tsr_collector *collector);
