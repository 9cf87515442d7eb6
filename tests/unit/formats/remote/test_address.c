/* Tests addresses: kinds, rejection of URLs, origins, escapes. */
#include "formats/remote/address.h"

#include <criterion/criterion.h>
#include <string.h>

Test(address, kinds)
{
    cr_assert_eq(tsr_address_kind_of("https://a/b"), TSR_ADDRESS_URL);
    cr_assert_eq(tsr_address_kind_of("HTTP://a/b"), TSR_ADDRESS_URL);
    cr_assert_eq(tsr_address_kind_of("hf://a/b"), TSR_ADDRESS_HUB);
    cr_assert_eq(tsr_address_kind_of("s3://a/b"), TSR_ADDRESS_S3);
    static const char *const kPaths[] = {"a/b", "https:/a", "./https://a", "/s3://a", "https", "", "hf:a"};
    for (size_t i = 0; i < sizeof kPaths / sizeof *kPaths; i++) {
        cr_assert_eq(tsr_address_kind_of(kPaths[i]), TSR_ADDRESS_NONE, "%s", kPaths[i]);
        cr_assert_not(tsr_address_is_foreign(kPaths[i]), "%s", kPaths[i]);
    }
    cr_assert(tsr_address_is_foreign("gs://bucket/model"));
    cr_assert_not(tsr_address_is_foreign("hf://org/model"));
}

Test(address, rejected_urls)
{
    static const char *const kFine[] = {"https://host/a",         "https://host:8443/a%20b?c=d", "http://localhost/",
                                        "http://127.0.0.1:80/a",  "http://127.1.2.3/",           "http://[::1]:8000/a",
                                        "https://[2001:db8::1]/a"};
    static const char *const kWrong[] = {
        "http://host/a", "http://127.0.0.1.host/a",  "http://localhost.host/",  "http://1270.0.0.1/",
        "http://[::2]/", "https://user@host/a",      "https://user:word@host/", "https:///a",
        "https://:80/a", "https://host/a b",         "https://host/\x01",       "https://host/\xC3\xA9",
        "ftp://host/a",  "http://host\\@127.0.0.1/", "http://127.0.0.1@host/"};
    for (size_t i = 0; i < sizeof kFine / sizeof *kFine; i++)
        cr_assert_eq(tsr_url_check(kFine[i], "x", NULL), TSR_OK, "%s", kFine[i]);
    for (size_t i = 0; i < sizeof kWrong / sizeof *kWrong; i++)
        cr_assert_eq(tsr_url_check(kWrong[i], "x", NULL), TSR_E_USAGE, "%s", kWrong[i]);
}

Test(address, origins)
{
    cr_assert(tsr_url_same_origin("https://Host/a", "https://host:443/b?c"));
    cr_assert(tsr_url_same_origin("http://localhost:80", "http://localhost/"));
    static const char *const kOthers[] = {"http://host/a",  "https://host:444/a",         "https://other/a",
                                          "https://hos/a",  "https://host.other/a",       "https://host@other/",
                                          "https://hosts/", "https://other/https://host", "https://host\\.other/"};
    for (size_t i = 0; i < sizeof kOthers / sizeof *kOthers; i++)
        cr_assert_not(tsr_url_same_origin("https://host/a", kOthers[i]), "%s", kOthers[i]);
}

Test(address, escapes)
{
    tsr_text url = {0};
    tsr_arena arena = {0};
    tsr_url_escape(&url, "a b/\xC3\xA9+%?#.safetensors", "/");
    cr_assert_str_eq(url.data, "a%20b/%C3%A9%2B%25%3F%23.safetensors");
    cr_assert_str_eq(tsr_url_unescape(url.data, url.size, &arena), "a b/\xC3\xA9+%?#.safetensors");
    url.size = 0;
    tsr_url_escape(&url, "refs/pr/1", "");
    cr_assert_str_eq(url.data, "refs%2Fpr%2F1");
    static const char *const kWrong[] = {"%", "%2", "a%zz", "%00", "a%2", "%-1"};
    for (size_t i = 0; i < sizeof kWrong / sizeof *kWrong; i++)
        cr_assert_null(tsr_url_unescape(kWrong[i], strlen(kWrong[i]), &arena), "%s", kWrong[i]);
    tsr_text_free(&url);
    tsr_arena_free(&arena);
}
