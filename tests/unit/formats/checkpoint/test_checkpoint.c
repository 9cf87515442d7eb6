/* Tests tsr_checkpoint_open: the contents of valid checkpoints, and the messages for damaged ones. */
#include "formats/checkpoint/checkpoint.h"

#include "tests/unit/fixture.h"

static const fixture_tensor kFirst[] = {{"a", {2, 3}, NULL}, {"b", {4}, "F32"}};
static const fixture_tensor kSecond[] = {{"c", {5}, "U8"}};
static const char kIndex[] = "{\"metadata\": {\"total_size\": 33}, \"weight_map\": "
                             "{\"a\": \"model-1.safetensors\", \"b\": \"model-1.safetensors\", "
                             "\"c\": \"model-2.safetensors\"}}";

/* Two shards with an index, and the other files of a real model. */
static void write_model(void)
{
    fixture_make();
    fixture_shard("model-1.safetensors", kFirst, 2);
    fixture_shard("model-2.safetensors", kSecond, 1);
    fixture_text("model.safetensors.index.json", kIndex);
    fixture_text("config.json", "{\"model_type\": \"llama\"}\n");
    fixture_text("tokenizer.json", "{}");
    fixture_text("quantization_report.json", "{}");
    cr_assert_eq(mkdir(fixture_path(".cache"), 0777), 0);
    fixture_text(".cache/lock", "hidden");
    cr_assert_eq(mkdir(fixture_path("extra"), 0777), 0);
    fixture_text("extra/notes.txt", "notes");
}

static tsr_checkpoint *open_sound(const char *path)
{
    tsr_checkpoint *c;
    tsr_err err = {0};
    cr_assert_eq(tsr_checkpoint_open(&c, path, NULL, 0, &err), TSR_OK, "%s", err.msg);
    return c;
}

TestSuite(checkpoint, .init = write_model, .fini = fixture_remove);

Test(checkpoint, a_directory_is_all_its_shards_in_order)
{
    tsr_checkpoint *const c = open_sound(fixture_folder);
    cr_assert_eq(c->n_files, 2);
    cr_expect_str_eq(c->files[0].name, "model-1.safetensors");
    cr_expect_str_eq(c->files[1].name, "model-2.safetensors");
    cr_expect_str_eq(c->dir, fixture_folder);
    cr_expect_str_eq(c->config, "{\"model_type\": \"llama\"}\n");
    cr_expect_str_eq(c->index_path, fixture_path("model.safetensors.index.json"));
    static const char *const kNames[] = {"a", "b", "c"};
    cr_assert_eq(c->tensors.count, 3);
    for (size_t i = 0; i < 3; i++) {
        cr_expect_str_eq(c->tensors.items[i].name, kNames[i]);
        cr_expect_eq(tsr_checkpoint_find(c, kNames[i]), &c->tensors.items[i]);
    }
    const tsr_tensor *const b = &c->tensors.items[1];
    cr_expect(b->dtype == TSR_F32 && b->rank == 1 && b->shape[0] == 4 && b->bytes == 16 && b->file == 0);
    cr_expect_eq(c->tensors.items[2].file, 1);
    cr_expect_eq(b->offset, c->tensors.items[0].offset + 12);
    cr_expect_null(tsr_checkpoint_find(c, "d"));
    cr_expect_neq(c->files[0].header_hash, c->files[1].header_hash);
    cr_expect_geq(tsr_checkpoint_memory(c), 3 * sizeof(tsr_tensor));
    tsr_checkpoint_close(c);
    tsr_checkpoint_close(NULL);
}

/* Side files exclude the configuration, the index and the report, which a conversion writes itself, and hidden
 * folders. */
Test(checkpoint, side_files_are_what_a_conversion_copies)
{
    tsr_checkpoint *const c = open_sound(fixture_folder);
    cr_assert_eq(c->n_side_files, 2);
    cr_expect_str_eq(c->files[2].name, "extra/notes.txt");
    cr_expect_str_eq(c->files[3].name, "tokenizer.json");
    char text[8] = "";
    const tsr_tensor notes = tsr_checkpoint_side_file(c, 0);
    cr_assert_eq(notes.bytes, 5);
    cr_assert_eq(tsr_checkpoint_read(c, &notes, 1, text, 4, NULL), TSR_OK);
    cr_expect_str_eq(text, "otes");
    tsr_checkpoint_close(c);
}

Test(checkpoint, a_single_file_needs_no_configuration)
{
    tsr_checkpoint *const c = open_sound(fixture_path("model-2.safetensors"));
    cr_expect(c->dir == NULL && c->config == NULL && c->index_path == NULL);
    cr_expect(c->n_files == 1 && c->n_side_files == 0 && c->tensors.count == 1);
    cr_expect_not_null(tsr_checkpoint_find(c, "c"));
    tsr_checkpoint_close(c);
}

