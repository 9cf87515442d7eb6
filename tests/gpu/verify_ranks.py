#!/usr/bin/env python3
"""`tessera verify gemm --tp` on one GPU and on two: the ranks of two GPUs have the bits of ranks in turn, and every failure of a
rank, a GPU or NCCL ends the command with a line and its exit code. The real NCCL runs, with faults from tests/gpu/nccl_faults.c.

    python3 tests/gpu/verify_ranks.py --tessera build/cli/tessera --make build/tests/make/make_checkpoint
"""

import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

LAYERS = ("--tensors", "*.o_proj.weight", "--tensors", "*.down_proj.weight")
KERNELS = ("CUDA plain", "CUDA mma", "CUDA fast", "cuBLASLt")
DEADLINE = 5  # seconds; a command that fails by it takes longer by its start and by the first products
LONGEST = 90
HELD = 700  # MiB: more than a context of CUDA needs, less than the scores of 4,096 tokens


def run(options, *words, **environment):
    """Returns (exit code, stdout, stderr, seconds)."""
    began = time.monotonic()
    done = subprocess.run([options.tessera, "verify", *map(str, words)], capture_output=True, text=True, timeout=300,
                          env=os.environ | environment)
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


def sums(result):
    """Returns {(subject, what without the words about the connection): the figures of a sum over ranks}."""
    found = {}
    for j in result["judgements"]:
        kernel, ranks, end = j["what"].partition(" ranks ")
        if ranks:
            found[j["subject"], kernel, end.split(": sum, ")[1]] = {k: v for k, v in j.items() if k not in ("what", "kernel_seconds")}
    return found


def judge(checks, options, name, model, ranks, words=("--device", "cuda"), **environment):
    """Returns the JSON of a run that must pass."""
    code, out, err, seconds = run(options, "gemm", model, *LAYERS, *words, "--tp", ranks, "--tokens", 200, "--json", "-", **environment)
    harness.skip_without_gpu(code, err)
    if not checks.check(f"{name}: exit code", code == 0, f"{code}: {err}"):
        return None
    result = json.loads(out)
    found = sums(result)
    print(f"{name}: {len(found)} sums over ranks, {seconds:.1f} s; {[s['why'] for s in result['skipped']] or 'nothing skipped'}", flush=True)
    for kernel in KERNELS:
        of = [j["of_expected_rms"] for (_, what, _), j in found.items() if what.startswith(kernel)]
        checks.check(f"{name}: {kernel} was judged, {max(of, default=0):.2f} of the expected RMS", of)
    return result


def check_in_turn(checks, options, model):
    """With one visible GPU, the ranks run in turns, and the result has the reason."""
    one = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
    result = judge(checks, options, "two ranks in turn on one GPU", model, 2, **one)
    if result is None:
        return None
    why = [s["why"] for s in result["skipped"]]
    checks.check("in turn: the reason, once", sum("2 ranks need as many GPUs, but there is 1" in line for line in why) == 1, why)
    checks.check("in turn: named so", all(" in turn: " in j["what"] for j in result["judgements"] if " ranks " in j["what"]))
    judge(checks, options, "four ranks in turn on one GPU", model, 4, **one)
    code, _, err, _ = run(options, "gemm", model, *LAYERS, "--device", "cuda", "--tp", 2, CUDA_VISIBLE_DEVICES="")
    checks.check("no GPU: exit code 5 and a line", code == 5 and err.count("\n") == 1, f"{code}: {err}")
    for words, why in ((("forward", model, "--against", model, "--device", "cuda"), "at least 2 GPUs are needed, but there is 1"),
                       (("gemm", model, *LAYERS, "--tp", 2), "2 ranks need as many GPUs, but there is 1"),
                       (("mla", model, "--layer", 0, "--tp", 2), "2 ranks need as many GPUs, but there is 1")):
        code, _, err, _ = run(options, *words, "--devices", 2, **one)
        checks.check(f"{words[0]}, a missing GPU: exit code 5 and a line", code == 5 and why in err and err.count("\n") == 1, f"{code}: {err}")
    return result


def check_joined(checks, options, model, in_turn):
    """With two GPUs, NCCL's sums have the bits of ranks in turns, because the sum of two numbers has only one order."""
    result = judge(checks, options, "two ranks on two GPUs", model, 2, ("--devices", 2))
    if result is None:
        return
    checks.check("two GPUs: joined by NCCL", any(" on 2 GPUs, NCCL " in j["what"] for j in result["judgements"]))
    before, after = sums(in_turn), sums(result)
    checks.check("two GPUs: the same sums", before.keys() == after.keys(), before.keys() ^ after.keys())
    unlike = [key for key in before if before[key] != after.get(key)]
    checks.check("two GPUs: the figures of ranks in turn", not unlike, [(key, before[key], after.get(key)) for key in unlike[:2]])
    for j in result["judgements"]:
        if "CUDA fast" in j["what"] and j["what"].endswith("bf16") and "kernel_seconds" in j:
            print(f"  {j['what']}: {j['subject']}, all-reduce {j['kernel_seconds'] * 1e6:.1f} us")
            break
    four = judge(checks, options, "four ranks with two GPUs", model, 4)
    why = [s["why"] for s in four["skipped"]] if four else []
    checks.check("four ranks: in turn, with the reason", any("4 ranks need as many GPUs, but there are 2" in line for line in why), why)


