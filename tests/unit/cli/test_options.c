/* Tests the parser of options: values of every kind, messages for invalid ones, and suggestions for typos. */
#include "cli/io/common_options.h"
#include "tests/unit/refusal.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <string.h>

static bool force;
static const char *out;
static tsr_list globs;
static int format;
static uint64_t threads, memory, hidden;

static const tsr_option kOptions[] = {
    {"--force", TSR_OPT_FLAG, &force, NULL, "start over"},
    {"-o", TSR_OPT_TEXT, &out, "DST", "the output"},
    {"--exclude", TSR_OPT_LIST, &globs, "GLOB", "keep what matches"},
    {"--scale-fmt", TSR_OPT_CHOICE, &format, "f32|ue8m0", "how scales are stored"},
    {"--threads", TSR_OPT_POSITIVE, &threads, "N", "workers"},
    {"--memory", TSR_OPT_SIZE, &memory, "SIZE", "a bound"},
    {"--hidden", TSR_OPT_COUNT, &hidden, "N", NULL}, /* parsed, and not in the help */
    {NULL, TSR_OPT_FLAG, NULL, NULL, NULL},
};

enum { MOST = 2 };
static const char *positional[MOST];
static size_t n_positional;
static uint64_t given;
static tsr_err err;

/* Parses words that spaces separate. */
static tsr_status parse(const char *line)
{
    static char text[4096];
    static char *argv[256];
    int argc = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    err.msg[0] = '\0';
    return tsr_options_parse(kOptions, argc, argv, positional, MOST, &n_positional, &given, &err);
}

Test(options, every_kind_of_value)
{
    cr_assert_eq(
        parse("src --force -o dst --exclude a* --threads 0x10 --exclude=b=c --scale-fmt ue8m0 --memory 2GiB -"), TSR_OK,
        "%s", err.msg);
    cr_expect(force);
    cr_expect_str_eq(out, "dst");
    cr_assert_eq(globs.count, 2);
    cr_expect_str_eq(globs.items[0], "a*");
    cr_expect_str_eq(globs.items[1], "b=c"); /* the first '=' separates */
    cr_expect_eq(format, 1);
    cr_expect_eq(threads, 16);
    cr_expect_eq(memory, 2147483648u);
    cr_expect_eq(given, 0x3F);
    cr_assert_eq(n_positional, 2);
    cr_expect_str_eq(positional[0], "src");
    cr_expect_str_eq(positional[1], "-"); /* stdin or stdout, no option */
}

Test(options, what_is_not_given_keeps_its_default)
{
    threads = 7;
    out = "default";
    cr_assert_eq(parse("--memory=1k"), TSR_OK, "%s", err.msg);
    cr_expect_eq(threads, 7);
    cr_expect_str_eq(out, "default");
    cr_expect_eq(memory, 1000);
    cr_expect_eq(given, 1 << 5);
    cr_expect_eq(n_positional, 0);
}

Test(options, sizes)
{
    static const struct {
        const char *text;
        uint64_t bytes; /* 0: refused */
    } kCases[] = {
        {"4096", 4096},      {"1k", 1000},
        {"1K", 1000},        {"1Ki", 1024},
        {"1KiB", 1024},      {"5GB", 5000000000u},
        {"1.5MiB", 1572864}, {"2TiB", 1ull << 41},
        {"3b", 3},           {"", 0},
        {"GB", 0},           {"-1", 0},
        {"1X", 0},           {"0", 0},
        {"0.5", 0},          {"1GBs", 0},
        {"1e30", 0},         {"nan", 0},
        {"1 GB", 0},         {"16EiB", 0},
        {"100000000TiB", 0},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        char word[64];
        char *argv[] = {word};
        snprintf(word, sizeof word, "--memory=%s", kCases[i].text);
        memory = 0;
        const tsr_status status = tsr_options_parse(kOptions, 1, argv, positional, MOST, &n_positional, NULL, &err);
        cr_expect_eq(status, kCases[i].bytes == 0 ? TSR_E_USAGE : TSR_OK, "%s", word);
        if (status == TSR_OK)
            cr_expect_eq(memory, kCases[i].bytes, "%s", word);
        else
            cr_expect_not_null(strstr(err.msg, "a size such as 512MiB or 5GB"), "%s", err.msg);
    }
}

