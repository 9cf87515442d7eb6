"""Tests that each command rejects unsupported formats by name, and copies integers and unusual dtypes that are plain data."""

import json
import shutil

from checkpoints import DEEPSEEK, make, random_weight
import harness
import ml_dtypes
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16
WIDTH = {"I8": 1, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "I16": 2, "F16": 2, "BF16": 2,
         "I32": 4, "U32": 4, "F32": 4, "I64": 8, "F64": 8, "BOOL": 1, "C64": 8, "F4": 0.5}
L = "model.layers.0."
UP, X = L + "mlp.up_proj", L + "mlp.experts.0.w1"


def raw(dtype, *shape, fill=0x38):
    return dtype, list(shape), bytes([fill]) * int(np.prod(shape) * WIDTH[dtype])


def deepseek_v4(codes="I8", suffix=".weight", scale=".scale", scale_dtype="F8_E8M0"):
    return {X + suffix: raw(codes, 256, 64), X + scale: raw(scale_dtype, 256, 4, fill=127)}


# name: (tensors beside a plain model, words of the refusal)
FOREIGN = {
    "an F8_E8M0 without a weight": ({L + "mystery": raw("F8_E8M0", 4, 4)}, ["mystery", "F8_E8M0"]),
    "F8_E8M0 beside BF16": ({UP + ".scale": raw("F8_E8M0", 2, 2)}, [UP + ".scale"]),
    "I8 with an F32 .scale": (deepseek_v4(scale_dtype="F32"), [X, "I8"]),
    "I8 [.., 16] with one F8_E8M0 a row": (
        {X + ".weight": raw("I8", 256, 64), X + ".weight_scale": raw("F8_E8M0", 256, 1)}, [X, "F8_E8M0"]),
    "I8 with weight_scale_inv": (deepseek_v4(scale=".weight_scale_inv", scale_dtype="F32"), [X, "I8"]),
    "I8 alone": ({X + ".weight": raw("I8", 256, 64)}, [X + ".weight", "I8"]),
    "U8 alone": ({X + ".weight": raw("U8", 256, 64)}, [X + ".weight", "U8"]),
    "I16 alone": ({X + ".weight": raw("I16", 256, 64)}, [X + ".weight", "I16"]),
    "F4 alone": ({X + ".weight": raw("F4", 256, 64)}, [X + ".weight", "F4"]),
    "F8_E5M2": ({X + ".weight": raw("F8_E5M2", 256, 64)}, [X + ".weight", "F8_E5M2"]),
    "F8_E4M3FNUZ": ({X + ".weight": raw("F8_E4M3FNUZ", 256, 64)}, [X + ".weight", "F8_E4M3FNUZ"]),
    "F8_E4M3 without a scale": ({X + ".weight": raw("F8_E4M3", 256, 64)}, [X + ".weight", "without a scale"]),
    "a qweight alone": ({X + ".qweight": raw("I32", 16, 256)}, [X + ".qweight"]),
    "bitsandbytes NF4": (
        {X + ".weight": raw("U8", 8192, 1), X + ".weight.absmax": raw("F32", 256), X + ".weight.quant_map": raw("F32", 16),
         X + ".weight.quant_state.bitsandbytes__nf4": raw("U8", 80)}, ["bitsandbytes"]),
    "bitsandbytes int8": ({X + ".weight": raw("I8", 256, 64), X + ".SCB": raw("F32", 256)}, ["bitsandbytes"]),
    "MLX": ({X + ".weight": raw("U32", 256, 8), X + ".scales": raw("BF16", 256, 1), X + ".biases": raw("BF16", 256, 1)}, ["MLX"]),
    "codes of TensorRT-LLM in F16": (
        {X + ".weight": raw("F16", 256, 64), X + ".weights_scaling_factor": raw("F16", 2, 256)}, ["TensorRT-LLM"]),
    "HQQ": ({X + ".W_q": raw("U8", 256, 32), X + ".scale": raw("BF16", 64), X + ".zero": raw("BF16", 64)}, ["HQQ"]),
    "NVFP4_AWQ of ModelOpt": (
        {X + ".weight": raw("U8", 256, 64), X + ".weight_scale": raw("F8_E4M3", 256, 8), X + ".weight_scale_2": raw("F32"),
         X + ".pre_quant_scale": raw("BF16", 128)}, ["NVFP4_AWQ", "pre_quant_scale"]),
    "2:4 sparse weights": (
        {X + ".compressed": raw("BF16", 256, 32), X + ".bitmask": raw("U8", 256, 8), X + ".shape": raw("I64", 2)}, ["sparse", "compressed-tensors"]),
    "sparse weights of an older version": (
        {X + ".weight.compressed": raw("BF16", 4096), X + ".weight.bitmask": raw("U8", 256, 8), X + ".weight.shape": raw("I64", 2),
         X + ".weight.row_offsets": raw("I64", 256)}, ["sparse", "compressed-tensors"]),
    "2:4 sparse weights with a byte an element": (
        {X + ".compressed": raw("BF16", 256, 32), X + ".bytemask": raw("BOOL", 256, 64), X + ".shape": raw("I64", 2, 1)}, ["sparse", "compressed-tensors"]),
    "sparse weights without their mask": ({X + ".compressed": raw("BF16", 256, 32), X + ".shape": raw("I64", 2)}, ["sparse", "without its mask"]),
    "Marlin's 2:4 sparse weights": (
        {X + ".weight_packed": raw("I32", 4, 512), X + ".scale_packed": raw("F16", 1, 256), X + ".meta": raw("I16", 64, 16)},
        ["Marlin", "2:4"]),
    "ExLlamaV2": ({X + ".q_weight": raw("I32", 16, 256), X + ".q_scale": raw("I32", 4, 32)}, ["ExLlamaV2"]),
    "int8 of TensorRT-LLM": ({X + ".weight": raw("I8", 256, 64), X + ".per_channel_scale": raw("F16", 256)}, ["TensorRT-LLM"]),
    "a global scale left over": ({X + ".weight": raw("BF16", 256, 64), X + ".weight_global_scale": raw("F32", 1)}, ["weight_global_scale"]),
    "a smoothing factor that is not folded": ({UP + ".pre_quant_scale": raw("BF16", 256)}, ["pre_quant_scale"]),
    "a zero point left over": ({UP + ".weight_zero_point": raw("I8", 256, 1)}, ["weight_zero_point"]),
    "a shape left over": ({X + ".weight_shape": raw("I64", 2)}, ["weight_shape"]),
    "a DeepSeek scale left over": ({UP + ".scale": raw("F32", 2, 2)}, [UP + ".scale", "left-over scale"]),
    "a stack's scale left over": (
        {L + "mlp.experts.gate_up_proj": raw("BF16", 2, 64, 64), L + "mlp.experts.gate_up_proj_scale": raw("F32", 2, 1, 1)},
        ["gate_up_proj_scale", "left-over scale"]),
}

