"""Tests `tessera verify forward` against NumPy in float64: each family layer by layer, two checkpoints, and planted faults."""

import json
import math

import batched
from checkpoints import write
from forward_families import DSA
from forward_oracle import command, EXPERTS, FAMILIES, failed, LAYERS, noisy, softmax, sqnr, verify, VOCABULARY, Whole
import harness
from indexer_oracle import agreement_of_tokens
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn


# ---- another implementation ----

@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_equals_that_of_float64(tmp_path, verify, family):
    m = Whole(family)
    found = verify(m.write(tmp_path / "m"), "--reference", m.reference(tmp_path / "r.safetensors"), "--threads", "3")
    assert [s for s, _ in found] == ["model.embed_tokens", *(f"model.layers.{n}" for n in range(LAYERS)), "model"]
    assert not failed(found)
    assert all(j["relative_error"] < 3e-7 for j in found.values()), found


@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "gpt_oss", "qwen3_next"])
def test_products_in_fp32(tmp_path, openblas, verify, family):
    """OpenBLAS computes the products for all kinds of weights: unquantized, stacks, and kv_b_proj by heads."""
    m = Whole(family)
    words = (m.write(tmp_path / "m"), "--reference", m.reference(tmp_path / "r.safetensors"), "--precision", "fp32", "--threads", "3")
    found = verify(*words)
    double = verify(*words[:3], "--threads", "3")
    assert not failed(found) and all(j["relative_error"] < 1e-5 for j in found.values()), found
    assert any(j["relative_error"] > double[key]["relative_error"] for key, j in found.items())


def test_a_tied_head_in_the_file_is_not_used(tmp_path, verify):
    """Some writers store lm_head with a tied embedding. Loaders use the embedding."""
    m = Whole("qwen2")
    reference = m.reference(tmp_path / "r.safetensors")
    m.tensors["lm_head.weight"] = m.draw(VOCABULARY, m.tensors["model.embed_tokens.weight"].shape[1])
    assert not failed(verify(m.write(tmp_path / "m"), "--reference", reference))


def test_without_states_the_error_of_float32_is_all_there_is(tmp_path, verify):
    m = Whole("deepseek_v3")
    states = [f"hidden_states.{n}" for n in range(LAYERS + 1)]
    found = verify(m.write(tmp_path / "m"), "--reference", m.reference(tmp_path / "r.safetensors", drop=states))
    assert list(found) == [("model", "logits")] and found["model", "logits"]["relative_error"] < 1e-7


@pytest.mark.parametrize("family, fault", [
    ("llama", "rope"), ("qwen3", "head norm"), ("deepseek_v3", "bias"), ("deepseek_v3", "groups"), ("deepseek_v3", "scaling"),
    ("deepseek_v3", "shared"), ("deepseek_v2", "groups"), ("deepseek_v2", "scaling"),
    ("qwen3_next", "head norm"), ("ministral3", "growth"), ("deepseek_v32", "indexer rope")])
def test_a_mistake_is_found_in_its_layer(tmp_path, verify, family, fault):
    m = Whole(family)
    found = verify(m.write(tmp_path / "m"), "--reference", m.reference(tmp_path / "r.safetensors", {1: fault}))
    assert failed(found) == ["model.layers.1"]


def test_a_mistake_is_found_in_a_delta_net(tmp_path, verify):
    m = Whole("qwen3_next")
    found = verify(m.write(tmp_path / "m"), "--reference", m.reference(tmp_path / "r.safetensors", {2: "decay"}))
    assert failed(found) == ["model.layers.2"]


# ---- two checkpoints ----

