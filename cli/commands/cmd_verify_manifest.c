/* Implements `tessera verify manifest`: compares an output with its digests. */
#include "cli/commands/commands.h"
#include "cli/io/globs.h"
#include "cli/io/output.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_write.h"
#include "verify/manifest/check_source.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { LISTED = 20 };

static const char kHelp[] =
    "tessera verify --manifest DST [--manifest FILE] [--source SRC] [options]\n"
    "tessera verify manifest DST [--manifest FILE] [options]       the same\n\n"
    "Compares every byte of an output with the digests in its tessera.manifest.json, or in a copy of that\n"
    "file. Names each file, tensor and byte range that differs, missing files, and files that do not\n"
    "belong to the output. It needs no source, and reads past the page cache where it can.\n\n"
    "With --source, it compares SRC instead: it names each file and tensor that is not what the output\n"
    "was made from, config.json and headers included.\n\n"
    "Exit code 0: all bytes are as written, or as read. 1: something differs.\n\n"
    "Examples:\n"
    "  tessera verify --manifest DeepSeek-V3-FP8\n"
    "  tessera verify --manifest copied --manifest kept/tessera.manifest.json     by a copy that lay elsewhere\n"
    "  tessera verify --manifest DeepSeek-V3-FP8 --source DeepSeek-V3-BF16        is this what it was made of?\n\n"
    "Options:\n";

typedef struct verification {
    const char *dst, *manifest, *src;
    char path[PATH_MAX]; /* path of the manifest */
    tsr_manifest parsed;
    tsr_manifest_sources reads;
    tsr_checkpoint *source;
    tsr_manifest_check check;
} verification;

static tsr_status open_manifest(tsr_command_context *c, tsr_err *err)
{
    verification *const v = c->job;
    struct stat st;
    const char *const named = v->manifest == NULL ? v->dst : v->manifest;
    if (stat(v->dst, &st) == 0 && !S_ISDIR(st.st_mode))
        return tsr_fail(err, TSR_E_USAGE, "%s: give the directory that contains %s", v->dst, TSR_MANIFEST_NAME);
    if (stat(named, &st) == 0 && S_ISDIR(st.st_mode))
        snprintf(v->path, sizeof v->path, "%s/" TSR_MANIFEST_NAME, named);
    else
        snprintf(v->path, sizeof v->path, "%s", named);
    TSR_TRY(tsr_manifest_read(&v->parsed, v->path, err));
    if (v->src == NULL)
        return TSR_OK;
    TSR_TRY(tsr_manifest_sources_read(&v->reads, v->path, err));
    TSR_TRY(tsr_checkpoint_open(&v->source, v->src, c->common.ignore.items, c->common.ignore.count, err));
    tsr_warn_unfit_files(c, v->source);
    return TSR_OK;
}

static tsr_status run(tsr_command_context *c, tsr_terminal *terminal, tsr_err *err)
{
    verification *const v = c->job;
    const tsr_run_options options = tsr_terminal_run_options(terminal, c->common.threads, UINT64_MAX);
    return v->src != NULL ? tsr_source_check_run(&v->check, &v->reads, v->source, &options, err)
                          : tsr_manifest_check_run(&v->check, &v->parsed, v->dst, &options, err);
}

static int exit_code(const tsr_command_context *c)
{
    const verification *const v = c->job;
    return v->check.count > 0;
}

static tsr_status print(tsr_command_context *context, tsr_err *err)
{
    const verification *const v = context->job;
    (void)err;
    const tsr_manifest_check *const c = &v->check;
    char read[32], rate[32];
    for (size_t i = 0; i < c->count && i < LISTED; i++) {
        tsr_text line = {0};
        tsr_manifest_tell(&line, &c->findings[i]);
        tsr_print_word(TSR_INK_BAD, "FAIL", 6);
        tsr_print("%s %s\n", c->findings[i].file, line.failed ? "?" : line.data);
        tsr_text_free(&line);
    }
    if (c->count > LISTED)
        tsr_print("      ... and %zu more (--json FILE lists all)\n", c->count - LISTED);
    tsr_print("%llu file%s, %llu digest%s, %s read in %.1f s (%s/s), %u thread%s\n", U64(c->files),
              tsr_plural(c->files), U64(c->pieces), tsr_plural(c->pieces), tsr_bytes_text((double)c->bytes_read, read),
              c->seconds, tsr_bytes_text((double)c->bytes_read / fmax(c->seconds, 1e-9), rate), c->threads,
              tsr_plural(c->threads));
    if (c->passed_over > 0)
        tsr_print("%llu digests are of other sources (--against, --scales-from) and were skipped\n",
                  U64(c->passed_over));
    if (v->src != NULL)
        tsr_print(c->count == 0
                      ? "%s is the source of %s: everything that was read of it is unchanged, tensors, headers and "
                        "config.json\n"
                      : "%s is not the source of %s: it differs\n",
                  v->src, v->dst);
    else if (c->count == 0)
        tsr_print("%s is as Tessera %s wrote it, by: %s\n", v->dst, v->parsed.version, v->parsed.command);
    else
        tsr_print("next: if .tessera is still in it, repeat the command that made it; it writes again the files that "
                  "differ: %s\n",
                  v->parsed.command);
    return TSR_OK;
}

