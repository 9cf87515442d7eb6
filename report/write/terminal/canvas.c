/* Draws text, bars and charts with characters. */
#include "report/write/terminal/canvas.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const kInks[] = {[TSR_INK_NONE] = "",
                                    [TSR_INK_GOOD] = "\033[32m",
                                    [TSR_INK_BAD] = "\033[31m",
                                    [TSR_INK_NOTABLE] = "\033[33m",
                                    [TSR_INK_BOLD] = "\033[1m"};

/* Blocks of 0 to 8 eighths of a character, filled from below and from the left. */
static const char *const kUp[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
static const char *const kRight[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"};

static void ink_on(tsr_text *text, const tsr_style *style, tsr_ink ink)
{
    if (style->colour && ink != TSR_INK_NONE)
        tsr_text_printf(text, "%s", kInks[ink]);
}

static void ink_off(tsr_text *text, const tsr_style *style, tsr_ink ink)
{
    if (style->colour && ink != TSR_INK_NONE)
        tsr_text_printf(text, "\033[0m");
}

/* Appends text. In ASCII mode, other characters become '?'. */
static void put(tsr_text *text, const tsr_style *style, const char *data, size_t size)
{
    if (style->utf8) {
        tsr_text_append(text, data, size);
        return;
    }
    for (size_t i = 0; i < size; i++) {
        const unsigned char c = (unsigned char)data[i];
        if (c < 0x80)
            tsr_text_append(text, data + i, 1);
        else if ((c & 0xC0) != 0x80)
            tsr_text_append(text, "?", 1);
    }
}

static size_t characters(const char *data, size_t size)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++)
        n += ((unsigned char)data[i] & 0xC0) != 0x80;
    return n;
}

/* Returns the number of bytes of the first n characters. */
static size_t prefix(const char *data, size_t size, size_t n)
{
    size_t i = 0;
    for (; i < size; i++) {
        if (((unsigned char)data[i] & 0xC0) != 0x80 && n-- == 0)
            break;
    }
    return i;
}

void tsr_end_line(tsr_text *text)
{
    while (text->size > 0 && text->data[text->size - 1] == ' ')
        text->data[--text->size] = '\0';
    tsr_text_append(text, "\n", 1);
}

void tsr_draw(tsr_text *text, const tsr_style *style, tsr_ink ink, const char *what)
{
    tsr_text shown = {0};
    tsr_text_visible(&shown, what, strlen(what));
    ink_on(text, style, ink);
    put(text, style, shown.data, shown.size);
    ink_off(text, style, ink);
    text->failed = text->failed || shown.failed;
    tsr_text_free(&shown);
}

void tsr_draw_fitted(tsr_text *text, const tsr_style *style, tsr_ink ink, const char *what, int room)
{
    const size_t fits = (size_t)(room < 0 ? -room : room);
    const char *const dots = style->utf8 ? "…" : "..";
    const size_t n_dots = style->utf8 ? 1 : 2;
    tsr_text shown = {0};
    tsr_text_visible(&shown, what, strlen(what));
    const size_t n = characters(shown.data, shown.size);
    const int blank = n < fits ? (int)(fits - n) : 0;
    if (room < 0)
        tsr_text_printf(text, "%*s", blank, "");
    ink_on(text, style, ink);
    if (n <= fits || fits < n_dots + 2) {
        put(text, style, shown.data, prefix(shown.data, shown.size, fits));
    } else { /* the end of a name is more distinctive */
        const size_t tail = (fits - n_dots) * 2 / 3, head = fits - n_dots - tail;
        const size_t from = prefix(shown.data, shown.size, n - tail);
        put(text, style, shown.data, prefix(shown.data, shown.size, head));
        tsr_text_printf(text, "%s", dots);
        put(text, style, shown.data + from, shown.size - from);
    }
    ink_off(text, style, ink);
    if (room > 0)
        tsr_text_printf(text, "%*s", blank, "");
    text->failed = text->failed || shown.failed;
    tsr_text_free(&shown);
}

