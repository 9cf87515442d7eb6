/* Tests SHA-256 with the vectors of FIPS 180-4, and both forms against each other for all lengths of the last
 * blocks. */
#include "common/sha256.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static void check(const void *data, size_t size, const char *expected)
{
    char text[TSR_SHA256_TEXT];
    cr_assert_str_eq(tsr_sha256_text(data, size, text), expected);
    cr_assert_str_eq(tsr_sha256_text_plain(data, size, text), expected);
}

Test(sha256, vectors)
{
    static const char kLong[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    char *const million = malloc(1000000);
    cr_assert_not_null(million);
    memset(million, 'a', 1000000);
    check("", 0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check("abc", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check(kLong, strlen(kLong), "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    check(million, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

Test(sha256, both_forms_agree)
{
    unsigned char data[400];
    char text[TSR_SHA256_TEXT];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 197 + 13);
    for (size_t size = 0; size <= sizeof data - 1; size++)
        check(data + 1, size, tsr_sha256_text_plain(data + 1, size, text));
}
