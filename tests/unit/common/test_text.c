/* Tests tsr_text and the helpers for text. */
#include "common/text.h"

#include <criterion/criterion.h>
#include <string.h>

Test(text, an_ending_is_shorter_than_the_text)
{
    cr_assert(tsr_ends_with("model.safetensors", ".safetensors"));
    cr_assert(!tsr_ends_with("model.safetensors.part", ".safetensors"));
    cr_assert(!tsr_ends_with(".safetensors", ".safetensors"), "nothing would be left of the name");
    cr_assert(!tsr_ends_with("tensors", ".safetensors"));
    cr_assert(!tsr_ends_with("", ".safetensors"));
}

Test(text, no_memory_says_what_for)
{
    tsr_err err;
    cr_assert_eq(tsr_out_of_memory(&err, "while planning"), TSR_E_NOMEM);
    cr_assert_str_eq(err.msg, "out of memory while planning");
    cr_assert_eq(tsr_out_of_memory(&err, NULL), TSR_E_NOMEM);
    cr_assert_str_eq(err.msg, "out of memory");
    cr_assert_eq(tsr_out_of_memory(NULL, NULL), TSR_E_NOMEM);
}

/* A buffer has 256 bytes first. Texts of all lengths around that size are written completely. */
Test(text, formatted_text_of_any_length_is_complete)
{
    for (int size = 0; size < 600; size++) {
        tsr_text t = {0};
        tsr_text_printf(&t, "%*d", size, 7);
        tsr_text_printf(&t, "%s", "end");
        const size_t wanted = size == 0 ? 4 : (size_t)size + 3;
        cr_assert_eq(t.size, wanted);
        cr_assert_str_eq(t.data + wanted - 4, "7end");
        tsr_text_free(&t);
    }
}

Test(text, numbers_are_decimal)
{
    static const uint64_t kNumbers[] = {0, 9, 10, 12345678901234567890u, UINT64_MAX};
    tsr_text t = {0};
    for (size_t i = 0; i < sizeof kNumbers / sizeof *kNumbers; i++) {
        tsr_text_u64(&t, kNumbers[i]);
        tsr_text_append(&t, " ", 1);
    }
    cr_assert_str_eq(t.data, "0 9 10 12345678901234567890 18446744073709551615 ");
    tsr_text_free(&t);
}

Test(text, hidden_characters_are_escaped_between_others)
{
    static const char kName[] = "a\"b\\\n\xc3\xa9~\x7f\xff z\xe2\x80\xae";
    tsr_text t = {0};
    cr_assert_eq(tsr_plain_size(kName, strlen(kName)), 1);
    cr_assert_eq(tsr_plain_size("model.0~ ", 9), 9);
    cr_assert_eq(tsr_plain_size("model", 2), 2);
    tsr_text_visible(&t, kName, strlen(kName));
    cr_assert_str_eq(t.data, "a\"b\\\\n\xc3\xa9~\\x7f\\xff z\\u202e");
    tsr_text_free(&t);
}
