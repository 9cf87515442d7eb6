"""`tessera inspect`: every figure counted again in Python, and every rule of every loader broken once, by a checkpoint
made for it that must be named with the tensor and the numbers."""

import json
import re

import harness
import ml_dtypes
import numpy as np
import pytest
from test_quantize import INDEX, KINDS, load, save, shards

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E8M0": 1}
ENGINES = ("vllm", "sglang", "trtllm")


@pytest.fixture
def inspect(tessera, tmp_path):
    """inspect(path, *options) -> (exit code, the JSON); nothing on stderr."""

    def run(path, *options):
        result = tmp_path / "inspect.json"
        code, out, err = harness.run(tessera, ["inspect", path, "--json", result, "--quiet", *options])
        assert code in (0, 1) and out == "" and err == "", f"exit {code}\n{out}{err}"
        return code, json.loads(result.read_text())

    return run


@pytest.fixture
def text(tessera):
    """text(path, *options) -> stdout, whatever was found."""

    def run(path, *options):
        code, out, err = harness.run(tessera, ["inspect", path, *options])
        assert code in (0, 1) and err == "", f"exit {code}\n{err}"
        return out

    return run


# ---- a checkpoint, counted again ----


def read_all(directory):
    """{name: (dtype, shape, bytes)} of all files."""
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
    path = checkpoint(kind) if options is None else quantize(checkpoint(kind), *options)
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
    """576 values a layer against 2 x 16384."""
    path = save(tmp_path / "v3", ONE, DEEPSEEK_V3)
    lines = text(path).splitlines()
    for line in (
            "MLA: 128 heads, nope 128, rope 64, v 128, kv_lora_rank 512, q_lora_rank 1536",
            "  kv_b_proj: 128 heads of 128 + 128 = 256 rows; 256 / 128 = 2 scale rows a head: blocks fall on head "
            "boundaries",
            "KV cache, 61 layers (heads of 128):",
            "  MHA        32768 values a layer     3997696 bytes a token in BF16 (131 GB for 32768 tokens)   56.9 x",
            "  GQA-8       2048 values a layer      249856 bytes a token in BF16 (8.19 GB for 32768 tokens)    3.6 x",
            "  MLA          576 values a layer       70272 bytes a token in BF16 (2.30 GB for 32768 tokens)    1.0 x"):
        assert line in lines, line
    _, got = inspect(path)
    assert got["attention"]["kv_values_a_layer"] == {"mha": 2 * 16384, "gqa8": 2048, "mla": 576}


def test_heads_that_end_inside_blocks(text, inspect, tmp_path):
    """192 + 256 = 448 rows: 3.5 scale rows a head."""
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
    path = quantize(checkpoint(kind))
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
    """Each block half of the one before it; the last of zeros."""
    x = np.zeros((100, 128 * 10), np.float32)
    for i in range(9):
        x[50, 128 * i + 7] = (-0.5) ** i
    assert "\n  |@%#*+=-:. |\n" in text(f"{save(tmp_path / 'm', {'a.weight': x})}:a.weight")


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


# ---- models to break ----


