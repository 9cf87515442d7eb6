#!/usr/bin/env python3
"""Tests structured damage to each kind of file, with the plain tool, whose time and memory are measured, and with sanitizers.

Each mutant has a number that reproduces it: --first N --mutants 1."""

import collections
import json
import os
import pathlib
import random
import re
import signal
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import hostile_edits as edits
import hostile_kinds as kinds
import harness
import manifests
import turns

# CPU limit of a run (of the plain tool): two seconds, and one for every 20 MB of input.
SECONDS, BYTES_A_SECOND = 2, 20e6
COMPUTING = 8  # seconds more, where time goes with tokens
# Memory limit: a fixed part, and this many times the changed file (which holds all names and settings) and the
# whole input's bytes once. Commands that read weights also have their buffers, which --memory limits.
FIXED, TIMES, BUFFERS = 64 << 20, 8, 192 << 20
LOOKING = ("inspect", "report", "batch")
# Sanitizers end a process with 99 (tests/run.sh).
SANITIZED = 99
CODES = {0, 1, 2, 3}
# Refusals of the system: names that it does not accept, and sizes above its space.
BY_SYSTEM = ("File name too long", "too long", "No space left", "No such file", "Is a directory", "Not a directory", "free space", "needs")

Ran = collections.namedtuple("Ran", "code stdout stderr seconds memory")


def run(tool, words, folder, limit, environment):
    """Runs the tool once in `folder`. Returns its output, its CPU time and its peak memory."""
    paths = [os.path.join(folder, name) for name in ("stdout", "stderr")]
    writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)] + [(os.POSIX_SPAWN_OPEN, fd + 1, path, writing, 0o600) for fd, path in enumerate(paths)]
    process = os.posix_spawn(tool, [tool, *words], environment, file_actions=actions)
    try:
        signal.alarm(int(limit))
        _, status, usage = os.wait4(process, 0)
    except TimeoutError:
        os.kill(process, signal.SIGKILL)
        _, status, usage = os.wait4(process, 0)
    finally:
        signal.alarm(0)
    told = [pathlib.Path(path).read_bytes() for path in paths]
    return Ran(os.waitstatus_to_exitcode(status), *told, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)


def told_badly(ran, words):
    """Returns the fault of a run's messages, or None. Warnings may precede the error."""
    text = ran.stderr.decode(errors="replace")
    lines = [line for line in text.splitlines() if line]
    if ran.code in (2, 3, 4) and not (lines and lines[-1].startswith("tessera: ")):
        return "no line that says why"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]", text):
        return "a control character on stderr"
    if "-" in words and ran.code in (0, 1) and "--json" in words:
        try:
            json.loads(ran.stdout, parse_constant=lambda word: int(f"not JSON: {word}"))
        except ValueError as error:
            return f"no JSON on stdout: {error}"
    elif re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", ran.stdout):
        return "a control character on stdout"
    return None


