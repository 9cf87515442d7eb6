/* Mutates JSON in inputs for libFuzzer: replaces, removes, duplicates, swaps or nests a value.
 *
 * Two mutants in three are made in this way and stay valid JSON. The others have random changes. Text around the JSON
 * stays. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);

enum { MOST_VALUES = 1024, MOST_DEPTH = 64 };

static const char *const kWords[] = {
    "null",
    "true",
    "false",
    "0",
    "1",
    "2",
    "-1",
    "128",
    "1.5",
    "-0.0",
    "1e400",
    "1e-400",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "\"\"",
    "\"*\"",
    "\"re:.*\"",
    "\"re:(a|b)+\\\\d\"",
    "\"model.layers.0.self_attn.q_proj\"",
    "\"\\u00e9\\ud83d\\ude00\"",
    "\"\\u0000\"",
    "\"../x\"",
    "\"Linear\"",
    "{}",
    "[]",
    "[0,0]",
    "[128,128]",
    "[[[[]]]]",
    "{\"a\":{\"a\":{}}}",
};

typedef struct value {
    size_t member, begin, end; /* member: where its key begins; of an element, where it begins itself */
} value;

typedef struct text {
    uint8_t *data;
    size_t size, max;
} text;

static size_t end_of_string(const text *t, size_t at)
{
    for (at++; at < t->size && t->data[at] != '"'; at++)
        at += t->data[at] == '\\';
    return at < t->size ? at + 1 : t->size;
}

static bool is_bare(uint8_t c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' || c == 'E';
}

/* Lists every value, a container's values after it. */
static size_t find_values(const text *t, value values[MOST_VALUES])
{
    value open[MOST_DEPTH];
    size_t n = 0, depth = 0, key = SIZE_MAX;
    for (size_t at = 0; at < t->size && n < MOST_VALUES;) {
        const uint8_t c = t->data[at];
        size_t end = at + 1;
        if (c == '{' || c == '[') {
            if (depth < MOST_DEPTH)
                open[depth++] = (value){.member = key == SIZE_MAX ? at : key, .begin = at};
            key = SIZE_MAX;
        } else if ((c == '}' || c == ']') && depth > 0) {
            values[n] = open[--depth];
            values[n++].end = end;
            key = SIZE_MAX;
        } else if (c == '"' || is_bare(c)) {
            if (c == '"')
                end = end_of_string(t, at);
            while (c != '"' && end < t->size && is_bare(t->data[end]))
                end++;
            if (c == '"' && end < t->size && t->data[end] == ':' && key == SIZE_MAX) {
                key = at;
            } else {
                values[n++] = (value){.member = key == SIZE_MAX ? at : key, .begin = at, .end = end};
                key = SIZE_MAX;
            }
        }
        at = end;
    }
    return n;
}

/* Replaces the bytes from `begin` to `end` by `n` bytes, if there is space. `with` is in another buffer. */
static void splice(text *t, size_t begin, size_t end, const void *with, size_t n)
{
    if (t->size - (end - begin) + n > t->max)
        return;
    memmove(t->data + begin + n, t->data + end, t->size - end);
    memcpy(t->data + begin, with, n);
    t->size = t->size - (end - begin) + n;
}

static void take_out(text *t, value v)
{
    if (v.end < t->size && t->data[v.end] == ',')
        v.end++;
    else if (v.member > 0 && t->data[v.member - 1] == ',')
        v.member--;
    splice(t, v.member, v.end, "", 0);
}

/* Duplicates the value `v` with its key, which is sometimes changed. */
static void repeat(text *t, value v, const uint8_t *copy, unsigned chance)
{
    const size_t n = v.end - v.member;
    splice(t, v.end, v.end, ",", 1);
    splice(t, v.end + 1, v.end + 1, copy + v.member, n);
    if (chance % 2 == 0 && v.begin > v.member + 3 && v.end + 2 < t->size)
        t->data[v.end + 2] = (uint8_t)('a' + chance % 26);
}

static void nest(text *t, value v, unsigned chance)
{
    static const char kOpen[] = "[[[[[[[[", kClose[] = "]]]]]]]]";
    const size_t n = 1 + chance % 8;
    splice(t, v.end, v.end, kClose, n);
    splice(t, v.begin, v.begin, kOpen, n);
}

static void change_bytes(text *t, value v, uint8_t *copy)
{
    const size_t n = LLVMFuzzerMutate(copy + v.begin, v.end - v.begin, t->max - t->size + (v.end - v.begin));
    splice(t, v.begin, v.end, copy + v.begin, n);
}

static void change(text *t, uint8_t *copy)
{
    static value values[MOST_VALUES];
    const size_t n = find_values(t, values);
    if (n == 0)
        return;
    memcpy(copy, t->data, t->size);
    const unsigned chance = (unsigned)rand();
    const value v = values[(unsigned)rand() % n], other = values[(unsigned)rand() % n];
    const char *const word = kWords[(unsigned)rand() % (sizeof kWords / sizeof *kWords)];
    switch (chance % 8) {
    case 0:
    case 1:
        splice(t, v.begin, v.end, word, strlen(word));
        break;
    case 2:
        splice(t, v.begin, v.end, copy + other.begin, other.end - other.begin);
        break;
    case 3:
        splice(t, v.begin, v.begin, copy + other.member,
               other.end - other.member); /* members change places with elements */
        break;
    case 4:
        take_out(t, v);
        break;
    case 5:
        repeat(t, v, copy, chance / 8);
        break;
    case 6:
        nest(t, v, chance / 8);
        break;
    default:
        change_bytes(t, v, copy);
        break;
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
    srand(seed);
    if (seed % 3 == 0 || size == 0)
        return LLVMFuzzerMutate(data, size, max);
    uint8_t *const copy = malloc(max);
    if (copy == NULL)
        abort();
    text t = {data, size, max};
    for (unsigned i = 0; i <= (unsigned)rand() % 3; i++)
        change(&t, copy);
    free(copy);
    return t.size;
}