void tsr_draw_wrapped(tsr_text *text, const tsr_style *style, unsigned used, unsigned indent, const char *what)
{
    tsr_text shown = {0};
    tsr_text_visible(&shown, what, strlen(what));
    size_t column = used;
    for (size_t i = 0; i < shown.size;) {
        const size_t size = strcspn(shown.data + i, " "), n = characters(shown.data + i, size);
        if (column > indent && column + n > style->width) {
            tsr_end_line(text);
            tsr_text_printf(text, "%*s", (int)indent, "");
            column = indent;
        }
        put(text, style, shown.data + i, size);
        column += n;
        i += size;
        const size_t blank = strspn(shown.data + i, " ");
        tsr_text_printf(text, "%*s", (int)blank, "");
        column += blank;
        i += blank;
    }
    tsr_end_line(text);
    text->failed = text->failed || shown.failed;
    tsr_text_free(&shown);
}

void tsr_draw_line(tsr_text *text, const tsr_style *style, unsigned used, unsigned indent, tsr_text *line)
{
    tsr_draw_wrapped(text, style, used, indent, line->data == NULL ? "" : line->data);
    text->failed = text->failed || line->failed;
    tsr_text_free(line);
}

void tsr_draw_omitted(tsr_text *text, const tsr_style *style, unsigned indent, size_t n, const char *what)
{
    tsr_text_printf(text, "%*s... and %zu more%s (%s FILE lists all)\n", (int)indent, "", n, what, style->full);
}

/* Returns `value` of `full` in eighths of `room` characters. */
static unsigned eighths(double value, double full, unsigned room)
{
    if (!(value > 0) || !(full > 0))
        return 0;
    const double part = fmin(value / full, 1) * 8 * room;
    return part < 1 ? 1 : (unsigned)lround(part); /* a value above 0 is visible */
}

void tsr_draw_bar(tsr_text *text, const tsr_style *style, tsr_ink ink, double value, double full, unsigned room)
{
    const unsigned parts = eighths(value, full, room);
    ink_on(text, style, ink);
    for (unsigned i = 0; i < room; i++) {
        const unsigned here = parts >= 8 * (i + 1) ? 8 : parts > 8 * i ? parts - 8 * i : 0;
        tsr_text_printf(text, "%s", style->utf8 ? kRight[here] : here >= 4 || (i == 0 && here > 0) ? "#" : " ");
    }
    ink_off(text, style, ink);
}

static void draw_line(tsr_text *text, const tsr_style *style, const tsr_canvas_columns *c, unsigned line)
{
    for (size_t i = 0; i < c->count; i++) {
        const unsigned parts = eighths(c->values[i], c->full, c->height), below = 8 * line;
        const unsigned here = parts >= below + 8 ? 8 : parts > below ? parts - below : 0;
        const tsr_ink ink = c->marked[i] ? TSR_INK_BAD : TSR_INK_NONE;
        ink_on(text, style, ink);
        tsr_text_printf(text, "%s", style->utf8 ? kUp[here] : here >= 4 || (line == 0 && here > 0) ? "#" : " ");
        ink_off(text, style, ink);
    }
}

static void draw_axis(tsr_text *text, const tsr_style *style, const tsr_canvas_columns *c)
{
    enum { EVERY = 10 };
    bool any = false;
    tsr_text_printf(text, "%*s %s", (int)c->margin, "", style->utf8 ? "└" : "+");
    for (size_t i = 0; i < c->count; i++)
        tsr_text_printf(text, "%s", style->utf8 ? "─" : "-");
    tsr_text_printf(text, "\n%*s", (int)c->margin + 2, "");
    for (size_t i = 0; i < c->count; i += EVERY)
        tsr_text_printf(text, i + EVERY < c->count ? "%-10u" : "%u", c->numbers[i]);
    tsr_end_line(text);
    for (size_t i = 0; i < c->count; i++)
        any = any || c->marked[i];
    if (!any)
        return;
    tsr_text_printf(text, "%*s", (int)c->margin + 2, "");
    for (size_t i = 0; i < c->count; i++)
        tsr_text_append(text, c->marked[i] ? "^" : " ", 1);
    tsr_end_line(text);
}

void tsr_draw_columns(tsr_text *text, const tsr_style *style, const tsr_canvas_columns *c)
{
    for (unsigned line = c->height; line-- > 0;) {
        const char *const label = line + 1 == c->height ? c->top : "";
        tsr_draw_fitted(text, style, TSR_INK_NONE, label, -(int)c->margin);
        tsr_text_printf(text, " %s", style->utf8 ? "│" : "|");
        draw_line(text, style, c, line);
        tsr_end_line(text);
    }
    draw_axis(text, style, c);
}
