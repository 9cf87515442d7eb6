"""Tests static activations: the scales of each module, shared scales of fused layers, the identity of the epilogue, rejected files."""

import json

from checkpoints import BF16, llama_config, llama_ends, make, random_weight, read
import harness
from int_oracle import AZP
import numpy as np
import pytest
from safetensors.numpy import save_file

LAYER = "model.layers.0."
Q, K, V, O = (LAYER + f"self_attn.{n}_proj" for n in "qkvo")
GATE, UP, DOWN = (LAYER + f"mlp.{n}_proj" for n in ("gate", "up", "down"))
MODULES = [Q, K, V, O, GATE, UP, DOWN]
F32 = np.float32


@pytest.fixture
def source(tmp_path):
    weights = {m + ".weight": random_weight((16, 32), i).astype(BF16) for i, m in enumerate(MODULES)}
    return make(tmp_path / "src", {"model.safetensors": weights | llama_ends(32)}, quantization=None, **llama_config(32))


def written(tmp_path, entries, kind):
    path = tmp_path / f"activations.{kind}"
    if kind == "json":
        path.write_text(json.dumps(entries))
    else:
        save_file({f"{m}.{k if k.startswith('input') else 'input_' + k}": np.array([v], np.int8 if "zero" in k else F32)
                   for m, e in entries.items() for k, v in e.items()}, path)
    return path


def remade(scale, zero):
    """Computes vLLM's scale of a fused layer with these members in FP32 (scaled_mm/cutlass.py)."""
    largest, least = F32(scale) * F32(127 - zero), F32(scale) * F32(-128 - zero)
    merged = (largest - least) / F32(255)
    return merged, int(np.trunc(F32(-128) - least / merged))


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_ranges_become_scales_and_zero_points(tmp_path, source, quantize, kind):
    rng = np.random.default_rng(0)
    ranges = {m: {"min": float(F32(rng.uniform(-3, 0.5))), "max": float(F32(rng.uniform(0.6, 4)))} for m in MODULES}
    ranges["lm_head"] = {"min": -1.0, "max": 1.0}  # of a layer that is not there
    dst = quantize(source, "--scheme", "int8-channel", "--activations", written(tmp_path, ranges, kind),
                   "--activation-zero-points")
    got, azp = read(dst / "model.safetensors"), read(dst / AZP)
    for group in ([Q, K, V], [GATE, UP], [O], [DOWN]):
        singles = []
        for m in group:
            low, high = min(F32(ranges[m]["min"]), F32(0)), max(F32(ranges[m]["max"]), F32(0))
            scale = (high - low) / F32(255)
            singles.append((scale, int(np.rint(np.clip(F32(-128) - low / scale, -128, 127)))))
        for m in group:
            scale, zero = got[m + ".input_scale"], got[m + ".input_zero_point"]
            assert scale.dtype == F32 and zero.dtype == np.int8 and scale.shape == zero.shape == (1,)
            s, z = scale[0], int(zero[0])
            if len(group) == 1:
                assert (s, z) == singles[0]
            assert s == got[group[0] + ".input_scale"][0] and z == got[group[0] + ".input_zero_point"][0]
            # The union of what its members reach, to half a step at each end.
            low = min(s1 * F32(-128 - z1) for s1, z1 in singles)
            high = max(s1 * F32(127 - z1) for s1, z1 in singles)
            assert s == pytest.approx((high - low) / 255, rel=2e-5) and abs(s * (-128 - z) - low) <= 0.51 * s
            if len(group) > 1:
                assert remade(s, z) == (s, z)  # vLLM's own merging changes nothing
            assert np.array_equal(azp[m + ".azp_adj"], got[m + ".weight"].astype(np.int64).sum(axis=1))
            assert np.array_equal(azp[m + ".azp_with_adj"], azp[m + ".azp_adj"].astype(np.int64) * z)
    args = json.loads((dst / "config.json").read_text())["quantization_config"]["config_groups"]["group_0"]
    assert args["input_activations"] == {"num_bits": 8, "type": "int", "symmetric": False, "strategy": "tensor", "dynamic": False}