@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe", "deepseek_v3", "deepseek_v32", "minimax_m3_vl", "qwen3_next"])
def test_what_two_checkpoints_make_of_the_same_tokens(tmp_path, verify, family):
    m = Whole(family)
    other = noisy(m, 0.05)
    (tmp_path / "t.txt").write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", other, m.config)
    found = verify(a, b, "--tokens", tmp_path / "t.txt")
    x, y = (t["model.embed_tokens.weight"].astype(np.float64)[m.tokens] for t in (m.tensors, other))
    for layer in range(LAYERS):
        m.chosen_tokens = None
        behind, chosen = m.run_layer(layer, x, m.tensors)
        seen = m.chosen_tokens
        alone, chosen_alone = m.run_layer(layer, x, other)
        seen_alone = m.chosen_tokens
        y, chosen_there = m.run_layer(layer, y, other)
        subject = f"model.layers.{layer}"
        stream, own = found[subject, "stream of hidden states"], found[subject, "layer alone"]
        assert stream["sqnr_db"] == pytest.approx(sqnr(behind, y), abs=1e-6)
        assert own["sqnr_db"] == pytest.approx(sqnr(behind - x, alone - x), abs=1e-6)
        for judgement, others in ((stream, chosen_there), (own, chosen_alone)):
            alike = None if chosen is None else (chosen[..., None] == others[..., None, :]).any(-1).mean()
            assert judgement.get("agreement") == (None if alike is None else pytest.approx(alike))
        for judgement, others in ((stream, m.chosen_tokens), (own, seen_alone)):
            alike = None if seen is None else agreement_of_tokens(seen, others)
            assert judgement.get("token_agreement") == (None if alike is None else pytest.approx(alike))
        x = behind
    p, q = m.logits(x, m.tensors), m.logits(y, other)
    log_p, log_q = (np.log(softmax(u)) for u in (p, q))
    kl = (np.exp(log_p) * (log_p - log_q)).sum(-1)
    logits = found["model", "logits"]
    assert logits["kl_mean_nats"] == pytest.approx(kl.mean(), rel=1e-6)
    assert logits["kl_max_nats"] == pytest.approx(kl.max(), rel=1e-6)
    assert logits["agreement"] == pytest.approx((p.argmax(-1) == q.argmax(-1)).mean())
    assert logits["sqnr_db"] == pytest.approx(sqnr(p, q), abs=1e-6)
    assert len(found) == 2 * LAYERS + 1


def test_divergence_layer_by_layer(tmp_path, verify, tessera):
    """Each model's hidden state after every layer passes through its own final norm and head. After the last layer these are
    the logits."""
    m = Whole("qwen3_moe")
    other = noisy(m, 0.05)
    (tmp_path / "t.txt").write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", other, m.config)
    found = verify(a, b, "--tokens", tmp_path / "t.txt", "--kl-by-layer")
    plain = verify(a, b, "--tokens", tmp_path / "t.txt")
    x, y = (t["model.embed_tokens.weight"].astype(np.float64)[m.tokens] for t in (m.tensors, other))
    for layer in range(LAYERS):
        x, y = m.run_layer(layer, x, m.tensors)[0], m.run_layer(layer, y, other)[0]
        log_p, log_q = (np.log(softmax(logits)) for logits in (m.logits(x, m.tensors), m.logits(y, other)))
        kl = (np.exp(log_p) * (log_p - log_q)).sum(-1)
        stream = found[f"model.layers.{layer}", "stream of hidden states"]
        assert (stream["kl_mean_nats"], stream["kl_max_nats"]) == (pytest.approx(kl.mean(), rel=1e-6), pytest.approx(kl.max(), rel=1e-6))
        assert {key: value for key, value in stream.items() if not key.startswith("kl_")} == plain[f"model.layers.{layer}", "stream of hidden states"]
    assert stream["kl_mean_nats"] == found["model", "logits"]["kl_mean_nats"] > 0
    _, out, _ = harness.run(tessera, ["verify", "forward", b, "--against", a, "--tokens", tmp_path / "t.txt", "--kl-by-layer", "--exact"])
    shown = [line.split()[-1] for line in out.splitlines() if line.startswith("model.layers.")]
    assert shown == [f"{found[f'model.layers.{layer}', 'stream of hidden states']['kl_mean_nats']:.3g}" for layer in range(LAYERS)]
    harness.expect(tessera, ["verify", "forward", b, "--reference", a, "--kl-by-layer"], 2, "--kl-by-layer")


@pytest.mark.parametrize("options", [("--max-kl", "1e-6"), ("--min-top1", "1")])
def test_limits_of_logits(tmp_path, verify, options):
    m = Whole("llama")
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", noisy(m, 0.02), m.config)
    assert not failed(verify(a, b))
    assert failed(verify(a, b, *options)) == ["model"]