Test(options, refusals_name_the_option_and_what_it_takes)
{
    static const refusal kCases[] = {
        {"--theads 4", "unknown option '--theads' (did you mean '--threads'?)"},
        {"--thraeds 4", "did you mean '--threads'?"},
        {"--forc", "did you mean '--force'?"},
        {"--exlude=a", "unknown option '--exlude' (did you mean '--exclude'?)"},
        {"--memroy", "did you mean '--memory'?"},
        {"--scale_fmt f32", "did you mean '--scale-fmt'?"},
        {"--force=yes", "--force takes no value"},
        {"-o", "-o needs a value: DST"},
        {"--threads", "--threads needs a value: N"},
        {"--threads many", "--threads: 'many' is not a number"},
        {"--threads -1", "--threads: '-1' is not a number of at least 1"},
        {"--threads 0", "--threads: '0' is not a number of at least 1"},
        {"--threads 99999999999999999999", "is not a number"},
        {"--threads 4x", "'4x' is not a number"},
        {"--scale-fmt f16", "--scale-fmt: 'f16' is not one of f32|ue8m0"},
        {"--scale-fmt ue8m", "(did you mean 'ue8m0'?)"},
        {"--scale-fmt f", "'f' is not one of"},
        {"a b c", "unexpected argument 'c'"},
        {"-o a\nb", "-o: 'a\nb' contains a control character"},
        {"a\x7f", "contains a control character"},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        cr_expect_eq(parse(kCases[i].text), TSR_E_USAGE, "%s", kCases[i].text);
        cr_expect_not_null(strstr(err.msg, kCases[i].message), "%s: %s", kCases[i].text, err.msg);
    }
    cr_expect_eq(parse("--utterly-different"), TSR_E_USAGE);
    cr_expect_null(strstr(err.msg, "did you mean"), "%s", err.msg);
}

Test(options, a_list_has_an_end)
{
    char line[2048] = "";
    for (size_t i = 0; i < sizeof globs.items / sizeof *globs.items; i++)
        strcat(line, "--exclude=x ");
    cr_expect_eq(parse(line), TSR_OK, "%s", err.msg);
    globs.count = 0;
    strcat(line, "--exclude=x");
    cr_expect_eq(parse(line), TSR_E_USAGE);
    cr_expect_not_null(strstr(err.msg, "given more than 64 times"), "%s", err.msg);
}

/* A table ends in its sentinel. An appended row is found, listed in the help and suggested like others. */
Test(options, tables_can_be_joined)
{
    static bool quiet, help;
    static const tsr_option kMore[] = {{"--quiet", TSR_OPT_FLAG, &quiet, NULL, "say less"},
                                       {"--help", TSR_OPT_FLAG, &help, NULL, "this text"},
                                       {NULL, TSR_OPT_FLAG, NULL, NULL, NULL}};
    tsr_option all[TSR_MAX_OPTIONS];
    for (size_t i = 0; i < TSR_MAX_OPTIONS; i++)
        all[i] = (tsr_option){"--left-over", TSR_OPT_FLAG, NULL, NULL, NULL};
    all[0].name = NULL;
    tsr_options_append(all, kOptions);
    tsr_options_append_topic(all, "More", kMore);
    cr_assert_str_eq(all[5].name, "--memory");
    cr_assert_str_eq(all[7].name, "--quiet");
    cr_assert_null(all[9].name);
    cr_expect_str_eq(all[7].topic, "More");
    cr_expect_null(all[8].topic);
    char *argv[] = {(char[]){"--quiet"}, (char[]){"--help"}};
    cr_assert_eq(tsr_options_parse(all, 2, argv, positional, MOST, &n_positional, &given, &err), TSR_OK, "%s", err.msg);
    cr_expect(quiet && help);
    cr_expect_eq(given, 3 << 7);
    argv[0] = (char[]){"--quite"};
    cr_expect_eq(tsr_options_parse(all, 1, argv, positional, MOST, &n_positional, &given, &err), TSR_E_USAGE);
    cr_expect_not_null(strstr(err.msg, "did you mean '--quiet'?"), "%s", err.msg);
}

Test(options, help_has_a_line_for_each, .init = cr_redirect_stdout)
{
    tsr_options_print_help("Usage: tessera try\n\n", kOptions);
    fflush(stdout);
    cr_assert_stdout_eq_str("Usage: tessera try\n\n"
                            "  --force                   start over\n"
                            "  -o DST                    the output\n"
                            "  --exclude GLOB            keep what matches\n"
                            "  --scale-fmt f32|ue8m0     how scales are stored\n"
                            "  --threads N               workers\n"
                            "  --memory SIZE             a bound\n");
}

/* Suggests words with one wrong letter for a short word, with a third of the letters for a long one, and no unrelated
 * word. */
