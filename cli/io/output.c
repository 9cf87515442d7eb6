/* Prints to stdout and stderr with escaped strings, detects lost output, and maps statuses to exit codes. */
#include "cli/io/output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { EXIT_SHORT = 1, EXIT_IO = 4, EXIT_READER_LEFT = 128 + SIGPIPE };

static int lost;    /* errno of the first write to stdout that failed */
static bool hushed; /* this process prints nothing */

void tsr_output_hush(void)
{
    hushed = true;
}

bool tsr_output_begin(void)
{
    /* Each descriptor is opened for the wrong direction, so that using it fails as if it were closed. */
    static const int kFlags[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", kFlags[fd]) != fd)
            return false;
    }
    return signal(SIGPIPE, SIG_IGN) != SIG_ERR && signal(SIGXFSZ, SIG_IGN) != SIG_ERR;
}

/* ---- formatting: one conversion of printf at a time ---- */

/* Returns the number of UTF-8 characters. */
static int width_of(const tsr_text *t)
{
    int n = 0;
    for (size_t i = 0; i < t->size; i++)
        n += ((unsigned char)t->data[i] & 0xC0) != 0x80;
    return n;
}

static void pad(tsr_text *to, int n)
{
    if (n > 0)
        tsr_text_printf(to, "%*s", n, "");
}

/* Formats a string for "%-22s": escaped, then padded. `precision` in bytes of the original; -1: all. */
static void format_string(tsr_text *to, const char *string, bool left, int width, int precision)
{
    tsr_text t = {0};
    const char *const text = string == NULL ? "(null)" : string;
    const size_t size = precision < 0 ? strlen(text) : strnlen(text, (size_t)precision);
    if (width == 0) {
        tsr_text_visible(to, text, size);
        return;
    }
    tsr_text_visible(&t, text, size);
    const int room = width - width_of(&t);
    pad(to, left ? 0 : room);
    tsr_text_append(to, t.data, t.size);
    pad(to, left ? room : 0);
    to->failed = to->failed || t.failed;
    tsr_text_free(&t);
}

/* Formats a number for a conversion such as "%-5.1f" or "%llu", whose '*' are filled in. */
static void format_number(tsr_text *to, const char *spec, va_list *args)
{
    const char last = spec[strlen(spec) - 1];
    const bool wide = strstr(spec, "ll") != NULL || strchr(spec, 'z') != NULL, is_long = strchr(spec, 'l') != NULL;
    char text[512];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    if (strchr("eEfFgGaA", last) != NULL)
        snprintf(text, sizeof text, spec, va_arg(*args, double));
    else if (wide)
        snprintf(text, sizeof text, spec, va_arg(*args, unsigned long long));
    else if (is_long)
        snprintf(text, sizeof text, spec, va_arg(*args, unsigned long));
    else
        snprintf(text, sizeof text, spec, va_arg(*args, unsigned));
#pragma GCC diagnostic pop
    tsr_text_append(to, text, strlen(text));
}

/* Formats one conversion; `fmt` is after its '%'. Returns the text after it. */
static const char *format_one(tsr_text *to, const char *fmt, va_list *args)
{
    char spec[64] = "%";
    size_t n = 1;
    int width = 0, precision = -1;
    bool left = false, dotted = false;
    for (; *fmt != '\0' && strchr("diouxXeEfFgGaAcs%", *fmt) == NULL; fmt++) {
        int *const number = dotted ? &precision : &width;
        if (*fmt == '*') {
            const int given = va_arg(*args, int);
            left = left || (!dotted && given < 0);
            *number = abs(given);
            n += (size_t)snprintf(spec + n, sizeof spec - 1 - n, "%d", given);
            continue;
        }
        if (*fmt == '.') {
            dotted = true;
            precision = 0;
        } else if (*fmt >= '0' && *fmt <= '9') {
            *number = 10 * *number + (*fmt - '0');
        }
        left = left || *fmt == '-';
        spec[n] = *fmt;
        n += n < sizeof spec - 2;
    }
    spec[n] = *fmt;
    if (*fmt == '\0')
        return fmt;
    if (*fmt == '%')
        tsr_text_append(to, "%", 1);
    else if (*fmt == 's')
        format_string(to, va_arg(*args, const char *), left, width, precision);
    else
        format_number(to, spec, args);
    return fmt + 1;
}

static void format(tsr_text *to, const char *fmt, va_list *args)
{
    while (*fmt != '\0') {
        const char *const percent = strchrnul(fmt, '%');
        tsr_text_append(to, fmt, (size_t)(percent - fmt));
        fmt = *percent == '\0' ? percent : format_one(to, percent + 1, args);
    }
}

/* ---- the two streams ---- */

static void put(const char *data, size_t size)
{
    errno = 0;
    if (size > 0 && !hushed && fwrite(data, 1, size, stdout) != size && lost == 0)
        lost = errno != 0 ? errno : EIO;
}

/* Prints what fits in memory of a text, and frees it. */
static void put_text(tsr_text *t)
{
    put(t->data, t->size);
    if (t->failed && lost == 0)
        lost = ENOMEM;
    tsr_text_free(t);
}

