#!/usr/bin/env python3
"""Checks the code blocks of docs/*.md, README.md and CONTRIBUTING.md.

Blocks marked sh are run page by page in a folder with small models (page_models.py), then those marked python. In
other blocks, lines that begin with a command are run one by one. If they contain SRC, [..], ... or an address, only
their options are checked. Commands for developers are checked against existing commands, tests and files. Blocks of unknown kinds
fail.

Also compares the headings of docs/errors.md with the ids of errors, and these with the source."""

import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness
import page_models

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
# Blocks that another test runs, or that no test can: recipes of CI services (tests/cli/test_ci_recipes.py) and clusters
# (tests/install/cluster.py), programs over the library (tests/install/library.py), a signature by a key that is there
# (tests/cli/verify/test_manifest.py), what a program printed, and servers' command lines.
KNOWN = {"sh", "python", "text", "yaml", "groovy", "bash", "console"}
RUN_ELSEWHERE = {"ci.md": {"", "yaml", "groovy"}, "cluster.md": {"yaml", "bash"}, "library.md": {"", "c", "cpp"}, "python.md": {"", "python", "sh"},
                 "verify-manifest.md": {"sh"}}
# Lines for developers, by their first word, and why they are read and not run.
RECIPES = {"./dev": "a suite, or minutes: tests/install/dev.py runs ./dev itself", "meson": "what is tested was made so",
           "python3": "checks of the suite, or a GPU's", ".venv/bin/python": "checks of the suite",
           "build/cli/tessera": "of a scheme that is not there yet", "export": "sets what is given to these tests",
           "mkdir": "before what is cloned", "git": "needs the network"}


def fences(text):
    """Yields (language, lines, number of the first line) of each fenced block."""
    found, language, lines = [], None, []
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r" *```(\w*)", line)
        if mark and language is None:
            language, lines, first = mark.group(1), [], number + 1
        elif mark:
            found.append((language, lines, first))
            language = None
        elif language is not None:
            lines.append(line)
    return found


def commands(lines):
    """Returns the lines of a shell, with continued lines joined."""
    return [line for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines() if line.strip() and not line.startswith("#")]


# As many ranks as a page says, on a machine of any size, for root as well: the names of Open MPI 4, then those of 5.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
       "OMPI_MCA_hwloc_base_binding_policy": "none",
       "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PRTE_MCA_hwloc_default_binding_policy": "none"}


def shell(tool, line, where):
    done = subprocess.run(["bash", "-c", line], cwd=where, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          env={"PATH": f"{tool.parent}:/usr/bin:/bin", "HOME": str(where), "LC_ALL": "C.UTF-8", **MPI})
    return done.returncode, done.stdout, done.stderr


def run_page(checks, tool, page, where):
    """Runs the marked blocks of a page. Returns the output of its Python, if any."""
    told = ""
    for language, lines, first in fences(page.read_text()):
        place = f"{page.name}:{first}"
        if language in RUN_ELSEWHERE.get(page.name, ()):
            continue
        if language == "sh":
            for line in commands(lines):
                code, out, err = shell(tool, line, where)
                checks.check(f"{place}: {line}", code == 0, f"{code}: {out[-400:]}{err[-400:]}")
        elif language == "python":
            done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=where, capture_output=True, text=True)
            checks.check(f"{place}: Python", done.returncode == 0, done.stderr[-600:])
            told += done.stdout
        elif language not in KNOWN:
            checks.check(f"{place}: a block of a kind that is run or known", False, repr(language))
    return told


def decoded(checks, tool, told, where):
    """The decoder of docs/formats.md returns the tool's weights, within one rounding to BF16."""
    rows = {line.split()[0]: [float(number) for number in line.split()[1:]] for line in told.splitlines()}
    checks.check("formats.md: the decoder has decoded", len(rows) == 6 and all(len(row) == 12 for row in rows.values()), told)
    for folder in set(rows) - {"source"}:
        code, _, err = harness.run(tool, ["convert", where / folder, "-o", where / f"{folder}-bf16", "--to", "bf16", "--quiet"])
        tensors = harness.read_safetensors(where / f"{folder}-bf16/model.safetensors")[1]
        dtype, shape, data = tensors["model.layers.0.self_attn.q_proj.weight"]
        near = [abs(value - bf16_at(data, 2 * (r * shape[1] + c))) <= abs(value) / 256
                for value, (r, c) in zip(rows[folder], [(r, c) for r in (0, 7, 130) for c in (0, 1, 37, 200)])]
        checks.check(f"formats.md: {folder} by hand and by convert --to bf16", code == 0 and dtype == "BF16" and all(near), err or near)


def bf16_at(data, at):
    return struct.unpack("<f", b"\0\0" + bytes(data[at:at + 2]))[0]


