"""Tests `tessera merge` with several adapters: their sum in order, one rounding, what survived, the manifest."""

import json

from checkpoints import BF16, make, random_weight, read, same_bits
import harness
import merge_oracle as oracle
import mx_oracle
import numpy as np
import pytest

F32 = np.float32
Q, K, V, UP = ("model.layers.0." + name for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj"))
SHAPES = {Q: (48, 96), K: (32, 96), V: (32, 96), UP: (130, 96)}


@pytest.fixture
def base(tmp_path):
    tensors = {f"{module}.weight": random_weight(shape, seed).astype(BF16) for seed, (module, shape) in enumerate(SHAPES.items())}
    return make(tmp_path / "base", {"model.safetensors": tensors}, quantization=None, hidden_size=96), tensors


def merge(tessera, src, words, dst, *options):
    harness.succeed(tessera, ["merge", src, *words, "-o", dst, "--json", f"{dst}.json", *options])
    return read(dst / "model.safetensors"), json.loads(open(f"{dst}.json", encoding="ascii").read())


def adapters(tmp_path, size=0.02):
    """Makes three adapters with other ranks, dtypes and modules: [(path, {module: update of factor 1})]."""
    made = []
    for n, (rank, dtype, modules) in enumerate(((4, F32, (Q, UP)), (7, BF16, (Q, V)), (2, np.float16, (Q, UP)))):
        pairs = {module: oracle.factors(*SHAPES[module], rank, 10 * n + k, size, dtype) for k, module in enumerate(modules)}
        path = oracle.write(tmp_path / f"lora-{n}", pairs, r=rank, lora_alpha=n + 3)
        made.append((path, {m: (pair, F32, n + 3, rank) for m, pair in pairs.items()}))
    return made


def total(chosen, module, factors):
    """Returns the FP32 sum in the order of the adapters; None without an update."""
    x = None
    for (_, modules), factor in zip(chosen, factors):
        if module not in modules:
            continue
        (a, b), _, alpha, rank = modules[module]
        one = oracle.update(a, b, np.float32(np.float64(alpha) / rank * factor))
        x = one if x is None else (x + one).astype(F32)
    return x


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (2, 0, 1), (0, 1, 2, 0, 1)])
@pytest.mark.parametrize("factors", [(1, 1, 1, 1, 1), (0.5, -1.25, 0.1, 3, 1e-3)])
def test_the_sum_is_rounded_once(order, factors, base, tmp_path, tessera):
    src, weights = base
    made = adapters(tmp_path)
    chosen, by = [made[i] for i in order], factors[:len(order)]
    words = [path if factor == 1 else f"{path}={factor}" for (path, _), factor in zip(chosen, by)]
    got, result = merge(tessera, src, words, tmp_path / "dst")
    rows = {row["name"]: row for row in result["updates"]}
    for module in SHAPES:
        name, x = f"{module}.weight", total(chosen, module, by)
        if x is None:
            assert same_bits(got[name], weights[name]) and name not in rows
            continue
        expected = oracle.merged(weights[name], x).astype(BF16)
        assert same_bits(got[name], expected), module
        for key, value in oracle.figures(weights[name], x, expected).items():
            assert rows[name][key] == pytest.approx(value, rel=1e-5), (module, key)
        ranks = [modules[module][3] for _, modules in chosen if module in modules]
        assert rows[name]["rank"] == sum(ranks)
        scales = [F32(np.float64(modules[module][2]) / modules[module][3] * factor)
                  for (_, modules), factor in zip(chosen, by) if module in modules]
        assert [F32(x) for x in rows[name].get("scales", [rows[name].get("scale")])] == scales


def test_it_is_not_two_merges(base, tmp_path, tessera):
    """Two roundings differ from one in some elements, so the test above would find them."""
    src, _ = base
    (first, _), (second, _), _ = adapters(tmp_path)
    once, _ = merge(tessera, src, [first, second], tmp_path / "once")
    merge(tessera, src, [first], tmp_path / "one")
    twice, _ = merge(tessera, tmp_path / "one", [second], tmp_path / "two")
    differ = (once[f"{Q}.weight"] != twice[f"{Q}.weight"]).mean()
    assert 0 < differ < 0.5


