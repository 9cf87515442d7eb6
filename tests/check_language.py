#!/usr/bin/env python3
"""Checks the language of comments, pages and commit subjects: counts what CONTRIBUTING.md rules out.

LIMITS may only be lowered. --list prints each place, --list FILE... only those of these files."""

import argparse
import pathlib
import re
import subprocess
import sys
import tokenize

from check_sizes import sources

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMITS = {
    "comments that begin with What, Whose, Whether or Of": 0,
    "comments in C that begin with 'of' and lack a subject": 0,
    "words that a comment or a page should not use": 0,
    "metaphors in comments of build files and scripts": 0,
    "lines of pages above 120 columns": 0,
    "pages above 2,500 words": 0,
    "commit subjects that are not 'area: verb object' in 72 columns": 0,
}
FIRST_JUDGED = "8f17262"  # subjects before it are what they are
BEGINS = re.compile(r"(?:What|Whose|Whether|Of)\b")
WORDS = re.compile(r"\b(nobody|whoever|likewise|to be had|is told|are told|comes to|come to|stands)\b", re.I)
METAPHORS = re.compile(r"\b(rooms?|strangers?|crew|owed|said|says|tells?|told|apart|hands? (?:on|in|over)|unhurried|to be had|had)\b", re.I)
SUBJECT = re.compile(r"[a-z0-9][\w/., +-]*: \S.*")
MOST_COLUMNS, MOST_WORDS, MOST_SUBJECT = 120, 2500, 72
GENERATED = {"docs/families.md"}


def c_comments(text):
    """Yields (line, text) of each comment of a C or CUDA source. No string in the tree contains a comment mark."""
    for found in re.finditer(r"/\*.*?\*/|//[^\n]*", text, re.S):
        yield text.count("\n", 0, found.start()) + 1, re.sub(r"\s*\n\s*\*?\s*", " ", found[0].strip("/* \n"))


def python_comments(path):
    """Yields (line, text) of comments and of docstrings."""
    with open(path, "rb") as file:
        before = None
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string.lstrip("#! ")
            elif token.type == tokenize.STRING and before in (None, tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.NL):
                yield token.start[0], token.string.strip("\"' \n")
            before = token.type if token.type != tokenize.COMMENT else before


def hash_comments(text):
    """Yields (line, text) of comments of a shell script, Meson file or makefile: a # at the beginning of a line or after a
    space."""
    for number, line in enumerate(text.splitlines(), 1):
        found = re.search(r"(?:^|\s)# (.*)", line)
        if found:
            yield number, found[1].strip()


def comments(path):
    text = (ROOT / path).read_text()
    if path.suffix == ".py":
        return python_comments(ROOT / path)
    return c_comments(text) if path.suffix in (".c", ".h", ".cu", ".cuh", ".inc") else hash_comments(text)


def build_files():
    """Returns the files of the build, of packages and of continuous integration, and all shell scripts."""
    found = [path for pattern in ("meson.build", "meson_options.txt", "*.sh", "*.ini") for path in ROOT.rglob(pattern)]
    found += [ROOT / name for name in ("dev", "Dockerfile", ".ci/run", "debian/rules")]
    return sorted(path.relative_to(ROOT) for path in found if path.is_file() and not path.relative_to(ROOT).parts[0].startswith((".venv", "build")))


def pages():
    return sorted(path.relative_to(ROOT) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def subjects():
    """Returns the subjects of the commits after FIRST_JUDGED; none if the history is missing."""
    done = subprocess.run(["git", "log", "--no-merges", "--format=%s", f"{FIRST_JUDGED}..HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []


def find():
    begins, lacking, words, metaphors, wide = [], [], [], [], []
    scripts = build_files()
    for path in sorted({*sources(), *scripts}):
        for line, text in comments(path):
            if path in scripts:
                metaphors += [f"{path}:{line}: {found[0]}" for found in METAPHORS.finditer(text)]
            if BEGINS.match(text):
                begins.append(f"{path}:{line}: {text[:80]}")
            if path.suffix != ".py" and text.startswith("of "):
                lacking.append(f"{path}:{line}: {text[:80]}")
            words += [f"{path}:{line}: {found[0]}" for found in WORDS.finditer(text)]
    long = [f"{path}: {words_of} words" for path in pages() if str(path) not in GENERATED
            and (words_of := len((ROOT / path).read_text().split())) > MOST_WORDS]
    for path in pages():
        code = False
        for line, text in enumerate((ROOT / path).read_text().splitlines(), 1):
            code ^= text.startswith("```")
            if code or text.startswith("    "):
                continue
            words += [f"{path}:{line}: {found[0]}" for found in WORDS.finditer(text)]
            if len(text) > MOST_COLUMNS and not text.startswith("|"):
                wide.append(f"{path}:{line}: {len(text)} columns")
    wrong = [s for s in subjects() if len(s) > MOST_SUBJECT or not SUBJECT.fullmatch(s)]
    return dict(zip(LIMITS, (begins, lacking, words, metaphors, wide, long, wrong)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", nargs="*", metavar="FILE", help="print the places, all or those of the files")
    options = parser.parse_args()
    failed = 0
    found = find()
    for what, places in found.items():
        verdict = "ok" if len(places) == LIMITS[what] else "FAILED" if len(places) > LIMITS[what] else "ok; the limit can be lowered"
        failed += len(places) > LIMITS[what]
        print(f"{what:64} {len(places):5}, limit {LIMITS[what]:5}  {verdict}")
        for place in places if options.list is not None else []:
            if not options.list or place.split(":")[0] in options.list:
                print(f"    {place}")
    print(f"{len(found) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
