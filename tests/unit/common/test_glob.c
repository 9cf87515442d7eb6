/* Shell-like patterns over names. */
#include "common/glob.h"

#include <criterion/criterion.h>

Test(glob, matches)
{
    cr_expect(tsr_glob_match("*.gate.weight", "model.layers.3.mlp.gate.weight"));
    cr_expect(!tsr_glob_match("*.gate.weight", "model.layers.3.mlp.gate_proj.weight"));
    cr_expect(tsr_glob_match("a*b*c", "aXbYbZc"));
    cr_expect(!tsr_glob_match("a*b*c", "aXbYbZ"));
    cr_expect(tsr_glob_match("?_proj", "q_proj"));
    cr_expect(!tsr_glob_match("", "x"));
    cr_expect(tsr_glob_match("**", ""));
}
