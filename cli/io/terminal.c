/* Shows progress on stderr, writes it for other programs, and catches signals. */
#include "cli/io/terminal.h"

#include "cli/io/output.h"
#include "common/file.h"
#include "formats/json/json_write.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const double kPlainLineSeconds = 10, kLineSeconds = 1;

tsr_status tsr_terminal_open(tsr_terminal *t, bool quiet, const tsr_progress_options *progress,
                             const tsr_batch_context *batch, tsr_err *err)
{
    *t = (tsr_terminal){.quiet = quiet || progress->jsonl != 0,
                        .tty = isatty(STDERR_FILENO) != 0,
                        .verb = "converting",
                        .jsonl = progress->jsonl != 0,
                        .path = progress->file,
                        .fd = -1,
                        .began = tsr_now()};
    if (batch != NULL) {
        t->job = batch->job;
        t->jsonl = batch->jsonl;
        t->quiet = t->quiet || t->jsonl;
        t->path = "the lines of progress";
        t->fd = batch->progress_fd < 0 ? -1 : fcntl(batch->progress_fd, F_DUPFD_CLOEXEC, 0);
        return TSR_OK;
    }
    if (t->path == NULL)
        return TSR_OK;
    t->fd = tsr_open(t->path, O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY | O_NONBLOCK);
    if (t->fd >= 0)
        return TSR_OK;
    return errno == ENXIO ? tsr_fail(err, TSR_E_IO, "--progress-file %s: a pipe without a reader", t->path)
                          : tsr_fail_errno(err, "--progress-file %s: cannot open", t->path);
}

static void time_text(double seconds, char text[32])
{
    const unsigned long s = (unsigned long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, 32, "%luh%02lum", s / 3600, s / 60 % 60);
    else
        snprintf(text, 32, "%lum%02lus", s / 60, s % 60);
}

/* Returns the characters that fit on a line. A longer line would wrap, and scroll at every update. */
static size_t room(void)
{
    const unsigned columns = tsr_terminal_columns(STDERR_FILENO);
    return columns > 1 ? columns - 1 : 79;
}

enum { LEAST_CELLS = 5, MOST_CELLS = 20, BAR_BYTES = 3 * MOST_CELLS + sizeof "  []" };

/* Writes "  [####....]" with as many cells as fit in `columns`; nothing if few do. */
static void draw_bar(double share, size_t columns, char text[BAR_BYTES])
{
    const bool utf8 = tsr_is_utf8_locale();
    const size_t around = strlen("  []");
    char *p = text;
    *p = '\0';
    if (columns < around + LEAST_CELLS)
        return;
    const size_t cells = columns - around < MOST_CELLS ? columns - around : MOST_CELLS;
    const size_t full = share > 0 ? (size_t)(share * (double)cells) : 0; /* NaN: there are no items */
    p = stpcpy(p, "  [");
    for (size_t i = 0; i < cells; i++)
        p = stpcpy(p, i < full ? (utf8 ? "█" : "#") : utf8 ? "░" : ".");
    stpcpy(p, "]");
}

/* Shows the first of the lines that fits, and a bar for the finished share. The lines have the same content, the
 * longest first; the last is cut if it does not fit. */
static void show(tsr_terminal *t, char lines[][192], size_t n, double share)
{
    size_t i = 0;
    char bar[BAR_BYTES];
    const char *const kind = t->kind == NULL ? "" : t->kind, *const colon = t->kind == NULL ? "" : ": ";
    const size_t before = strlen(kind) + strlen(colon), wide = room() > before ? room() - before : 0;
    if (!t->tty) {
        tsr_print_stderr("%s%s%s\n", kind, colon, lines[0]);
        return;
    }
    while (i + 1 < n && strlen(lines[i]) > wide)
        i++;
    draw_bar(share, wide > strlen(lines[i]) ? wide - strlen(lines[i]) : 0, bar);
    tsr_print_stderr("\r\033[K%s%s%.*s%s", kind, colon, (int)wide, lines[i], bar);
    t->line_open = true;
    fflush(stderr);
}

/* Shows the progress of a job that counts items only. */
static void show_count(tsr_terminal *t, const tsr_progress *p)
{
    char left[32], lines[2][192];
    time_text(p->seconds / (double)p->items_done * (double)(p->items_total - p->items_done), left);
    snprintf(lines[0], sizeof lines[0], "%s %llu of %llu, %s left", p->items, U64(p->items_done), U64(p->items_total),
             left);
    snprintf(lines[1], sizeof lines[1], "%llu/%llu", U64(p->items_done), U64(p->items_total));
    show(t, lines, 2, (double)p->items_done / (double)p->items_total);
}

/* ---- JSON lines ---- */

static void put_line(tsr_terminal *t, const tsr_text *line)
{
    if (t->jsonl)
        tsr_print_stderr("%s\n", line->data);
    if (t->fd < 0)
        return;
    tsr_text ended = {0};
    tsr_text_printf(&ended, "%s\n", line->data);
    /* Written in one call: a pipe accepts a line of this size completely or not at all. */
    const ssize_t n = ended.failed ? 0 : write(t->fd, ended.data, ended.size);
    if (n != (ssize_t)ended.size && !(n < 0 && (errno == EAGAIN || errno == EINTR))) {
        tsr_print_stderr("tessera: %s: cannot write; no more progress is reported there\n", t->path);
        close(t->fd);
        t->fd = -1;
    }
    tsr_text_free(&ended);
}