Test(options, the_nearest_word)
{
    static const struct {
        const char *word, *words, *meant; /* NULL: none is near */
    } kCases[] = {
        {"quantise", "quantize|convert|inspect", "quantize"},
        {"qauntize", "quantize|convert|inspect", "quantize"},
        {"inspct", "quantize|convert|inspect", "inspect"},
        {"convertt", "quantize|convert|inspect", "convert"},
        {"verify", "quantize|convert|inspect", NULL},
        {"x", "y", NULL},
        {"ab", "ac|ad", "ac"},       /* the first of equals */
        {"nit", "int|float", "int"}, /* two neighbours swapped are one mistake */
        {"", "a", NULL},
        {"deepseek-pm", "bf16|deepseek-mp", "deepseek-mp"},
        {"a-word-that-is-longer-than-any-name-in-any-table", "a-word", NULL},
    };
    for (size_t i = 0; i < sizeof kCases / sizeof *kCases; i++) {
        char text[80], wanted[80] = "";
        if (kCases[i].meant != NULL)
            snprintf(wanted, sizeof wanted, " (did you mean '%s'?)", kCases[i].meant);
        cr_expect_str_eq(tsr_did_you_mean(kCases[i].word, kCases[i].words, text), wanted, "%s", kCases[i].word);
    }
}

Test(options, blocks)
{
    static const char *const kWrong[] = {"128", "128x", "x128", "0x128", "128x0", "4097x1", "128x128x1", "a", ""};
    tsr_block b = {9, 9};
    cr_expect(tsr_parse_block("--block", "64x4096", &b, &err) == TSR_OK && b.rows == 64 && b.cols == 4096);
    cr_expect(tsr_parse_block("--block", NULL, &b, &err) == TSR_OK && b.rows == 0 && b.cols == 0);
    for (size_t i = 0; i < sizeof kWrong / sizeof *kWrong; i++) {
        cr_expect_eq(tsr_parse_block("--block", kWrong[i], &b, &err), TSR_E_USAGE, "'%s'", kWrong[i]);
        cr_expect_not_null(strstr(err.msg, "--block"), "%s", err.msg);
        cr_expect_not_null(strstr(err.msg, "ROWSxCOLUMNS, each from 1 to 4096"), "%s", err.msg);
    }
}

Test(options, numbers)
{
    static const struct {
        const char *text;
        tsr_range range;
        const char *wanted;
    } kWrong[] = {
        {"", TSR_ANY_NUMBER, "a number"},
        {"x", TSR_ANY_NUMBER, "a number"},
        {"1x", TSR_ANY_NUMBER, "a number"},
        {"inf", TSR_ANY_NUMBER, "a number"},
        {"nan", TSR_SHARE, "a number from 0 to 1"},
        {"1e999", TSR_FROM_ZERO, "a number of at least 0"},
        {"95", TSR_SHARE, "a number from 0 to 1"},
        {"-0.1", TSR_SHARE, "a number from 0 to 1"},
        {"-1", TSR_FROM_ZERO, "a number of at least 0"},
    };
    double value = 5;
    cr_expect(tsr_parse_number("--max-kl", NULL, TSR_SHARE, &value, &err) == TSR_OK && value == 5);
    cr_expect(tsr_parse_number("--max-kl", "-2.5e-3", TSR_ANY_NUMBER, &value, &err) == TSR_OK && value == -2.5e-3);
    cr_expect(tsr_parse_number("--max-kl", "1", TSR_SHARE, &value, &err) == TSR_OK && value == 1);
    for (size_t i = 0; i < sizeof kWrong / sizeof *kWrong; i++) {
        char message[80];
        snprintf(message, sizeof message, "--max-kl: '%s' is not %s", kWrong[i].text, kWrong[i].wanted);
        cr_expect_eq(tsr_parse_number("--max-kl", kWrong[i].text, kWrong[i].range, &value, &err), TSR_E_USAGE);
        cr_expect_str_eq(err.msg, message);
    }
}

Test(options, words_of_a_list_are_whole_words)
{
    cr_expect(tsr_is_listed("--scale-fmt --scales --block", "--scales"));
    cr_expect(tsr_is_listed("--scale-fmt --scales --block", "--block"));
    cr_expect(tsr_is_listed("--block", "--block"));
    cr_expect_not(tsr_is_listed("--scale-fmt --scales --block", "--scale"));
    cr_expect_not(tsr_is_listed("--scale-fmt --scales --block", "scales"));
    cr_expect_not(tsr_is_listed("", "--block"));
    cr_expect_not(tsr_is_listed("--scales --block", ""));
    cr_expect_not(tsr_is_listed("--scales --block", "--scales --block"));
}
