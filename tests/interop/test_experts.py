"""Stacks of plain experts taken apart. The oracle takes them apart in NumPy, and hands the parts to quantize as if they had been
stored so: the same bytes have to come out."""

import json

import formats_2026 as f
import harness
import numpy as np
import pytest
import stored_2026 as stored

EXPERTS, HIDDEN, INNER = 3, 256, 384
# model_type: what stands before a layer's experts, names of the stacks, of the parts, [experts, in, out], gate and up in turns, biases
OWN = (("gate_up_proj", "down_proj"), ("gate_proj", "up_proj", "down_proj"))
GRANITE = (("input_linear.weight", "output_linear.weight"), OWN[1])
FAMILIES = {
    "gpt_oss": ("model.layers.0.mlp.experts.", *OWN, True, True, True),
    "llama4_text": ("model.layers.0.feed_forward.experts.", *OWN, True, False, False),
    "qwen3_vl_moe_text": ("model.layers.0.mlp.experts.", *OWN, True, False, False),
    "qwen3_5_moe_text": ("model.layers.0.mlp.experts.", *OWN, False, False, False),
    "granitemoe": ("model.layers.0.block_sparse_moe.", *GRANITE, False, False, False),
}
SCHEMES = ["fp8-block", "fp8-channel", "int8-weight-only", "int4-weight-only --group-size 32", "nvfp4-weight-only",
           "nvfp4-weight-only --dialect modelopt", "mxfp4", "mxfp8 --scales mse"]


def made(family, dtype="BF16", hidden=HIDDEN, inner=INNER):
    """{name: entry} with stacks, and the same with experts one by one."""
    prefix, (gate_up, down), parts, turned, interleaved, biased = FAMILIES[family]
    rng, kind = f.numbers(7), {"BF16": f.BF16, "F16": np.float16, "F32": np.float32}[dtype]
    both = {"model.layers.0.self_attn.q_proj.weight": f.entry("BF16", rng.standard_normal((hidden, hidden)).astype(f.BF16)),
            "model.norm.weight": f.entry("BF16", np.ones(hidden, f.BF16))}
    stacks, single = dict(both), dict(both)
    split = prefix if prefix.endswith("experts.") else prefix + "experts."
    for name, rows, cols, names in ((gate_up, 2 * inner, hidden, parts[:2]), (down, hidden, inner, parts[2:])):
        # Every expert and every row is of another size, so that nothing may be swapped unseen.
        x = (rng.standard_normal((EXPERTS, rows, cols)) * np.linspace(0.5, 4, EXPERTS * rows).reshape(EXPERTS, rows, 1)).astype(kind)
        bias = rng.standard_normal((EXPERTS, rows)).astype(f.BF16)
        stacks[prefix + name] = f.entry(dtype, x.swapaxes(1, 2) if turned else x)
        if biased:
            stacks[f"{prefix}{name}_bias"] = f.entry("BF16", bias)
        for e in range(EXPERTS):
            for i, part in enumerate(names):
                rows_of = slice(None) if len(names) == 1 else slice(i, None, 2) if interleaved else slice(i * inner, (i + 1) * inner)
                single[f"{split}{e}.{part}.weight"] = f.entry(dtype, x[e, rows_of])
                if biased:
                    single[f"{split}{e}.{part}.bias"] = f.entry("BF16", bias[e, rows_of])
    return stacks, single


def write(directory, tensors, family, **config):
    directory.mkdir()
    harness.write_safetensors(directory / "model.safetensors", tensors, {"format": "pt"})
    config = {"model_type": family, "hidden_size": HIDDEN, "num_hidden_layers": 1, **config}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def pair(tmp_path, family, **options):
    stacks, single = made(family, **options)
    hidden = options.get("hidden", HIDDEN)
    return write(tmp_path / "stacks", stacks, family, hidden_size=hidden), write(tmp_path / "single", single, family, hidden_size=hidden)


