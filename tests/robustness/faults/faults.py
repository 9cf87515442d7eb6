#!/usr/bin/env python3
"""Tests failing, short and interrupted system calls: the result is correct, or an error gives the reason.

Each command is run once to count its calls, then with one call failing (tests/robustness/faults/shim). It must give
the same bytes, or exit code 4 with the system's reason and the file. An incomplete output has no config.json, and no
memory or descriptor is left. The same command then completes the tree. Short and interrupted calls must not change
the result. Runs a sample, or every call once with --all. --kind KIND takes calls of one kind, spread evenly over each
command: --kind malloc lets memory run out.
"""

import collections
import errno
import json
import os
import pathlib
import random
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import fault_cases
import fault_plans
import harness
import jobs
import shimmed
import trees
import turns

# Where a call names no file, or the file is an auxiliary one of the system's, the sentence need not name it either.
NAMELESS = {"malloc", "openat", "thread", "lock", "clock", "madvise", "rlimit", "affinity", "poll", "semaphore", "pipe", "getcwd", "ring", "ring_register",
            "ring_submit", "ring_wait", "spawn"}


def figures(told):
    """Returns the output of a command without the words about how it ran."""
    def pruned(value):
        if isinstance(value, dict):
            return {key: pruned(part) for key, part in value.items() if key not in ("io", "threads", "memory", "isa")}
        return [pruned(part) for part in value] if isinstance(value, list) else value
    try:
        return pruned(harness.figures(json.loads(told)))
    except ValueError:
        return told


def is_named(path, sentence, whole):
    """Returns True if a sentence names the file at this path. An unfinished file may be named by its final name (`whole`),
    or by the output."""
    if "/.tessera/" in path and (".part" in path or "/journal" in path):
        names = [path.partition("/.tessera/")[0], *(name.rpartition("/")[2] for name in whole if not trees.is_note(name))]
        return any(name in sentence for name in names)
    return os.path.basename(path) in sentence


