/* tessera verify manifest: an output held to its digests. */
#include "cli/commands.h"
#include "cli/globs.h"
#include "cli/output.h"
#include "cli/places.h"
#include "cli/results.h"
#include "cli/verify_kinds.h"
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
    "Holds every byte of an output to the digests in its tessera.manifest.json, or in another machine's copy of it:\n"
    "names the file, the tensor and the bytes that differ, files that are missing, and files that are not of the "
    "output.\n"
    "Reads at the speed of the disk, past the page cache where it can, and needs no source.\n"
    "With --source it is SRC that is held to it: names the file and the tensor that is not what the output was made "
    "of; config.json\nand headers included.\n"
    "Exit code 0: all as it was written, or read; 1: something is not.\n\n"
    "Examples:\n"
    "  tessera verify --manifest DeepSeek-V3-FP8\n"
    "  tessera verify --manifest copied --manifest kept/tessera.manifest.json     by a copy that lay elsewhere\n"
    "  tessera verify --manifest DeepSeek-V3-FP8 --source DeepSeek-V3-BF16        is this what it was made of?\n\n"
    "Options:\n";

typedef struct verification {
    const char *dst, *manifest, *src;
    tsr_list ignore;
    char path[PATH_MAX]; /* of the manifest */
    uint64_t threads;
    tsr_said said;
    tsr_said_reads reads;
    tsr_checkpoint *source;
    tsr_manifest_check check;
} verification;

static tsr_status open_manifest(void *job, tsr_err *err)
{
    verification *const v = job;
    struct stat st;
    const char *const named = v->manifest == NULL ? v->dst : v->manifest;
    if (stat(v->dst, &st) == 0 && !S_ISDIR(st.st_mode))
        return tsr_fail(err, TSR_E_USAGE, "%s: name the folder that %s stands in", v->dst, TSR_MANIFEST_NAME);
    if (stat(named, &st) == 0 && S_ISDIR(st.st_mode))
        snprintf(v->path, sizeof v->path, "%s/" TSR_MANIFEST_NAME, named);
    else
        snprintf(v->path, sizeof v->path, "%s", named);
    TSR_TRY(tsr_said_read(&v->said, v->path, err));
    if (v->src == NULL)
        return TSR_OK;
    TSR_TRY(tsr_said_reads_read(&v->reads, v->path, err));
    TSR_TRY(tsr_checkpoint_open(&v->source, v->src, v->ignore.items, v->ignore.count, err));
    tsr_tell_unfit_files(&v->ignore, v->source);
    return TSR_OK;
}

static tsr_status run(void *job, tsr_terminal *terminal, tsr_err *err)
{
    verification *const v = job;
    const tsr_run_options options = tsr_terminal_run_options(terminal, v->threads, UINT64_MAX);
    return v->src != NULL ? tsr_source_check_run(&v->check, &v->reads, v->source, &options, err)
                          : tsr_manifest_check_run(&v->check, &v->said, v->dst, &options, err);
}

static bool is_fine(const void *job)
{
    const verification *const v = job;
    return v->check.count == 0;
}

