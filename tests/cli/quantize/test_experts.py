"""Tests splitting of stacks of plain experts: the output equals that for a checkpoint that NumPy has split before."""

import functools
import json
import re
import shlex

import format_samples as f
import harness
import numpy as np
import pytest
import stored_oracle as stored

pytestmark = pytest.mark.in_turn

EXPERTS, HIDDEN, INNER = 3, 256, 384
# model_type: the prefix of a layer's experts, names of the stacks, of the parts, [experts, in, out], gate and up in turns, biases
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


@functools.cache
def drawn(family, dtype, hidden, inner):
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


def made(family, dtype="BF16", hidden=HIDDEN, inner=INNER):
    """Returns {name: entry} of the stacks and of the separate experts."""
    stacks, single = drawn(family, dtype, hidden, inner)
    return dict(stacks), dict(single)


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
    """Compares all tensors and the configuration. Reports contain times, so they are not compared."""
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    assert json.loads((a / "config.json").read_text()) == json.loads((b / "config.json").read_text())
    assert json.loads((a / "quantization_report.json").read_text())["tensors"] == \
        json.loads((b / "quantization_report.json").read_text())["tensors"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_as_one_by_one(tmp_path, quantize, family, scheme):
    stacks, single = pair(tmp_path, family)
    words = ["--scheme", *scheme.split()]
    if (family, scheme) == ("gpt_oss", "mxfp4"):
        words += ["--dialect", "compressed-tensors"]  # this family's own holds stacks
    same_model(quantize(stacks, "--experts", "split", *words), quantize(single, *words))


@pytest.mark.parametrize("dtype", ["F16", "F32"])
def test_other_dtypes(tmp_path, quantize, dtype):
    stacks, single = pair(tmp_path, "gpt_oss", dtype=dtype)
    for scheme in ("fp8-block", "nvfp4-weight-only"):
        same_model(quantize(stacks, "--experts", "split", "--scheme", scheme), quantize(single, "--scheme", scheme))


@pytest.mark.parametrize("threads", ["1", "3"])
def test_stacks_of_several_units(tmp_path, quantize, threads):
    """Rows exceed a unit of 4 MiB, in both directions."""
    stacks, single = pair(tmp_path, "gpt_oss", hidden=2080, inner=1408)
    for scheme in ("fp8-block", "nvfp4-weight-only"):
        same_model(quantize(stacks, "--threads", threads, "--experts", "split", "--scheme", scheme), quantize(single, "--scheme", scheme))


# ---- without --experts ----


@pytest.mark.parametrize("family, scheme, split", [
    ("gpt_oss", "fp8-block", True), ("llama4_text", "fp8-block", True), ("granitemoe", "fp8-block", True),
    ("qwen3_5_moe_text", "fp8-block", True), ("qwen3_5_moe_text", "nvfp4-weight-only", True), ("qwen3_5_moe_text", "fp8-channel", True)])
def test_split_where_the_family_is_known(tmp_path, quantize, family, scheme, split):
    stacks, _ = pair(tmp_path, family)
    got = stored.read_any(quantize(stacks, "--scheme", scheme) / "model.safetensors")
    assert any(".experts.0." in name for name in got) == split
    assert any("gate_up_proj" in name or "input_linear" in name for name in got) != split


@pytest.mark.parametrize("scheme", SCHEMES)
def test_stacks_of_an_unknown_family_stay_plain(tmp_path, tessera, inspect, scheme):
    """A class without parameters for the scales would read the codes as values. The warning names one stack."""
    stacks, dst = made("qwen3_5_moe_text")[0], tmp_path / "dst"
    src = write(tmp_path / "src", stacks, "novel")
    code, _, err = harness.run(tessera, ["quantize", src, "-o", dst, "--scheme", *scheme.split()])
    assert code == 0 and "2 stacks of experts stay BF16, the first is 'model.layers.0.mlp.experts." in err, err
    got = stored.read_any(dst / "model.safetensors")
    for name in ("model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"):
        assert got[name].tobytes() == stacks[name][2] and name + "_scale_inv" not in got
    # With the option the output is written, but the verdict is that it cannot be loaded.
    if scheme == "fp8-block":
        dst = tmp_path / "included"
        code, _, err = harness.run(tessera, ["quantize", src, "-o", dst, "--include", "*.experts.*"])
        _, verdicts = inspect(dst, "--can-load", "all", "--tp", "1")
        assert code == 0 and not any(row["1"] for row in verdicts["can_load"].values()), err


def test_what_is_kept_stays_together(tmp_path, quantize):
    """Excluded experts keep their name, form and bytes. They are separated only on request."""
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
    """Each tensor of the source has one note, and tensors of the view have none."""
    stacks, _ = pair(tmp_path, "gpt_oss")
    code, out, _ = harness.run(tessera, ["quantize", stacks, "--dry-run", "--json", "-", "--experts", "split"])
    rows = {row["name"]: row["action"] for row in json.loads(out)["plan"]}
    assert code == 0 and rows.keys() == made("gpt_oss")[0].keys()
    assert rows["model.layers.0.mlp.experts.gate_up_proj"] == "quantize" and rows["model.layers.0.mlp.experts.down_proj_bias"] == "split"


# ---- beside codes ----


def test_plain_stacks_beside_codes(tmp_path, convert):
    """convert separates unquantized stacks bit for bit on request, and otherwise does not change them."""
    stacks, single = made("qwen3_5_moe_text")
    m = f.fp8_block("model.layers.1.mlp.down_proj", rows=256, cols=256, suffix=".weight_scale_inv", dtype="F32",
                    config={**f.V4, "scale_fmt": None})
    src = write(tmp_path / "src", {**stacks, **m.tensors}, "qwen3_5_moe_text", quantization_config=m.config)
    for options, want in (((), stacks), (("--experts", "stack"), stacks), (("--experts", "split"), single)):
        got = stored.read_any(convert(src, "--to", "mxfp8", *options) / "model.safetensors")
        assert {name for name in got if "layers.1" not in name} == want.keys()
        for name, (_, shape, data) in want.items():
            assert got[name].tobytes() == data and list(got[name].shape) == shape


# ---- put together ----


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_become_the_family_s_stacks(tmp_path, convert, family):
    """Unquantized experts are stacked bit for bit in their dtype, and separated again."""
    stacks, single = pair(tmp_path, family)
    got, want = stored.read_any(convert(single, "--to", "bf16", "--experts", "stack") / "model.safetensors"), made(family)[0]
    assert got.keys() == want.keys()
    for name, (_, shape, data) in want.items():
        assert got[name].tobytes() == data and list(got[name].shape) == shape, name


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_vl_moe_text", "qwen3_5_moe_text"])
def test_codes_become_stacks(tmp_path, quantize, convert, family, threads):
    """The stacks equal experts that are decoded separately and stacked in NumPy."""
    stacks, single = pair(tmp_path, family)
    codes = quantize(single, "--scheme", "nvfp4-weight-only")
    plain = stored.read_any(convert(codes, "--to", "bf16") / "model.safetensors")
    got = stored.read_any(convert(codes, "--to", "bf16", "--experts", "stack", "--threads", threads) / "model.safetensors")
    x = "model.layers.0.mlp.experts."
    turned, interleaved = FAMILIES[family][3:5]
    for e in range(EXPERTS):
        gate, up, down = (plain[f"{x}{e}.{part}.weight"] for part in OWN[1])
        both = np.stack([gate, up], 1).reshape(2 * INNER, HIDDEN) if interleaved else np.concatenate([gate, up])
        for name, one in (("gate_up_proj", both), ("down_proj", down)):
            assert (got[x + name][e] == (one.T if turned else one)).all()
    assert "quantization_config" not in json.loads((convert(codes, "--to", "bf16", "--experts", "stack") / "config.json").read_text())


@pytest.mark.parametrize("drop, words", [("experts.1.up_proj", ["no '", "experts.1.up_proj.weight"]),
                                         ("experts.1.gate_proj", ["no 'model.layers.0.feed_forward.experts.1.gate_proj"]),
                                         ("experts.0.gate_proj", ["'model.layers.0.feed_forward.experts.0.gate_proj.weight' before it is missing"])])
def test_a_member_that_is_missing(tmp_path, refuse, drop, words):
    single = {name: t for name, t in made("llama4_text")[1].items() if drop not in name}
    refuse(write(tmp_path / "src", single, "llama4_text"), 3, *words, options=("--to", "bf16", "--experts", "stack"))


def test_a_member_of_another_shape(tmp_path, refuse):
    single, name = made("llama4_text")[1], "model.layers.0.feed_forward.experts.1.up_proj.weight"
    single[name] = f.entry("BF16", np.ones((INNER - 128, HIDDEN), f.BF16))
    refuse(write(tmp_path / "src", single, "llama4_text"), 3, name, "differs from", options=("--to", "bf16", "--experts", "stack"))


def test_an_unknown_family_is_not_put_together(tmp_path, refuse):
    src = write(tmp_path / "src", made("qwen3_5_moe_text")[1], "stacked_moe")
    refuse(src, 3, "unknown model_type", options=("--to", "bf16", "--experts", "stack"))


# ---- seen by diff and verify ----


@pytest.mark.parametrize("family", FAMILIES)
def test_diff_and_verify_see_through_it(tessera, tmp_path, quantize, family):
    """Compares stacks with separate experts in both directions. A single changed weight is found."""
    stacks, single = pair(tmp_path, family)
    for a, b in ((stacks, single), (single, stacks)):
        out = harness.succeed(tessera, ["diff", a, b, "--json", "-"])
        assert {row["state"] for row in json.loads(out)["tensors"]} <= {"identical", "equal"}, out
    dst = quantize(stacks, "--experts", "split", "--scheme", "nvfp4-weight-only")
    harness.succeed(tessera, ["verify", dst, "--against", stacks])
    # the oracle is not fooled: gate and up of one expert exchanged
    swapped = dict(made(family)[1])
    gate, up = sorted(n for n in swapped if ".1.gate_proj.weight" in n or ".1.up_proj.weight" in n)
    swapped[gate], swapped[up] = swapped[up], swapped[gate]
    harness.shows(tessera, ["diff", stacks, write(tmp_path / "swapped", swapped, family)], 1, ".experts.1.gate_proj")
    if any(n.endswith(".bias") for n in swapped):
        biases = dict(made(family)[1])
        name = next(n for n in biases if ".2.down_proj.bias" in n)
        kind, shape, data = biases[name]
        biases[name] = kind, shape, data[:-2] + b"\x80\x40"
        harness.shows(tessera, ["diff", stacks, write(tmp_path / "biases", biases, family)], 1, ".experts.2.down_proj.bias")


def test_an_expert_too_few_is_missing(tessera, tmp_path):
    stacks, _ = pair(tmp_path, "llama4_text")
    fewer = {name: t for name, t in made("llama4_text")[1].items() if ".experts.2." not in name}
    harness.shows(tessera, ["diff", stacks, write(tmp_path / "fewer", fewer, "llama4_text")], 1, "gate_up_proj")


# ---- what inspect recommends ----


def fp8_stack(directory, family):
    """Makes FP8 stacks of such a family: codes of the same shape, and scales of blocks."""
    stacks, _ = made(family)
    tensors = {}
    for name, (kind, shape, data) in stacks.items():
        if len(shape) == 3:
            grid = [shape[0], -(-shape[1] // 128), -(-shape[2] // 128)]
            tensors[name] = ("F8_E4M3", shape, b"\x38" * int(np.prod(shape)))
            tensors[name + "_scale_inv"] = f.entry("F32", np.ones(grid, np.float32))
        elif name.endswith("_proj.weight"):
            tensors[name] = ("F8_E4M3", shape, b"\x38" * int(np.prod(shape)))
            tensors[name.replace(".weight", ".weight_scale_inv")] = f.entry("F32", np.ones([-(-n // 128) for n in shape], np.float32))
        else:
            tensors[name] = kind, shape, data
    return write(directory, tensors, family, num_attention_heads=2, num_key_value_heads=2, head_dim=128,
                 quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})


@pytest.mark.parametrize("family, loaders", [
    ("gpt_oss", ["vllm", "sglang", "transformers"]), ("llama4_text", ["sglang", "transformers"]),
    ("qwen3_vl_moe_text", ["vllm", "sglang", "transformers"]), ("qwen3_5_moe_text", ["sglang", "transformers"])])
def test_the_recommended_command_makes_it_loadable(tessera, tmp_path, inspect, family, loaders):
    """Runs the commands in backquotes in order, and checks the result again."""
    src = fp8_stack(tmp_path / "src", family)
    for loader in loaders:
        _, got = inspect(src, "--can-load", loader, "--tp", "1")
        advice = {f["advice"] for f in got["load_findings"] if f["rule"] == "stacked experts" and f["severity"] == "error"}
        assert len(advice) == 1, (loader, got["load_findings"])
        path = src
        for step, command in enumerate(re.findall("`tessera ([^`]*)`", advice.pop())):
            verb, *options = shlex.split(command)
            dst = tmp_path / f"{loader}-{step}"
            harness.succeed(tessera, [verb, path, "-o", dst, *options, "--quiet"])
            path = dst
        assert path != src
        _, got = inspect(path, "--can-load", loader, "--tp", "1", "--as-is")  # some advice makes plain weights of them
        assert not [f for f in got["load_findings"] if f["rule"] in ("stacked experts", "kind", "scale name", "pairing")
                    and f["severity"] == "error"], (loader, got["load_findings"])


@pytest.mark.parametrize("family, refusing", [("gpt_oss", {"vllm", "sglang", "transformers"}), ("llama4_text", {"transformers"}),
                                              ("qwen3_5_moe_text", set())])
def test_who_reads_experts_one_by_one(tmp_path, inspect, convert, quantize, family, refusing):
    """Loaders that reject separate experts get a command that makes stacks."""
    _, single = pair(tmp_path, family)
    fp8 = quantize(single)
    together = convert(fp8, "--to", "bf16", "--experts", "stack")
    for path, expected in ((fp8, refusing), (together, set())):
        _, got = inspect(path, "--can-load", "vllm,sglang,transformers", "--tp", "1", "--as-is")
        found = {f["loader"] for f in got["load_findings"] if f["rule"] == "stacked experts" and f["severity"] == "error"}
        assert found == expected, got["load_findings"]