MLA = {"num_attention_heads": 2, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16}
CONFIG = {"num_hidden_layers": 1, "num_key_value_heads": 2, "hidden_size": 256, **MLA}
QUANTIZATIONS = {"no config": None, "fp8 config": DEEPSEEK}

COMMANDS = {
    "quantize": "quantize SRC -o DST",
    "quantize int8": "quantize SRC -o DST --scheme int8-channel",
    "quantize fp8-channel": "quantize SRC -o DST --scheme fp8-channel",
    "quantize int4": "quantize SRC -o DST --scheme int4-weight-only",
    "quantize --dry-run": "quantize SRC -o DST --dry-run",
    "compare-schemes": "compare-schemes SRC --quiet",
    "plan-schemes": "plan-schemes SRC --bits 8 --quiet",
    "bf16": "convert SRC -o DST --to bf16",
    "fp8-block": "convert SRC -o DST --to fp8-block --block 64x64",
    "tp": "convert SRC -o DST --to tp --tp 2",
    "deepseek-mp": "convert SRC -o DST --to deepseek-mp --mp 1",
    "mla-absorbed": "convert SRC -o DST --to mla-absorbed --consumer sglang",
    "fastertransformer": "convert SRC -o DST --to fastertransformer --arch sm80",
    "trtllm": "convert SRC -o DST --to trtllm --arch sm80",
    "diff": "diff PLAIN SRC",
    "diff, other way": "diff SRC PLAIN",
    "verify": "verify SRC --against PLAIN",
    "verify, other way": "verify PLAIN --against SRC",
    "verify gemm": "verify gemm SRC --device cpu",
    "verify epilogue": "verify epilogue SRC --device cpu",
    "verify dequant": "verify dequant SRC --device cpu",
}


