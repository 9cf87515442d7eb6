"""Tests `--to mla-absorbed`: the parts for each consumer, products with the original weight, copied and recomputed FP8, and folding."""

import json

from absorbed_model import CONSUMERS, Model, PREFIX, SCALES
from checkpoints import BF16, E4M3, REPORT, load, make, same_bits
import fp8_oracle
import numpy as np
import pytest

GEOMETRIES = [{}, {"heads": 3, "nope": 48, "v": 80, "rank": 100, "rope": 16}, {"q_rank": None}]


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_plain_parts_recompose_and_contract(tmp_path, convert, consumer, geometry, dtype):
    m = Model(tmp_path / "src", dtype=dtype, **geometry)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", consumer)
    k, v = m.parts(dst, consumer)
    source = m.tensors[PREFIX + "kv_b_proj.weight"]
    assert k.dtype == v.dtype == source.dtype
    again = np.concatenate([k, v], axis=1).reshape(source.shape)
    assert same_bits(np.ascontiguousarray(again), source)
    assert same_bits(load(dst)[PREFIX + "kv_b_proj.weight"], source)
    # q_nope . (W_k c) = (q_nope . W_k) . c, and W_v (attention over c): the absorbed and the plain order
    rng = np.random.default_rng(5)
    q, latent, attention = rng.standard_normal((m.heads, m.nope)), rng.standard_normal(m.rank), rng.standard_normal((m.heads, m.rank))
    keys, values = m.heads_of(m.value["kv_b_proj.weight"])
    plain = np.einsum("hp,hpl,l->h", q, keys, latent)
    absorbed = np.einsum("hl,l->h", np.einsum("hp,hpl->hl", q, k.astype(np.float64)), latent)
    assert np.allclose(plain, absorbed, rtol=1e-12, atol=1e-13)
    assert np.array_equal(np.einsum("hvl,hl->hv", values, attention),
                          np.einsum("hvl,hl->hv", np.ascontiguousarray(v).astype(np.float64), attention))


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("geometry", GEOMETRIES[:2])
def test_fp8_dequantized(tmp_path, convert, consumer, geometry):
    m = Model(tmp_path / "src", fp8=True, **geometry)
    k, v = m.parts(convert(m.path, "--to", "mla-absorbed", "--consumer", consumer, "--drop-kv-b"), consumer)
    want = m.value["kv_b_proj.weight"].astype(np.float32).astype(BF16)
    assert same_bits(np.concatenate([k, v], axis=1).reshape(want.shape), want)


