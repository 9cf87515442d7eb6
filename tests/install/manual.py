#!/usr/bin/env python3
"""Checks manual pages and shell completions: groff reports nothing, pages match --help, and real shells complete words.

A shell that is not installed is skipped and named."""

import json
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

# Typed text, and the words that must be offered; none: nothing may be. CHECKPOINT is a folder of the working directory.
CASES = [
    ("tessera quan", {"quantize"}),
    ("tessera quantize x --scheme mxfp", {"mxfp4", "mxfp4-weight-only", "mxfp8", "mxfp8-weight-only"}),
    ("tessera quantize x --dry", {"--dry-run"}),
    ("tessera convert x --to fas", {"fastertransformer"}),
    ("tessera verify g", {"gemm"}),
    ("tessera verify mla x --dev", {"--device", "--devices"}),
    ("tessera verify gemm x --device ", {"auto", "cpu", "cuda"}),
    ("tessera help verify ep", {"epilogue"}),
    ("tessera inspect x --can-load vllm,sg", {"vllm,sglang"}),
    ("tessera plan-schemes x --schemes nvfp4,bf", {"nvfp4,bf16"}),
    ("tessera quantize x --io=di", {"direct"}),
    ("tessera quantize CHECKPOINT -o out --exclude model.layers.1.mlp.experts.", {
        f"model.layers.1.mlp.experts.*.{name}_proj.weight" for name in ("gate", "up", "down")}),
    ("tessera verify gemm --tokens 4 CHECKPOINT --quiet --tensors lm_", {"lm_head.weight"}),
    ("tessera quantize x --threads ", set()),
]
BASH = r"""
source "$1"; shift
compopt() { :; }
for line; do
    IFS=' ' read -ra COMP_WORDS <<<"${line//=/ = }"
    [[ $line != *' ' ]] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _tessera
    printf '%s\t' "${COMPREPLY[@]//\\/}"
    printf '\n'
done
"""
FISH = r'''source $argv[1]
for line in $argv[2..]
    complete -C $line | string replace -r '\t.*' '' | string join \t | read -l told
    echo $told
end'''


def pages(checks, folder, commands):
    names = ["tessera"] + [f"tessera-{command['name'].replace(' ', '-')}" for command in commands]
    checks.check("a page for each command", {path.stem for path in folder.glob("*.1")} == set(names), names)
    files = [folder / f"{name}.1" for name in names]
    if not shutil.which("man") or not shutil.which("lexgrog"):
        print("skipped: whether groff takes the pages (Debian's package man-db)")
        return
    environment = os.environ | {"MANWIDTH": "100", "LC_ALL": "C.UTF-8"}
    shown = subprocess.run(["man", "--warnings", "-P", "cat", "-l", *files], capture_output=True, text=True, env=environment)
    checks.check("man --warnings says nothing", shown.returncode == 0 and shown.stderr == "", shown.stderr)
    bare = re.sub(r".\x08", "", shown.stdout)
    for name, command in zip(names[1:], commands):
        page = re.search(rf"^{name.upper()}\(1\).*?^Tessera \S+ +{name.upper()}\(1\)$|\Z", bare, re.M | re.S).group(0)
        flat = " ".join(page.split())
        lacking = [o["name"] for o in command["options"] if not re.search(rf"^ {{7}}{o['name']}\b", page, re.M) or " ".join(o["help"].split()) not in flat]
        examples = [line.split("  ")[0] for line in re.findall(r"^  (tessera .*)", command["text"].partition("Examples:")[2], re.M)]
        lacking += [line for line in examples if " ".join(line.split()) not in flat]
        checks.check(f"{name}: every option and example", page and not lacking, lacking)
    found = subprocess.run(["lexgrog", *files], capture_output=True, text=True)
    checks.check("apropos can read the names", found.returncode == 0 and found.stdout.count(" - ") == len(files), found.stdout + found.stderr)


def held(checks, shell, line, offered, wanted):
    # fish also offers files where a word may be one, and from version 4 on what holds the word further in.
    fine = wanted <= offered if shell == "fish" and wanted else offered == wanted
    checks.check(f"{shell}: {line}", fine, offered)


