/* The settings of AWS's own programs: credentials, region, endpoint. */
#pragma once

#include "common/arena.h"
#include "common/status.h"

#include <limits.h>

/* Strings are NULL if they are not set. */
typedef struct tsr_aws_settings {
    const char *key, *secret, *session; /* without a key, requests are not signed */
    const char *region, *endpoint;
} tsr_aws_settings;

/* Reads the environment (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL_S3 and others), then the profile AWS_PROFILE
 * of ~/.aws/credentials and ~/.aws/config. TSR_E_FORMAT: a key without a secret, or no such profile. */
tsr_status tsr_aws_settings_read(tsr_aws_settings *settings, tsr_arena *arena, tsr_err *err);

/* Write the paths of the files of profiles to `path`. Return path; NULL: no HOME. */
const char *tsr_aws_credentials_path(char path[PATH_MAX]);
const char *tsr_aws_config_path(char path[PATH_MAX]);