def find_nccl():
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":") + ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
    return next(iter(path for folder in folders if folder for path in glob.glob(folder + "/libnccl.so.2")), None)


def check_faults(checks, options, model, work):
    """Tests a rank that does not connect, one that dies before its sum or between two sums, and one whose connection breaks."""
    folder = pathlib.Path(work, "faults")
    folder.mkdir()
    shutil.copy(pathlib.Path(options.make).resolve().parents[1] / "gpu" / "libnccl_faults.so", folder / "libnccl.so.2")
    faulty = {"NCCL_REAL": find_nccl(), "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}",
              "TESSERA_NCCL_TIMEOUT": str(DEADLINE)}
    gemm = ("gemm", model, *LAYERS, "--device", "cuda", "--tp", 2)
    code, _, err, _ = run(options, *gemm, **faulty)
    checks.check("no fault: passes through", code == 0, f"{code}: {err}")
    mla = ("mla", model, "--layer", 0, "--device", "cuda", "--tp", 2)
    for fault, words, command in (("join", "connecting over 2 GPUs did not end within 5 s", gemm),
                                  ("sum 1", "over 2 GPUs did not end within 5 s", gemm),
                                  ("sum 2", "a sum over 2 GPUs did not end within 5 s", gemm),
                                  ("sum 2", "a sum over 2 GPUs did not end within 5 s", mla),
                                  ("error 1", "NCCL: remote process exited or there was a network error", gemm)):
        code, _, err, seconds = run(options, *command, **faulty, NCCL_FAULT=fault)
        print(f"{command[0]}, fault '{fault}': exit code {code} after {seconds:.1f} s: {err.strip()}", flush=True)
        checks.check(f"{command[0]}, fault '{fault}'", code == 5 and words in err and err.count("\n") == 1 and seconds < LONGEST,
                     f"{code} after {seconds:.0f} s: {err}")
    code, _, err, _ = run(options, *gemm, **faulty | {"TESSERA_NCCL_TIMEOUT": "soon"})
    checks.check("a deadline that is no number", code == 2 and "TESSERA_NCCL_TIMEOUT: 'soon'" in err, f"{code}: {err}")


def check_memory(checks, options, model):
    """The second GPU has too little memory for its work, or none."""
    forward = ("forward", model, "--against", model, "--device", "cuda", "--devices", 2, "--count", 4096, "--layers", 0)
    gemm = ("gemm", model, *LAYERS, "--device", "cuda", "--tp", 2)
    program = pathlib.Path(options.make).resolve().parents[1] / "gpu" / "hold_memory"
    for left, command, words in ((HELD, forward, "too little memory"), (0, forward, "memory"), (0, gemm, "")):
        with subprocess.Popen([program, "1", str(left)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            ready = checks.check(f"{left} MiB are left", holder.stdout.readline() == "held\n")
            code, _, err, seconds = run(options, *command) if ready else (0, "", "", 0)
            holder.stdin.close()
        print(f"{command[0]}, {left} MiB left on GPU 1: exit code {code} after {seconds:.1f} s: {err.strip()}", flush=True)
        checks.check(f"{command[0]}, {left} MiB left on GPU 1", code == 5 and words in err and err.count("\n") <= 2 and seconds < LONGEST,
                     f"{code} after {seconds:.0f} s: {err}")


def main():
    options = harness.parse_options(__doc__)
    with harness.checks_in(options.directory) as (checks, work):
        source, model = os.path.join(work, "src"), os.path.join(work, "fp8")
        harness.make_checkpoint(options.make, "deepseek-v3", source, weights="ordinary")
        checks.ends("quantize", options.tessera, ["quantize", source, "-o", model, "--quiet"])
        in_turn = check_in_turn(checks, options, model)
        code, out, err, _ = run(options, "forward", model, "--against", source, "--device", "cuda", "--devices", 2, "--count", 8)
        if code == 5:
            print(f"left out: two GPUs: {err.strip()}")
        elif find_nccl() is None:
            print("left out: two GPUs joined by NCCL: there is no libnccl.so.2 in LD_LIBRARY_PATH or the system's folders")
        else:
            check_joined(checks, options, model, in_turn)
            check_faults(checks, options, model, work)
            check_memory(checks, options, model)


if __name__ == "__main__":
    main()