def at_once(checks, shell, command, environment, place):
    """Runs a shell's completion without a terminal: a line of words for each case."""
    lines = [line for line, _ in CASES]
    done = subprocess.run([*command, *lines], cwd=place, capture_output=True, text=True, env=environment)
    told = [set(line.split("\t")) - {""} for line in done.stdout.split("\n")[:-1]]
    if not checks.check(f"{shell} answers", len(told) == len(CASES) and done.stderr == "", f"{done.stdout} {done.stderr}"):
        return
    for (line, wanted), offered in zip(CASES, told):
        if shell == "fish" and "=" in line:
            offered = {word.partition("=")[2] for word in offered}
        held(checks, shell, line, offered, wanted)


class Terminal:
    """Is a shell on its own terminal."""

    def __init__(self, command, environment, place):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(place)
            os.execvpe(command[0], command, environment)

    def type(self, text, until, seconds=20):
        """Returns the terminal's output until `until`, an expression, matches; all output if it does not."""
        os.write(self.fd, text.encode())
        shown, end = "", time.monotonic() + seconds
        while not re.search(until, shown) and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.5)[0]:
                try:
                    shown += os.read(self.fd, 4096).decode(errors="replace")
                except OSError:
                    break
        return shown

    def close(self):
        os.close(self.fd)
        os.waitpid(self.pid, 0)


def typed(checks, shell, command, setup, environment, place, *more):
    """Types keys on a terminal, and checks that a word and a file are completed."""
    terminal = Terminal(command, environment, place)
    try:
        terminal.type(f"{setup}; echo rea''dy\n", r"\nready")
        for line, rest in (("tessera qua", r"ntize "), ("tessera quantize x --scheme fp8-c", r"hannel "), ("tessera inspect CHECK", r"POINT/"), ("tessera verify mla x --device cu", r"da "),
                           ("tessera quantize CHECKPOINT --include lm", r"_head\.weight "), *more):
            shown = terminal.type(f"{line}\t", rf"{re.escape(line)}[^\n]*?{rest}")
            checks.check(f"{shell} at a terminal: {line}", re.search(rest, shown), repr(shown))
            terminal.type("\x15", ".")
    finally:
        terminal.close()


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    checks = harness.Checks()
    tool = pathlib.Path(options.tessera).resolve()
    folder = tool.parent / "manual"
    code, out, err = harness.run(tool, ["help", "--json"])
    checks.check("help --json", code == 0, err)
    pages(checks, folder, json.loads(out)["commands"])
    with harness.temporary_directory(options.directory) as place:
        harness.make_checkpoint(options.make, "deepseek-v3", pathlib.Path(place, "CHECKPOINT"), scale="tiny")
        environment = {name: value for name, value in os.environ.items() if name.startswith(("LD_", "ASAN", "UBSAN"))} | {
            "PATH": f"{tool.parent}:{os.environ['PATH']}", "HOME": place, "TERM": "dumb", "LC_ALL": "C.UTF-8"}
        at_once(checks, "bash", ["bash", "-c", BASH, "-", folder / "tessera"], environment, place)
        typed(checks, "bash", ["bash", "--norc", "--noprofile", "-i"], f"source {folder}/tessera", environment, place,
              ("tessera inspect CHECKPOINT:lm", r"_head\.weight "), ("tessera inspect CHECKPOINT:model.no", r"rm\.weight "))
        if shutil.which("fish"):
            at_once(checks, "fish", ["fish", "--no-config", "-c", FISH, folder / "tessera.fish"], environment, place)
        if shutil.which("zsh"):
            typed(checks, "zsh", ["zsh", "-f", "-i"], f"fpath=({folder} $fpath); autoload -U compinit; compinit -D -u", environment, place)
        missing = [shell for shell in ("zsh", "fish") if not shutil.which(shell)]
        if missing:
            print(f"skipped: completion in {' and '.join(missing)}, not installed here")
    checks.finish()


if __name__ == "__main__":
    main()