def write(directory, tensors, quantization=None):
    """Writes a small model with one unquantized linear layer, these tensors and, if it is quantized, a layer in block FP8."""
    make(directory, {"model.safetensors": {}}, quantization, **CONFIG)
    entries = {UP + ".weight": ("BF16", [256, 256], random_weight((256, 256)).astype(BF16).tobytes()),
               "model.norm.weight": ("BF16", [256], random_weight((256,)).astype(BF16).tobytes())}
    if quantization is not None:
        down = L + "mlp.down_proj.weight"
        entries |= {down: raw("F8_E4M3", 256, 256), down + "_scale_inv": ("F32", [2, 2], np.ones((2, 2), np.float32).tobytes())}
    harness.write_safetensors(directory / "model.safetensors", entries | tensors, {"format": "pt"})
    return directory


def run(tessera, command, tmp_path, src, plain):
    places = {"SRC": src, "PLAIN": plain, "DST": tmp_path / "dst"}
    return harness.run(tessera, [places.get(word, word) for word in command.split()])


@pytest.mark.parametrize("config", QUANTIZATIONS)
@pytest.mark.parametrize("name", FOREIGN)
def test_every_command_names_and_refuses_it(tmp_path, tessera, name, config):
    tensors, words = FOREIGN[name]
    src = write(tmp_path / "src", tensors, QUANTIZATIONS[config])
    plain = write(tmp_path / "plain", {})
    for command in COMMANDS.values():
        code, out, err = run(tessera, command, tmp_path, src, plain)
        assert code == 3, f"{command}: exit {code}\n{out}{err}"
        assert all(word in err for word in words), f"{command}: {err}"
        assert not list((tmp_path / "dst").rglob("*.safetensors*")), command


# Their codes are known, but their scales are missing or belong to a weight that is not codes: damage, exit 1.
DAMAGED = {"F8_E4M3 without a scale", "I8 [.., 16] with one F8_E8M0 a row", "F8_E8M0 beside BF16", "a DeepSeek scale left over", "a stack's scale left over"}


@pytest.mark.parametrize("name", FOREIGN)
def test_inspect_names_it_and_counts_it_apart(tmp_path, tessera, name):
    tensors, words = FOREIGN[name]
    src = write(tmp_path / "src", tensors)
    code, out, err = harness.run(tessera, ["inspect", src, "--json", tmp_path / "json"])
    got = json.loads((tmp_path / "json").read_text())
    findings = [f for f in got["findings"] if f["severity"] == "error"]
    assert code == (1 if name in DAMAGED else 3) and findings, out + err
    assert all(any(word in f["detail"] for f in findings) for word in words), findings
    if name in DAMAGED:
        return
    assert all(word in err for word in words), err
    plain = sum(part["parameters"] for part in got["parts"].values())
    beside = {"a global scale left over": 256 * 64}.get(name, 0)  # its weight is plain
    assert plain == 256 * 256 + 256 + beside
    assert 0 < got["unread"]["tensors"] <= len(tensors)
    paired = name == "I8 with weight_scale_inv"  # the scale is found, and only its weight is not read
    assert got["tensors"] - got["unread"]["tensors"] == 2 + (beside > 0) + paired