def same_model(a, b):
    """All tensors and the configuration; reports have a time of their own."""
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    assert json.loads((a / "config.json").read_text()) == json.loads((b / "config.json").read_text())
    assert json.loads((a / "quantization_report.json").read_text())["tensors"] == \
        json.loads((b / "quantization_report.json").read_text())["tensors"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_as_one_by_one(tmp_path, quantize, family, scheme):
    stacks, single = pair(tmp_path, family)
    same_model(quantize(stacks, "--experts", "split", "--scheme", *scheme.split()), quantize(single, "--scheme", *scheme.split()))


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_other_dtypes(tmp_path, quantize, dtype):
    stacks, single = pair(tmp_path, "gpt_oss", dtype=dtype)
    for scheme in ("fp8-block", "nvfp4-weight-only"):
        same_model(quantize(stacks, "--experts", "split", "--scheme", scheme), quantize(single, "--scheme", scheme))


@pytest.mark.parametrize("threads", ["1", "3"])
def test_stacks_of_several_units(tmp_path, quantize, threads):
    """Rows that fill more than a unit of 4 MiB, in both directions."""
    stacks, single = pair(tmp_path, "gpt_oss", hidden=2080, inner=1408)
    for scheme in ("fp8-block", "nvfp4-weight-only"):
        same_model(quantize(stacks, "--threads", threads, "--experts", "split", "--scheme", scheme), quantize(single, "--scheme", scheme))


# ---- where nobody asks ----


@pytest.mark.parametrize("family, scheme, split", [
    ("gpt_oss", "fp8-block", True), ("llama4_text", "fp8-block", True), ("granitemoe", "fp8-block", True),
    ("qwen3_5_moe_text", "fp8-block", False), ("qwen3_5_moe_text", "nvfp4-weight-only", True), ("qwen3_5_moe_text", "fp8-channel", True)])
def test_split_where_a_stack_has_no_place(tmp_path, quantize, family, scheme, split):
    stacks, _ = pair(tmp_path, family)
    got = stored.read_any(quantize(stacks, "--scheme", scheme) / "model.safetensors")
    assert any(".experts.0." in name for name in got) == split
    assert any("gate_up_proj" in name or "input_linear" in name for name in got) != split


def test_what_is_kept_stays_together(tmp_path, quantize):
    """Excluded experts keep their name, form and bytes; asked to, they are taken apart all the same."""
    stacks, single = pair(tmp_path, "qwen3_vl_moe_text")
    got = stored.read_any(quantize(stacks, "--exclude", "*.experts.*") / "model.safetensors")
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert got[name].tobytes() == made("qwen3_vl_moe_text")[0][name][2]
    same_model(quantize(stacks, "--exclude", "*.experts.*", "--experts", "split"), quantize(single, "--exclude", "*.experts.*"))


def test_a_stack_stays_where_asked(tessera, tmp_path):
    stacks, _ = pair(tmp_path, "gpt_oss")
    code, _, err = harness.run(tessera, ["quantize", stacks, "-o", tmp_path / "dst", "--experts", "stack"])
    assert code == 1 and "--experts split" in err and not (tmp_path / "dst").exists()


@pytest.mark.parametrize("config, words", [
    ({"model_type": "stacked_moe"}, ["unknown model_type", "gate_up_proj", "--experts stack"]),
    ({"hidden_size": 2 * INNER}, ["gate_up_proj", "[256, 768]", "in, out", "hidden_size (768)"]),
])
def test_what_nobody_can_take_apart(tessera, tmp_path, config, words):
    src = write(tmp_path / "src", made("llama4_text")[0], **{"family": "llama4_text", **config} if "model_type" not in config
                else {"family": config["model_type"]})
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", "--experts", "split"])
    assert code == 3 and all(word in err for word in words) and not (tmp_path / "dst").exists(), err


def test_every_tensor_has_its_note(tessera, tmp_path):
    """One for each tensor of the source, and none for what only the view has."""
    stacks, _ = pair(tmp_path, "gpt_oss")
    code, out, _ = harness.run(tessera, ["quantize", stacks, "--dry-run", "--json", "-", "--experts", "split"])
    rows = {row["name"]: row["action"] for row in json.loads(out)["plan"]}
    assert code == 0 and rows.keys() == made("gpt_oss")[0].keys()
    assert rows["model.layers.0.mlp.experts.gate_up_proj"] == "quantize" and rows["model.layers.0.mlp.experts.down_proj_bias"] == "split"


# ---- beside codes ----


def test_plain_stacks_beside_codes(tmp_path, convert):
    """convert takes plain stacks apart where asked, bit for bit, and leaves them alone where not."""
    stacks, single = made("qwen3_5_moe_text")
    m = f.fp8_block("model.layers.1.mlp.down_proj", rows=256, cols=256, suffix=".weight_scale_inv", dtype="F32",
                    config={**f.V4, "scale_fmt": None})
    src = write(tmp_path / "src", {**stacks, **m.tensors}, "qwen3_5_moe_text", quantization_config=m.config)
    for options, want in (((), stacks), (("--experts", "stack"), stacks), (("--experts", "split"), single)):
        got = stored.read_any(convert(src, "--to", "mxfp8", *options) / "model.safetensors")
        assert {name for name in got if "layers.1" not in name} == want.keys()
        for name, (_, shape, data) in want.items():
            assert got[name].tobytes() == data and list(got[name].shape) == shape
