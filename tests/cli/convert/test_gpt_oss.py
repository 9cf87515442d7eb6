"""Tests the layout of gpt-oss releases: equal bytes from single experts, loader rules, and rejected inputs."""

import json
import random
import shutil

from checkpoints import BF16, load, make, random_weight, same_bits
import harness
import mx_oracle as mx
import numpy as np
import pytest
import stored_oracle as stored

LAYER = "model.layers.0."
EXPERTS = LAYER + "mlp.experts."
KEPT = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
LOADERS = ("vllm", "sglang", "transformers", "trtllm")
NATIVE = ("--scheme", "mxfp4-weight-only")


def model(path, hidden=96, inner=64, experts=3, dtype=BF16, kind="gpt_oss", files=1, **config):
    """Returns (directory, {stack: [experts, out, in]}). Stacks are [experts, in, out] on disk."""
    shapes = {EXPERTS + "gate_up_proj": (experts, 2 * inner, hidden), EXPERTS + "down_proj": (experts, hidden, inner)}
    stacks = {name: mx.awkward((s[0] * s[1], max(s[2], 128)), i, dtype)[:, :s[2]].reshape(s)
              for i, (name, s) in enumerate(shapes.items())}
    tensors = {name: np.ascontiguousarray(w.swapaxes(1, 2)) for name, w in stacks.items()}
    plain = {EXPERTS + "gate_up_proj_bias": (experts, 2 * inner), EXPERTS + "down_proj_bias": (experts, hidden),
             LAYER + "mlp.router.weight": (experts, hidden), LAYER + "mlp.router.bias": (experts,),
             LAYER + "self_attn.q_proj.weight": (128, hidden), LAYER + "self_attn.q_proj.bias": (128,),
             LAYER + "self_attn.k_proj.weight": (64, hidden), LAYER + "self_attn.v_proj.weight": (64, hidden),
             LAYER + "self_attn.o_proj.weight": (hidden, 128), LAYER + "self_attn.sinks": (2,),
             LAYER + "input_layernorm.weight": (hidden,), "model.embed_tokens.weight": (64, hidden),
             "model.norm.weight": (hidden,), "lm_head.weight": (64, hidden)}
    tensors |= {name: random_weight(shape, i).astype(dtype) for i, (name, shape) in enumerate(plain.items())}
    items = list(tensors.items())
    parts = {f"model-{i:05}.safetensors" if files > 1 else "model.safetensors": dict(items[i::files]) for i in range(files)}
    text = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 64, "num_local_experts": experts, "vocab_size": 64,
            "architectures": ["GptOssForCausalLM"]}
    return make(path, parts, quantization=None, model_type=kind, **(text | config)), stacks, tensors


def expected(stacks, tensors, rule="rceil"):
    out = {name: array for name, array in tensors.items() if name not in stacks}
    for name, w in stacks.items():
        e, rows, cols = w.shape
        codes, scales = mx.mx(w.reshape(e * rows, cols), 4, rule)
        out[name + "_blocks"] = codes.reshape(e, rows, cols // 32, 16)
        out[name + "_scales"] = scales.reshape(e, rows, cols // 32)
    return out


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, array in wanted.items():
        assert same_bits(got[name], array), name


@pytest.mark.parametrize("dtype", [BF16, np.float32, np.float16], ids=["BF16", "F32", "F16"])
@pytest.mark.parametrize("options, rule", [(NATIVE, "rceil"), (("--scheme", "mxfp4"), "rceil"),
                                           ((*NATIVE, "--dialect", "gpt-oss", "--experts", "stack"), "rceil"),
                                           ((*NATIVE, "--mx-scale", "floor"), "floor"), ((*NATIVE, "--mx-scale", "even"), "even")],
                         ids=lambda x: " ".join(x) if isinstance(x, tuple) else x)
def test_every_byte(tmp_path, quantize, dtype, options, rule):
    """Biases, and the order of gate and up, do not change."""
    src, stacks, tensors = model(tmp_path / "src", dtype=dtype)
    dst = quantize(src, *options)
    assert_same(load(dst), expected(stacks, tensors, rule))
    before, after = (json.loads((path / "config.json").read_text()) for path in (src, dst))
    assert after.pop("quantization_config") == {"quant_method": "mxfp4", "modules_to_not_convert": KEPT} and before == after


@pytest.mark.parametrize("hidden, inner, experts", [(64, 64, 4), (32, 1600, 2), (1024, 1600, 2)])
def test_shapes(tmp_path, quantize, hidden, inner, experts):
    """Experts are square, or have more than one unit of work."""
    src, stacks, tensors = model(tmp_path / "src", hidden, inner, experts, files=3)
    wanted = expected(stacks, tensors)
    for options in (("--threads", "1"), ("--threads", "3", "--max-shard-size", "1MB")):
        assert_same(load(quantize(src, *NATIVE, *options)), wanted)


def test_its_loaders_take_it(tmp_path, tessera, quantize, inspect):
    src, _, _ = model(tmp_path / "src", experts=20)
    code, got = inspect(quantize(src, *NATIVE), "--can-load", ",".join(LOADERS), "--tp", "1")
    assert code == 0, got["load_findings"]
    code, out, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "told", *NATIVE])
    assert code == 0 and "vllm serve" in out and "not with" not in out and "no loader" not in err, out + err