class Model:
    """A checkpoint in memory: {name: (dtype, shape, bytes)}, its configuration, and what a break does to it."""

    def __init__(self, config, quantized=True):
        self.config = {"num_hidden_layers": 2, "vocab_size": 256, "tie_word_embeddings": False, **config}
        self.quantized = quantized
        self.tensors = {}
        self.metadata = True
        self.total = None
        if quantized:
            self.config["quantization_config"] = {
                "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128],
                "modules_to_not_convert": []}
        for name in ("model.embed_tokens", "lm_head"):
            self.plain(name, (256, 256))
        self.plain("model.norm", (256,))

    @property
    def quantization(self):
        return self.config["quantization_config"]

    def plain(self, module, shape, dtype="BF16"):
        """A module that is not quantized; takes the place of one that is."""
        self.tensors.pop(f"{module}.weight_scale_inv", None)
        self.tensors[f"{module}.weight"] = (dtype, shape, bytes(int(np.prod(shape)) * WIDTHS[dtype]))

    def linear(self, module, rows, cols):
        if not self.quantized:
            self.plain(module, (rows, cols))
            return
        self.tensors[f"{module}.weight"] = ("F8_E4M3", (rows, cols), b"\x38" * (rows * cols))
        self.scale(f"{module}.weight_scale_inv", np.ones((-(-rows // 128), -(-cols // 128)), np.float32))

    def scale(self, name, values):
        self.tensors[name] = ("F32", values.shape, values.astype(np.float32).tobytes())

    def rename(self, old, new):
        self.tensors = {name.replace(old, new): t for name, t in self.tensors.items()}

    def drop(self, *parts):
        self.tensors = {name: t for name, t in self.tensors.items() if not any(part in name for part in parts)}

    def write(self, path):
        path.mkdir()
        names = sorted(self.tensors)
        files = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for file, mine in files.items():
            harness.write_safetensors(path / file, {name: self.tensors[name] for name in mine}, {"format": "pt"})
        index = {"weight_map": {name: file for file, mine in files.items() for name in mine}}
        if self.metadata:
            size = sum(len(t[2]) for t in self.tensors.values())
            index = {"metadata": {"total_size": size if self.total is None else self.total}, **index}
        (path / INDEX).write_text(json.dumps(index))
        (path / "config.json").write_text(json.dumps(self.config))
        return path


def llama(quantized=True, intermediate=512, experts=0):
    """Llama's tensors, under the name of a family that every loader reads (SGLang's Llama loads no weight_scale_inv)."""
    m = Model({"model_type": "qwen3", "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 2,
               "head_dim": 128, **({"num_experts": experts} if experts else {})}, quantized)
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        for leaf in "qkvo":
            m.linear(f"{prefix}self_attn.{leaf}_proj", 256, 256)
        for mlp in [f"mlp.experts.{e}" for e in range(experts)] or ["mlp"]:
            m.linear(f"{prefix}{mlp}.gate_proj", intermediate, 256)
            m.linear(f"{prefix}{mlp}.up_proj", intermediate, 256)
            m.linear(f"{prefix}{mlp}.down_proj", 256, intermediate)
        m.plain(f"{prefix}input_layernorm", (256,))
    return m


def deepseek(nope=128, value=128, mtp=False, latent=448):
    m = Model({"model_type": "deepseek_v3", "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4,
               "q_lora_rank": 128, "kv_lora_rank": latent, "qk_nope_head_dim": nope, "qk_rope_head_dim": 64,
               "v_head_dim": value, "n_routed_experts": 4, "num_nextn_predict_layers": int(mtp)})
    for layer in range(2 + mtp):
        prefix = f"model.layers.{layer}."
        m.linear(f"{prefix}self_attn.q_a_proj", 128, 256)
        m.linear(f"{prefix}self_attn.q_b_proj", 4 * (nope + 64), 128)
        m.linear(f"{prefix}self_attn.kv_a_proj_with_mqa", latent + 64, 256)
        m.linear(f"{prefix}self_attn.kv_b_proj", 4 * (nope + value), latent)
        m.linear(f"{prefix}self_attn.o_proj", 256, 4 * value)
        m.plain(f"{prefix}mlp.gate", (4, 256))
        m.tensors[f"{prefix}mlp.gate.e_score_correction_bias"] = ("F32", (4,), bytes(16))
        for e in range(4):
            m.linear(f"{prefix}mlp.experts.{e}.gate_proj", 256, 256)
            m.linear(f"{prefix}mlp.experts.{e}.up_proj", 256, 256)
            m.linear(f"{prefix}mlp.experts.{e}.down_proj", 256, 256)
    return m


def load_table(inspect, model, tmp_path, tp="1", loaders="all"):
    code, got = inspect(model.write(tmp_path / "m"), "--can-load", loaders, "--tp", tp)
    assert code == int(any(f["severity"] == "error" for f in got["findings"]) or
                       not all(ok for row in got["can_load"].values() for ok in row.values()))
    for f in got["load_findings"]:
        if f["severity"] == "error":
            row = got["can_load"][f["loader"]]
            assert not any(row.values()) if f["tp"] is None else not row[str(f["tp"])], f
    return got


def test_sound_models_load(inspect, tmp_path):
    got = load_table(inspect, llama(), tmp_path, "1,2,4")
    for loader in ENGINES:
        assert got["can_load"][loader] == {"1": True, "2": True, "4": False}
    assert got["can_load"]["transformers"] == {"1": True, "2": True, "4": True}
    assert all(f["rule"] in ("heads", "blocks") for f in got["load_findings"] if f["loader"] in ENGINES)


def test_a_sound_deepseek_loads(inspect, tmp_path):
    m = deepseek()
    m.drop("e_score_correction_bias")  # which DeepSeek's own model has at its own width only
    got = load_table(inspect, m, tmp_path, "1,2,4")
    for loader in (*ENGINES, "deepseek"):
        assert got["can_load"][loader]["1"] and not got["can_load"][loader]["4"], got["load_findings"]
    assert got["can_load"]["deepseek"]["2"]


# ---- every rule, broken once ----


def edit(path, value):
    """Sets quantization_config's member at a dotted path; None takes it out."""

    def act(m):
        *outer, last = path.split(".")
        at = m.quantization
        for key in outer:
            at = at[key]
        if value is None:
            del at[last]
        else:
            at[last] = value

    return act


def unquantize(*leaves, listed=()):
    def act(m):
        for name in list(m.tensors):
            if name.endswith(tuple(f"{leaf}.weight" for leaf in leaves)):
                m.plain(name.removesuffix(".weight"), m.tensors[name][1])
        m.quantization["modules_to_not_convert"] = list(listed)

    return act


def in_full(*leaves):
    return [f"model.layers.{layer}.self_attn.{leaf}" for layer in range(2) for leaf in leaves]


def compressed(m):
    arguments = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block", "block_structure": [128, 128],
                 "dynamic": False}
    inputs = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group", "group_size": 128, "dynamic": True}
    m.config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments, "input_activations": inputs}}}


