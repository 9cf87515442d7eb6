/* Prints the text of `tessera inspect PATH:TENSOR`. */
#include "cli/io/output.h"
#include "cli/show/inspect/inspect_print.h"
#include "common/checked.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* ---- the map ---- */

/* From small to large values. */
static const char kRamp[] = ".:-=+*#%@";
enum { SHADES = sizeof kRamp - 1 };

/* The map drawn as lines of text: each character shows the largest value of its cells. */
typedef struct picture {
    unsigned rows, cols;
    double low, high; /* range of the nonzero cells */
} picture;

/* Returns the most cells per line. Output to a file or a pipe does not wrap. */
static unsigned most_columns(void)
{
    enum { MARGIN = 6, LEAST = 16 };
    const unsigned columns = tsr_terminal_columns(STDOUT_FILENO);
    if (columns == 0)
        return TSR_GRID_CELLS;
    return columns < LEAST + MARGIN ? LEAST : columns - MARGIN;
}

/* Fills one line of the picture from its rows of the map. */
static void fill_line(const tsr_histogram *h, const picture *p, unsigned row, double line[TSR_GRID_CELLS])
{
    memset(line, 0, TSR_GRID_CELLS * sizeof *line);
    for (unsigned r = 0; r < h->map_rows; r++) {
        for (unsigned c = 0; r * p->rows / h->map_rows == row && c < h->map_cols; c++) {
            double *const cell = &line[c * p->cols / h->map_cols];
            *cell = fmax(*cell, h->map[r * h->map_cols + c]);
        }
    }
}

static picture make_picture(const tsr_histogram *h)
{
    enum { MOST_ROWS = 64 };
    picture p = {.rows = h->map_rows < MOST_ROWS ? h->map_rows : MOST_ROWS,
                 .cols = (unsigned)tsr_min_u64(h->map_cols, most_columns())};
    for (size_t i = 0; i < (size_t)h->map_rows * h->map_cols; i++) {
        if (h->map[i] > 0) {
            p.low = p.low == 0 ? h->map[i] : fmin(p.low, h->map[i]);
            p.high = fmax(p.high, h->map[i]);
        }
    }
    return p;
}

/* Returns the character of a cell: equal logarithmic steps from the smallest to the largest value. */
static char shade(const picture *p, double x)
{
    if (!(x > 0))
        return ' ';
    if (p->low == p->high)
        return kRamp[SHADES - 1];
    const int step = (int)floor(log2(x / p->low) / log2(p->high / p->low) * (double)SHADES);
    return kRamp[step < 0 ? 0 : step >= SHADES ? SHADES - 1 : step];
}

static void print_map_title(const tsr_inspected *x, const tsr_histogram *h)
{
    if (x->owner == NULL)
        tsr_print("\nlargest |x| of %llux%llu blocks (", U64(h->block.rows), U64(h->block.cols));
    else
        tsr_print("\n|x| of each value (");
    tsr_print("%llu down, %llu wide", U64(h->blocks_down), U64(h->blocks_wide));
}

static void print_map(const tsr_inspected *x, const tsr_histogram *h)
{
    const picture p = make_picture(h);
    print_map_title(x, h);
    if (p.rows < h->blocks_down || p.cols < h->blocks_wide)
        tsr_print(", in %u x %u cells, each the largest of its own", p.rows, p.cols);
    tsr_print("):\n");
    for (unsigned r = 0; r < p.rows; r++) {
        double line[TSR_GRID_CELLS];
        fill_line(h, &p, r, line);
        tsr_print("  |");
        for (unsigned c = 0; c < p.cols; c++)
            tsr_print("%c", shade(&p, line[c]));
        tsr_print("|\n");
    }
    if (p.low == p.high)
        tsr_print("  '@' %.4g; blank: zeros only\n", p.high);
    else
        tsr_print("  \"%s\" from %.4g to %.4g, each character %.3g times the one before; blank: zeros only\n", kRamp,
                  p.low, p.high, exp2(log2(p.high / p.low) / (double)SHADES));
}

/* ---- values ---- */

static void bar(uint64_t n, uint64_t most, int width)
{
    const int length = most == 0 ? 0 : (int)ceil((double)n / (double)most * width);
    for (int i = 0; i < length; i++)
        tsr_print("#");
}

static void print_binades(const tsr_histogram *h)
{
    enum { ROWS = 24, WIDTH = 40 };
    uint64_t most = 0, rest = 0;
    int top = TSR_BINADES - 1, low = 0, rows = 0;
    for (int i = 0; i < TSR_BINADES; i++) {
        const uint64_t n = h->binades[0][i] + h->binades[1][i];
        most = n > most ? n : most;
    }
    while (top >= 0 && h->binades[0][top] + h->binades[1][top] == 0)
        top--;
    if (top < 0)
        return;
    while (h->binades[0][low] + h->binades[1][low] == 0)
        low++;
    tsr_print("\nvalues by power of two (negative, positive):\n");
    for (int i = top; i >= low; i--) {
        const uint64_t n = h->binades[0][i] + h->binades[1][i];
        if (rows++ >= ROWS) {
            rest += n;
            continue;
        }
        tsr_print("  2^%-5d %12llu %12llu  ", i - 1023, U64(h->binades[1][i]), U64(h->binades[0][i]));
        bar(n, most, WIDTH);
        tsr_print("\n");
    }
    if (rest > 0)
        tsr_print("  smaller %11s %12llu\n", "", U64(rest));
    tsr_print("  zero    %11s %12llu\n", "", U64(h->zeros));
}

