"""Tests `tessera inspect` of checkpoints, attention and single tensors against figures counted in Python."""

import json
import re
import shutil

from checkpoints import INDEX, KINDS, STACKS, load, save, shards
import harness
import ml_dtypes
import numpy as np
import pytest

# ---- a checkpoint, counted again ----


def read_all(directory):
    """Returns {name: (dtype, shape, bytes)} of all files."""
    return {name: t for path in shards(directory) for name, t in harness.read_safetensors(path)[1].items()}


def part_of(name, layers):
    layer = re.search(r"layers\.(\d+)\.", name)
    if layer and int(layer[1]) >= layers:
        return "MTP"
    for part, pattern in (("norms", r"norm\.weight$"), ("embedding", "embed_tokens"), ("lm_head", "lm_head"),
                          ("router", r"mlp\.gate\."), ("shared experts", "shared_experts"),
                          ("routed experts", r"\.experts\."), ("attention", "self_attn"), ("dense mlp", r"\.mlp\.")):
        if re.search(pattern, name):
            return part
    raise AssertionError(name)


@pytest.mark.parametrize("options", [None, (), ("--scale-fmt", "ue8m0"), ("--dialect", "compressed-tensors")], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_facts(kind, options, checkpoint, quantize, inspect):
    path = checkpoint(kind) if options is None else quantize(checkpoint(kind), *options, *STACKS.get(kind, ()))
    code, got = inspect(path)
    # Some of DeepSeek's experts have values at the end of BF16's range.
    assert code == 0 and [f for f in got["findings"] if f["severity"] == "error" or f["rule"] != "scale outliers"] == []
    assert bool(got["findings"]) == (kind == "deepseek-v3" and options is not None)
    tensors = read_all(path)
    assert got["files"] == len(shards(path)) and got["file_bytes"] == sum(p.stat().st_size for p in shards(path))
    assert got["tensors"] == len(tensors) and got["tensor_bytes"] == sum(len(t[2]) for t in tensors.values())
    for dtype in {t[0] for t in tensors.values()}:
        mine = [t for t in tensors.values() if t[0] == dtype]
        assert got["dtypes"].pop(dtype) == {"tensors": len(mine), "bytes": sum(len(t[2]) for t in mine),
                                            "elements": sum(int(np.prod(t[1])) for t in mine)}
    assert got["dtypes"] == {}
    config = json.loads((path / "config.json").read_text())
    parts = {}
    for name, (dtype, shape, data) in tensors.items():
        if re.search("_scale(_inv)?$", name):
            continue
        row = parts.setdefault(part_of(name, config["num_hidden_layers"]),
                               {"tensors": 0, "parameters": 0, "bytes": 0, "quantized": 0})
        row["tensors"] += 1
        row["parameters"] += int(np.prod(shape))
        row["bytes"] += len(data)
        row["quantized"] += int(np.prod(shape)) if dtype == "F8_E4M3" else 0
    assert got["parts"] == parts
    check_quantization(got["quantization"], tensors, options)


def test_the_median_of_equal_scales(quantize, inspect, tmp_path):
    src = save(tmp_path / "src", {"model.layers.0.mlp.down_proj.weight": np.full((128, 256), 0.1, np.float32)})
    stats = inspect(quantize(src))[1]["quantization"]["scale_stats"]
    assert stats["count"] == 2 and stats["min"] == stats["median"] == stats["max"]


def check_quantization(got, tensors, options):
    scales = [np.frombuffer(t[2], np.float32) for name, t in tensors.items() if re.search("_scale(_inv)?$", name)]
    assert got["weights"] == len(scales)
    assert got["code_bytes"] == sum(len(t[2]) for t in tensors.values() if t[0] == "F8_E4M3")
    if options is None:
        assert got["method"] is None
        return
    assert got["method"] == ("compressed-tensors" if "compressed-tensors" in options else "fp8")
    assert got["block"] == [128, 128] and got["scale_fmt"] == ("ue8m0" if "ue8m0" in options else None)
    values = np.sort(np.concatenate(scales))
    stats = got["scale_stats"]
    assert stats["count"] == values.size and stats["min"] == values[0] and stats["max"] == values[-1]
    assert stats["median"] == pytest.approx(values[(values.size - 1) // 2], rel=2**-11)
    assert stats["powers_of_two"] == np.count_nonzero(np.frexp(values)[0] == 0.5)
    assert stats["subnormal"] == np.count_nonzero(values < np.float32(2.0**-126))
    assert stats["zero"] == stats["negative"] == stats["nonfinite"] == 0


def test_index(checkpoint, inspect):
    _, got = inspect(checkpoint("deepseek-v3"))
    total = sum(len(t[2]) for t in read_all(checkpoint("deepseek-v3")).values())
    assert got["index"] == {"path": str(checkpoint("deepseek-v3") / INDEX), "metadata": True, "total_size": total, "total_size_right": True}


def test_single_file(checkpoint, inspect):
    code, got = inspect(shards(checkpoint("llama"))[0])
    assert code == 0 and got["index"] is None and got["tensors"] == len(read_all(checkpoint("llama")))


# ---- attention ----

DEEPSEEK_V3 = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
               "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
               "qk_rope_head_dim": 64, "v_head_dim": 128}
ONE = {"model.layers.0.mlp.down_proj.weight": np.ones((5, 5), np.float32)}


def test_kv_cache_of_deepseek_v3(text, inspect, tmp_path):
    """576 values per layer, compared with 2 x 16384."""
    path = save(tmp_path / "v3", ONE, DEEPSEEK_V3)
    lines = text(path).splitlines()
    for line in (
            "MLA: 128 heads, nope 128, rope 64, v 128, kv_lora_rank 512, q_lora_rank 1536",
            "  kv_b_proj: 128 heads of 128 + 128 = 256 rows; 256 / 128 = 2 scale rows a head: blocks fall on head "
            "boundaries",
            "KV cache, 61 layers (heads of 128):",
            "  MHA        32768 values a layer     3997696 bytes a token in BF16 (131 GB for 32768 tokens)   56.9 x",
            "  GQA-16      4096 values a layer      499712 bytes a token in BF16 (16.4 GB for 32768 tokens)    7.1 x",
            "  GQA-8       2048 values a layer      249856 bytes a token in BF16 (8.19 GB for 32768 tokens)    3.6 x",
            "  MQA          256 values a layer       31232 bytes a token in BF16 (1.02 GB for 32768 tokens)    0.4 x",
            "  MLA          576 values a layer       70272 bytes a token in BF16 (2.30 GB for 32768 tokens)    1.0 x"):
        assert line in lines, line
    _, got = inspect(path)
    assert got["attention"]["kv_values_a_layer"] == {
        "mha": 2 * 16384, **{f"gqa{n}": 256 * n for n in (64, 32, 16, 8, 4, 2, 1)}, "mla": 576}


@pytest.mark.parametrize("heads, groups", [(4, (2, 1)), (6, (3, 2, 1)), (1, ())])
def test_no_row_of_the_kv_cache_costs_more_than_mha(heads, groups, inspect, tmp_path):
    path = save(tmp_path / "m", ONE, {**DEEPSEEK_V3, "num_attention_heads": heads, "num_key_value_heads": heads})
    assert inspect(path)[1]["attention"]["kv_values_a_layer"] == {
        "mha": 256 * heads, **{f"gqa{n}": 256 * n for n in groups}, "mla": 576}


def test_heads_that_end_inside_blocks(text, inspect, tmp_path):
    """192 + 256 = 448 rows are 3.5 rows of scales per head."""
    path = save(tmp_path / "m", ONE, {**DEEPSEEK_V3, "qk_nope_head_dim": 192, "v_head_dim": 256})
    assert "192 + 256 = 448 rows; 448 / 128 = 3.5 scale rows a head: blocks do not fall on head boundaries" in text(path)
    _, got = inspect(path)
    assert got["attention"]["scale_rows_a_head"] == 3.5 and not got["attention"]["blocks_on_head_boundaries"]


def test_kv_cache_of_gqa(text, inspect, tmp_path):
    path = save(tmp_path / "gqa", ONE, {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
                                        "num_attention_heads": 32, "num_key_value_heads": 8})
    assert "GQA         2048 values a layer      131072 bytes a token in BF16" in text(path)
    assert inspect(path)[1]["attention"]["kv_values_a_layer"] == {"mha": 8192, "gqa": 2048}


# ---- one tensor, counted again ----


def check_values(got, x):
    x = np.asarray(x, np.float64)
    finite = x[np.isfinite(x)]
    flat = x.reshape(-1)
    assert got["elements"] == x.size and got["nan"] == np.isnan(x).sum() and got["inf"] == np.isinf(x).sum()
    assert got["zeros"] == np.count_nonzero(finite == 0) and got["negative"] == np.count_nonzero(finite < 0)
    assert (got["min"], got["max"]) == (finite.min(), finite.max())
    assert got["mean"] == pytest.approx(finite.mean(), rel=1e-9, abs=1e-12)
    assert got["rms"] == pytest.approx(np.sqrt(np.square(finite).mean()), rel=1e-9)
    assert got["first"] == [v if np.isfinite(v) else None for v in flat[:8]]
    exponents = np.frexp(finite[finite != 0])[1] - 1
    positive = finite[finite != 0] > 0
    assert [(b["exponent"], b["negative"], b["positive"]) for b in got["binades"]] == [
        (e, np.count_nonzero((exponents == e) & ~positive), np.count_nonzero((exponents == e) & positive))
        for e in np.unique(exponents)]
    check_map(got["block_amax"], np.where(np.isfinite(x), np.abs(x), 0))


def check_map(got, x):
    x = x.reshape((-1, *x.shape[-2:])) if x.ndim > 1 else x.reshape(1, 1, -1)
    down, wide = -(-x.shape[1] // 128), -(-x.shape[2] // 128)
    blocks = np.array([[m[128 * r:128 * r + 128, 128 * c:128 * c + 128].max() for c in range(wide)]
                       for m in x for r in range(down)])
    assert (got["blocks_down"], got["blocks_wide"]) == blocks.shape
    expected = np.zeros((min(32, blocks.shape[0]), min(64, blocks.shape[1])))
    for r in range(blocks.shape[0]):
        for c in range(blocks.shape[1]):
            at = r * expected.shape[0] // blocks.shape[0], c * expected.shape[1] // blocks.shape[1]
            expected[at] = max(expected[at], blocks[r, c])
    assert np.array_equal(np.array(got["cells"]), expected)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("shape", [(300, 200), (5000, 130), (3, 9000), (7,), (3, 140, 150)], ids=str)
def test_values(shape, dtype, inspect, tmp_path):
    x = (np.random.default_rng(5).standard_normal(shape) / 8).astype(dtype)
    x.reshape(-1)[:7:2] = np.array([0, np.nan, np.inf, -0.0], dtype)
    path = save(tmp_path / "m", {"a.weight": x})
    code, got = inspect(f"{path}:a.weight")
    assert code == 0 and got["shape"] == list(shape) and got["scale"] is None
    check_values(got, x.astype(np.float64))


@pytest.mark.parametrize("kind, name", [("deepseek-v3", "model.layers.1.mlp.experts.0.gate_proj.weight"),
                                        ("deepseek-v3", "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"),
                                        ("fused-experts", "model.layers.1.mlp.experts.gate_up_proj")])
def test_codes(kind, name, checkpoint, quantize, inspect, text):
    path = quantize(checkpoint(kind), *STACKS.get(kind, ()))
    tensors = load(path)
    codes, scale = tensors[name], tensors[name + "_scale_inv"]
    _, got = inspect(f"{path}:{name}")
    assert got["scale"]["name"] == name + "_scale_inv" and got["dtype"] == "F8_E4M3"
    stored = codes.view(np.uint8)
    assert got["codes"] == np.bincount(stored.reshape(-1), minlength=256).tolist()
    assert got["subnormal"] == np.count_nonzero((stored & 0x78 == 0) & (stored & 7 != 0))
    wide = np.repeat(np.repeat(scale.astype(np.float64), 128, -2), 128, -1)
    check_values(got, codes.astype(np.float64) * wide[..., :codes.shape[-2], :codes.shape[-1]])
    shown = text(f"{path}:{name}")
    assert f"+-448 (largest) {np.count_nonzero(stored & 0x7F == 0x7E)}," in shown and "largest |x| of 128x128" in shown


def test_map(text, tmp_path):
    """The amax of each block is half that of the previous one, and the last block has zeros. The map has nine characters."""
    x = np.zeros((100, 128 * 10), np.float32)
    for i in range(9):
        x[50, 128 * i + 7] = (-0.5) ** i
    assert "\n  |@%#*+=-:. |\n" in text(f"{save(tmp_path / 'm', {'a.weight': x})}:a.weight")


def test_map_of_blocks_that_hardly_differ(text, tmp_path):
    """The map spans the smallest to the largest block, so random weights do not all get the same character."""
    x = np.random.default_rng(3).standard_normal((128 * 16, 128 * 16)).astype(np.float32)
    shown = text(f"{save(tmp_path / 'm', {'a.weight': x})}:a.weight")
    cells = "".join(line[3:-1] for line in shown.splitlines() if line.startswith("  |"))
    amax = np.abs(x).reshape(16, 128, 16, 128).max((1, 3)).reshape(-1)
    steps = np.floor(np.log2(amax / amax.min()) / np.log2(amax.max() / amax.min()) * 9).clip(0, 8).astype(int)
    assert len(set(cells)) > 5 and cells == "".join(".:-=+*#%@"[i] for i in steps)


def test_scale_shows_its_grid_and_its_weight(checkpoint, quantize, inspect, text):
    path = quantize(checkpoint("deepseek-v3"))
    name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
    scale = load(path)[name + "_scale_inv"].astype(np.float64)
    code, got = inspect(f"{path}:{name}_scale_inv")
    assert code == 0 and got["name"] == name + "_scale_inv" and got["read_as"] == got["dtype"] == "F32"
    assert (got["belongs_to"]["role"], got["belongs_to"]["name"], got["belongs_to"]["kind"]) == ("scale", name, "fp8-block")
    assert got["block_amax"]["block_rows"] == got["block_amax"]["block_cols"] == 1
    assert np.array_equal(np.array(got["block_amax"]["cells"]), scale)
    shown = text(f"{path}:{name}_scale_inv")
    assert f"  the scale of {name} F8_E4M3 " in shown and "a weight's value is its code times this\n" in shown
    assert sum(line.startswith("  |") for line in shown.splitlines()) == scale.shape[0]
    assert inspect(f"{path}:{name}")[1]["belongs_to"] is None


@pytest.mark.parametrize("scheme, suffix, role, stored, read_as, effect", [
    ("mxfp4", "scale", "scale", "U8", "F8_E8M0", "its code times this\n"),
    ("nvfp4-weight-only", "scale", "scale", "F8_E4M3", "F8_E4M3", "times this and the global scale\n"),
    ("nvfp4-weight-only", "global_scale", "global_scale", "F32", "F32", "each scale is divided by it\n"),
    ("int4-weight-only", "shape", "weight_shape", "I64", "I64", "rows and columns of the packed codes\n")])
def test_what_stands_with_codes(scheme, suffix, role, stored, read_as, effect, checkpoint, quantize, inspect, text):
    path = quantize(checkpoint("llama"), "--scheme", scheme)
    name = "model.layers.0.self_attn.k_proj.weight"
    _, got = inspect(f"{path}:{name}_{suffix}")
    assert (got["dtype"], got["read_as"], got["belongs_to"]["role"]) == (stored, read_as, role)
    assert got["belongs_to"]["name"] == name + "_packed" and effect in text(f"{path}:{name}_{suffix}")
    values = load(path)[f"{name}_{suffix}"].astype(np.float64)
    if read_as == "F8_E8M0":
        values = 2.0 ** (values - 127)
    assert (got["min"], got["max"]) == (values.min(), values.max())


def test_place(checkpoint, inspect):
    path = checkpoint("deepseek-v3")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    _, got = inspect(f"{path}:{name}")
    data = read_all(path)[name][2]
    with open(path / got["file"], "rb") as file:
        file.seek(got["offset"])
        assert file.read(got["bytes"]) == data


def test_no_such_tensor(tessera, checkpoint):
    code, _, err = harness.run(tessera, ["inspect", f"{checkpoint('llama')}:a.weight"])
    assert code == 3 and "a.weight" in err and err.count("\n") == 1


def test_folders_that_are_no_checkpoint_are_called_by_their_kind(tessera, checkpoint, tmp_path):
    """Paths that a user may mistake for a checkpoint are rejected with a remedy."""
    adapter, hub, begun, outside = (tmp_path / name for name in ("lora", "models--org--name", "begun", "outside"))
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    shutil.copy(checkpoint("llama") / "model.safetensors", adapter / "adapter_model.safetensors")
    (hub / "snapshots/0a1b").mkdir(parents=True)
    (hub / "refs").mkdir()
    (begun / ".tessera").mkdir(parents=True)
    shutil.copytree(checkpoint("llama"), outside)
    (outside / "tokenizer.json").unlink(missing_ok=True)
    (outside / "tokenizer.json").symlink_to(checkpoint("llama") / "config.json")
    for path, words in ((adapter, "a LoRA adapter (adapter_config.json); merge it into its base model first: tessera merge BASE "),
                        (hub, f"a directory of the Hugging Face Hub's cache; name a revision, such as {hub}/snapshots/0a1b"),
                        (begun, "an unfinished output of Tessera; rerun the original command"),
                        ("gs://bucket/model", "remote addresses of this kind are not supported"),
                        (outside / "tokenizer.json", "cp -rL")):
        folder = path.parent if words == "cp -rL" else path
        for command in (["inspect", folder], ["quantize", folder, "-o", tmp_path / "out"], ["verify", folder, "--against", checkpoint("llama")]):
            code, out, err = harness.run(tessera, command)
            assert code == 3 and out == "" and err.startswith(f"tessera: {path}: ") and words in err and err.count("\n") == 1, err
            assert not (tmp_path / "out").exists()


# ---- --tensors ----

def test_a_list_of_tensors(checkpoint, quantize, tessera, tmp_path):
    """The list has each tensor with its file and offset, the format of codes and scales, and the weight of a scale. A
    damaged scale is listed too."""
    fp8 = quantize(checkpoint("qwen3-moe"))
    stored = read_all(fp8)
    code, out, err = harness.run(tessera, ["inspect", fp8, "--tensors", "*q_proj*", "--tensors", "*norm*", "--json", tmp_path / "j"])
    got = json.loads((tmp_path / "j").read_text())
    assert code == 0 and err == "" and got["of"] == len(stored)
    rows = {row["name"]: row for row in got["tensors"]}
    assert set(rows) == {name for name in stored if "q_proj" in name or "norm" in name}
    assert got["bytes"] == sum(row["bytes"] for row in got["tensors"])
    for name, row in rows.items():
        dtype, shape, data = stored[name]
        _, entries, _ = harness.read_header(fp8 / row["file"])
        assert (row["dtype"], row["shape"], row["bytes"]) == (dtype, list(shape), len(data)) and row["bytes"] == harness.entry_size(entries[name])
        weight = name.removesuffix("_scale_inv")
        is_quantized = f"{weight}_scale_inv" in stored
        assert row["kind"] == ("fp8-block" if is_quantized else None) and row["weight"] == (weight if is_quantized else None)
        assert row["role"] == (None if not is_quantized else "codes" if name == weight else "scale")
        assert re.search(rf"^{re.escape(name)} +{dtype} +\[{', '.join(map(str, shape))}\] ", out, re.M), name
    assert out.splitlines()[-1].startswith(f"{len(rows)} of {len(stored)} tensors, ")


@pytest.mark.parametrize("words, message", [
    (["--tensors", "*q_porj*"], "matches no tensor"), (["--tensors", "*", "--can-load", "vllm"], "cannot be combined with --can-load")])
def test_lists_that_are_refused(words, message, checkpoint, tessera):
    code, out, err = harness.run(tessera, ["inspect", checkpoint("llama"), *words])
    assert code == 2 and out == "" and message in err
