/* libFuzzer target: input files such as rules and token files, and files that Tessera reads back, such as journals.
 *
 * The first byte selects the kind (`kKinds`, at the end of this file). Checks the documented properties of accepted
 * input. */
#include "cli/batch/batch.h"
#include "common/glob.h"
#include "common/options.h"
#include "convert/records/journal_records.h"
#include "convert/search/rules_match.h"
#include "formats/adapters/lora_config.h"
#include "formats/checkpoint/rank_file.h"
#include "formats/importance/importance.h"
#include "formats/json/json_index.h"
#include "formats/names/ignore_list.h"
#include "formats/weights/calibration.h"
#include "tests/robustness/fuzz/folder.h"
#include "verify/forward/tokens/token_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <math.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Text of the kind that goes through Python is no parser's of Tessera. */
tsr_status tsr_tokenize(const char *path, const char *model, unsigned char **ids, size_t *bytes, tsr_err *err)
{
    (void)model;
    (void)ids;
    (void)bytes;
    return tsr_fail(err, TSR_E_UNSUPPORTED, "%s: text", path);
}

/* ---- files ---- */

static const char *const kFiles[] = {"model.safetensors", TSR_CONFIG_NAME, TSR_RANK_NAME,
                                     TSR_LAYOUT_NAME,     TSR_INDEX_NAME,  "input.json",
                                     "input.safetensors", "input.gguf",    NULL};

static void make_checkpoint(void)
{
    static const char kHeader[] = "{\"a.weight\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                                  "\"b.weight\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}";
    char file[8 + sizeof kHeader - 1 + 4] = {(char)(sizeof kHeader - 1)};
    make_folder(kFiles);
    memcpy(file + 8, kHeader, sizeof kHeader - 1);
    put_file("model.safetensors", file, sizeof file);
    put_file(TSR_CONFIG_NAME, "{}", 2);
}

/* ---- what is read from files ---- */

/* The match equals that of trying one rule after another. */
static void match_rules(const tsr_scheme_rules *rules)
{
    static const tsr_tensor kTensors[] = {
        {.name = "a.weight"}, {.name = "b.weight"}, {.name = "a"}, {.name = "a.b.up_proj.weight"}};
    static const char *const kModules[] = {"a", "b", "a", "a.b.up_proj"};
    enum { N = sizeof kTensors / sizeof *kTensors };
    const tsr_checkpoint c = {.path = "c", .tensors = {(tsr_tensor *)kTensors, N, N}};
    tsr_rules_match match;
    tsr_arena arena = {0};
    if (tsr_rules_match_all(&match, rules, &c, &arena, NULL) != TSR_OK)
        abort();
    for (size_t i = 0; i < N; i++) {
        const tsr_rules_item *first = NULL;
        for (size_t k = 0; k < rules->count; k++) {
            const char *const pattern = rules->items[k].pattern;
            if (!tsr_glob_match(pattern, kTensors[i].name) && !tsr_glob_match(pattern, kModules[i]))
                continue;
            first = first == NULL ? &rules->items[k] : first;
            if (!match.fits[k])
                abort();
        }
        if (match.of[i] != first)
            abort();
    }
    tsr_arena_free(&arena);
}

static void read_rules(const char *text, size_t size)
{
    tsr_scheme_rules rules;
    put_file("input.json", text, size);
    if (tsr_rules_read(&rules, place("input.json"), NULL) != TSR_OK)
        return;
    for (size_t i = 0; i < rules.count; i++) {
        const tsr_rules_item *const item = &rules.items[i];
        if ((unsigned)item->scheme >= TSR_SCHEMES ||
            (tsr_rules_is_name(item) != (strpbrk(item->pattern, "*?[") == NULL)))
            abort();
    }
    match_rules(&rules);
    tsr_rules_free(&rules);
}

static void read_sensitivity(const char *text, size_t size)
{
    tsr_scheme_rules rules;
    put_file("input.json", text, size);
    if (tsr_sensitivity_read(&rules, place("input.json"), NULL) != TSR_OK)
        return;
    for (size_t i = 0; i < rules.count; i++) {
        if (!isfinite(rules.items[i].weight) || rules.items[i].weight <= 0)
            abort();
    }
    tsr_rules_free(&rules);
}

static void read_calibration(const char *name)
{
    tsr_calibration found;
    if (tsr_calibration_read(&found, place(name), NULL) != TSR_OK)
        return;
    for (size_t i = 0; i < found.count; i++) {
        const tsr_calibrated *const item = &found.items[i];
        if (item->scaled
                ? !isfinite(item->scale) || item->scale <= 0 || item->zero_point < -128 || item->zero_point > 127
                : !isfinite(item->least) || !isfinite(item->largest) || item->least > item->largest)
            abort();
    }
    (void)tsr_calibration_find(&found, "model.layers.0.mlp.up_proj.weight");
    tsr_calibration_free(&found);
}

