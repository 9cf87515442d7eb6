"""Tests `tessera verify forward` and `calibrate` of DeepSeek-V4 against NumPy in float64."""

from checkpoints import write
from compressed_oracle import Compressed, EXPERTS, FLAT, NESTED, RATES, TOKENS, TYPES, VOCABULARY
from forward_oracle import failed, noisy, sqnr, verify
import harness
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn
SUBJECTS = ["model.embed_tokens", *(f"model.layers.{n}" for n in range(len(TYPES))), "model"]


@pytest.mark.parametrize("ropes", [FLAT, NESTED], ids=["release", "transformers"])
def test_every_layer_equals_that_of_float64(tmp_path, verify, ropes):
    m = Compressed(ropes)
    found = verify(m.write(tmp_path / "m"), "--reference", m.reference(tmp_path / "r.safetensors"), "--threads", "3")
    assert [s for s, _ in found] == SUBJECTS
    assert not failed(found) and all(j["relative_error"] < 3e-7 for j in found.values()), found


@pytest.mark.parametrize("layer, fault", [(2, "entries"), (1, "overlap"), (0, "back"), (1, "table"), (3, "mix")])
def test_a_mistake_is_found_in_its_layer(tmp_path, verify, layer, fault):
    m = Compressed()
    found = verify(m.write(tmp_path / "m"), "--reference", m.reference(tmp_path / "r.safetensors", {layer: fault}))
    assert failed(found) == [f"model.layers.{layer}"]


def agreement_of_entries(x, y):
    """Returns the share of x's entries that y also has, for queries that do not see all entries."""
    limited = x.sum(-1) < (np.arange(TOKENS) + 1) // RATES["compressed_sparse_attention"]
    return (x & y)[limited].sum() / x[limited].sum()


def test_what_two_checkpoints_make_of_the_same_tokens(tmp_path, verify):
    m = Compressed()
    other = noisy(m, 0.03)
    (tmp_path / "t.txt").write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
    found = verify(m.write(tmp_path / "a"), write(tmp_path / "b", other, m.config), "--tokens", tmp_path / "t.txt")
    x, y = m.embed(m.tensors), m.embed(other)
    for layer in range(len(TYPES)):
        behind, chosen = m.run_layer(layer, x, m.tensors)
        seen = m.chosen_tokens
        y, chosen_there = m.run_layer(layer, y, other)
        stream = found[f"model.layers.{layer}", "stream of hidden states"]
        assert stream["sqnr_db"] == pytest.approx(sqnr(behind, y), abs=1e-6)
        assert stream["agreement"] == pytest.approx((chosen[..., None] == chosen_there[..., None, :]).any(-1).mean())
        alike = None if seen is None else agreement_of_entries(seen, m.chosen_tokens)
        assert stream.get("token_agreement") == (None if alike is None else pytest.approx(alike))
        x = behind
    assert found["model", "logits"]["sqnr_db"] == pytest.approx(sqnr(m.logits(x, m.tensors), m.logits(y, other)), abs=1e-6)


def test_layers_are_told_by_the_ratios_of_the_release(tmp_path, verify):
    """Without layer_types, compress_ratios has 0, 4 and 128, and one more number for the MTP layer."""
    m = Compressed()
    reference = m.reference(tmp_path / "r.safetensors")
    del m.config["layer_types"]
    found = verify(m.write(tmp_path / "m", compress_ratios=[0, 4, 128, 4, 0]), "--reference", reference)
    assert not failed(found)


def test_statistics_of_the_grouped_projection(tmp_path, tessera):
    """The rows of wo_a are divided among groups of heads. The statistics of its inputs are those of all groups."""
    m = Compressed()
    src, tokens, out = m.write(tmp_path / "m"), tmp_path / "t.npy", tmp_path / "s.safetensors"
    np.save(tokens, m.tokens.astype(np.int32))
    harness.succeed(tessera, ["calibrate", src, "--tokens", tokens, "--count", m.tokens.shape[1], "-o", out, "--quiet"])
    x = m.embed(m.tensors)
    for layer in range(len(TYPES)):
        x, _ = m.run_layer(layer, x, m.tensors)
    found = harness.read_safetensors(out)[1]
    for module, rows in m.inputs.items():
        mean = np.frombuffer(found[f"{module}.input_mean_square"][2], np.float32)
        np.testing.assert_allclose(mean, (rows**2).mean(0), rtol=1e-5)


@pytest.mark.parametrize("change, message", [
    ({"hc_mult": 17}, "hc_mult"), ({"num_key_value_heads": 2}, "num_key_value_heads"), ({"o_groups": 3}, "o_groups"),
    ({"qk_rope_head_dim": 7}, "qk_rope_head_dim"), ({"layer_types": ["full_attention"] * 4}, "layer_types[0] is 'full_attention'"),
    ({"layer_types": None, "compress_ratios": [0, 4, 64, 4]}, "compress_ratios[2] is 64"), ({"scoring_func": "tanh"}, "scoring_func 'tanh'")])
def test_what_is_not_computed_is_refused(tmp_path, tessera, change, message):
    m = Compressed()
    src = m.write(tmp_path / "m", **change)
    harness.expect(tessera, ["verify", "forward", src, "--against", src, "--count", "5"], 3, message)


def test_a_table_with_an_expert_that_does_not_exist(tmp_path, tessera):
    m = Compressed()
    m.tensors["layers.1.ffn.gate.tid2eid"] = np.full((VOCABULARY, 2), EXPERTS)
    src = m.write(tmp_path / "m")
    harness.expect(tessera, ["verify", "forward", src, "--against", src, "--count", "5"], 3, "'layers.1.ffn.gate.tid2eid'[", f"is not one of {EXPERTS} experts")
