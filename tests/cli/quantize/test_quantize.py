"""Tests `tessera quantize`: codes and scales by definition, files opened with the safetensors package, names, shapes and configuration."""

import json
import re
import shutil
from pathlib import Path

from checkpoints import BLOCKS, INDEX, KINDS, REPORT, SOURCES, STACKS, WIDTHS, load, same_bits, save, shards, split
from fp8_cases import corner_cases
import fp8_oracle
import harness
import numpy as np
from output_checks import assert_config, assert_report, deepseek_config
import pytest
from remembered import remembered

quantized = remembered(fp8_oracle.quantize)


def assert_codes(source, dst, ue8m0=False, suffix="_scale_inv"):
    """Checks every tensor of dst: recomputed bit for bit, or the bytes of the source. Returns the names of quantized
    tensors."""
    scales, others = split(load(dst), suffix)
    assert others.keys() == source.keys()
    for name, w in source.items():
        if name not in scales:
            assert same_bits(others[name], w), name
            continue
        codes, expected = quantized(w, ue8m0)
        assert same_bits(scales[name], expected), f"{name}: scales"
        wrong = np.flatnonzero(others[name].view(np.uint8) != codes.view(np.uint8))
        assert others[name].dtype == codes.dtype and wrong.size == 0, f"{name}: code at {wrong[:1]}"
    return set(scales)


# ---- numerics ----


@pytest.mark.parametrize("scale_fmt", ["f32", "ue8m0"])
@pytest.mark.parametrize("dtype", SOURCES)
def test_every_code_and_scale(dtype, scale_fmt, quantize, tmp_path):
    source = corner_cases(SOURCES[dtype])
    dst = quantize(save(tmp_path / "src", source), "--scale-fmt", scale_fmt)
    assert assert_codes(source, dst, scale_fmt == "ue8m0") == source.keys()
    if scale_fmt == "ue8m0":
        for name, scales in split(load(dst))[0].items():
            assert np.all(np.frexp(scales)[0] == 0.5), f"{name}: not a power of two"


@pytest.mark.parametrize("dtype", SOURCES)
def test_stacked_experts(dtype, quantize, tmp_path):
    rng = np.random.default_rng(3)
    source = {f"model.layers.0.mlp.experts.{name}": (rng.standard_normal(shape) / 50).astype(SOURCES[dtype])
              for name, shape in {"gate_up_proj": (3, 512, 200), "down_proj": (3, 200, 256)}.items()}
    source["model.layers.0.mlp.experts.down_proj"][1] = 0
    dst = quantize(save(tmp_path / "src", source, {"model_type": "qwen3_moe"}), "--experts", "stack")
    assert assert_codes(source, dst) == source.keys()
    shape = load(dst)["model.layers.0.mlp.experts.down_proj_scale_inv"].shape
    assert shape == (3, 2, 2)