static void read_importance(const char *name)
{
    static const uint64_t kShapes[][2] = {{8, 4}, {8, 6}};
    tsr_importance found;
    if (tsr_importance_read(&found, place(name), NULL) != TSR_OK)
        return;
    found.gptq = true;
    for (size_t i = 0; i < sizeof kShapes / sizeof *kShapes; i++) {
        const tsr_tensor weight = {
            .name = "model.layers.0.mlp.experts.1.up_proj.weight", .rank = 2, .shape = {kShapes[i][0], kShapes[i][1]}};
        tsr_column_importance columns;
        float out[8];
        if (tsr_importance_find(&found, &weight, &columns, NULL) != TSR_OK)
            continue;
        const unsigned char *const products = tsr_importance_products(&columns, 0);
        if (products != NULL) /* reads all of them */
            (void)XXH3_64bits(products, (size_t)(weight.shape[1] * weight.shape[1]) * sizeof(float));
        if (!tsr_importance_of(&columns, 0, 0, weight.shape[1], out))
            continue;
        for (uint64_t k = 0; k < weight.shape[1]; k++) {
            if (!(out[k] >= 0))
                abort();
        }
    }
    tsr_importance_free(&found);
}

static void read_importance_text(const char *text, size_t size)
{
    put_file("input.json", text, size);
    read_importance("input.json");
}

static void read_importance_matrix(const char *data, size_t size)
{
    put_file("input.gguf", data, size);
    read_importance("input.gguf");
}

static void read_calibration_text(const char *text, size_t size)
{
    put_file("input.json", text, size);
    read_calibration("input.json");
}

/* The header; the data it speaks of is what is left of the line. */
static void read_calibration_tensors(const char *text, size_t size)
{
    const char *const end = memchr(text, '\n', size);
    const size_t n = end == NULL ? size : (size_t)(end - text), rest = end == NULL ? 0 : size - n - 1;
    char *const file = calloc(1, 8 + size);
    if (file == NULL)
        abort();
    for (int i = 0; i < 8; i++)
        file[i] = (char)(n >> (8 * i));
    memcpy(file + 8, text, n);
    if (rest > 0)
        memcpy(file + 8 + n, end + 1, rest);
    put_file("input.safetensors", file, 8 + n + rest);
    free(file);
    read_calibration("input.safetensors");
    read_importance("input.safetensors");
}

static void read_tokens(const char *text, size_t size)
{
    static const tsr_token_limits kLimits = {.sequences = 4, .length = 8, .vocabulary = 1000};
    tsr_tokens tokens = {0};
    put_file("input.json", text, size);
    if (tsr_tokens_read_file(&tokens, place("input.json"), folder, kLimits, NULL) == TSR_OK) {
        if (tokens.sequences > kLimits.sequences || tokens.longest > kLimits.length ||
            tokens.first[tokens.sequences] != tokens.count)
            abort();
        for (size_t i = 0; i < tokens.count; i++) {
            if (tokens.ids[i] >= kLimits.vocabulary || tsr_token_position(&tokens, i) >= kLimits.length)
                abort();
        }
    }
    tsr_tokens_free(&tokens);
}

/* The configuration of an adapter. */
static void read_adapter(const char *text, size_t size)
{
    static const char *const kModules[] = {"model.layers.0.self_attn.q_proj", "layers.12.mlp.experts.down_proj", "x"};
    tsr_lora_config config;
    tsr_arena arena = {0};
    if (tsr_lora_config_read(&config, "adapter_config.json", text, size, &arena, NULL) == TSR_OK) {
        for (size_t i = 0; i < sizeof kModules / sizeof *kModules; i++) {
            (void)tsr_lora_targets_module(&config, kModules[i]);
            (void)tsr_lora_targets_parameter(&config, kModules[i]);
            if (tsr_lora_rank(&config, kModules[i]) == 0 || isnan(tsr_lora_scale(&config, kModules[i])))
                abort();
        }
        tsr_lora_config_free(&config);
    }
    tsr_arena_free(&arena);
}

static void open_with(const char *name, const char *text, size_t size)
{
    tsr_checkpoint *c = NULL;
    tsr_arena arena = {0};
    tsr_rank_file manifest;
    put_file(name, text, size);
    if (tsr_checkpoint_open(&c, folder, NULL, 0, NULL) == TSR_OK &&
        tsr_rank_file_read(&manifest, c, &arena, NULL) == TSR_OK && manifest.ranks > 0 &&
        manifest.rank >= manifest.ranks)
        abort();
    tsr_arena_free(&arena);
    tsr_checkpoint_close(c);
    unlink(place(name));
}

static void read_rank(const char *text, size_t size)
{
    open_with(TSR_RANK_NAME, text, size);
}

