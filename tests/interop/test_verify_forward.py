"""`tessera verify forward` against NumPy in float64: the families written from their formulas, layer by layer; what two
checkpoints make of the same tokens; and mistakes of implementations and checkpoints, found where they are."""

import json
import math

from checkpoints import write
import harness
import ml_dtypes
from mla_oracle import BATCH, Model, TOKENS
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16
HIDDEN, HEADS, KV_HEADS, DIM, INNER, LAYERS, VOCABULARY, EXPERTS, CHOSEN, EPS = 64, 4, 2, 16, 96, 3, 97, 8, 3, 1e-6
BASE = {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM,
        "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "rms_norm_eps": EPS, "rope_theta": 500.0,
        "hidden_act": "silu", "num_experts_per_tok": CHOSEN}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
# "traits" are the tensors that a family has.
FAMILIES = {
    "llama": {"model_type": "llama", "rope_scaling": LLAMA3, "traits": set()},
    "mistral": {"model_type": "mistral", "rope_scaling": {"type": "linear", "factor": 4.0}, "traits": set()},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "traits": {"bias", "tied"}},
    "qwen3": {"model_type": "qwen3", "traits": {"head norms"}},
    "qwen3_moe": {"model_type": "qwen3_moe", "norm_topk_prob": True, "traits": {"head norms", "experts"}},
    "deepseek_v2": {"model_type": "deepseek_v2", "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                    "routed_scaling_factor": 2.0, "norm_topk_prob": False, "traits": {"latent", "experts", "shared"}},
    "deepseek_v3": {"model_type": "deepseek_v3", "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
                    "norm_topk_prob": True, "traits": {"latent", "experts", "shared", "sigmoid"}},
}


def rms_norm(x, gain):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * gain


