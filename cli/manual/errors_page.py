#!/usr/bin/env python3
"""Writes docs/errors.md as a C source, a text for each heading: errors_page.py docs/errors.md OUTPUT.c."""

import json
import pathlib
import re
import sys


def plain(text):
    """Markdown's links without their addresses; the words stay."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)


def main():
    parts = re.split(r"^## (.+)\n", plain(pathlib.Path(sys.argv[1]).read_text()), flags=re.M)
    sections = zip(parts[1::2], parts[2::2])
    rows = [f"    {{{json.dumps(heading)}, {json.dumps(text.strip() + chr(10), ensure_ascii=True)}}}," for heading, text in sections]
    pathlib.Path(sys.argv[2]).write_text("\n".join(
        ["/* Made by cli/manual/errors_page.py. */", '#include "cli/help/error_pages.h"', "#include <stddef.h>", "",
         "const tsr_error_section tsr_error_sections[] = {", *rows, "    {NULL, NULL},", "};", ""]))


if __name__ == "__main__":
    main()