static void read_layout(const char *text, size_t size)
{
    open_with(TSR_LAYOUT_NAME, text, size);
}

static void read_index(const char *text, size_t size)
{
    open_with(TSR_INDEX_NAME, text, size);
}

/* ---- texts ---- */

static void read_batch(const char *text, size_t size)
{
    tsr_batch batch = {.path = "jobs.jsonl"};
    char *const copy = tsr_arena_dup(&batch.arena, text, size); /* a 0 behind it, as behind every file */
    if (copy == NULL)
        abort();
    if (tsr_batch_read_text(&batch, copy, size, NULL) == TSR_OK) {
        for (size_t i = 0; i < batch.n_jobs; i++) {
            const tsr_batch_job *const job = &batch.jobs[i];
            if (job->name == NULL || job->n_words == 0 || job->n_words > TSR_MAX_WORDS ||
                job->words[job->n_words] != NULL)
                abort();
        }
    }
    tsr_arena_free(&batch.arena);
}

/* Records, as they are and each with the hash that it should have, of the plan below. */
static void read_records(const char *text, size_t size)
{
    static tsr_out_file files[] = {{.name = "model.safetensors", .n_steps = 1},
                                   {.name = "x", .first_step = 1, .n_steps = 1}};
    static const tsr_plan kPlan = {.command = "quantize --scheme a", .files = files, .n_files = 2, .n_steps = 2};
    static const tsr_records_of kOf = {"journal", "dst", "--force"};
    uint64_t digests[2];
    bool finished[2] = {false, false};
    tsr_quant_stats stats[2];
    tsr_source_sum sums[2];
    tsr_finished to = {digests, finished, {stats, sums}, 0, false};
    tsr_arena arena = {0};
    tsr_names names;
    size_t good;
    (void)tsr_records_begun(text, size);
    if (tsr_records_read(text, size, &kPlan, &kOf, &to, &good, NULL) == TSR_OK &&
        (good > size || to.last > kPlan.n_files))
        abort();
    if (tsr_records_list(text, size, TSR_OUTPUT_RECORD, &arena, &names, NULL) == TSR_OK) {
        for (size_t i = 0; i < names.count; i++)
            (void)strlen(names.items[i]);
    }
    tsr_arena_free(&arena);
}

static void read_journal(const char *text, size_t size)
{
    tsr_text sealed = {0};
    read_records(text, size);
    for (size_t at = 0; at < size;) {
        const char *const end = memchr(text + at, '\n', size - at);
        const size_t n = (end == NULL ? size : (size_t)(end - text)) - at, start = sealed.size;
        tsr_text_append(&sealed, text + at, n);
        if (sealed.failed)
            abort();
        tsr_text_printf(&sealed, " %016llx\n", (unsigned long long)XXH3_64bits(sealed.data + start, n));
        at += n + 1;
    }
    if (sealed.size > 0)
        read_records(sealed.data, sealed.size);
    tsr_text_free(&sealed);
}

/* The length of the set that begins at '[', 0 where it has no end. */
static size_t set_length(const char *set)
{
    const size_t first = set[1] == '!' ? 2 : 1;
    const char *const end = set[first] == '\0' ? NULL : strchr(set + first + 1, ']');
    return end == NULL ? 0 : (size_t)(end - set) + 1;
}

static bool set_has(const char *set, size_t n, unsigned char c)
{
    const bool negated = set[1] == '!';
    bool found = false;
    for (size_t i = negated ? 2 : 1; i < n - 1; i++) {
        const unsigned char first = (unsigned char)set[i];
        const bool range = i + 2 < n - 1 && set[i + 1] == '-';
        i += range ? 2 : 0;
        found = found || (c >= first && c <= (unsigned char)set[i]);
    }
    return found != negated;
}

static bool glob_by_definition(const char *pattern, const char *text, unsigned *work)
{
    if (++*work > 100000)
        return false;
    if (*pattern == '*')
        return glob_by_definition(pattern + 1, text, work) ||
               (*text != '\0' && glob_by_definition(pattern, text + 1, work));
    if (*pattern == '\0' || *text == '\0')
        return *pattern == *text;
    const size_t set = *pattern == '[' ? set_length(pattern) : 0;
    if (set > 0)
        return set_has(pattern, set, (unsigned char)*text) && glob_by_definition(pattern + set, text + 1, work);
    return (*pattern == '?' || *pattern == *text) && glob_by_definition(pattern + 1, text + 1, work);
}

/* Two texts, of which the first ends at the first line feed, or is both. */
typedef struct two_texts {
    char *first;
    const char *second;
} two_texts;

static two_texts take_two(const char *text, size_t size)
{
    two_texts t = {.first = malloc(size + 1)};
    if (t.first == NULL)
        abort();
    memcpy(t.first, text, size);
    t.first[size] = '\0';
    char *const cut = strchr(t.first, '\n');
    if (cut != NULL)
        *cut = '\0';
    t.second = cut == NULL ? t.first : cut + 1;
    return t;
}