@pytest.mark.parametrize("name", ["HQQ", "I8 alone", "bitsandbytes NF4", "F8_E5M2"])
def test_a_tensor_of_it_has_no_values(tmp_path, tessera, name):
    tensors, _ = FOREIGN[name]
    src = write(tmp_path / "src", tensors)
    harness.expect(tessera, ["inspect", f"{src}:{next(iter(tensors))}"], 3, next(iter(tensors)))
    harness.succeed(tessera, ["inspect", f"{src}:{UP}.weight"])


@pytest.mark.parametrize("name", FOREIGN)
def test_an_archive_keeps_its_bytes(tmp_path, tessera, name):
    """An archive restores the same bytes, also of tensors that Tessera cannot interpret."""
    src = write(tmp_path / "src", FOREIGN[name][0], DEEPSEEK)
    packed, back = tmp_path / "packed", tmp_path / "back"
    harness.succeed(tessera, ["convert", src, "-o", packed, "--to", "archive", "--shuffle", "--quiet"])
    harness.succeed(tessera, ["convert", packed, "-o", back, "--to", "safetensors", "--quiet"])
    harness.without_records(back)
    assert harness.tree_difference(src, back) is None
    harness.expect(tessera, ["convert", packed, "-o", tmp_path / "dst", "--to", "bf16"], 3, FOREIGN[name][1][0])


def test_verify_fails_over_codes_that_no_config_speaks_of(tmp_path, tessera):
    """Tests a faulty output of an earlier version for DeepSeek-V4: experts copied as integers without a quantization_config."""
    src = write(tmp_path / "src", deepseek_v4(), DEEPSEEK)
    dst = write(tmp_path / "dst", deepseek_v4())
    harness.shows(tessera, ["verify", dst, "--against", src], 1, "quantization_config: missing")


PLAIN = {
    "model.embeddings.position_ids": raw("I64", 1, 77),
    L + "ffn.gate.tid2eid": raw("I64", 64, 6),
    L + "ffn.gate.tid2eid32": raw("I64", 64, 6),
    L + "attn.bias": raw("U8", 1, 1, 8, 8, fill=1),
    L + "attn.masked_bias": raw("I32"),
    L + "swin.relative_position_index": raw("I32", 16, 16),
    L + "bn.num_batches_tracked": raw("I64"),
    L + "attention_mask": raw("BOOL", 8, 8, fill=1),
    L + "freqs_cis": raw("C64", 8, 4),
    L + "order": raw("I32", 12),
    L + "self_attn.k_proj.k_scale": raw("F32", 1),
    L + "norm_1.scale": raw("F32", 256),
    L + "gate.scale": raw("F32", 1),
    L + "gate.weight": raw("BF16", 16, 16),
    L + "hc_attn_scale": raw("F32", 3),
    L + "pixel.mean": raw("F64", 3),
    L + "mask": raw("I8", 0, 4),
}


def test_plain_data_is_copied_and_says_why(tmp_path, tessera):
    src = write(tmp_path / "src", PLAIN, DEEPSEEK)
    harness.succeed(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "bf16"])
    got = harness.read_safetensors(tmp_path / "dst" / "model.safetensors")[1]
    assert {name: (t[0], list(t[1]), t[2]) for name, t in got.items() if name in PLAIN} == \
        {name: t for name, t in PLAIN.items() if not name.endswith("k_scale")}
    code, out, err = harness.run(tessera, ["convert", src, "-o", tmp_path / "dry", "--to", "bf16", "--dry-run"])
    for reason in ("a table of positions", "64-bit integers", "a mask", "a list of integers", "booleans", "complex"):
        assert reason in out, out
    harness.succeed(tessera, ["verify", tmp_path / "dst", "--against", src, "--tensors", "*position*"])
    harness.succeed(tessera, ["inspect", src])