static void write_finding(tsr_text *t, const tsr_manifest_finding *f)
{
    tsr_text what = {0};
    tsr_manifest_tell(&what, f);
    tsr_json_begin_object(t, true);
    tsr_json_member_string(t, "check", tsr_manifest_fault_word(f->fault));
    tsr_json_member_string(t, "where", f->tensor == NULL ? f->file : f->tensor);
    tsr_json_member_string(t, "what", what.failed ? "?" : what.data);
    tsr_json_member_string(t, "file", f->file);
    if (f->fault == TSR_MANIFEST_BYTES) {
        tsr_json_member_u64(t, "offset", f->offset);
        tsr_json_member_u64(t, "bytes", f->bytes);
    }
    tsr_json_end_object(t);
    tsr_text_free(&what);
}

static void write_json(const tsr_command_context *context, tsr_text *t)
{
    const verification *const v = context->job;
    const tsr_manifest_check *const c = &v->check;
    tsr_json_member_string(t, "checkpoint", v->dst);
    tsr_json_member_string(t, "manifest", v->path);
    tsr_json_member_string(t, "made_by", v->parsed.version);
    tsr_json_member_string(t, "command", v->parsed.command);
    if (v->src != NULL)
        tsr_json_member_string(t, "source", v->src);
    tsr_json_member_bool(t, "passed", c->count == 0);
    tsr_json_member_number(t, "seconds", c->seconds);
    tsr_json_member_u64(t, "threads", c->threads);
    tsr_json_member_u64(t, "bytes_read", c->bytes_read);
    tsr_json_member_object(t, "judged", true);
    tsr_json_member_u64(t, "files", c->files);
    tsr_json_member_u64(t, "digests", c->pieces);
    if (v->src != NULL)
        tsr_json_member_u64(t, "passed_over", c->passed_over);
    tsr_json_end_object(t);
    tsr_json_member_array(t, "findings", false);
    for (size_t i = 0; i < c->count; i++)
        write_finding(t, &c->findings[i]);
    tsr_json_end_array(t);
}

static void close_job(tsr_command_context *c)
{
    verification *const v = c->job;
    tsr_manifest_check_free(&v->check);
    tsr_manifest_sources_free(&v->reads);
    tsr_checkpoint_close(v->source);
    tsr_manifest_free(&v->parsed);
}

static void add_options(tsr_command_context *c, tsr_option *options)
{
    verification *const v = c->job;
    const tsr_option own[] = {
        {"--manifest", TSR_OPT_TEXT, &v->manifest, "FILE", "the manifest, or an output that contains one (DST)"},
        {"--source", TSR_OPT_TEXT, &v->src, "SRC", "check SRC against the digests of what was read, instead of DST"},
        {0},
    };
    tsr_options_append(options, own);
}

static tsr_status check(tsr_command_context *c, tsr_err *err)
{
    verification *const v = c->job;
    v->dst = c->words[0];
    return v->dst == NULL ? tsr_fail(err, TSR_E_USAGE, "no output given: tessera verify --manifest DST") : TSR_OK;
}

static void list_paths(const tsr_command_context *c, tsr_io_paths *paths)
{
    const verification *const v = c->job;
    paths->sources[0] = v->dst;
    paths->sources[1] = v->manifest;
    paths->sources[2] = v->src;
}

const tsr_command tsr_command_verify_manifest = {
    .name = "verify manifest",
    .alias = "--manifest",
    .schema = "tessera-verify-manifest/1",
    TSR_COMMAND(1, TSR_TAKES_IGNORE_FILE | TSR_TAKES_THREADS | TSR_TAKES_PROGRESS, verification),
    .open = open_manifest,
    .print = print,
    .write_json = write_json,
    .exit_code = exit_code,
};
