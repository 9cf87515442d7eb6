/* Tests heads of replies: ranges, lengths, texts that are too long, bodies of errors. */
#include "formats/remote/reply.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static void take(tsr_reply *r, const char *line)
{
    tsr_reply_take(r, line, strlen(line));
}

Test(reply, heads)
{
    tsr_reply r = {.code = 500, .etag = "x"};
    take(&r, "HTTP/1.1 206 Partial Content\r\n");
    cr_assert_eq(r.code, 206);
    cr_assert_str_eq(r.etag, "");
    take(&r, "ETag:  \"abc\" \r\n");
    take(&r, "content-range: bytes 10-19/100\r\n");
    take(&r, "Content-Length: 10\r\n");
    take(&r, "X-Linked-Size: 100\r\n");
    take(&r, "X-Linked-ETag: \"def\"\r\n");
    take(&r, "X-Repo-Commit: 0123\r\n");
    cr_assert_str_eq(r.etag, "\"abc\"");
    cr_assert(r.ranged && r.first == 10 && r.last == 19 && r.total == 100);
    cr_assert(r.has_length && r.length == 10 && r.has_linked_size && r.linked_size == 100);
    cr_assert_str_eq(r.linked_etag, "\"def\"");
    cr_assert_str_eq(r.commit, "0123");
    take(&r, "HTTP/2 416\r\n");
    take(&r, "Content-Range: bytes */100\r\n");
    cr_assert(r.code == 416 && r.ranged && r.total == 100 && !r.has_length);
}

Test(reply, ranges_that_are_none)
{
    static const char *const kWrong[] = {
        "bytes 19-10/100", "bytes 1-2",   "bytes 1-2/", "bytes 1-2/*", "bytes -1-2/3",
        "bytes 1-2/3x",    "items 1-2/3", "bytes",      "bytes */",    "bytes 1-2/18446744073709551616"};
    for (size_t i = 0; i < sizeof kWrong / sizeof *kWrong; i++) {
        tsr_reply r = {0};
        char line[128];
        snprintf(line, sizeof line, "Content-Range: %s\r\n", kWrong[i]);
        take(&r, line);
        cr_assert_not(r.ranged, "%s", kWrong[i]);
    }
}

Test(reply, errors)
{
    tsr_reply r = {0};
    char many[1000];
    static const char kPage[] = "<html><b>Not</b>\n\n<i>Found</i>\x01</html>";
    tsr_reply_say(&r, kPage, sizeof kPage - 1);
    cr_assert_str_eq(r.said, "Not Found ");
    memset(many, 'x', sizeof many);
    tsr_reply_say(&r, many, sizeof many);
    cr_assert_eq(strlen(r.said), sizeof r.said - 1);
    take(&r, "HTTP/1.1 401 x\r\n");
    take(&r, "X-Error-Message: why\r\n");
    tsr_reply_say(&r, "more", 4);
    cr_assert_str_eq(r.said, "why");
}
