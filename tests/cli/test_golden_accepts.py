"""Tests that check_golden accepts the inputs that the command accepts: test vectors with other dtypes, names and orders."""

import json
import os
import subprocess
from pathlib import Path

import harness
import numpy as np
import pytest

VECTORS = Path(__file__).resolve().parents[1] / "peers/golden/vectors-4bit"
CASES = {case["name"]: case for case in json.loads((VECTORS / "manifest.json").read_text())["cases"]}


def i32(tensors):
    return {n: ("I32", shape, np.frombuffer(data, np.int64).astype(np.int32).tobytes()) if n.endswith("_shape") else (dtype, shape, data)
            for n, (dtype, shape, data) in tensors.items()}


def scale_inv(dtype):
    def change(tensors):
        changed = {}
        for n, (kind, shape, data) in tensors.items():
            if n.endswith(".scale"):
                powers = np.exp2(np.frombuffer(data, np.uint8).astype(np.float32) - 127)
                n, kind, data = n.replace(".scale", ".weight_scale_inv"), dtype, powers.astype({"F32": "<f4", "F16": "<f2"}[dtype]).tobytes()
            changed[n] = (kind, shape, data)
        return changed
    return change


def same(tensors):
    return tensors


def reordered(tensors):
    """Makes another group for each input. The decoded values are not compared."""
    n = next(n for n in tensors if n.endswith(".g_idx"))
    order = np.frombuffer(tensors[n][2], np.int32)[::-1].copy()
    return {**tensors, n: ("I32", tensors[n][1], order.tobytes())}


def with_order(source):
    def change(tensors):
        n = next(n for n in source if n.endswith(".g_idx"))
        return {**tensors, n.replace(".g_idx", ".weight_g_idx"): source[n]}
    return change


def named(kind, op):
    return next(name for name, case in CASES.items() if case.get("kind") == kind and case["op"] == op and not case.get("refused"))


@pytest.mark.parametrize("kind,op,given,wanted", [
    ("int4-ct", "decode", i32, same), ("fp8-block:mxfp8", "convert", scale_inv("F32"), same), ("fp8-block:mxfp8", "convert", scale_inv("F16"), same),
    ("gptq:int4-ct", "convert", reordered, with_order)])
def test_what_the_command_takes(tmp_path, tessera, kind, op, given, wanted):
    checker = Path(tessera).parent.parent / "tests/peers/golden/check_golden"
    case = dict(CASES[named(kind, op)])
    source = given(harness.read_safetensors(VECTORS / case["input"]["file"])[1])
    expected = harness.read_safetensors(VECTORS / case["expected"]["file"])[1]
    wanted = wanted(source) if wanted is with_order else wanted
    harness.write_safetensors(tmp_path / "in.safetensors", source)
    harness.write_safetensors(tmp_path / "out.safetensors", wanted(expected))
    case |= {"input": {"file": "in.safetensors"}, "expected": {"file": "out.safetensors"}}
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 1, "cases": [case]}))
    # Under the suite's use_globals=0, LeakSanitizer reports the buffer of stdout.
    environment = {name: value for name, value in os.environ.items() if name != "LSAN_OPTIONS"}
    done = subprocess.run([checker, tmp_path], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "0 failed" in done.stdout, done.stdout + done.stderr
