/* Runs the kinds of verify, and prints their findings. */
#include "cli/show/verify_all.h"

#include "cli/io/output.h"
#include "cli/io/results.h"
#include "formats/json/json_write.h"
#include "report/write/cases.h"

#include <stdio.h>
#include <string.h>

enum { LISTED = 20 /* most cases, and lines of each */ };

static const char *const kStatuses[] = {
    [TSR_KIND_PASSED] = "passed",
    [TSR_KIND_FAILED] = "failed",
    [TSR_KIND_ERROR] = "error",
    [TSR_KIND_NOT_APPLICABLE] = "not applicable",
};

/* ---- running ---- */

/* Decides whether a kind runs. */
static tsr_status decide(tsr_kind_run *run)
{
    const tsr_command *const command = run->context.command;
    if (run->skipped)
        return tsr_fail(&run->why, TSR_E_NOT_APPLICABLE, "left out: --skip %s", run->name);
    return command->applies == NULL ? TSR_OK : command->applies(&run->context, &run->why);
}

static tsr_status carry_out(tsr_kind_run *run, tsr_terminal *terminal)
{
    tsr_command_context *const c = &run->context;
    TSR_TRY(c->command->open(c, &run->why));
    TSR_TRY(c->command->run(c, terminal, &run->why));
    c->command->summarize(c, &run->judged);
    tsr_result_json(&run->json, c);
    TSR_TRY(tsr_text_status(&run->judged, &run->why));
    return tsr_text_status(&run->json, &run->why);
}

/* Removes DST from the beginning of a message, because it is the same in all rows. */
static void leave_out_path(tsr_err *why, const char *dst)
{
    const size_t n = strlen(dst);
    if (strncmp(why->msg, dst, n) != 0 || (why->msg[n] != ':' && why->msg[n] != '/'))
        return;
    const char *const rest = why->msg + n + (why->msg[n] == ':' ? 2 : 1);
    memmove(why->msg, rest, strlen(rest) + 1);
}

static void judge(const tsr_verify_all *all, tsr_kind_run *run)
{
    if (run->ended == TSR_E_NOT_APPLICABLE) {
        run->status = TSR_KIND_NOT_APPLICABLE;
        leave_out_path(&run->why, all->dst);
    } else if (run->ended != TSR_OK) {
        run->status = TSR_KIND_ERROR;
        tsr_text_free(&run->json);
        tsr_error_json(&run->json, run->context.command, run->ended, &run->why);
    } else {
        run->status = run->context.command->exit_code(&run->context) == 0 ? TSR_KIND_PASSED : TSR_KIND_FAILED;
    }
    while (run->json.size > 0 && run->json.data[run->json.size - 1] == '\n')
        run->json.size--;
}

/* Records how a run ended, and closes it. The outcome is kept. */
static void finish(const tsr_verify_all *all, tsr_kind_run *run, tsr_status ended, double since)
{
    run->ended = ended;
    run->seconds += tsr_now() - since;
    judge(all, run);
    tsr_command_close(&run->context);
    run->open = false;
}

/* Rejects a run that has judged nothing, because it must not pass. */
static tsr_status require_judged(const tsr_verify_all *all, tsr_err *err)
{
    for (size_t i = 0; i < all->count; i++) {
        if (all->runs[i].status != TSR_KIND_NOT_APPLICABLE)
            return TSR_OK;
    }
    return tsr_fail(err, TSR_E_NOT_APPLICABLE, "%s: nothing was judged: no other check applies if %s is skipped",
                    all->dst, all->runs[0].name);
}

tsr_status tsr_verify_all_run(tsr_verify_all *all, tsr_terminal *terminal, tsr_err *err)
{
    const double began = tsr_now();
    bool stopped = false;
    /* All kinds are checked before the first one runs, so that invalid options are rejected immediately. */
    for (size_t i = 0; i < all->count; i++) {
        tsr_kind_run *const run = &all->runs[i];
        const double since = tsr_now();
        const tsr_status status = decide(run);
        if (status == TSR_E_USAGE) {
            *err = run->why;
            return status;
        }
        if (status != TSR_OK)
            finish(all, run, status, since);
        else
            run->seconds = tsr_now() - since;
    }
    for (size_t i = 0; i < all->count; i++) {
        tsr_kind_run *const run = &all->runs[i];
        const double since = tsr_now();
        if (!run->open)
            continue;
        tsr_terminal_begin_kind(terminal, run->name);
        finish(all, run,
               stopped ? tsr_fail(&run->why, TSR_E_CANCELLED, "not run: the command was stopped before")
                       : carry_out(run, terminal),
               since);
        if (i == 0 && run->ended == TSR_E_USAGE) { /* nothing has been judged yet */
            *err = run->why;
            return TSR_E_USAGE;
        }
        stopped = stopped || run->ended == TSR_E_CANCELLED;
    }
    all->seconds = tsr_now() - began;
    return require_judged(all, err);
}

int tsr_kind_exit_code(const tsr_kind_run *run)
{
    return run->status == TSR_KIND_ERROR ? tsr_exit_code(run->ended) : run->status == TSR_KIND_FAILED;
}

const tsr_kind_run *tsr_verify_all_gravest(const tsr_verify_all *all)
{
    const tsr_kind_run *gravest = &all->runs[0];
    for (size_t i = 1; i < all->count; i++) {
        const int known = tsr_kind_exit_code(gravest), code = tsr_kind_exit_code(&all->runs[i]);
        if (code != known && tsr_graver_code(code, known) == code)
            gravest = &all->runs[i];
    }
    return gravest;
}

