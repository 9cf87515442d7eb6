/* Describes how a job read, wrote and linked its files. */
#pragma once

#include "common/text.h"
#include "convert/io/io_choice.h"
#include "convert/io/links.h"

/* Writes "direct I/O by io_uring", with the reason if direct I/O is not used. Returns text. */
const char *tsr_io_text(const tsr_io_summary *io, char text[256]);

/* Writes the member "io" of the object that is open. */
void tsr_io_json(tsr_text *t, const tsr_io_summary *io);

/* Writes "3 files linked, 1 copied (NAME: why)". Returns text. */
const char *tsr_links_text(const tsr_links_summary *links, char text[384]);

/* Writes the member "links" of the object that is open. */
void tsr_links_json(tsr_text *t, const tsr_links_summary *links);
