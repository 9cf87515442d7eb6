/* Keeps the state of `calibrate` after each layer, so that a run that was killed can be resumed.
 *
 * OUT.partial/ has the hidden states after the last layer (states-0 or states-1, by turns), the products of inputs
 * (products), and `progress`: a fingerprint, the number of layers, the collector, and digests. `progress` is written
 * last and replaced in one step. Its form belongs to one version of Tessera. */
#pragma once

#include "verify/forward/collect/collector.h"

typedef struct tsr_calibrate_state {
    char *folder, *progress, *products, *states[2], *unfinished; /* paths, from malloc */
    uint64_t fingerprint;                                        /* everything that the result depends on */
} tsr_calibrate_state;

/* Names the files of the state for the output `out`, and creates the folder. */
tsr_status tsr_calibrate_state_open(tsr_calibrate_state *state, const char *out, tsr_err *err);

/* Syncs the products and stores the state after `layers` layers; x has n elements. */
tsr_status tsr_calibrate_state_save(const tsr_calibrate_state *state, size_t layers, const tsr_collector *collector,
                                    const double *x, size_t n, tsr_err *err);

/* Takes up a stored state: fills the empty collector and x, and sets *layers; 0: there is none. TSR_E_EXISTS:
 * another run left it. TSR_E_FORMAT: it is damaged. */
tsr_status tsr_calibrate_state_load(const tsr_calibrate_state *state, size_t *layers, tsr_collector *collector,
                                    double *x, size_t n, tsr_err *err);

/* Removes the files and the folder. */
tsr_status tsr_calibrate_state_remove(const tsr_calibrate_state *state, tsr_err *err);

void tsr_calibrate_state_free(tsr_calibrate_state *state);
