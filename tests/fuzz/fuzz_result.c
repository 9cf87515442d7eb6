/* libFuzzer target: whatever the bytes, a result is read or refused; what was read is summed up and written in every form, of
 * which the JSON is JSON, and so are the data of the page. Behind a form feed stands an earlier result, with which it is
 * compared; without one it is compared with itself. */
#include "report/writers.h"

#include "formats/json/json.h"
#include "report/page_choice.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What stands in a page is JSON that nothing can end but itself. */
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
    static const tsr_style kStyles[] = {{80, true, true}, {60, false, false}};
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
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