static void print_result(const void *job)
{
    const verification *const v = job;
    const tsr_manifest_check *const c = &v->check;
    char read[32], rate[32];
    for (size_t i = 0; i < c->count && i < LISTED; i++) {
        tsr_text line = {0};
        tsr_manifest_tell(&line, &c->findings[i]);
        tsr_print_word(TSR_BAD, "FAIL", 6);
        tsr_print("%s %s\n", c->findings[i].file, line.failed ? "?" : line.data);
        tsr_text_free(&line);
    }
    if (c->count > LISTED)
        tsr_print("      ... and %zu more (--json FILE lists all)\n", c->count - LISTED);
    tsr_print("%llu files, %llu digests, %s read in %.1f s (%s/s), %u threads\n", U64(c->files), U64(c->pieces),
              tsr_bytes_text((double)c->bytes_read, read), c->seconds,
              tsr_bytes_text((double)c->bytes_read / fmax(c->seconds, 1e-9), rate), c->threads);
    if (c->passed_over > 0)
        tsr_print("%llu digests take in other sources (--against, --scales-from), and were passed over\n",
                  U64(c->passed_over));
    if (v->src != NULL)
        tsr_print(c->count == 0
                      ? "%s is what %s was made of, in all that was read of it: tensors, headers and config.json\n"
                      : "%s is not what %s was made of\n",
                  v->src, v->dst);
    else if (c->count == 0)
        tsr_print("%s holds what Tessera %s wrote by: %s\n", v->dst, v->said.version, v->said.command);
    else
        tsr_print("next: the command that made it makes again what differs, where .tessera is still beside it: %s\n",
                  v->said.command);
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

static void write_json(tsr_text *t, const void *job)
{
    const verification *const v = job;
    const tsr_manifest_check *const c = &v->check;
    const char *const texts[][2] = {{"schema", "tessera-verify-manifest/1"},
                                    {"version", TSR_VERSION},
                                    {"checkpoint", v->dst},
                                    {"manifest", v->path},
                                    {"made_by", v->said.version},
                                    {"command", v->said.command}};
    tsr_json_begin_object(t, false);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        tsr_json_member_string(t, texts[i][0], texts[i][1]);
    if (v->src != NULL)
        tsr_json_member_string(t, "source", v->src);
    tsr_json_member_bool(t, "passed", c->count == 0);
    tsr_json_member_number(t, "seconds", c->seconds);
    tsr_json_member_u64(t, "threads", c->threads);
    tsr_json_member_u64(t, "bytes_read", c->bytes_read);
    tsr_json_key(t, "judged");
    tsr_json_begin_object(t, true);
    tsr_json_member_u64(t, "files", c->files);
    tsr_json_member_u64(t, "digests", c->pieces);
    if (v->src != NULL)
        tsr_json_member_u64(t, "passed_over", c->passed_over);
    tsr_json_end_object(t);
    tsr_json_key(t, "findings");
    tsr_json_begin_array(t, false);
    for (size_t i = 0; i < c->count; i++)
        write_finding(t, &c->findings[i]);
    tsr_json_end_array(t);
    tsr_json_end_object(t);
    tsr_text_append(t, "\n", 1);
}

static void close_manifest(void *job)
{
    verification *const v = job;
    tsr_manifest_check_free(&v->check);
    tsr_said_reads_free(&v->reads);
    tsr_checkpoint_close(v->source);
    tsr_said_free(&v->said);
}

static const tsr_verify_kind kKind = {.open = open_manifest,
                                      .run = run,
                                      .fine = is_fine,
                                      .print = print_result,
                                      .write_json = write_json,
                                      .close = close_manifest};

static tsr_status parse(int argc, char **argv, verification *v, tsr_check_options *last, tsr_err *err)
{
    tsr_option options[TSR_MAX_OPTIONS] = {
        {"--manifest", TSR_OPT_TEXT, &v->manifest, "FILE", "the manifest, or an output that has it (DST)"},
        {"--source", TSR_OPT_TEXT, &v->src, "SRC", "hold SRC to what was read of it then, and not DST to its digests"},
        {"--ignore-file", TSR_OPT_LIST, &v->ignore, "GLOB", "treat these files of SRC as absent; may be repeated"},
    };
    size_t n;
    last->threads = tsr_cpu_count();
    tsr_options_append_check(options, last);
    TSR_TRY(tsr_options_parse(options, argc, argv, &v->dst, 1, &n, NULL, err));
    if (last->help) {
        tsr_options_help(kHelp, options);
        return TSR_OK;
    }
    if (v->dst == NULL)
        return tsr_fail(err, TSR_E_USAGE, "which output? tessera verify --manifest DST");
    if (last->threads == 0)
        return tsr_fail(err, TSR_E_USAGE, "--threads: at least 1");
    v->threads = last->threads;
    const tsr_places places = {.sources = {v->dst, v->manifest, v->src},
                               .json = last->json,
                               .junit = last->junit,
                               .progress = last->progress.file};
    return tsr_places_check(&places, err);
}

int tsr_cmd_verify_manifest(int argc, char **argv)
{
    verification v = {.dst = NULL};
    tsr_check_options last = {.threads = 0};
    tsr_err err = {{0}};
    tsr_status status = parse(argc - 1, argv + 1, &v, &last, &err);
    if (status == TSR_OK && !last.help)
        status = tsr_verify_one(&kKind, &v, &last, &err);
    const bool fine = is_fine(&v);
    kKind.close(&v);
    return tsr_end("verify manifest", status, fine, &err);
}
