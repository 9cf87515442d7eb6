/* The table of schemes, and functions of a row: names, policy, dialects. */
#include "convert/schemes/schemes.h"

#include "common/text.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

static const tsr_scheme_row kSchemes[TSR_SCHEMES] = {
#define SCHEME(id, word, ...) [id] = {.name = (word), __VA_ARGS__},
#define VARIANT(id, ...)      [id] = {__VA_ARGS__},
#include "convert/schemes/schemes.inc"
#undef SCHEME
#undef VARIANT
};

static const char kWords[] =
#define SCHEME(id, word, ...) "|" word
#define VARIANT(id, ...)
#include "convert/schemes/schemes.inc"
#undef SCHEME
#undef VARIANT
    ;

const tsr_scheme_row *tsr_scheme_row_of(tsr_scheme scheme)
{
    return &kSchemes[scheme];
}

tsr_scheme_form tsr_scheme_form_in(tsr_scheme scheme, int dialect)
{
    const tsr_scheme_row *const row = &kSchemes[scheme];
    return dialect < 0 || row->dialects[dialect].form == TSR_FORM_PLAIN ? row->form : row->dialects[dialect].form;
}

const char *tsr_scheme_name(tsr_scheme scheme)
{
    return kSchemes[scheme].name;
}

const char *tsr_scheme_spelling(tsr_scheme scheme)
{
    const tsr_scheme_row *const row = &kSchemes[scheme];
    return row->name != NULL ? row->name : row->arguments + strlen("--scheme ");
}

tsr_scheme tsr_scheme_base(tsr_scheme scheme)
{
    const char *const spelling = tsr_scheme_spelling(scheme);
    const size_t n = strcspn(spelling, " ");
    tsr_scheme base = 0;
    while (kSchemes[base].name == NULL || strlen(kSchemes[base].name) != n ||
           strncmp(kSchemes[base].name, spelling, n) != 0)
        base++;
    return base;
}

tsr_scale_search tsr_scheme_row_search(const tsr_scheme_row *row)
{
    switch (row->form) {
    case TSR_FORM_W8A8:
    case TSR_FORM_PACKED:
        return row->ints.search;
    case TSR_FORM_GROUPS:
        return row->search;
    default:
        return row->fp8.search;
    }
}

const char *tsr_scheme_words(void)
{
    return kWords + 1;
}

tsr_scheme tsr_scheme_named(size_t i)
{
    tsr_scheme scheme = TSR_SCHEME_KEEP + 1;
    for (;; scheme++) {
        if (kSchemes[scheme].name != NULL && i-- == 0)
            return scheme;
    }
}

/* Returns the scheme of this name, or TSR_SCHEMES. */
static tsr_scheme find_scheme(const char *name)
{
    tsr_scheme scheme = 0;
    while (scheme < TSR_SCHEMES && (kSchemes[scheme].name == NULL || strcmp(kSchemes[scheme].name, name) != 0))
        scheme++;
    return scheme;
}

/* Returns the sort key of a scheme among those of tsr_scheme_mixed; equal keys are ordered by the table. */
static unsigned mixed_order(tsr_scheme scheme)
{
    return scheme == TSR_SCHEME_KEEP ? 0 : kSchemes[scheme].form == TSR_FORM_GROUPS ? 1 : 2;
}

tsr_scheme tsr_scheme_mixed(size_t i)
{
    for (unsigned order = 0; order < 3; order++) {
        for (tsr_scheme scheme = 0; scheme < TSR_SCHEMES; scheme++) {
            if (kSchemes[scheme].mixed && mixed_order(scheme) == order && i-- == 0)
                return scheme;
        }
    }
    return TSR_SCHEMES;
}

tsr_scheme tsr_scheme_measured(tsr_scheme scheme)
{
    return kSchemes[scheme].codes_of == TSR_SCHEME_KEEP ? scheme : kSchemes[scheme].codes_of;
}

bool tsr_scheme_is_of_mx_plan(tsr_scheme scheme)
{
    return kSchemes[scheme].form == TSR_FORM_GROUPS || kSchemes[scheme].form == TSR_FORM_FP8_TENSOR;
}

