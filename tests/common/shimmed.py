"""Runs the tool with tests/robustness/faults/shim preloaded: started once, and forked for each run with its own plan."""

import collections
import os
import pathlib
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import forked

# code: the exit code, negative for a signal, "hangs" for no end. hits: the paths of the calls that were struck.
# counts: calls by kind. blocks: sites of memory that was still there when main ended, with repetitions. descriptors: files left open.
# ended: whether main came to its end.
Outcome = collections.namedtuple("Outcome", "code stdout stderr hits counts blocks descriptors ended")

CPU_SECONDS, SECONDS = 20, 120


class Shimmed:
    """Is a tool whose calls can fail. `work` has the files that describe a run."""

    def __init__(self, tool, build, work, record=False):
        self.plan, self.told, self.record = work / "faults.plan", work / "faults.told", work / "faults.record"
        os.environ.update(FAULTS_PLAN=str(self.plan), FAULTS_TOLD=str(self.told), FAULTS_DISK="1")
        if record:
            os.environ["FAULTS_RECORD"] = str(self.record)
        preloaded = [os.path.abspath(os.path.join(build, "tests", path)) for path in ("robustness/faults/faults.so", "common/forked.so")]
        self.tool = os.path.abspath(tool)
        self.preloaded = ":".join(preloaded)
        self.server = forked.Forked(self.tool, self.preloaded)
        self.runs = 0

    def run(self, args, plan=""):
        self.runs += 1
        self.plan.write_text(plan)
        self.told.unlink(missing_ok=True)
        try:
            code, stdout, stderr = self.server.run(list(map(str, args)), SECONDS, CPU_SECONDS)
        except TimeoutError:
            code, stdout, stderr = "hangs", b"", b""
        return self._outcome(code, stdout.decode(errors="replace"), stderr.decode(errors="replace"))

    def _outcome(self, code, stdout, stderr):
        hits, counts, blocks, descriptors, ended = [], {}, collections.Counter(), [], False
        for line in self.told.read_text(errors="replace").splitlines() if self.told.exists() else []:
            word, _, rest = line.partition(" ")
            if word == "hit":
                hits.append(rest.split(" ", 2)[2])
            elif word == "count":
                kind, number = rest.split()
                if number != "0":
                    counts[kind] = int(number)
            elif word == "block" and not rest.startswith("ld-linux"):  # of a thread, whose stack is kept for the next one
                blocks[rest.rpartition(" ")[0]] += 1
            elif word == "descriptor":
                descriptors.append(rest)
            ended = ended or word == "end"
        return Outcome(code, stdout, stderr, hits, counts, blocks, descriptors, ended)

    def close(self):
        self.server.close()


def build_of(options):
    """Returns the build folder of the preloaded library, which is that of make_checkpoint."""
    return pathlib.Path(options.make).resolve().parent.parent.parent