def softmax(x):
    p = np.exp(x - x.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


class Whole:
    """A model of three layers, the first without experts, and its forward pass."""

    def __init__(self, family):
        self.config = BASE | FAMILIES[family]
        self.traits = self.config.pop("traits")
        self.rng = np.random.default_rng(5)
        self.tokens = self.rng.integers(0, VOCABULARY, (BATCH, TOKENS))
        self.attention = [Model(q_rank=48, nope=16, rope=8, v=12, rank=32, hidden=HIDDEN, seed=s) for s in range(LAYERS)]
        if "latent" in self.traits:
            self.config |= self.attention[0].config
        self.tensors = {"model.embed_tokens.weight": self.draw(VOCABULARY, HIDDEN, scale=1),
                        "model.norm.weight": self.gain(HIDDEN)}
        if "tied" not in self.traits:
            self.tensors["lm_head.weight"] = self.draw(VOCABULARY, HIDDEN)
        for layer in range(LAYERS):
            self.tensors |= {f"model.layers.{layer}.{n}": x for n, x in self.layer_tensors(layer).items()}

    def draw(self, *shape, scale=None):
        return (self.rng.standard_normal(shape) * (scale or shape[-1] ** -0.5)).astype(BF16)

    def gain(self, n):
        return self.rng.uniform(0.5, 2, n).astype(BF16)

    def mlp(self, prefix):
        return {f"{prefix}.{n}_proj.weight": self.draw(*s)
                for n, s in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER)))}

    def layer_tensors(self, layer):
        t = {"input_layernorm.weight": self.gain(HIDDEN), "post_attention_layernorm.weight": self.gain(HIDDEN)}
        if "latent" in self.traits:
            t |= {n.removeprefix("model.layers.0."): x for n, x in self.attention[layer].tensors.items()}
        else:
            for n, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
                t[f"self_attn.{n}_proj.weight"] = self.draw(heads * DIM, HIDDEN)
                if "bias" in self.traits:
                    t[f"self_attn.{n}_proj.bias"] = self.draw(heads * DIM, scale=0.5)
                if "head norms" in self.traits and n != "v":
                    t[f"self_attn.{n}_norm.weight"] = self.gain(DIM)
            t["self_attn.o_proj.weight"] = self.draw(HIDDEN, HEADS * DIM)
        if "experts" not in self.traits or layer == 0:
            return t | self.mlp("mlp")
        t["mlp.gate.weight"] = self.draw(EXPERTS, HIDDEN)
        if "sigmoid" in self.traits:
            t["mlp.gate.e_score_correction_bias"] = self.rng.uniform(0, 0.5, EXPERTS).astype(np.float32)
        for e in range(EXPERTS):
            t |= self.mlp(f"mlp.experts.{e}")
        return t | (self.mlp("mlp.shared_experts") if "shared" in self.traits else {})

    def write(self, path, **config):
        return write(path, self.tensors, self.config | config)

    # ---- the pass ----

    def frequency(self):
        f = 500.0 ** -(np.arange(0, DIM, 2) / DIM)
        scaling = self.config.get("rope_scaling") or {}
        if scaling.get("type") == "linear":
            return f / scaling["factor"]
        if scaling.get("rope_type") != "llama3":
            return f
        wave, trained = 2 * math.pi / f, scaling["original_max_position_embeddings"]
        smooth = (trained / wave - 1) / (4 - 1)
        return np.where(wave > trained / 1, f / 8, np.where(wave < trained / 4, f, (1 - smooth) * f / 8 + smooth * f))

    def grouped(self, w, x, fault):
        angle = np.arange(TOKENS)[:, None] * self.frequency()
        cos, sin = (np.concatenate([u, u], -1)[None, :, None] for u in (np.cos(angle), np.sin(angle)))

        def heads(name):
            y = x @ w[f"self_attn.{name}_proj.weight"].T + w.get(f"self_attn.{name}_proj.bias", 0)
            y = y.reshape(BATCH, TOKENS, -1, DIM)
            if f"self_attn.{name}_norm.weight" in w and fault != "head norm":
                y = rms_norm(y, w[f"self_attn.{name}_norm.weight"])
            half = np.concatenate([-y[..., DIM // 2:], y[..., : DIM // 2]], -1)
            return y if name == "v" or fault == "rope" else y * cos + half * sin

        q, k, v = heads("q"), heads("k"), heads("v")
        k, v = (np.repeat(u, HEADS // KV_HEADS, axis=2) for u in (k, v))
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(DIM)
        scores = np.where(np.tril(np.ones((TOKENS, TOKENS), bool)), scores, -np.inf)
        out = np.einsum("bhqk,bkhd->bqhd", softmax(scores), v)
        return out.reshape(BATCH, TOKENS, -1) @ w["self_attn.o_proj.weight"].T

    def run_mlp(self, w, prefix, x):
        gate = x @ w[f"{prefix}.gate_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * (x @ w[f"{prefix}.up_proj.weight"].T)) @ w[f"{prefix}.down_proj.weight"].T

    def route(self, w, x, fault):
        """(chosen experts, their weights) of each token."""
        logits = x @ w["mlp.gate.weight"].T
        scores = 1 / (1 + np.exp(-logits)) if "sigmoid" in self.traits else softmax(logits)
        keys = scores + (w.get("mlp.gate.e_score_correction_bias", 0) if fault != "bias" else 0)
        groups = self.config.get("n_group", 1)
        if groups > 1 and fault != "groups":
            grouped = np.sort(keys.reshape(*keys.shape[:-1], groups, -1), -1)
            rank = grouped[..., -2:].sum(-1) if "sigmoid" in self.traits else grouped[..., -1]
            kept = np.argsort(-rank, -1)[..., : self.config["topk_group"]]
            mask = np.zeros(rank.shape, bool)
            np.put_along_axis(mask, kept, True, -1)
            keys = np.where(np.repeat(mask, EXPERTS // groups, -1), keys, -np.inf)
        chosen = np.argsort(-keys, -1)[..., :CHOSEN]
        weights = np.take_along_axis(scores, chosen, -1)
        if self.config.get("norm_topk_prob"):
            weights = weights / weights.sum(-1, keepdims=True)
        return chosen, weights * (self.config.get("routed_scaling_factor", 1) if fault != "scaling" else 1)

    def run_layer(self, layer, x, tensors, fault=None):
        """(hidden states behind it, chosen experts or None)"""
        prefix = f"model.layers.{layer}."
        w = {n.removeprefix(prefix): t.astype(np.float64) for n, t in tensors.items() if n.startswith(prefix)}
        normed = rms_norm(x, w["input_layernorm.weight"])
        if "latent" in self.traits:
            m = self.attention[layer]
            m.tensors = {f"model.layers.0.{n}": t for n, t in w.items() if n.startswith("self_attn.")}
            x = x + m.stages(hidden=normed)["output"]
        else:
            x = x + self.grouped(w, normed, fault)
        normed = rms_norm(x, w["post_attention_layernorm.weight"])
        if "mlp.gate.weight" not in w:
            return x + self.run_mlp(w, "mlp", normed), None
        chosen, weights = self.route(w, normed, fault)
        added = np.zeros_like(x)
        for e in range(EXPERTS):
            share = np.where(chosen == e, weights, 0).sum(-1, keepdims=True)
            added += share * self.run_mlp(w, f"mlp.experts.{e}", normed)
        if "shared" in self.traits and fault != "shared":
            added += self.run_mlp(w, "mlp.shared_experts", normed)
        return x + added, chosen

    def logits(self, x, tensors):
        head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).astype(np.float64)
        return rms_norm(x, tensors["model.norm.weight"].astype(np.float64)) @ head.T

    def run(self, faults=None, tensors=None):
        """What a reference file holds; `faults`: {layer: mistake}."""
        tensors = tensors or self.tensors
        x = tensors["model.embed_tokens.weight"].astype(np.float64)[self.tokens]
        out = {"hidden_states.0": x}
        for layer in range(LAYERS):
            x, _ = self.run_layer(layer, x, tensors, (faults or {}).get(layer))
            out[f"hidden_states.{layer + 1}"] = x
        return out | {"logits": self.logits(x, tensors)}

    def reference(self, path, faults=None, drop=()):
        arrays = {n: x for n, x in self.run(faults).items() if n not in drop}
        harness.write_safetensors(path, {n: ("F32", x.shape, x.astype(np.float32).tobytes()) for n, x in arrays.items()}
                                  | {"input_ids": ("I64", self.tokens.shape, self.tokens.astype(np.int64).tobytes())})
        return path


def command(*arguments):
    """verify forward; SRC and DST in front of the options become DST --against SRC."""
    if len(arguments) > 1 and not str(arguments[1]).startswith("--"):
        arguments = [arguments[1], "--against", arguments[0], *arguments[2:]]
    return ["verify", "forward", *arguments]


@pytest.fixture
def verify(tessera):
    """verify(*arguments) -> {(subject, what): judgement}"""

    def run(*arguments):
        code, out, err = harness.run(tessera, [*command(*arguments), "--json", "-"])
        assert code in (0, 1), err
        result = json.loads(out)
        assert result["passed"] == (code == 0) == all(j["passed"] for j in result["judgements"])
        return {(j["subject"], j["what"]): j for j in result["judgements"]}

    return run


def failed(judgements):
    return [subject for (subject, _), j in judgements.items() if not j["passed"]]


# ---- another implementation ----

@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_equals_that_of_float64(tmp_path, verify, family):
    m = Whole(family)
    found = verify(m.write(tmp_path / "m"), "--reference", m.reference(tmp_path / "r.safetensors"), "--threads", "3")
    assert [s for s, _ in found] == ["model.embed_tokens", *(f"model.layers.{n}" for n in range(LAYERS)), "model"]
    assert not failed(found)
    assert all(j["relative_error"] < 3e-7 for j in found.values()), found


def test_without_states_the_error_of_float32_is_all_there_is(tmp_path, verify):
    m = Whole("deepseek_v3")
    states = [f"hidden_states.{n}" for n in range(LAYERS + 1)]
    found = verify(m.write(tmp_path / "m"), "--reference", m.reference(tmp_path / "r.safetensors", drop=states))
    assert list(found) == [("model", "logits")] and found["model", "logits"]["relative_error"] < 1e-7


@pytest.mark.parametrize("family, fault", [
    ("llama", "rope"), ("qwen3", "head norm"), ("deepseek_v3", "bias"), ("deepseek_v3", "groups"), ("deepseek_v3", "scaling"),
    ("deepseek_v3", "shared"), ("deepseek_v2", "groups"), ("deepseek_v2", "scaling")])
def test_a_mistake_is_found_in_its_layer(tmp_path, verify, family, fault):
    m = Whole(family)
    found = verify(m.write(tmp_path / "m"), "--reference", m.reference(tmp_path / "r.safetensors", {1: fault}))
    assert failed(found) == ["model.layers.1"]


# ---- two checkpoints ----

def noisy(m, amount):
    rng = np.random.default_rng(9)
    return {n: x if "norm" in n or x.dtype != BF16 else (x.astype(np.float64) * (1 + amount * rng.standard_normal(x.shape))).astype(BF16)
            for n, x in m.tensors.items()}


def sqnr(x, y):
    return 10 * math.log10((x**2).sum() / ((x - y) ** 2).sum())


@pytest.mark.parametrize("family", ["qwen2", "qwen3_moe", "deepseek_v3"])
def test_what_two_checkpoints_make_of_the_same_tokens(tmp_path, verify, family):
    m = Whole(family)
    other = noisy(m, 0.05)
    (tmp_path / "t.txt").write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", other, m.config)
    found = verify(a, b, "--tokens", tmp_path / "t.txt")
    x, y = (t["model.embed_tokens.weight"].astype(np.float64)[m.tokens] for t in (m.tensors, other))
    for layer in range(LAYERS):
        behind, chosen = m.run_layer(layer, x, m.tensors)
        alone, chosen_alone = m.run_layer(layer, x, other)
        y, chosen_there = m.run_layer(layer, y, other)
        subject = f"model.layers.{layer}"
        stream, own = found[subject, "stream of hidden states"], found[subject, "layer alone"]
        assert stream["sqnr_db"] == pytest.approx(sqnr(behind, y), abs=1e-6)
        assert own["sqnr_db"] == pytest.approx(sqnr(behind - x, alone - x), abs=1e-6)
        for judgement, others in ((stream, chosen_there), (own, chosen_alone)):
            alike = None if chosen is None else (chosen[..., None] == others[..., None, :]).any(-1).mean()
            assert judgement.get("agreement") == (None if alike is None else pytest.approx(alike))
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
    """Each model's stream through its own final norm and head, after every layer; behind the last one that is the logits'."""
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
    _, out, _ = harness.run(tessera, ["verify", "forward", b, "--against", a, "--tokens", tmp_path / "t.txt", "--kl-by-layer"])
    shown = [line.split()[-1] for line in out.splitlines() if line.startswith("model.layers.")]
    assert shown == [f"{found[f'model.layers.{layer}', 'stream of hidden states']['kl_mean_nats']:.3g}" for layer in range(LAYERS)]
    code, _, err = harness.run(tessera, ["verify", "forward", b, "--reference", a, "--kl-by-layer"])
    assert code == 2 and "--kl-by-layer" in err


@pytest.mark.parametrize("options", [("--max-kl", "1e-6"), ("--min-top1", "1.01")])
def test_limits_of_logits(tmp_path, verify, options):
    m = Whole("llama")
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", noisy(m, 0.05), m.config)
    assert not failed(verify(a, b))
    assert failed(verify(a, b, *options)) == ["model"]


def test_a_layer_is_blamed_for_what_it_does_itself(tmp_path, verify):
    """All experts of layer 1 are shifted by one: what comes behind it has a wrong input, and is not blamed."""
    m = Whole("qwen3_moe")
    other = {n: x for n, x in m.tensors.items()}
    for e in range(EXPERTS):
        for n in ("gate", "up", "down"):
            other[f"model.layers.1.mlp.experts.{e}.{n}_proj.weight"] = m.tensors[f"model.layers.1.mlp.experts.{(e + 1) % EXPERTS}.{n}_proj.weight"]
    found = verify(m.write(tmp_path / "a"), write(tmp_path / "b", other, m.config))
    assert failed(found) == ["model.layers.1"]
    assert found["model.layers.0", "layer alone"]["differ"] == found["model.layers.2", "layer alone"]["differ"] == 0
    assert found["model.layers.2", "stream of hidden states"]["differ"] > 0


def test_threads_and_layers(tmp_path, verify):
    m = Whole("deepseek_v3")
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", noisy(m, 0.01), m.config)
    one, four = (verify(a, b, "--threads", n, "--batch", "3", "--count", "17", "--seed", "4") for n in (1, 4))
    assert one == four
    some = verify(a, b, "--layers", "1..2")
    assert [s for s, _ in some] == ["model.layers.1"] * 2 + ["model.layers.2"] * 2 + ["model"]
    assert len(verify(a, b, "--layers", "1")) == 3


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
    code, _, err = harness.run(tessera, ["convert", src, "-o", tmp_path / "out", "--to", "mla-absorbed", "--consumer", "sglang",
                                         "--quiet", *fold])
    assert code == 0, err
    found = verify(src, tmp_path / "out", "--count", "16")
    least = 40 if fold else 200  # products of weights are rounded to BF16
    assert found and all(j["differ"] == 0 or j["sqnr_db"] > least for j in found.values()), found


# ---- refusals ----

@pytest.mark.parametrize("arguments, config, code, words", [
    (["a"], {}, 2, "held to what?"),
    (["a", "--reference", "bad.txt", "--against", "a"], {}, 2, "not both"),
    (["a", "a", "--layers", "2..3"], {}, 2, "layers 0..2"),
    (["a", "a", "--layers", "x"], {}, 2, "takes A..B"),
    (["a", "a", "--count", "0"], {}, 2, "from 1 to"),
    (["a", "a", "--tokens", "bad.txt"], {}, 3, "bad.txt, line 2"),
    (["a", "a", "--tokens", "none.txt"], {}, 3, "no tokens"),
    (["a", "a", "--tokens", "minus.txt"], {}, 3, "not negative"),
    (["a", "a"], {"model_type": "gpt_oss"}, 3, "gpt_oss"),
    (["a", "a"], {"hidden_act": "gelu"}, 3, "gelu"),
    (["a", "a"], {"sliding_window": 32}, 3, "sliding_window"),
    (["a", "a"], {"rope_scaling": {"type": "dynamic", "factor": 2}}, 3, "dynamic"),
    (["a", "a"], {"num_hidden_layers": 4}, 3, "model.layers.3.input_layernorm.weight"),
    (["a", "a"], {"head_dim": 32}, 3, "q_proj.weight"),
])
def test_refusals(tmp_path, tessera, arguments, config, code, words):
    Whole("llama").write(tmp_path / "a", **config)
    for name, text in (("bad", "1 2\n3 97\n"), ("none", "[]\n"), ("minus", "1 -2\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    words_of = [tmp_path / a if a == "a" or a.endswith(".txt") else a for a in arguments]
    got, _, err = harness.run(tessera, command(*words_of))
    assert got == code and words in err, (got, err)


def test_a_reference_of_nothing_does_not_pass(tmp_path, tessera):
    m = Whole("llama")
    arrays = [f"hidden_states.{n}" for n in range(LAYERS + 1)] + ["logits"]
    reference = m.reference(tmp_path / "r.safetensors", drop=arrays)
    code, _, err = harness.run(tessera, command(m.write(tmp_path / "m"), "--reference", reference))
    assert code == 3 and "nothing to judge" in err


def test_a_source_of_nan_is_no_measure(tmp_path, verify):
    """What is NaN in the source only leaves nothing to sum up, which is no likeness."""
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
    """Two checkpoints in a row would pass the wrong way round, too: they are refused, and the sentence says how."""
    a, b = (Whole("llama").write(tmp_path / n) for n in "ab")
    code, _, err = harness.run(tessera, ["verify", "forward", a, b])
    assert code == 2 and "verify forward DST --against SRC" in err


def test_a_window_that_no_sequence_fills_is_no_matter(tmp_path, verify):
    a = Whole("llama").write(tmp_path / "a", sliding_window=32)
    assert not failed(verify(a, a, "--count", "32"))
    b = Whole("llama").write(tmp_path / "b", sliding_window=32, use_sliding_window=False)
    assert not failed(verify(b, b))


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize("lie", [0, -1, 1, 3, 7, 2**31, 2**64, 1e300, "x", None, [], {}, True])
def test_configurations_that_lie(tmp_path, tessera, family, lie):
    """Whatever a key says, there is a result or one sentence."""
    m = Whole(family)
    a = m.write(tmp_path / "a")
    for key in [*m.config, "topk_method", "scoring_func", "sliding_window", "rope_parameters", "tie_word_embeddings"]:
        (a / "config.json").write_text(json.dumps(m.config | {key: lie}))
        for words in command(a, a, "--count", "4"), ["verify", "mla", a, "--context", "4"]:
            code, _, err = harness.run(tessera, words, cpu=60)
            assert code in (0, 1) or (code in (2, 3, 4) and err.startswith("tessera: ") and err.count("\n") == 1), (key, code, err)


def test_token_files(tmp_path, verify):
    """A line a sequence, and JSON arrays, are the same; sequences may be ragged, and are cut."""
    m = Whole("qwen3")
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", noisy(m, 0.01), m.config)
    (tmp_path / "lines").write_text("1 2 3\n\n40\n5, 6 7 8 9\n")
    (tmp_path / "arrays").write_text("[[1, 2, 3], [40],\n [5, 6, 7, 8, 9, 10]]")
    found = [verify(a, b, "--tokens", tmp_path / n, "--count", "5") for n in ("lines", "arrays")]
    assert found[0] == found[1]
    assert found[0]["model", "logits"]["elements"] == (3 + 1 + 5) * VOCABULARY
