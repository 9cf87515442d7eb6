#!/usr/bin/env python3
"""Tests failing allocations: the tool exits with code 4 and a message, or continues without the memory.

Each command is run once to count its allocations, then with one of them failing (shim/memory.c), and with all failing
from one on. It must not crash, hang or report invalid input. With enough memory, the same command completes the
output.
"""

import errno
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness
import jobs
import remade
import turns

# name, command, whether it writes DST. FP8, W4, NV, GPTQ, AWQ, STACKS, EXPERTS, PACKED, RANKS, BLOBS, MIXTURE, OSS and OSS4
# (gpt-oss, plain and MXFP4), V4 (DeepSeek-V4, MXFP4) and MEANS (importance) are made of SRC or of LLAMA; HALF is an FP8 output of which one shard is gone.
COMMANDS = [
    ("quantize", "quantize SRC -o DST --max-shard-size 1MB", True),
    ("quantize, repair", "quantize SRC -o HALF --max-shard-size 1MB", True),
    ("quantize int4", "quantize SRC -o DST --scheme int4-weight-only --zero-points", True),
    ("quantize nvfp4", "quantize SRC -o DST --scheme nvfp4-weight-only --dialect modelopt", True),
    ("convert bf16 from nvfp4", "convert NV -o DST --to bf16", True),
    ("convert bf16 from gptq", "convert GPTQ -o DST --to bf16", True),
    ("convert bf16 from awq", "convert AWQ -o DST --to bf16", True),
    ("convert int4 from gptq", "convert GPTQ -o DST --to int4-weight-only --group-size 32 --zero-points", True),
    ("quantize mixture", "quantize SRC -o DST --rules MODELOPT_RULES", True),
    ("convert fp8-block from mixture", "convert MIXTURE -o DST --to fp8-block --lossy", True),
    ("quantize gpt-oss", "quantize OSS -o DST --scheme mxfp4-weight-only --dialect gpt-oss --mx-scale floor", True),
    ("convert fp8-block from gpt-oss", "convert OSS4 -o DST --to fp8-block --lossy", True),
    ("convert fp8-block from deepseek-v4", "convert V4 -o DST --to fp8-block --lossy", True),
    ("quantize experts one by one", "quantize STACKS -o DST --scheme nvfp4-weight-only", True),
    ("convert bf16, experts put together", "convert EXPERTS -o DST --to bf16 --experts stack", True),
    ("convert bf16", "convert FP8 -o DST --to bf16", True),
    ("convert tp", "convert SRC -o DST --to tp --tp 2", True),
    ("convert archive", "convert SRC -o DST --to archive", True),
    ("convert safetensors", "convert PACKED -o DST --to safetensors", True),
    ("convert fastertransformer", "convert W4 -o DST --to fastertransformer --arch sm80", True),
    ("compare-schemes", "compare-schemes SRC", False),
    ("plan-schemes", "plan-schemes SRC --bits 8 --json -", False),
    ("inspect", "inspect FP8 --can-load all --tp 1,2", False),
    ("inspect int4", "inspect W4", False),
    ("inspect nvfp4", "inspect NV --can-load all --tp 1,2", False),
    ("verify nvfp4", "verify NV --against SRC", False),
    ("convert from fastertransformer", "convert BLOBS -o DST --from fastertransformer", True),
    ("convert merge", "convert RANKS -o DST --merge", True),
    ("diff", "diff SRC FP8", False),
    ("verify all", "verify all FP8 --against SRC --device cpu --sample 1 --count 2", False),
    ("verify forward", "verify forward W4 --against SRC --devices 3 --device cpu", False),
    ("fold", "fold LLAMA -o DST --importance MEANS", True),
    ("quantize, proven", "quantize LLAMA -o DST --scheme int4-weight-only --importance MEANS --prove TOKENS --device cpu", True),
    ("sensitivities", "sensitivities LLAMA --against LLAMA4 --tokens TOKENS --device cpu -o MEASURED", False),
    ("verify gemm", "verify gemm FP8 --device cpu --tp 2 --tensors *.o_proj.weight --sample 1 --columns 128 --tokens 4", False),
]
SECONDS = 60  # of CPU: a run that never ends mostly loops


def exit_of(tool, args, **shim):
    """(exit code, stdout, stderr); the code is a word when the tool did not end by itself."""
    try:
        return harness.run_shimmed(tool, args, shim.pop("shim"), cpu=SECONDS, **shim)
    except subprocess.TimeoutExpired:
        return "hangs", "", ""


def counted(told):
    """Returns the number of allocations of a run."""
    return int(re.search(r"^count malloc (\d+)$", told.read_text(), re.M)[1])


def stepped(total, most):
    """Returns the distance of the allocations that fail, and the first. A step of 7 from turn to turn meets all of them in time."""
    step = max(1, math.ceil(total / most)) if most else 1
    return step, 1 + 7 * turns.turn() % step


