"""Tests DeepSeek-V4 and V4.1 checkpoints with their own names: written from BF16 and from codes, and read back."""

import json

from checkpoints import load, make
import harness
import ml_dtypes
from released_models import RELEASES
import mx_oracle as mx
import numpy as np
import pytest
import stored_oracle as stored

BF16 = ml_dtypes.bfloat16
V4, V41 = "DeepSeek-V4-Flash", "DeepSeek-V4.1-Flash"
NAMES = pytest.mark.parametrize("name", [V4, V41])


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = RELEASES[name]().write(tmp_path_factory.mktemp("release") / "src")
        return made[name]

    return get


def tensors(path):
    return {name: array for file in sorted(path.glob("*.safetensors")) for name, array in stored.read_any(file).items()}


def config(path):
    return json.loads((path / "config.json").read_text())


def loads(tessera, path, *loaders):
    harness.succeed(tessera, ["inspect", path, "--can-load", ",".join(loaders), "--tp", "1"])


@NAMES
def test_fp8_for_hopper(tmp_path, tessera, convert, release, name):
    """Scales are F32 with the native names, expert_dtype is where this model's loaders look, and n-gram tables are
    unchanged."""
    src = release(name)
    before, dst = tensors(src), convert(src, "--to", "fp8-block")
    got = tensors(dst)
    assert before.keys() == got.keys()
    experts = [n for n in got if ".experts." in n and n.endswith(".scale")]
    assert experts and all(got[n].dtype == np.float32 for n in experts)
    assert any(n.startswith("mtp.") for n in experts)
    stated = config(dst)
    assert stated["expert_dtype"] == "fp8"
    assert stated["quantization_config"].get("expert_dtype") == ("fp8" if name == V41 else None)
    for n in got:
        if ".engram.embed." in n:
            assert got[n].tobytes() == before[n].tobytes() and got[n].dtype == before[n].dtype
    assert name == V4 or any(".engram.embed." in n for n in got)
    loads(tessera, dst, "vllm", "sglang", *(["transformers"] if name == V4 else []))


@NAMES
def test_native_fp4_by_way_of_another_dialect(tmp_path, tessera, convert, release, name):
    """Codes moved to another dialect and back have the bytes of the release, and the other tensors do not change."""
    src = release(name)
    before, again = tensors(src), tensors(convert(src, "--to", "mxfp4", "--dialect", "deepseek"))
    assert before.keys() == again.keys()
    for n in before:
        assert before[n].tobytes() == again[n].tobytes() and before[n].dtype == again[n].dtype, n
    assert config(convert(convert(src, "--to", "fp8-block"), "--to", "mxfp4", "--dialect", "deepseek"))["expert_dtype"] == "fp4"


def test_native_fp4_of_compressed_tensors(tmp_path, tessera, convert, release):
    """Only the experts of this source are codes. They keep every byte in compressed-tensors and back."""
    bf16 = convert(release(V4), "--to", "bf16")
    native = tmp_path / "native"
    harness.succeed(tessera, ["quantize", bf16, "-o", native, "--scheme", "mxfp4", "--dialect", "compressed-tensors"])
    dst = convert(native, "--to", "mxfp4", "--dialect", "deepseek")
    packed, got = tensors(native), tensors(dst)
    experts = [n.removesuffix(".weight_packed") for n in packed if n.endswith(".weight_packed")]
    assert len(experts) > 10 and all(".experts." in x for x in experts)
    for x in experts:
        assert got[x + ".weight"].dtype == np.int8 and got[x + ".weight"].tobytes() == packed[x + ".weight_packed"].tobytes()
        assert got[x + ".scale"].tobytes() == packed[x + ".weight_scale"].tobytes()
    again = tensors(convert(dst, "--to", "mxfp4"))
    for x in experts:
        assert again[x + ".weight_packed"].tobytes() == packed[x + ".weight_packed"].tobytes()
        assert again[x + ".weight_scale"].tobytes() == packed[x + ".weight_scale"].tobytes()


