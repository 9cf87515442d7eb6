#!/usr/bin/env python3
"""Tests the order of writes, syncs and renames: a power cut at any moment leaves no incomplete model.

The calls of each run are recorded (shim/record.c) and replayed on a model of a disk that keeps only synced data. The
rules below are checked at each call.
"""

import os
import pathlib
import shutil
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import disk_model
import harness

SHARDS = ["--max-shard-size", "1MB"]
# name, command
COMMANDS = [
    ("quantize", ["quantize", "SRC", "-o", "DST", *SHARDS, "--io", "buffered"]),
    ("quantize, directly", ["quantize", "SRC", "-o", "DST", *SHARDS, "--io", "direct"]),
    ("tp", ["convert", "SRC", "-o", "DST", "--to", "tp", "--tp", "2", *SHARDS]),
    ("deepseek-mp", ["convert", "SRC", "-o", "DST", "--to", "deepseek-mp", "--mp", "1"]),
    ("archive", ["convert", "SRC", "-o", "DST", "--to", "archive"]),
]


# A change of size, and a second name, count as a write.
WRITES = {"size": "write"}


class Disk:
    """Models a disk after a power cut, which has only synced data and names."""

    def __init__(self, target):
        self.target = target
        self.unsynced_data = set()
        self.unsynced_names = set()  # new names whose folder was not synced since
        self.unsynced_removals = set()
        self.faults = []
        self.committed = []

    def fault(self, text):
        self.faults.append(text)

    def is_output(self, path):
        return path.startswith(self.target + "/") and "/.tessera" not in path

    def is_config(self, path):
        return self.is_output(path) and os.path.basename(path) == "config.json"

    def expect_durable(self, moment, but=()):
        loose = sorted((self.unsynced_data | self.unsynced_names) - set(but))
        if loose:
            self.fault(f"{moment}: a power cut would lose {loose[0]}")

    def play(self, call, path, to=None):
        if call == "write":
            if self.is_output(path):
                self.fault(f"{path} is written to under its final name")
            if path.endswith("/journal"):
                self.expect_durable("a record of the journal", but=self.parts())
            self.unsynced_data.add(path)
        elif call in ("create", "mkdir"):
            if self.is_output(path) and call == "create":
                self.fault(f"{path} is created under its final name")
            self.unsynced_names.add(path)
        elif call in ("fsync", "fdatasync"):
            self.unsynced_data.discard(path)
            if call == "fsync":
                self.unsynced_names = {name for name in self.unsynced_names if os.path.dirname(name) != path}
                self.unsynced_removals = {name for name in self.unsynced_removals if os.path.dirname(name) != path}
        elif call == "unlink":
            self.removed(path)
        elif call == "rename":
            self.renamed(path, to)

    def parts(self):
        return {name for name in self.unsynced_data | self.unsynced_names if name.endswith(".part")}

    def removed(self, path):
        if self.is_output(path) and not self.is_config(path) and any(map(self.is_config, self.unsynced_removals)):
            if not path.endswith(".index.json") or os.path.dirname(path) not in map(os.path.dirname, self.unsynced_removals):
                self.fault(f"{path} is removed while config.json could still come back")
        self.unsynced_data.discard(path)
        self.unsynced_names.discard(path)
        self.unsynced_removals.add(path)

    def renamed(self, path, to):
        if path in self.unsynced_data:
            self.fault(f"{to} is renamed before its bytes are synced")
        if self.is_output(to) and any(map(self.is_config, self.unsynced_removals)):
            self.fault(f"{to} is renamed while config.json could still come back")
        self.expect_durable(f"the rename to {to}", self.parts() | {to})
        if self.is_output(to):
            others = [name for name in self.committed if self.is_config(name)]
            if others and not self.is_config(to):
                self.fault(f"{to} comes after {others[0]}")
            self.committed.append(to)
        self.unsynced_names.discard(path)
        self.unsynced_names.add(to)


def record(checks, options, name, args, trace):
    """Returns the calls of a run, applied to the disk; or None."""
    code, _, stderr = harness.run_shimmed(options.tessera, args, harness.shim_path(options), RECORD=trace)
    if not checks.check(f"{name}: runs", code == 0, f"exit {code}: {stderr.strip()}"):
        return None
    target = args[args.index("-o") + 1]
    calls = [[WRITES.get(call.what, call.what), call.path, *([call.to] if call.to else [])] for call in disk_model.read_record(trace, target)]
    return calls if checks.check(f"{name}: calls were recorded", calls) else None