def both(*acts):
    def act(m):
        for each in acts:
            each(m)

    return act


def as_compressed(*more):
    return both(compressed, lambda m: m.rename("_scale_inv", "_scale"), *more)


def all_scales(change):
    def act(m):
        for name in [name for name in m.tensors if name.endswith("_scale_inv")]:
            change(m, name)

    return act


def exponents(m, name):
    _, shape, _ = m.tensors[name]
    m.tensors[name] = ("F8_E8M0", shape, bytes([120]) * int(np.prod(shape)))


def thirds(m, name):
    m.scale(name, np.full(m.tensors[name][1], 1 / 3))


def stack(m):
    shape = (4, 256, 256)
    for layer in range(2):
        for leaf in ("gate_up_proj", "down_proj"):
            m.tensors[f"model.layers.{layer}.mlp.experts.{leaf}"] = ("BF16", shape, bytes(2 * 4 * 256 * 256))


UP, O = "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.o_proj"
HF = {"vllm", "sglang", "transformers", "trtllm"}

# name -> model, what is broken, TP, loaders that say no for this rule (and no others do), rule, words of the finding
RULES = {
    # names, dialects and configuration (a checkpoint that loads nowhere without editing JSON)
    "scales renamed": (llama, lambda m: m.rename("_scale_inv", "_scale"), 1, HF | {"deepseek"}, "scale name",
                       ["weight_scale_inv"]),
    "DeepSeek's own scale name": (llama, lambda m: m.rename(".weight_scale_inv", ".scale"), 1, HF | {"deepseek"},
                                  "scale name", ["weight_scale_inv"]),
    "compressed-tensors": (llama, as_compressed(), 1, {"trtllm"}, "configuration", ["compressed-tensors"]),
    "compressed-tensors with _inv": (llama, compressed, 1, {"vllm", "sglang", "transformers"}, "scale name",
                                     ["weight_scale'"]),
    "compressed-tensors, a new key": (
        llama, as_compressed(edit("config_groups.group_0.weights.zp_kind", 1)), 1, HF - {"trtllm"}, "configuration",
        ["zp_kind"]),
    "compressed-tensors, static inputs": (
        llama, as_compressed(edit("config_groups.group_0.input_activations.dynamic", False)), 1, HF - {"trtllm"},
        "configuration", ["dynamic"]),
    "compressed-tensors, no block strategy": (
        llama, as_compressed(edit("config_groups.group_0.weights.strategy", "channel")), 1, HF - {"trtllm"},
        "configuration", ["block"]),
    "compressed-tensors, packed format": (llama, as_compressed(edit("format", "pack-quantized")), 1, HF - {"trtllm"},
                                          "configuration", ["float-quantized"]),
    "no activation_scheme": (llama, edit("activation_scheme", None), 1, HF, "configuration", ["activation_scheme"]),
    "static activations": (llama, edit("activation_scheme", "static"), 1, HF, "configuration", ["static"]),
    # lists
    "not listed": (llama, unquantize("o_proj"), 1, HF, "ignore list", ["self_attn.o_proj", "without a scale"]),
    "listed by a part": (llama, unquantize("o_proj", listed=["o_proj"]), 1, {"vllm", "trtllm"}, "ignore list",
                         ["only", "as a part of the name"]),
    "joined layer listed": (
        llama, unquantize("q_proj", "k_proj", "v_proj", listed=in_full("qkv_proj")), 1, HF - {"vllm"}, "ignore list",
        ["q_proj"]),
    "members listed by a part": (
        llama, unquantize("q_proj", "k_proj", "v_proj", listed=["q_proj", "k_proj", "v_proj"]), 1,
        {"vllm", "trtllm"}, "ignore list", ["whole names"]),
    "listed, but quantized": (llama, edit("modules_to_not_convert", [O]), 1, HF, "ignore list", [O, "is quantized"]),
    "regular expression that misses": (
        llama, both(as_compressed(edit("ignore", ["lm_head", "re:.*o_proj_x$"])),
                    lambda m: (m.drop("o_proj.weight_scale"), m.plain(O, (256, 256)),
                               m.plain(O.replace(".0.", ".1."), (256, 256)))), 1, HF - {"trtllm"}, "ignore list",
        ["o_proj"]),
    "an expression beyond what is known": (
        llama, as_compressed(edit("ignore", ["lm_head", r"re:^(?!.*mlp)"])), 1, HF - {"trtllm"}, "ignore list",
        ["(?!.*mlp)", "cannot tell", "a kind of group", "character 2"]),
    "a long expression": (
        llama, as_compressed(edit("ignore", ["re:" + "x" * 1014 + r"\w", f"re:.*{O.split('.')[-1]}$"])), 1, HF - {"trtllm"},
        "ignore list", ["o_proj", "is quantized"]),
    "repeats of repeats": (
        llama, as_compressed(edit("ignore", ["lm_head", "re:" + "(" * 6 + "a" + "{200})" * 6])), 1, HF - {"trtllm"},
        "ignore list", ["cannot tell", "too large"]),
    "an entry that is no name": (llama, edit("modules_to_not_convert", ["lm_head", 7]), 1, HF, "ignore list",
                                 ["entry 2 is no text"]),
    "part of a joined layer": (llama, unquantize("k_proj", listed=in_full("k_proj")), 1, {"vllm", "sglang", "trtllm"},
                               "fused group", ["2 of the 3", "qkv_proj"]),
    # shapes
    "cut inside a block": (lambda: llama(intermediate=384), None, 2, {"vllm", "sglang", "trtllm", "deepseek"}, "blocks",
                           ["384", "192", "1.5 blocks"]),
    "joined inside a block": (lambda: llama(intermediate=320), None, 1, {"vllm", "sglang", "trtllm"}, "blocks",
                              ["320", "2.5 blocks", "gate_up_proj"]),
    "not divisible": (llama, None, 3, {"vllm", "sglang", "trtllm", "deepseek"}, "division", ["512", "3"]),
    "too few heads": (llama, None, 4, {"vllm", "sglang", "trtllm", "deepseek"}, "heads", ["2 heads", "4 ranks"]),
    "576 rows": (lambda: deepseek(latent=512), None, 1, {"transformers"}, "ragged blocks", ["576 / 128 = 4.5"]),
    "3.5 scale rows a head": (lambda: deepseek(192, 256), None, 1, {"trtllm"}, "head boundaries",
                              ["192 + 256 = 448", "448 / 128 = 3.5"]),
    "experts over ranks": (deepseek, None, 8, {"deepseek"}, "experts", ["4 experts", "8 ranks"]),
    "blocks of 64": (deepseek, lambda m: (edit("weight_block_size", [64, 64])(m), all_scales(
        lambda m, name: m.scale(name, np.ones([-(-n // 64) for n in m.tensors[name.removesuffix("_scale_inv")][1]])))(m)),
                     1, {"deepseek"}, "block size", ["64x64"]),
    # scales
    "ue8m0 in name only": (llama, both(edit("scale_fmt", "ue8m0"), all_scales(thirds)), 1, HF, "scale_fmt",
                           ["powers of two"]),
    "E8M0 on disk": (llama, all_scales(exponents), 1, {"transformers", "trtllm", "deepseek"}, "scale dtype", ["F8_E8M0"]),
    "E8M0 on disk, and said so": (llama, both(edit("scale_fmt", "ue8m0"), all_scales(exponents)), 1,
                                  {"trtllm", "deepseek"}, "scale dtype", ["F8_E8M0"]),
    # what is not there
    "no up_proj": (llama, lambda m: m.drop(UP), 1, HF | {"deepseek"}, "missing", ["up_proj"]),
    "no gate_proj": (llama, lambda m: m.drop("layers.0.mlp.gate_proj"), 1, HF | {"deepseek"}, "missing", ["gate_proj"]),
    "no layer": (llama, lambda m: m.drop("layers.1."), 1, HF | {"deepseek"}, "missing", ["layer 1"]),
    "no expert": (lambda: llama(experts=3), lambda m: m.drop("layers.1.mlp.experts.2."), 1, HF | {"deepseek"},
                  "missing", ["3 experts", "experts.2."]),
    "no lm_head": (llama, lambda m: m.drop("lm_head"), 1, HF | {"deepseek"}, "missing", ["lm_head"]),
    "index without metadata": (llama, lambda m: setattr(m, "metadata", False), 1, {"transformers"}, "index",
                               ["metadata", "KeyError"]),
    # single loaders
    "names that convert.py lacks": (llama, None, 1, {"deepseek"}, "names", ["k_proj"]),
    "partly quantized for DeepSeek": (deepseek, unquantize("o_proj", listed=in_full("o_proj")), 1, {"deepseek"},
                                      "partly quantized", ["o_proj"]),
    "MTP layer that is not 61": (lambda: deepseek(mtp=True), None, 1, {"deepseek"}, "MTP", ["layer 61"]),
    "experts stacked": (llama, lambda m: [m.tensors.update({
        f"{p}experts.down_proj": ("F8_E4M3", (2, 256, 256), bytes(2 * 65536)),
        f"{p}experts.down_proj_scale_inv": ("F32", (2, 2, 2), b"\0\0\x80\x3f" * 8)})
        for p in ("model.layers.0.mlp.", "model.layers.1.mlp.")], 1, HF - {"transformers"} | {"deepseek"},
        "stacked experts", ["2 deep"]),
}


@pytest.mark.parametrize("make, act, tp, loaders, rule, words", RULES.values(), ids=RULES)
def test_rules(make, act, tp, loaders, rule, words, inspect, tmp_path):
    m = make()
    if act:
        act(m)
    got = load_table(inspect, m, tmp_path, str(tp))
    mine = [f for f in got["load_findings"] if f["rule"] == rule and f["severity"] == "error" and
            all(word in f"{f['tensor']} {f['detail']}" for word in words)]
    assert {f["loader"] for f in mine} == loaders, got["load_findings"]
    assert all(f["checked"] for f in got["load_findings"]) and all(got["checked"].values())
    assert not any(ok for loader in loaders for ok in got["can_load"][loader].values())


LISTS = {
    "in full": (None, in_full("o_proj"), HF),
    "by the end": (None, ["self_attn.o_proj"], {"sglang", "transformers"}),
    "by a pattern": (None, ["*o_proj"], {"trtllm"}),
    "under vLLM's key": ("ignored_layers", in_full("o_proj"), HF),
    "by an expression": ("ignore", ["re:.*self_attn.o_proj$"], HF - {"trtllm"}),
    "by a Python expression": ("ignore", [r"re:model\.layers\.\d+\.(?:self_attn|mlp)\.o_.*?"], HF - {"trtllm"}),
    "by an expression that starts later": ("ignore", ["re:self_attn.o_proj"], set()),
    "compressed-tensors, in full": ("ignore", in_full("o_proj"), HF - {"trtllm"}),
}


@pytest.mark.parametrize("key, entries, loaders", LISTS.values(), ids=LISTS)
def test_lists(key, entries, loaders, inspect, tmp_path):
    """Who reads a list so that it covers the two layers that are not quantized."""
    m = llama()
    unquantize("o_proj", listed=entries)(m)
    if key == "ignore":
        as_compressed(edit("ignore", entries))(m)
    elif key:
        m.quantization[key] = m.quantization.pop("modules_to_not_convert")
    got = load_table(inspect, m, tmp_path)
    assert {loader for loader, row in got["can_load"].items() if row["1"]} == loaders, got["load_findings"]


def test_no_quantization_config(inspect, tmp_path):
    """Without a block size the pairing itself is impossible; with one it is only the loaders that are lost."""
    m = llama()
    del m.config["quantization_config"]
    path = m.write(tmp_path / "m")
    code, got = inspect(path)
    assert code == 1 and got["findings"][0]["rule"] == "pairing" and "block size" in got["findings"][0]["detail"]
    code, got = inspect(path, "--source-block", "128x128", "--can-load", "all", "--tp", "1")
    assert code == 1 and got["findings"] == []
    lost = {f["loader"] for f in got["load_findings"] if f["rule"] == "configuration"}
    assert lost == HF


# what the findings of the checkpoint itself say, whoever reads it: name -> what is broken, severity, rule, tensor, words
FACTS = {
    "no scale": (lambda m: m.drop(UP + ".weight_scale"), "error", "pairing", UP + ".weight", ["without a scale"]),
    "two scales": (lambda m: m.scale(UP + ".weight_scale", np.ones((4, 2))), "error", "pairing", UP + ".weight",
                   ["two scales"]),
    "no weight": (lambda m: m.tensors.pop(UP + ".weight"), "error", "pairing", UP + ".weight_scale_inv",
                  ["in none of the 2 files"]),
    "weight cast, scale left": (lambda m: m.tensors.update({UP + ".weight": ("BF16", (512, 256), bytes(512 * 512))}),
                                "error", "pairing", UP + ".weight_scale_inv", ["BF16"]),
    "wrong grid": (lambda m: m.scale(UP + ".weight_scale_inv", np.ones((3, 2))), "error", "pairing", UP + ".weight",
                   ["[3, 2]", "4 x 2"]),
    "BF16 with an FP8 configuration": (
        lambda m: [m.plain(name.removesuffix(".weight"), t[1]) for name, t in list(m.tensors.items())
                   if t[0] == "F8_E4M3"], "error", "pairing", None, ["no tensor is codes"]),
    "no block size": (edit("weight_block_size", [128, True]), "error", "pairing", None, ["weight_block_size"]),
    "unknown method": (edit("quant_method", "gguf"), "error", "pairing", None, ["gguf"]),
    "NaN exponent": (lambda m: m.tensors.update({UP + ".weight_scale_inv": ("F8_E8M0", (4, 2), bytes([127] * 7 + [255]))}),
                     "error", "scale values", None, ["1 NaN or Inf"]),
    "infinite scale below 0": (
        lambda m: m.scale(UP + ".weight_scale_inv", np.where(np.arange(8).reshape(4, 2) < 1, -np.inf, 1.0)), "error",
        "scale values", None, ["0 negative", "1 NaN or Inf"]),
    "negative scale": (lambda m: m.scale(UP + ".weight_scale_inv", -np.ones((4, 2))), "error", "scale values", None,
                       ["8 negative"]),
    "ue8m0 in name only": (both(edit("scale_fmt", "ue8m0"), lambda m: thirds(m, UP + ".weight_scale_inv")), "error",
                           "scale_fmt", UP + ".weight_scale_inv", ["8 of", "in 1 tensors", "0.333333343"]),
    "zero scale": (lambda m: m.scale(UP + ".weight_scale_inv", np.zeros((4, 2))), "warning", "scale values", None,
                   ["8 are zero"]),
    "wrong total_size": (lambda m: setattr(m, "total", 12), "warning", "index", None, ["total_size 12"]),
    "index without metadata": (lambda m: setattr(m, "metadata", False), "warning", "index", None, ["'metadata'"]),
    "experts left out": (stack, "warning", "stacked experts", "model.layers.0.mlp.experts.", ["not quantized"]),
}


def usual_scales(m, change=lambda name, values: values):
    """Those of weights of about 0.1."""
    rng = np.random.default_rng(0)
    for name, (dtype, shape, _) in list(m.tensors.items()):
        if name.endswith("_scale_inv"):
            m.scale(name, change(name, rng.uniform(1e-4, 4e-4, shape).astype(np.float32)))


def of_up(change):
    def run(name, values):
        if name.startswith(UP):
            change(values)
        return values
    return run


def invert(values):
    values[:] = 1 / values


def set_one(value):
    def run(values):
        values[1, 0] = value
    return run


OUTLIERS = {  # name: (scales, severity or None, words)
    "usual": (lambda name, values: values, None, []),
    "a block of zeros": (of_up(set_one(1)), None, []),
    "ten times larger": (of_up(set_one(4e-3)), None, []),
    "one inverse": (of_up(set_one(4000)), "warning", ["value 2", "is 4000", "1.79e+06"]),
    "inverses of one tensor": (of_up(invert), "error", ["1/scale would fit"]),
    "all inverses": (lambda name, values: 1 / values, "error", ["median of all scales"]),
}


@pytest.mark.parametrize("act, severity, words", OUTLIERS.values(), ids=OUTLIERS)
def test_scales_far_from_all_others(act, severity, words, inspect, tmp_path):
    m = llama()
    usual_scales(m, act)
    code, got = inspect(m.write(tmp_path / "m"))
    assert code == (severity == "error")
    assert [f["severity"] for f in got["findings"]] == [severity] * (severity is not None), got["findings"]
    assert all(f["rule"] == "scale outliers" and all(word in f["detail"] for word in words) for f in got["findings"])
    if severity is not None and "median" not in words[0]:
        assert got["findings"][0]["tensor"] == UP + ".weight_scale_inv"


@pytest.mark.parametrize("act, severity, rule, tensor, words", FACTS.values(), ids=FACTS)
def test_findings(act, severity, rule, tensor, words, inspect, text, tmp_path):
    m = llama()
    act(m)
    path = m.write(tmp_path / "m")
    code, got = inspect(path)
    assert code == (severity == "error")
    mine = [f for f in got["findings"] if f["rule"] == rule]
    assert mine and all(f["severity"] == severity for f in mine), got["findings"]
    assert any((f["tensor"] or "").startswith(tensor or "") and all(w in f["detail"] for w in words) for f in mine), mine
    assert f"{severity} [{rule}]" in text(path)
    if severity == "error" and rule != "scale_fmt":
        _, got = inspect(path, "--can-load", "all", "--tp", "1")
        assert not any(ok for row in got["can_load"].values() for ok in row.values())


WARNINGS = {
    "MTP said, not there": (deepseek, lambda m: m.config.update(num_nextn_predict_layers=1), "MTP", ["layer 2"]),
    "MTP there, not said": (lambda: deepseek(mtp=True), lambda m: m.config.update(num_nextn_predict_layers=0), "MTP",
                            ["dropped without a word"]),
    "router bias rounded": (deepseek, lambda m: m.tensors.update({
        "model.layers.0.mlp.gate.e_score_correction_bias": ("BF16", (4,), bytes(8))}), "router bias", ["BF16"]),
    "an entry for nothing": (llama, edit("modules_to_not_convert", ["model.layers.0.mlp.all_proj"]), "ignore list",
                             ["all_proj", "names nothing"]),
}


@pytest.mark.parametrize("make, act, rule, words", WARNINGS.values(), ids=WARNINGS)
def test_warnings(make, act, rule, words, inspect, tmp_path):
    m = make()
    act(m)
    got = load_table(inspect, m, tmp_path, loaders="vllm,sglang")
    assert all(row == {"1": True} for row in got["can_load"].values()), got["load_findings"]
    mine = [f for f in got["load_findings"] if f["rule"] == rule]
    assert {f["loader"] for f in mine} == {"vllm", "sglang"} and {f["severity"] for f in mine} == {"warning"}
    assert all(word in f["detail"] for f in mine for word in words), mine


# ---- before quantizing ----


@pytest.mark.parametrize("intermediate, tp, ok", [(512, "1,2", True), (384, "1", True), (384, "2", False)])
def test_before_quantizing(intermediate, tp, ok, inspect, text, quantize, tmp_path):
    """The answer for the BF16 source is the one for what is made of it."""
    m = llama(False, intermediate)
    got = load_table(inspect, m, tmp_path, tp, ",".join(ENGINES))
    assert all(all(row.values()) == ok for row in got["can_load"].values()), got["load_findings"]
    _, after = inspect(quantize(tmp_path / "m"), "--can-load", ",".join(ENGINES), "--tp", tp)
    assert after["can_load"] == got["can_load"]
    assert "can load (once quantized):" in text(tmp_path / "m", "--can-load", "vllm")


@pytest.mark.parametrize("kind", KINDS)
def test_output_loads_as_foretold(kind, checkpoint, quantize, inspect):
    options = ("--can-load", ",".join((*ENGINES, "transformers")), "--tp", "1,2,4")
    _, before = inspect(checkpoint(kind), *options)
    _, after = inspect(quantize(checkpoint(kind)), *options)
    assert before["can_load"] == after["can_load"]


def test_weights_of_one_block(inspect, tmp_path):
    """A matrix that is exactly one block is still scaled by the block."""
    m = llama(intermediate=128)
    m.linear("model.layers.0.self_attn.indexer.wk", 128, 128)
    got = load_table(inspect, m, tmp_path, "1", ",".join(ENGINES))
    assert all(row["1"] for row in got["can_load"].values()), got["load_findings"]


def test_a_flood_of_findings(tessera, inspect, tmp_path):
    """Names that share no pattern, thousands of layers that are not there: counted, not listed one by one."""
    m = Model({"num_hidden_layers": 60000, "model_type": "llama"})
    for i in range(6000):
        word = "".join(chr(97 + int(digit)) for digit in str(i))
        m.tensors[f"model.layers.0.mlp.{word}_proj.weight"] = ("F8_E4M3", (1, 1), b"\0")
    code, got = inspect(m.write(tmp_path / "m"), "--can-load", "all")
    assert code == 1 and len(got["findings"]) == 4096
    assert not any(ok for row in got["can_load"].values() for ok in row.values())
    code, out, err = harness.run(tessera, ["inspect", tmp_path / "m"])
    assert code == 1 and err == "" and "and 1904 more" in out


def test_exit_code_is_about_what_was_asked(tessera, tmp_path):
    path = llama().write(tmp_path / "m")
    for loaders, tp, expected in (("vllm", "1,2", 0), ("vllm", "1,2,4", 1), ("transformers", "4", 0), ("all", "1", 1)):
        code, _, err = harness.run(tessera, ["inspect", path, "--can-load", loaders, "--tp", tp, "--quiet"])
        assert code == expected, (loaders, tp, err)