void tsr_verify_all_free(tsr_verify_all *all)
{
    for (size_t i = 0; i < all->count; i++) {
        if (all->runs[i].open)
            tsr_command_close(&all->runs[i].context);
        tsr_text_free(&all->runs[i].judged);
        tsr_text_free(&all->runs[i].json);
    }
}

/* ---- the result ---- */

static void kind_json(tsr_text *t, const tsr_kind_run *run)
{
    tsr_json_member_object(t, run->name, false);
    tsr_json_member_string(t, "status", kStatuses[run->status]);
    if (run->status == TSR_KIND_NOT_APPLICABLE) {
        tsr_json_member_string(t, "reason", run->why.msg);
    } else {
        tsr_json_member_u64(t, "exit_code", (uint64_t)tsr_kind_exit_code(run));
        tsr_json_member_number(t, "seconds", run->seconds);
        tsr_json_member_string(t, "judged", run->judged.data);
        tsr_json_key(t, "result");
        tsr_json_raw(t, run->json.data == NULL ? "null" : run->json.data,
                     run->json.data == NULL ? strlen("null") : run->json.size);
    }
    tsr_json_end_object(t);
}

void tsr_verify_all_json(tsr_text *t, const tsr_verify_all *all)
{
    const int code = tsr_kind_exit_code(tsr_verify_all_gravest(all));
    tsr_json_member_string(t, "checkpoint", all->dst);
    tsr_json_member_string(t, "against", all->against);
    tsr_json_member_string(t, "device", all->device);
    tsr_json_member_bool(t, "passed", code == 0);
    tsr_json_member_u64(t, "exit_code", (uint64_t)code);
    tsr_json_member_number(t, "seconds", all->seconds);
    tsr_json_member_object(t, "kinds", false);
    for (size_t i = 0; i < all->count; i++) {
        kind_json(t, &all->runs[i]);
        t->failed = t->failed || all->runs[i].json.failed;
    }
    tsr_json_end_object(t);
}

/* ---- text ---- */

static void print_run(const tsr_kind_run *run)
{
    static const struct {
        tsr_ink ink;
        const char *word;
    } kWords[] = {
        [TSR_KIND_PASSED] = {TSR_INK_GOOD, "PASS"},
        [TSR_KIND_FAILED] = {TSR_INK_BAD, "FAIL"},
        [TSR_KIND_ERROR] = {TSR_INK_BAD, "ERROR"},
        [TSR_KIND_NOT_APPLICABLE] = {TSR_INK_NONE, "not applicable"},
    };
    char seconds[32] = "";
    const bool judged = run->status == TSR_KIND_PASSED || run->status == TSR_KIND_FAILED;
    if (run->status != TSR_KIND_NOT_APPLICABLE)
        snprintf(seconds, sizeof seconds, "%.2f", run->seconds);
    tsr_print("%-8s  ", run->name);
    tsr_print_word(kWords[run->status].ink, kWords[run->status].word, 14);
    tsr_print("  %8s  %s\n", seconds, judged ? run->judged.data : run->why.msg);
}

/* Prints the lines of a failure, like JUnit: tensor, block, values; then the limits. */
static void print_lines(const char *text)
{
    size_t n = 0;
    for (const char *end; *text != '\0'; text = end + (*end != '\0'), n++) {
        end = strchrnul(text, '\n');
        if (n < LISTED || *end == '\0' || end[1] == '\0')
            tsr_print("      %.*s\n", (int)(end - text), text);
        else if (n == LISTED)
            tsr_print("      ... and more (--json FILE lists all)\n");
    }
}

static tsr_status print_failures(const tsr_overview *overview, tsr_err *err)
{
    tsr_cases cases;
    size_t listed = 0;
    TSR_TRY(tsr_cases_make(&cases, overview, err));
    for (size_t i = 0; i < cases.count; i++) {
        const tsr_case *const c = &cases.items[i];
        if (c->outcome != TSR_OUTCOME_FAILED || c->error || ++listed > LISTED)
            continue;
        tsr_print_word(TSR_INK_BAD, "FAIL", 6);
        tsr_print("%s: %s: %s\n", c->class_name, c->name, c->message == NULL ? "" : c->message);
        print_lines(c->text == NULL ? "" : c->text);
    }
    if (listed > LISTED)
        tsr_print("... and %zu more of %s (--json FILE lists all)\n", listed - LISTED, overview->result->title);
    tsr_cases_free(&cases);
    return TSR_OK;
}

static void print_verdict(const tsr_verify_all *all)
{
    size_t judged = 0, failed = 0;
    for (size_t i = 0; i < all->count; i++) {
        judged += all->runs[i].status != TSR_KIND_NOT_APPLICABLE;
        failed += all->runs[i].status == TSR_KIND_FAILED || all->runs[i].status == TSR_KIND_ERROR;
    }
    tsr_print_word(failed > 0 ? TSR_INK_BAD : TSR_INK_GOOD, failed > 0 ? "FAIL" : "PASS", 6);
    if (failed > 0)
        tsr_print("%zu of the %zu checks that apply to %s failed; %.1f s\n", failed, judged, all->dst, all->seconds);
    else if (judged == 1)
        tsr_print("the only check that applies to %s passed; %.1f s\n", all->dst, all->seconds);
    else
        tsr_print("all %zu checks that apply to %s passed; %.1f s\n", judged, all->dst, all->seconds);
}

tsr_status tsr_verify_all_print(const tsr_verify_all *all, const tsr_report *report, tsr_err *err)
{
    tsr_print("%-8s  %-14s  %8s  %s\n", "kind", "verdict", "seconds", "what was judged");
    for (size_t i = 0; i < all->count; i++)
        print_run(&all->runs[i]);
    for (size_t i = 0; i < report->count; i++)
        TSR_TRY(print_failures(&report->overviews[i], err));
    print_verdict(all);
    return TSR_OK;
}
