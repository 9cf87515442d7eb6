/* Verifies the files of an output against a manifest. Every byte is read once, by direct I/O if possible, so that the
 * disk is tested and not the page cache. */
#pragma once

#include "common/parallel/threads.h"
#include "common/text.h"
#include "verify/manifest/manifest_parse.h"

typedef enum tsr_manifest_fault {
    TSR_MANIFEST_OTHER,   /* the output's own manifest differs from the given one */
    TSR_MANIFEST_MISSING, /* a file is missing */
    TSR_MANIFEST_SIZE,    /* it has another size */
    TSR_MANIFEST_BYTES,   /* a piece differs */
    TSR_MANIFEST_FOREIGN, /* a file that the manifest does not name */
    TSR_MANIFEST_READ,    /* source: the data that a step has read differ; without a tensor, a whole file */
    TSR_MANIFEST_HEADER,  /* source: the header of a file differs */
} tsr_manifest_fault;

typedef struct tsr_manifest_finding {
    tsr_manifest_fault fault;
    const char *file, *tensor; /* NULL: none */
    uint64_t offset, bytes;    /* offset and bytes of the piece in the file; for a wrong size, 0 and the actual size */
    uint64_t wanted;           /* the expected size */
    uint64_t others;           /* number of other tensors that share this digest */
} tsr_manifest_finding;

typedef struct tsr_manifest_check {
    tsr_manifest_finding *findings; /* in the manifest's order, foreign files last */
    size_t count, capacity;
    uint64_t files, pieces, bytes_read;
    uint64_t passed_over; /* source: digests that also cover other sources */
    double seconds;
    unsigned threads;
    tsr_arena arena;
} tsr_manifest_check;

/* Verifies the files of `dst`. TSR_E_IO: one cannot be read. The check must be freed even after a failure. */
tsr_status tsr_manifest_check_run(tsr_manifest_check *check, const tsr_manifest *manifest, const char *dst,
                                  const tsr_run_options *options, tsr_err *err);
void tsr_manifest_check_free(tsr_manifest_check *check);

/* Adds a finding. */
tsr_status tsr_manifest_find(tsr_manifest_check *check, const tsr_manifest_finding *finding, tsr_err *err);

/* Returns the identifier of a fault for JSON: "bytes", "missing". */
const char *tsr_manifest_fault_word(tsr_manifest_fault fault);

/* Appends the finding as a sentence, without the name of the file. */
void tsr_manifest_tell(tsr_text *text, const tsr_manifest_finding *finding);
