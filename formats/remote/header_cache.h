/* The headers of remote safetensors files, kept on disk by the ETag of the file. */
#pragma once

#include "formats/remote/remote.h"

/* Reads the beginning of a file from the cache. Returns its bytes, which the caller frees; NULL: it is not there. */
char *tsr_header_cache_find(const tsr_remote_file *file, size_t *size);

/* Stores the beginning of a file. Without a place to write, nothing is stored. */
void tsr_header_cache_store(const tsr_remote_file *file, const void *data, size_t size);

/* Removes the headers that were stored first, down to half of the limit of the cache, if it is exceeded. */
void tsr_header_cache_trim(void);