Test(checkpoint, reads_the_bytes_of_a_tensor)
{
    tsr_checkpoint *c = open_sound(fixture_folder);
    const tsr_tensor *const b = tsr_checkpoint_find(c, "b");
    FILE *const file = fopen(fixture_path("model-1.safetensors"), "r+b");
    fseek(file, (long)b->offset + 4, SEEK_SET);
    fputs("ABCDEFGH", file);
    fclose(file);
    tsr_checkpoint_close(c);
    c = open_sound(fixture_folder);
    char got[9] = "";
    cr_assert_eq(tsr_checkpoint_read(c, tsr_checkpoint_find(c, "b"), 4, got, 8, NULL), TSR_OK);
    cr_expect_str_eq(got, "ABCDEFGH");
    tsr_checkpoint_close(c);
}

Test(checkpoint, notices_that_a_file_is_no_longer_the_one_that_was_opened)
{
    tsr_err err = {0};
    tsr_checkpoint *const c = open_sound(fixture_folder);
    cr_assert_eq(tsr_checkpoint_unchanged(c, 0, false, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_checkpoint_unchanged(c, 1, false, &err), TSR_OK, "%s", err.msg);
    fixture_shard("new", kFirst, 2);
    cr_assert_eq(rename(fixture_path("new"), fixture_path("model-1.safetensors")), 0);
    cr_expect_eq(tsr_checkpoint_unchanged(c, 0, false, &err), TSR_E_IO);
    cr_expect_not_null(strstr(err.msg, "model-1.safetensors"), "%s", err.msg);
    cr_expect_eq(tsr_checkpoint_unchanged(c, 1, false, &err), TSR_OK);
    tsr_checkpoint_close(c);
}

Test(checkpoint, ignored_files_are_absent)
{
    static const char *const kIgnore[] = {"*-2.*", "*.index.json", "extra/*"};
    tsr_checkpoint *c;
    tsr_err err = {0};
    cr_assert_eq(tsr_checkpoint_open(&c, fixture_folder, kIgnore, 3, &err), TSR_OK, "%s", err.msg);
    cr_expect(c->n_files == 1 && c->n_side_files == 1 && c->index_path == NULL);
    cr_expect_null(tsr_checkpoint_find(c, "c"));
    tsr_checkpoint_close(c);
}

Test(checkpoint, one_shard_is_opened_without_the_others)
{
    tsr_checkpoint *c;
    tsr_err err = {0};
    cr_assert_eq(unlink(fixture_path("config.json")), 0);
    cr_assert_eq(unlink(fixture_path("model.safetensors.index.json")), 0);
    cr_assert_eq(tsr_checkpoint_open_shard(&c, fixture_folder, "model-2.safetensors", NULL, 0, &err), TSR_OK, "%s",
                 err.msg);
    cr_expect(c->n_files == 1 && c->tensors.count == 1 && c->n_side_files == 2 && c->config == NULL);
    tsr_checkpoint_close(c);
}

/* ---- damaged checkpoints ---- */

static void no_config(void)
{
    unlink(fixture_path("config.json"));
}

static void config_is_no_object(void)
{
    fixture_text("config.json", "[1]");
}

static void config_is_cut_off(void)
{
    fixture_text("config.json", "{\"model_type\": ");
}

static void config_has_more_behind_it(void)
{
    fixture_text("config.json", "{} {}");
}

static void no_index(void)
{
    unlink(fixture_path("model.safetensors.index.json"));
}

static void two_indexes(void)
{
    fixture_text("other.safetensors.index.json", kIndex);
}

static void index_without_map(void)
{
    fixture_text("model.safetensors.index.json", "{\"metadata\": {}}");
}

static void index_leaves_a_tensor_out(void)
{
    fixture_text("model.safetensors.index.json",
                 "{\"weight_map\": {\"a\": \"model-1.safetensors\", \"b\": \"model-1.safetensors\"}}");
}

static void index_names_a_missing_tensor(void)
{
    fixture_text("model.safetensors.index.json", "{\"weight_map\": {\"x\": \"model-1.safetensors\"}}");
}

static void index_names_another_file(void)
{
    fixture_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"model-2.safetensors\"}}");
}

static void index_names_a_missing_file(void)
{
    fixture_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"model-9.safetensors\"}}");
}

static void index_leads_out(void)
{
    fixture_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../model-1.safetensors\"}}");
}

static void a_name_in_two_shards(void)
{
    fixture_shard("model-2.safetensors", (const fixture_tensor[]){{"a", {5}, "U8"}}, 1);
}

static void a_link_that_leads_out(void)
{
    cr_assert_eq(symlink("/etc/passwd", fixture_path("notes.txt")), 0);
}

static void a_link_to_nothing(void)
{
    cr_assert_eq(symlink("nowhere", fixture_path("notes.txt")), 0);
}

static void a_name_with_a_line_break(void)
{
    fixture_text("two\nlines", "");
}

static void a_page_in_place_of_a_shard(void)
{
    fixture_text("model-2.safetensors", "<!DOCTYPE html><html><body>404</body></html>");
}

static void a_shard_cut_off(void)
{
    struct stat st;
    cr_assert_eq(stat(fixture_path("model-2.safetensors"), &st), 0);
    cr_assert_eq(truncate(fixture_path("model-2.safetensors"), st.st_size - 1), 0);
}

