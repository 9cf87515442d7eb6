"""Tests rules that concern several tensors: fused layers, tensors that are never quantized, added files, and difficult weights."""

import json
import shutil

from checkpoints import BLOCKS, INDEX, REPORT, SOURCES, load, save, split
from fp8_cases import corner_cases
import fp8_oracle
import harness
import ml_dtypes
import numpy as np
from output_checks import assert_config, assert_report, deepseek_config
import pytest

DOWN = "model.layers.0.mlp.down_proj.weight"


# ---- layers that loaders run as one ----

# model_type, rows of each member in the order in which loaders join them, whether they can be quantized
GROUPS = {
    "qkv": ("llama", "self_attn", {"q_proj": 256, "k_proj": 128, "v_proj": 128}, True),
    "qkv, v ragged": ("llama", "self_attn", {"q_proj": 256, "k_proj": 128, "v_proj": 100}, True),
    "qkv, k ragged": ("llama", "self_attn", {"q_proj": 256, "k_proj": 64, "v_proj": 64}, False),
    "qkv, q ragged": ("llama", "self_attn", {"q_proj": 200, "k_proj": 128, "v_proj": 128}, False),
    "gate up": ("llama", "mlp", {"gate_proj": 256, "up_proj": 256}, True),
    "gate up, ragged": ("llama", "mlp", {"gate_proj": 192, "up_proj": 192}, False),
    "up alone, ragged": ("llama", "mlp", {"up_proj": 192}, True),
    "q_a kv_a, kv_a ragged": ("deepseek_v3", "self_attn", {"q_a_proj": 128, "kv_a_proj_with_mqa": 576}, True),
    "q_a kv_a, q_a ragged": ("deepseek_v3", "self_attn", {"q_a_proj": 192, "kv_a_proj_with_mqa": 576}, False),
    "expert": ("deepseek_v3", "mlp.experts.3", {"gate_proj": 100, "up_proj": 100}, False),
}


@pytest.mark.parametrize("model_type, part, rows, together", GROUPS.values(), ids=GROUPS)
def test_fused_layers(model_type, part, rows, together, quantize, tmp_path):
    """A member that ends inside a block keeps the whole group, unless it is the last member."""
    rng = np.random.default_rng(2)
    names = {f"model.layers.0.{part}.{member}": n for member, n in rows.items()}
    source = {f"{name}.weight": rng.standard_normal((n, 64), np.float32) for name, n in names.items()}
    source[DOWN] = np.ones((5, 5), np.float32)
    src = save(tmp_path / "src", source, {"model_type": model_type})
    dst = quantize(src)
    assert split(load(dst))[0].keys() == (source.keys() if together else {DOWN})
    experts = ["model.layers.0.mlp.experts"] if "experts" in part else []
    assert_config(src, dst, deepseek_config(), ["lm_head", *([] if together else [*names, *experts])])
    assert split(load(quantize(src, "--include", f"*{part}.*")))[0].keys() == source.keys()


@pytest.mark.parametrize("rows, quantized", [(256, True), (512, True), (200, False), (384, False)])
def test_the_seam_of_stacked_experts(rows, quantized, quantize, tmp_path):
    """gate and up are the halves of one tensor. Their border must be the edge of a block."""
    name = "model.layers.0.mlp.experts.gate_up_proj"
    src = save(tmp_path / "src", {name: np.ones((2, rows, 64), np.float32), DOWN: np.ones((5, 5), np.float32)},
               {"model_type": "qwen3_moe"})
    dst = quantize(src, "--experts", "stack")
    assert (name in split(load(dst))[0]) == quantized
    assert_config(src, dst, deepseek_config(), ["lm_head", *([] if quantized else [name, name.removesuffix(".gate_up_proj")])])


