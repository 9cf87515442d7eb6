/* Tests the journal: records that survive a restart, damaged records, and directories that are rejected. */
#include "convert/records/journal.h"
#include "convert/records/journal_records.h"
#include "convert/records/rank_journals.h"
#include "convert/records/shards.h"

#include "tests/unit/fixture.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

static const fixture_tensor kTensors[] = {{"a", {64}, NULL}, {"b", {64}, NULL}, {"c", {64}, NULL}};
enum { FILES = 3 };

static tsr_checkpoint *source;
static const tsr_checkpoint *sources[1];
static tsr_plan plan;
/* Hexadecimal digits of a step in a record. */
enum { STEP_DIGITS = 2 * (sizeof(tsr_quant_stats) + sizeof(tsr_source_sum)) };

static tsr_quant_stats stats[FILES];
static tsr_source_sum sums[FILES];
static const tsr_step_rows rows = {stats, sums};
static tsr_journal journal;
static tsr_err err;

/* A plan that copies three tensors, each to a file of its own. */
static void make_plan(const char *command)
{
    plan = tsr_plan_begin(sources, 1);
    plan.command = command;
    for (size_t i = 0; i < FILES; i++)
        cr_assert_eq(tsr_plan_copy(&plan, &source->tensors.items[i], source->tensors.items[i].name, &err), TSR_OK);
    cr_assert_eq(tsr_plan_pack(&plan, "", 128, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_plan_finish(&plan, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(plan.n_files, FILES);
    cr_assert_eq(plan.n_steps, FILES);
}

static void begin(void)
{
    fixture_make();
    fixture_shard("source.safetensors", kTensors, FILES);
    cr_assert_eq(tsr_checkpoint_open(&source, fixture_path("source.safetensors"), NULL, 0, &err), TSR_OK, "%s",
                 err.msg);
    sources[0] = source;
    make_plan("--to copies --level 3");
    journal.fd = -1;
}

static void end(void)
{
    tsr_journal_close(&journal);
    tsr_plan_free(&plan);
    tsr_checkpoint_close(source);
    fixture_remove();
}

TestSuite(journal, .init = begin, .fini = end);

static tsr_status try_open(bool force)
{
    err.msg[0] = '\0';
    memset(stats, 0, sizeof stats);
    memset(sums, 0, sizeof sums);
    return tsr_journal_open(&journal, &plan, fixture_path("out"), force, &rows, &err);
}

static void open_journal(void)
{
    cr_assert_eq(try_open(false), TSR_OK, "%s", err.msg);
}

/* Fills a row with different bytes. */
static void fill(tsr_quant_stats *row, tsr_source_sum *sum, unsigned seed)
{
    for (size_t i = 0; i < sizeof *row; i++)
        ((unsigned char *)row)[i] = (unsigned char)(37 * i + 11 * seed + 1);
    *sum = (tsr_source_sum){.high = 0xABCDEF0123456789 + seed, .low = 0x9876543210FEDCBA - seed};
}

static void add(size_t index)
{
    fill(&stats[index], &sums[index], (unsigned)index);
    cr_assert_eq(tsr_journal_add(&journal, &plan, index, 0xD16E57000 + index, &rows, &err), TSR_OK, "%s", err.msg);
}

/* A journal with files 0 and 1 finished, closed. */
static void write_journal(void)
{
    open_journal();
    add(0);
    add(1);
    tsr_journal_close(&journal);
}

static size_t journal_size(void)
{
    struct stat st;
    cr_assert_eq(stat(fixture_path("out/.tessera/journal"), &st), 0);
    return (size_t)st.st_size;
}

static void expect_finished(bool first, bool second, bool third)
{
    const bool finished[FILES] = {first, second, third};
    for (unsigned i = 0; i < FILES; i++) {
        tsr_quant_stats row = {0};
        tsr_source_sum sum;
        cr_expect_eq(journal.finished[i], finished[i], "file %u", i);
        if (!finished[i] || !journal.finished[i])
            continue;
        fill(&row, &sum, i);
        cr_expect_eq(journal.digests[i], 0xD16E57000 + i);
        cr_expect_arr_eq(&stats[i], &row, sizeof row, "statistics of file %u", i);
        cr_expect_arr_eq(&sums[i], &sum, sizeof sum, "source sum of file %u", i);
    }
}

Test(journal, keeps_finished_files_with_digests_and_statistics)
{
    write_journal();
    open_journal();
    expect_finished(true, true, false);
    cr_expect_eq(journal.end, journal_size());
    cr_expect_not(journal.read_only);
    add(2);
    tsr_journal_close(&journal);
    open_journal();
    expect_finished(true, true, true);
}

/* Wherever a kill or a power cut ends the last line, the lines before it are valid and the next record is readable. */
Test(journal, a_torn_last_line_is_cut_off)
{
    write_journal();
    const size_t whole = journal_size();
    open_journal();
    add(2);
    tsr_journal_close(&journal);
    const size_t line = journal_size() - whole;
    cr_assert_gt(line, sizeof(tsr_quant_stats));
    for (size_t left = 0; left < line; left += left < 40 || left > line - 40 ? 1 : 17) {
        open_journal();
        if (!journal.finished[2])
            add(2);
        tsr_journal_close(&journal);
        cr_assert_eq(truncate(fixture_path("out/.tessera/journal"), (off_t)(whole + left)), 0);
        open_journal();
        expect_finished(true, true, false);
        cr_assert_eq(journal_size(), whole, "%zu bytes of the line were left", left);
        tsr_journal_close(&journal);
    }
}

/* Records after the first damaged one are ignored, because their order is that of the events. */
Test(journal, a_changed_byte_ends_what_is_believed)
{
    write_journal();
    const size_t both = journal_size();
    FILE *const file = fopen(fixture_path("out/.tessera/journal"), "r+b");
    static char text[1 << 14];
    const size_t size = fread(text, 1, sizeof text, file);
    cr_assert_eq(size, both);
    char *const record = strstr(text, "\nfile 0 ");
    cr_assert_not_null(record);
    const long at = record + 12 - text;
    fseek(file, at, SEEK_SET);
    fputc(text[at] ^ 1, file);
    fclose(file);
    open_journal();
    expect_finished(false, false, false);
    cr_expect_eq(journal_size(), (size_t)(record + 1 - text));
}

Test(journal, a_rewrite_records_only_what_is_finished)
{
    write_journal();
    open_journal();
    journal.finished[0] = false;
    cr_assert_eq(tsr_journal_rewrite(&journal, &plan, &rows, &err), TSR_OK, "%s", err.msg);
    cr_expect_eq(journal.end, journal_size());
    add(2); /* the new file takes more records */
    tsr_journal_close(&journal);
    open_journal();
    expect_finished(false, true, true);
}

/* Leaves a journal of rank 1 that records file 2, open. */
static tsr_journal begin_rank_journal(void)
{
    tsr_journal rank;
    cr_assert_eq(tsr_rank_journal_prepare(&rank, &plan, fixture_path("out"), 1, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(tsr_rank_journal_begin(&rank, &plan, fixture_path("out"), &rows, &err), TSR_OK, "%s", err.msg);
    fill(&stats[2], &sums[2], 2);
    cr_assert_eq(tsr_journal_add(&rank, &plan, 2, 0xD16E57002, &rows, &err), TSR_OK, "%s", err.msg);
    return rank;
}

static tsr_status take_rank_journals(bool force)
{
    return tsr_rank_journals_take(&journal, &plan, fixture_path("out"), force, &rows, &err);
}

Test(journal, journals_of_ranks_are_taken_over)
{
    open_journal();
    add(0);
    tsr_journal rank = begin_rank_journal();
    tsr_journal_close(&rank);
    tsr_journal_close(&journal);
    open_journal();
    expect_finished(true, false, false);
    cr_assert_eq(take_rank_journals(false), TSR_OK, "%s", err.msg);
    expect_finished(true, false, true);
    cr_expect_neq(access(fixture_path("out/.tessera/journal-rank-1"), F_OK), 0);
    add(1); /* behind file 2: the journal has to be put in order at the end */
    cr_expect(journal.unordered);
    tsr_journal_close(&journal);
    open_journal();
    expect_finished(true, true, true);
}

Test(journal, a_rank_at_work_keeps_other_runs_away)
{
    open_journal();
    tsr_journal rank = begin_rank_journal();
    cr_expect_eq(take_rank_journals(false), TSR_E_EXISTS);
    cr_expect_eq(take_rank_journals(true), TSR_E_EXISTS);
    tsr_journal_close(&rank);
    cr_expect_eq(take_rank_journals(true), TSR_OK, "%s", err.msg);
    expect_finished(false, false, false);
}

Test(journal, a_journal_of_a_rank_for_another_plan_records_nothing)
{
    open_journal();
    tsr_journal rank = begin_rank_journal();
    tsr_journal_close(&rank);
    plan.fingerprint++;
    cr_assert_eq(take_rank_journals(false), TSR_OK, "%s", err.msg);
    expect_finished(false, false, false);
    cr_expect_neq(access(fixture_path("out/.tessera/journal-rank-1"), F_OK), 0);
}

Test(journal, one_process_at_a_time)
{
    tsr_journal second;
    open_journal();
    cr_expect_eq(tsr_journal_open(&second, &plan, fixture_path("out"), false, &rows, &err), TSR_E_EXISTS);
    cr_expect_not_null(strstr(err.msg, "another process"), "%s", err.msg);
    cr_expect_eq(tsr_journal_open(&second, &plan, fixture_path("out"), true, &rows, &err), TSR_E_EXISTS);
    tsr_journal_close(&journal);
    open_journal();
}

/* One shard that has begun prevents a process for the whole output. */
Test(journal, one_process_after_one_shard_is_refused)
{
    write_journal();
    fixture_text("out/.tessera/journal-1-of-2", "");
    cr_expect_eq(try_open(false), TSR_E_EXISTS);
    cr_expect_not_null(strstr(err.msg, "begun as 2 shards"), "%s", err.msg);
    cr_expect_eq(try_open(true), TSR_E_EXISTS);
}

/* A shard is complete when all of its files are, at any position in the plan. */
Test(journal, finish_asks_for_every_file_of_each_shard)
{
    static const uint32_t kOwner[FILES] = {0, 1, 0};
    bool lacking[2] = {false, false};
    const tsr_shard shard = {.count = 2, .finish = true, .lacking = lacking};
    cr_expect_eq(tsr_shards_check(&plan, "out", &shard, kOwner, (const bool[]){false, true, true}, &err),
                 TSR_E_NOTHING);
    cr_expect(lacking[0] && !lacking[1]);
    cr_expect_not_null(strstr(err.msg, "shard 0 of 2"), "%s", err.msg);
    memset(lacking, 0, sizeof lacking);
    cr_expect_eq(tsr_shards_check(&plan, "out", &shard, kOwner, (const bool[]){false, false, true}, &err),
                 TSR_E_NOTHING);
    cr_expect(lacking[0] && lacking[1]);
    memset(lacking, 0, sizeof lacking);
    cr_expect_eq(tsr_shards_check(&plan, "out", &shard, kOwner, (const bool[]){true, true, true}, &err), TSR_OK);
}

Test(journal, other_options_are_named_and_refused)
{
    write_journal();
    tsr_plan_free(&plan);
    make_plan("--to copies --level 5 --shuffle");
    cr_expect_eq(try_open(false), TSR_E_EXISTS);
    cr_expect_not_null(strstr(err.msg, "then --level 3, now --level 5 --shuffle"), "%s", err.msg);
    cr_expect_not_null(strstr(err.msg, "--force"), "%s", err.msg);
    cr_expect_eq(journal.fd, -1);
}

Test(journal, a_source_that_changed_is_refused)
{
    write_journal();
    tsr_plan_free(&plan);
    tsr_checkpoint_close(source);
    fixture_shard("source.safetensors",
                  (const fixture_tensor[]){{"a", {64}, NULL}, {"b", {64}, NULL}, {"d", {64}, NULL}}, FILES);
    cr_assert_eq(tsr_checkpoint_open(&source, fixture_path("source.safetensors"), NULL, 0, &err), TSR_OK);
    sources[0] = source;
    make_plan("--to copies --level 3");
    cr_expect_eq(try_open(false), TSR_E_MISMATCH);
    cr_expect_not_null(strstr(err.msg, "the source has changed since"), "%s", err.msg);
}

/* The outputs of the other plan are removed, config.json first; other files are kept. */
Test(journal, force_starts_over)
{
    write_journal();
    fixture_text(fixture_path("out/model-00001-of-00003.safetensors") + strlen(fixture_folder) + 1, "old");
    fixture_text("out/notes.txt", "mine");
    tsr_plan_free(&plan);
    make_plan("--to copies --level 5");
    cr_assert_eq(try_open(true), TSR_OK, "%s", err.msg);
    expect_finished(false, false, false);
    cr_expect_neq(access(fixture_path("out/model-00001-of-00003.safetensors"), F_OK), 0);
    cr_expect_eq(access(fixture_path("out/notes.txt"), F_OK), 0);
    add(1);
    tsr_journal_close(&journal);
    open_journal();
    expect_finished(false, true, false);
}

Test(journal, a_directory_with_files_of_others_is_refused)
{
    cr_assert_eq(mkdir(fixture_path("out"), 0777), 0);
    fixture_text("out/letter.txt", "dear");
    cr_expect_eq(try_open(false), TSR_E_EXISTS);
    cr_expect_not_null(strstr(err.msg, "letter.txt"), "%s", err.msg);
    cr_expect_neq(access(fixture_path("out/.tessera"), F_OK), 0, "nothing was to be made there");
    fixture_text("out/model.safetensors", "weights of others");
    cr_expect_eq(try_open(true), TSR_E_EXISTS);
    cr_expect_not_null(strstr(err.msg, "model.safetensors"), "%s", err.msg);
}

/* Makes a journal of another writer with correct hashes of its records. */
static void forge(const char *const *records, size_t n)
{
    char text[1024];
    size_t size = 0;
    for (size_t i = 0; i < n; i++)
        size += (size_t)sprintf(text + size, "%s %016llx\n", records[i],
                                (unsigned long long)XXH3_64bits(records[i], strlen(records[i])));
    fixture_text("out/.tessera/journal", text);
}

Test(journal, names_that_lead_out_are_refused)
{
    char head[256];
    write_journal();
    snprintf(head, sizeof head, "tessera " TSR_VERSION " %016llx %s", (unsigned long long)plan.fingerprint,
             plan.command);
    forge((const char *[]){head, "output ../victim"}, 2);
    fixture_text("victim", "safe");
    cr_expect_eq(try_open(false), TSR_E_FORMAT);
    cr_expect_not_null(strstr(err.msg, "../victim"), "%s", err.msg);
    cr_expect_eq(try_open(true), TSR_E_FORMAT);
    cr_expect_eq(access(fixture_path("victim"), F_OK), 0);
}

Test(journal, records_that_do_not_fit_the_plan_are_not_believed)
{
    char head[256];
    write_journal();
    snprintf(head, sizeof head, "tessera " TSR_VERSION " %016llx %s", (unsigned long long)plan.fingerprint,
             plan.command);
    char digits[STEP_DIGITS + 1], longer[512];
    memset(digits, '0', sizeof digits - 1);
    digits[sizeof digits - 1] = '\0';
    snprintf(longer, sizeof longer, "file 0 0 %s00", digits);
    const char *const kRecords[] = {"file 3 0 ", "file 3 0 00", "file 0 0 00", "file 0 0", "file x 0 00", longer};
    for (size_t i = 0; i < sizeof kRecords / sizeof *kRecords; i++) {
        forge((const char *[]){head, kRecords[i]}, 2);
        open_journal();
        expect_finished(false, false, false);
        cr_expect_eq(journal_size(), strlen(head) + 18, "%s", kRecords[i]);
        tsr_journal_close(&journal);
    }
    longer[strlen(longer) - 2] = '\0'; /* as long as it should be */
    forge((const char *[]){head, longer}, 2);
    open_journal();
    cr_expect(journal.finished[0]);
}

/* The plan lacks its last file but has the record's other data, so only the index is wrong. */
Test(journal, a_record_beyond_the_last_file_is_refused_by_its_index)
{
    char head[256], record[STEP_DIGITS + 32];
    write_journal();
    snprintf(head, sizeof head, "tessera " TSR_VERSION " %016llx %s", (unsigned long long)plan.fingerprint,
             plan.command);
    cr_assert_eq(plan.files[FILES - 1].n_steps, 1);
    const size_t size = (size_t)sprintf(record, "file %d 0 ", FILES - 1);
    memset(record + size, '0', STEP_DIGITS);
    record[size + STEP_DIGITS] = '\0';
    forge((const char *[]){head, record}, 2);
    open_journal();
    cr_expect(journal.finished[FILES - 1], "the record is sound");
    tsr_journal_close(&journal);
    forge((const char *[]){head, record}, 2);
    plan.n_files = FILES - 1;
    open_journal();
    cr_expect_eq(journal_size(), strlen(head) + 18, "the record went");
    tsr_journal_close(&journal);
    plan.n_files = FILES;
}

/* Each record is read by itself: time grows with the journal, not with its square. */
Test(journal, many_records_are_read_at_once)
{
    enum { RECORDS = 60000, MOST_SECONDS = 6 };
    const tsr_records_of of = {"journal", "out", "--force"};
    uint64_t digests[FILES];
    bool finished[FILES] = {false, false, false};
    tsr_finished to = {digests, finished, rows, 0, false};
    tsr_text text = {0};
    size_t good;
    tsr_records_add_head(&text, &plan, NULL);
    for (size_t i = 0; i < RECORDS; i++)
        tsr_records_add_file(&text, &plan, i % FILES, i, &rows);
    cr_assert(!text.failed);
    const clock_t began = clock();
    cr_assert_eq(tsr_records_read(text.data, text.size, &plan, &of, &to, &good, &err), TSR_OK, "%s", err.msg);
    cr_assert_lt(clock() - began, MOST_SECONDS * CLOCKS_PER_SEC);
    cr_assert_eq(good, text.size);
    cr_assert(finished[0] && finished[1] && finished[2] && to.unordered && digests[0] == RECORDS - FILES);
    tsr_text_free(&text);
}

Test(journal, another_version_is_refused)
{
    char head[256];
    write_journal();
    snprintf(head, sizeof head, "tessera 0.0.9 %016llx %s", (unsigned long long)plan.fingerprint, plan.command);
    forge((const char *[]){head}, 1);
    cr_expect_eq(try_open(false), TSR_E_MISMATCH);
    cr_expect_not_null(strstr(err.msg, "begun by version 0.0.9 of Tessera"), "%s", err.msg);
}

/* `cp -al` copies an output by hard links: its journal must not be changed through the copy. */
Test(journal, a_copy_by_hard_link_gets_a_journal_of_its_own)
{
    write_journal();
    cr_assert_eq(link(fixture_path("out/.tessera/journal"), fixture_path("kept")), 0);
    const size_t size = journal_size();
    open_journal();
    expect_finished(true, true, false);
    add(2);
    struct stat st;
    cr_assert_eq(stat(fixture_path("kept"), &st), 0);
    cr_expect_eq((size_t)st.st_size, size);
    cr_expect_gt(journal_size(), size);
}

Test(journal, a_link_in_place_of_the_journal_or_its_folder_is_refused)
{
    cr_assert_eq(mkdir(fixture_path("out"), 0777), 0);
    cr_assert_eq(mkdir(fixture_path("elsewhere"), 0777), 0);
    cr_assert_eq(symlink("../elsewhere", fixture_path("out/.tessera")), 0);
    cr_expect_eq(try_open(false), TSR_E_EXISTS);
    cr_expect_not_null(strstr(err.msg, "a link or a file"), "%s", err.msg);
    cr_assert_eq(unlink(fixture_path("out/.tessera")), 0);
    cr_assert_eq(mkdir(fixture_path("out/.tessera"), 0777), 0);
    fixture_text("victim", "safe");
    cr_assert_eq(symlink("../../victim", fixture_path("out/.tessera/journal")), 0);
    cr_expect_neq(try_open(false), TSR_OK);
    struct stat st;
    cr_assert_eq(stat(fixture_path("victim"), &st), 0);
    cr_expect_eq(st.st_size, 4);
}

/* Only the exact names of shards' journals count: no number out of range, no other spelling. */
Test(journal, journals_of_shards_are_known_by_their_names)
{
    static const char *const kOthers[] = {"journal-2-of-2", "journal-0-of-0", "journal-00-of-2", "journal-1-of-2.part",
                                          "journal-1-of-99999999"};
    char name[64];
    tsr_arena scratch = {0};
    tsr_shards found;
    cr_assert_eq(mkdir(fixture_path("out"), 0777), 0);
    cr_assert_eq(mkdir(fixture_path("out/" TSR_STATE_DIR), 0777), 0);
    for (size_t i = 0; i < sizeof kOthers / sizeof *kOthers; i++) {
        snprintf(name, sizeof name, "out/" TSR_STATE_DIR "/%s", kOthers[i]);
        fixture_text(name, "");
    }
    cr_assert_eq(tsr_shards_find(fixture_path("out"), &scratch, &found, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(found.n_present, 0);
    fixture_text("out/" TSR_STATE_DIR "/journal-1-of-2", "");
    cr_assert_eq(tsr_shards_find(fixture_path("out"), &scratch, &found, &err), TSR_OK, "%s", err.msg);
    cr_assert_eq(found.n_present, 1);
    cr_assert_eq(found.count, 2);
    cr_assert_eq(found.present[0], 1);
    tsr_arena_free(&scratch);
}