static void no_shard(void)
{
    no_index();
    unlink(fixture_path("model-1.safetensors"));
    unlink(fixture_path("model-2.safetensors"));
}

static void another_format(void)
{
    no_shard();
    fixture_text("model.gguf", "GGUF");
}

static void ranks_of_deepseek(void)
{
    no_shard();
    fixture_shard("model0-mp2.safetensors", kSecond, 1);
}

static void ranks_in_folders(void)
{
    no_shard();
    cr_assert_eq(mkdir(fixture_path("rank-0"), 0777), 0);
    fixture_shard("rank-0/model.safetensors", kSecond, 1);
}

Test(checkpoint, messages_name_the_damage)
{
    static const struct {
        void (*damage)(void);
        const char *words[2];
    } kCases[] = {
        {no_config, {"config.json", "missing"}},
        {config_is_no_object, {"config.json", "not a JSON object"}},
        {config_is_cut_off, {"config.json", "not valid JSON at byte 15"}},
        {config_has_more_behind_it, {"config.json", "not valid JSON at byte 3"}},
        {no_index, {"2 .safetensors files", "no model.safetensors.index.json"}},
        {two_indexes, {"two indexes", "--ignore-file"}},
        {index_without_map, {"index.json", "no weight_map"}},
        {index_leaves_a_tensor_out, {"omits 'c'", "model-2.safetensors"}},
        {index_names_a_missing_tensor, {"'x'", "has no such tensor"}},
        {index_names_another_file, {"'a'", "is in model-1.safetensors"}},
        {index_names_a_missing_file, {"model-9.safetensors", "is the download complete?"}},
        {index_leads_out, {"'../model-1.safetensors'", "outside the directory"}},
        {a_name_in_two_shards, {"duplicate tensor 'a'", "model-1.safetensors"}},
        {a_link_that_leads_out, {"notes.txt", "a symlink out of"}},
        {a_link_to_nothing, {"notes.txt", "dangling symlink"}},
        {a_name_with_a_line_break, {"control character", "--ignore-file"}},
        {a_page_in_place_of_a_shard, {"model-2.safetensors", "HTML"}},
        {a_shard_cut_off, {"model-2.safetensors", "'c'"}},
        {no_shard, {"no .safetensors file", ""}},
        {another_format, {"model.gguf", "GGUF is not read"}},
        {ranks_of_deepseek, {"model0-mp2.safetensors", "--from deepseek-mp"}},
        {ranks_in_folders, {"rank-0", "--merge"}},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        tsr_checkpoint *c;
        tsr_err err = {0};
        tsr_checkpoint_close(open_sound(fixture_folder)); /* can be opened before it is damaged */
        kCases[i].damage();
        cr_expect_eq(tsr_checkpoint_open(&c, fixture_folder, NULL, 0, &err), TSR_E_FORMAT, "case %zu: %s", i, err.msg);
        cr_expect_null(c);
        for (size_t k = 0; k < 2; k++)
            cr_expect_not_null(strstr(err.msg, kCases[i].words[k]), "case %zu: %s", i, err.msg);
        fixture_remove();
        strcpy(fixture_folder + strlen(fixture_folder) - 6, "XXXXXX");
        write_model();
    }
}

Test(checkpoint, a_missing_path_suggests_the_hub)
{
    tsr_checkpoint *c;
    tsr_err err = {0};
    cr_expect_eq(tsr_checkpoint_open(&c, "deepseek-ai/DeepSeek-V3", NULL, 0, &err), TSR_E_FORMAT);
    cr_expect_not_null(strstr(err.msg, "hf://deepseek-ai/DeepSeek-V3"), "%s", err.msg);
    cr_expect_eq(tsr_checkpoint_open(&c, fixture_path("nothing"), NULL, 0, &err), TSR_E_FORMAT);
    cr_expect_null(strstr(err.msg, "hf://"), "%s", err.msg);
    cr_expect_null(c);
}

/* If the product overflowed, a tensor of 2^65 bytes would have no bytes. */
Test(checkpoint, sizes_beyond_64_bits_are_refused)
{
    static const char *const kShapes[] = {"4294967296,4294967296", "9223372036854775808,2", "18446744073709551615",
                                          "0,4294967296,4294967296,4294967296"};
    for (size_t i = 0; i < sizeof kShapes / sizeof *kShapes; i++) {
        char text[160];
        tsr_arena arena = {0};
        tsr_tensors tensors = {0};
        tsr_err err = {0};
        snprintf(text, sizeof text, "{\"a\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[0,0]}}", kShapes[i]);
        const tsr_status status = tsr_safetensors_parse("f", text, strlen(text), 0, 0, &arena, &tensors, &err);
        cr_expect_eq(status, i < 3 ? TSR_E_FORMAT : TSR_OK, "[%s]: %s", kShapes[i], err.msg);
        cr_expect(i == 3 || strstr(err.msg, "overflow") != NULL, "[%s]: %s", kShapes[i], err.msg);
        tsr_tensors_free(&tensors);
        tsr_arena_free(&arena);
    }
}
