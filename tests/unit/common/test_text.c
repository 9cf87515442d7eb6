/* Tests tsr_text and the helpers for text. */
#include "common/text.h"

#include <criterion/criterion.h>

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
