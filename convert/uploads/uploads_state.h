/* The state of an output that is sent to s3://. */
#pragma once

#include "convert/records/destination.h"
#include "convert/uploads/sent_record.h"
#include "convert/uploads/uploads.h"

struct tsr_uploads {
    const char *address, *dst;
    const tsr_plan *plan;
    tsr_objects *objects;
    bool withdrawn; /* the indexes and config.json were removed after the objects were listed */
    tsr_uploads_summary summary;
};

/* Returns true if the store has the object of a record, as it was when the address was opened. */
bool tsr_uploads_has(const tsr_uploads *uploads, const tsr_sent *sent);

/* Records in the spool where its output is, and if that is complete. */
tsr_status tsr_uploads_write_head(const tsr_uploads *uploads, bool complete, tsr_err *err);
