#!/usr/bin/env python3
"""Generates the manual pages and shell completions of a built tessera: make.py TESSERA FOLDER FILE...

The files are those that Meson installs; a command without a page, or a page without a command, is an error."""

import pathlib
import sys

sys.dont_write_bytecode = True

import commands
import completion
import man


def main():
    tool, folder, *wanted = sys.argv[1:]
    version, codes, said = commands.read(tool)
    made = man.pages(version, codes, said) | completion.files(said)
    if set(made) != set(wanted):
        sys.exit(f"cli/meson.build lists other files than there are commands for: {sorted(set(made) ^ set(wanted))}")
    for name, text in made.items():
        pathlib.Path(folder, name).write_text(text)


if __name__ == "__main__":
    main()
