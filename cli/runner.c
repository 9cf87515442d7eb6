/* Runs one command. */
#include "cli/runner.h"

#include "cli/io/mpi_session.h"
#include "cli/io/output.h"
#include "cli/io/results.h"

/* ---- before reading ---- */

tsr_status tsr_command_validate(tsr_command_context *c, int argc, char **argv, tsr_err *err)
{
    TSR_TRY(tsr_command_parse(c, argc, argv, err));
    return c->done ? TSR_OK : tsr_io_paths_check(&c->paths, &c->pending, err);
}

/* ---- running ---- */

/* Joins the processes that mpirun has started. A rank other than 0 writes no report and prints nothing. */
static tsr_status join_ranks(tsr_command_context *c, tsr_err *err)
{
    TSR_TRY(tsr_mpi_session_begin(&c->ranks, &c->common, err));
    if (tsr_ranks_mine(c->ranks) > 0)
        c->pending = (tsr_pending_reports){0};
    return TSR_OK;
}

/* Runs the opened command with a terminal that shows its progress. */
static tsr_status run_opened(tsr_command_context *c, tsr_err *err)
{
    tsr_terminal terminal;
    TSR_TRY(tsr_terminal_open(&terminal, c->common.quiet, &c->common.progress, c->batch, err));
    const tsr_status status = c->command->run(c, &terminal, err);
    tsr_terminal_close(&terminal);
    return status;
}

tsr_status tsr_command_write_result(tsr_command_context *c, tsr_err *err)
{
    const tsr_command *const command = c->command;
    if (command->print != NULL && c->prints)
        TSR_TRY(command->print(c, err));
    if (command->write_json != NULL && tsr_command_has_reports(c)) {
        tsr_text text = {0};
        tsr_result_json(&text, c);
        const tsr_status status = tsr_results_write(c, &text, err);
        tsr_text_free(&text);
        TSR_TRY(status);
    }
    return command->conclude == NULL ? TSR_OK : command->conclude(c, err);
}

tsr_status tsr_command_execute(tsr_command_context *c, tsr_err *err)
{
    if (c->confined && c->paths.unconfined == NULL)
        TSR_TRY(tsr_sandbox_enter(&c->paths, &c->made, err));
    if (c->common.mpi)
        TSR_TRY(join_ranks(c, err));
    if (c->command->open != NULL)
        TSR_TRY(c->command->open(c, err));
    TSR_TRY(run_opened(c, err));
    return tsr_ranks_mine(c->ranks) > 0 ? TSR_OK : tsr_command_write_result(c, err);
}

tsr_status tsr_command_run(tsr_command_context *c, int argc, char **argv, tsr_err *err)
{
    TSR_TRY(tsr_command_validate(c, argc, argv, err));
    return c->done ? TSR_OK : tsr_command_execute(c, err);
}

/* ---- the end ---- */

int tsr_command_end(tsr_command_context *c, tsr_status status, const tsr_err *err)
{
    const bool silent = tsr_ranks_mine(c->ranks) > 0;
    c->err = *err;
    c->status = tsr_ranks_end(c->ranks, status, &c->err);
    c->ranks = NULL;
    if (silent) /* mpirun ends all processes as soon as one fails, but rank 0 must first print the reason */
        return 0;
    if (c->status == TSR_OK)
        return c->done || c->command->exit_code == NULL ? 0 : c->command->exit_code(c);
    tsr_results_end(c);
    return tsr_exit_code(c->status);
}
