"""Tests `tessera verify mla --sparse` against NumPy in float64: the indexer's stages, the tokens that are chosen, and kernels over lists.

Planted faults of stages are named. Layers without an indexer are refused."""

import json
import re

import harness
import numpy as np
from mla_oracle import Model, PREFIX
import pytest

pytestmark = pytest.mark.in_turn

INDEX = PREFIX + "indexer."
STAGES = ("index_q", "index_k", "index_weights", "index_scores")
SMALL = {"heads": 4, "nope": 32, "rope": 16, "v": 32, "rank": 128, "hidden": 64, "q_rank": 48}  # seconds matter under sanitizers


def model(indexer=None, **sizes):
    return Model(**(SMALL | sizes), indexer={"heads": 4, "kept": 12} | (indexer or {}))


def save(path, stages):
    harness.write_safetensors(path, {n: ("F32", x.shape, x.astype(np.float32).tobytes()) for n, x in stages.items()})
    return path


@pytest.fixture
def verify(tessera):
    """verify(dst, *options) -> the result"""

    def run(dst, *options):
        code, out, err = harness.run(tessera, ["verify", "mla", dst, "--sparse", "--device", "cpu", "--json", "-", *options])
        assert code in (0, 1), err
        result = json.loads(out)
        assert result["passed"] == (code == 0)
        return result

    return run


@pytest.fixture
def judgements(verify):
    return lambda *args: {j["what"]: j for j in verify(*args)["judgements"]}


def against_all(judged, of):
    """Returns the judgement of attention to chosen tokens against attention to all."""
    [what] = [what for what in judged if re.fullmatch(f"{of}, \\d+ of \\d+ tokens, against attention to all", what)]
    return judged[what]


def failed(judged):
    return {what: j["fault"] for what, j in judged.items() if not j["passed"]}


@pytest.mark.parametrize("indexer", [{}, {"model_type": "glm_moe_dsa"}, {"heads": 3, "dim": 24}])
def test_stages_equal_those_of_float64(tmp_path, judgements, indexer):
    m = model(indexer)
    stages = m.stages()
    found = judgements(m.write(tmp_path / "m"), "--stages", save(tmp_path / "s.safetensors", stages))
    assert {f"stage {n}" for n in STAGES} <= set(found) and not failed(found)
    assert all(0 < found[f"stage {n}"]["relative_error"] < 6e-7 for n in STAGES), found


@pytest.mark.parametrize("fault, stages, words, family", [
    ("index rope", {"index_q", "index_k"}, "pairs (2i, 2i + 1) instead of (i, i + rope / 2)", "deepseek_v32"),
    ("index rope", {"index_q", "index_k"}, "pairs (i, i + rope / 2) instead of (2i, 2i + 1)", "glm_moe_dsa"),
    ("index norm", {"index_k"}, "the norm is skipped", "deepseek_v32"),
    ("index bias", {"index_k"}, "the bias of k_norm is missing", "deepseek_v32"),
    ("index mean", {"index_k"}, "without the mean", "deepseek_v32"),
    ("index weights", {"index_weights"}, "lack the factor heads^-0.5", "deepseek_v32"),
    ("index relu", {"index_scores"}, "ReLU is missing", "deepseek_v32")])
def test_faults_of_an_implementation_are_named(tmp_path, judgements, fault, stages, words, family):
    m = model({"model_type": family})
    found = failed(judgements(m.write(tmp_path / "m"), "--stages", save(tmp_path / "s.safetensors", m.stages(fault))))
    assert set(found) == {f"stage {n}" for n in stages} and all(words in text for text in found.values())


@pytest.mark.parametrize("options", [("--kv", "fp8", "--top-k", "20"), ("--new-tokens", "3", "--context", "70"),
                                     ("--batch", "1", "--context", "20", "--new-tokens", "20", "--kv", "fp8")])