def figures(told):
    try:
        return harness.figures(json.loads(told))
    except ValueError:
        return told


class Sweep:
    def __init__(self, checks, options, work, places):
        self.checks, self.options, self.work, self.places = checks, options, pathlib.Path(work), places
        self.shim = harness.shim_path(options)

    def fresh(self, words):
        """Restores the state before the command: no output, or the half output that it completes."""
        shutil.rmtree(self.work / "out", ignore_errors=True)
        shutil.rmtree(self.work / "half", ignore_errors=True)
        if "HALF" in words:
            shutil.copytree(self.places["FP8"], self.work / "half")
            (self.work / "half" / "model-00002-of-00004.safetensors").unlink()
        return self.work / ("half" if "HALF" in words else "out")

    def run(self, name, command, writes):
        words = command.split()
        target = self.fresh(words)
        args = [str(self.places.get(word, word)) for word in words]
        args += [] if writes else ["--json", "-"]
        args += [] if words[0] == "inspect" else ["--threads", "2"]
        count = self.work / "count"
        code, told, stderr = harness.run_shimmed(self.options.tessera, args, self.shim, TOLD=count)
        if not self.checks.check(f"{name}: runs", code in (0, 1), f"exit {code}: {stderr}"):
            return
        usual = (code, figures(told))
        total = counted(count)
        if not self.checks.check(f"{name}: allocations were counted", total > 10, total):
            return
        reference = self.work / "reference"
        shutil.rmtree(reference, ignore_errors=True)
        if writes:
            shutil.copytree(target, reference)
        step, begin = stepped(total, self.options.most)
        chosen = sorted(set(range(begin, total + 1, step)) | set(range(1, min(total, self.options.first) + 1)))
        for n in chosen:
            self.fail(name, words, args, target, str(n), usual, reference if writes else None)
        for n in range(begin, total + 1, step * 8):
            self.fail(name, words, args, target, f"{n}+", usual, reference if writes else None)
        print(f"{name}: {total} allocations, {len(chosen)} failed one at a time", flush=True)

    def fail(self, name, words, args, target, which, usual, reference):
        self.fresh(words)
        code, told, stderr = exit_of(self.options.tessera, args, shim=self.shim, PLAN=f"malloc {which} {errno.ENOMEM}")
        usual, figured = usual
        said = code == usual or (code == 4 and stderr.startswith("tessera: "))
        self.checks.check(f"{name}: allocation {which} fails", said, f"exit {code}: {stderr.strip()[-300:]}")
        if reference is None:
            self.checks.check(f"{name}: allocation {which} fails: what is told is the same or an error",
                              code != usual or figures(told) == figured)
            return
        if code == usual:
            difference = harness.tree_difference(reference, target)
            self.checks.check(f"{name}: allocation {which} fails, exit {code}: same tree", difference is None, difference)
        if "HALF" not in words:  # where one is there to begin with
            self.checks.check(f"{name}: allocation {which} fails: no config.json before the end",
                              code == usual or not (target / "config.json").exists() or
                              harness.tree_difference(reference, target) is None, "it is there")
        code, _, stderr = harness.run(self.options.tessera, args, cpu=SECONDS)
        if self.checks.check(f"{name}: allocation {which} fails: rerun", code == usual, f"exit {code}: {stderr.strip()}"):
            shutil.rmtree(target / ".tessera")
            kept = self.work / "kept"
            shutil.copytree(reference, kept, ignore=shutil.ignore_patterns(".tessera"))
            difference = harness.tree_difference(kept, target)
            shutil.rmtree(kept)
            self.checks.check(f"{name}: allocation {which} fails: same tree", difference is None, difference)


BATCH = ("fp8-block", "int8-channel", "nvfp4-weight-only")