class Attack:
    """Tests one tool and collects the faults."""

    def __init__(self, options, work):
        self.options, self.work = options, work
        self.checks = harness.Checks()
        self.out, self.results = work / "out", work / "results"
        self.tool = shimmed.Shimmed(options.tessera, shimmed.build_of(options), work)
        self.choice = fault_plans.Choice(random.Random(options.seed))
        self.struck, self.codes, self.calls = collections.Counter(), collections.Counter(), 0
        self.cases = self.missed = self.reruns = 0
        self.until = time.monotonic() + 60 * options.minutes if options.minutes else None

    # ---- running ----

    def args_of(self, case, number):
        places = {**case.places, "DST": self.out, "RESULTS": self.results}
        args = [fault_cases.place_of(word, places) for word in case.words]
        if case.tells:
            args += ["--json", "-"]
        if args[0] in ("quantize", "convert", "batch"):
            args += ["--io", "buffered" if number % 2 else "direct"]
        return args if args[0] in ("inspect", "report") else args + ["--threads", "1" if number % 4 < 2 else "2"]

    def run_case(self, case, number):
        args = self.args_of(case, number)
        fault_cases.lay_out(case, self.out, self.results)
        usual = self.tool.run(args)
        if not self.checks.check(f"{case.name}: runs", usual.code in (0, 1, 2) and usual.counts, f"exit {usual.code}: {usual.stderr.strip()}"):
            return
        self.checks.check(f"{case.name}: leaves no file open", not usual.descriptors, usual.descriptors)
        self.checks.check(f"{case.name}: leaves no memory", not usual.blocks or self.options.sanitized, dict(usual.blocks))
        whole = trees.tree_of(self.out) if case.writes else {}
        self.cases += 1
        self.calls += sum(usual.counts.values())
        counts = {kind: count for kind, count in usual.counts.items() if self.options.kind in (None, kind)}
        chosen = self.choice.every(counts, self.options.most) if self.options.all or self.options.kind else self.choice.sample(counts, self.options.faults)
        for pin in fault_plans.PINNED:
            if pin.case == case.name and self.options.kind in (None, pin.kind):
                self.hold(case, args, usual, pin)
        for fault in chosen:
            if self.until is None or time.monotonic() < self.until:
                self.strike(case, args, usual, whole, fault)

    def strike(self, case, args, usual, whole, fault):
        kind, number, action, for_good = fault
        plan = fault_plans.plan(*fault)
        fault_cases.lay_out(case, self.out, self.results)
        struck = self.tool.run(args, plan)
        if not struck.hits and struck.ended:
            self.missed += 1  # threads share their work otherwise than before
            wrong = list(self.undisturbed(case, usual, struck, whole))
            self.checks.check(f"{case.name}: {kind} {number}, which there was not", not wrong, "; ".join(wrong))
            return
        self.struck[kind] += 1
        self.codes[struck.code] += 1
        wrong = list(self.judged(case, usual, struck, whole, fault))
        if struck.code != usual.code and case.writes and "crash" not in wrong:
            self.reruns += 1
            again = self.tool.run(args)
            if again.code != usual.code:
                wrong.append(f"the rerun ends in {again.code}: {again.stderr.strip()}")
            else:
                differs = trees.difference(whole, trees.tree_of(self.out))
                wrong += [f"after the rerun, {differs}"] if differs else []
        name = f"{case.name}: {kind} {number}{' and all after it' if for_good else ''}: {action}" + (f" ({struck.hits[0]})" if struck.hits else "")
        self.checks.check(name, not wrong, "; ".join(wrong))

    def hold(self, case, args, usual, pin):
        """Checks that a fault that once had a wrong result has that of its row."""
        fault_cases.lay_out(case, self.out, self.results)
        struck = self.tool.run(args, fault_plans.plan(pin.kind, pin.number, pin.action, pin.for_good, pin.text))
        expected = usual.code if pin.code is None else pin.code
        self.checks.check(f"{case.name}: {pin}", struck.hits and struck.code == expected and all(word in struck.stderr for word in pin.words),
                          f"{len(struck.hits)} hits, exit {struck.code}: {struck.stderr.strip()}")

    # ---- judging ----

    def undisturbed(self, case, usual, run, whole):
        """Returns the fault of a run without injected failures, or None."""
        if run.code != usual.code:
            yield f"exit {run.code} instead of {usual.code}: {run.stderr.strip()}"
        differs = trees.difference(whole, trees.tree_of(self.out)) if case.writes else None
        if differs:
            yield differs
        if case.tells and figures(run.stdout) != figures(usual.stdout):
            yield "it tells something else"

    def judged(self, case, usual, struck, whole, fault):
        """Returns the fault of a run with a failed call, or None."""
        kind, _, action, for_good = fault
        if struck.code == "hangs" or struck.code < 0 or not struck.ended:
            yield f"crash: it ended by {struck.code}: {struck.stderr[-1500:].strip()}"
            return
        if struck.descriptors:
            yield f"left open: {struck.descriptors[:3]}"
        if struck.blocks - usual.blocks:
            yield f"memory left over: {dict(struck.blocks - usual.blocks)}"
        found = trees.tree_of(self.out) if case.writes else {}
        if kind in ("unlink", "unlinkat", "opendir", "readdir"):  # what could not be removed of Tessera's own notes stays, and no journal names it
            found = {name: digest for name, digest in found.items() if name in whole or not trees.is_note(name)}
        differs = trees.difference(whole, found) if case.writes else None
        if struck.code == usual.code:
            if differs:
                yield f"exit {struck.code}, but {differs}"
            if case.tells and figures(struck.stdout) != figures(usual.stdout):
                yield f"exit {struck.code}, but it tells something else"
        else:
            if fault_plans.must_succeed(kind, action, for_good):
                yield f"it should have gone on, but ended in {struck.code}: {struck.stderr.strip()}"
            before = trees.tree_of(case.places[case.begins]) if case.begins else {}
            if differs and not all(trees.is_whole(name, whole, found) or trees.is_whole(name, before, found) for name in found if trees.is_config(name)):
                yield f"config.json is there, but {differs}"
            yield from self.said(case, usual, struck, fault, whole)
        if [name for name in os.listdir(self.work) + os.listdir(self.results) if name.endswith(".part")] and kind != "unlink":
            yield "a .part is left over"

    @staticmethod
    def said(case, usual, struck, fault, whole):
        """Returns the fault of a run's last message, or None."""
        kind, _, action, _ = fault
        lines = [line for line in struck.stderr.splitlines() if line.startswith("tessera: ") and line not in usual.stderr]
        code = fault_plans.code_of(action)
        # Another process has the lock, and to finish a shard that is at work is not complete; a link that leads nowhere is bad input.
        expected = {"EWOULDBLOCK": {1, 2} if case.words[0] == "finish" else {2}, "ELOOP": {3, 4}}.get(action, {4})
        if struck.code not in expected:
            yield f"exit {struck.code}: {struck.stderr.strip()}"
        if len(lines) != 1 and not (case.words[0] == "batch" and lines):  # of each of its jobs that could not be done
            yield f"{len(lines)} sentences: {struck.stderr.strip()}"
        elif kind == "malloc":
            if "memory" not in lines[0] and os.strerror(errno.EAGAIN) not in lines[0]:  # as the system has it where a thread cannot be started
                yield f"it does not say that memory ran out: {lines[0]}"
        else:
            if code and os.strerror(code) not in lines[0] and struck.code == 4:
                yield f"it does not say '{os.strerror(code)}': {lines[0]}"
            if kind not in NAMELESS and not any(is_named(path, lines[0], whole) for path in struck.hits):
                yield f"it does not name the file: {lines[0]}"

    def finish(self):
        kinds = " ".join(f"{kind} {count}" for kind, count in sorted(self.struck.items(), key=lambda item: -item[1]))
        codes = ", ".join(f"{count} ended in {code}" for code, count in sorted(self.codes.items(), key=lambda item: str(item[0])))
        print(f"faults by call: {kinds}")
        print(f"seed {self.options.seed}: {self.cases} commands with {self.calls} calls; {sum(self.struck.values())} faults of {len(self.struck)} kinds of call, "
              f"of which {codes}; {self.reruns} reruns; {self.missed} plans met no call")
        self.tool.close()
        self.checks.finish()


