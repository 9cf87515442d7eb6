"""Tests `tessera verify mla` against NumPy in float64: correct stages pass, planted faults in stages and checkpoints are named.

Also tests reading the parts of each conversion."""

import json
import xml.etree.ElementTree

from checkpoints import BF16
import fp8_oracle
import harness
from mla_oracle import Model, PREFIX, YARN
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn

FEW = ("--context", "32")  # where weights are what is judged, not the kernels over several pages of a cache


def save(path, stages):
    harness.write_safetensors(path, {n: ("F32", x.shape, x.astype(np.float32).tobytes()) for n, x in stages.items()})
    return path


@pytest.fixture
def verify(tessera, tmp_path):
    """Returns verify(dst, *options) -> {what: judgement}."""

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


def test_a_nan_of_the_checkpoint_is_no_kernels_fault(tmp_path, verify):
    m = Model()
    path = m.write(tmp_path / "m")
    file, = path.glob("*.safetensors")
    metadata, tensors = harness.read_safetensors(file)
    name = next(n for n in tensors if n.endswith("kv_a_proj_with_mqa.weight"))
    dtype, shape, data = tensors[name]
    tensors[name] = (dtype, shape, b"\xff" * 4 + data[4:])
    harness.write_safetensors(file, tensors, metadata)
    judged, = verify(path).values()
    assert judged["kind"] == "checkpoint" and f"{name} gives nan in stage kv_a" in judged["fault"].replace("-nan", "nan")


@pytest.mark.parametrize("fault, stage, words, options", [
    ("first", "q_rope", "wrong half", ()), ("halves", "q_rope", "pairs (i, i + rope / 2)", ()), ("mscale", "scores", "mscale", ()),
    ("norm", "latent", "norm is skipped", ()), ("heads", "attention", "heads are permuted: 2 of 4, head 1 holds head 2", ()),
    ("ranks", "attention", "rank 0 holds those of rank 1", ("--tp", "2"))])
def test_faults_of_an_implementation_are_named(tmp_path, verify, fault, stage, words, options):
    m = Model()
    found = failed(verify(m.write(tmp_path / "m"), "--stages", save(tmp_path / "s.safetensors", m.stages(fault)), *options))
    assert list(found) == [f"stage {stage}"] and words in found[f"stage {stage}"]


@pytest.mark.parametrize("options", [("--tp", "4", "--kv", "fp8"), ("--new-tokens", "3", "--context", "70"),
                                     ("--batch", "1", "--context", "20", "--new-tokens", "20")])
def test_a_sound_layer_passes(tmp_path, verify, options):
    m = Model()
    found = verify(m.write(tmp_path / "m"), *options)
    assert not failed(found)
    identity = found["absorbed = unabsorbed, in double"]
    assert 0 < identity["relative_error"] < 1e-12
    kernels = [j for j in found.values() if j["kind"] == "kernel"]
    ranks = ("their heads", "W_v and W_o uncut, in FP32", "sum against uncut") if "--tp" in options else ()
    assert len(kernels) == 4 + ("fp8" in options) + len(ranks)  # decode and prefill, with steep scores too
    assert all(any(end in j["what"] for j in kernels) for end in ranks)
    assert all(0 < j["of_bound"] < 1 for j in kernels)
    assert all(j["kernel_seconds"] for j in kernels if "uncut, in" not in j["what"])
    naive, latent = m.heads * (m.nope + m.rope + m.v), m.rank + m.rope
    assert any(w.startswith("cache") and f"latent {latent} values" in w and f"naive {naive} " in w for w in found)
    if "fp8" in options:
        assert 20 < found["FP8 latent cache, BF16 queries"]["sqnr_db"] < found["BF16 latent cache and queries"]["sqnr_db"]
        assert found["heads divided among 4 ranks, outputs added"]["relative_error"] < 1e-12