def is_form(line):
    return bool(re.search(r"[\[\]]|\.\.\.|://| [A-Z]{2,}\b|\b(SRC|DST|PATH|MODEL|RULES|RESULT|JOBS|[AB] [AB])\b", line))


def lacks(tool, line):
    """Returns what a line needs and this build or machine lacks, or None."""
    features = json.loads(harness.run(tool, ["--version", "--json"])[1])["features"]
    if line.startswith("mpirun") and not (features["mpi"] and shutil.which("mpirun")):
        return "MPI"
    return "Chart.js" if "--html" in line and not features["html"] else None


def single_lines(checks, tool, said, where):
    """Checks the lines of unmarked blocks: forms are parsed, commands are run."""
    known = {command["name"]: {option["name"] for option in command["options"]} for command in said["commands"]}
    forms = ran = 0
    for page in PAGES:
        if "" in RUN_ELSEWHERE.get(page.name, ()):
            continue
        for line in re.findall(r"^(?: {4,}(?:\$ )?|\$ )((?:tessera|mpirun) .*)", page.read_text(), re.M):
            line = re.split(r" {2,}", line)[0]
            words = line[line.index("tessera "):].split()
            name = " ".join(words[1:3]) if " ".join(words[1:3]) in known else words[1]
            unknown = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", " ".join(words))) - known.get(name, set())
            checks.check(f"{page.name}: {line}: its options are there", name in known and not unknown, unknown)
            forms += 1
            if is_form(line):
                continue
            if lacks(tool, line):
                print(f"skipped: {page.name}: {line} ({lacks(tool, line)} is missing)")
                continue
            code, out, err = shell(tool, line, where)
            checks.check(f"{page.name}: {line}", code == 0, f"{code}: {out[-300:]}{err}")
            ran += 1
            if "-o" in words and not line.startswith("mpirun"):  # the next line of mpirun verifies what the one before made
                remove(where / words[words.index("-o") + 1])
        remove(where / "out")
    checks.check("forms and single commands were found", forms > 25 and ran >= 8, (forms, ran))


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def documents(checks, tool, where):
    """Reads and writes the examples of JSON with the commands. Those of docs/batch.md have made the results of
    page_models.py."""
    for line in ("tessera quantize DeepSeek-V3-BF16 -o ruled --rules rules-of-the-page.json --dry-run",
                 "tessera quantize model -o ranged --scheme int8-channel --activations ranges-of-the-page.json --exclude '*.self_attn.*' "
                 "--exclude '*.gate_proj.*' --exclude 'model.layers.1.*' --activation-zero-points"):
        code, out, err = shell(tool, line, where)
        checks.check(f"the page's own file: {line}", code == 0, f"{code}: {out[-300:]}{err}")
    remove(where / "ranged")
    (where / "broken").mkdir()
    (where / "broken/model.safetensors").write_bytes(b"?" * 20)
    (where / "broken/config.json").write_text("{}")
    told = json.loads(shell(tool, "tessera verify broken --against broken --json - 2>/dev/null", where)[1])
    shown = json.loads(page_models.json_blocks("exit-codes.md")[0])
    checks.check("exit-codes.md: the JSON of an error", told.keys() == shown.keys() and told["schema"] == shown["schema"] and
                 told["error"].keys() == shown["error"].keys() and told["error"]["code"] == shown["error"]["code"], told)


def recipes(checks):
    """Checks that lines for developers name existing commands, checks, suites and files. NAME is a placeholder."""
    dev, suite = (ROOT / "dev").read_text(), (ROOT / "tests/meson.build").read_text() + (ROOT / "tests/unit/meson.build").read_text()
    usage = {tuple(words.split()) for words in re.findall(r"^#   \./dev ([a-z-]+(?: [a-z]+)?)", dev, re.M)}
    commands, names = {words[0] for words in usage}, re.findall(r"^ *'([^']*)'(?: \+ suffix)?:", suite, re.M)
    read, wrong = 0, []
    for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        if "" in RUN_ELSEWHERE.get(page.name, ()):
            continue
        for line in re.findall(rf"^    ((?:{'|'.join(map(re.escape, RECIPES))}) .*)", page.read_text(), re.M):
            read += 1
            words = re.split(r" {2,}| #", line)[0].split()
            if words[0] == "./dev":
                second = len(words) > 2 and re.fullmatch(r"[a-z]+", words[2]) and words[1] in ("gpu", "bench")
                wrong += [line] * (words[1] not in commands or bool(second) and tuple(words[1:3]) not in usage)
            if line.startswith("./dev test "):
                wrong += [f"{line}: {name}" for name in re.findall(r'"(.*?)"', line)
                          if not any(name in one for one in names) and not any((ROOT / "tests/cli").rglob(name.removeprefix("cli ")))]
            wrong += [f"{line}: {one}" for one in re.findall(r"--suite (\w+)", line) if not re.search(rf"\b{one}\b", suite)]
            wrong += [f"{line}: {word}" for word in words if re.match(r"(tests|tools|python)/", word) and "NAME" not in word and
                      not (ROOT / word).exists()]
        wrong += [f"{page.name}: {path}" for path in re.findall(r"`((?:cli|common|convert|formats|kernels|lib|python|quantize|report|tests|tools|verify)"
                                                                r"/[\w/.-]+\.(?:c|h|cu|py|sh|map|build))`", page.read_text())
                  if "NAME" not in path and not (ROOT / path).exists()]
    checks.check("lines for developers name what there is", read > 30 and not wrong, (read, wrong))


