/* The settings of the Hugging Face Hub's own programs: endpoint, token, cache. */
#pragma once

#include "common/arena.h"
#include "common/status.h"

#include <limits.h>
#include <stdbool.h>

/* Returns HF_ENDPOINT without a final '/', or https://huggingface.co; NULL: no memory. */
const char *tsr_hub_endpoint(tsr_arena *arena);

/* Sets *token to HF_TOKEN, or to the token that `hf auth login` has stored; NULL: there is none. TSR_E_FORMAT: it is
 * not a token. The message does not contain it. */
tsr_status tsr_hub_token(const char **token, tsr_arena *arena, tsr_err *err);

/* Returns true if a path is the name of a model on the Hub, "org/name", and there is no local folder "org". */
bool tsr_is_hub_name(const char *path);

/* Finds the snapshot that refs/main names in the Hub's local cache (HF_HUB_CACHE, or "hub" in HF_HOME), and writes its
 * folder to `path`. Returns false if `name` is not the name of a model, or is not in the cache. */
bool tsr_hub_cached(const char *name, char path[PATH_MAX]);

/* Writes the path of the stored token to `path`: HF_TOKEN_PATH, or "token" in HF_HOME. Returns path; NULL: no HOME. */
const char *tsr_hub_token_path(char path[PATH_MAX]);