def main():
    parser = jobs.choice(harness.argument_parser(__doc__.splitlines()[0]))
    parser.add_argument("--all", action="store_true", help="every call of every command")
    parser.add_argument("--faults", type=int, default=5, metavar="N", help="so many of each command in a sample (5)")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="with --all or --kind: at most N calls of one kind in a command")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop after so long")
    parser.add_argument("--kind", choices=fault_plans.ACTIONS, help="only calls of this kind")
    parser.add_argument("--seed", type=int, default=turns.turn(), help="of the choice (TESSERA_TURN)")
    options = parser.parse_args()
    options.sanitized = b"__asan_init" in pathlib.Path(options.tessera).read_bytes()

    def wanted(case):
        return options.only is None or any(text in case.name for text in options.only)

    with harness.temporary_directory(options.directory) as work:
        attack = Attack(options, work)
        number = 0
        pinned = {pin.case for pin in fault_plans.PINNED}
        taken = jobs.JOBS + jobs.MORE if options.all or options.only else turns.part(jobs.JOBS + jobs.MORE, 3)
        table = [job for job in jobs.JOBS + jobs.MORE if wanted(job) and (job in taken or job.name in pinned)]
        print(f"{len(table)} jobs; {turns.told()}")
        for cases in fault_cases.other_cases(options, work), fault_cases.table_cases(options, work, table):
            for case in cases:
                number += 1
                if wanted(case):
                    attack.run_case(case, number)
        attack.finish()


if __name__ == "__main__":
    main()
