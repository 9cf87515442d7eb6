/* Describes how a job read, wrote and linked its files, as text and JSON. */
#include "cli/io/io_summary.h"

#include "formats/json/json_write.h"

#include <stdio.h>

static bool is_direct(const tsr_io_summary *io)
{
    return io->reads || io->writes;
}

const char *tsr_io_text(const tsr_io_summary *io, char text[256])
{
    snprintf(text, 256, "%s%s%s%s%s", is_direct(io) ? "direct I/O" : "through the page cache",
             is_direct(io) && io->ring ? " by io_uring" : "", io->why[0] == '\0' ? "" : " (", io->why,
             io->why[0] == '\0' ? "" : ")");
    return text;
}

void tsr_io_json(tsr_text *t, const tsr_io_summary *io)
{
    tsr_json_member_object(t, "io", true);
    tsr_json_member_string(t, "mode", is_direct(io) ? "direct" : "buffered");
    tsr_json_member_string(t, "reads", io->reads ? "direct" : "buffered");
    tsr_json_member_string(t, "writes", io->writes ? "direct" : "buffered");
    tsr_json_member_string(t, "queue", io->ring ? "io_uring" : "none");
    tsr_json_member_string(t, "why", io->why);
    tsr_json_end_object(t);
}

const char *tsr_links_text(const tsr_links_summary *links, char text[384])
{
    snprintf(text, 384, "%llu file%s linked, %llu copied%s%s%s", (unsigned long long)links->linked,
             tsr_plural(links->linked), (unsigned long long)links->copied, links->copied == 0 ? "" : " (", links->why,
             links->copied == 0 ? "" : ")");
    return text;
}

void tsr_links_json(tsr_text *t, const tsr_links_summary *links)
{
    tsr_json_member_object(t, "links", true);
    tsr_json_member_u64(t, "linked", links->linked);
    tsr_json_member_u64(t, "copied", links->copied);
    tsr_json_member_string(t, "why", links->why);
    tsr_json_end_object(t);
}
