/* Reads the settings of AWS's programs from the environment and from profiles. */
#include "formats/remote/settings/aws_access.h"

#include "common/file.h"
#include "formats/remote/settings/access.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_FILE = 1 << 20 };

static const char *path_of(const char *variable, const char *name, char path[PATH_MAX])
{
    const char *const given = tsr_setting(variable), *const home = tsr_setting("HOME");
    const int n = given != NULL  ? snprintf(path, PATH_MAX, "%s", given)
                  : home != NULL ? snprintf(path, PATH_MAX, "%s/.aws/%s", home, name)
                                 : -1;
    return n > 0 && n < PATH_MAX ? path : NULL;
}

const char *tsr_aws_credentials_path(char path[PATH_MAX])
{
    return path_of("AWS_SHARED_CREDENTIALS_FILE", "credentials", path);
}

const char *tsr_aws_config_path(char path[PATH_MAX])
{
    return path_of("AWS_CONFIG_FILE", "config", path);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Sets *to to the value of a line "name = value", if it has this name and *to is not set. */
static void take_value(const char *line, size_t size, const char *name, const char **to, tsr_arena *arena)
{
    const size_t n = strlen(name);
    size_t at = n;
    if (*to != NULL || size < n || strncmp(line, name, n) != 0)
        return;
    while (at < size && is_blank(line[at]))
        at++;
    if (at == size || line[at++] != '=')
        return;
    while (at < size && is_blank(line[at]))
        at++;
    while (size > at && is_blank(line[size - 1]))
        size--;
    *to = tsr_arena_dup(arena, line + at, size - at);
}

/* Returns true if a line begins the section of a profile: "[name]" or "[profile name]". */
static bool is_section(const char *line, size_t size, const char *profile)
{
    static const char kWord[] = "profile ";
    line++;
    size--;
    if (size > strlen(kWord) && strncmp(line, kWord, strlen(kWord)) == 0) {
        line += strlen(kWord);
        size -= strlen(kWord);
    }
    return size > strlen(profile) && strncmp(line, profile, strlen(profile)) == 0 && line[strlen(profile)] == ']';
}

/* Reads the values of a profile that are not set yet. Sets *found if the file has the profile. */
static tsr_status read_profile(const char *path, const char *profile, tsr_aws_settings *s, bool *found,
                               tsr_arena *arena, tsr_err *err)
{
    bool exists = false, inside = false;
    const char *text;
    size_t size;
    if (path != NULL)
        TSR_TRY(tsr_exists(path, &exists, err));
    if (!exists)
        return TSR_OK;
    TSR_TRY(tsr_read_file(path, LARGEST_FILE, arena, &text, &size, err));
    for (const char *line = text; *line != '\0';) {
        const size_t n = strcspn(line, "\n");
        if (*line == '[') {
            inside = is_section(line, n, profile);
            *found = *found || inside;
        } else if (inside) {
            take_value(line, n, "aws_access_key_id", &s->key, arena);
            take_value(line, n, "aws_secret_access_key", &s->secret, arena);
            take_value(line, n, "aws_session_token", &s->session, arena);
            take_value(line, n, "region", &s->region, arena);
            take_value(line, n, "endpoint_url", &s->endpoint, arena);
        }
        line += n + (line[n] == '\n');
    }
    return tsr_arena_status(arena, TSR_OK, err);
}

tsr_status tsr_aws_settings_read(tsr_aws_settings *s, tsr_arena *arena, tsr_err *err)
{
    char path[PATH_MAX];
    const char *const named = tsr_setting("AWS_PROFILE"), *const profile = named == NULL ? "default" : named;
    bool found = false;
    *s = (tsr_aws_settings){.region = tsr_setting("AWS_REGION"), .endpoint = tsr_setting("AWS_ENDPOINT_URL_S3")};
    if (s->region == NULL)
        s->region = tsr_setting("AWS_DEFAULT_REGION");
    if (s->endpoint == NULL)
        s->endpoint = tsr_setting("AWS_ENDPOINT_URL");
    tsr_aws_settings of_profile = *s;
    TSR_TRY(read_profile(tsr_aws_credentials_path(path), profile, &of_profile, &found, arena, err));
    TSR_TRY(read_profile(tsr_aws_config_path(path), profile, &of_profile, &found, arena, err));
    if (named != NULL && !found)
        return tsr_fail(err, TSR_E_FORMAT, "AWS_PROFILE: no profile '%s' in the files of AWS", named);
    s->region = of_profile.region;
    s->endpoint = of_profile.endpoint;
    /* A key, its secret and its session belong together, so all are taken from one place. */
    const bool from_profile = tsr_setting("AWS_ACCESS_KEY_ID") == NULL;
    s->key = from_profile ? of_profile.key : tsr_setting("AWS_ACCESS_KEY_ID");
    s->secret = from_profile ? of_profile.secret : tsr_setting("AWS_SECRET_ACCESS_KEY");
    s->session = from_profile ? of_profile.session : tsr_setting("AWS_SESSION_TOKEN");
    return s->key == NULL || s->secret != NULL
               ? TSR_OK
               : tsr_fail(err, TSR_E_FORMAT, "a key of AWS without its secret (AWS_SECRET_ACCESS_KEY)");
}