def test_a_layer_is_blamed_for_what_it_does_itself(tmp_path, verify):
    """All experts of layer 1 are shifted by one. Later layers have a wrong input, but pass."""
    m = Whole("qwen3_moe")
    other = {n: x for n, x in m.tensors.items()}
    for e in range(EXPERTS):
        for n in ("gate", "up", "down"):
            other[f"model.layers.1.mlp.experts.{e}.{n}_proj.weight"] = m.tensors[f"model.layers.1.mlp.experts.{(e + 1) % EXPERTS}.{n}_proj.weight"]
    found = verify(m.write(tmp_path / "a"), write(tmp_path / "b", other, m.config))
    assert failed(found) == ["model.layers.1", "model.layers.1", "model"]
    assert found["model.layers.0", "layer alone"]["differ"] == found["model.layers.2", "layer alone"]["differ"] == 0
    assert found["model.layers.2", "stream of hidden states"]["differ"] > 0


def test_other_experts_are_a_fault_by_themselves(tmp_path, verify):
    """All experts of layer 1 are equal, so its output does not depend on the router's choice."""
    m = Whole("qwen3_moe")
    for e in range(1, EXPERTS):
        for n in ("gate", "up", "down"):
            m.tensors[f"model.layers.1.mlp.experts.{e}.{n}_proj.weight"] = m.tensors[f"model.layers.1.mlp.experts.0.{n}_proj.weight"]
    router = "model.layers.1.mlp.gate.weight"
    other = m.tensors | {router: -m.tensors[router]}
    found = verify(m.write(tmp_path / "a"), write(tmp_path / "b", other, m.config))
    assert failed(found) == ["model.layers.1"]
    assert found["model.layers.1", "layer alone"]["fault"] == "more than a quarter of the experts are chosen differently"


def test_other_tokens_are_a_fault_by_themselves(tmp_path, verify, tessera):
    """Layer 0 of the copy, which has no experts, scores tokens with another key. The shares of equal choices are printed
    too."""
    m = Whole("deepseek_v32")
    wk = "model.layers.0.self_attn.indexer.wk.weight"
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", m.tensors | {wk: -m.tensors[wk]}, m.config)
    found = verify(a, b)
    assert {s: j["fault"] for (s, what), j in found.items() if what == "layer alone" and j["fault"]} == {
        "model.layers.0": "more than a quarter of the tokens are chosen differently"}
    _, out, _ = harness.run(tessera, command(a, b))
    shares = [f"{100 * found['model.layers.0', what]['token_agreement']:.2f} %" for what in ("stream of hidden states", "layer alone")]
    assert f"tokens chosen by both: {shares[0]}, and {shares[1]} in the layer alone" in out
    assert "and 100.00 % in the layer alone" in out


def test_threads_and_layers(tmp_path, verify):
    m = Whole("deepseek_v3")
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", noisy(m, 0.01), m.config)
    one, four = (verify(a, b, "--threads", n, "--batch", "3", "--count", "17", "--seed", "4") for n in (1, 4))
    assert one == four
    some = verify(a, b, "--layers", "1..2")
    assert [s for s, _ in some] == ["model.layers.1"] * 2 + ["model.layers.2"] * 2 + ["model"]
    assert len(verify(a, b, "--layers", "1")) == 3


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_little_memory_changes_no_bit(tmp_path, tessera, family):
    """Sequences of both models run one after another, with the smallest memory that is accepted."""
    m = Whole(family)
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", noisy(m, 0.01), m.config)
    words = command(a, b, "--batch", "5", "--count", "9", "--json", "-")
    runs = (harness.run(tessera, [*words, "--memory", n]) for n in range(10_000, 2_000_000, 5_000))
    little = next(json.loads(out) for code, out, _ in runs if code in (0, 1))
    whole = json.loads(harness.run(tessera, words)[1])
    assert little["judgements"] == whole["judgements"]
    assert little["weight_bytes_read"] > whole["weight_bytes_read"]


@pytest.mark.parametrize("family, words", [("llama", []), ("qwen3_moe", ["--exact"]), ("deepseek_v3", []),
                                           ("qwen3_5_text", ["--exact"])])
