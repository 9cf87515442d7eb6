/* Compares columns of values and codes, for both forms of mx_error. They define before:
 *
 *   OP(name)                                   makes the names of intrinsics
 *   columns, load(r, i), values(r, i)          even and odd columns of x, and of the codes
 *   units, place                               numbers of groups, and the place of one in them
 *   unit_of(u, at), inverse_of(u, at), boost_of(u, at)    a number of the group in every lane
 *   larger_size(a, b)                          the larger magnitude in each lane */

ALWAYS_INLINE columns scaled(columns x, lanes by)
{
    return (columns){OP(mul_ps)(x.even, by), OP(mul_ps)(x.odd, by)};
}

ALWAYS_INLINE lanes product(columns a, columns b)
{
    return OP(fmadd_ps)(a.odd, b.odd, OP(mul_ps)(a.even, b.even));
}

typedef struct products {
    lanes q2, e2, qv;
} products;

/* The columns of one register from i on, of the group at `at`. */
ALWAYS_INLINE products compare(const row *r, size_t i, const units *u, place at, bool boosted, lanes *largest)
{
    const lanes inverse = inverse_of(u, at);
    const columns v = values(r, i);
    columns q = load(r, i);
    if (boosted)
        q = scaled(q, boost_of(u, at));
    q = scaled(q, inverse);
    const columns e = {OP(sub_ps)(q.even, v.even), OP(sub_ps)(q.odd, v.odd)};
    *largest = OP(max_ps)(*largest, OP(mul_ps)(larger_size(e.even, e.odd), unit_of(u, at)));
    return (products){product(q, q), product(e, e), product(q, v)};
}

ALWAYS_INLINE lanes add_pairs(lanes a, lanes b)
{
    return OP(add_ps)(OP(unpacklo_ps)(a, b), OP(unpackhi_ps)(a, b));
}

ALWAYS_INLINE lanes add_quads(lanes a, lanes b)
{
    return OP(add_ps)(OP(castpd_ps)(OP(unpacklo_pd)(OP(castps_pd)(a), OP(castps_pd)(b))),
                      OP(castpd_ps)(OP(unpackhi_pd)(OP(castps_pd)(a), OP(castps_pd)(b))));
}
