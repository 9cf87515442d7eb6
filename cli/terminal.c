/* stderr, signals and exit codes. */
#include "cli/terminal.h"

#include "cli/output.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const double kPlainLineSeconds = 10;

tsr_terminal tsr_terminal_open(bool quiet)
{
    return (tsr_terminal){.quiet = quiet, .tty = isatty(STDERR_FILENO) != 0, .verb = "converting"};
}

const char *tsr_bytes_text(double bytes, char *text)
{
    static const char *const kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    size_t unit = 0;
    while (bytes >= 999.5 && unit + 1 < sizeof kUnits / sizeof *kUnits) {
        bytes /= 1000;
        unit++;
    }
    snprintf(text, 32,
             unit == 0 || bytes >= 100 ? "%.0f %s"
             : bytes >= 10             ? "%.1f %s"
                                       : "%.2f %s",
             bytes, kUnits[unit]);
    return text;
}

static void time_text(double seconds, char text[32])
{
    const unsigned long s = (unsigned long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, 32, "%luh%02lum", s / 3600, s / 60 % 60);
    else
        snprintf(text, 32, "%lum%02lus", s / 60, s % 60);
}

/* How many characters fit on a line. A longer line would wrap, and scroll with every update. */
static size_t room(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1u : 79;
}

/* Shows the first of the lines that fits. All say the same, the first one in the most words; the last is cut if even it
 * does not fit. */
static void show(tsr_terminal *t, char lines[][192], size_t n)
{
    size_t i = 0;
    if (!t->tty) {
        tsr_tell("%s\n", lines[0]);
        return;
    }
    while (i + 1 < n && strlen(lines[i]) > room())
        i++;
    tsr_tell("\r\033[K%.*s", (int)room(), lines[i]);
    t->line_open = true;
    fflush(stderr);
}

/* Of a job that counts nothing but items. */
static void show_count(tsr_terminal *t, const tsr_progress *p)
{
    char left[32], lines[2][192];
    time_text(p->seconds / (double)p->items_done * (double)(p->items_total - p->items_done), left);
    snprintf(lines[0], sizeof lines[0], "%s %llu of %llu, %s left", p->items, U64(p->items_done), U64(p->items_total),
             left);
    snprintf(lines[1], sizeof lines[1], "%llu/%llu", U64(p->items_done), U64(p->items_total));
    show(t, lines, 2);
}

void tsr_terminal_progress(const tsr_progress *p, void *terminal)
{
    tsr_terminal *const t = terminal;
    if (t->quiet)
        return;
    if (t->last_phase != p->phase) {
        t->last_phase = p->phase;
        t->last_seconds = 0;
    }
    if (!t->tty && p->seconds - t->last_seconds < kPlainLineSeconds)
        return;
    t->last_seconds = p->seconds;
    if (p->phase == NULL) {
        show_count(t, p);
        return;
    }
    char done[32], total[32], rate[32], left[32], count[64] = "", lines[4][192];
    const char *const verb = strcmp(p->phase, "converting") == 0 ? t->verb : p->phase;
    const double speed = p->seconds > 0 ? (double)p->bytes_done / p->seconds : 0;
    const double percent = p->bytes_total == 0 ? 100.0 : 100.0 * (double)p->bytes_done / (double)p->bytes_total;
    time_text(speed > 0 ? (double)(p->bytes_total - p->bytes_done) / speed : 0, left);
    tsr_bytes_text((double)p->bytes_done, done);
    tsr_bytes_text((double)p->bytes_total, total);
    tsr_bytes_text(speed, rate);
    if (p->items_total > 0)
        snprintf(count, sizeof count, "%llu/%llu %s, ", (unsigned long long)p->items_done,
                 (unsigned long long)p->items_total, p->items);
    snprintf(lines[0], sizeof lines[0], "%s: %s%s of %s (%.0f %%), %s/s, %s left", verb, count, done, total, percent,
             rate, left);
    snprintf(lines[1], sizeof lines[1], "%s: %s of %s (%.0f %%), %s left", verb, done, total, percent, left);
    snprintf(lines[2], sizeof lines[2], "%s: %.0f %%, %s left", verb, percent, left);
    snprintf(lines[3], sizeof lines[3], "%.0f %%", percent);
    show(t, lines, 4);
}

tsr_run_options tsr_terminal_run_options(tsr_terminal *terminal, uint64_t threads, uint64_t memory)
{
    return (tsr_run_options){.threads = threads,
                             .memory = memory,
                             .cancel = tsr_terminal_catch_interrupt(),
                             .progress = tsr_terminal_progress,
                             .progress_data = terminal};
}

void tsr_terminal_close(tsr_terminal *t)
{
    if (t->line_open)
        tsr_tell("\r\033[K");
    t->line_open = false;
}

static atomic_bool interrupted;

static void on_signal(int number)
{
    atomic_store(&interrupted, true);
    signal(number, SIG_DFL);
}

const atomic_bool *tsr_terminal_catch_interrupt(void)
{
    signal(SIGINT, on_signal);
    signal(SIGTERM, on_signal);
    return &interrupted;
}
