/* Detects the kind of a result by its schema, and calls its reader. */
#include "report/read/read.h"

#include "common/file.h"
#include "report/read/result_kinds.h"

#include <stdio.h>
#include <string.h>

static const tsr_check_text kWeightChecks[] = {
    {"names", "every tensor of the source exists under its name", "tensors are missing, extra or misnamed"},
    {"shapes", "every tensor has its shape", "tensors have another shape than in the source"},
    {"scales", "scales are positive normal numbers, of the kind that config.json states",
     "scales are out of range, or not of the kind that config.json states"},
    {"codes", "no value of codes is NaN or Inf, and no other value that is finite in the source",
     "values of codes are NaN or Inf, or other values that are finite in the source"},
    {"values", "errors of values are within the limits", "errors of values are beyond the limits"},
    {"blocks", "no block would have a much smaller error with another scale",
     "blocks would have a much smaller error with another scale"},
    {"config", "config.json agrees with the source and with the tensors",
     "config.json disagrees with the source or with the tensors"},
    {0},
};

static const struct {
    tsr_result_kind kind;
    tsr_value_fn *read;
} kKinds[] = {
    {{"tessera-quantization-report/1", "quantization report", "", false, false, NULL}, tsr_read_quantization_report},
    {{"tessera-quantize/1", "quantize", NULL, false, false, NULL}, tsr_read_run},
    {{"tessera-convert/1", "convert", NULL, false, false, NULL}, tsr_read_run},
    {{"tessera-fold/1", "fold", NULL, false, false, NULL}, tsr_read_run},
    {{"tessera-merge/1", "merge", NULL, false, false, NULL}, tsr_read_merge},
    {{"tessera-merge-report/1", "merge report", NULL, false, false, NULL}, tsr_read_merge_report},
    {{"tessera-calibrate/1", "calibrate", NULL, false, false, NULL}, tsr_read_calibrate},
    {{"tessera-finish/1", "finish", NULL, false, false, NULL}, tsr_read_run},
    {{"tessera-verify/1", "verify weights", "", false, false, kWeightChecks}, tsr_read_verify},
    {{"tessera-verify-manifest/1", "verify manifest", NULL, false, false, NULL}, tsr_read_verify_manifest},
    {{"tessera-verify-kernels/1", "verify", "quantization", true, false, NULL}, tsr_read_judgements},
    {{"tessera-verify-forward/1", "verify forward", "layer alone", true, true, NULL}, tsr_read_judgements},
    {{"tessera-diff/1", "diff", "", false, false, NULL}, tsr_read_diff},
    {{"tessera-compare-schemes/1", "compare-schemes", NULL, false, false, NULL}, tsr_read_compare_schemes},
    {{"tessera-plan-schemes/1", "plan-schemes", NULL, false, false, NULL}, tsr_read_plan_schemes},
    {{"tessera-sensitivities/1", "sensitivities", NULL, false, false, NULL}, tsr_read_sensitivities},
    {{"tessera-inspect/1", "inspect", NULL, true, false, NULL}, tsr_read_inspect},
    {{"tessera-inspect-tensor/1", "inspect, one tensor", NULL, false, false, NULL}, tsr_read_inspect_tensor},
    {{"tessera-batch/1", "batch", "", true, false, NULL}, tsr_read_batch},
    {{"tessera-report/1", "report", NULL, false, false, NULL}, NULL}, /* only a result that an error ended */
    {{"tessera-verify-all/1", "verify all", NULL, false, false, NULL},
     NULL}, /* only if an error ended it; otherwise report/read/parts.h reads it */
};

enum { N_KINDS = sizeof kKinds / sizeof *kKinds };

const tsr_result_kind *tsr_result_kind_of(const char *schema)
{
    size_t at = 0;
    while (at < N_KINDS && strcmp(kKinds[at].kind.schema, schema) != 0)
        at++;
    return at < N_KINDS ? &kKinds[at].kind : NULL;
}

