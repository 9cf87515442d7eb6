#!/usr/bin/env python3
"""Plants faults in the sources one by one, and prints which test finds each.

Builds a copy of the sources once. Then it plants each fault of planted_table.py, builds again, and runs the tests of
the row until one fails. All these tests must pass first with the correct sources. A sample takes some faults; --all
takes all; --only WORD takes those with WORD in the file or description. --check only checks that each text occurs
once.

Exit code 0: each fault was found, or the table says why it cannot be; 1: not, or the table does not match the
sources."""

import concurrent.futures
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("common", "oracles")]
import harness  # noqa: E402
import turns  # noqa: E402
from planted_table import PLANTED  # noqa: E402

SAMPLE = 3          # faults of a sample
CPU_SECONDS, WALL_SECONDS = 240, 900  # a test that hangs is a test that fails
BASE = ["cli/tessera", "tests/make/make_checkpoint", "tests/common/forked.so"]
PRELOADED = ["tests/robustness/faults/faults.so"]
MESON = ["meson", "setup", "build", "-Dcuda=disabled", "-Dmpi=disabled", "-Dc_args=-g0"]


def sources():
    """Returns the files of the copy: those of git, or all files of the source folders without git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = listed.stdout.split("\0")[:-1] if listed.returncode == 0 else [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*")
        if path.is_file() and not path.relative_to(ROOT).parts[0].startswith((".", "build"))]
    return [name for name in names if (ROOT / name).is_file()]


def check_table(checks):
    for path, text, _, tests, what in PLANTED:
        found = (ROOT / path).read_text(encoding="utf-8").count(text) if (ROOT / path).is_file() else 0
        checks.check(f"{path}: {what}", found == 1 and tests != [], f"its text is there {found} times: {text!r}")


class Copy:
    """Is a copy of the sources with its own build."""

    def __init__(self, folder, jobs):
        self.root, self.jobs = pathlib.Path(folder), jobs
        for name in sources():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, self.root / name)
            shutil.copymode(ROOT / name, self.root / name)
        subprocess.run(MESON, cwd=self.root, check=True, stdout=subprocess.DEVNULL)

    def build(self, targets):
        done = subprocess.run(["ninja", "-C", "build", "-j", str(self.jobs), *targets], cwd=self.root, capture_output=True, text=True)
        return None if done.returncode == 0 else done.stdout[-600:]

    def command(self, test):
        """Returns the command of a test, and its build targets."""
        kind, _, rest = test.partition(" ")
        tool, make = "build/cli/tessera", "build/tests/make/make_checkpoint"
        if kind == "unit":
            return [f"build/tests/unit/{rest}"], [f"tests/unit/{rest}"]
        if kind == "golden":
            return ["build/tests/peers/golden/check_golden", f"tests/peers/golden/{rest or 'vectors'}"], ["tests/peers/golden/check_golden"]
        if kind == "cli":
            module, *words = rest.split(" ", 1)
            path, = (self.root / "tests/cli").rglob(module)
            return [sys.executable, "-m", "pytest", "-q", "-x", "--tb=line", "-p", "no:cacheprovider", path.relative_to(self.root),
                    "--tessera", tool, "--make", make, *(["-k", words[0]] if words else [])], BASE
        program, *words = rest.split()
        made = ["--make", make] if program != "bad_input.py" else []  # which makes its own
        return ([sys.executable, f"tests/{kind}/{program}", "--tessera", tool, *made, *words],
                [*BASE, *(self.library() if kind == "install" else PRELOADED)])

    def library(self):
        """Returns Ninja's target for the shared library. Its name contains the version."""
        told = subprocess.run(["ninja", "-C", "build", "-t", "targets", "all"], cwd=self.root, capture_output=True, text=True, check=True)
        return re.findall(r"^(lib/libtessera\.so\.[\d.]+): \S*LINKER", told.stdout, re.M)

    def run(self, test):
        """Returns the output of a failed test, or None if it passed."""
        command, _ = self.command(test)
        environment = dict(os.environ, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTHONDONTWRITEBYTECODE="1")
        process = subprocess.Popen(command, cwd=self.root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env=environment, errors="replace", start_new_session=True)
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        late = threading.Timer(WALL_SECONDS, lambda: os.killpg(process.pid, signal.SIGKILL))
        late.start()
        said = process.communicate()[0]
        late.cancel()
        if process.returncode in (0, 77):
            return None
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith(("FAILED", "FAIL", "[----]", "E  "))] or lines[-1:]
        return told[0] if told else f"exit code {process.returncode}"

    def try_fault(self, row):
        """Returns (the test that found the fault, its output); the first is "" if none did, None if the fault does not
        compile."""
        path, text, instead, tests, _ = row
        file = self.root / path
        sound = file.read_text(encoding="utf-8")
        file.write_text(sound.replace(text, instead), encoding="utf-8")
        try:
            for test in tests:
                broken = self.build(self.command(test)[1])
                if broken:
                    return None, broken
                said = self.run(test)
                if said is not None:
                    return test, said
            return "", ""
        finally:
            file.write_text(sound, encoding="utf-8")


