#!/usr/bin/env python3
"""Combines the files of the page of `tessera report --html`, and writes them as a C source: embed.py LIBRARY OUTPUT.c.

page.html has a comment with the name of each part: a file of this folder, the library, or data of the report
(FILLED_IN). The page is not compressed, because that would need another tool at build time."""

import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = "chart.js"
FILLED_IN = ("title", "verdict", "reason", "version", "subject", "data")
PLACE = re.compile(r"<!--([a-z_.]+)-->")


def library(path):
    """The library, which must be the one that page.js speaks to, and may not name anything outside of the page."""
    text = path.read_text()
    if not re.match(r"/\*!\s*\* Chart\.js v3\.", text):
        sys.exit(f"{path}: this is not Chart.js 3, for which report/page was written")
    return re.sub(r"^//# sourceMappingURL=.*$", "", text, flags=re.M)


def inlined(path):
    """A file for a script or style element. Nothing in it may end that element."""
    text = library(path) if path.parent != HERE else path.read_text()
    if re.search(r"</(script|style)|<!--", text, re.I):
        sys.exit(f"{path}: it holds the end of a script or style, or the beginning of a comment, and cannot stand in the page")
    return text


def parts(chart):
    """(text, name of what follows it or None) in the order of the page."""
    text = ""
    pieces = PLACE.split((HERE / "page.html").read_text())
    for at, piece in enumerate(pieces):
        if at % 2 == 0:
            text += piece
        elif piece in FILLED_IN:
            yield text, piece
            text = ""
        else:
            text += inlined(chart if piece == LIBRARY else HERE / piece)
    yield text, None


def c_source(page):
    """The C source that holds the parts."""
    lines = ['/* Made by report/page/embed.py. */', '#include "report/write/page.h"', ""]
    table = []
    for at, (text, then) in enumerate(page):
        data = text.encode()
        lines.append(f"static const unsigned char kPart{at}[] = {{")
        lines += [",".join(map(str, data[i:i + 40])) + "," for i in range(0, len(data), 40)]
        lines.append("};")
        table.append("    {kPart%d, sizeof kPart%d, %s}," % (at, at, f'"{then}"' if then else "NULL"))
    return "\n".join([*lines, "", "static const tsr_page_part kParts[] = {", *table, "};", "",
                      "const tsr_page_part *tsr_page_parts(void)", "{", "    return kParts;", "}", ""])


if __name__ == "__main__":
    pathlib.Path(sys.argv[2]).write_text(c_source(list(parts(pathlib.Path(sys.argv[1])))))