static void print_codes(const tsr_histogram *h)
{
    uint64_t of[16] = {0}, most = 0;
    for (unsigned code = 0; code < 0x7F; code++)
        of[code >> 3] += tsr_histogram_codes(h, code);
    for (unsigned e = 0; e < 16; e++)
        most = of[e] > most ? of[e] : most;
    tsr_print("\ne4m3 codes by exponent (both signs):\n");
    for (unsigned e = 16; e-- > 0;) {
        tsr_print("  %2u  %-8s %12llu  ", e, e == 0 ? "0, sub." : "", U64(of[e]));
        bar(of[e], most, 40);
        tsr_print("\n");
    }
    tsr_print("  +-448 (largest) %llu, subnormal %llu, zero %llu, NaN %llu\n", U64(tsr_histogram_codes(h, 0x7E)),
              U64(h->subnormal), U64(tsr_histogram_codes(h, 0)), U64(tsr_histogram_codes(h, 0x7F)));
}

/* ---- meaning of the tensor ---- */

static void print_companion(const char *title, const tsr_tensor *t)
{
    char shape[192];
    if (t != NULL)
        tsr_print("  %s %s %s %s\n", title, t->name, tsr_dtype_name((tsr_dtype)t->dtype),
                  tsr_shape_text(t, shape, sizeof shape));
}

static void print_weight(const tsr_checkpoint *c, const tsr_weight *w)
{
    char shape[192];
    if (w->scale == NULL)
        return;
    tsr_print("  scale %s %s %s, in %s at offset %llu; values below are code * scale\n", w->scale->name,
              tsr_dtype_name((tsr_dtype)w->scale->dtype), tsr_shape_text(w->scale, shape, sizeof shape),
              c->files[w->scale->file].name, U64(w->scale->offset));
    print_companion("zero points", w->zero_point);
    print_companion("global scale", w->global_scale);
    if (w->reordered)
        tsr_print("  columns have their groups by %s\n", w->group_index->name);
    tsr_print("  ");
    tsr_print_coding(w->kind, w->bits, w->coarse ? (tsr_block){0, w->block.cols} : w->block);
    tsr_print("\n  stands for %s %s%s\n", w->values->name, tsr_shape_text(w->values, shape, sizeof shape),
              w->transposed ? ", the transpose of the codes" : "");
}

/* Describes the effect of a companion's values on the codes. */
static const char *effect_of(const tsr_inspected *x)
{
    static const struct {
        const char *role, *effect;
    } kEffects[] = {
        {"zero_point", "the scale and zero point are those of the code before; packed codes are shown as the stored "
                       "words"},
        {"group_index", "the group of each column, which selects its scale"},
        {"weight_shape", "rows and columns of the packed codes"},
        {"input_scale", "the static scale of the layer's input; it does not affect the values of the weights"},
        {"input_zero_point", "the static zero point of the layer's input; it does not affect the values of the "
                             "weights"},
    };
    if (strcmp(x->role, "scale") == 0)
        return x->owner->global_scale != NULL ? "a weight's value is its code times this and the global scale"
                                              : "a weight's value is its code times this";
    if (strcmp(x->role, "global_scale") == 0)
        return x->owner->global_divides ? "each scale is divided by it" : "each scale is multiplied by it";
    for (size_t i = 0; i < sizeof kEffects / sizeof *kEffects; i++) {
        if (strcmp(x->role, kEffects[i].role) == 0)
            return kEffects[i].effect;
    }
    return "";
}

static void print_owner(const tsr_checkpoint *c, const tsr_inspected *x)
{
    char shape[192];
    const tsr_weight *const w = x->owner;
    if (w == NULL)
        return;
    tsr_print("  the %s of %s %s %s, in %s at offset %llu:\n  ", x->role, w->data->name,
              tsr_dtype_name((tsr_dtype)w->data->dtype), tsr_shape_text(w->data, shape, sizeof shape),
              c->files[w->data->file].name, U64(w->data->offset));
    tsr_print_coding(w->kind, w->bits, w->coarse ? (tsr_block){0, w->block.cols} : w->block);
    tsr_print("\n  %s\n", effect_of(x));
}

void tsr_print_tensor(const tsr_checkpoint *c, const tsr_inspected *x, const tsr_histogram *h)
{
    const tsr_tensor *const t = x->stored;
    const tsr_dtype read_as = (tsr_dtype)x->weight.data->dtype;
    char shape[192];
    tsr_print("%s\n  %s %s, %llu bytes, in %s at offset %llu\n", t->name, tsr_dtype_name((tsr_dtype)t->dtype),
              tsr_shape_text(t, shape, sizeof shape), U64(t->bytes), c->files[t->file].path, U64(t->offset));
    if (read_as != t->dtype)
        tsr_print("  bytes of %s\n", tsr_dtype_name(read_as));
    print_weight(c, &x->weight);
    print_owner(c, x);
    tsr_print("  first:");
    for (unsigned i = 0; i < h->n_first; i++)
        tsr_print(" %.6g", h->first[i]);
    tsr_print("\n  min %.6g, max %.6g, mean %.6g, rms %.6g\n", h->min, h->max, h->mean, h->rms);
    tsr_print("  of %llu: %llu zero, %llu negative, %llu subnormal, %llu NaN, %llu Inf\n", U64(h->elements),
              U64(h->zeros), U64(h->negative), U64(h->subnormal), U64(h->nan), U64(h->inf));
    print_binades(h);
    if (read_as == TSR_F8_E4M3)
        print_codes(h);
    if (h->amax > 0 && (x->owner == NULL || strcmp(x->role, "scale") == 0))
        print_map(x, h);
}
