/* Verifies the files of an output against a manifest. Every byte is read once, by direct I/O if possible, so that the disk is
 * tested and not the page cache. */
#ifndef TSR_VERIFY_MANIFEST_CHECK_MANIFEST_H
#define TSR_VERIFY_MANIFEST_CHECK_MANIFEST_H

#include "common/parallel/threads.h"
#include "common/text.h"
#include "verify/manifest/manifest_parse.h"

typedef enum tsr_manifest_fault {
    TSR_MANIFEST_OTHER,   /* the output's own manifest is not the one that it is held to */
    TSR_MANIFEST_MISSING, /* a file is not there */
    TSR_MANIFEST_SIZE,    /* it has another size */
    TSR_MANIFEST_BYTES,   /* a piece differs */
    TSR_MANIFEST_FOREIGN, /* a file that the manifest does not name */
    TSR_MANIFEST_READ,    /* of a source: what a step has read differs; without a tensor, a whole file */
    TSR_MANIFEST_HEADER,  /* of a source: the header of a file differs */
} tsr_manifest_fault;

typedef struct tsr_manifest_finding {
    tsr_manifest_fault fault;
    const char *file, *tensor; /* NULL: none */
    uint64_t offset, bytes;    /* of the piece, in the file; of another size, 0 and the one that it has */
    uint64_t wanted;           /* the size that it should have */
    uint64_t others;           /* tensors that have one digest with this one */
} tsr_manifest_finding;

typedef struct tsr_manifest_check {
    tsr_manifest_finding *findings; /* in the manifest's order, foreign files last */
    size_t count, capacity;
    uint64_t files, pieces, bytes_read;
    uint64_t passed_over; /* of a source: digests that take other sources as well */
    double seconds;
    unsigned threads;
    tsr_arena arena;
} tsr_manifest_check;

/* Reads the files of `dst`. TSR_E_IO: one cannot be read. Free the check whatever the outcome. */
tsr_status tsr_manifest_check_run(tsr_manifest_check *check, const tsr_manifest *said, const char *dst,
                                  const tsr_run_options *options, tsr_err *err) TSR_WARN_UNUSED;
void tsr_manifest_check_free(tsr_manifest_check *check);

/* Adds a finding. */
tsr_status tsr_manifest_find(tsr_manifest_check *check, const tsr_manifest_finding *finding,
                             tsr_err *err) TSR_WARN_UNUSED;

/* "bytes", "missing": a word for programs. */
const char *tsr_manifest_fault_word(tsr_manifest_fault fault);

/* The finding as a sentence, without the file. */
void tsr_manifest_tell(tsr_text *text, const tsr_manifest_finding *finding);

#endif
