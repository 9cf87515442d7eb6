"""Tests reading the output of `--to mla-absorbed` with inspect, diff and verify.

Parts are compared with kv_b_proj, and folded weights with the products. Damage on either side is found."""

import json
import shutil

from absorbed_model import CONSUMERS, Model, PREFIX, SCALES
import harness
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn

CASES = [(c, w, fp8) for fp8 in (False, True) for c in CONSUMERS for w in ("bf16", "fp8-block", "fp8-tensor", "fp8-head")
         if not (w == "fp8-block" and not fp8) and (w == "bf16" or c in SCALES)]
KEYS, VALUES = "w_kc", "w_vc"


@pytest.fixture
def tell(tessera):
    """Returns tell(command, *words) -> exit code, JSON."""

    def call(*words):
        code, out, err = harness.run(tessera, [*words, "--quiet", "--json", "-"])
        return code, json.loads(out)

    return call


def states(result):
    return {t["name"].removeprefix(PREFIX): t["state"] for t in result["tensors"]}


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("consumer,form,fp8", CASES)
def test_parts_are_read_and_held_to_kv_b(tmp_path, convert, tell, consumer, form, fp8, drop):
    m = Model(tmp_path / "src", fp8=fp8)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", consumer, "--weights", form, *(["--drop-kv-b"] * drop))
    code, result = tell("inspect", dst)
    assert code == 0 and not [f for f in result["findings"] if f["severity"] == "error"], result
    k_name, _, v_name, _ = CONSUMERS[consumer]
    exact = form == "fp8-block" or (form == "bf16" and not fp8)
    for a, b in ((m.path, dst), (dst, m.path)):
        code, result = tell("diff", a, b)
        found = states(result)
        assert code == (0 if exact else 1), result
        assert found[k_name] == found[v_name] == ("equal" if exact else "differs")
        assert set(found.values()) <= {"identical", "equal", "differs"}
        assert ("kv_b_proj.weight" in found) != drop
    code, result = tell("verify", dst, "--against", m.path)
    assert code == 0, result
    assert tell("diff", dst, dst)[0] == 0


def edit(directory, name, change):
    metadata, tensors = harness.read_safetensors(directory / "model.safetensors")
    dtype, shape, data = tensors[PREFIX + name]
    width = {"BF16": "<u2", "F8_E4M3": "u1", "F32": "<f4"}[dtype]
    tensors[PREFIX + name] = (dtype, shape, change(np.frombuffer(data, width).reshape(shape)).tobytes())
    harness.write_safetensors(directory / "model.safetensors", tensors, metadata)