@pytest.mark.parametrize("weights", ["bf16", "fp8-block", "fp8-head", "fp8-tensor"])
@pytest.mark.parametrize("consumer", ["sglang", "vllm", "trtllm"])
def test_conversions_of_fp8_pass(tessera, tmp_path, verify, quantize, consumer, weights):
    m = Model()
    src = m.write(tmp_path / "src")
    fp8 = quantize(src, "--scheme", "fp8-block")
    dst = tmp_path / "absorbed"
    harness.succeed(tessera, ["convert", fp8, "-o", dst, "--to", "mla-absorbed", "--consumer", consumer,
                              "--weights", weights, "--quiet"])
    found = verify(dst, "--against", src, *FEW)
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
    harness.succeed(tessera, ["convert", src, "-o", dst, "--to", "mla-absorbed", "--consumer", "sglang",
                              "--fold", "--quiet", *options])
    found = verify(dst, "--against", src, "--tp", "2", "--kv", "fp8", *FEW)
    assert not failed(found)
    assert not [w for w in found if w.startswith("weights")]
    for what in ("stage query", "stage output", "the whole layer"):
        assert 45 < found[what]["sqnr_db"] < 70
    assert any(w.startswith("cache") and f"naive {m.heads * (m.nope + m.rope + m.v)} " in w for w in found)
    assert not failed(verify(dst, *FEW))
    harness.expect(tessera, ["verify", "mla", src, "--against", dst], 3, "is folded")


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
    assert not failed(verify(m.write(tmp_path / "sound", **absorbed(m)), "--against", src, *FEW))
    found = failed(verify(m.write(tmp_path / "dst", **absorbed(m, **change)), "--against", src, *FEW))
    assert words in found[what]
    assert "stage scores" in found


def test_a_config_that_lost_mscale_is_named(tmp_path, verify):
    m = Model()
    src = m.write(tmp_path / "src")
    m.config["rope_scaling"] = YARN | {"mscale_all_dim": 0, "mscale": 0}
    found = failed(verify(m.write(tmp_path / "dst"), "--against", src))
    assert "stage scores" in found and "mscale" in found["stage scores"]


def test_devices(tessera, tmp_path, monkeypatch):
    """Without a GPU, cuda is rejected, and auto reports that it used the CPU. Phases are reported in both cases."""
    dst = Model().write(tmp_path / "m")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    code, _, err = harness.run(tessera, ["verify", "mla", dst, "--device", "cuda"])
    assert code == 5 and "GPU" in err and err.count("\n") == 1
    out = harness.succeed(tessera, ["verify", "mla", dst, "--json", "-"])
    result = json.loads(out)
    assert "GPU" in result["device_note"] and result["device"].startswith("CPU")
    phases = result["phase_seconds"]
    assert min(phases.values()) > 0 and 0.5 * result["seconds"] < sum(phases.values()) <= result["seconds"] + 1e-6, phases
    harness.shows(tessera, ["verify", "mla", dst], 0, "checked on the CPU: ", "seconds: read")


def test_missing_tensors_are_named(tessera, tmp_path):
    m = Model()
    for name in ("q_a_layernorm.weight", "o_proj.weight"):
        del m.tensors[PREFIX + name]
    harness.expect(tessera, ["verify", "mla", m.write(tmp_path / "m"), "--layer", "0"], 3, "q_a_layernorm.weight, o_proj.weight")
    code, _, err = harness.run(tessera, ["verify", "mla", tmp_path / "m", "--tp", "3"])
    assert code in (2, 3)


def test_codes_without_a_scale_are_refused(tessera, tmp_path):
    m = Model()
    codes = np.array(fp8_oracle.quantize(m.tensors[PREFIX + "o_proj.weight"])[0])
    harness.expect(tessera, ["verify", "mla", m.write(tmp_path / "m", **{"o_proj.weight": codes})], 3, "without a supported scale")


def test_a_file_without_stages_does_not_pass(tmp_path, tessera):
    m = Model()
    stages = {"hidden_states": m.stages()["hidden_states"], "of_another_name": np.ones((2, 2))}
    code, out, err = harness.run(tessera, ["verify", "mla", m.write(tmp_path / "m"), "--stages",
                                           save(tmp_path / "s.safetensors", stages), "--device", "cpu"])
    assert code == 3 and "nothing could be judged" in err, out