void tsr_print(const char *fmt, ...)
{
    tsr_text t = {0};
    va_list args;
    va_start(args, fmt);
    format(&t, fmt, &args);
    va_end(args);
    put_text(&t);
}

/* Prints a line if memory for escaping is exhausted: as much as fits here, plain characters only. */
static void print_plainly(const char *fmt, va_list args)
{
    char line[2048];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    const int length = vsnprintf(line, sizeof line - 1, fmt, args);
#pragma GCC diagnostic pop
    if (length < 0)
        return;
    for (char *c = line; *c != '\0'; c++) {
        if ((*c < ' ' || *c > '~') && !(*c == '\n' && c[1] == '\0'))
            *c = '?';
    }
    if ((size_t)length >= sizeof line - 1)
        strcat(line, "\n");
    (void)!fputs(line, stderr);
}

void tsr_print_stderr(const char *fmt, ...)
{
    tsr_text t = {0};
    va_list args, again;
    if (hushed)
        return;
    va_start(args, fmt);
    va_copy(again, args);
    format(&t, fmt, &args);
    if (t.failed)
        print_plainly(fmt, again);
    else if (t.size > 0)
        (void)!fwrite(t.data, 1, t.size, stderr);
    va_end(again);
    va_end(args);
    tsr_text_free(&t);
}

void tsr_print_raw(const char *text, size_t size)
{
    put(text, size);
}

tsr_status tsr_print_drawn(tsr_text *text, tsr_err *err)
{
    const tsr_status status = tsr_text_status(text, err);
    if (status == TSR_OK)
        put(text->data, text->size);
    tsr_text_free(text);
    return status;
}

tsr_style tsr_command_style(void)
{
    return (tsr_style){.width = UINT16_MAX, .utf8 = true, .colour = tsr_takes_colour(STDOUT_FILENO), .full = "--json"};
}

bool tsr_takes_colour(int fd)
{
    const char *const no = getenv("NO_COLOR"), *const term = getenv("TERM");
    return isatty(fd) != 0 && (no == NULL || *no == '\0') && term != NULL && strcmp(term, "dumb") != 0;
}

bool tsr_is_utf8_locale(void)
{
    static const char *const kVariables[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < sizeof kVariables / sizeof *kVariables; i++) {
        const char *const value = getenv(kVariables[i]);
        if (value != NULL && *value != '\0')
            return strcasestr(value, "UTF-8") != NULL || strcasestr(value, "UTF8") != NULL;
    }
    return false;
}

unsigned tsr_terminal_columns(int fd)
{
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

unsigned tsr_line_width(void)
{
    enum { NARROWEST = 60, WIDEST = 120, USUAL = 80 };
    const unsigned columns = tsr_terminal_columns(STDOUT_FILENO);
    if (columns == 0)
        return USUAL;
    return columns < NARROWEST ? NARROWEST : columns > WIDEST ? WIDEST : columns;
}

void tsr_print_word(tsr_ink ink, const char *word, int width)
{
    const tsr_style style = tsr_command_style();
    tsr_text t = {0};
    tsr_draw(&t, &style, ink, word);
    pad(&t, width - (int)strlen(word));
    put_text(&t);
}

int tsr_output_end(int code)
{
    errno = 0;
    if (fclose(stdout) != 0 && lost == 0)
        lost = errno != 0 ? errno : EIO;
    if (lost == 0)
        return code;
    if (lost == EPIPE)
        return code == 0 ? EXIT_READER_LEFT : code;
    if (code > EXIT_SHORT)
        return code; /* its error message was printed, and is more specific */
    /* Not by tsr_print_stderr, which needs memory. */
    (void)!fprintf(stderr, "tessera: stdout: %s: the output is incomplete\n",
                   lost == EBADF ? "it is closed" : strerror(lost));
    return EXIT_IO;
}

int tsr_exit_code(tsr_status status)
{
    switch (status) {
    case TSR_OK:
        return 0;
    case TSR_E_NOTHING:
        return 1;
    case TSR_E_USAGE:
    case TSR_E_EXISTS:
        return 2;
    case TSR_E_FORMAT:
    case TSR_E_SHAPE:
    case TSR_E_UNSUPPORTED:
    case TSR_E_NOT_APPLICABLE:
    case TSR_E_VALUE:
    case TSR_E_MISMATCH:
        return 3;
    case TSR_E_IO:
    case TSR_E_NOSPACE:
    case TSR_E_NOMEM:
        return 4;
    case TSR_E_DEVICE:
        return 5;
    case TSR_E_CANCELLED:
        return 130;
    }
    return 4;
}

int tsr_graver_code(int a, int b)
{
    static const int kGravity[] = {130, 4, 5, 3, 2, 1, 0};
    for (size_t i = 0; i < sizeof kGravity / sizeof *kGravity; i++) {
        if (a == kGravity[i] || b == kGravity[i])
            return kGravity[i];
    }
    return a;
}
