/* Loads libcurl. */
#include "formats/remote/curl_library.h"

#ifdef TSR_HAVE_CURL
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

enum { OLDEST = 0x074400 /* 7.68: curl_multi_wakeup */ };

tsr_status tsr_curl_load(tsr_curl *curl, tsr_err *err)
{
    static const char *const kFiles[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    static const struct {
        const char *name;
        size_t at;
    } kFunctions[] = {
#define FUNCTION(name) {"curl_" #name, offsetof(tsr_curl, name)}
        FUNCTION(global_init),   FUNCTION(easy_init),      FUNCTION(easy_reset),       FUNCTION(easy_cleanup),
        FUNCTION(easy_setopt),   FUNCTION(easy_getinfo),   FUNCTION(easy_strerror),    FUNCTION(multi_init),
        FUNCTION(multi_cleanup), FUNCTION(multi_setopt),   FUNCTION(multi_add_handle), FUNCTION(multi_remove_handle),
        FUNCTION(multi_perform), FUNCTION(multi_poll),     FUNCTION(multi_wakeup),     FUNCTION(multi_info_read),
        FUNCTION(slist_append),  FUNCTION(slist_free_all), FUNCTION(version_info),
#undef FUNCTION
    };
    void *library = NULL;
    for (size_t i = 0; i < sizeof kFiles / sizeof *kFiles && library == NULL; i++)
        library = dlopen(kFiles[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *const said = dlerror();
        return tsr_fail(err, TSR_E_UNSUPPORTED, "remote addresses need libcurl (Debian: libcurl4)%s%s",
                        said == NULL ? "" : ": ", said == NULL ? "" : said);
    }
    for (size_t i = 0; i < sizeof kFunctions / sizeof *kFunctions; i++) {
        void *const symbol = dlsym(library, kFunctions[i].name);
        if (symbol == NULL)
            return tsr_fail(err, TSR_E_UNSUPPORTED, "the installed libcurl has no %s; version 7.68 or later is needed",
                            kFunctions[i].name);
        memcpy((char *)curl + kFunctions[i].at, &symbol, sizeof symbol);
    }
    const curl_version_info_data *const version = curl->version_info(CURLVERSION_NOW);
    return version->version_num >= OLDEST
               ? TSR_OK
               : tsr_fail(err, TSR_E_UNSUPPORTED, "libcurl %s is installed; version 7.68 or later is needed",
                          version->version);
}
#endif