def test_no_bit_depends_on_the_number_of_devices(tmp_path, tessera, quantize, family, words):
    """Rows of weights are divided among devices, which the CPU simulates: also rows of heads, and numbers of rows that are
    not multiples."""
    a = Whole(family).write(tmp_path / "a")
    words = ["verify", "forward", quantize(a), "--against", a, "--count", "12", *words, "--json", "-"]
    one, *more = (json.loads(harness.run(tessera, [*words, "--devices", n])[1]) for n in ("1", "2", "3", "16"))
    for n, result in zip((2, 3, 16), more, strict=True):
        assert result["devices"] == n and result["judgements"] == one["judgements"]
        assert result["activation_bytes"] > one["activation_bytes"]  # that of tokens, on each device that took a share
    for n, limit in (("0", "at least 1"), ("17", "at most 16")):
        harness.expect(tessera, [*words, "--devices", n], 2, "--devices: ", limit)


@pytest.mark.parametrize("scheme", [("fp8-block",), ("int8-weight-only",), ("int4-weight-only", "--group-size", "32")])
def test_every_scheme_is_read(tmp_path, verify, quantize, checkpoint, scheme):
    for kind in ("llama", "qwen3-moe", "deepseek-v3"):
        found = verify(checkpoint(kind), quantize(checkpoint(kind), "--scheme", *scheme), "--count", "16")
        assert not failed(found)
        alone = [j["sqnr_db"] for (_, what), j in found.items() if what == "layer alone"]
        assert len(alone) > 1 and all(10 < sqnr < 60 for sqnr in alone), found


@pytest.mark.parametrize("fold", [(), ("--fold",)])
def test_absorbed_attention_is_the_same(tmp_path, verify, tessera, checkpoint, fold):
    src = checkpoint("deepseek-v3")
    harness.succeed(tessera, ["convert", src, "-o", tmp_path / "out", "--to", "mla-absorbed", "--consumer", "sglang",
                              "--quiet", *fold])
    found = verify(src, tmp_path / "out", "--count", "16")
    least = 40 if fold else 200  # products of weights are rounded to BF16
    assert found and all(j["differ"] == 0 or j["sqnr_db"] > least for j in found.values()), found


# ---- refusals ----

MIMO = {"model_type": "mimo_v2_flash", "v_head_dim": 12, "partial_rotary_factor": 0.5}