def judge_manifest(target, words):
    """Returns what is untrue if exit code 0 claims that an output matches the manifest; or None."""
    folder, given = pathlib.Path(words[2]), pathlib.Path(words[4] if words[3:4] == ["--manifest"] else words[2])
    given = given / target.file if given.is_dir() else given
    own = folder / target.file
    if own.exists() and own.read_bytes() != given.read_bytes():
        return "taken beside another manifest of its own"
    try:
        manifests.check_files(folder, manifests.read(given))
    except (AssertionError, AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        return f"taken, and untrue: {error!r}"
    return None


class Attack:
    """Has the valid bases, and tests their mutants."""

    def __init__(self, options, work):
        self.tools = [options.tessera] + ([options.sanitized] if options.sanitized else [])
        self.work = work
        self.bases = kinds.make_bases(options.tessera, options.make, work)
        self.environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:exitcode=99:handle_sigill=1:allow_addr2line=1:detect_stack_use_after_return=0",
                            "UBSAN_OPTIONS": f"halt_on_error=1:exitcode={SANITIZED}", "TESSERA_PYTHON": "/bin/false"}
        self.counts = collections.Counter()
        self.worst = [0.0, 0.0]  # share of the bounds of time and memory
        self.faults = []
        self.taken = {}
        self.targets = [t._replace(commands=taken) for t in kinds.targets(self.bases) if (taken := [c for c in t.commands if self.takes(t, c)])]

    def takes(self, target, command, tool=None):
        """Returns True if the valid base is accepted, so that a rejection is caused by the mutation. A build may lack parts
        that a command needs, such as the page of reports."""
        tool = tool or self.tools[0]
        key = tool, target.base, command, target.file if "FILE" in command else None
        if key not in self.taken:
            sound = pathlib.Path(self.bases[target.base], target.file).read_bytes()
            with harness.temporary_directory(self.work) as folder:
                words = self.words(target, command, self.lay_out(target, sound, folder), folder)
                os.chdir(folder)
                self.taken[key] = run(tool, words, folder, 120, self.environment).code in (0, 1)
                os.chdir(self.work)
        return self.taken[key]

    def mutate(self, number):
        """Returns the mutant's target, command and folder."""
        rng = random.Random(number)
        target = rng.choices(self.targets, [t.weight for t in self.targets])[0]
        command = rng.choice(target.commands)
        sound = pathlib.Path(self.bases[target.base], target.file).read_bytes()
        changed = edits.EDITS[target.edit](rng, sound)
        return target, command, changed

    def lay_out(self, target, changed, folder):
        """Writes the mutant's files to a fresh folder; for a manifest also all other files of the output."""
        source = os.path.join(folder, "src")
        kinds.link_tree(self.bases[target.base], source, target.file)
        if target.edit == "manifest":
            kinds.link_tree(self.bases[target.base], os.path.join(folder, "bare"), target.file)
        path = pathlib.Path(source, target.file)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(changed.replace(b"PLAIN", self.bases["plain"].encode()) if target.edit == "lines" else changed)
        return source

    def words(self, target, command, source, folder):
        places = {"SRC": source, "BASE": self.bases[target.base], "BARE": os.path.join(folder, "bare"), "PLAIN": self.bases["plain"], "OUT": os.path.join(folder, "out"),
                  "REPORT": os.path.join(folder, "report.json"), "FILE": target.file, "CONFIG": os.path.join(self.bases["latent"], "config.json")}
        named = ["/".join(places.get(part, part) for part in word.split("/")) for word in command.split()]
        limits = ["--threads", "1", "--memory", "64MB"] if named[0] in ("quantize", "convert", "diff", "compare-schemes") else []
        return named + limits

    def attack(self, number):
        target, command, changed = self.mutate(number)
        codes = []
        for tool in self.tools:
            if not self.takes(target, command, tool):
                continue
            with harness.temporary_directory(self.work) as folder:
                source = self.lay_out(target, changed, folder)
                words = self.words(target, command, source, folder)
                os.chdir(folder)
                ran = run(tool, words, folder, 120, self.environment)
                fault = self.judge(tool, target, command, words, ran, changed, source, folder)
                os.chdir(self.work)
            codes.append(ran.code)
            self.counts["runs"] += 1
            self.counts[f"exit {ran.code}"] += 1
            if fault:
                self.tell(number, target, command, tool, fault, ran)
        if len(set(codes)) > 1:
            self.tell(number, target, command, self.tools[-1], f"exit codes {codes}", ran)

    def tell(self, number, target, command, tool, fault, ran):
        self.faults.append(number)
        print(f"FAILED mutant {number}: {target.base}/{target.file}: {command}: {fault} ({os.path.relpath(tool)}; exit {ran.code}, {ran.seconds:.2f} s of CPU, "
              f"{ran.memory >> 20} MiB)\n    {ran.stderr[-3000:].decode(errors='replace').strip()}", flush=True)

    def judge(self, tool, target, command, words, ran, changed, source, folder):
        """Returns the fault of a run, or None."""
        if ran.code < 0 or ran.code == SANITIZED:
            return f"signal {-ran.code}" if ran.code < 0 else "a sanitizer's report"
        if ran.code not in CODES and not (ran.code == 4 and any(word in ran.stderr.decode(errors="replace") for word in BY_SYSTEM)):
            return "an exit code that no input should give"
        fault = told_badly(ran, words) or (judge_manifest(target, words) if ran.code == 0 and target.edit == "manifest" else None)
        if fault or tool != self.tools[0]:
            return fault
        size = sum(os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(source) for name in names)
        if "PLAIN" in command or "BASE" in command:
            size *= 2
        computing = COMPUTING if words[:2] == ["verify", "forward"] else 0
        seconds, memory = SECONDS + computing + size / BYTES_A_SECOND, FIXED + TIMES * len(changed) + size + (0 if words[0] in LOOKING else BUFFERS)
        self.worst = [max(self.worst[0], ran.seconds / seconds), max(self.worst[1], ran.memory / memory)]
        if ran.seconds > seconds:
            return f"more than {seconds:.1f} s of CPU"
        if ran.memory > memory:
            return f"more than {memory >> 20} MiB"
        return self.judge_output(target, words, ran, folder, source)

    def judge_output(self, target, words, ran, folder, source):
        """Checks that an output with exit code 0 is a checkpoint, and that a rerun with a changed journal leaves the same
        weights."""
        out = os.path.join(folder, "out")
        if ran.code == 0 and os.path.isdir(out) and "--dry-run" not in words and words[0] != "batch":
            self.counts["outputs read back"] += 1
            read = run(self.tools[0], ["inspect", out], folder, 120, self.environment)
            if read.code not in (0, 1) and not any(where in words for where in ("tp", "deepseek-mp", "fastertransformer", "trtllm")) and not (
                    any(packing in words for packing in ("archive", "safetensors")) and run(self.tools[0], ["inspect", source], folder, 120, self.environment).code == read.code):
                return f"inspect refuses what was written: exit {read.code}: {read.stderr.decode(errors='replace')}"
        if target.edit == "journal" and ran.code == 0 and "--max-shard-size" in words and target.base == "fp8":
            self.counts["outputs read back"] += 1
            for name in os.listdir(self.bases[target.base]):
                made = os.path.join(source, name)
                if name.endswith((".safetensors", "config.json", "index.json")) and not (
                        os.path.exists(made) and harness.same_file(os.path.join(self.bases[target.base], name), made)):
                    return f"{name} is another one than before"
        return None