/* Returns the bytes a second that were sent in this phase. */
static double sending_rate(const tsr_progress *p)
{
    return p->seconds > 0 ? (double)p->bytes_sent / p->seconds : 0;
}

/* Writes a line of JSON. Values that are not counted are left out, and unknown values are null. */
static void write_line(tsr_terminal *t, const char *phase, const tsr_progress *p)
{
    tsr_text line = {0};
    tsr_json_begin_object(&line, true);
    tsr_json_member_string(&line, "schema", "tessera-progress/1");
    if (t->job != NULL)
        tsr_json_member_string(&line, "job", t->job);
    tsr_json_member_string(&line, "phase", phase);
    if (t->kind != NULL)
        tsr_json_member_string(&line, "kind", t->kind);
    tsr_json_member_number(&line, "seconds", p->seconds);
    const bool bytes = p->bytes_total > 0;
    const double done = (double)(bytes ? p->bytes_done : p->items_done),
                 left = (double)(bytes ? p->bytes_total - p->bytes_done : p->items_total - p->items_done);
    if (bytes) {
        tsr_json_member_u64(&line, "bytes_done", p->bytes_done);
        tsr_json_member_u64(&line, "bytes_total", p->bytes_total);
        tsr_json_member_number(&line, "bytes_per_second", p->seconds > 0 ? done / p->seconds : NAN);
    }
    if (p->sends) {
        tsr_json_member_u64(&line, "bytes_sent", p->bytes_sent);
        tsr_json_member_number(&line, "bytes_sent_per_second", sending_rate(p));
    }
    if (p->items_total > 0) {
        tsr_json_member_string(&line, "items", p->items);
        tsr_json_member_u64(&line, "items_done", p->items_done);
        tsr_json_member_u64(&line, "items_total", p->items_total);
    }
    if (bytes || p->items_total > 0)
        tsr_json_member_number(&line, "seconds_left", done > 0 ? p->seconds * left / done : NAN);
    tsr_json_end_object(&line);
    if (!line.failed)
        put_line(t, &line);
    tsr_text_free(&line);
}

static void write_progress(tsr_terminal *t, const tsr_progress *p)
{
    const char *const phase = p->phase == NULL ? "verifying" : strcmp(p->phase, "converting") == 0 ? t->verb : p->phase;
    const bool other = t->line_phase != phase,
               whole = p->bytes_total > 0 ? p->bytes_done == p->bytes_total : p->items_done == p->items_total;
    if ((!t->jsonl && t->fd < 0) || (!other && !whole && tsr_now() - t->last_line < kLineSeconds))
        return;
    t->line_phase = phase;
    t->last_line = tsr_now();
    write_line(t, phase, p);
}

void tsr_terminal_begin_kind(tsr_terminal *t, const char *kind)
{
    char lines[1][192] = {"begun"};
    t->kind = kind;
    t->line_phase = t->last_phase = NULL;
    t->last_seconds = 0;
    write_progress(t, &(tsr_progress){.phase = "opening"});
    if (!t->quiet && t->tty)
        show(t, lines, 1, 0);
}

/* Shows progress: a tsr_run_options.progress callback; `terminal` is a tsr_terminal. */
static void show_progress(const tsr_progress *p, void *terminal)
{
    tsr_terminal *const t = terminal;
    write_progress(t, p);
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
    char sent[96] = "", all_sent[32], sent_rate[32];
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
    if (p->sends)
        snprintf(sent, sizeof sent, ", %s sent, %s/s", tsr_bytes_text((double)p->bytes_sent, all_sent),
                 tsr_bytes_text(sending_rate(p), sent_rate));
    snprintf(lines[0], sizeof lines[0], "%s: %s%s of %s (%.0f %%), %s/s, %s left%s", verb, count, done, total, percent,
             rate, left, sent);
    snprintf(lines[1], sizeof lines[1], "%s: %s of %s (%.0f %%), %s left", verb, done, total, percent, left);
    snprintf(lines[2], sizeof lines[2], "%s: %.0f %%, %s left", verb, percent, left);
    snprintf(lines[3], sizeof lines[3], "%.0f %%", percent);
    show(t, lines, 4, percent / 100);
}

tsr_run_options tsr_terminal_run_options(tsr_terminal *terminal, uint64_t threads, uint64_t memory)
{
    return (tsr_run_options){.threads = threads,
                             .memory = memory,
                             .cancel = tsr_terminal_catch_interrupt(),
                             .progress = show_progress,
                             .progress_data = terminal};
}

void tsr_terminal_close(tsr_terminal *t)
{
    if (t->line_open)
        tsr_print_stderr("\r\033[K");
    t->line_open = false;
    t->kind = NULL;
    if (t->jsonl || t->fd >= 0)
        write_line(t, "ended", &(tsr_progress){.seconds = tsr_now() - t->began});
    if (t->fd >= 0)
        close(t->fd);
    t->fd = -1;
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
