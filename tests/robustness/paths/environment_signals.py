"""Tests SIGINT and SIGTERM before each system call in turn, which the shim counts, so that results do not depend on time.

A run ends with 130 and one message (docs/exit-codes.md), or completes if little was left. Before it works on tensors,
the signal may also kill it. It leaves no output that looks finished and no incomplete report. The same command
completes the output byte for byte."""

import json
import os
import signal

import fault_cases
import fault_plans
import shimmed
import trees

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Where a run is: before which call of this kind whose path contains this. Every phase has to occur.
PHASES = {
    "the plan": ("open", 1, "config.json"), "a header": ("open", 1, ".safetensors"), "reading": ("ring_read", 1, ".safetensors"),
    "reading past a ring": ("pread", 1, ".safetensors"), "writing": ("ring_write", 1, ".tessera/"),
    "writing past a ring": ("pwrite", 1, ".tessera/"), "the first file is whole": ("rename", 2, ".tessera/"),
    "between files": ("rename", 3, ".tessera/"), "the journal": ("fdatasync", 1, "journal"), "the report": ("create", 1, "text.part"),
    "the last text, config.json": ("rename", 4, "text.part"), "a folder's sync": ("fsync", 1, "out"), "a result": ("create", 1, "results/"),
}
# In a sample: these, and so many calls of each, spread over the run.
SAMPLE = ("convert, compared", "quantize, limits", "batch", "finish", "quantize, repair", "verify FP8", "inspect FP8", "report JSON")
SPREAD, SPREAD_OF_ALL = 3, 60


def plans(counts, everything, number):
    """Yields (name, signal, plan) of each run of a command with these calls."""
    total = sum(count for kind, count in counts.items() if kind not in ("malloc", "clock"))
    points = SPREAD_OF_ALL if everything else SPREAD
    for index, at in enumerate(sorted({1 + (total - 1) * i // max(1, points - 1) for i in range(points)})):
        chosen = SIGNALS[(index + number) % 2]
        yield f"before call {at} of {total}", chosen, fault_plans.plan("any", at, f"signal{int(chosen)}", False)
    for index, (name, (kind, at, text)) in enumerate(PHASES.items()):
        if kind in counts and (everything or (index + number) % 2):
            for chosen in SIGNALS if everything else SIGNALS[number % 4 // 2:][:1]:
                yield name, chosen, fault_plans.plan(kind, at, f"signal{int(chosen)}", False, text)


class Interrupted:
    """Is a tool that receives a signal to end."""

    def __init__(self, checks, options, work):
        self.checks, self.options, self.work = checks, options, work
        self.out, self.results = work / "out", work / "results"
        self.tool = shimmed.Shimmed(options.tessera, shimmed.build_of(options), work)
        self.phases, self.codes, self.signals, self.commands = set(), {}, 0, 0

    def run_case(self, case, number):
        places = {**case.places, "DST": self.out, "RESULTS": self.results}
        args = [fault_cases.place_of(word, places) for word in case.words]
        if args[0] in ("quantize", "convert", "batch"):
            args += ["--io", "buffered" if number % 2 else "direct"]
        args += [] if args[0] in ("inspect", "report") else ["--threads", "1"]
        if "RESULTS" not in " ".join(case.words):
            args += ["--json", f"{self.results}/a.json"]
        fault_cases.lay_out(case, self.out, self.results)
        usual = self.tool.run(args)
        if not self.checks.check(f"{case.name}: runs", usual.code in (0, 1, 2) and usual.counts, f"exit {usual.code}: {usual.stderr.strip()}"):
            return
        whole = trees.tree_of(self.out)
        self.commands += 1
        for name, which, plan in plans(usual.counts, self.options.all, number):
            fault_cases.lay_out(case, self.out, self.results)
            told = self.tool.run(args, plan)
            if not told.hits:
                continue
            self.signals += 1
            self.phases.add(name)
            self.codes[told.code] = self.codes.get(told.code, 0) + 1
            wrong = list(self.judged(case, usual, told, whole, which))
            again = self.tool.run(args)
            differs = trees.difference(whole, trees.tree_of(self.out))
            if again.code != usual.code or differs:
                wrong.append(f"the rerun ends in {again.code}: {differs or again.stderr.strip()}")
            self.checks.check(f"{case.name}: {which.name}, {name} ({told.hits[0]})", not wrong, "; ".join(wrong))

    def judged(self, case, usual, told, whole, which):
        """Returns the fault of a run that received a signal, or None."""
        found = trees.tree_of(self.out)
        differs = trees.difference(whole, found)
        before = trees.tree_of(case.places[case.begins]) if case.begins else {}
        if told.code not in (usual.code, 130, -which):
            yield f"exit {told.code}: {told.stderr[-300:].strip()}"
        lines = [line for line in told.stderr.splitlines() if line.startswith("tessera: ") and line not in usual.stderr]
        if told.code == 130 and (not all("interrupted" in line for line in lines) or len(lines) != 1 and (case.words[0] != "batch" or not lines)):
            yield f"it does not say in one sentence that it was interrupted: {told.stderr.strip()}"
        if told.code == -which and lines:
            yield f"it died while it spoke: {told.stderr.strip()}"
        if told.code == usual.code and differs:
            yield f"exit {told.code}, but {differs}"
        if differs and not all(trees.is_whole(name, whole, found) or trees.is_whole(name, before, found) for name in found if trees.is_config(name)):
            yield f"config.json is there, but {differs}"
        for name in os.listdir(self.results):
            if name.endswith(".part"):
                yield f"{name} is left over"
            if name.endswith(".json"):
                yield from self.of_report(self.results / name, told.code)

    @staticmethod
    def of_report(path, code):
        """Returns the fault of an existing report, or None."""
        try:
            result = json.loads(path.read_bytes())
        except ValueError as error:
            yield f"{path.name} is half there: {error}"
            return
        if code == 130 and isinstance(result, dict) and result.get("error", {}).get("code", 130) != 130:
            yield f"{path.name} tells of another end: {result['error']}"


def check(checks, options, work):
    """Tests all cases of fault_cases.py that are not conversions of the jobs table, which write files like the others."""
    attack = Interrupted(checks, options, work)
    for number, case in enumerate(fault_cases.other_cases(options, work)):
        if options.all or any(case.name.startswith(start) for start in SAMPLE):
            attack.run_case(case, number)
    attack.tool.close()
    missing = PHASES.keys() - attack.phases
    checks.check("signals: every phase was met", not missing or not options.all, missing)
    ends = ", ".join(f"{count} ended in {code}" for code, count in sorted(attack.codes.items()))
    print(f"{attack.signals} signals in {attack.commands} commands, in {len(attack.phases & PHASES.keys())} of {len(PHASES)} phases: {ends}")