def test_a_sound_layer_passes(tmp_path, judgements, options):
    found = judgements(model().write(tmp_path / "m"), "--context", "40", *options)
    assert not failed(found)
    batches = [""] if "20" == options[-3] else ["", ", prefill"]
    caches = ("BF16 cache", "FP8 cache") if "fp8" in options else ("BF16 cache",)
    for batch in batches:
        sparse = ", sparse" + batch.removeprefix(",")
        names = [f"cpu, paged decode{sparse}, {cache}{steep}" for cache in caches for steep in ("", ", steep scores")]
        for name in (*names, f"cpu, index scores{batch}"):
            assert found[name]["kind"] == "kernel" and 0 < found[name]["of_bound"] < 1 and found[name]["of_expected_rms"] < 1
        for form in ("FP8, rotated", "FP8"):
            j = found[f"index scores in {form}{batch}"]
            assert 20 < j["sqnr_db"] < 35
        for what in ("BF16 latent cache and queries",) + (("FP8 latent cache, BF16 queries",) if len(caches) == 2 else ()):
            assert against_all(found, f"{what}{sparse}")["passed"]
    assert 0.5 < found[f"index scores in FP8, rotated{batches[-1]}"]["token_agreement"] <= 1


def test_the_result_has_top_k(tmp_path, tessera, verify):
    dst = model().write(tmp_path / "m")
    assert verify(dst, "--context", "20")["top_k"] is None
    assert verify(dst, "--context", "20", "--top-k", "7")["top_k"] == 7
    code, out, _ = harness.run(tessera, ["verify", "mla", dst, "--device", "cpu", "--context", "20", "--json", "-"])
    assert code == 0 and "top_k" not in json.loads(out)


def test_verify_all_checks_the_indexer(tmp_path, tessera):
    """Without --sparse, and only if the layer has one of a known family."""
    for name, change, expected in (("m", {}, True), ("other", {"model_type": "deepseek_v3"}, False)):
        dst = model(change).write(tmp_path / name)
        code, out, err = harness.run(tessera, ["verify", "all", dst, "--against", dst, "--device", "cpu", "--json", "-"])
        mla = json.loads(out)["kinds"]["mla"]
        assert any("index scores" in j["what"] for j in mla["result"]["judgements"]) == expected, err


def test_all_tokens_are_chosen_if_they_are_few(tmp_path, judgements):
    found = judgements(model().write(tmp_path / "m"), "--context", "30", "--top-k", "4096")
    assert not failed(found)
    for batch in ("", " prefill"):
        assert against_all(found, f"BF16 latent cache and queries, sparse{batch}")["sqnr_db"] > 40  # only the cache is rounded
    assert "token_agreement" not in found["index scores in FP8, rotated, prefill"]


def test_some_tokens_are_left_out_by_default(tmp_path, judgements):
    found = judgements(model({"kept": 4096}).write(tmp_path / "m"), "--context", "30")
    words = re.search(r"sparse, (\d+) of (\d+) tokens", "".join(found))
    assert int(words[1]) == (int(words[2]) + 1) // 2
    assert against_all(found, "BF16 latent cache and queries, sparse")["sqnr_db"] < 30
    assert 0.5 < found["index scores in FP8, rotated, prefill"]["token_agreement"] <= 1


def test_another_checkpoint_chooses_other_tokens(tmp_path, judgements, quantize):
    """FP8 weights of the indexer: SQNR and agreement are reported, and equal weights agree in all tokens."""
    m = model(hidden=128, q_rank=128)
    src = m.write(tmp_path / "src")
    found = judgements(src, "--against", src, "--context", "40")
    same = found["index scores, in double, prefill"]
    assert not failed(found) and same["differ"] == 0 and same["token_agreement"] == 1
    found = judgements(quantize(src, "--scheme", "fp8-block"), "--against", src, "--context", "40")
    assert not failed(found)
    j = found["index scores, in double, prefill"]
    assert 20 < j["sqnr_db"] < 40 and 0.5 < j["token_agreement"] < 1
    assert 25 < found["stage index_q"]["sqnr_db"] < 40 and found["stage index_weights"]["differ"] == 0


