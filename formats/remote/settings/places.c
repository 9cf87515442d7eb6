/* Lists the places on this machine that reading from servers needs. */
#include "formats/remote/settings/places.h"

#include "formats/remote/settings/access.h"
#include "formats/remote/settings/aws_access.h"
#include "formats/remote/settings/hub_access.h"

#include <stdio.h>
#include <stdlib.h>

/* For the C library's look-up of host names, and for OpenSSL and GnuTLS. */
static const char *const kOfSystem[] = {
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/crypto-policies",
    "/etc/gnutls",
    "/usr/lib/ssl",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/run/systemd/resolve",
    /* Modules for the look-up of host names are loaded when they are needed. */
    "/lib",
    "/usr/lib",
    "/etc/ld.so.cache",
};

const char *tsr_place_of_certificates(void)
{
    const char *const usual = tsr_setting("SSL_CERT_FILE");
    return usual != NULL ? usual : getenv("CURL_CA_BUNDLE");
}

/* Writes HOME/name to `path`. Returns NULL without HOME. */
static const char *at_home(const char *name, char path[PATH_MAX])
{
    const char *const home = getenv("HOME");
    return home != NULL && snprintf(path, PATH_MAX, "%s/%s", home, name) < PATH_MAX ? path : NULL;
}

const char *tsr_place_of_headers(char path[PATH_MAX])
{
    const char *const given = getenv("XDG_CACHE_HOME");
    if (given == NULL || *given != '/')
        return at_home(".cache/tessera/headers", path);
    return snprintf(path, PATH_MAX, "%s/tessera/headers", given) < PATH_MAX ? path : NULL;
}

tsr_status tsr_remote_places(tsr_place_fn *take, void *to, tsr_err *err)
{
    char headers[PATH_MAX], netrc[PATH_MAX], token[PATH_MAX], credentials[PATH_MAX], config[PATH_MAX];
    for (size_t i = 0; i < sizeof kOfSystem / sizeof *kOfSystem; i++)
        TSR_TRY(take(kOfSystem[i], false, to, err));
    const char *const of_user[] = {tsr_place_of_certificates(), at_home(".netrc", netrc), tsr_hub_token_path(token),
                                   tsr_aws_credentials_path(credentials), tsr_aws_config_path(config)};
    for (size_t i = 0; i < sizeof of_user / sizeof *of_user; i++) {
        if (of_user[i] != NULL)
            TSR_TRY(take(of_user[i], false, to, err));
    }
    return tsr_place_of_headers(headers) == NULL ? TSR_OK : take(headers, true, to, err);
}
