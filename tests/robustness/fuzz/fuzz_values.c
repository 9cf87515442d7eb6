/* libFuzzer target: decodes the weights of a checkpoint to values.
 *
 * The input has lines: config.json; sizes [outputs, inputs, experts, groups]; a line per tensor, ["a.weight", "U8",
 * "R", "C/2"]; an empty line. Data follows. R, C, E and G are the sizes, so a mutation of one size changes all tensors,
 * and most mutants are valid checkpoints. Data is repeated up to the size of the tensors.
 *
 * Each weight is decoded by the reader of verify, as a whole and in a piece, and by the decoders of the library. All
 * must give the same values. The number of decoded values is printed when the process ends. */
#include "common/checked.h"
#include "common/float_bits.h"
#include "common/text.h"
#include "formats/weights/weights.h"
#include "lib/api.h"
#include "tests/robustness/fuzz/folder.h"
#include "tests/robustness/fuzz/lines.h"
#include "verify/values/weight_reader.h"

#include <math.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 1 << 14, MOST_TENSORS = 32, MOST_SIZE = 1 << 16, SIZES = 4, MOST_KINDS = 32 };

static const char *const kFiles[] = {TSR_CONFIG_NAME, "model.safetensors", NULL};

static uint64_t decoded, compared;
static uint64_t decoded_of[MOST_KINDS];

static void print_counts(void)
{
    unsigned kinds = 0, all = 0;
    for (; tsr_weight_kinds[all].name != NULL; all++)
        kinds += decoded_of[all] > 0;
    fprintf(stderr, "decoded %llu values of %u of %u kinds, %llu by both decoders\n", U64(decoded), kinds, all,
            U64(compared));
}

/* ---- the checkpoint ---- */

typedef struct described {
    span name, dtype;
    tsr_dtype known;
    uint64_t shape[TSR_MAX_RANK];
    unsigned rank;
    size_t bytes;
} described;

typedef struct input {
    uint64_t sizes[SIZES]; /* R, C, E, G */
    described tensors[MOST_TENSORS];
    unsigned count;
    size_t bytes; /* sum over all tensors */
} input;

/* Takes the next string, without its quotes, or the next number. Returns an empty span at the end of the line. */
static span take_word(span *from)
{
    static const char kBetween[] = " ,[]";
    while (from->size > 0 && memchr(kBetween, from->data[0], sizeof kBetween - 1) != NULL)
        *from = (span){from->data + 1, from->size - 1};
    const bool quoted = from->size > 0 && from->data[0] == '"';
    span word = {from->data + quoted, 0};
    const size_t rest = from->size - quoted;
    while (word.size < rest &&
           (quoted ? word.data[word.size] != '"' : memchr(kBetween, word.data[word.size], sizeof kBetween - 1) == NULL))
        word.size++;
    const size_t taken = word.size + quoted + (quoted && word.size < rest);
    *from = (span){from->data + taken, from->size - taken};
    return word;
}

static uint64_t take_number(span *from)
{
    uint64_t x = 0;
    for (; from->size > 0 && from->data[0] >= '0' && from->data[0] <= '9'; from->data++, from->size--)
        x = tsr_min_u64(MOST_SIZE, 10 * x + (uint64_t)(from->data[0] - '0'));
    return x;
}

/* Returns the number of a term: "16", "R", "C/32" (rounded up), "C*3/4". */
static uint64_t number_of(span term, const uint64_t sizes[SIZES])
{
    static const char kNames[] = "RCEG";
    const char *const name = term.size > 0 ? memchr(kNames, term.data[0], SIZES) : NULL;
    if (name == NULL)
        return take_number(&term);
    uint64_t x = sizes[name - kNames];
    term = (span){term.data + 1, term.size - 1};
    while (term.size > 1 && (term.data[0] == '*' || term.data[0] == '/')) {
        const bool times = term.data[0] == '*';
        term = (span){term.data + 1, term.size - 1};
        const uint64_t by = take_number(&term);
        x = times ? tsr_min_u64(MOST_SIZE, x * by) : tsr_ceil_div(x, tsr_max_u64(1, by));
    }
    return x;
}

