"""Tests sensitivities: divergences of each group against NumPy in float64, errors of weights, and what plan-schemes does with the file."""

import json
import statistics

from checkpoints import load, write
from forward_oracle import Whole, noisy, softmax
import harness
import numpy as np
import pytest

pytestmark = pytest.mark.in_turn

FAMILIES = ["llama", "gemma2", "qwen2_moe", "mixtral", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "minimax_m3_vl", "gpt_oss", "qwen3_next", "qwen3_5_moe"]


@pytest.fixture
def probe(tmp_path, tessera, quantize):
    """Returns probe(family) -> (model, its folder, a quantized one, its values, a file of tokens). Values are exact in BF16."""
    def make(family):
        m = Whole(family)
        src = m.write(tmp_path / "m")
        made_from, scheme = src, ("mxfp4", "--dialect", "gpt-oss") if family == "gpt_oss" else ("mxfp4-weight-only",)
        if "indexer" in m.traits:  # 4 bits keep it, and 8 bits of the same weights change no choice of so few tokens
            made_from, scheme = write(tmp_path / "noisy", noisy(m, 0.5), m.config), ("mxfp8-weight-only",)
        dst = quantize(made_from, "--scheme", *scheme)
        harness.succeed(tessera, ["convert", dst, "-o", tmp_path / "plain", "--to", "bf16"])
        tokens = tmp_path / "t.txt"
        tokens.write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
        return m, src, dst, {of_text(n): x for n, x in load(tmp_path / "plain").items()}, tokens
    return make


def of_text(name):
    """Returns the name of a multimodal model's weight in the text model that the oracle has."""
    return name.replace("model.language_model.", "model.", 1)


@pytest.fixture
def measure(tmp_path, tessera):
    """Returns measure(SRC, DST, tokens, *options) -> (the path of the file, its contents, stdout)."""
    def run(src, dst, tokens, *options):
        path = tmp_path / "sensitivities.json"
        out = harness.succeed(tessera, ["sensitivities", src, "--against", dst, "--tokens", tokens, "-o", path, "--device", "cpu", *options])
        return path, json.loads(path.read_text()), out
    return run


def divergence(m, tensors):
    p, q = (np.log(softmax(m.run(tensors=t)["logits"])) for t in (m.tensors, tensors))
    return (np.exp(p) * (p - q)).sum(-1)


def members(group, names):
    """Returns the tensors that a group's patterns match."""
    return [n for n in names for p in map(of_text, group["match"])
            if n.removesuffix(".weight") == p or (p.endswith("*") and n.startswith(p[:-1]))]


def relative(x, y, importance=1.0):
    x, y = x.astype(np.float64), y.astype(np.float64)
    return (importance * (x - y)**2).sum() / (importance * x**2).sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_divergences_are_those_of_float64(probe, measure, family):
    m, src, dst, values, tokens = probe(family)
    _, got, out = measure(src, dst, tokens, "--threads", "3")
    changed = {n for n in m.tensors if not np.array_equal(m.tensors[n], values[n])}
    seen = set()
    for g in got["groups"]:
        names = members(g, m.tensors)
        assert names and not seen & set(names)
        seen |= set(names)
        kl = divergence(m, m.tensors | {n: values[n] for n in names})
        assert g["kl_mean_nats"] == pytest.approx(kl.mean(), rel=1e-6) and g["kl_max_nats"] == pytest.approx(kl.max(), rel=1e-6), g
        assert g["error"] == pytest.approx(sum(relative(m.tensors[n], values[n]) for n in names), rel=1e-9)
        assert g["sensitivity"] == pytest.approx(g["kl_mean_nats"] / g["error"])
    assert changed <= seen or "indexer" in m.traits  # a plan does not change all of its layers
    assert got["kl_sum_nats"] == pytest.approx(sum(g["kl_mean_nats"] for g in got["groups"]))
    assert got["otherwise"] == statistics.median_high(g["sensitivity"] for g in got["groups"])
    assert f"{max(g['kl_mean_nats'] for g in got['groups']):.3g}" in out


def test_memory_threads_and_devices_change_no_bit(probe, measure):
    m, src, dst, _, tokens = probe("deepseek_v3")
    _, got, _ = measure(src, dst, tokens, "--threads", "1")
    for options in (["--threads", "5"], ["--devices", "3"], ["--memory", "1MB"]):
        assert measure(src, dst, tokens, *options)[1]["groups"] == got["groups"], options


