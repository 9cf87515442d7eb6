/* Begins and ends library calls, and parses option words. */
#include "lib/api.h"

#include "common/text.h"

#include <stdio.h>
#include <string.h>

/* The public statuses equal the internal ones. */
_Static_assert((int)TESSERA_E_USAGE == (int)TSR_E_USAGE && (int)TESSERA_E_FORMAT == (int)TSR_E_FORMAT &&
                   (int)TESSERA_E_SHAPE == (int)TSR_E_SHAPE && (int)TESSERA_E_UNSUPPORTED == (int)TSR_E_UNSUPPORTED &&
                   (int)TESSERA_E_VALUE == (int)TSR_E_VALUE && (int)TESSERA_E_MISMATCH == (int)TSR_E_MISMATCH &&
                   (int)TESSERA_E_EXISTS == (int)TSR_E_EXISTS && (int)TESSERA_E_IO == (int)TSR_E_IO &&
                   (int)TESSERA_E_NOSPACE == (int)TSR_E_NOSPACE && (int)TESSERA_E_NOMEM == (int)TSR_E_NOMEM &&
                   (int)TESSERA_E_CANCELLED == (int)TSR_E_CANCELLED && (int)TESSERA_E_DEVICE == (int)TSR_E_DEVICE &&
                   (int)TESSERA_E_NOT_APPLICABLE == (int)TSR_E_NOT_APPLICABLE &&
                   (int)TESSERA_E_NOTHING == (int)TSR_E_NOTHING,
               "the statuses of tessera.h are those of common/status.h");

const char *tessera_version(void)
{
    return TSR_VERSION;
}

const char *tessera_status_name(tessera_status status)
{
    static const char *const kNames[] = {
        "ok", "usage",    "format",    "shape",     "unsupported", "value",          "mismatch",     "exists",
        "io", "no space", "no memory", "cancelled", "device",      "not applicable", "nothing to do"};
    return (size_t)status < sizeof kNames / sizeof *kNames ? kNames[status] : "unknown";
}

void tsr_call_begin(tsr_call *call)
{
    call->err.msg[0] = '\0';
    (void)fegetenv(&call->mode);
    tsr_set_float_mode();
}

/* Copies a message as the command prints it. Control characters and line ends are escaped, because names are untrusted.
 * A message that is too long loses its middle, because the reason is at the end. */
static void spell_out(char *to, size_t size, const char *message)
{
    static const char kLeftOut[] = " ... ";
    tsr_text shown = {0};
    tsr_text_visible(&shown, message, strlen(message));
    if (shown.failed) { /* no memory for it: nothing but plain characters */
        snprintf(to, size, "%s", message);
        for (char *c = to; *c != '\0'; c++)
            *c = *c < ' ' || *c > '~' ? '?' : *c;
    } else if (shown.size < size) {
        snprintf(to, size, "%s", shown.size == 0 ? "" : shown.data);
    } else {
        size_t head = size / 2 - sizeof kLeftOut, tail = shown.size - size / 2;
        while (head > 0 && ((unsigned char)shown.data[head] & 0xC0) == 0x80)
            head--;
        while (((unsigned char)shown.data[tail] & 0xC0) == 0x80)
            tail++;
        snprintf(to, size, "%.*s%s%s", (int)head, shown.data, kLeftOut, shown.data + tail);
    }
    tsr_text_free(&shown);
}

tessera_status tsr_call_end(tsr_call *call, tsr_status status, tessera_error *error)
{
    (void)fesetenv(&call->mode);
    if (status != TSR_OK && error != NULL) {
        error->status = (tessera_status)status;
        spell_out(error->message, sizeof error->message, call->err.msg);
    }
    return (tessera_status)status;
}

tsr_status tsr_words_parse(const char *const *words, const tsr_option *options, uint64_t *given, tsr_err *err)
{
    const char *none[1] = {NULL};
    size_t n_none;
    int n = 0;
    *given = 0;
    while (words != NULL && words[n] != NULL)
        n++;
    /* The parser has the signature of main() arguments. It does not write to them. */
    return n == 0 ? TSR_OK : tsr_options_parse(options, n, (char **)words, none, 0, &n_none, given, err);
}

static void tell(const tsr_progress *p, void *data)
{
    tsr_api_watch *const watch = data;
    const tessera_progress progress = {.phase = p->phase == NULL ? "" : p->phase,
                                       .bytes_done = p->bytes_done,
                                       .bytes_total = p->bytes_total,
                                       .items_done = p->items_done,
                                       .items_total = p->items_total,
                                       .items = p->items == NULL ? "" : p->items,
                                       .seconds = p->seconds};
    if (watch->tell(&progress, watch->data) != 0)
        atomic_store(&watch->cancel, true);
}

tsr_run_options tsr_watch_options(tsr_api_watch *watch, uint64_t threads, uint64_t memory)
{
    atomic_init(&watch->cancel, false);
    return (tsr_run_options){.threads = threads,
                             .memory = memory,
                             .cancel = &watch->cancel,
                             .progress = watch->tell == NULL ? NULL : tell,
                             .progress_data = watch};
}
