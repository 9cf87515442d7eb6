"""Tests fold: the function of the model is unchanged to the bit, exponents are those of a search in NumPy, unknown layers are refused."""

import json

from checkpoints import BF16, load, read, write
from forward_oracle import EXPERTS, LAYERS, Whole
import harness
from int_oracle import quantized
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn

LATENT = ["deepseek_v3", "deepseek_v32", "glm_moe_dsa"]
PROJECTIONS = ("q_a_proj.weight", "q_b_proj.weight", "kv_b_proj.weight", "wq_b.weight", "wk.weight", "weights_proj.weight")
SCHEME = "int4-weight-only --group-size 32"
FAMILIES = ["llama", "qwen2", "qwen3_moe", "qwen2_moe", "mixtral", "glm4_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe_lite"]


def outliers(m):
    """Makes some channels of norms and of preceding layers much larger, as in trained models."""
    rng = np.random.default_rng(4)
    for name, w in m.tensors.items():
        if name.endswith("layernorm.weight"):
            m.tensors[name] = (w.astype(np.float32) * 2.0 ** rng.integers(-3, 4, w.shape)).astype(BF16)
        elif name.endswith(("up_proj.weight", "w3.weight", "v_proj.weight")):
            m.tensors[name] = (w.astype(np.float32) * 2.0 ** rng.integers(-3, 4, (len(w), 1))).astype(BF16)
    return m


@pytest.fixture
def fold(tmp_path, tessera):
    """fold(model, *options, scheme) -> (source, output, file of tokens, statistics, result)"""
    def run(m, *options, scheme=SCHEME):
        src, tokens, stats, dst = tmp_path / "m", tmp_path / "t.txt", tmp_path / "stats.safetensors", tmp_path / "folded"
        if not src.exists():
            m.write(src)
        tokens.write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
        if not stats.exists():
            harness.succeed(tessera, ["calibrate", src, "--tokens", tokens, "-o", stats, "--min-tokens", "0", "--device", "cpu"])
        harness.succeed(tessera, ["fold", src, "-o", dst, "--importance", stats, "--scheme", scheme, "--force", "--json", tmp_path / "r.json", *options])
        return src, dst, tokens, stats, json.loads((tmp_path / "r.json").read_text())
    return run


def exponents(before, after):
    """Returns the powers of two between two tensors, for elements of the first that are not 0."""
    x, y = before.astype(np.float64), after.astype(np.float64)
    e = np.log2(np.where(x == 0, 1, y) / np.where(x == 0, 1, x))
    assert np.array_equal(e, np.rint(e))
    return np.where(x == 0, 0, e).astype(int)