def test_never_quantized(quantize, tmp_path):
    rng = np.random.default_rng(4)
    matrices = ["model.embed_tokens", "lm_head", "model.layers.0.mlp.gate", "model.layers.61.eh_proj",
                "model.layers.61.shared_head.head", "model.layers.61.embed_tokens"]
    source = {f"{name}.weight": rng.standard_normal((128, 128), np.float32).astype(ml_dtypes.bfloat16)
              for name in matrices}
    vectors = ["model.norm.weight", "model.layers.0.self_attn.q_proj.bias",
               "model.layers.0.self_attn.kv_a_layernorm.weight", "model.layers.0.mlp.gate.e_score_correction_bias"]
    source |= {name: rng.standard_normal(128, np.float32) for name in vectors}
    source[DOWN] = np.ones((5, 5), np.float32)
    src = save(tmp_path / "src", source, {"model_type": "deepseek_v3"})
    dst = quantize(src)
    scales, others = split(load(dst))
    assert scales.keys() == {DOWN}
    assert all(others[name].tobytes() == x.tobytes() and others[name].dtype == x.dtype
               for name, x in source.items() if name != DOWN)
    assert_config(src, dst, deepseek_config(), [name for name in matrices if "embed" not in name])


# ---- hard weights, all the way ----


@pytest.mark.parametrize("scale_fmt", ["f32", "ue8m0"])
@pytest.mark.parametrize("dtype", SOURCES)
def test_mse_is_never_worse_on_hard_weights(dtype, scale_fmt, quantize, tmp_path):
    source = corner_cases(SOURCES[dtype])
    src = save(tmp_path / "src", source)
    amax = load(quantize(src, "--scale-fmt", scale_fmt))
    mse = load(quantize(src, "--scale-fmt", scale_fmt, "--scales", "mse"))
    for name, scales in split(mse)[0].items():
        old = fp8_oracle.block_errors(source[name], amax[name], amax[name + "_scale_inv"])
        new = fp8_oracle.block_errors(source[name], mse[name], scales)
        assert np.all(new <= old), f"{name}: block {np.argwhere(new > old)[0]}"


def test_report_when_nothing_is_left(quantize, tmp_path):
    """The smallest power of two that a reader accepts is 2^-126. With smaller values ue8m0 has only zeros."""
    source = {DOWN: np.full((3, 3), 2.0**-148, np.float32)}
    dst = quantize(save(tmp_path / "src", source), "--scale-fmt", "ue8m0")
    (row,) = json.loads((dst / REPORT).read_text())["tensors"]
    assert row["flushed"] == 9 and row["relative_error"] == 1 and row["cosine"] == 0


@pytest.mark.parametrize("scales", ["amax", "mse"])
@pytest.mark.parametrize("dtype", SOURCES)
def test_the_same_tree_for_hard_weights(dtype, scales, quantize, tmp_path):
    src = save(tmp_path / "src", corner_cases(SOURCES[dtype]))
    usual = quantize(src, "--scales", scales)
    for options in (("--cpumask", "0"), ("--threads", "1"), ("--threads", "2")):
        difference = harness.tree_difference(usual, quantize(src, "--scales", scales, *options))
        assert difference is None, f"{options}: {difference}"


# ---- configuration ----


def test_a_null_quantization_config_gives_way(quantize, tmp_path):
    src = save(tmp_path / "src", {DOWN: np.ones((5, 5), np.float32)})
    before = '{\n  "model_type": "llama",\n  "quantization_config": null,\n  "rope_theta": 10000.0\n}\n'
    (src / "config.json").write_text(before)
    after = (quantize(src) / "config.json").read_text()
    pairs = json.loads(after, object_pairs_hook=lambda items: items)
    assert [key for key, _ in pairs] == ["model_type", "quantization_config", "rope_theta"]
    head, tail = before.split("null")
    assert after.startswith(head) and after.endswith(tail)
    assert json.loads(after[len(head) : -len(tail)])["quant_method"] == "fp8"


# ---- what is written, and what is not ----


def test_the_source_stays_as_it_was(checkpoint, quantize, tmp_path):
    shutil.copytree(checkpoint("deepseek-v3"), tmp_path / "src")
    quantize(tmp_path / "src")
    assert harness.tree_difference(checkpoint("deepseek-v3"), tmp_path / "src") is None


def test_dry_run_writes_nothing(checkpoint, tessera, tmp_path):
    harness.succeed(tessera, ["quantize", checkpoint("llama"), "-o", tmp_path / "dst", "--dry-run"])
    assert not (tmp_path / "dst").exists()