def test_round_trip(tmp_path, tessera, quantize, convert):
    """Codes converted to BF16 and back have the same values. Groups that contain the code of 4 or more also have the same
    bytes. (A group with at most 3 fits the next smaller scale.)"""
    src, stacks, _ = model(tmp_path / "src", hidden=256, inner=192)
    native = quantize(src, *NATIVE)
    bf16 = convert(native, "--to", "bf16")
    again = quantize(bf16, *NATIVE)
    a, b = load(native), load(again)
    assert a.keys() == b.keys()
    for name in stacks:
        one, two = ({"": t[name + "_blocks"], "s": t[name + "_scales"]} for t in (a, b))
        full = (((one[""] & 7) >= 6) | ((one[""] >> 4 & 7) >= 6)).any(axis=3)
        assert full.mean() > 0.6
        assert (one["s"] == two["s"])[full].all()
        zero = np.isin(one[""] & 15, (0, 8)) | np.isin(one[""] >> 4, (0, 8))  # -0 comes back as 0
        assert ((one[""] == two[""]) | zero)[full].all()
        assert np.array_equal(*(stored.values("mxfp4-gptoss", {"_blocks": t[name + "_blocks"], "_scales": t[name + "_scales"]})
                                for t in (a, b)))
    for words in (("diff", native, again), ("verify", again, "--against", bf16), ("verify", native, "--against", src)):
        harness.succeed(tessera, words)


@pytest.mark.parametrize("options", [("--scheme", "nvfp4-weight-only"), ("--scheme", "mxfp8"), (), ("--scheme", "int4-weight-only", "--group-size", "32"),
                                     (*NATIVE, "--dialect", "compressed-tensors"), (*NATIVE, "--experts", "split")],
                         ids=lambda x: " ".join(x) or "fp8-block")
def test_other_schemes_say_who_reads_them(tmp_path, tessera, options):
    src, _, _ = model(tmp_path / "src", hidden=256, inner=256)
    dst = tmp_path / "dst"
    code, out, err = harness.run(tessera, ["quantize", src, "-o", dst, *options])
    assert code == 0 and "no known loader" in err and "--dialect gpt-oss" in err, out + err
    assert "vllm serve" not in out and "not with vllm" in out
    assert any(".experts.0.up_proj.weight" in name for name in load(dst))
    harness.shows(tessera, ["inspect", dst, "--can-load", "vllm,sglang,transformers", "--tp", "1"], 1, "single expert of 'gpt_oss'")


def test_a_stack_without_the_other(tmp_path, tessera):
    """The codes of one stack alone are not gpt-oss, because loaders also look for those of the other."""
    src, _, tensors = model(tmp_path / "src")
    for number, gone in enumerate(("gate_up_proj", "down_proj")):
        kept = {name: array for name, array in tensors.items() if name != EXPERTS + gone}
        half = make(tmp_path / f"half-{number}", {"model.safetensors": kept}, None, **json.loads((src / "config.json").read_text()))
        harness.expect(tessera, ["quantize", half, "-o", tmp_path / "dst", *NATIVE], 3, EXPERTS + gone, "incomplete")
        assert not (tmp_path / "dst").exists()