uint64_t tsr_scheme_companion_bytes(tsr_scheme scheme)
{
    const tsr_scheme_row *const row = &kSchemes[scheme];
    if (row->form == TSR_FORM_PACKED)
        return 2 * sizeof(int64_t);
    return row->form == TSR_FORM_GROUPS && row->kind == TSR_NVFP4 && row->inputs ? sizeof(float) : 0;
}

void tsr_scheme_policy(tsr_scheme scheme, tsr_policy_options *policy)
{
    const tsr_scheme_row *const row = &kSchemes[scheme];
    const tsr_mx_scheme groups = tsr_mx_scheme_of(row->kind, false);
    const bool in_groups = row->form == TSR_FORM_GROUPS;
    policy->block_rows = row->form == TSR_FORM_BLOCKS ? row->fp8.block_rows : 1;
    policy->group = in_groups ? groups.group : 0;
    policy->four_bits = in_groups ? groups.element == TSR_MX_E2M1 : row->ints.bits == 4;
    policy->not_fp8 = policy->four_bits || row->form == TSR_FORM_W8A8 || row->form == TSR_FORM_PACKED;
}

/* ---- names of other tools ---- */

/* Returns the length of a name without the ending that ModelOpt's presets have: "NVFP4_DEFAULT_CFG" is "NVFP4". */
static size_t length_without_ending(const char *word)
{
    static const char *const kEndings[] = {"_cfg", "_default"};
    size_t n = strlen(word);
    for (size_t i = 0; i < sizeof kEndings / sizeof *kEndings; i++) {
        const size_t ending = strlen(kEndings[i]);
        if (n > ending && strncasecmp(word + n - ending, kEndings[i], ending) == 0)
            n -= ending;
    }
    return n;
}

/* Finds a name in a list of names with options. Returns the options, with a space before them and *size characters, or
 * NULL. */
static const char *find_other_name(const char *list, const char *word, size_t n, int *size)
{
    for (const char *at = list; at != NULL; at = strstr(at, ", ")) {
        at += *at == ',' ? 2 : 0;
        const size_t name = strcspn(at, " ,");
        if (name != n || strncasecmp(at, word, n) != 0)
            continue;
        *size = (int)strcspn(at + name, ",");
        return at + name;
    }
    return NULL;
}

static tsr_status refuse_foreign(const char *option, const char *word, tsr_err *err)
{
    if (find_scheme(word) != TSR_SCHEMES)
        return TSR_OK;
    if (strcasecmp(word, "gguf") == 0 || (tolower((unsigned char)word[0]) == 'q' && isdigit((unsigned char)word[1])))
        return tsr_fail(err, TSR_E_USAGE,
                        "%s: '%s': GGUF cannot be written; convert the BF16 checkpoint with llama.cpp's "
                        "convert_hf_to_gguf.py",
                        option, word);
    if (strcasecmp(word, "gptq") == 0 || strcasecmp(word, "awq") == 0)
        return tsr_fail(err, TSR_E_USAGE,
                        "%s: '%s' can be read but not written; the nearest scheme is int4-weight-only, which rounds "
                        "to nearest without calibration",
                        option, word);
    const size_t n = length_without_ending(word);
    for (tsr_scheme i = TSR_SCHEME_KEEP + 1; i < TSR_SCHEMES; i++) {
        const tsr_scheme_row *const row = &kSchemes[i];
        int size = 0;
        const char *const options = find_other_name(row->other_names, word, n, &size);
        if (options == NULL && (row->name == NULL || strlen(row->name) != n || strncasecmp(word, row->name, n) != 0))
            continue;
        return tsr_fail(
            err, TSR_E_USAGE,
            "%s: '%s' is a name used by other tools (did you mean '%s%.*s'? docs/coming-from.md lists their names)",
            option, word, row->name, size, options == NULL ? "" : options);
    }
    return TSR_OK;
}