/* Returns false if the line is no tensor that fits. */
static bool describe(input *in, span line)
{
    described *const t = &in->tensors[in->count];
    *t = (described){.name = take_word(&line)};
    t->dtype = take_word(&line);
    if (!tsr_dtype_from_name(t->dtype.data, t->dtype.size, &t->known))
        return false;
    uint64_t bits = tsr_dtype_bits(t->known);
    for (span term = take_word(&line); term.size > 0; term = take_word(&line)) {
        if (t->rank == TSR_MAX_RANK)
            return false;
        t->shape[t->rank] = number_of(term, in->sizes);
        bits *= t->shape[t->rank++];
        if (bits > 8 * MOST_BYTES)
            return false;
    }
    t->bytes = (size_t)tsr_ceil_div(bits, 8);
    if (t->bytes > MOST_BYTES - in->bytes)
        return false;
    in->bytes += t->bytes;
    in->count++;
    return true;
}

static input take_input(span *rest)
{
    input in = {.count = 0};
    span line = take_line(rest);
    for (unsigned i = 0; i < SIZES; i++)
        in.sizes[i] = number_of(take_word(&line), in.sizes);
    for (line = take_line(rest); line.size > 0 && in.count < MOST_TENSORS; line = take_line(rest))
        (void)describe(&in, line);
    return in;
}

static bool ends_with(span name, const char *ending)
{
    const size_t n = strlen(ending);
    return name.size >= n && memcmp(name.data + name.size - n, ending, n) == 0;
}

static void set_integer(char *to, size_t width, uint64_t x)
{
    for (size_t i = 0; i < width; i++)
        to[i] = (char)(i < sizeof x ? x >> (8 * i) : 0);
}

/* Fills a tensor. A stored shape is that of the codes, and group indices are below the number of groups: otherwise
 * nearly every mutant would be rejected. */
static void fill(char *to, const input *in, const described *t, const span *data, size_t *at)
{
    const size_t width = tsr_dtype_bits(t->known) / 8;
    for (size_t i = 0; i < t->bytes; i++)
        to[i] = data->size == 0 ? 0 : data->data[(*at)++ % data->size];
    if (width == 0)
        return;
    for (size_t i = 0; i < t->bytes / width; i++) {
        if (ends_with(t->name, "weight_shape"))
            set_integer(to + i * width, width, in->sizes[i % SIZES]);
        else if (ends_with(t->name, "g_idx"))
            set_integer(to + i * width, width, (unsigned char)to[i * width] % tsr_max_u64(1, in->sizes[3]));
    }
}

static void write_checkpoint(span config, const input *in, span data)
{
    static char bytes[MOST_BYTES];
    tsr_text header = {0};
    size_t end = 0, at = 0;
    tsr_text_append(&header, "{", 1);
    for (unsigned i = 0; i < in->count; i++) {
        const described *const t = &in->tensors[i];
        tsr_text_printf(&header, "%s\"%.*s\":{\"dtype\":\"%.*s\",\"shape\":[", i > 0 ? "," : "", (int)t->name.size,
                        t->name.data, (int)t->dtype.size, t->dtype.data);
        for (unsigned k = 0; k < t->rank; k++)
            tsr_text_printf(&header, "%s%llu", k > 0 ? "," : "", U64(t->shape[k]));
        tsr_text_printf(&header, "],\"data_offsets\":[%zu,%zu]}", end, end + t->bytes);
        fill(bytes + end, in, t, &data, &at);
        end += t->bytes;
    }
    tsr_text_append(&header, "}", 1);
    if (header.failed)
        abort();
    char length[8];
    set_integer(length, sizeof length, header.size);
    put_file(TSR_CONFIG_NAME, config.data, config.size);
    const int fd = create("model.safetensors");
    put(fd, length, sizeof length);
    put(fd, header.data, header.size);
    put(fd, bytes, end);
    close(fd);
    tsr_text_free(&header);
}

/* ---- decoding ---- */

/* Aborts if a piece of the weight has other values than the whole. `chance` selects the piece. */
static void decode_piece(const tessera_checkpoint *c, const tsr_weight *w, const tsr_view *v, const double *values,
                         uint64_t chance)
{
    tsr_piece p = {.matrix = chance % v->matrices, .row = chance / 3 % v->rows, .col = chance / 7 % v->cols};
    p.rows = 1 + chance / 11 % (v->rows - p.row);
    p.cols = 1 + chance / 13 % (v->cols - p.col);
    double *const piece = malloc(p.rows * p.cols * sizeof *piece);
    if (piece == NULL || tsr_read_values(c->of, w, &p, piece, NULL) != TSR_OK)
        abort();
    for (uint64_t i = 0; i < p.rows; i++) {
        const double *const whole = values + (p.matrix * v->rows + p.row + i) * v->cols + p.col;
        if (memcmp(piece + i * p.cols, whole, p.cols * sizeof *piece) != 0)
            abort();
    }
    free(piece);
}