def test_the_choice_depends_on_top_k(tmp_path, judgements):
    """The fewer tokens are attended to, the further is the result from that over all tokens."""
    dst = model().write(tmp_path / "m")
    found = [judgements(dst, "--context", "40", "--top-k", str(k)) for k in (4, 39, 40)]
    errors = [against_all(one, "BF16 latent cache and queries, sparse")["relative_error"] for one in found]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.02


def test_a_form_that_does_not_fit_is_skipped(tmp_path, verify):
    result = verify(model({"dim": 24}).write(tmp_path / "m"), "--context", "20")
    assert [s["why"] for s in result["skipped"]] == ["index scores in FP8, rotated: index_head_dim is no power of two, so there is no Hadamard matrix"]
    whats = [j["what"] for j in result["judgements"]]
    assert "index scores in FP8" in whats and "cpu, index scores" in whats and "index scores in FP8, rotated" not in whats
    result = verify(model({"dim": 256}).write(tmp_path / "wide"), "--context", "20")
    assert [s["why"] for s in result["skipped"]] == ["index scores in FP8: heads of more than 128 elements need more than one scale"]
    assert not any("index scores" in j["what"] for j in result["judgements"])


def test_a_layer_without_an_indexer_is_refused(tessera, tmp_path):
    m = model()
    for name in ("wk.weight", "k_norm.bias"):
        del m.tensors[INDEX + name]
    harness.expect(tessera, ["verify", "mla", m.write(tmp_path / "m"), "--sparse"], 3, "model.layers.0.self_attn lacks indexer.wk.weight, indexer.k_norm.bias")
    harness.succeed(tessera, ["verify", "mla", tmp_path / "m", "--device", "cpu", "--context", "20"])


@pytest.mark.parametrize("change, words", [
    ({"model_type": "deepseek_v3"}, "model_type deepseek_v3: only the indexers of deepseek_v32 and glm_moe_dsa are known"),
    ({"index_topk": None}, "missing or invalid index_topk"), ({"index_head_dim": 8}, "missing or invalid index_head_dim"),
    ({"indexer_rope_interleave": True}, "unsupported indexer_rope_interleave"), ({"index_n_heads": 5}, "indexer.wq_b")])
def test_a_configuration_that_does_not_fit_is_refused(tessera, tmp_path, change, words):
    m = model()
    m.config |= change
    code, out, err = harness.run(tessera, ["verify", "mla", m.write(tmp_path / "m"), "--sparse", "--device", "cpu"])
    assert code == 3 and words in err and err.count("\n") == 1, out + err


def test_another_indexer_is_refused(tessera, tmp_path):
    src, dst = model({"heads": 2}).write(tmp_path / "src"), model().write(tmp_path / "dst")
    harness.expect(tessera, ["verify", "mla", dst, "--against", src, "--sparse", "--device", "cpu"], 3, "different indexers")


@pytest.mark.parametrize("options, words", [(("--top-k", "5"), "--top-k needs --sparse"), (("--kv", "int8"), "--kv"), (("--fp8-cache",), "--fp8-cache")])
def test_wrong_options_are_refused(tessera, tmp_path, options, words):
    harness.expect(tessera, ["verify", "mla", model().write(tmp_path / "m"), *options], 2, words)


def test_the_text_has_the_share_of_tokens(tessera, tmp_path):
    out = harness.succeed(tessera, ["verify", "mla", model().write(tmp_path / "m"), "--sparse", "--device", "cpu", "--context", "40"])
    line, = (x for x in " ".join(out.split()).split(" ok ") if x.startswith("index scores in FP8, rotated, prefill"))
    assert "% of the chosen tokens" in line