def chosen(options):
    rows = [row for row in PLANTED if row[3] is not None and (not options.only or any(word in f"{row[0]} {row[4]}" for word in options.only))]
    if options.all or options.only:
        return rows
    random.seed(options.seed)
    quick = [row for row in rows if row[0].endswith(".c") and row[3][0].startswith(("unit", "cli"))]
    return random.sample(quick, min(SAMPLE, len(quick)))


def main():
    parser = harness.argument_parser(__doc__)
    parser.add_argument("--all", action="store_true", help="every fault of the table")
    parser.add_argument("--only", action="append", metavar="WORD", help="may be given again")
    parser.add_argument("--check", action="store_true", help="only whether the table fits the sources")
    parser.add_argument("--seed", type=int, default=turns.turn(), help="of the sample (TESSERA_TURN)")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the sources that work side by side (1)")
    options = parser.parse_args()
    checks = harness.Checks()
    check_table(checks)
    if options.check or checks.failed:
        checks.finish()
    with harness.temporary_directory(options.directory) as work:
        plant(options, checks, work)
    checks.finish()


def plant(options, checks, work):
    rows, began = chosen(options), time.monotonic()
    print(f"{len(rows)} of {len(PLANTED)} faults, seed {options.seed}", flush=True)
    copies = [Copy(os.path.join(work, str(i)), max(1, (os.cpu_count() or 1) // options.jobs)) for i in range(options.jobs)]
    idle, tests = list(copies), sorted({test for row in rows for test in row[3]})
    lock = threading.Lock()

    def on_a_copy(job, *args):
        with lock:
            copy = idle.pop()
        try:
            return job(copy, *args)
        finally:
            with lock:
                idle.append(copy)

    def sound(copy, test):
        return copy.build(copy.command(test)[1]) or copy.run(test)

    found = survived = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for test, said in zip(tests, pool.map(lambda test: on_a_copy(sound, test), tests)):
            checks.check(f"sound: {test}", said is None, said)
        if checks.failed:  # a test that fails on the sound code would find every fault
            return
        for row, (test, said) in zip(rows, pool.map(lambda row: on_a_copy(Copy.try_fault, row), rows)):
            verdict = "broken" if test is None else "found" if test else "survives"
            found, survived = found + bool(test), survived + (test == "")
            print(f"{verdict:8} {row[0]:34} {row[4]:70} {test or ''}  {said[:100]}", flush=True)
            checks.check(f"{row[0]}: {row[4]}", bool(test), said or "no test of its row found it")
    excused = [row for row in PLANTED if row[3] is None]
    for row in excused if options.all else []:
        print(f"no test  {row[0]:34} {row[4]}")
    print(f"{found} of {len(rows)} planted faults found, {survived} survived; {len(excused)} that no test can find; {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