def out_of_time(*_):
    raise TimeoutError


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--sanitized", metavar="PATH", help="the tool under AddressSanitizer and UBSan (none)")
    parser.add_argument("--first", type=int, metavar="N", help="the number of the first mutant (0 with --all, else other mutants in each turn)")
    parser.add_argument("--mutants", type=int, metavar="N", help="how many (400; with --all 100,000)")
    parser.add_argument("--all", action="store_true", help="many")
    parser.add_argument("--seconds", type=float, help="no new mutant after so many seconds of the clock (none)")
    options = parser.parse_args()
    options.tessera, options.make = map(os.path.abspath, (options.tessera, options.make))
    options.sanitized = options.sanitized and os.path.abspath(options.sanitized)
    signal.signal(signal.SIGALRM, out_of_time)
    count = options.mutants or (100_000 if options.all else 400)
    options.first = turns.first(count, options)
    began = time.monotonic()
    with harness.temporary_directory(options.directory) as work:
        attack = Attack(options, work)
        done = 0
        for number in range(options.first, options.first + count):
            if options.seconds and time.monotonic() - began > options.seconds:
                break
            attack.attack(number)
            done += 1
    told = ", ".join(f"{attack.counts[key]:,} {key}" for key in sorted(attack.counts))
    print(f"mutants {options.first} to {options.first + done - 1} of {len(attack.targets)} files: {told}; at most {attack.worst[0]:.0%} of the bound of time, "
          f"{attack.worst[1]:.0%} of that of memory")
    print(f"{done - len(set(attack.faults))} passed, {len(set(attack.faults))} failed")
    sys.exit(0 if done and not attack.faults else 1)


if __name__ == "__main__":
    main()
