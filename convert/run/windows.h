/* Declares reads and writes of windows: of source tensors into buffers, and of buffers into output files. */
#pragma once

#include "convert/run/run_state.h"

/* Begins to read a window of a source tensor, rows without gaps, into *memory, which advances past it. */
tsr_status tsr_run_read_window(tsr_task *task, const tsr_tensor *t, const tsr_window *w, char **memory, void **data,
                               tsr_err *err);

/* Asks the kernel to read a window of a source tensor ahead. The window must not be empty. */
void tsr_run_prefetch_window(const tsr_run *r, const tsr_tensor *t, const tsr_window *w);

/* Returns the place for a window of an output tensor in *memory, which advances past it. */
void *tsr_run_place_output(const tsr_run *r, const tsr_tensor *t, const tsr_window *w, char **memory);

/* Begins to write data that will be computed at `data`, as a window of output i of a step. Returns false if the window
 * has gaps. */
bool tsr_run_begin_output(const tsr_run *r, size_t step, unsigned i, const tsr_window *w, void *data,
                          tsr_outgoing *out);

/* Writes `data` as a window of an output tensor, immediately. */
tsr_status tsr_run_write_window(const tsr_run *r, const tsr_tensor *t, const tsr_window *w, const void *data,
                                tsr_err *err);

/* Begins to read a window of an output tensor back. Without a task, reads it immediately. */
tsr_status tsr_run_read_back(tsr_run *r, tsr_task *task, const tsr_tensor *t, const tsr_window *w, void *data,
                             tsr_err *err);

/* Puts before the message the path of the file of the input that the error records, such as a scale; otherwise that of
 * `first`. Returns `status`. */
tsr_status tsr_run_fail_at(const tsr_run *run, const tsr_tensor *first, const tsr_tensor *const *in, uint32_t n_in,
                           tsr_status status, tsr_err *err);
