"""DeepSeek-V4 and V4.1 under their own names: written as their loaders read them, from BF16, from codes, and back."""

import json

import harness
from models_2026 import RELEASES
import numpy as np
import pytest
import stored_2026 as stored

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
    code, out, _ = harness.run(tessera, ["inspect", path, "--can-load", ",".join(loaders), "--tp", "1"])
    assert code == 0, out


@NAMES
def test_fp8_for_hopper(tmp_path, tessera, convert, release, name):
    """F32 scales under the native names, expert_dtype where this model's loaders look, and n-gram tables as they come."""
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
    """What was moved out and back has the very bytes of the release, and beside the experts nothing changes."""
    src = release(name)
    before, again = tensors(src), tensors(convert(src, "--to", "mxfp4", "--dialect", "deepseek"))
    assert before.keys() == again.keys()
    for n in before:
        assert before[n].tobytes() == again[n].tobytes() and before[n].dtype == again[n].dtype, n
    assert config(convert(convert(src, "--to", "fp8-block"), "--to", "mxfp4", "--dialect", "deepseek"))["expert_dtype"] == "fp4"


def test_native_fp4_of_compressed_tensors(tmp_path, tessera, convert, release):
    """Only the experts are codes in this source; to compressed-tensors and back they keep every byte."""
    bf16 = convert(release(V4), "--to", "bf16")
    native = tmp_path / "native"
    code, out, err = harness.run(tessera, ["quantize", bf16, "-o", native, "--scheme", "mxfp4", "--dialect", "compressed-tensors"])
    assert code == 0, err
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
    """Experts come back to the values of the release, for they were codes once; beside them is FP8 with powers of two."""
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
    """FP8 experts, as in the -Base releases: other blocks, the same names."""
    fp8 = quantize(convert(release(V4), "--to", "bf16"))
    got = convert(fp8, "--to", "fp8-block", "--block", "64x64")
    assert tensors(got).keys() == tensors(fp8).keys() and config(got)["expert_dtype"] == "fp8"


def test_the_native_dialect_is_of_this_family(tmp_path, tessera, checkpoint):
    src = checkpoint("qwen3-moe")
    code, _, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", "--scheme", "mxfp4", "--dialect", "deepseek"])
    assert code == 3 and "deepseek_v4" in err and "--dialect compressed-tensors" in err
