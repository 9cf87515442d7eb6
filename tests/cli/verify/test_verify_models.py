"""Tests the forward pass and the kernel checks with MXFP4, NVFP4, MXFP8, AWQ and GPTQ models."""

import json
from pathlib import Path

from checkpoints import BF16, make
from coded_weights import Coded, checkpoint, GPTQ, int4_config, KINDS, mx_config, NVFP4, QUARK_E3M2, WEIGHT
from format_samples import AWQ
import harness
import mx_oracle as mx
import numpy as np
import pytest
import stored_oracle as stored


def coded_llama(tessera, maker, quantize, tmp_path, kind):
    """Makes (source, the same with all linear layers as codes, and the decoded values in F32)."""
    src = Path(harness.make_checkpoint(maker, "llama", tmp_path / "llama"))
    source = {n: t for path in src.glob("*.safetensors") for n, t in stored.read_any(path).items()}
    config = json.loads((src / "config.json").read_text())
    coded, plain = {}, {}
    for name, w in source.items():
        if "_proj" not in name:
            coded[name] = plain[name] = w
            continue
        module = name.removesuffix(".weight")
        c = Coded.__new__(Coded)
        c.w, c.kind = w, kind
        if kind in ("awq", "gptq"):
            order = np.arange(w.shape[1]) // 32
            order = order if kind == "awq" else np.random.default_rng(len(name)).permutation(order)
            parts = c.integers(32, order)
            tensors = {module + s: np.ascontiguousarray(t)
                       for s, t in (stored.awq(*parts) if kind == "awq" else stored.gptq(*parts, order)).items()}
        elif kind.startswith("mxfp6"):
            codes, scale = stored.mxfp6(w, "e3m2" if "e3m2" in kind else "e2m3")
            tensors = {name + ("" if "e3m2" in kind else "_packed"): codes, name + "_scale": scale}
        else:
            scheme = {"nvfp4": "nvfp4-weight-only", "mxfp4": "mxfp4-weight-only", "mxfp8": "mxfp8-weight-only"}[kind]
            tensors = mx.expected({module: w}, scheme, "compressed-tensors")
        coded |= tensors
        plain[name] = stored.values({"nvfp4": "nvfp4-ct", "mxfp4": "mxfp4-ct"}.get(kind, kind), tensors).astype(np.float32)
    quantization = {"nvfp4": NVFP4, "mxfp4": mx_config(4), "mxfp8": mx_config(8), "mxfp6": mx_config(6),
                    "mxfp6_e3m2": QUARK_E3M2, "awq": AWQ, "gptq": GPTQ}[kind]
    config.pop("quantization_config", None)
    return src, *(make(tmp_path / n, {"model.safetensors": {k: np.ascontiguousarray(v) for k, v in t.items()}}, quantization=q, **config)
                  for n, t, q in (("coded", coded, quantization), ("plain", plain, None)))


@pytest.mark.parametrize("kind", KINDS)
def test_forward(kind, tessera, maker, quantize, tmp_path):
    """A coded model computes the same as its values in F32. Against its source it has the error of the kind."""
    src, coded, plain = coded_llama(tessera, maker, quantize, tmp_path, kind)

    inputs = ["--activations", "none"] if kind == "mxfp6_e3m2" else []

    def forward(dst, against, *options):
        out = harness.succeed(tessera, ["verify", "forward", dst, "--against", against, "--count", "8", "--json", "-", *options])
        return json.loads(out)

    same, cost = forward(coded, plain, "--exact"), forward(coded, src, *inputs)
    layers = [j for j in same["judgements"] if j["sqnr_db"] is not None]
    assert all(j["sqnr_db"] > 120 for j in layers)
    lost = [j["sqnr_db"] for j in cost["judgements"] if j["sqnr_db"] is not None]
    assert lost and all(8 < x < (40 if kind == "mxfp8" else 30) for x in lost), lost


@pytest.mark.parametrize("check, kind, title", [(check, *kind) for check in ("gemm", "epilogue", "dequant") for kind in (
    ("nvfp4", "NVFP4"), ("mxfp4", "MXFP4"), ("mxfp8", "MXFP8"), ("mxfp6", "MXFP6"), ("awq", "AWQ's order"), ("gptq", "GPTQ's order"))
    if check == "epilogue" or "order" in kind[1] or kind[0] == "mxfp6"])  # the others are in test_verify_mx.py
def test_checks_of_kernels_name_what_they_have_none_for(check, kind, title, tessera, tmp_path):
    c = Coded(kind, (128, 256))
    alone = checkpoint(tmp_path / "alone", c.tensors, c.config)
    harness.expect(tessera, ["verify", check, alone, "--device", "cpu"], 3, "could be checked; skipped " + WEIGHT, title, "no kernels")


def test_a_mixed_checkpoint_is_checked_by_kind(verify, tmp_path):
    """int4 and NVFP4 occur together in the mixed-precision form of compressed-tensors. Each is checked with its own kernels."""
    c, rng = Coded("nvfp4", (128, 256)), np.random.default_rng(9)
    other = "model.layers.0.mlp.up_proj.weight"
    c.tensors |= {other + "_packed": stored.words(rng.integers(0, 16, (64, 256)).astype(np.uint8)),
                  other + "_scale": np.full((64, 8), 2.0**-6, BF16), other + "_shape": np.array([64, 256])}
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
        "group_0": dict(NVFP4["config_groups"]["group_0"], targets=["re:.*down_proj"], format="nvfp4-pack-quantized"),
        "group_1": dict(int4_config()["config_groups"]["group_0"], targets=["re:.*up_proj"], format="pack-quantized")}}
    code, result = verify("dequant", checkpoint(tmp_path / "mixed", c.tensors, config))
    assert code == 0 and {j["subject"] for j in result["judgements"]} == {other, WEIGHT} and not result["skipped"]
    assert {j["what"] for j in result["judgements"] if j["subject"] == WEIGHT} == {"CPU's decoder, NVFP4, bf16"}
