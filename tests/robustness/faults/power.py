#!/usr/bin/env python3
"""Tests power cuts at any moment: no state of the disk looks like a finished model but is incomplete, and a rerun completes each.

Each command that writes an output is recorded. After each call, disk_model.py gives the possible states of the disk.
If there is a config.json, all its files must be complete. A sample of the states is restored, and the same command
must complete the tree. --all restores all states (--most N: N of each command).
"""

import os
import pathlib
import random
import shutil
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import disk_model
import fault_cases
import harness
import jobs
import shimmed
import trees
import turns

SEED = 20261123
COMPLETED = 5  # states of a command, in a sample


class Cut:
    """Tests one tool and collects the faults."""

    def __init__(self, options, work):
        self.options, self.work, self.out, self.results = options, work, work / "out", work / "results"
        self.checks = harness.Checks()
        self.tool = shimmed.Shimmed(options.tessera, shimmed.build_of(options), work, record=True)
        self.random = random.Random(options.seed)
        self.proven = False
        self.cases = self.prefixes = self.states = self.with_config = self.completed = 0
        self.until = time.monotonic() + 60 * options.minutes if options.minutes else None

    def run_case(self, case, number):
        places = {**case.places, "DST": self.out, "RESULTS": self.results}
        args = [fault_cases.place_of(word, places) for word in case.words]
        if args[0] in ("quantize", "convert", "batch"):
            args += ["--io", "buffered" if number % 2 else "direct"]
        args += ["--threads", "1" if number % 4 < 2 else "2"]
        fault_cases.lay_out(case, self.out, self.results)
        disk, before = disk_model.Disk(str(self.out)), trees.tree_of(self.out)
        usual = self.tool.run(args)
        calls = disk_model.read_record(self.tool.record, str(self.out))
        if not self.checks.check(f"{case.name}: runs", usual.code == 0, f"exit {usual.code}: {usual.stderr.strip()}"):
            return
        whole = trees.tree_of(self.out)
        # By a run that makes a whole model: a shard has no config.json, so that no state of it is judged.
        if case.begins is None and not self.proven and any(map(trees.is_config, whole)):
            self.proven = True
            self.check_itself(calls, whole)
        self.cases += 1
        self.replay(case, args, disk, calls, before, whole)

    def check_itself(self, calls, whole):
        """Checks that the same run fails without the syncs of its files or folders. Otherwise this test could not fail."""
        folders = {call.path for call in calls if os.path.isdir(call.path)}
        shutil.rmtree(self.out)
        for kind in "files", "folders":
            without = [call for call in calls if call.what not in disk_model.SYNCS or (call.path in folders) == (kind == "files")]
            disk, found = disk_model.Disk(str(self.out)), []
            for call in without:
                disk.play(call)
                for way in disk_model.WAYS:
                    found += self.judged("", disk.state(way[0], self.random), way[1], {}, whole)
            for _ in range(50):  # config.json kept, and another name lost
                found += self.judged("", disk.state(disk_model.SOME, self.random), disk_model.ALL, {}, whole)
            left = self.digests(disk.state(disk_model.NONE, self.random), disk_model.NONE)
            self.checks.check(f"without syncs of {kind}, states are found wrong", found and trees.difference(whole, left))

    def replay(self, case, args, disk, calls, before, whole):
        wrong, chosen, seen = [], [], set()
        for number, call in enumerate([None] + calls):
            if call is not None:
                disk.play(call)
            self.prefixes += 1
            for way in disk_model.WAYS:
                self.states += 1
                names = disk.state(way[0], self.random)
                wrong += self.judged(f"after call {number} ({call and call.what} {call and os.path.basename(call.path)}), names {way[0]}, data {way[1]}",
                                     names, way[1], before, whole)
                self.choose(chosen, seen, number, names, way)
        left = self.digests(disk.state(disk_model.NONE, self.random), disk_model.NONE)
        lost = trees.difference(whole, left)
        if lost:
            wrong.append(f"a power cut after the end loses {lost}")
        self.checks.check(f"{case.name}: no state looks finished that is not", not wrong, "; ".join(wrong[:3]))
        for number, way, laid in chosen:
            if self.until is None or time.monotonic() < self.until:
                self.complete(case, args, f"{case.name}: after call {number}, names {way[0]}, data {way[1]}", laid, whole)

    def choose(self, chosen, seen, number, names, way):
        """Keeps a random sample of the states that are to be completed."""
        wanted = self.options.most if self.options.all else COMPLETED
        mark = hash(tuple((path, id(what), what.digest(way[1]) if what is not disk_model.FOLDER and way[1] != disk_model.SOME else number)
                          for path, what in names.items())) if self.options.all and not wanted else (number, way)
        if mark in seen:
            return
        seen.add(mark)
        if not wanted or len(chosen) < wanted:
            chosen.append((number, way, self.laid_out(names, way[1])))
        elif self.random.random() < wanted / len(seen):
            chosen[self.random.randrange(wanted)] = number, way, self.laid_out(names, way[1])

    def laid_out(self, names, way):
        return {path: what if what is disk_model.FOLDER else what.content(way, self.random) for path, what in names.items()}

    def digests(self, names, way):
        """Returns the digests of the state in the form of trees.tree_of."""
        found = {}
        for path, what in names.items():
            name = os.path.relpath(path, self.out)
            if what is disk_model.FOLDER or trees.is_note(name):
                found[name] = ""
            else:
                found[name] = trees.digest(what.content(way, self.random)) if way == disk_model.SOME else what.digest(way)
        found.pop(".", None)
        return found

    def judged(self, moment, names, way, before, whole):
        """Returns the fault of a state, or None."""
        configs = [os.path.relpath(path, self.out) for path in names if trees.is_config(path)]
        if not configs:
            return
        self.with_config += 1
        found = self.digests(names, way)
        for config in configs:
            if not trees.is_note(config) and not trees.is_whole(config, whole, found) and not trees.is_whole(config, before, found):
                yield f"{moment}: {config} is there, but {trees.difference(whole, found)}"

    def complete(self, case, args, name, laid, whole):
        self.completed += 1
        for folder in self.out, self.results:
            shutil.rmtree(folder, ignore_errors=True)
        self.results.mkdir()
        for path, what in laid.items():
            if what is disk_model.FOLDER:
                os.makedirs(path, exist_ok=True)
            else:
                with open(path, "wb") as file:
                    file.write(what)
        again = self.tool.run(args)
        wrong = f"exit {again.code}: {again.stderr.strip()}" if again.code != 0 else trees.difference(whole, trees.tree_of(self.out))
        self.checks.check(f"{name}: the rerun completes it", not wrong, wrong)

    def finish(self):
        print(f"seed {self.options.seed}: {self.cases} commands cut after each of {self.prefixes} calls: {self.states} states, {self.with_config} of them "
              f"with a config.json; {self.completed} completed by a rerun")
        self.tool.close()
        self.checks.finish()


def main():
    parser = jobs.choice(harness.argument_parser(__doc__.splitlines()[0]))
    parser.add_argument("--all", action="store_true", help="complete every state")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="with --all: at most N states of a command")
    parser.add_argument("--minutes", type=float, metavar="M", help="stop completing after so long")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()

    def wanted(name):
        return options.only is None or any(text in name for text in options.only)

    with harness.temporary_directory(options.directory) as work:
        cut = Cut(options, work)
        table = jobs.JOBS + jobs.MORE if options.all else jobs.JOBS if options.only else turns.part(jobs.JOBS, 2)
        table = [job for job in table if wanted(job.name)]
        print(f"{len(table)} jobs; {turns.told()}")
        cases = [case for case in fault_cases.other_cases(options, work) if case.makes_output and wanted(case.name)]
        number = 0
        for some in cases, fault_cases.table_cases(options, work, table):
            for case in some:
                number += 1
                cut.run_case(case, number)
        cut.finish()


if __name__ == "__main__":
    main()