static bool is_same(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void refuse(const tsr_view *v, const char *dtype, uint64_t i, double ours, double other)
{
    fprintf(stderr, "'%s', value %llu as %s: %a by verify, %a by the library\n", v->weight.values->name, U64(i), dtype,
            ours, other);
    abort();
}

/* Aborts if the library decodes to other values than FP32 rounded to BF16 or F16. */
static void decode_halves(const tessera_checkpoint *c, size_t index, const tsr_view *v, const double *values,
                          uint64_t n, bool bf16)
{
    const char *const dtype = bf16 ? "BF16" : "F16";
    uint16_t *const other = malloc(n * sizeof *other);
    if (other == NULL)
        abort();
    if (tessera_read(c, index, dtype, 0, v->matrices * v->rows, other, n * sizeof *other, NULL) == TESSERA_OK) {
        for (uint64_t i = 0; i < n; i++) {
            const float single = (float)values[i];
            const float ours =
                bf16 ? tsr_f32_from_bf16(tsr_bf16_from_f32(single)) : tsr_f32_from_f16(tsr_f16_from_f32(single));
            const float theirs = bf16 ? tsr_f32_from_bf16(other[i]) : tsr_f32_from_f16(other[i]);
            if (!is_same(ours, theirs))
                refuse(v, dtype, i, values[i], (double)theirs);
        }
    }
    free(other);
}

/* Aborts if the library decodes to other values. It rejects some weights, such as plain ones in F64. */
static void decode_again(const tessera_checkpoint *c, size_t index, const tsr_view *v, const double *values, uint64_t n)
{
    float *const other = malloc(n * sizeof *other);
    if (other == NULL)
        abort();
    if (tessera_read(c, index, "F32", 0, v->matrices * v->rows, other, n * sizeof *other, NULL) == TESSERA_OK) {
        for (uint64_t i = 0; i < n; i++) {
            if (!is_same((float)values[i], other[i]))
                refuse(v, "F32", i, values[i], (double)other[i]);
        }
        compared += n;
    }
    free(other);
    decode_halves(c, index, v, values, n, true);
    decode_halves(c, index, v, values, n, false);
}

static void decode_weight(const tessera_checkpoint *c, size_t index, uint64_t chance)
{
    const tsr_weight *const w = &c->weights.items[index];
    tsr_view v;
    if (tsr_view_init(&v, c->of, w, NULL) != TSR_OK)
        return;
    const uint64_t one = v.rows * v.cols, n = v.matrices * one;
    if (n == 0)
        return;
    double *const values = malloc(n * sizeof *values);
    if (values == NULL)
        abort();
    tsr_status status = TSR_OK;
    for (uint64_t i = 0; i < v.matrices && status == TSR_OK; i++) {
        const tsr_piece whole = {.matrix = i, .rows = v.rows, .cols = v.cols};
        status = tsr_read_values(c->of, w, &whole, values + i * one, NULL);
    }
    if (status == TSR_OK) {
        decoded += n;
        if (w->kind >= tsr_weight_kinds + MOST_KINDS)
            abort();
        if (w->kind != NULL)
            decoded_of[w->kind - tsr_weight_kinds] += n;
        decode_piece(c, w, &v, values, chance);
        decode_again(c, index, &v, values, n);
    }
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready = false;
    if (!ready) {
        make_folder(kFiles);
        if (atexit(print_counts) != 0)
            abort();
    }
    ready = true;
    span rest = {(const char *)data, size};
    const span config = take_line(&rest);
    const input in = take_input(&rest);
    write_checkpoint(config, &in, rest);
    uint64_t chance = size;
    for (size_t i = 0; i < rest.size; i++)
        chance = 31 * chance + (unsigned char)rest.data[i];
    tessera_checkpoint *c;
    if (tessera_open(&c, folder, NULL, NULL) == TESSERA_OK) {
        for (size_t i = 0; i < tessera_count(c); i++)
            decode_weight(c, i, chance);
    }
    tessera_close(c);
    return 0;
}
