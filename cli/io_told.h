/* How a job read and wrote its bytes, told at its end. */
#ifndef TSR_CLI_IO_TOLD_H
#define TSR_CLI_IO_TOLD_H

#include "common/text.h"
#include "convert/engine/io_choice.h"

/* "direct I/O by io_uring", with the reason where it is less; returns text. */
const char *tsr_io_text(const tsr_io_told *io, char text[256]);

/* The member "io" of the object that is open. */
void tsr_io_json(tsr_text *t, const tsr_io_told *io);

#endif