def other_bit(x):
    x = x.copy()
    x.flat[x.size // 3] ^= 1 << (8 * x.itemsize - 2)
    return x


def other_head(x):
    return np.roll(x, 1, axis=0)


def other_order(x):
    return np.ascontiguousarray(x.reshape(x.shape[0], x.shape[2], x.shape[1]).swapaxes(1, 2))


@pytest.mark.parametrize("change", [other_bit, other_head, other_order])
@pytest.mark.parametrize("part", [KEYS, VALUES])
@pytest.mark.parametrize("form,fp8", [("bf16", False), ("bf16", True), ("fp8-block", True), ("fp8-tensor", False), ("fp8-head", True)])
def test_damaged_parts_are_found(tmp_path, convert, tell, form, fp8, part, change):
    m = Model(tmp_path / "src", fp8=fp8)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", "sglang", "--weights", form, "--drop-kv-b")
    edit(dst, part, change)
    code, result = tell("verify", dst, "--against", m.path)
    assert code == 1 and PREFIX + part in json.dumps(result)
    if change is not other_bit:
        assert tell("diff", m.path, dst, "--tolerance", "0.06")[0] == 1


@pytest.mark.parametrize("form", ["fp8-block", "fp8-head"])
@pytest.mark.parametrize("scale", SCALES["sglang"])
def test_scales_of_another_head_are_found(tmp_path, convert, tell, form, scale):
    m = Model(tmp_path / "src", fp8=True)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", "sglang", "--weights", form)
    edit(dst, scale, lambda x: x * np.float32(1.5))
    assert tell("verify", dst, "--against", m.path)[0] == 1
    assert tell("diff", m.path, dst, "--tolerance", "0.06")[0] == 1


def test_a_part_without_its_scale_is_refused(tmp_path, convert, tell):
    m = Model(tmp_path / "src", fp8=True)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", "vllm", "--weights", "fp8-head", "--drop-kv-b")
    metadata, tensors = harness.read_safetensors(dst / "model.safetensors")
    del tensors[PREFIX + "W_UV_scale"]
    harness.write_safetensors(dst / "model.safetensors", tensors, metadata)
    code, result = tell("diff", m.path, dst)
    assert code == 3 and "'W_UV_scale'" in result["error"]["message"]
    code, result = tell("inspect", dst)
    assert code == 1 and any(f["rule"] == "pairing" and f["tensor"] == PREFIX + "W_UV" for f in result["findings"])


def test_one_part_alone_does_not_replace_kv_b(tmp_path, convert, tell):
    m = Model(tmp_path / "src")
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", "sglang", "--drop-kv-b")
    metadata, tensors = harness.read_safetensors(dst / "model.safetensors")
    del tensors[PREFIX + VALUES]
    harness.write_safetensors(dst / "model.safetensors", tensors, metadata)
    code, result = tell("diff", m.path, dst)
    assert code == 1 and states(result)["kv_b_proj.weight"] == "missing"
    assert tell("verify", dst, "--against", m.path)[0] == 1


@pytest.mark.parametrize("q_rank", [192, None])
@pytest.mark.parametrize("fp8", [False, True])
def test_folded_weights_are_held_to_the_products(tmp_path, convert, tell, fp8, q_rank):
    m = Model(tmp_path / "src", fp8=fp8, q_rank=q_rank)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", "vllm", "--fold", "--drop-kv-b")
    assert tell("inspect", dst)[0] == 0
    for a, b in ((m.path, dst), (dst, m.path)):
        code, result = tell("diff", a, b, "--tolerance", "0.004")
        assert code == 0 and states(result)[m.query] == states(result)["o_proj.weight"] == "differs"
        assert "kv_b_proj.weight" not in states(result)
    assert tell("verify", dst, "--against", m.path)[0] == 0
    for name in (m.query, "o_proj.weight"):
        broken = tmp_path / ("broken-" + name)
        shutil.copytree(dst, broken)
        edit(broken, name, other_bit)
        code, result = tell("verify", broken, "--against", m.path)
        assert code == 1 and PREFIX + name in json.dumps(result)
        assert tell("diff", m.path, broken, "--tolerance", "0.004")[0] == 1


def test_what_cannot_take_fp8_parts_says_so(tmp_path, convert, tessera):
    m = Model(tmp_path / "src", fp8=True)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", "sglang", "--weights", "fp8-head")
    for target in (("bf16",), ("fp8-block", "--scale-fmt", "ue8m0"), ("deepseek-mp", "--mp", "1")):
        harness.expect(tessera, ["convert", dst, "-o", tmp_path / "never", "--to", *target], 3, "w_kc", "absorbed")


@pytest.mark.parametrize("form,fp8", [("bf16", False), ("fp8-block", True), ("fp8-tensor", False), ("fp8-head", True)])
@pytest.mark.parametrize("consumer", SCALES)
def test_ranks_of_parts(tmp_path, convert, tessera, tell, consumer, form, fp8):
    """Each rank has its own heads. Tensors for all heads are complete. --merge restores every byte."""
    m = Model(tmp_path / "src", heads=4, rope=128, hidden=256, fp8=fp8)
    whole = convert(m.path, "--to", "mla-absorbed", "--consumer", consumer, "--weights", form)
    ranks = convert(whole, "--to", "tp", "--tp", "2")
    _, all_of = harness.read_safetensors(whole / "model.safetensors")
    k_name, _, v_name, _ = CONSUMERS[consumer]
    for rank in range(2):
        assert tell("inspect", ranks / f"rank-{rank}")[0] == 0
        _, tensors = harness.read_safetensors(ranks / f"rank-{rank}" / "model.safetensors")
        assert tensors.keys() == all_of.keys()
        parts = [n for n in tensors if n.removeprefix(PREFIX) in (k_name, v_name, *SCALES[consumer])]
        assert len(parts) == (4 if form in ("fp8-block", "fp8-head") else 2)
        for name in parts:
            dtype, shape, data = all_of[name]
            half = len(data) // 2
            assert tensors[name] == (dtype, [2, *shape[1:]], data[rank * half : (rank + 1) * half]), name
        (one,) = [n for n in tensors if n.endswith(("w_scale", "W_scale", "kv_b_scale"))] or [None]
        assert (one is None) == (form != "fp8-tensor") and (one is None or tensors[one] == all_of[one])
    merged = convert(ranks, "--merge")
    for tree in (whole, merged):
        harness.without_records(tree)
        for name in ("quantization_report.json", "quantization_blocks.zst"):
            (tree / name).unlink(missing_ok=True)
    assert harness.tree_difference(whole, merged) is None
    harness.expect(tessera, ["convert", whole, "-o", tmp_path / "never", "--to", "tp", "--tp", "3"], 3, "3 ranks")