def test_nvfp4_with_a_shared_scale_that_grows(base, tmp_path, tessera, quantize):
    """q, k and v have one global scale; all inputs of five adapters are read for it."""
    src, _ = base
    coded = quantize(src, "--scheme", "nvfp4-weight-only")
    before, made = read(coded / "model.safetensors"), adapters(tmp_path, 0.5)
    chosen = [made[i] for i in (0, 1, 2, 1, 0)]
    got, _ = merge(tessera, coded, [path for path, _ in chosen], tmp_path / "dst")

    def decode(module):
        codes, scale = before[module + ".weight_packed"], before[module + ".weight_scale"].astype(F32)
        values = mx_oracle.f32(np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1).astype(np.uint8).view(mx_oracle.E2M1))
        return values * np.repeat(scale / F32(before[module + ".weight_global_scale"].reshape(())), 16, 1)

    values = {m: decode(m) if total(chosen, m, [1] * 5) is None else oracle.merged(decode(m), total(chosen, m, [1] * 5)) for m in (Q, K, V)}
    g = F32(mx_oracle.global_scale(max(np.abs(x).max() for x in values.values()), F32, "compressed-tensors"))
    for module in (Q, K, V):
        codes, scales = mx_oracle.nvfp4(values[module], "compressed-tensors", g)[:2]
        assert got[module + ".weight_global_scale"].reshape(()) == g, module
        assert same_bits(got[module + ".weight_packed"], codes) and same_bits(got[module + ".weight_scale"], scales), module


def test_threads_and_the_manifest(base, tmp_path, tessera):
    src, _ = base
    (first, _), (second, _), _ = adapters(tmp_path)
    words, dst = [f"{first}=0.25", second], tmp_path / "dst"
    got, _ = merge(tessera, src, words, dst, "--threads", "1")
    again, _ = merge(tessera, src, words, tmp_path / "again", "--threads", "3", "--memory", "64MB")
    assert all(same_bits(got[name], again[name]) for name in got)
    manifest = json.loads((dst / "tessera.manifest.json").read_text())
    assert manifest["reproduce"]["options"][:2] == ["lora-0=0.25", "lora-1"]
    assert [entry["option"] for entry in manifest["reproduce"]["inputs"]] == ["LORA", "LORA"] and len(manifest["sources"]) == 3
    harness.succeed(tessera, ["verify", "manifest", dst])
    code, _, err = harness.run(tessera, ["merge", src, first, second, "-o", dst])
    assert code != 0 and "--force" in err, err
    harness.shows(tessera, ["merge", src, *words, "-o", tmp_path / "plan", "--dry-run"], 0, "an update of rank 4, times 0.1875; an update of rank 7, times")


def test_a_directory_with_an_equals_sign(base, tmp_path, tessera):
    src, weights = base
    path = oracle.write(tmp_path / "lora=2", {Q: oracle.factors(*SHAPES[Q])})
    a, b = oracle.factors(*SHAPES[Q])
    for number, (word, factor) in enumerate(((f"{path}/", 1), (f"{path}=3", 3))):
        got, _ = merge(tessera, src, [word], tmp_path / f"dst-{number}")
        expected = oracle.merged(weights[f"{Q}.weight"], oracle.update(a, b, F32(2 * factor))).astype(BF16)
        assert same_bits(got[f"{Q}.weight"], expected)
    other = path.rename(tmp_path / "lora=new")
    merge(tessera, src, [other], tmp_path / "named")


@pytest.mark.parametrize("words, expected", [
    (["lora=0"], "a factor of 0 adds nothing"), (["a", "b", "c", "d", "e", "f"], "'f' is one adapter too many: up to 5"),
    (["lora=1e400"], "no adapter_config.json")])
def test_refusals(words, expected, base, tmp_path, tessera):
    for word in words:
        (tmp_path / word).mkdir()
    code, _, err = harness.run(tessera, ["merge", base[0], *(tmp_path / word for word in words), "-o", tmp_path / "dst"])
    assert code != 0 and expected in err.replace(f"{tmp_path}/", ""), err


def test_the_second_adapter_is_named_in_a_refusal(base, tmp_path, tessera):
    src, _ = base
    (first, _), _, _ = adapters(tmp_path)
    other = oracle.write(tmp_path / "other", {"model.layers.7.mlp.up_proj": oracle.factors(130, 96)})
    code, _, err = harness.run(tessera, ["merge", src, first, other, "-o", tmp_path / "dst"])
    assert code != 0 and str(other) in err and "model.layers.7.mlp.up_proj" in err, err