def error_ids(checks):
    """Each heading of docs/errors.md is that of an id in common/error_ids.h, in the same order, and the source sets each id."""
    page = (ROOT / "docs/errors.md").read_text()
    table = re.findall(r'^ +X\(([A-Z_]+), "([a-z-]+)"\)', (ROOT / "common/error_ids.h").read_text(), re.M)
    headings = re.findall(r"^## (\S+)$", page, re.M)
    checks.check("errors.md has a section for each id, and no other", [heading for _, heading in table] == headings and len(headings) > 15,
                 set(headings) ^ {heading for _, heading in table})
    source = ""
    for folder in ("common", "convert", "formats", "kernels", "quantize", "verify"):
        source += "".join(path.read_text() for path in (ROOT / folder).rglob("*.[ch]"))
    for name, heading in table:
        checks.check(f"errors.md#{heading}: an error has this id", re.search(rf"\bTSR_ERROR_{name}\b", source))


def told_at_a_terminal(checks, tool, where):
    """Checks that messages name the section of the page on a terminal, and otherwise do not."""
    (where / "cut").mkdir()
    (where / "cut/model.safetensors").write_bytes(struct.pack("<Q", 80000) + b"{}")
    (where / "cut/config.json").write_text("{}")
    piped = shell(tool, "tessera inspect cut", where)
    checks.check("errors: a program reads one line", piped[0] == 3 and piped[2].count("\n") == 1 and "truncated" in piped[2], piped)
    if not shutil.which("script"):
        print("skipped: what a terminal shows of an error (script of util-linux)")
        return
    code, out, _ = shell(tool, "script -qec 'tessera inspect cut' /dev/null", where)
    checks.check("errors: a person is told where to read more", code == 3 and "more: tessera help errors truncated" in out, out)
    code, out, err = shell(tool, "tessera help errors truncated", where)
    page = (ROOT / "docs/errors.md").read_text()
    body = re.search(r"^## truncated\n(.*?)^## ", page, re.M | re.S).group(1)
    checks.check("errors: the tool has that part of the page", code == 0 and " ".join(body.split()) in " ".join(out.split()), (code, out, err))
    code, out, _ = shell(tool, "tessera help errors", where)
    checks.check("errors: and all of it", code == 0 and all(f"\n{heading}\n" in "\n" + out for heading in re.findall(r"^## (\S+)$", page, re.M)), out)
    code, _, err = shell(tool, "tessera help errors truncatd", where)
    checks.check("errors: a misspelt heading", code == 2 and "did you mean 'truncated'?" in err, err)


def links(checks):
    """Checks that links between pages lead to existing pages and headings."""
    def slug(heading):
        return re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
    headings = {page: {slug(text) for text in re.findall(r"^#+ (.*)$", page.read_text(), re.M)} for page in [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]}
    wrong = []
    for page in headings:
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            other = (page.parent / path).resolve() if path else page
            if not other.exists() or (anchor and other in headings and anchor not in headings[other]):
                wrong.append(f"{page.name}: {target}")
    checks.check("every link leads somewhere", not wrong, wrong)


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    checks = harness.Checks()
    tool = pathlib.Path(options.tessera).resolve()
    said = json.loads(harness.run(tool, ["help", "--json"])[1])
    error_ids(checks)
    links(checks)
    recipes(checks)
    with harness.temporary_directory(options.directory) as place:
        first = pathlib.Path(place, "models")
        page_models.prepare(checks, options, first)
        for page in PAGES:
            if not {language for language, _, _ in fences(page.read_text())} - {""}:
                continue
            where = pathlib.Path(place, page.stem)
            where.mkdir()
            for name in (*page_models.MODELS, *page_models.TEXTS, "Llama-AWQ"):
                (where / name).symlink_to(first / name)
            told = run_page(checks, tool, page, where)
            if page.name == "formats.md":
                decoded(checks, tool, told, where)
            shutil.rmtree(where)
        single_lines(checks, tool, said, first)
        documents(checks, tool, first)
        told_at_a_terminal(checks, tool, first)
    checks.finish()


if __name__ == "__main__":
    main()
