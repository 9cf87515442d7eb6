"""Tests `tessera merge` with experts: stacks as parameters of PEFT's target_parameters, and experts by themselves."""

from checkpoints import BF16, make, random_weight, read, same_bits
import fp8_oracle
import harness
import merge_oracle as oracle
import numpy as np
import pytest

EXPERTS, HIDDEN, INNER = 5, 64, 48
MODULE = "model.layers.0.mlp.experts"
GATE_UP, DOWN = MODULE + ".gate_up_proj", MODULE + ".down_proj"
BOTH = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def pair(out, columns, seed, rank=3, experts=EXPERTS):
    """Returns A [E * r, in] and B [out, r * E]."""
    return oracle.factors(out, columns, experts * rank, seed)


def model(path, turned=False, dtype=BF16, inner=INNER, kind="qwen3_moe"):
    shapes = {GATE_UP: (EXPERTS, 2 * inner, HIDDEN), DOWN: (EXPERTS, HIDDEN, inner)}
    stacks = {name: random_weight((e, b, a) if turned else (e, a, b), seed).astype(dtype) for seed, (name, (e, a, b)) in enumerate(shapes.items())}
    return make(path, {"model.safetensors": stacks}, quantization=None, model_type=kind, hidden_size=HIDDEN, num_experts=EXPERTS), stacks


def merge(tessera, base, adapter, dst):
    harness.succeed(tessera, ["merge", base, adapter, "-o", dst, "--quiet"])
    return read(dst / "model.safetensors")


def parameters(path, pairs, targets=BOTH, **config):
    return oracle.write(path, pairs, r=3, target_modules=None, target_parameters=targets, **config)


@pytest.mark.parametrize("turned", [False, True])
def test_both_stacks(tmp_path, tessera, turned):
    """The second parameter is the outer module of PEFT, so the first one's tensors are nested."""
    base, stacks = model(tmp_path / "base", turned)
    pairs = {MODULE + ".base_layer": pair(2 * INNER, HIDDEN, 1), MODULE: pair(HIDDEN, INNER, 2)}
    got = merge(tessera, base, parameters(tmp_path / "lora", pairs), tmp_path / "dst")
    by = oracle.scale(8, 3)
    for name, module in ((GATE_UP, MODULE + ".base_layer"), (DOWN, MODULE)):
        x = oracle.stacked(*pairs[module], by, EXPERTS, turned)
        assert same_bits(got[name], oracle.merged(stacks[name], x).astype(BF16)), name


def test_one_stack_with_an_alpha_of_its_own(tmp_path, tessera):
    base, stacks = model(tmp_path / "base")
    a, b = pair(2 * INNER, HIDDEN, 1)
    got = merge(tessera, base, parameters(tmp_path / "lora", {MODULE: (a, b)}, BOTH[:1], alpha_pattern={"experts.gate_up_proj": 3}), tmp_path / "dst")
    assert same_bits(got[GATE_UP], oracle.merged(stacks[GATE_UP], oracle.stacked(a, b, oracle.scale(3, 3), EXPERTS)).astype(BF16))
    assert same_bits(got[DOWN], stacks[DOWN])


def test_block_fp8(tmp_path, tessera):
    base, stacks = tmp_path / "base", {}
    rng = {GATE_UP: (EXPERTS, 256, 128), DOWN: (EXPERTS, 128, 128)}
    tensors = {}
    for seed, (name, shape) in enumerate(rng.items()):
        codes, scales = fp8_oracle.quantize(random_weight(shape, seed))
        tensors |= {name: codes, name + "_scale_inv": scales}
        stacks[name] = codes.astype(np.float32) * fp8_oracle.spread(scales, shape)
    make(base, {"model.safetensors": tensors}, model_type="qwen3_moe", hidden_size=128, num_experts=EXPERTS)
    a, b = pair(256, 128, 1)
    got = merge(tessera, base, parameters(tmp_path / "lora", {MODULE: (a, b)}, BOTH[:1]), tmp_path / "dst")
    codes, scales = fp8_oracle.quantize(oracle.merged(stacks[GATE_UP], oracle.stacked(a, b, oracle.scale(8, 3), EXPERTS)))
    assert same_bits(got[GATE_UP], codes) and same_bits(got[GATE_UP + "_scale_inv"], scales)
    assert same_bits(got[DOWN], tensors[DOWN]) and same_bits(got[DOWN + "_scale_inv"], tensors[DOWN + "_scale_inv"])


def test_experts_by_themselves(tmp_path, tessera):
    names = [f"{MODULE}.{e}.{leaf}" for e in range(EXPERTS) for leaf in ("gate_proj", "up_proj")]
    weights = {f"{name}.weight": random_weight((INNER, HIDDEN), seed).astype(BF16) for seed, name in enumerate(names)}
    base = make(tmp_path / "base", {"model.safetensors": weights}, quantization=None)
    pairs = {name: oracle.factors(INNER, HIDDEN, seed=seed) for seed, name in enumerate(names[::2])}
    got = merge(tessera, base, oracle.write(tmp_path / "lora", pairs), tmp_path / "dst")
    for name in names:
        w = weights[f"{name}.weight"]
        expected = oracle.merged(w, oracle.update(*pairs[name], oracle.scale())).astype(BF16) if name in pairs else w
        assert same_bits(got[f"{name}.weight"], expected)


SQUARE = {MODULE: pair(HIDDEN, HIDDEN, 1)}


@pytest.mark.parametrize("pairs,targets,inner,words", [
    ({MODULE: pair(2 * INNER, HIDDEN, 1)}, BOTH[1:], INNER, ["do not fit", "[5, 64, 48]"]),
    ({MODULE: pair(2 * INNER, HIDDEN, 1)}, BOTH, INNER, ["do not fit", "[5, 64, 48]"]),  # the outer one is that of down_proj
    ({MODULE + ".base_layer.base_layer": pair(2 * INNER, HIDDEN, 1)}, BOTH, INNER, ["is nested 2 deep"]),
    ({MODULE: pair(2 * INNER, HIDDEN, 1)}, ["experts.other"], INNER, ["does not have"]),
    ({MODULE: pair(2 * INNER, HIDDEN, 1, experts=4)}, BOTH[:1], INNER, ["rank 12 and 12", "says 3 for each expert"]),
    (SQUARE, BOTH[1:], HIDDEN, ["fit in two ways"]),
])
def test_refusals(tmp_path, tessera, pairs, targets, inner, words):
    base, _ = model(tmp_path / "base", inner=inner)
    harness.expect(tessera, ["merge", base, parameters(tmp_path / "lora", pairs, targets), "-o", tmp_path / "dst"], 3, *words)


def test_square_experts_of_a_family_that_turns_them(tmp_path, tessera):
    base, stacks = model(tmp_path / "base", inner=HIDDEN, kind="gpt_oss")
    got = merge(tessera, base, parameters(tmp_path / "lora", SQUARE, BOTH[1:]), tmp_path / "dst")
    x = oracle.stacked(*SQUARE[MODULE], oracle.scale(8, 3), EXPERTS, turned=True)
    assert same_bits(got[DOWN], oracle.merged(stacks[DOWN], x).astype(BF16))
