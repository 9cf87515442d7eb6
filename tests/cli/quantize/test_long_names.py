"""Tests names of any length with every scheme: an output that ends with exit code 0 can be read."""

import json

from checkpoints import BF16, load, make, random_weight
import harness
import numpy as np
import pytest

SCHEMES = ["fp8-block", "fp8-channel", "nvfp4-weight-only", "mxfp4", "mxfp8", "int8-channel", "int8-weight-only", "int4-weight-only"]


def named(length, leaf):
    """Returns the name of a weight in a layer's MLP with so many characters."""
    head, tail = "model.layers.0.mlp.", f".{leaf}.weight"
    return head + "x" * (length - len(head) - len(tail)) + tail


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_reads_what_it_writes(tmp_path, tessera, scheme):
    for length in (*range(1180, 1211, 3), 1023, 1024, 1136, 1199, 1200, 5000):
        gate, up, kept = named(length, "gate_proj"), named(length - 2, "up_proj"), named(length, "norm")
        tensors = {gate: random_weight((128, 128), 1).astype(BF16), up: 64 * random_weight((128, 128), 2).astype(BF16), kept: np.ones(128, BF16)}
        src, dst = tmp_path / f"src{length}", tmp_path / f"dst{length}"
        make(src, {"model.safetensors": tensors}, quantization=None)
        code, out, err = harness.run(tessera, ["quantize", src, "-o", dst, "--scheme", scheme, "--quiet"])
        assert code == 0, (length, err)
        for words in (["inspect", dst], ["verify", dst, "--against", src], ["convert", dst, "-o", tmp_path / f"bf16-{length}", "--to", "bf16", "--quiet"]):
            code, out, err = harness.run(tessera, words)
            assert code == 0, (length, words[0], out, err)
        assert load(tmp_path / f"bf16-{length}").keys() == tensors.keys()
        if scheme == "nvfp4-weight-only":  # gate and up are one layer to loaders
            stored = load(dst)
            first, second = (stored[n] for n in stored if "_scale_2" in n or "global_scale" in n)
            assert first == second, length


@pytest.mark.parametrize("scheme,key", [("fp8-block", "modules_to_not_convert"), ("int4-weight-only", "ignore"), ("nvfp4-weight-only", "ignore")])
def test_lists_of_unquantized_modules_hold_whole_names(tmp_path, tessera, scheme, key):
    kept = named(1500, "down_proj")
    src = make(tmp_path / "src", {"model.safetensors": {named(1500, "up_proj"): random_weight((128, 128), 1).astype(BF16),
                                                        kept: random_weight((128, 128), 2).astype(BF16)}}, quantization=None)
    harness.succeed(tessera, ["quantize", src, "-o", tmp_path / "dst", "--scheme", scheme, "--exclude", "*down_proj*", "--quiet"])
    stated = json.loads((tmp_path / "dst" / "config.json").read_text())["quantization_config"]
    assert kept.removesuffix(".weight") in stated[key]