@NAMES
def test_native_fp4_from_bf16(tmp_path, tessera, convert, quantize, release, name):
    """Experts have the values of the release again, because these were decoded from codes. Other layers are FP8 with
    power-of-two scales."""
    src = release(name)
    bf16 = convert(src, "--to", "bf16")
    dst = quantize(bf16, "--scheme", "mxfp4", "--dialect", "deepseek")
    before, got = tensors(src), tensors(dst)
    module = "layers.1.ffn.experts.2.w2"
    kinds = [{n.removeprefix(module): a for n, a in t.items() if n.startswith(module + ".")} for t in (before, got)]
    assert got[module + ".weight"].dtype == np.int8 and got[module + ".scale"].dtype == before[module + ".scale"].dtype
    a, b = (stored.values("mxfp4-v4", {module + k: v for k, v in t.items()}) for t in kinds)
    assert np.linalg.norm(a - b) <= 0.12 * np.linalg.norm(a)
    wo = "layers.1.attn.wo_b"
    assert got[wo + ".scale"].dtype == np.float32 and (np.frexp(got[wo + ".scale"])[0] == 0.5).all()
    assert got[wo + ".scale"].shape == tuple(-(-n // 128) for n in got[wo + ".weight"].shape)
    assert config(dst)["quantization_config"]["weight_block_size"] == [128, 128]
    assert config(dst)["quantization_config"]["scale_fmt"] == "ue8m0" and config(dst)["expert_dtype"] == "fp4"
    for n in ("embed.weight", "layers.1.attn.compressor.wkv.weight", "layers.1.ffn.gate.weight"):
        assert got[n].dtype == before[n].dtype
    loads(tessera, dst, "vllm", "sglang", *(["transformers"] if name == V4 else []))


@NAMES
def test_fp8_from_bf16(tmp_path, tessera, convert, quantize, release, name):
    src = release(name)
    bf16 = convert(src, "--to", "bf16")
    dst = quantize(bf16)
    before, got = tensors(src), tensors(dst)
    scaled = {n for n in before if n.endswith(".scale")}
    for n in (n for n in scaled if ".engram.embed." in n):  # which was codes with these scales once
        a, b = ({"X.weight": t[n.replace(".scale", ".weight")], "X.weight_scale": t[n]} for t in (before, got))
        assert np.abs(stored.values("mxfp8", a) - stored.values("mxfp8", b)).max() <= np.abs(stored.values("mxfp8", a)).max() / 16
        assert got[n].dtype == before[n].dtype and got[n].shape == before[n].shape
    assert {n for n in got if n.endswith(".scale")} == scaled
    assert config(dst)["expert_dtype"] == "fp8" and not any("scale_inv" in n for n in got)
    loads(tessera, dst, "vllm", "sglang", *(["transformers"] if name == V4 else []))


def test_native_names_stay_when_requantized(tmp_path, tessera, convert, quantize, release):
    """FP8 experts, as in the -Base releases, get other blocks and keep their names."""
    fp8 = quantize(convert(release(V4), "--to", "bf16"))
    got = convert(fp8, "--to", "fp8-block", "--block", "64x64")
    assert tensors(got).keys() == tensors(fp8).keys() and config(got)["expert_dtype"] == "fp8"


def test_the_native_dialect_is_of_this_family(tmp_path, tessera, checkpoint):
    src = checkpoint("qwen3-moe")
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", "--scheme", "mxfp4", "--dialect", "deepseek"])
    assert code == 3 and "deepseek_v4" in err and "--dialect compressed-tensors" in err


# ---- what loaders join: wq_a with wkv in attention, wkv with wgate in a compressor; the n-gram memory's wkv is not joined ----

JOINED = {"layers.0.attn.wq_a": (64, 128), "layers.0.attn.wkv": (32, 128), "layers.0.attn.compressor.wgate": (32, 128),
          "layers.0.attn.compressor.wkv": (32, 128), "layers.0.engram.wkv": (32, 128), "layers.0.attn.wq_b": (64, 128)}


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_joined_layers_have_one_global_scale(tmp_path, quantize, dialect):
    """Every byte equals the oracle's, with members of different amax."""
    src, weights = mx.model(tmp_path / "src", modules=JOINED, kind="deepseek_v4", files=2)
    every = [word for module in JOINED for word in ("--include", f"{module}.weight")]
    got = load(quantize(src, "--scheme", "nvfp4-weight-only", "--dialect", dialect, *every))
    for name, array in mx.expected(weights, "nvfp4-weight-only", dialect).items():
        assert got[name].tobytes() == array.tobytes(), name
    total = mx.names("nvfp4-weight-only", dialect)[2]
    value = {module: float(got[module + total].reshape(())) for module in JOINED}
    a, b, c, d, alone, other = value.values()
    assert a == b and c == d and len({a, c, alone, other}) == 4


def test_joined_layers_are_decided_together(tmp_path, tessera):
    """If one member is kept, the other is kept too. A member whose rows end inside a block keeps both. The n-gram memory is
    decided separately."""
    def plan(shapes, *options):
        src = make(tmp_path / f"src{len(list(tmp_path.iterdir()))}",
                   {"model.safetensors": {f"{name}.weight": np.zeros(shape, BF16) for name, shape in shapes.items()}},
                   quantization=None, model_type="deepseek_v4")
        code, out, _ = harness.run(tessera, ["quantize", src, "--dry-run", "--json", "-", *options])
        return {row["name"].removesuffix(".weight"): (row["action"], row["reason"]) for row in json.loads(out)["plan"]}

    wide = {module: (256, 256) for module in JOINED}
    attn, engram = ("layers.0.attn.wq_a", "layers.0.attn.wkv"), "layers.0.engram.wkv"
    assert {plan(wide)[n][0] for n in (*attn, engram)} == {"quantize"}
    got = plan(wide, "--exclude", "*.attn.wkv.*")
    assert [got[n][0] for n in (*attn, engram)] == ["copy", "copy", "quantize"] and "fused with" in got[attn[0]][1]
    got = plan({**wide, attn[0]: (160, 256)})
    assert [got[n][0] for n in (*attn, engram)] == ["copy", "copy", "quantize"] and "inside a block of 128" in got[attn[0]][1]


def test_names_of_joined_layers_that_stay(tmp_path, quantize):
    """The list of compressed-tensors has the names of fused layers in each parent, but no fused name for modules that are
    not fused."""
    src, _ = mx.model(tmp_path / "src", modules={**JOINED, "layers.0.ffn.experts.0.w2": (128, 64)}, kind="deepseek_v4")
    ignored = config(quantize(src, "--scheme", "nvfp4-weight-only"))["quantization_config"]["ignore"]
    assert {"layers.0.attn.fused_wqa_wkv", "layers.0.attn.compressor.fused_wkv_wgate"} <= set(ignored)
    assert not any("fused" in name and "engram" in name for name in ignored) and "layers.0.engram.wkv" in ignored


@pytest.mark.parametrize("family", ["deepseek_v4", "deepseek_v41"])
def test_a_quantized_table_is_read_again(tmp_path, quantize, inspect, family):
    """Members of config.json about layers do not apply to n-gram tables. Their class reads them as MXFP8."""
    shapes = {"layers.0.attn.wq_b": (256, 256), "layers.0.ffn.experts.0.w1": (256, 256), "layers.1.engram.embed": (512, 256)}
    src = make(tmp_path / "src", {"model.safetensors": {f"{name}.weight": np.ones(shape, BF16) for name, shape in shapes.items()}},
               quantization=None, model_type=family)
    assert inspect(quantize(src))[1]["findings"] == []