def check_batch(checks, options, work, source):
    """Jobs that are read together: memory that one lacks, and memory that all share."""
    out, reference, path = work / "out", work / "reference", work / "jobs.jsonl"
    shutil.rmtree(reference, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    path.write_text("".join(json.dumps({"name": scheme, "args": ["quantize", str(source), "-o", str(out / scheme), "--scheme", scheme]}) + "\n"
                            for scheme in BATCH))
    args, count = ["batch", path, "--threads", "2", "--quiet"], work / "count"
    code, _, stderr = harness.run_shimmed(options.tessera, args, harness.shim_path(options), TOLD=count)
    if not checks.check("batch: runs", code == 0, f"exit {code}: {stderr}"):
        return
    for scheme in BATCH:
        shutil.rmtree(out / scheme / ".tessera")  # a journal tells of repairs
    shutil.move(out, reference)
    total = counted(count)
    step, begin = stepped(total, options.most)
    for which in [str(n) for n in range(begin, total + 1, step)] + [f"{n}+" for n in range(begin, total + 1, step * 8)]:
        shutil.rmtree(out, ignore_errors=True)
        code, _, stderr = exit_of(options.tessera, args, shim=harness.shim_path(options), PLAN=f"malloc {which} {errno.ENOMEM}")
        checks.check(f"batch: allocation {which} fails", code == 0 or (code == 4 and stderr.startswith("tessera: ")), f"exit {code}: {stderr[-300:]}")
        code, _, stderr = harness.run(options.tessera, args, cpu=SECONDS)
        checks.check(f"batch: allocation {which} fails: rerun", code == 0, f"exit {code}: {stderr.strip()}")
        for scheme in BATCH:
            shutil.rmtree(out / scheme / ".tessera")
        difference = harness.tree_difference(reference, out)
        checks.check(f"batch: allocation {which} fails: same trees", difference is None, difference)
    print(f"batch: {total} allocations", flush=True)


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=20 if turns.whole() else 8,
                        help="allocations of a command that fail, spread evenly (8; 20 with TESSERA_LONG); 0: all")
    parser.add_argument("--first", type=int, default=0, help="and so many of the first ones (0)")
    parser.add_argument("--only", help="the commands whose name begins so")
    options = parser.parse_args()
    checks = harness.Checks()
    print(turns.told())
    with harness.temporary_directory(options.directory) as work:
        places = {word: pathlib.Path(work, word.lower()) for word in ("SRC", "FP8", "W4", "NV", "GPTQ", "AWQ", "STACKS", "EXPERTS",
                                                                         "PACKED", "BLOBS", "RANKS", "HALF", "MIXTURE", "OSS", "OSS4",
                                                                         "V4")}
        places["MODELOPT_RULES"] = jobs.MODELOPT_RULES
        places["DST"] = pathlib.Path(work, "out")
        places["TOKENS"] = pathlib.Path(work, "tokens.txt")
        places["TOKENS"].write_text("1 2 3 4")
        harness.make_checkpoint(options.make, "deepseek-v3", places["SRC"], scale="tiny")
        for word, extra in (("FP8", ["--max-shard-size", "1MB"]), ("W4", ["--scheme", "int4-weight-only"]),
                            ("NV", ["--scheme", "nvfp4-weight-only", "--dialect", "modelopt"])):
            harness.run(options.tessera, ["quantize", places["SRC"], "-o", places[word], *extra])
        for word, made, extra in (("PACKED", "SRC", ["--to", "archive"]), ("RANKS", "SRC", ["--to", "tp", "--tp", "2"]),
                                  ("BLOBS", "W4", ["--to", "fastertransformer", "--arch", "sm80"])):
            harness.run(options.tessera, ["convert", places[made], "-o", places[word], *extra])
        for kind in "gptq", "awq":
            remade.remake(kind, places["SRC"], places[kind.upper()])
        llama = places["LLAMA"] = harness.make_checkpoint(options.make, "llama", pathlib.Path(work, "llama"))
        places |= {word: pathlib.Path(work, name) for word, name in (("LLAMA4", "llama4"), ("MEANS", "means.json"), ("MEASURED", "measured.json"))}
        harness.run(options.tessera, ["quantize", llama, "-o", places["LLAMA4"], "--scheme", "int4-weight-only"])
        places["MEANS"].write_text(json.dumps({f"model.layers.0.self_attn.{n}_proj": {"input_mean_square": list(range(1, 257))} for n in "qkv"}))
        remade.remake(remade.STACKS, llama, places["STACKS"])
        harness.run(options.tessera, ["quantize", places["STACKS"], "-o", places["EXPERTS"], "--scheme", "mxfp8", "--mx-scale", "floor"])
        harness.run(options.tessera, ["quantize", places["SRC"], "-o", places["MIXTURE"], "--rules", jobs.MODELOPT_RULES])
        remade.remake(remade.GPT_OSS, llama, places["OSS"])
        remade.remake(remade.V4, llama, pathlib.Path(work, "v4-plain"))
        for source, word, dialect in (places["OSS"], "OSS4", "gpt-oss"), (pathlib.Path(work, "v4-plain"), "V4", "deepseek"):
            harness.run(options.tessera, ["quantize", source, "-o", places[word], "--mx-scale", "floor", "--dialect", dialect,
                                          "--scheme", "mxfp4-weight-only" if word == "OSS4" else "mxfp4"])
        sweep = Sweep(checks, options, work, places)
        for name, command, writes in COMMANDS:
            if options.only is None or name.startswith(options.only):
                sweep.run(name, command, writes)
        if options.only is None or "batch".startswith(options.only):
            check_batch(checks, options, pathlib.Path(work), llama)
    checks.finish()


if __name__ == "__main__":
    main()
