"""`tessera verify mla` against NumPy in float64: the stages of an oracle written from the formulas pass, faults that are
planted in stages and in checkpoints are found and named, and every conversion's parts are read."""

import json
import math
import xml.etree.ElementTree

import fp8_oracle
import harness
import ml_dtypes
import numpy as np
import pytest
from test_diff import write

BF16 = ml_dtypes.bfloat16
PREFIX = "model.layers.0.self_attn."
YARN = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0}
BATCH, TOKENS = 2, 9


class Model:
    """One layer of MLA and its stages."""

    def __init__(self, q_rank=96, yarn=True, heads=4, nope=128, rope=32, v=128, rank=256, hidden=256, seed=3):
        self.heads, self.nope, self.rope, self.v, self.rank, self.q_rank = heads, nope, rope, v, rank, q_rank
        self.yarn, self.hidden = yarn, hidden
        rng = np.random.default_rng(seed)
        shapes = {"kv_a_proj_with_mqa.weight": (rank + rope, hidden), "kv_b_proj.weight": (heads * (nope + v), rank),
                  "o_proj.weight": (hidden, heads * v)}
        if q_rank:
            shapes |= {"q_a_proj.weight": (q_rank, hidden), "q_b_proj.weight": (heads * (nope + rope), q_rank)}
        else:
            shapes |= {"q_proj.weight": (heads * (nope + rope), hidden)}
        self.tensors = {PREFIX + n: (rng.standard_normal(s) / math.sqrt(s[1])).astype(BF16) for n, s in shapes.items()}
        norms = {"kv_a_layernorm.weight": rank} | ({"q_a_layernorm.weight": q_rank} if q_rank else {})
        self.tensors |= {PREFIX + n: rng.uniform(0.5, 2, s).astype(BF16) for n, s in norms.items()}
        self.config = {"num_attention_heads": heads, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": v,
                       "kv_lora_rank": rank, "q_lora_rank": q_rank, "hidden_size": hidden, "rms_norm_eps": 1e-6,
                       "rope_theta": 10000, "rope_scaling": YARN if yarn else None}

    def write(self, path, **changed):
        return write(path, self.tensors | {PREFIX + n: t for n, t in changed.items()}, self.config)

    def angles(self):
        d, base = self.rope, 10000.0
        frequency = base ** -(np.arange(0, d, 2) / d)
        if self.yarn:
            def dim(turns):
                return d * math.log(64 / (turns * 2 * math.pi)) / (2 * math.log(base))
            low, high = max(math.floor(dim(32)), 0), min(math.ceil(dim(1)), d - 1)
            ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
            frequency = frequency / 40 * ramp + frequency * (1 - ramp)
        return np.arange(TOKENS)[:, None] * frequency

    def turn(self, x):
        """[B, T, ..., rope], pairs (2i, 2i+1) as complex numbers."""
        z = x[..., 0::2] + 1j * x[..., 1::2]
        shape = (1, TOKENS) + (1,) * (x.ndim - 3) + (self.rope // 2,)
        z = z * np.exp(1j * self.angles()).reshape(shape)
        return np.stack([z.real, z.imag], -1).reshape(x.shape)

    def scale(self):
        return (self.nope + self.rope) ** -0.5 * ((0.1 * math.log(40) + 1) ** 2 if self.yarn else 1)

    def stages(self, fault=None, hidden=None):
        """{name: float64}; `fault` is made in the one stage that it is about, and all others follow from it."""
        w = {n.removeprefix(PREFIX).removesuffix(".weight"): t.astype(np.float64) for n, t in self.tensors.items()}
        def norm(x, gain):
            return x if fault == "norm" else x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gain
        drawn = np.random.default_rng(8).standard_normal((BATCH, TOKENS, self.hidden)).astype(np.float32)
        s = {"hidden_states": drawn if hidden is None else hidden}
        x = s["hidden_states"].astype(np.float64)
        if self.q_rank:
            s["q_a"] = x @ w["q_a_proj"].T
            y = s["q_a"] / np.sqrt((s["q_a"] ** 2).mean(-1, keepdims=True) + 1e-6) * w["q_a_layernorm"]
            s["q_a_norm"] = y
            s["query"] = y @ w["q_b_proj"].T
        else:
            s["query"] = x @ w["q_proj"].T
        q = s["query"].reshape(BATCH, TOKENS, self.heads, -1)
        part = {"first": q[..., : self.rope], "halves": q[..., self.nope:]}.get(fault, q[..., self.nope:])
        if fault == "halves":
            order = np.arange(self.rope).reshape(2, -1).T.ravel()
            s["q_rope"] = np.empty_like(part)
            s["q_rope"][..., order] = self.turn(part[..., order])
        else:
            s["q_rope"] = self.turn(part)
        s["kv_a"] = x @ w["kv_a_proj_with_mqa"].T
        s["latent"] = norm(s["kv_a"][..., : self.rank], w["kv_a_layernorm"])
        s["k_rope"] = self.turn(s["kv_a"][..., self.rank:])
        kv = (s["latent"] @ w["kv_b_proj"].T).reshape(BATCH, TOKENS, self.heads, -1)
        scale = (self.nope + self.rope) ** -0.5 if fault == "mscale" else self.scale()
        scores = scale * (np.einsum("bqhd,bkhd->bqhk", q[..., : self.nope], kv[..., : self.nope])
                          + np.einsum("bqhd,bkd->bqhk", s["q_rope"], s["k_rope"]))
        seen = np.tril(np.ones((TOKENS, TOKENS), bool))[None, :, None, :]
        s["scores"] = np.where(seen, scores, -np.inf)
        p = np.exp(s["scores"] - s["scores"].max(-1, keepdims=True))
        s["probabilities"] = p / p.sum(-1, keepdims=True)
        a = np.einsum("bqhk,bkhd->bqhd", s["probabilities"], kv[..., self.nope:])
        s["attention"] = a[:, :, {"heads": [0, 2, 1, 3], "ranks": [2, 3, 0, 1]}.get(fault, [0, 1, 2, 3])]
        s["output"] = s["attention"].reshape(BATCH, TOKENS, -1) @ w["o_proj"].T
        return s


def save(path, stages):
    harness.write_safetensors(path, {n: ("F32", x.shape, x.astype(np.float32).tobytes()) for n, x in stages.items()})
    return path


@pytest.fixture
def verify(tessera, tmp_path):
    """verify(dst, *options) -> {what: judgement}"""

    def run(dst, *options):
        junit = tmp_path / "junit.xml"
        code, out, err = harness.run(tessera, ["verify", "mla", dst, "--device", "cpu", "--json", "-", "--junit", junit, *options])
        assert code in (0, 1), err
        result = json.loads(out)
        assert result["passed"] == (code == 0) == all(j["passed"] for j in result["judgements"])
        failures = xml.etree.ElementTree.parse(junit).getroot().iter("failure")
        assert len(list(failures)) == sum(not j["passed"] for j in result["judgements"])
        return {j["what"]: j for j in result["judgements"]}

    return run


def failed(judgements):
    return {what: j["fault"] for what, j in judgements.items() if not j["passed"]}


@pytest.mark.parametrize("options", [{}, {"q_rank": None}, {"yarn": False}, {"heads": 4, "nope": 24, "v": 40, "rank": 72, "rope": 16}])
def test_stages_equal_those_of_float64(tmp_path, verify, options):
    m = Model(**options)
    stages = m.stages()
    found = verify(m.write(tmp_path / "m"), "--stages", save(tmp_path / "s.safetensors", stages))
    assert set(found) == {f"stage {n}" for n in stages if n != "hidden_states"}
    assert not failed(found)
    assert all(j["relative_error"] < 2e-7 * 3 for j in found.values()), found


@pytest.mark.parametrize("fault, stage, words, options", [
    ("first", "q_rope", "wrong half", ()), ("halves", "q_rope", "pairs (i, i + rope / 2)", ()), ("mscale", "scores", "mscale", ()),
    ("norm", "latent", "norm is skipped", ()), ("heads", "attention", "heads are permuted: 2 of 4, head 1 holds head 2", ()),
    ("ranks", "attention", "rank 0 holds those of rank 1", ("--tp", "2"))])
def test_faults_of_an_implementation_are_named(tmp_path, verify, fault, stage, words, options):
    m = Model()
    found = failed(verify(m.write(tmp_path / "m"), "--stages", save(tmp_path / "s.safetensors", m.stages(fault)), *options))
    assert list(found) == [f"stage {stage}"] and words in found[f"stage {stage}"]


@pytest.mark.parametrize("options", [("--tp", "4", "--fp8-cache"), ("--new-tokens", "3", "--context", "70"),
                                     ("--batch", "1", "--context", "20", "--new-tokens", "20")])
def test_a_sound_layer_passes(tmp_path, verify, options):
    m = Model()
    found = verify(m.write(tmp_path / "m"), *options)
    assert not failed(found)
    identity = found["absorbed = unabsorbed, in double"]
    assert 0 < identity["relative_error"] < 1e-12
    kernels = [j for j in found.values() if j["kind"] == "kernel"]
    ranks = ("their heads", "W_v and W_o uncut, in FP32", "sum against uncut") if "--tp" in options else ()
    assert len(kernels) == 2 + ("--fp8-cache" in options) + len(ranks)  # decode, prefill
    assert all(any(end in j["what"] for j in kernels) for end in ranks)
    assert all(0 < j["of_bound"] < 1 for j in kernels)
    assert all(j["kernel_seconds"] for j in kernels if "uncut, in" not in j["what"])
    naive, latent = m.heads * (m.nope + m.rope + m.v), m.rank + m.rope
    assert any(w.startswith("cache") and f"latent {latent} values" in w and f"naive {naive} " in w for w in found)
    if "--fp8-cache" in options:
        assert 20 < found["FP8 latent cache, BF16 queries"]["sqnr_db"] < found["BF16 latent cache and queries"]["sqnr_db"]
        assert found["heads cut over 4 ranks, outputs added"]["relative_error"] < 1e-12


@pytest.mark.parametrize("weights", ["bf16", "fp8-block", "fp8-head", "fp8-tensor"])
@pytest.mark.parametrize("consumer", ["sglang", "vllm", "trtllm"])
def test_conversions_of_fp8_pass(tessera, tmp_path, verify, quantize, consumer, weights):
    m = Model()
    src = m.write(tmp_path / "src")
    fp8 = quantize(src, "--scheme", "fp8-block")
    dst = tmp_path / "absorbed"
    code, out, err = harness.run(tessera, ["convert", fp8, "-o", dst, "--to", "mla-absorbed", "--consumer", consumer,
                                           "--weights", weights, "--quiet"])
    assert code == 0, err
    found = verify(dst, "--against", src)
    assert not failed(found)
    assert 25 < found["weights: w_kc"]["sqnr_db"] < 40
    source = found["absorbed = unabsorbed, in double, weights of the source"]
    stored = found["absorbed = unabsorbed, in double, weights as stored"]
    assert source["relative_error"] < 1e-12
    assert stored["relative_error"] < 1e-12 if weights == "fp8-block" else 1e-5 < stored["relative_error"] < 0.1


@pytest.mark.parametrize("options", [(), ("--drop-kv-b",)])
@pytest.mark.parametrize("q_rank, v", [(96, 128), (None, 40)])
def test_folded_checkpoints_pass(tessera, tmp_path, verify, options, q_rank, v):
    m = Model(q_rank=q_rank, v=v)
    src, dst = m.write(tmp_path / "src"), tmp_path / "folded"
    code, out, err = harness.run(tessera, ["convert", src, "-o", dst, "--to", "mla-absorbed", "--consumer", "sglang",
                                           "--fold", "--quiet", *options])
    assert code == 0, err
    found = verify(dst, "--against", src, "--tp", "2", "--fp8-cache")
    assert not failed(found)
    assert not [w for w in found if w.startswith("weights")]
    for what in ("stage query", "stage output", "the whole layer"):
        assert 45 < found[what]["sqnr_db"] < 70
    assert any(w.startswith("cache") and f"naive {m.heads * (m.nope + m.rope + m.v)} " in w for w in found)
    assert not failed(verify(dst))
    code, _, err = harness.run(tessera, ["verify", "mla", src, "--against", dst])
    assert code == 3 and "is folded" in err


@pytest.mark.parametrize("order, stages", [((0, 1, 2, 3), set()), ((0, 2, 1, 3), {"stage query", "stage output"})])
def test_faults_of_folded_checkpoints_are_named(tmp_path, verify, order, stages):
    m = Model()
    src = m.write(tmp_path / "src")
    w = {n: m.tensors[PREFIX + n + ".weight"].astype(np.float64) for n in ("q_b_proj", "kv_b_proj", "o_proj")}
    k, v = np.split(w["kv_b_proj"].reshape(m.heads, m.nope + m.v, m.rank)[list(order)], [m.nope], axis=1)
    q = w["q_b_proj"].reshape(m.heads, m.nope + m.rope, -1)
    q = np.concatenate([np.einsum("hnl,hnc->hlc", k, q[:, : m.nope]), q[:, m.nope:]], axis=1)
    o = np.einsum("ohv,hvl->ohl", w["o_proj"].reshape(m.hidden, m.heads, m.v), v)
    m.config["tessera_mla"] = {"folded": True}
    dst = m.write(tmp_path / "dst", **{"q_b_proj.weight": q.reshape(-1, m.q_rank).astype(BF16),
                                       "o_proj.weight": o.reshape(m.hidden, -1).astype(BF16)})
    assert set(failed(verify(dst, "--against", src))) == stages


def absorbed(m, transpose=False, order=(0, 1, 2, 3)):
    kv = m.tensors[PREFIX + "kv_b_proj.weight"].reshape(m.heads, m.nope + m.v, m.rank)[list(order)]
    k = kv[:, : m.nope]
    k = np.ascontiguousarray(k if transpose else k.swapaxes(1, 2)).reshape(m.heads, m.rank, m.nope)
    return {"w_kc": k, "w_vc": np.ascontiguousarray(kv[:, m.nope:])}


@pytest.mark.parametrize("change, what, words", [
    ({"transpose": True}, "weights: w_kc", "transposed within each head"),
    ({"order": (0, 3, 2, 1)}, "weights: w_vc", "heads are permuted: 2 of 4, head 1 holds head 3")])
def test_faults_of_a_checkpoint_are_named(tmp_path, verify, change, what, words):
    m = Model()
    src = m.write(tmp_path / "src")
    assert not failed(verify(m.write(tmp_path / "sound", **absorbed(m)), "--against", src))
    found = failed(verify(m.write(tmp_path / "dst", **absorbed(m, **change)), "--against", src))
    assert words in found[what]
    assert "stage scores" in found


def test_a_config_that_lost_mscale_is_named(tmp_path, verify):
    m = Model()
    src = m.write(tmp_path / "src")
    m.config["rope_scaling"] = YARN | {"mscale_all_dim": 0, "mscale": 0}
    found = failed(verify(m.write(tmp_path / "dst"), "--against", src))
    assert "stage scores" in found and "mscale" in found["stage scores"]


def test_devices(tessera, tmp_path, monkeypatch):
    """Without a GPU, cuda is refused, and auto says that it took the CPU; phases are told everywhere."""
    dst = Model().write(tmp_path / "m")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, _, err = harness.run(tessera, ["verify", "mla", dst, "--device", "cuda"])
    assert code == 5 and "GPU" in err and err.count("\n") == 1
    code, out, err = harness.run(tessera, ["verify", "mla", dst, "--json", "-"])
    assert code == 0, err
    result = json.loads(out)
    assert "GPU" in result["device_note"] and result["device"].startswith("CPU")
    phases = result["phase_seconds"]
    assert min(phases.values()) > 0 and 0.5 * result["seconds"] < sum(phases.values()) <= result["seconds"] + 1e-6, phases
    code, out, err = harness.run(tessera, ["verify", "mla", dst])
    assert code == 0 and "checked on the CPU: " in out and "seconds: read" in out


def test_missing_tensors_are_named(tessera, tmp_path):
    m = Model()
    for name in ("q_a_layernorm.weight", "o_proj.weight"):
        del m.tensors[PREFIX + name]
    code, _, err = harness.run(tessera, ["verify", "mla", m.write(tmp_path / "m"), "--layer", "0"])
    assert code == 3 and "q_a_layernorm.weight, o_proj.weight" in err
    code, _, err = harness.run(tessera, ["verify", "mla", tmp_path / "m", "--tp", "3"])
    assert code in (2, 3)


def test_codes_without_a_scale_are_refused(tessera, tmp_path):
    m = Model()
    codes = np.array(fp8_oracle.quantize(m.tensors[PREFIX + "o_proj.weight"])[0])
    code, _, err = harness.run(tessera, ["verify", "mla", m.write(tmp_path / "m", **{"o_proj.weight": codes})])
    assert code == 3 and "without a scale" in err


def test_a_file_without_stages_does_not_pass(tmp_path, tessera):
    m = Model()
    stages = {"hidden_states": m.stages()["hidden_states"], "of_another_name": np.ones((2, 2))}
    code, out, err = harness.run(tessera, ["verify", "mla", m.write(tmp_path / "m"), "--stages",
                                           save(tmp_path / "s.safetensors", stages), "--device", "cpu"])
    assert code == 3 and "nothing was there that could be judged" in err, out