def test_errors_are_weighted_by_importance(tmp_path, probe, measure):
    m, src, dst, values, tokens = probe("llama")
    rng = np.random.default_rng(3)
    means = {n.removesuffix(".weight"): rng.uniform(0.1, 9, w.shape[1]) for n, w in m.tensors.items() if "proj" in n}
    importance = harness.write_json(tmp_path / "importance.json", {n: {"input_mean_square": list(x)} for n, x in means.items()})
    _, got, _ = measure(src, dst, tokens, "--importance", importance)
    _, plain, _ = measure(src, dst, tokens)
    assert got["weighted"] and not plain["weighted"]
    for g, before in zip(got["groups"], plain["groups"]):
        names = members(g, m.tensors)
        assert g["kl_mean_nats"] == before["kl_mean_nats"]
        assert g["error"] == pytest.approx(sum(relative(m.tensors[n], values[n], means[n.removesuffix(".weight")]) for n in names), rel=1e-6)


def test_plans_take_the_file(tmp_path, tessera, probe, measure):
    """The error of an option becomes the group's divergence, times the option's error, divided by the error of the probe."""
    m, src, dst, _, tokens = probe("llama")
    path, measured, _ = measure(src, dst, tokens)

    def plan(*options):
        out = harness.succeed(tessera, ["plan-schemes", src, "--bits", "7", "--schemes", "mxfp4-weight-only,mxfp8,bf16", *options, "--json", "-"])
        return json.loads(out)

    got, plain = plan("--sensitivity", path), plan()
    assert got["error_is_divergence"] and not plain["error_is_divergence"]
    by_first = {members(g, m.tensors)[0]: g for g in measured["groups"]}
    for g, before in zip(got["groups"], plain["groups"]):
        probe_group = by_first[g["tensors"][0]]
        for o, other in zip(g["options"], before["options"]):
            assert o["error"] == pytest.approx(probe_group["sensitivity"] * other["error"], rel=1e-6)
            if o["scheme"] == "mxfp4-weight-only":
                assert o["error"] == pytest.approx(probe_group["kl_mean_nats"], rel=1e-6)
    importance = harness.write_json(tmp_path / "importance.json", {"model.layers.0.mlp.down_proj": {"input_mean_square": [1.0] * 96}})
    harness.expect(tessera, ["plan-schemes", src, "--bits", "7", "--sensitivity", path, "--importance", importance], 2, "without --importance")


def test_groups_without_a_measurement_get_the_median(tmp_path, tessera, probe, measure):
    """The weights belong to a layer that config.json does not count, as those of an MTP layer."""
    m, src, dst, _, tokens = probe("llama")
    for folder in (src, dst):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    path, got, out = measure(src, dst, tokens)
    assert "4 groups outside of the pass" in out
    assert all(".layers.2." not in g["name"] for g in got["groups"])
    harness.succeed(tessera, ["plan-schemes", src, "--bits", "7", "--sensitivity", path, "--json", "-"])


def test_refusals(tmp_path, tessera, probe, measure, quantize):
    m, src, dst, _, tokens = probe("llama")

    def refused(code, words, *arguments):
        harness.expect(tessera, ["sensitivities", *arguments, "-o", tmp_path / "x.json", "--device", "cpu"], code, words)
        assert not (tmp_path / "x.json").exists()

    refused(2, "no quantized checkpoint given", src, "--tokens", tokens)
    refused(1, "none of its weights is quantized", src, "--against", src, "--tokens", tokens)
    refused(3, "more than --memory", src, "--against", dst, "--tokens", tokens, "--memory", "10k")
    other = Whole("llama")
    del other.tensors["model.layers.1.mlp.up_proj.weight"]
    missing = quantize(write(tmp_path / "missing", other.tensors, other.config), "--scheme", "mxfp4-weight-only")
    refused(3, "lacks 'model.layers.1.mlp.up_proj.weight'", src, "--against", missing, "--tokens", tokens)
    wide = Whole("llama")
    name = "model.layers.1.mlp.up_proj.weight"
    wide.tensors[name] = np.concatenate([wide.tensors[name]] * 2)
    wider = quantize(write(tmp_path / "wide", wide.tensors, wide.config), "--scheme", "mxfp4-weight-only")
    refused(3, "has another shape", src, "--against", wider, "--tokens", tokens)
    path, got, _ = measure(src, dst, tokens)
    for change in ({"schema": "tessera-rules/1"}, {"groups": []}, {"otherwise": None}, {"groups": [{"match": ["a"]}]},
                   {"groups": [{"match": ["a"], "sensitivity": 1}]}):
        path.write_text(json.dumps(got | change))
        harness.expect(tessera, ["plan-schemes", src, "--bits", "6", "--sensitivity", path], 3, str(path))