def test_side_files_in_folders(quantize, tmp_path):
    src = save(tmp_path / "src", {DOWN: np.ones((5, 5), np.float32)})
    contents = {"tokenizer.json": b'{"a": 1}\r\n\xc3\xa9', "empty": b"", "a/b/data.bin": bytes(range(256)) * 5000}
    for name, content in contents.items():
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_bytes(content)
    (src / ".cache").mkdir()
    (src / ".cache/lock").write_bytes(b"x")
    dst = quantize(src)
    files = {str(path.relative_to(dst)): path for path in dst.rglob("*") if path.is_file()}
    assert {name for name in files if not name.startswith(".tessera/")} == contents.keys() | {
        "model.safetensors", "config.json", REPORT, BLOCKS, harness.MANIFEST}
    assert all(files[name].read_bytes() == content for name, content in contents.items())


OTHER_WEIGHTS = ["flax_model.msgpack", "model-Q8.gguf", "onnx/model.onnx_data", "original/consolidated.00.pth", "pytorch_model.bin",
                 "pytorch_model.bin.index.json", "tf_model.h5"]


@pytest.mark.parametrize("command", [["quantize"], ["quantize", "--scheme", "int8-channel"], ["convert", "--to", "bf16"], ["convert", "--to", "archive"]])
def test_weights_in_other_formats_are_not_copied(command, quantize, tessera, tmp_path):
    """Only a conversion that keeps the weights keeps these files."""
    src = save(tmp_path / "src", {DOWN: np.ones((5, 128), np.float32)})
    src = quantize(src) if "bf16" in command else src
    for name in OTHER_WEIGHTS:
        (src / name).parent.mkdir(exist_ok=True)
        (src / name).write_text("{}")
    err = harness.expect(tessera, [command[0], src, "-o", tmp_path / "dst", *command[1:]], 0)
    kept = [name for name in OTHER_WEIGHTS if (tmp_path / "dst" / name).exists()]
    assert kept == (OTHER_WEIGHTS if "archive" in command else [])
    assert (f"not copied, because they may hold the weights of the source: {', '.join(OTHER_WEIGHTS)}\n" in err) == (kept == []), err


def test_ignored_files_are_absent(quantize, tmp_path):
    src = save(tmp_path / "src", {DOWN: np.ones((5, 5), np.float32)})
    (src / "consolidated.safetensors").write_bytes(b"another copy")
    dst = quantize(src, "--ignore-file", "consolidated*")
    assert {path.name for path in dst.iterdir()} == {"model.safetensors", "config.json", REPORT, BLOCKS, harness.MANIFEST, harness.KEPT}
    assert not (dst / INDEX).exists()


# ---- distributions ----


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize("distribution", ["standard_normal", "laplace", "standard_t"])
def test_heavy_tails_lose_what_e4m3_costs(distribution, dtype, quantize, tmp_path):
    """The SQNR is 31.5 dB for any distribution if every block is scaled by its own maximum."""
    rng = np.random.default_rng(7)
    size = (400, 700)
    x = rng.standard_t(5, size) if distribution == "standard_t" else getattr(rng, distribution)(size=size)
    source = {"model.layers.0.mlp.up_proj.weight": (0.02 * x).astype(np.float32).astype(SOURCES[dtype])}
    src = save(tmp_path / "src", source)
    dst = quantize(src)
    tensors = load(dst)
    assert_report(source, dst)
    power = loss = 0.0
    for name, scales in split(tensors)[0].items():
        codes, expected = fp8_oracle.quantize(source[name])
        assert scales.tobytes() == expected.tobytes(), name
        assert tensors[name].tobytes() == codes.tobytes(), name
        x = source[name].astype(np.float64)
        power += np.square(x).sum()
        loss += np.square(x - fp8_oracle.dequantize(codes, scales)).sum()
    sqnr = 10 * np.log10(power / loss)
    assert 31.0 < sqnr < 32.0
    assert json.loads((dst / REPORT).read_text())["whole"]["sqnr_db"] == pytest.approx(sqnr, abs=1e-3)