def test_plain_data_survives_quantizing(tmp_path, tessera):
    src = write(tmp_path / "src", PLAIN)
    harness.succeed(tessera, ["quantize", src, "-o", tmp_path / "dst", "--quiet"])
    got = harness.read_safetensors(tmp_path / "dst" / "model.safetensors")[1]
    assert {name: (t[0], list(t[1]), t[2]) for name, t in got.items() if name in PLAIN} == PLAIN


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "mxfp4", "quark", "hqq", ""])
def test_methods_of_others_are_named(tmp_path, tessera, method):
    src, plain = write(tmp_path / "src", {}), write(tmp_path / "plain", {})
    config = json.loads((src / "config.json").read_text())
    (src / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))
    for command in COMMANDS.values():
        code, out, err = run(tessera, command, tmp_path, src, plain)
        words = f"'{method}'" if method else "quantization_config: quant_method is empty; the methods that can be read: fp8, compressed-tensors"
        assert code == 3 and words in err, f"{command}: exit {code}\n{out}{err}"


@pytest.mark.parametrize("target", ["fastertransformer", "trtllm"])
def test_blobs_name_the_way_back(tmp_path, tessera, checkpoint, target):
    src, blobs = checkpoint("llama"), tmp_path / "blobs"
    harness.succeed(tessera, ["convert", src, "-o", blobs, "--to", target, "--arch", "sm80", "--quiet"])
    for command in ("verify SRC --against PLAIN", "verify PLAIN --against SRC", "diff PLAIN SRC", "quantize SRC -o DST",
                    "convert SRC -o DST --to bf16", "convert SRC -o DST --to tp --tp 2", "compare-schemes SRC", "plan-schemes SRC --bits 8",
                    "verify gemm SRC --device cpu"):
        code, out, err = run(tessera, command, tmp_path, blobs, src)
        assert code == 3 and f"--from {target}" in err and "missing" not in out, f"{command}: exit {code}\n{out}{err}"


COMPRESSED = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
              "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("quantization", [None, DEEPSEEK, COMPRESSED], ids=["plain", "fp8", "compressed-tensors"])
def test_nobody_is_said_to_load_it(tmp_path, tessera, name, quantization):
    src = write(tmp_path / "src", FOREIGN[name][0], None)
    config = json.loads((src / "config.json").read_text())
    if quantization is not None:
        config["quantization_config"] = quantization
    (src / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    code, out, err = harness.run(tessera, ["inspect", src, "--can-load", "all", "--tp", "1,2", "--json", tmp_path / "json"])
    assert code in (1, 3), f"exit {code}\n{out}{err}"
    table = json.loads((tmp_path / "json").read_text())["can_load"]
    assert not any(ok for row in table.values() for ok in row.values()), table


@pytest.mark.parametrize("codes, scale", [("I8", "F32"), ("U8", "BF16")])
def test_a_forward_pass_takes_no_codes_for_values(tmp_path, tessera, checkpoint, codes, scale):
    src, dst = checkpoint("llama"), tmp_path / "dst"
    shutil.copytree(src, dst)
    path = next(dst.glob("*.safetensors"))
    metadata, tensors = harness.read_safetensors(path)
    name = next(n for n in tensors if n.endswith("layers.0.mlp.up_proj.weight"))
    rows, cols = tensors[name][1]
    tensors[name] = raw(codes, rows, cols // 2)
    tensors[name.removesuffix("weight") + "scale"] = raw(scale, rows, cols // 32, fill=120)
    harness.write_safetensors(path, tensors, metadata)
    for sides in ([dst, "--against", src], [src, "--against", dst]):
        harness.expect(tessera, ["verify", "forward", *sides, "--count", "4"], 3, name)
