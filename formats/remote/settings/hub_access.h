/* The settings of the Hugging Face Hub's own programs: endpoint, token, cache. */
#ifndef TSR_FORMATS_REMOTE_SETTINGS_HUB_ACCESS_H
#define TSR_FORMATS_REMOTE_SETTINGS_HUB_ACCESS_H

#include "common/arena.h"
#include "common/status.h"

#include <limits.h>

/* Returns HF_ENDPOINT without a final '/', or https://huggingface.co; NULL: no memory. */
const char *tsr_hub_endpoint(tsr_arena *arena);

/* Sets *token to HF_TOKEN, or to the token that `hf auth login` has stored; NULL: there is none. TSR_E_FORMAT: it is not
 * a token. The message does not contain it. */
tsr_status tsr_hub_token(const char **token, tsr_arena *arena, tsr_err *err) TSR_WARN_UNUSED;

/* Writes the path of the stored token to `path`: HF_TOKEN_PATH, or "token" in HF_HOME. Returns path; NULL: no HOME. */
const char *tsr_hub_token_path(char path[PATH_MAX]);

#endif