tsr_status tsr_scheme_refuse_foreign(const char *option, int argc, char **argv, tsr_err *err)
{
    const size_t n = strlen(option);
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], option, n) != 0)
            continue;
        if (argv[i][n] == '=')
            TSR_TRY(refuse_foreign(option, argv[i] + n + 1, err));
        else if (argv[i][n] == '\0' && i + 1 < argc)
            TSR_TRY(refuse_foreign(option, argv[i + 1], err));
    }
    return TSR_OK;
}

/* ---- dialects ---- */

tsr_status tsr_scheme_check_dialect(tsr_scheme scheme, tsr_dialect dialect, tsr_err *err)
{
    const tsr_scheme_row *const row = &kSchemes[scheme];
    tsr_text read = {0};
    if (row->dialects[dialect].name != NULL)
        return TSR_OK;
    for (tsr_dialect d = 0; d < TSR_DIALECTS; d++) {
        const tsr_scheme_dialect *const in = &row->dialects[d];
        if (in->name == NULL)
            continue;
        tsr_text_printf(&read, "%s--dialect %s", read.size == 0 ? "" : ", ", tsr_dialect_name(d));
        if (in->readers != NULL)
            tsr_text_printf(&read, " (%s)", in->readers);
    }
    tsr_status status = tsr_text_status(&read, err);
    if (status == TSR_OK)
        status = tsr_fail(err, TSR_E_USAGE, "--dialect %s: no loader reads %s in this dialect; supported: %s",
                          tsr_dialect_name(dialect), row->name, read.data);
    tsr_text_free(&read);
    return status;
}

/* Returns true if --scales best supports the scheme, apart from the dtype of its scales. */
static bool has_best_scales(const tsr_scheme_row *row)
{
    return row->form == TSR_FORM_GROUPS || row->form == TSR_FORM_BLOCKS || row->form == TSR_FORM_FP8_ROWS ||
           (row->form == TSR_FORM_PACKED && row->ints.bits == 4);
}

/* Returns true if --scales four-six supports the scheme: NVFP4. */
static bool has_four_six(tsr_scheme scheme)
{
    return kSchemes[scheme].form == TSR_FORM_GROUPS && kSchemes[scheme].kind == TSR_NVFP4;
}

tsr_scale_search tsr_scheme_search(tsr_scheme scheme, tsr_scale_search search)
{
    return search != TSR_SCALES_FOUR_SIX || has_four_six(scheme) ? search : TSR_SCALES_AMAX;
}

tsr_status tsr_scheme_check_scales(tsr_scheme scheme, tsr_scale_search search, tsr_dtype stored, tsr_err *err)
{
    const tsr_scheme_row *const row = tsr_scheme_row_of(scheme);
    const bool best = search == TSR_SCALES_BEST;
    if (search == TSR_SCALES_AMAX || row->form == TSR_FORM_PLAIN)
        return TSR_OK;
    if (search == TSR_SCALES_FOUR_SIX && !has_four_six(scheme))
        return tsr_fail(err, TSR_E_USAGE, "--scales four-six cannot be used with %s; use nvfp4 or nvfp4-weight-only",
                        row->name);
    if (row->form == TSR_FORM_FP8_TENSOR)
        return tsr_fail(err, TSR_E_USAGE, "--scales %s cannot be used with fp8-tensor, which has one scale per tensor",
                        tsr_scale_search_name(search));
    if (best && !has_best_scales(row))
        return tsr_fail(err, TSR_E_USAGE,
                        "--scales best cannot be used with %s; use fp8-block, fp8-channel, int4-weight-only, nvfp4, "
                        "mxfp4 or mxfp8, or --scales mse",
                        row->name);
    if (best && row->form != TSR_FORM_GROUPS && stored == TSR_F32)
        return tsr_fail(err, TSR_E_USAGE,
                        "--scales best cannot be used with FP32 scales, which %s has here: there are 8,388,608 in each "
                        "power of two; use %s, or --scales mse",
                        row->name,
                        row->form == TSR_FORM_BLOCKS     ? "--scale-fmt ue8m0 or mxfp8"
                        : row->form == TSR_FORM_FP8_ROWS ? "--scale-dtype bf16 or mxfp8"
                                                         : "--scale-dtype bf16 or f16");
    return TSR_OK;
}
