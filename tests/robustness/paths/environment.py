#!/usr/bin/env python3
"""Tests each command in unusual environments: closed or full descriptors, system limits, umasks, locales, missing variables.

A row expects a documented exit code. If it is not 0 or 1, there is one message on stderr; if it is 0, the output has
the usual bytes. Other parts are in environment_*.py: signals, names, many tensors, and unusual file systems. Runs a
sample, or --all; --part NAME runs one part."""

import os
import pathlib
import resource
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import environment_many
import environment_names
import environment_places
import environment_signals
import harness

QUANTIZE = "quantize SRC -o DST --max-shard-size 64kB"
COMMANDS = {"quantize": QUANTIZE, "convert": "convert FP8 -o DST --to bf16", "archive": "convert SRC -o DST --to archive",
            "compare-schemes": "compare-schemes SRC --sample 2", "plan-schemes": "plan-schemes SRC --bits 6", "diff": "diff SRC SRC",
            "verify": "verify FP8 --against SRC", "verify gemm": "verify gemm FP8 --against SRC --device cpu --sample 2",
            "verify forward": "verify forward FP8 --against SRC --device cpu --count 2", "inspect": "inspect FP8",
            "report": "report FP8/quantization_report.json", "batch": "batch JOBS", "finish": "finish FP8"}
MIB = 1 << 20


def limit(which, value):
    return lambda: resource.setrlimit(which, (value, value))


def closed(descriptor):
    return lambda: os.close(descriptor)


def onto(path, descriptor):
    def change():
        fd = os.open(path, os.O_WRONLY)
        os.dup2(fd, descriptor)
    return change


def without_reader():
    begin, end = os.pipe()
    os.dup2(end, 1)
    os.close(begin)


# Row: what is done in the process before the tool starts, its variables, and the exit codes that are right. `same`: what it prints and
# writes is what it does without all this.
class Row:
    def __init__(self, name, before=lambda: None, codes=(0,), environment=None, same=False, loud=True):
        self.name, self.before, self.codes, self.environment, self.same, self.loud = name, before, codes, environment, same, loud


ROWS = [
    Row("no variable at all", environment={}, same=True),
    Row("no HOME, no PATH", environment={"LC_ALL": "C"}, same=True),
    Row("a locale that there is not", environment={"LC_ALL": "xx_YY.broken", "LANG": "??", "TZ": ":nowhere"}, same=True),
    Row("stdin closed", closed(0), same=True),
    Row("stderr closed", closed(2)),
    Row("stdout closed", closed(1), (0, 4)),
    Row("all three closed", lambda: [os.close(fd) for fd in range(3)], (0, 4), loud=False),
    Row("stdout full", onto("/dev/full", 1), (4,)),
    Row("stderr full", onto("/dev/full", 2)),
    Row("the reader of stdout closed it", without_reader, (0, 1, 141), loud=False),
    Row("files of 4 KiB", limit(resource.RLIMIT_FSIZE, 4096), (0, 4)),
    Row("12 open files", limit(resource.RLIMIT_NOFILE, 12), (0, 4)),
    Row("a stack of 512 KiB", limit(resource.RLIMIT_STACK, 512 << 10), same=True),
    Row("64 MiB of addresses", limit(resource.RLIMIT_AS, 64 * MIB), (0, 4)),
    Row("no memory to lock", limit(resource.RLIMIT_MEMLOCK, 0), same=True),
    Row("no core, no nice", limit(resource.RLIMIT_CORE, 0), same=True),
    Row("umask 077", lambda: os.umask(0o077)),
    Row("umask 000", lambda: os.umask(0)),
]
MASKS = {"umask 077": 0o077, "umask 000": 0}
SAMPLE = ("quantize", "archive", "verify", "inspect", "report", "batch")


class Places:
    def __init__(self, options, work):
        self.tool, self.work = os.path.abspath(options.tessera), work
        self.places = {"SRC": work / "src", "FP8": work / "fp8", "DST": work / "out", "JOBS": work / "jobs.json",
                       "FP8/quantization_report.json": work / "fp8" / "quantization_report.json"}
        harness.make_checkpoint(options.make, "llama", work / "src", scale="tiny")
        harness.succeed(self.tool, ["quantize", work / "src", "-o", work / "fp8", "--quiet"])
        self.places["JOBS"].write_text(f'[{{"name": "one", "args": ["quantize", "{work}/src", "-o", "{work}/out", "--quiet"]}}]')

    def run(self, command, before=lambda: None, environment=None):
        shutil.rmtree(self.places["DST"], ignore_errors=True)
        words = [str(self.places.get(word, word)) for word in command.split()]
        # A row changes the descriptors after Python has put its pipes there.
        ended = subprocess.run([self.tool, *words], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=300, preexec_fn=before,
                               env=os.environ if environment is None else environment)
        return ended.returncode, ended.stdout, ended.stderr

    def written(self):
        """Returns the bytes of the output without the journal's folder; {} without an output."""
        out = self.places["DST"]
        return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file() and ".tessera" not in path.parts}


def judge(checks, places, row, name, command, plain, whole):
    code, _, stderr = places.run(command, row.before, row.environment)
    title = f"{name}, {row.name}"
    allowed = {plain if allowed == 0 else allowed for allowed in row.codes}
    checks.check(f"{title}: exit code", code in allowed, f"{code}, not one of {sorted(allowed)}: {stderr[-300:]}")
    checks.check(f"{title}: it says why", code in (0, 1, plain) or not row.loud or b"tessera: " in stderr, stderr[-300:])
    if row.same or (code == plain == 0 and whole):
        checks.check(f"{title}: the same bytes", places.written() == whole)
    if code != 0 and whole:
        checks.check(f"{title}: nothing looks like a model", "config.json" not in places.written() or places.written() == whole)
    if row.name in MASKS and whole:
        modes = {path.stat().st_mode & 0o777 for path in places.places["DST"].rglob("*") if path.is_file()}
        checks.check(f"{title}: modes", modes == {0o666 & ~MASKS[row.name]}, [oct(mode) for mode in modes])


def check_rows(checks, options, work):
    chosen = {name: command for name, command in COMMANDS.items() if options.all or name in SAMPLE}
    places = Places(options, work)
    for name, command in chosen.items():
        plain, _, stderr = places.run(command)
        checks.check(f"{name}: as ever", plain in (0, 1, 2), stderr)
        whole = places.written()
        for row in ROWS:
            judge(checks, places, row, name, command, plain, whole)
    print(f"{len(ROWS)} environments of {len(chosen)} commands")


PARTS = {"rows": check_rows, "signals": environment_signals.check, "names": environment_names.check, "many": environment_many.check,
         "places": environment_places.check}  # the last one moves into a mount namespace


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="every command, not a sample")
    parser.add_argument("--part", choices=PARTS, action="append", help="one part")
    options = parser.parse_args()
    checks = harness.Checks()
    for name in options.part or PARTS:
        with harness.temporary_directory(options.directory) as work:
            PARTS[name](checks, options, work)
    checks.finish()


if __name__ == "__main__":
    main()