static void match_glob(const char *text, size_t size)
{
    const two_texts t = take_two(text, size);
    unsigned work = 0;
    const bool expected = strlen(t.first) < 64 && strlen(t.second) < 64 && glob_by_definition(t.first, t.second, &work);
    if (tsr_glob_match(t.first, t.second) != expected && work > 0 && work <= 100000)
        abort();
    free(t.first);
}

/* A list on a line, and a module's name. */
static void read_ignored(const char *text, size_t size)
{
    const two_texts t = take_two(text, size);
    tsr_json_reader r = tsr_json_open("list", t.first, strlen(t.first));
    tsr_json_text array;
    tsr_json_kind kind;
    tsr_ignore_list list;
    if (tsr_json_peek(&r, &kind, NULL) == TSR_OK && kind == TSR_JSON_ARRAY &&
        tsr_json_skip(&r, &array, NULL) == TSR_OK) {
        if (!tsr_ignore_list_read(&list, "ignore", array))
            abort();
        (void)tsr_ignore_list_unsure(&list, t.second);
        for (int matching = TSR_MATCH_EXACT; matching <= TSR_MATCH_WITHIN; matching++)
            (void)tsr_ignore_list_find(&list, (tsr_matching)matching, t.second);
        tsr_ignore_list_free(&list);
    }
    free(t.first);
}

/* A word on each line, as on a command line. */
static void parse_options(const char *text, size_t size)
{
    bool flag = false;
    const char *word = NULL, *positional[3];
    tsr_list list = {.count = 0};
    int choice = 0;
    uint64_t count = 0, bytes = 0, given;
    size_t n_positional = 0;
    const tsr_option options[] = {
        {"--flag", TSR_OPT_FLAG, &flag, NULL, "h"},      {"--word", TSR_OPT_TEXT, &word, "W", "h"},
        {"--exclude", TSR_OPT_LIST, &list, "GLOB", "h"}, {"--scale-fmt", TSR_OPT_CHOICE, &choice, "f32|ue8m0", "h"},
        {"--threads", TSR_OPT_COUNT, &count, "N", "h"},  {"--memory", TSR_OPT_SIZE, &bytes, "SIZE", "h"},
        {"-o", TSR_OPT_TEXT, &word, "DST", "h"},         {.name = NULL}};
    char *const copy = take_two(text, size).first, *argv[80];
    int argc = 0;
    memcpy(copy, text, size);
    for (char *at = copy; at != NULL && argc < 80; argc++)
        argv[argc] = strsep(&at, "\n");
    if (tsr_options_parse(options, argc, argv, positional, 3, &n_positional, &given, NULL) == TSR_OK &&
        (n_positional > 3 || list.count > 64 || choice < 0 || choice > 1))
        abort();
    tsr_block block;
    double number = 1;
    if (tsr_parse_block("--block", argv[0], &block, NULL) == TSR_OK && (block.rows == 0 || block.cols == 0))
        abort();
    if (tsr_parse_number("--bits", argv[0], TSR_ANY_NUMBER, &number, NULL) == TSR_OK && !isfinite(number))
        abort();
    free(copy);
}

/* Every member that the index finds is the one that a search finds. */
static void search_json(const char *text, size_t size)
{
    const two_texts t = take_two(text, size);
    const size_t n = strlen(t.first);
    tsr_json_index index;
    if (tsr_json_index_read(&index, "text", t.first, n, NULL) == TSR_OK) {
        tsr_json_text found, same;
        const bool is = tsr_json_index_find(&index, t.second, &found);
        if (is != tsr_json_find(t.first, n, t.second, &same) ||
            (is && (found.data != same.data || found.size != same.size)))
            abort();
        tsr_json_index_free(&index);
    }
    free(t.first);
}

static const struct kind {
    char byte;
    void (*read)(const char *text, size_t size);
} kKinds[] = {
    {'r', read_rules},
    {'s', read_sensitivity},
    {'c', read_calibration_text},
    {'C', read_calibration_tensors},
    {'w', read_importance_text},
    {'W', read_importance_matrix},
    {'t', read_tokens},
    {'a', read_adapter},
    {'m', read_rank},
    {'l', read_layout},
    {'x', read_index},
    {'b', read_batch},
    {'j', read_journal},
    {'g', match_glob},
    {'i', read_ignored},
    {'o', parse_options},
    {'p', search_json},
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready = false;
    if (!ready)
        make_checkpoint();
    ready = true;
    for (size_t i = 0; size > 0 && i < sizeof kKinds / sizeof *kKinds; i++) {
        if ((char)data[0] == kKinds[i].byte)
            kKinds[i].read((const char *)data + 1, size - 1);
    }
    return 0;
}