REFUSED = {
    "one stack excluded": ({}, ("--exclude", "*down_proj"), 3, ["down_proj", "--exclude", "all experts"]),
    "attention included": ({}, ("--include", "*o_proj.weight"), 3, ["o_proj", "codes of experts only"]),
    "experts one by one": ({}, ("--dialect", "gpt-oss", "--experts", "split"), 2, ["--experts split", "stacks"]),
    "another model": ({"kind": "qwen3_moe"}, ("--dialect", "gpt-oss"), 3, ["gpt_oss only", "compressed-tensors"]),
    "half a group": ({"inner": 48}, (), 3, ["down_proj", "48 columns", "all experts"]),
    "transposed": ({"hidden_size": 64}, (), 3, ["gate_up_proj", "hidden_size"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(tmp_path, tessera, what):
    how, options, wanted, words = REFUSED[what]
    src, _, _ = model(tmp_path / "src", **how)
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "dst", *NATIVE, *options], wanted, *words)
    assert not (tmp_path / "dst").exists()


def test_damaged_headers(tmp_path, tessera):
    """For any damaged shapes, dtypes and names of a header, the output equals the tensors that it describes, or the job is
    rejected."""
    src, _, tensors = model(tmp_path / "src")
    whole = (src / "model.safetensors").read_bytes()
    length = int.from_bytes(whole[:8], "little")
    stacks = [whole.index(f'"{EXPERTS}{name}":'.encode()) for name in ("gate_up_proj", "down_proj")]
    generator, refused = random.Random(2026), 0
    for number in range(100):
        damaged = bytearray(whole)
        for _ in range(1 + number % 2):
            at = generator.choice(stacks) + generator.randrange(120) if number % 4 else generator.randrange(8, 8 + length)
            damaged[at] = generator.choice(b"0123456789BFU[],:") if number % 3 else generator.randrange(256)
        (src / "model.safetensors").write_bytes(damaged)
        dst = tmp_path / f"dst-{number}"
        code, _, err = harness.run(tessera, ["quantize", src, "-o", dst, *NATIVE, "--quiet", "--threads", "1"])
        assert code == 0 or (code in (1, 3) and err.startswith("tessera: ")), (number, code, err)  # 1: nothing to quantize
        refused += code != 0
        if code != 0:
            assert not (dst / "config.json").exists(), number
        else:
            read = load(src)  # by the safetensors package
            stored = {name: array for name, array in load(dst).items() if name in read}
            assert stored and all(same_bits(array, read[name]) for name, array in stored.items()), number
            assert sum("_blocks" in name for name in load(dst)) == 2, number
        shutil.rmtree(dst, ignore_errors=True)
    assert 50 < refused < 100, refused


@pytest.mark.parametrize("dtype", [BF16, np.float32], ids=["BF16", "F32"])
def test_a_value_that_has_no_code(tmp_path, tessera, dtype):
    """The message names the expert, output and input of a value without a code."""
    src, _, tensors = model(tmp_path / "src", dtype=dtype)
    name, spoiled = EXPERTS + "down_proj", tmp_path / "spoiled"
    tensors[name][2, 33, 7] = np.nan
    make(spoiled, {"model.safetensors": tensors}, None, **json.loads((src / "config.json").read_text()))
    harness.expect(tessera, ["quantize", spoiled, "-o", tmp_path / "dst", *NATIVE, "--quiet"], 3, name, "NaN", "[2, 7, 33]")
    assert not (tmp_path / "dst" / "config.json").exists()


def test_experts_that_were_taken_apart(tmp_path, tessera, quantize, convert):
    """Separate experts are joined first, as the message suggests. Then the output equals the original."""
    src, stacks, tensors = model(tmp_path / "src")
    apart = convert(quantize(src, *NATIVE, "--dialect", "compressed-tensors"), "--to", "bf16")
    harness.expect(tessera, ["quantize", apart, "-o", tmp_path / "dst", *NATIVE], 3, "experts.0.", "--to bf16 --experts stack")
    together = convert(apart, "--to", "bf16", "--experts", "stack")
    assert load(quantize(together, *NATIVE)).keys() == expected(stacks, tensors).keys()


@pytest.mark.parametrize("shape", [{}, {"hidden": 2048, "inner": 1056, "experts": 2, "files": 2}], ids=["small", "of several units"])
def test_codes_put_together(tmp_path, tessera, quantize, convert, inspect, shape):
    """Separate experts have every byte of the scheme's own output, in any intermediate form."""
    src, stacks, _ = model(tmp_path / "src", **shape)
    wanted = load(quantize(src, *NATIVE, "--mx-scale", "even"))
    apart = quantize(src, *NATIVE, "--dialect", "compressed-tensors")
    for options in (("--to", "mxfp4-weight-only"), ("--to", "mxfp4", "--threads", "1"),
                    ("--to", "mxfp4", "--dialect", "gpt-oss", "--experts", "stack", "--max-shard-size", "1MB")):
        dst = convert(apart, *options)
        assert_same(load(dst), wanted)
    assert json.loads((dst / "config.json").read_text())["quantization_config"] == {"quant_method": "mxfp4", "modules_to_not_convert": KEPT}
    assert inspect(dst, "--can-load", ",".join(LOADERS), "--tp", "1")[0] == 0
    for words in (("diff", apart, dst), ("verify", dst, "--against", apart), ("verify", dst, "--against", src)):
        harness.succeed(tessera, words)


def change(apart, path, name, edit):
    """Copies the separate experts with one tensor changed, or removed if it is None."""
    tensors = {n: np.array(a) for n, a in load(apart).items()}
    tensors[name] = edit(tensors[name])
    config = json.loads((apart / "config.json").read_text())
    return make(path, {"model.safetensors": {n: a for n, a in tensors.items() if a is not None}}, **(
        {"quantization": config.pop("quantization_config")} | config))


def nan_scale(scales):
    scales[5, 1] = 255
    return scales


def test_codes_that_do_not_fit(tmp_path, tessera, quantize, convert):
    src, _, _ = model(tmp_path / "src")
    native, apart = quantize(src, *NATIVE), quantize(src, *NATIVE, "--dialect", "compressed-tensors")
    expert = EXPERTS + "1.up_proj."
    cases = [
        (native, (), 3, ["already in this layout", "--dialect compressed-tensors"]),
        (quantize(src, "--scheme", "nvfp4-weight-only"), (), 3, ["NVFP4", "--to bf16 --experts stack"]),
        (apart, ("--exclude", "*down*"), 2, ["--exclude"]), (apart, ("--lossy",), 2, ["--lossy"]),
        (change(apart, tmp_path / "nan", expert + "weight_scale", nan_scale), (), 3, [expert, "[5, 1]", "255"]),
        (change(apart, tmp_path / "short", EXPERTS + "2.gate_proj.bias", lambda x: None), (), 3, ["2.gate_proj.bias"]),
        (change(apart, tmp_path / "last", EXPERTS + "2.down_proj.bias", lambda x: None), (), 3, ["2.down_proj.bias"]),
    ]
    for number, (what, options, wanted, words) in enumerate(cases):
        dst = tmp_path / f"refused-{number}"
        code, _, err = harness.run(tessera, ["convert", what, "-o", dst, "--to", "mxfp4-weight-only", *options, "--quiet"])
        assert code == wanted and all(word in err for word in words), (number, err)
        assert not (dst / "config.json").exists()


def test_codes_taken_apart_are_warned_of(tmp_path, tessera, quantize):
    native = quantize(model(tmp_path / "src")[0], *NATIVE)
    harness.expect(tessera, ["convert", native, "-o", tmp_path / "dst", "--to", "mxfp4", "--dialect", "compressed-tensors"], 0, "no known loader")


@pytest.mark.parametrize("options", [("--scheme", "fp8-block"), ("--scheme", "int8-channel"), ("--scheme", "nvfp4-weight-only"),
                                     ("--scheme", "mxfp8"), ("--rules", "rules.json")], ids=" ".join)
def test_the_dialect_is_for_mxfp4(tmp_path, tessera, options):
    src, _, _ = model(tmp_path / "src")
    (tmp_path / "rules.json").write_text('{"rules": []}')
    options = [str(tmp_path / x) if x == "rules.json" else x for x in options]
    harness.expect(tessera, ["quantize", src, "-o", tmp_path / "dst", *options, "--dialect", "gpt-oss"], 2, "gpt-oss")
