/* How a job read, wrote and linked its bytes, told at its end. */
#ifndef TSR_CLI_IO_TOLD_H
#define TSR_CLI_IO_TOLD_H

#include "common/text.h"
#include "convert/engine/io_choice.h"
#include "convert/engine/links.h"

/* "direct I/O by io_uring", with the reason where it is less; returns text. */
const char *tsr_io_text(const tsr_io_told *io, char text[256]);

/* The member "io" of the object that is open. */
void tsr_io_json(tsr_text *t, const tsr_io_told *io);

/* "3 files linked, 1 copied (NAME: why)"; returns text. */
const char *tsr_links_text(const tsr_links_told *links, char text[384]);

/* The member "links" of the object that is open. */
void tsr_links_json(tsr_text *t, const tsr_links_told *links);

#endif