def test_the_identity_with_azp_with_adj(tmp_path, source, quantize):
    """Checks the identity s_a s_b (A W - azp_with_adj) + bias = A' W' + bias."""
    entries = {m: {"input_scale": 0.031, "input_zero_point": 17} for m in MODULES}
    dst = quantize(source, "--scheme", "int8-channel", "--activations", written(tmp_path, entries, "json"),
                   "--activation-zero-points")
    got, azp = read(dst / "model.safetensors"), read(dst / AZP)
    w, s_b = got[O + ".weight"].astype(np.int64), got[O + ".weight_scale"].astype(np.float64)[:, 0]
    s_a, z = float(got[O + ".input_scale"][0]), int(got[O + ".input_zero_point"][0])
    a = np.random.default_rng(1).integers(-128, 128, (5, w.shape[1]))
    bias = np.random.default_rng(2).standard_normal(w.shape[0])
    ours = s_a * s_b * (a @ w.T - azp[O + ".azp_with_adj"]) + bias
    assert np.allclose(ours, (s_a * (a - z)) @ (w * s_b[:, None]).T + bias, rtol=1e-12, atol=1e-9)


def test_symmetric(tmp_path, source, quantize):
    entries = {m: {"input_scale": 0.01 * (i + 1)} for i, m in enumerate(MODULES)}
    entries[DOWN] = {"min": -2.0, "max": 1.0}
    dst = quantize(source, "--scheme", "int8-channel", "--activations", written(tmp_path, entries, "safetensors"))
    got, azp = read(dst / "model.safetensors"), read(dst / AZP)
    want = {Q: 0.03, K: 0.03, V: 0.03, O: 0.04, GATE: 0.06, UP: 0.06}
    assert all(got[m + ".input_scale"][0] == F32(want[m]) for m in want)
    assert got[DOWN + ".input_scale"][0] == F32(2) / F32(127.5)
    assert not any(n.endswith("zero_point") or n.endswith("with_adj") for n in [*got, *azp])


def test_read_again(tmp_path, source, quantize, tessera):
    entries = {m: {"min": -1, "max": 2} for m in MODULES}
    dst = quantize(source, "--scheme", "int8-channel", "--activations", written(tmp_path, entries, "json"),
                   "--activation-zero-points")
    harness.succeed(tessera, ["verify", dst, "--against", source])
    harness.succeed(tessera, ["inspect", dst, "--can-load", "vllm", "--tp", "1"])
    # The same name with other numbers is another job.
    (tmp_path / "activations.json").write_text(json.dumps({m: {"min": -1, "max": 3} for m in MODULES}))
    code, _, err = harness.run(tessera, ["quantize", source, "-o", dst, "--scheme", "int8-channel", "--activations",
                                         tmp_path / "activations.json", "--activation-zero-points"])
    assert code != 0 and "--force" in err, err


WHOLE = {m: {"input_scale": 0.1} for m in MODULES}
REFUSED = [
    ({m: WHOLE[m] for m in MODULES if m != K}, (), 3, ["no ranges for", K]),
    (WHOLE, ("--activation-zero-points",), 3, ["no input_zero_point"]),
    ({**WHOLE, O: {"input_scale": 0.1, "input_zero_point": 3}}, (), 3, [O, "--activation-zero-points"]),
    ({**WHOLE, O: {"input_scale": 0}}, (), 3, [O, "not positive"]),
    ({**WHOLE, O: {"input_scale": "0.1"}}, (), 3, [O, "invalid scale"]),
    ({**WHOLE, O: {"input_scale": 0.1, "min": 0}}, (), 3, [O, "both a scale and a range"]),
    ({**WHOLE, O: {"min": 0}}, (), 3, [O, "neither"]),
    ({**WHOLE, O: {"min": 2, "max": 1}}, (), 3, [O, "range from 2 to 1"]),
    ({m: {"min": -3e38, "max": 3e38} for m in MODULES}, ("--activation-zero-points",), 3, ["too wide"]),
    ({**WHOLE, O: {"input_scale": 0.1, "input_zero_point": 128}}, (), 3, [O, "-128 to 127"]),
]


@pytest.mark.parametrize("entries,options,expected,words", REFUSED)
def test_refusals(tmp_path, source, tessera, entries, options, expected, words):
    path = written(tmp_path, entries, "json")
    code, _, err = harness.run(tessera, ["quantize", source, "-o", tmp_path / "out", "--scheme", "int8-channel",
                                         "--activations", path, *options])
    assert code == expected and all(w in err for w in words) and str(path) in err, err
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 3}', '{"a": {"input_scale": 1e999}}', '{"a": {"input_scale": 1, "input_scale": 2}}'])
def test_bad_files(tmp_path, source, tessera, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    code, _, err = harness.run(tessera, ["quantize", source, "-o", tmp_path / "out", "--scheme", "int8-channel",
                                         "--activations", path])
    assert code == 3 and "bad.json" in err, err