/* Returns the error for a schema that is not read: another version of a known one, or no schema of a result. */
static tsr_status refuse_schema(const char *path, const char *schema, tsr_err *err)
{
    const size_t n = strcspn(schema, "/");
    for (size_t i = 0; i < N_KINDS; i++) {
        const char *const known = kKinds[i].kind.schema;
        if (kKinds[i].read != NULL && strncmp(known, schema, n) == 0 && known[n] == '/')
            return tsr_fail(err, TSR_E_UNSUPPORTED,
                            "%s: it is %.80s, but this is Tessera %s, which reads %s; use the version that wrote it",
                            path, schema, TSR_VERSION, known);
    }
    return tsr_fail(err, TSR_E_UNSUPPORTED,
                    "%s: '%.80s' is not a result of a command; give a file written by --json, or a "
                    "quantization_report.json",
                    path, schema);
}

static tsr_status find_kind(tsr_result *result, const char *text, size_t size, size_t *at, tsr_err *err)
{
    const char *const schema = tsr_json_find_string(text, size, "schema", &result->arena);
    TSR_TRY(tsr_arena_status(&result->arena, TSR_OK, err));
    if (schema == NULL) {
        tsr_json_reader whole = tsr_json_open(result->path, text, size);
        TSR_TRY(tsr_json_skip(&whole, NULL, err));
        TSR_TRY(tsr_json_finish(&whole, err));
        return tsr_fail(err, TSR_E_UNSUPPORTED,
                        "%s: JSON, but not a result of Tessera: it has no 'schema'; give a file written by --json, "
                        "or a quantization_report.json",
                        result->path);
    }
    for (*at = 0; *at < N_KINDS; (*at)++) {
        if (strcmp(kKinds[*at].kind.schema, schema) == 0)
            return TSR_OK;
    }
    return refuse_schema(result->path, schema, err);
}

/* Returns true if a command wrote an error instead of a result. plan-schemes has a number named `error`. The error is
 * before all lists and objects, so large results are not searched for it. */
static bool has_error(const tsr_reading *r)
{
    tsr_json_reader json = r->json;
    tsr_json_kind kind = TSR_JSON_NULL;
    tsr_json_text key;
    bool more = tsr_json_enter_object(&json, NULL) == TSR_OK;
    /* The reader of the kind refuses text that is not JSON. */
    while (more && tsr_json_next_member(&json, &key, &more, NULL) == TSR_OK && more &&
           tsr_json_peek(&json, &kind, NULL) == TSR_OK && kind != TSR_JSON_ARRAY) {
        if (kind == TSR_JSON_OBJECT)
            return tsr_json_is(key, "error");
        more = tsr_json_skip(&json, NULL, NULL) == TSR_OK;
    }
    return false;
}

static tsr_status read_whole(tsr_result *result, const char *text, size_t size, tsr_err *err)
{
    tsr_reading r = {.json = tsr_json_open(result->path, text, size), .result = result};
    size_t at;
    TSR_TRY(find_kind(result, text, size, &at, err));
    result->kind = &kKinds[at].kind;
    result->version = result->command = "";
    const bool failed = has_error(&r);
    if (!failed && kKinds[at].read == NULL)
        return refuse_schema(result->path, kKinds[at].kind.schema, err);
    TSR_TRY((failed ? tsr_read_failed : kKinds[at].read)(&r, result, err));
    TSR_TRY(tsr_json_finish(&r.json, err));
    const char *const check = tsr_fact_of(&result->facts, "check");
    snprintf(result->title, sizeof result->title, "%s%s%.32s", result->kind->title, check == NULL ? "" : " ",
             check == NULL ? "" : check);
    result->version = result->version == NULL ? "" : result->version;
    result->command = result->command == NULL ? "" : result->command;
    return TSR_OK;
}

tsr_status tsr_result_read_text(tsr_result *result, const char *path, const char *text, size_t size, tsr_err *err)
{
    *result = (tsr_result){.path = path};
    const tsr_status status = read_whole(result, text, size, err);
    if (status != TSR_OK)
        tsr_result_free(result);
    return status;
}

tsr_status tsr_result_read(tsr_result *result, const char *path, tsr_err *err)
{
    tsr_arena file = {0};
    const char *text;
    size_t size;
    *result = (tsr_result){.path = path};
    tsr_status status = tsr_read_file(path, TSR_MAX_RESULT_BYTES, &file, &text, &size, err);
    if (status == TSR_OK)
        status = tsr_result_read_text(result, path, text, size, err);
    tsr_arena_free(&file);
    return status;
}