@pytest.mark.parametrize("arguments, config, code, words", [
    (["a"], {}, 2, "no source given"),
    (["a", "--reference", "bad.txt", "--against", "a"], {}, 2, "not both"),
    (["a", "a", "--layers", "2..3"], {}, 2, "layers 0..2"),
    (["a", "a", "--layers", "x"], {}, 2, "is not A..B"),
    (["a", "a", "--count", "0"], {}, 2, "at least 1"),
    (["a", "a", "--tokens", "bad.txt"], {}, 3, "bad.txt, line 2"),
    (["a", "a", "--tokens", "none.txt"], {}, 3, "no tokens"),
    (["a", "a", "--tokens", "minus.txt"], {}, 3, "must not be negative"),
    (["a", "a"], {"model_type": "llama4"}, 3, "llama4"),
    (["a", "a"], {"hidden_act": "gelu"}, 3, "gelu"),
    (["a", "a"], {"sliding_window": 32}, 3, "sliding_window"),
    (["a", "a"], {"rope_scaling": {"type": "dynamic", "factor": 2}}, 3, "dynamic"),
    (["a", "a"], {"rope_theta": 10000, "rope_parameters": {"rope_theta": 5e5}}, 3, "rope_theta is 10000, but rope_parameters.rope_theta is 500000"),
    (["a", "a"], {"rope_parameters": {"rope_theta": 500}, "rope_scaling": {"rope_theta": 1e6}}, 3, "rope_scaling.rope_theta is 1000000"),
    (["a", "a"], {"num_hidden_layers": 4}, 3, "model.layers.3.input_layernorm.weight"),
    (["a", "a"], {"head_dim": 32}, 3, "q_proj.weight"),
    (["a", "a"], {"head_dim": 32.0}, 3, 'config.json: "head_dim": 32.0 is a value of the wrong type'),
    (["a", "a"], {"rope_theta": float("inf")}, 3, '"rope_theta": Infinity is a value of the wrong type'),
    (["a", "a"], {"rope_theta": "1e6"}, 3, '"rope_theta": "1e6" is a value of the wrong type'),
    (["a", "a"], {"rms_norm_eps": True}, 3, '"rms_norm_eps": true is'),
    (["a", "a"], {"hidden_act": 1}, 3, '"hidden_act": 1 is'),
    (["a", "a"], {"tie_word_embeddings": "true"}, 3, '"tie_word_embeddings": "true" is'),
    (["a", "a"], {"scoring_func": "sqrtsoftplus"}, 3, "sqrtsoftplus"),
    (["a", "a"], {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, 3, "layer_types[1] is 'sliding_attention'"),
    (["a", "a"], {"model_type": "olmo3", "layer_types": ["full_attention", "linear_attention", "full_attention"]}, 3,
     "layer_types[1] is 'linear_attention'"),
    (["a", "a"], {"model_type": "olmo3", "sliding_window": 4}, 3, "sliding_window without layer_types"),
    (["a", "a"], {"model_type": "smollm3", "no_rope_layers": [1]}, 3, "no_rope_layers must have 3"),
    (["a", "a"], {"model_type": "olmoe", "clip_qkv": 8.0}, 3, "clip_qkv"),
    (["a", "a"], {"model_type": "arcee", "hidden_act": "silu"}, 3, "silu"),
    (["a", "a"], {"model_type": "olmo2"}, 3, "q_norm.weight"),
    (["a", "a"], {"partial_rotary_factor": 0.5}, 3, "partial_rotary_factor"),
    (["a", "a"], {"model_type": "qwen3_5_text", "layer_types": ["linear_attention", "sliding_attention", "full_attention"]}, 3,
     "layer_types[1] is 'sliding_attention'"),
    (["a", "a"], {"model_type": "qwen3_5_text", "partial_rotary_factor": 0.5}, 3, "linear_num_value_heads"),
    (["a", "a"], {"model_type": "qwen3_5_text", "hidden_act": "gelu_pytorch_tanh"}, 3, "hidden_act"),
    (["a", "a"], {"model_type": "ministral3"}, 3, "llama_4_scaling_beta"),
    (["a", "a"], {"model_type": "cohere", "use_qk_norm": True}, 3, "use_qk_norm"),
    (["a", "a"], {"model_type": "gemma4_text"}, 3, "hidden_size_per_layer_input"),
    (["a", "a"], {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 1}, 3, "num_kv_shared_layers"),
    (["a", "a"], {"model_type": "granitemoehybrid"}, 3, "no layer_types"),
    (["a", "a"], {"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [3]}}, 3, "must list 3 layers"),
    (["a", "a"], {"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": [1, 2, 4]}}, 3, "not a list of layers"),
    (["a", "a"], {"model_type": "kimi_linear", "moe_renormalize": False}, 3, "moe_renormalize"),
    (["a", "a"], {"model_type": "granitemoehybrid", "layer_types": ["mamba"] * 3}, 3, "mamba_n_heads"),
    (["a", "a"], {"model_type": "granitemoehybrid", "time_step_limit": [0.001, 0.1]}, 3, "time_step_limit"),
    (["a", "a"], {"model_type": "nemotron_h", "hidden_act": "relu2", "hybrid_override_pattern": "M*X"}, 3, "[2] is 'X'"),
    (["a", "a"], {"model_type": "nemotron_h", "hidden_act": "relu2", "moe_latent_size": 64}, 3, "moe_latent_size"),
    (["a", "a"], {"model_type": "nemotron_h", "hidden_act": "relu2", "mamba_hidden_act": "gelu"}, 3, "mamba_hidden_act"),
    (["a", "a"], {"model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "factor": 2}}, 3, "dynamic"),
    (["a", "a"], {"model_type": "deepseek_v32"}, 3, "index_topk"),
    (["a", "a"], {"model_type": "deepseek_v32", **DSA, "index_topk_freq": 2}, 3, "unsupported index_topk_freq"),
    (["a", "a"], {"model_type": "deepseek_v32", **DSA, "indexer_rope_interleave": True}, 3, "unsupported indexer_rope_interleave"),
    (["a", "a"], {"model_type": "deepseek_v32", **DSA, "layer_types": ["full_attention"] * 3}, 3, "layer_types[0] is 'full_attention'"),
    (["a", "a"], {"model_type": "glm_moe_dsa", **DSA, "indexer_types": ["full", "shared"]}, 3, "indexer_types"),
    (["a", "a"], {"model_type": "glm_moe_dsa", **DSA, "indexer_types": ["shared", "full", "full"]}, 3, "indexer_types"),
    (["a", "a"], {"model_type": "glm_moe_dsa", **DSA, "index_topk_pattern": "FSX"}, 3, "unsupported index_topk_pattern"),
    (["a", "a"], {"model_type": "minimax_m3_vl", "sparse_attention_config": {"sparse_init_block": 1}}, 3, "sparse_init_block"),
    (["a", "a"], {"model_type": "minimax_m3_vl", "attention_output_gate": True}, 3, "unsupported attention_output_gate"),
    (["a", "a"], {"model_type": "minimax_m3_vl", "sparse_attention_config": {"sparse_attention_freq": [0, 1]}}, 3, "must have 3 numbers"),
    (["a", "a"], {"model_type": "minimax_m3_vl"}, 3, "routed_scaling_factor"),
    (["a", "a"], {"model_type": "minimax_m3_vl", "routed_scaling_factor": 2.0, "sparse_attention_config": {"sparse_attention_freq": [0, 1, 1]}}, 3,
     "index_n_heads"),
    (["a", "a"], {"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1]}, 3, "hybrid_layer_pattern must have 3"),
    (["a", "a"], {**MIMO, "swa_head_dim": 24}, 3, "unsupported swa_head_dim"),
    (["a", "a"], {**MIMO, "add_full_attention_sink_bias": True}, 3, "add_full_attention_sink_bias"),
    (["a", "a"], {**MIMO, "v_head_dim": 0}, 3, "v_head_dim"),
    (["a", "a"], {"model_type": "minimax_m3_vl", "swiglu_alpha": 1.5}, 3, "swiglu_alpha"),
])
def test_refusals(tmp_path, tessera, arguments, config, code, words):
    Whole("llama").write(tmp_path / "a", **config)
    for name, text in (("bad", "1 2\n3 97\n"), ("none", "[]\n"), ("minus", "1 -2\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    words_of = [tmp_path / a if a == "a" or a.endswith(".txt") else a for a in arguments]
    harness.expect(tessera, command(*words_of), code, words)


def test_a_reference_of_nothing_does_not_pass(tmp_path, tessera):
    m = Whole("llama")
    arrays = [f"hidden_states.{n}" for n in range(LAYERS + 1)] + ["logits"]
    reference = m.reference(tmp_path / "r.safetensors", drop=arrays)
    harness.expect(tessera, command(m.write(tmp_path / "m"), "--reference", reference), 3, "nothing to judge")


def test_a_source_of_nan_is_no_measure(tmp_path, verify):
    """If the source alone has NaN, there is nothing to sum up, and the check fails."""
    sound, spoilt = Whole("llama"), Whole("llama")
    norm = spoilt.tensors["model.norm.weight"]
    norm[:] = np.nan
    found = verify(spoilt.write(tmp_path / "a"), sound.write(tmp_path / "b"))
    assert failed(found) == ["model"] and found["model", "logits"]["fault"] == "NaN or Inf in the source"
    spoilt = Whole("llama")
    spoilt.tensors["model.layers.1.post_attention_layernorm.weight"][:] = np.nan
    found = verify(spoilt.write(tmp_path / "c"), tmp_path / "b")
    assert {"model.layers.1", "model.layers.2", "model"} <= set(failed(found))


def test_sides_are_named(tmp_path, tessera):
    """Two positional checkpoints would also pass in the wrong order, so they are rejected with a remedy."""
    a, b = (Whole("llama").write(tmp_path / n) for n in "ab")
    harness.expect(tessera, ["verify", "forward", a, b], 2, "verify forward DST --against SRC")


def test_a_window_that_no_sequence_fills_is_no_matter(tmp_path, verify):
    a = Whole("llama").write(tmp_path / "a", sliding_window=32)
    assert not failed(verify(a, a, "--count", "32"))
    b = Whole("llama").write(tmp_path / "b", sliding_window=32, use_sliding_window=False)
    assert not failed(verify(b, b))


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3", "glm_moe_dsa", "minimax_m3_vl", "qwen3_next", "nemotron_h"])
@pytest.mark.parametrize("lie", [0, -1, 1, 3, 7, 2**31, 2**64, 1e300, "x", None, [], {}, True])
def test_configurations_that_lie(tmp_path, tessera, family, lie):
    """For any value of a key there is a result or a one-line error."""
    m, commands = Whole(family), {}
    (weights,) = m.write(tmp_path / "weights").glob("*.safetensors")
    for key in dict.fromkeys([*m.config, "topk_method", "scoring_func", "sliding_window", "rope_parameters", "tie_word_embeddings"]):
        a = tmp_path / key
        a.mkdir()
        (a / weights.name).hardlink_to(weights)
        (a / "config.json").write_text(json.dumps(m.config | {key: lie}))
        commands[key, "forward"] = command(a, a, "--count", "4")
        commands[key, "mla"] = ["verify", "mla", a, "--context", "4"]
    ended = dict(zip(commands, batched.run_batch(tessera, list(commands.values()), tmp_path), strict=True))
    assert any(code == 0 for code, _ in ended.values())  # a key that is not read may say anything
    for what, (code, err) in ended.items():
        assert code in (0, 1) or (code in (2, 3, 4) and err.startswith("tessera: ") and err.count("\n") == 1), (what, code, err)


def test_token_files(tmp_path, verify):
    """One sequence per line and JSON arrays are equivalent. Sequences may have different lengths, and are truncated."""
    m = Whole("qwen3")
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", noisy(m, 0.01), m.config)
    (tmp_path / "lines").write_text("1 2 3\n\n40\n5, 6 7 8 9\n")
    (tmp_path / "arrays").write_text("[[1, 2, 3], [40],\n [5, 6, 7, 8, 9, 10]]")
    found = [verify(a, b, "--tokens", tmp_path / n, "--count", "5") for n in ("lines", "arrays")]
    assert found[0] == found[1]
    assert found[0]["model", "logits"]["elements"] == (3 + 1 + 5) * VOCABULARY


# ---- a baseline ----

def test_gains_over_a_baseline(tmp_path, tessera):
    """Gains of layers are ratios of the errors that verify reports for each. A baseline that is nearer to SRC fails."""
    m = Whole("qwen3")
    src = m.write(tmp_path / "src")
    near, far = (write(tmp_path / name, noisy(m, amount), m.config) for name, amount in (("near", 0.01), ("far", 0.04)))
    (tmp_path / "t.txt").write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
    result = tmp_path / "result.json"

    def run(dst, *options):
        code, out, err = harness.run(tessera, ["verify", "forward", dst, "--against", src, "--tokens", tmp_path / "t.txt", "--exact", "--min-sqnr", "0",
                                               "--min-stream", "0", "--json", result, *options])
        return code, out, json.loads(result.read_text())

    (_, _, of_near), (_, _, of_far) = run(near), run(far)
    assert of_near["baseline"] is None
    code, out, got = run(near, "--baseline", far)
    assert code == 0 and got["passed"] and "baseline" in out
    assert {k: v for k, v in got.items() if k != "baseline"}.keys() == {k: v for k, v in of_near.items() if k != "baseline"}.keys()
    alone = [[10 ** (-j["sqnr_db"] / 10) for j in r["judgements"] if j["what"] == "layer alone"] for r in (of_near, of_far)]
    gains = [10 * math.log10(b / a) for a, b in zip(*alone)]
    baseline = got["baseline"]
    assert baseline["least_gain_db"] == pytest.approx(min(gains)) and baseline["most_gain_db"] == pytest.approx(max(gains))
    assert baseline["least_gain_at"] == f"model.layers.{gains.index(min(gains))}"
    assert (baseline["layers"], baseline["layers_worse"]) == (LAYERS, 0) and baseline["checkpoint"] == str(far)
    kl = [[j["kl_mean_nats"] for j in r["judgements"] if j["what"] == "logits"][0] for r in (of_near, of_far)]
    assert kl[0] < kl[1] and baseline["kl_mean_nats"] == kl[1] and baseline["perplexity"] == of_far["perplexity"]
    code, out, got = run(far, "--baseline", near)
    assert code == 1 and not got["passed"] and "the predictions of the baseline are nearer" in out and got["baseline"]["layers_worse"] == LAYERS
    harness.expect(tessera, ["verify", "forward", src, "--reference", result, "--baseline", near], 2, "--baseline")