@pytest.mark.parametrize("scale_fmt", ["f32", "ue8m0"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_code_of_a_model(kind, scale_fmt, checkpoint, quantize):
    assert_codes(load(checkpoint(kind)), quantize(checkpoint(kind), "--scale-fmt", scale_fmt, *STACKS.get(kind, ())), scale_fmt == "ue8m0")


@pytest.mark.parametrize("scale_fmt", ["f32", "ue8m0"])
def test_mse_is_never_worse(scale_fmt, checkpoint, quantize):
    source = load(checkpoint("deepseek-v3"))
    amax = load(quantize(checkpoint("deepseek-v3"), "--scale-fmt", scale_fmt))
    mse = load(quantize(checkpoint("deepseek-v3"), "--scale-fmt", scale_fmt, "--scales", "mse"))
    assert amax.keys() == mse.keys()
    better = 0
    for name, scales in split(mse)[0].items():
        w = source[name].astype(np.float32)
        assert same_bits(mse[name], fp8_oracle.codes_of(w, scales)), f"{name}: codes are not those of the scales"
        assert scale_fmt == "f32" or np.all(np.frexp(scales)[0] == 0.5), f"{name}: not a power of two"
        old = fp8_oracle.block_errors(w, amax[name], amax[name + "_scale_inv"])
        new = fp8_oracle.block_errors(w, mse[name], scales)
        assert np.all(new <= old), f"{name}: block {np.argwhere(new > old)[0]}"
        better += np.count_nonzero(new < old)
    assert better > 0 or scale_fmt == "ue8m0", "the search found nothing anywhere"


# ---- the same bytes whatever the machine ----


@pytest.mark.parametrize("scales", ["amax", "mse"])
def test_threads_and_instruction_sets_change_nothing(scales, checkpoint, quantize):
    def run(*options):
        return quantize(checkpoint("deepseek-v3"), "--scales", scales, "--max-shard-size", "1MB", *options)

    first = run()
    variants = [("--threads", n) for n in (1, 2, 5)] + [("--cpumask", n) for n in (0, 1, 3)] + [("--memory", "64MiB")]
    for options in variants:
        difference = harness.tree_difference(first, run(*options))
        assert difference is None, f"{options}: {difference}"


# ---- files ----


def assert_layout(dst):
    """Checks shards, headers and index against the rules of the format and of its readers."""
    paths, total, where = shards(dst), 0, {}
    n = len(paths)
    names = [f"model-{i + 1:05}-of-{n:05}.safetensors" for i in range(n)] if n > 1 else ["model.safetensors"]
    assert [path.name for path in paths] == names
    for path in paths:
        start, entries, metadata = harness.read_header(path)
        assert start % 8 == 0
        assert metadata == {"format": "pt"}
        order = sorted(entries, key=lambda name: (-WIDTHS[entries[name]["dtype"]], entries[name]["dtype"], name))
        assert sorted(entries, key=lambda name: entries[name]["data_offsets"]) == order
        assert list(entries) == order
        where |= dict.fromkeys(entries, path.name)
        total += path.stat().st_size - start
    index = Path(dst, INDEX)
    assert index.exists() == (n > 1)
    if n > 1:
        assert json.loads(index.read_text()) == {"metadata": {"total_size": total}, "weight_map": where}
    for name in where:
        scale = name + "_scale_inv"
        assert scale not in where or where[scale] == where[name], f"{name} and its scales lie in two files"


def unquantized(source, scales, out):
    """Returns the modules that a loader would build as linear layers and that are not in FP8."""
    floats = [np.dtype(dtype) for dtype in SOURCES.values()]
    return {name.removesuffix(".weight") for name in source
            if name not in scales and out[name].ndim >= 2 and out[name].dtype in floats and "embed" not in name}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [(), ("--max-shard-size", "1MB", "--scale-fmt", "ue8m0")], ids=["one", "sharded"])
def test_files(kind, options, checkpoint, quantize):
    src = checkpoint(kind)
    dst = quantize(src, *options, *STACKS.get(kind, ()))
    assert_layout(dst)
    source, tensors = load(src), load(dst)
    scales, others = split(tensors)
    assert others.keys() == source.keys()
    for name, scale in scales.items():
        *stack, rows, cols = source[name].shape
        assert scale.dtype == np.float32 and list(scale.shape) == [*stack, -(-rows // 128), -(-cols // 128)]
        assert others[name].dtype == fp8_oracle.E4M3 and others[name].shape == source[name].shape
    sharded = len(shards(dst)) > 1
    assert sharded == bool(options)
    assert_config(src, dst, deepseek_config(**({"scale_fmt": "ue8m0"} if options else {})),
                  unquantized(source, scales, others))
    side = {p.name for p in src.iterdir()} - {p.name for p in shards(src)} - {INDEX}
    for name in side - {"config.json"}:
        assert (dst / name).read_bytes() == (src / name).read_bytes(), name
    made = {p.name for p in shards(dst)} | {REPORT, BLOCKS, harness.MANIFEST, harness.KEPT} | ({INDEX} if sharded else set())
    assert {p.name for p in dst.iterdir()} == side | made


@pytest.mark.parametrize("kind", KINDS)
def test_which_tensors(kind, checkpoint, quantize):
    """Only projections are quantized, which the loaders of these families run in FP8."""
    source = load(checkpoint(kind))
    scales, others = split(load(quantize(checkpoint(kind), *STACKS.get(kind, ()))))
    projection = re.compile(r"\.(self_attn|mlp)\.([\w.]+\.)?\w+_proj(_with_mqa)?(\.weight)?$")
    assert scales.keys() == {name for name in source if projection.search(name)}
    for name, value in others.items():
        if name.endswith("e_score_correction_bias"):
            assert value.dtype == np.float32


def test_max_shard_size(checkpoint, quantize):
    """No file exceeds the limit, and no two consecutive files would fit in one."""
    sizes = []
    for path in shards(quantize(checkpoint("deepseek-v3"), "--max-shard-size", "1MB")):
        sizes.append(path.stat().st_size - harness.read_header(path)[0])
    assert max(sizes) <= 1_000_000
    assert len(sizes) > 3 and min(a + b for a, b in zip(sizes, sizes[1:])) > 1_000_000


def test_include_and_exclude(checkpoint, quantize):
    src = checkpoint("llama")
    dst = quantize(src, "--exclude", "*layers.0.mlp.down_proj*", "--include", "lm_head*")
    source = load(src)
    scales, others = split(load(dst))
    assert "lm_head.weight" in scales and "model.layers.1.mlp.down_proj.weight" in scales
    assert "model.layers.0.mlp.down_proj.weight" not in scales
    assert_config(src, dst, deepseek_config(), unquantized(source, scales, others))
    assert "model.layers.0.mlp.down_proj" in unquantized(source, scales, others)


def test_compressed_tensors(checkpoint, quantize):
    src = checkpoint("deepseek-v3")
    source, dst = load(src), quantize(src, "--dialect", "compressed-tensors")
    assert assert_codes(source, dst, suffix="_scale") == set(split(load(quantize(src)))[0])
    scales, others = split(load(dst), "_scale")
    common = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**common, "strategy": "block", "block_structure": [128, 128], "dynamic": False},
        "input_activations": {**common, "strategy": "group", "group_size": 128, "dynamic": True},
        "output_activations": None,
    }
    assert_config(src, dst, {"quant_method": "compressed-tensors", "format": "float-quantized",
                             "quantization_status": "compressed", "config_groups": {"group_0": group},
                             "kv_cache_scheme": None}, unquantized(source, scales, others))


def test_single_file(quantize, tmp_path):
    source = {"model.layers.0.mlp.down_proj.weight": np.ones((130, 140), np.float32),
              "model.norm.weight": np.ones(5, np.float32)}
    src = save(tmp_path / "src", source)
    dst = quantize(src / "model.safetensors")
    assert assert_codes(source, dst) == {"model.layers.0.mlp.down_proj.weight"}
    assert_layout(dst)
    assert {p.name for p in dst.iterdir()} == {"model.safetensors", REPORT, BLOCKS, harness.MANIFEST, harness.KEPT}


@pytest.mark.parametrize("text", [
    '{"model_type":"llama"}',
    '{\n\t"model_type": "llama",\n\t"x": 10000.0\n}',
    '{ "model_type" : "llama" , "e": 1e-06 }\n\n',
    '{"model_type": "llama", "unicode": "\\u00e9 \u00e9", "big": 123456789012345678901234567890}',
    "{}",
    '{\r\n  "nested": {"a": [1, {"quantization_config": null}]},\r\n  "model_type": "llama"\r\n}\r\n',
])
def test_config_keeps_every_byte(text, quantize, tmp_path):
    src = save(tmp_path / "src", {"model.layers.0.mlp.down_proj.weight": np.ones((128, 128), np.float32)})
    (src / "config.json").write_bytes(text.encode())
    assert_config(src, quantize(src), deepseek_config(), ["lm_head"])


# ---- the report ----


@pytest.mark.parametrize("options", [(), ("--scale-fmt", "ue8m0"), ("--scales", "mse")], ids=["f32", "ue8m0", "mse"])
@pytest.mark.parametrize("kind", ["deepseek-v3", "fused-experts"])
def test_report_of_a_model(kind, options, checkpoint, quantize):
    assert_report(load(checkpoint(kind)), quantize(checkpoint(kind), *options, *STACKS.get(kind, ())))


@pytest.mark.parametrize("dtype", SOURCES)
def test_report_of_corner_cases(dtype, quantize, tmp_path):
    source = corner_cases(SOURCES[dtype])
    assert_report(source, quantize(save(tmp_path / "src", source)))


@pytest.mark.parametrize("name, content, words", [
    ("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 9085657\n", "a Git LFS pointer, not the file itself; run 'git lfs pull'"),
    ("chat_template.jinja", b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 985\n", "a Git LFS pointer"),
    ("tokenizer.model", b"", "the file is empty"), ("generation_config.json", b"", "the file is empty")])
def test_side_files_that_are_not_themselves_are_refused(tessera, checkpoint, quantize, tmp_path, name, content, words):
    """quantize and convert reject a pointer or an empty file before any work. --ignore-file omits it. An empty __init__.py
    is accepted."""
    source = shutil.copytree(checkpoint("llama"), tmp_path / "model")
    fp8 = shutil.copytree(quantize(source), tmp_path / "fp8")
    for folder, command in ((source, ["quantize"]), (fp8, ["convert", "--to", "bf16"]), (fp8, ["convert", "--to", "archive"])):
        (folder / name).write_bytes(content)
        (folder / "__init__.py").write_bytes(b"")
        for more in ([], ["--dry-run"]):
            code, out, err = harness.run(tessera, [*command, folder, "-o", tmp_path / "out", *more])
            assert code == 3 and out == "" and err.startswith(f"tessera: {folder / name}: {words}") and f"--ignore-file '{name}'" in err, err
            assert not (tmp_path / "out").exists()
    code, _, err = harness.run(tessera, ["quantize", source, "-o", tmp_path / "out", "--ignore-file", name])
    assert code == 0 and not (tmp_path / "out" / name).exists() and (tmp_path / "out/__init__.py").read_bytes() == b"", err
