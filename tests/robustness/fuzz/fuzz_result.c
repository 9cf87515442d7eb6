/* libFuzzer target: a result is read or rejected. An accepted result is written in every format, and the JSON must be
 * valid.
 *
 * The bytes after a form feed are the baseline; without one, the result is its own baseline. The bytes after a
 * vertical tab are the block statistics of a report with one tensor. */
#include "report/write/terminal/terminal_parts.h"
#include "report/write/writers.h"

#include "formats/blocks/block_file.h"
#include "formats/json/json.h"
#include "report/blocks.h"
#include "report/write/page_choice.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The data of a page is JSON that nothing inside can end. */
static void check_page(const tsr_text *data)
{
    tsr_json_reader r = tsr_json_open("page", data->data, data->size);
    if (tsr_json_skip(&r, NULL, NULL) != TSR_OK || tsr_json_finish(&r, NULL) != TSR_OK)
        abort();
    if (memchr(data->data, '<', data->size) != NULL)
        abort();
}

/* Every form of a report. */
static void write_all(const tsr_report *report)
{
    static const tsr_style kStyles[] = {{80, true, true, "--csv"}, {60, false, false, "--csv"}};
    tsr_text text = {0};
    for (size_t i = 0; i < sizeof kStyles / sizeof *kStyles; i++)
        tsr_write_terminal(&text, report, &kStyles[i]);
    tsr_write_markdown(&text, report);
    tsr_write_csv(&text, report);
    if (tsr_write_junit(&text, report, NULL) != TSR_OK)
        abort();
    tsr_text_free(&text);
    static const tsr_page_part kPage[] = {{(const unsigned char *)"", 0, "data"}, {(const unsigned char *)"", 0, NULL}};
    for (size_t most = 1; most <= TSR_PAGE_ROWS; most += TSR_PAGE_ROWS - 1) {
        (void)tsr_write_html(&text, report, kPage, most);
        check_page(&text);
        tsr_text_free(&text);
    }
    tsr_write_json(&text, report);
    tsr_json_reader r = tsr_json_open("report", text.data, text.size);
    if (tsr_json_skip(&r, NULL, NULL) != TSR_OK || tsr_json_finish(&r, NULL) != TSR_OK)
        abort();
    tsr_text_free(&text);
}

/* The same forms of the comparison, where both have something in common. */
static void write_compared(tsr_report *report, const char *old, size_t size)
{
    const tsr_result *const now = &report->results[0];
    if (tsr_baseline_of_text(&report->baseline, now, "old", old, size, 0.1, NULL) != TSR_OK)
        return;
    report->outcome = report->baseline.count > 0 ? TSR_OUTCOME_FAILED : TSR_OUTCOME_PASSED;
    write_all(report);
    tsr_baseline_free(&report->baseline);
}

/* A report whose only tensor has these blocks; and the bytes as a whole file of blocks. */
static void read_blocks(const uint8_t *data, size_t size)
{
    static const char kText[] = "{\"schema\":\"tessera-quantization-report/1\",\"version\":\"0\",\"command\":\"c\","
                                "\"tensors\":[{\"name\":\"a\",\"sqnr_db\":20,\"worst_block_error\":0.5}],\"whole\":{}}";
    tsr_report report;
    tsr_text file = {0};
    if (tsr_report_of_text(&report, "fuzz", kText, sizeof kText - 1, NULL) != TSR_OK ||
        tsr_blocks_add_header(&file, 1, NULL) != TSR_OK || tsr_blocks_add_frame(&file, data, size, NULL) != TSR_OK)
        abort();
    tsr_result *const result = &report.results[0];
    if (tsr_blocks_take(result, &report.overviews[0], "whole", data, size, NULL) != TSR_OK)
        result->blocks = NULL;
    if (tsr_blocks_take(result, &report.overviews[0], "framed", file.data, file.size, NULL) != TSR_OK)
        result->blocks = NULL;
    write_all(&report);
    tsr_text_free(&file);
    tsr_report_free(&report);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == '\v') {
        read_blocks(data + 1, size - 1);
        return 0;
    }
    tsr_report report;
    const char *const text = (const char *)data, *const cut = size > 0 ? memchr(data, '\f', size) : NULL;
    const size_t n = cut == NULL ? size : (size_t)(cut - text);
    if (tsr_report_of_text(&report, "fuzz", text, n, NULL) != TSR_OK)
        return 0;
    write_all(&report);
    if (report.count == 1)
        write_compared(&report, cut == NULL ? text : cut + 1, cut == NULL ? n : size - n - 1);
    tsr_report_free(&report);
    return 0;
}