def play(checks, name, calls, target):
    disk = Disk(str(target))
    for call in calls:
        disk.play(*call)
    disk.expect_durable("the end")
    checks.check(f"{name}: nothing is lost by a power cut", not disk.faults, "; ".join(disk.faults[:3]))
    return disk


def every_file(target):
    found = {os.path.join(folder, file) for folder, _, files in os.walk(target) for file in files}
    return {path for path in found if "/.tessera" not in path}


def check_command(checks, options, source, work, name, command):
    target, trace = work / "out", work / "trace"
    shutil.rmtree(target, ignore_errors=True)
    args = [{"SRC": str(source), "DST": str(target)}.get(word, word) for word in command]
    for threads in (1, 4):
        shutil.rmtree(target, ignore_errors=True)
        calls = record(checks, options, f"{name}, {threads} threads", args + ["--threads", str(threads)], trace)
        if calls is None:
            return
        disk = play(checks, f"{name}, {threads} threads", calls, target)
        checks.check(f"{name}: every file is committed once", sorted(disk.committed) == sorted(every_file(target)),
                     f"{disk.committed}")
        checks.check(f"{name}: the folder that holds the output is synced",
                     ["fsync", str(work)] in calls and ["fsync", f"{target}/.tessera"] in calls)
        checks.check(f"{name}: each record of the journal is synced",
                     sum(call == ["fdatasync", f"{target}/.tessera/journal"] for call in calls)
                     == sum(call == ["write", f"{target}/.tessera/journal"] for call in calls) > 0)
    if name != "deepseek-mp":  # its output has no config.json
        checks.check(f"{name}: config.json is last", disk.committed[-1].endswith("/config.json"), disk.committed[-1])
    after = disk.committed[len(disk.committed) - sum(path.endswith("/config.json") for path in disk.committed):]
    checks.check(f"{name}: every config.json is among the last",
                 all(path.endswith("/config.json") for path in after), f"{after}")
    calls = record(checks, options, f"{name}, finished", args, trace)
    checks.check(f"{name}, finished: nothing is changed",
                 not [call for call in calls if call[0] not in ("fsync", "fdatasync") and call[1] != f"{target}/.tessera/journal"],
                 f"{calls}")
    checks.check(f"{name}, finished: a folder whose maker was killed before it synced it is synced",
                 ["fsync", str(work)] in calls and ["fsync", str(target)] in calls)
    check_repair(checks, options, args, target, trace, name)
    if name != "tp":
        return
    other = [word if word != "1MB" else "64MB" for word in args] + ["--force"]
    check_changes(checks, options, other, target, trace, f"{name}, other options and --force")
    check_changes(checks, options, ["quantize", str(source), "-o", str(target), "--force"], target, trace,
                  "quantize over tp, --force")
    checks.check("quantize over tp, --force: the ranks are gone", not (target / "rank-0/config.json").exists())


def check_changes(checks, options, args, target, trace, name):
    """A run over an output that looks like a model must remove every config.json before anything else."""
    configs = {path for path in every_file(target) if path.endswith("/config.json")}
    calls = record(checks, options, name, args, trace)
    if calls is None:
        return
    play(checks, name, calls, target)
    gone, synced = set(), set()
    for call in calls:
        if call[0] == "unlink" and call[1] in configs:
            gone.add(call[1])
        elif call[0] == "fsync":
            synced |= {path for path in gone if os.path.dirname(path) == call[1]}
        elif (call[0] == "unlink" and "/.tessera" not in call[1] and not call[1].endswith(".index.json")
              or call[0] == "rename" and "/.tessera" not in call[2]):
            checks.check(f"{name}: config.json goes first", synced == configs, f"{call} with only {sorted(synced)} gone")
            return
    checks.check(f"{name}: something is changed", False)


def check_repair(checks, options, args, target, trace, name):
    shard = next(path for path in sorted(every_file(target)) if ".safetensors" in path and path[-5:] != ".json")
    with open(shard, "r+b") as file:
        file.seek(-9, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    check_changes(checks, options, args, target, trace, f"{name}, repair")


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        plain = harness.make_checkpoint(options.make, "deepseek-v3", work / "plain", scale="tiny")
        fp8 = work / "fp8"
        harness.run(options.tessera, ["quantize", plain, "-o", fp8, "--quiet"])
        for name, command in COMMANDS:
            check_command(checks, options, fp8 if name == "deepseek-mp" else plain, work, name, command)


if __name__ == "__main__":
    main()
