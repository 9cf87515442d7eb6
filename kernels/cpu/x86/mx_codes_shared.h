/* Scales of NVFP4 and E2M1 codes of quotients, for both forms of mx_codes. They define `vec`, `vf`, OP(name), which
 * makes the names of intrinsics, and to_bf16(x) before, and count_above() after. */

/* Adds 1 to the codes of sizes above `tie`, or from it on unless `beyond`. */
ALWAYS_INLINE vec count_above(vec code, vf size, float tie, bool beyond);

/* Returns the quotients of amax that become scales. */
ALWAYS_INLINE vf nvfp4_quotient(vf amax, const tsr_nvfp4_recipe *recipe, vf global)
{
    const vf six = OP(set1_ps)(6);
    if (recipe->multiplies)
        return OP(max_ps)(OP(div_ps)(amax, OP(mul_ps)(six, global)), OP(set1_ps)(0x1p-9f));
    const vf sixth = OP(div_ps)(amax, six);
    return OP(mul_ps)(recipe->bf16_quotient ? to_bf16(sixth) : sixth, global);
}

/* Returns the codes of magnitudes: how many ties of E2M1 they reach. */
ALWAYS_INLINE vec codes_of_sizes(vf size, vec zero, bool down)
{
    vec code = count_above(zero, size, 0.25f, true);
    code = count_above(code, size, 0.75f, down);
    code = count_above(code, size, 1.25f, true);
    code = count_above(code, size, 1.75f, down);
    code = count_above(code, size, 2.5f, true);
    code = count_above(code, size, 3.5f, down);
    return count_above(code, size, 5, true);
}