def sets_of(m):
    """Returns [(producer, its bias or None, consumers, columns of a consumer that read each channel)]."""
    names, c = m.tensors, m.config
    found = []

    def add(producer, consumers, bias=None, columns=lambda x: x[:, None]):
        consumers = [n for n in consumers if n in names]
        if producer in names and consumers:
            found.append((producer, bias if bias in names else None, consumers, columns(np.arange(len(names[producer])))))
    for layer in range(LAYERS):
        p = f"model.layers.{layer}."
        attention, moe = p + "self_attn.", p + m.moe()
        add(p + "input_layernorm.weight", [attention + f"{n}.weight" for n in ("q_proj", "k_proj", "v_proj", "q_a_proj", "kv_a_proj_with_mqa", "indexer.wk", "indexer.weights_proj")])
        add(attention + "q_a_layernorm.weight", [attention + "q_b_proj.weight", attention + "indexer.wq_b.weight"])
        add(attention + "kv_a_layernorm.weight", [attention + "kv_b_proj.weight"])
        heads, kv = c["num_attention_heads"], c["num_key_value_heads"]
        dim = len(names.get(attention + "v_proj.weight", [])) // kv
        add(attention + "v_proj.weight", [attention + "o_proj.weight"], attention + "v_proj.bias",
            lambda x: np.array([[(k // dim * (heads // kv) + h) * dim + k % dim for h in range(heads // kv)] for k in x]))
        mlps = [p + "mlp"] + [f"{moe}.experts.{e}" for e in range(EXPERTS)] + [p + "mlp.shared_expert", p + "mlp.shared_experts"]
        leaves = [(f"{x}.{gate}.weight", f"{x}.{up}.weight", f"{x}.{down}.weight") for x in mlps
                  for gate, up, down in (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))]
        add(p + "post_attention_layernorm.weight",
            [moe + ".gate.weight", p + "mlp.shared_expert_gate.weight"] + [n for gate, up, _ in leaves for n in (gate, up)])
        for _, up, down in leaves:
            add(up, [down])
    return found


def loss(w, e, importance):
    """Returns the weighted error of a layer whose columns are multiplied by 2^e, quantized and divided again."""
    scaled = (w.astype(np.float64) * 2.0**e).astype(np.float32)
    codes, scale, _ = quantized(scaled, 4, 32, dtype=BF16)
    y = (codes.reshape(len(w), -1, 32) * scale[..., None]).reshape(w.shape) / 2.0**e
    return (importance * (w.astype(np.float64) - y) ** 2).sum()


@pytest.mark.parametrize("family, scheme", [*((family, SCHEME) for family in FAMILIES), *((family, "int8-weight-only") for family in LATENT)])
def test_the_function_is_the_same(fold, tessera, family, scheme):
    """Schemes of 4 bits keep latent attention, so it is scaled for 8 bits only."""
    m = outliers(Whole(family))
    src, dst, tokens, _, result = fold(m, "--threads", "3", scheme=scheme)
    assert result["sets_scaled"] > 0 and result["gain_db"] > 0
    out = harness.succeed(tessera, ["verify", "forward", dst, "--against", src, "--tokens", tokens, "--exact", "--device", "cpu", "--json", "-"])
    judgements = json.loads(out)["judgements"]
    assert judgements and all(j["relative_error"] == 0 for j in judgements)
    before, after = load(src), load(dst)
    assert before.keys() == after.keys() and (src / "config.json").read_text() == (dst / "config.json").read_text()
    assert any(not np.array_equal(before[n], after[n]) for n in before)
    if scheme != SCHEME:
        assert all(exponents(before[n], after[n]).any() for n in before if ".self_attn." in n and n.endswith(PROJECTIONS))


@pytest.mark.parametrize("family", FAMILIES)
def test_exponents_are_those_of_a_search(fold, tessera, tmp_path, family):
    m = outliers(Whole(family))
    src, dst, _, stats, result = fold(m)
    out = harness.succeed(tessera, ["quantize", src, "-o", tmp_path / "q", "--scheme", *SCHEME.split(), "--dry-run", "--json", "-"])
    quantizes = {t["name"] for t in json.loads(out)["plan"] if t["action"] == "quantize"}
    before, after, means = load(src), load(dst), read(stats)
    scaled, found = 0, {n: np.zeros(w.shape, int) for n, w in before.items()}
    sets = sets_of(m)
    for producer, bias, consumers, columns in sets:
        total = [n for n in consumers if "expert" not in n or n.endswith("shared_expert_gate.weight")] or consumers
        c = means[total[0].removesuffix("weight") + "input_mean_square"].astype(np.float64)
        if np.any(c > 0) and means[total[0].removesuffix("weight") + "input_tokens"][0] > 0:
            rms = 0.5 * np.log2(c[columns].mean(1))
            rms = np.maximum(rms, rms.max() - 20)
            rms -= (rms.max() + rms.min()) / 2
        else:
            rms = np.zeros(len(columns))
        tried = []
        for step in range(21):
            e = np.rint(step * rms / 20).astype(int)
            of_columns = np.zeros(columns.size, int)
            of_columns[columns] = e[:, None]
            total_loss = 0
            for n in consumers:
                mean = means.get(n.removesuffix("weight") + "input_mean_square")
                if n in quantizes and mean is not None and mean.any():
                    total_loss += loss(before[n], of_columns, mean.astype(np.float64) / mean.astype(np.float64).mean())
            tried.append((total_loss, of_columns, e))
        best = min(range(21), key=lambda i: tried[i][0])
        _, of_columns, e = tried[best]
        scaled += best > 0
        for n in consumers:
            found[n] += of_columns
        found[producer] -= e if found[producer].ndim == 1 else e[:, None]
        if bias:
            found[bias] -= e
    for n, w in before.items():
        assert np.array_equal(exponents(w, after[n])[w != 0], found[n][w != 0]), n
    assert (result["sets"], result["sets_scaled"]) == (len(sets), scaled) and scaled > 3


def test_bytes_do_not_depend_on_threads(fold):
    m = outliers(Whole("qwen3_moe"))
    _, dst, _, _, _ = fold(m, "--threads", "1")
    first = {p.name: p.read_bytes() for p in dst.glob("*.safetensors")}
    _, dst, _, _, _ = fold(m, "--threads", "7", "--cpumask", "0")
    assert first == {p.name: p.read_bytes() for p in dst.glob("*.safetensors")}


def test_four_bits_lose_less(tmp_path, fold, tessera):
    """The divergence after quantization decreases, with statistics of the folded model."""
    m = outliers(Whole("llama"))
    src, dst, tokens, stats, _ = fold(m)
    new, kl = tmp_path / "new.safetensors", []
    harness.succeed(tessera, ["calibrate", dst, "--tokens", tokens, "-o", new, "--device", "cpu"])
    for name, source, statistics in (("plain", src, stats), ("better", dst, new)):
        out = tmp_path / name
        harness.succeed(tessera, ["quantize", source, "-o", out, "--scheme", *SCHEME.split(), "--importance", statistics])
        code, text, err = harness.run(tessera, ["verify", "forward", out, "--against", src, "--tokens", tokens, "--exact", "--device", "cpu", "--json", "-"])
        kl.append([j["kl_mean_nats"] for j in json.loads(text)["judgements"] if j["what"] == "logits"][0])
    assert kl[1] < 0.9 * kl[0], kl


def test_a_second_run_verifies(fold, tessera, tmp_path):
    m = outliers(Whole("llama"))
    src, dst, _, stats, _ = fold(m)
    words = ["fold", src, "-o", dst, "--importance", stats, "--scheme"]
    assert "already complete" in harness.succeed(tessera, [*words, SCHEME])
    harness.expect(tessera, [*words, "nvfp4-weight-only"], 2, str(dst))


def test_refusals(tmp_path, tessera, fold, quantize):
    m = Whole("llama")
    src, _, _, stats, _ = fold(m)

    def refused(code, words, source, *options):
        harness.expect(tessera, ["fold", source, "-o", tmp_path / "no", "--importance", stats, *options], code, words)
    refused(3, "'model.layers.1.mlp.extra.weight' is not a tensor", write(tmp_path / "more", m.tensors | {"model.layers.1.mlp.extra.weight": m.tensors["model.norm.weight"]}, m.config))
    for family in ("gemma2", "gpt_oss"):
        other = Whole(family)
        refused(3, f"fold knows no model_type '{family}'", other.write(tmp_path / family))
    refused(3, "already quantized", quantize(src, "--scheme", "int8-weight-only"))
    refused(2, "int5", src, "--scheme", "int5")
    refused(2, "name the scheme", src, "--scheme", "keep")
    harness.expect(tessera, ["fold", src, "-o", tmp_path / "no"], 2, "--importance FILE")
    nothing = harness.write_json(tmp_path / "nothing.json", {"model.layers.9.mlp.up_proj": {"input_mean_square": [1.0] * 64}})
    harness.expect(tessera, ["fold", src, "-o", tmp_path / "no", "--importance", nothing], 3, "no data for any layer")


def test_a_product_that_is_not_exact_is_refused(fold, tmp_path, tessera):
    m = outliers(Whole("llama"))
    src, _, _, stats, _ = fold(m)
    name = "model.layers.1.input_layernorm.weight"
    tensors = dict(m.tensors)
    tensors[name] = np.full(64, 3 * 2.0**-133, BF16)  # subnormal: half of it is not in BF16
    got, _, err = harness.run(tessera, ["fold", write(tmp_path / "tiny", tensors, m.config), "-o", tmp_path / "no", "--importance", stats, "--scheme", SCHEME])
    assert got == 3 and name in err and "is not exact in BF16" in err