@pytest.mark.parametrize("consumer", SCALES)
@pytest.mark.parametrize("geometry", [{}, {"heads": 2, "nope": 256, "v": 128, "rank": 200}])
def test_fp8_kept(tmp_path, convert, consumer, geometry):
    m = Model(tmp_path / "src", fp8=True, **geometry)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", consumer, "--weights", "fp8-block", "--drop-kv-b")
    k, v = m.parts(dst, consumer)
    source = m.tensors[PREFIX + "kv_b_proj.weight"]
    assert same_bits(np.concatenate([k, v], axis=1).reshape(source.shape), source)
    tensors = load(dst)
    assert PREFIX + "kv_b_proj.weight" not in tensors and PREFIX + "kv_b_proj.weight_scale_inv" not in tensors
    (k_name, v_name), (_, k_first, _, v_first) = SCALES[consumer], CONSUMERS[consumer]
    k_scale, v_scale = tensors[PREFIX + k_name], tensors[PREFIX + v_name]
    columns = -(-m.rank // 128)
    if consumer == "sglang":
        assert k_scale.shape == (m.heads, columns, m.nope // 128) and v_scale.shape == (m.heads, m.v // 128, columns)
    k_scale, v_scale = (s.swapaxes(1, 2) if first else s for s, first in ((k_scale, k_first), (v_scale, v_first)))
    keys, values = m.heads_of(m.value["kv_b_proj.weight"])
    for part, scale, want in ((k, k_scale, keys), (v, v_scale, values)):
        assert np.array_equal(part.astype(np.float32) * fp8_oracle.spread(scale, part.shape), want)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("consumer", SCALES)
@pytest.mark.parametrize("form", ["fp8-tensor", "fp8-head"])
def test_fp8_made_anew(tmp_path, convert, consumer, form, fp8):
    m = Model(tmp_path / "src", fp8=fp8, heads=3, nope=48, v=80, rank=100)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", consumer, "--weights", form)
    tensors, (k, v) = load(dst), m.parts(dst, consumer)
    keys, values = m.heads_of(m.value["kv_b_proj.weight"].astype(np.float32))
    if form == "fp8-tensor":
        name = {"sglang": "w_scale", "vllm": "W_scale", "trtllm": "kv_b_scale"}[consumer]
        scale = tensors[PREFIX + name]
        assert scale.shape == (1,) and scale[0] == np.abs(m.value["kv_b_proj.weight"].astype(np.float32)).max() / np.float32(448)
        scales = [np.full(m.heads, scale[0])] * 2
    else:
        scales = [tensors[PREFIX + n] for n in SCALES[consumer]]
        for scale, part in zip(scales, (keys, values)):
            assert np.array_equal(scale, np.abs(part).max(axis=(1, 2)) / np.float32(448))
    for part, scale, want in ((k, scales[0], keys), (v, scales[1], values)):
        assert same_bits(np.ascontiguousarray(part), (want / scale[:, None, None]).astype(E4M3))
    report = json.loads((dst / REPORT).read_text())
    x = m.value["kv_b_proj.weight"]
    y = np.concatenate([p.astype(np.float64) * s[:, None, None] for p, s in zip((k, v), scales)], axis=1).reshape(x.shape)
    error = np.sqrt(((x - y) ** 2).sum() / (x**2).sum())
    assert report["whole"]["relative_error"] == pytest.approx(error, rel=1e-4)


def nearest_bf16(x):
    """Rounds FP64 to BF16 once: to the nearest of three neighbours, or the even one of two."""
    middle = x.astype(np.float32).astype(BF16).view(np.int16).astype(np.int32)
    candidates = np.stack([middle, middle - 1, middle + 1])
    distance = np.abs(candidates.astype(np.int16).view(BF16).astype(np.float64) - x)
    best = np.where(distance == distance.min(axis=0), candidates % 2, 2).argmin(axis=0)
    return np.take_along_axis(candidates, best[None], 0)[0].astype(np.int16).view(BF16)


def test_folding_rounds_once(tmp_path, convert):
    """Tests 1 + 2^-8 + 2^-40, which becomes a tie if it is rounded to FP32 first."""
    m = Model(tmp_path / "src", heads=1, nope=4, v=4, rope=4, rank=4, q_rank=None, hidden=4)
    kv_b, q = np.zeros((8, 4), BF16), np.zeros((8, 4), BF16)
    kv_b[:3, 0] = 1
    q[:3, 0] = [1, 2.0**-8, 2.0**-40]
    m.tensors[PREFIX + "kv_b_proj.weight"], m.tensors[PREFIX + "q_proj.weight"] = kv_b, q
    config = json.loads((m.path / "config.json").read_text())
    config.pop("model_type")
    src = make(tmp_path / "exact", {"model.safetensors": m.tensors}, quantization=None, **config)
    got = load(convert(src, "--to", "mla-absorbed", "--consumer", "vllm", "--fold"))[PREFIX + "q_proj.weight"]
    assert got[0, 0] == BF16(1 + 2.0**-7)


def test_folding_adds_to_the_list_and_keeps_the_rest(tmp_path, convert):
    m = Model(tmp_path / "src", fp8=True)
    for name, key in (("a", "modules_to_not_convert"), ("b", "ignored_layers"), ("c", None)):
        config = json.loads((m.path / "config.json").read_text())
        q = config["quantization_config"]
        q["x_extra"] = {"a": 1.5}
        for other in ("modules_to_not_convert", "ignored_layers"):
            q.pop(other, None)
        if key:
            q[key] = ["lm_head", "re_custom.eh_proj"]
        (m.path / "config.json").write_text(json.dumps(config, indent=2))
        dst = convert(m.path, "--to", "mla-absorbed", "--consumer", "vllm", "--fold")
        result = json.loads((dst / "config.json").read_text())
        result.pop("tessera_mla")
        added = [PREFIX + n for n in ("q_b_proj", "o_proj")]
        listed = result["quantization_config"].pop(key or "modules_to_not_convert")
        assert listed == (["lm_head", "re_custom.eh_proj"] if key else []) + added
        q.pop(key, None)
        assert result == config


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("q_rank", [192, None])
def test_folded(tmp_path, convert, fp8, q_rank):
    m = Model(tmp_path / "src", fp8=fp8, q_rank=q_rank)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", "sglang", "--fold", "--drop-kv-b")
    tensors = load(dst)
    keys, values = m.heads_of(m.value["kv_b_proj.weight"])
    q = m.value[m.query].reshape(m.heads, m.nope + m.rope, -1)
    exact_q = np.concatenate([np.einsum("hpl,hpc->hlc", keys, q[:, : m.nope]), q[:, m.nope :]], axis=1)
    exact_q = exact_q.reshape(m.heads * (m.rank + m.rope), -1)
    exact_o = np.einsum("dhv,hvl->dhl", m.value["o_proj.weight"].reshape(-1, m.heads, m.v), values)
    exact_o = exact_o.reshape(-1, m.heads * m.rank)
    report = {row["name"]: row for row in json.loads((dst / REPORT).read_text())["tensors"]}
    for name, exact in ((m.query, exact_q), ("o_proj.weight", exact_o)):
        stored = tensors[PREFIX + name]
        assert same_bits(stored, nearest_bf16(exact)), name
        error = np.sqrt(((exact - stored.astype(np.float64)) ** 2).sum() / (exact**2).sum())
        row = report[PREFIX + name]
        assert row["relative_error"] == pytest.approx(error, rel=1e-6) and row["shape"] == list(exact.shape)
    config = json.loads((dst / "config.json").read_text())
    assert config["tessera_mla"] == {"folded": True, "kv_b_proj_dropped": True}
    assert not any("kv_b_proj" in name for name in tensors)
    if fp8:
        assert "quantization_config" not in config  # nothing that was FP8 is left
        dst = convert(m.path, "--to", "mla-absorbed", "--consumer", "sglang", "--fold")
        config = json.loads((dst / "config.json").read_text())
        ignored = config["quantization_config"]["modules_to_not_convert"]
        assert ignored == [PREFIX + n.removesuffix(".weight") for n in (m.query, "o_proj.weight")]


def test_the_configuration_says_what_was_done(tmp_path, convert):
    m = Model(tmp_path / "src", fp8=True)
    dst = convert(m.path, "--to", "mla-absorbed", "--consumer", "trtllm", "--weights", "fp8-head")
    config, source = (json.loads((d / "config.json").read_text()) for d in (dst, m.path))
    assert config.pop("tessera_mla") == {"consumer": "trtllm", "weights": "fp8-head", "folded": False, "kv_b_proj_dropped": False}
    assert config == source


def test_refusals(tmp_path, refuse):
    target = ("--to", "mla-absorbed", "--consumer", "sglang")
    glm = Model(tmp_path / "glm", heads=2, nope=192, v=256, fp8=True).path
    refuse(glm, 3, "kv_b_proj", "192 + 256 = 448 rows", "1.5 + 2 = 3.5 rows of scales", options=(*target, "--weights", "fp8-block"))
    plain = Model(tmp_path / "plain").path
    refuse(plain, 3, "not FP8", options=(*target, "--weights", "fp8-block"))
    refuse(plain, 2, "--consumer", options=("--to", "mla-absorbed"))
    refuse(plain, 2, "--weights bf16", options=("--to", "mla-absorbed", "--consumer", "llamacpp", "--weights", "fp8-head"))
    refuse(plain, 2, "--fold", options=(*target, "--fold", "--weights", "fp8-head"))
    config = json.loads((plain / "config.json").read_text())
    config["qk_nope_head_dim"] = 64
    (plain / "config.json").write_text(json.dumps(config))
    refuse(plain, 3, "kv_b_proj", "[1024, 256]", "768", options=target)
    other = make(tmp_path / "other", {"model.safetensors": {"m.weight": np.ones((4, 4), BF16)}}, quantization=None)
    refuse(other, 3, "multi-head latent attention", options=target)
