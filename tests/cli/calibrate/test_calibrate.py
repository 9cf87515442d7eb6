"""Tests calibrate: statistics of each family against NumPy in float64, experts with few tokens, what quantize does with the file."""

import json

from checkpoints import read
from forward_oracle import EXPERTS, LAYERS, Whole
import harness
import numpy as np
import pytest

FAMILIES = ["llama", "qwen2_moe", "mixtral", "gemma2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa", "deepseek_v32, short", "minimax_m3_vl", "gpt_oss", "qwen3_next", "qwen3_5_moe_text", "phi3", "nemotron_h", "kimi_linear",
            "gemma4_text", "ministral3"]
MEMBERS = ("input_mean_square", "input_min", "input_max", "input_tokens")


class Watched(np.ndarray):
    """Is a weight that records the inputs of its products."""

    def __array_finalize__(self, other):
        self.name, self.seen = getattr(other, "name", None), getattr(other, "seen", None)

    def __rmatmul__(self, x):
        if self.seen is not None and self.name is not None:
            self.seen.setdefault(self.name, []).append(np.asarray(x))
        return np.asarray(x) @ np.asarray(self)


def watched(name, array, seen):
    view = array.view(Watched)
    view.name, view.seen = name, seen
    return view


def inputs_of(m):
    """Returns {module or (stack, expert): the inputs [tokens, channels]} of all linear layers."""
    seen, found = {}, {}
    tensors = {n: watched(n, t, seen) if t.ndim > 1 and "bias" not in n else t for n, t in m.tensors.items()}
    x = m.tensors["model.embed_tokens.weight"].astype(np.float64)[m.tokens]
    if m.traits & {"gemma", "gemma4"}:
        x = x * np.sqrt(x.shape[-1])
    for layer in range(LAYERS):
        seen.clear()
        x, chosen = m.run_layer(layer, np.asarray(x), tensors)
        for name, calls in seen.items():
            module = m.stored(name).removesuffix(".weight")
            if ".experts." not in module:
                sign = -1 if module.endswith("shared_expert_gate") else 1  # the oracle multiplies by -x
                found[module] = sign * calls[0].reshape(-1, calls[0].shape[-1])
                continue
            number = module.split(".experts.")[1].split(".")[0]
            if len(calls) == 2 * EXPERTS:  # gates and ups of a stack of halves
                calls = calls[::2]
            for e, call in enumerate(calls) if not number.isdigit() else [(int(number), calls[0])]:
                taken = call.reshape(-1, call.shape[-1])[(np.asarray(chosen) == e).any(-1).reshape(-1)]
                found[module if number.isdigit() else (module, e)] = taken
    return found


def token_file(m, path):
    path.write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
    return path


@pytest.fixture
def calibrate(tessera, tmp_path):
    """calibrate(model directory, tokens, *options) -> (tensors, the result as JSON, stdout)"""
    def run(src, tokens, *options, out="stats.safetensors"):
        path, result = tmp_path / out, tmp_path / "result.json"
        path.unlink(missing_ok=True)
        stdout = harness.succeed(tessera, ["calibrate", src, "--tokens", tokens, "-o", path, "--device", "cpu", *options])
        path.unlink()
        harness.succeed(tessera, ["calibrate", src, "--tokens", tokens, "-o", path, "--device", "cpu", "--json", result, *options])
        return read(path), json.loads(result.read_text()), stdout
    return run


@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_are_those_of_float64(tmp_path, calibrate, family):
    m = Whole(family)
    got, result, _ = calibrate(m.write(tmp_path / "m"), token_file(m, tmp_path / "t.txt"), "--min-tokens", "0", "--threads", "3")
    inputs = inputs_of(m)
    assert result["tokens"] == m.tokens.size
    for key, x in inputs.items():
        module, expert = key if isinstance(key, tuple) else (key, None)
        if x.size == 0:
            assert f"{module}.input_tokens" in got and got[f"{module}.input_tokens"][expert or 0] == 0
            continue
        mean = got[f"{module}.input_mean_square"] if expert is None else got[f"{module}.input_mean_square"][expert]
        assert np.allclose(mean, (x**2).mean(0), rtol=1e-5, atol=1e-9), key
        assert got[f"{module}.input_tokens"][expert or 0] == len(x), key
        if expert is None:
            assert got[f"{module}.input_min"][0] == pytest.approx(x.min(), rel=1e-5), key
            assert got[f"{module}.input_max"][0] == pytest.approx(x.max(), rel=1e-5), key
    stacks = {key[0] for key in inputs if isinstance(key, tuple)}
    for module in stacks:
        x = np.concatenate([v for key, v in inputs.items() if isinstance(key, tuple) and key[0] == module])
        assert got[f"{module}.input_min"][0] == pytest.approx(x.min(), rel=1e-5)
    modules = {n.rpartition(".")[0] for n in got if n.endswith("input_tokens")}
    assert {key[0] if isinstance(key, tuple) else key for key in inputs} == modules
    for layer in (n for n in range(LAYERS) if not m.is_delta(n) and not m.is_kimi(n) and m.kind(n) == "attention"):
        assert {m.stored(f"model.layers.{layer}.self_attn.{c}_cache.input_max") for c in "kv"} <= got.keys()


FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj",
         "in_proj_qkv": "in_proj_qkvz", "in_proj_z": "in_proj_qkvz", "in_proj_b": "in_proj_ba", "in_proj_a": "in_proj_ba", "w1": "w13", "w3": "w13", "q_a_proj": "fused_qkv_a_proj", "kv_a_proj_with_mqa": "fused_qkv_a_proj"}


def input_of(module):
    """Returns (name of the module's input, true if all experts of the layer have it)."""
    parts = module.split(".")
    name, experts = FUSED.get(parts[-1], parts[-1]), "experts" in parts
    common = experts and name in FUSED.values()
    return ".".join([*parts[:-2 if common and parts[-2].isdigit() else -1], name]), common


@pytest.mark.parametrize("family", FAMILIES)
def test_products_are_those_of_float64(tmp_path, calibrate, family):
    m = Whole(family)
    src, tokens = m.write(tmp_path / "m"), token_file(m, tmp_path / "t.txt")
    got, _, _ = calibrate(src, tokens, "--hessians", "--threads", "3")
    plain, _, _ = calibrate(src, tokens)
    assert all(np.array_equal(plain[n], got[n]) for n in plain)
    products, shared = {}, {}
    for key, x in inputs_of(m).items():
        module, expert = key if isinstance(key, tuple) else (key, None)
        name, common = input_of(module)
        if common:
            shared.setdefault((name, module.split(".")[-1]), []).append(x)
        elif len(x) > 0:
            few = "experts" in module.split(".") and len(x) < x.shape[1]
            products[name, expert] = np.zeros((x.shape[1],) * 2) if few else x.T @ x / len(x)
    for (name, _), parts in shared.items():
        x = np.concatenate(parts)
        products[name, None] = x.T @ x / len(x)
    seen = set()
    for (name, expert), want in products.items():
        if f"{name}.input_products" not in got:
            assert not want.any(), name
            continue
        found = got[f"{name}.input_products"]
        seen.add(f"{name}.input_products")
        assert np.allclose(found if expert is None else found[expert], want, rtol=1e-5, atol=1e-6 * np.abs(want).max()), (name, expert)
    assert seen == {n for n in got if n.endswith("input_products")}
    again, _, _ = calibrate(src, tokens, "--hessians", "--threads", "1")
    assert all(np.array_equal(got[n], again[n]) for n in got)


def test_keys_and_values(tmp_path, calibrate):
    """Statistics of keys are those after norms and RoPE, as in the cache."""
    m = Whole("llama")
    got, _, _ = calibrate(m.write(tmp_path / "m"), token_file(m, tmp_path / "t.txt"))
    x = m.tensors["model.embed_tokens.weight"].astype(np.float64)[m.tokens]
    w = {n.removeprefix("model.layers.0."): t.astype(np.float64) for n, t in m.tensors.items()}
    v = m.norm(x, w["input_layernorm.weight"]) @ w["self_attn.v_proj.weight"].T
    assert got["model.layers.0.self_attn.v_cache.input_max"][0] == pytest.approx(v.max(), rel=1e-5)
    k = m.norm(x, w["input_layernorm.weight"]) @ w["self_attn.k_proj.weight"].T
    largest = np.abs([got[f"model.layers.0.self_attn.k_cache.input_{e}"][0] for e in ("min", "max")]).max()
    pairs = np.sqrt((k.reshape(-1, 2, 8) ** 2).sum(1))  # a rotation keeps the length of a pair
    assert largest <= pairs.max() * (1 + 1e-6) and largest != pytest.approx(np.abs(k).max(), rel=1e-9)


@pytest.mark.parametrize("family", ["qwen2_moe", "gpt_oss"])
def test_experts_with_few_tokens(tmp_path, calibrate, family):
    m = Whole(family)
    src = m.write(tmp_path / "m")
    m.tokens = m.tokens[:1, :4]
    tokens = token_file(m, tmp_path / "t.txt")
    alone, result, _ = calibrate(src, tokens, "--min-tokens", "0")
    pooled, _, out = calibrate(src, tokens, "--min-tokens", "3")
    assert "got the statistics of all experts of their layer" in out and result["experts_pooled"] == 0
    stacked = family == "gpt_oss"
    for layer in range(1, LAYERS):
        leaf = "gate_up_proj" if stacked else "down_proj"
        names = [f"model.layers.{layer}.mlp.experts.{leaf}"] if stacked else [f"model.layers.{layer}.mlp.experts.{e}.{leaf}" for e in range(EXPERTS)]
        counts = np.concatenate([alone[f"{n}.input_tokens"] for n in names])
        def means(tensors):
            return np.concatenate([np.atleast_2d(tensors[f"{n}.input_mean_square"]) for n in names if f"{n}.input_mean_square" in tensors])
        seen = means(alone)[counts > 0] if stacked else means(alone)
        whole = (seen * counts[counts > 0][:, None]).sum(0) / counts.sum()
        for count, mean in zip(counts, means(pooled)):
            if count < 3:
                assert np.allclose(mean, whole, rtol=1e-5), count
        assert counts.min() == 0 and np.array_equal(counts, np.concatenate([pooled[f"{n}.input_tokens"] for n in names]))


@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_little_memory_changes_no_bit(tmp_path, tessera, calibrate, family):
    """Sequences run in groups that fit in --memory: here one by one, with the smallest memory that is accepted."""
    m = Whole(family)
    src, tokens = m.write(tmp_path / "m"), token_file(m, tmp_path / "t.txt")
    whole, plain, _ = calibrate(src, tokens)
    out = tmp_path / "least.safetensors"
    least = next(n for n in range(10_000, 2_000_000, 5_000)
                 if harness.run(tessera, ["calibrate", src, "--tokens", tokens, "-o", out, "--device", "cpu", "--memory", n])[0] == 0)
    grouped, result, _ = calibrate(src, tokens, "--memory", least)
    assert grouped.keys() == whole.keys()
    assert [n for n in whole if not np.array_equal(grouped[n], whole[n])] == []
    assert result["activation_bytes"] < plain["activation_bytes"]


def test_products_in_fp32(tmp_path, openblas, tessera, calibrate):
    m = Whole("llama")
    src, tokens = m.write(tmp_path / "m"), token_file(m, tmp_path / "t.txt")
    code, _, err = harness.run(tessera, ["calibrate", src, "--tokens", tokens, "-o", tmp_path / "s.safetensors", "--device", "cpu", "--precision", "bf16"])
    assert code == 5 and "--precision bf16 needs a GPU" in err
    double, _, _ = calibrate(src, tokens)
    single, result, _ = calibrate(src, tokens, "--precision", "fp32", "--threads", "3")
    assert result["device"] == "CPU, products in FP32"
    assert double.keys() == single.keys() and all(np.allclose(double[n], single[n], rtol=1e-4, atol=1e-7) for n in double)
    assert any(not np.array_equal(double[n], single[n]) for n in double)
    again, _, _ = calibrate(src, tokens, "--precision", "fp32", "--threads", "1")
    assert all(np.array_equal(again[n], single[n]) for n in single)


def test_threads_and_instruction_sets(tmp_path, calibrate):
    m = Whole("qwen3_moe")
    src, tokens = m.write(tmp_path / "m"), token_file(m, tmp_path / "t.txt")
    first, *others = (calibrate(src, tokens, "--threads", n)[0] for n in ("1", "2", "5"))
    assert all(np.array_equal(first[n].view(np.uint8), other[n].view(np.uint8)) for other in others for n in first)


@pytest.mark.parametrize("family", ["llama", "glm_moe_dsa", "gpt_oss"])
def test_a_killed_run_is_resumed(tmp_path, tessera, calibrate, family):
    """A run that is killed at many moments and repeated writes the same bytes as an undisturbed run."""
    m = Whole(family)
    src, tokens, out = m.write(tmp_path / "m"), token_file(m, tmp_path / "t.txt"), tmp_path / "resumed.safetensors"
    calibrate(src, tokens, "--hessians", out="whole.safetensors")
    words = ["calibrate", src, "--tokens", tokens, "--hessians", "--device", "cpu", "--save-every", "0", "-o", out]
    kills, delay = 0, 0.0005
    while not out.exists() and kills < 60:
        harness.kill_after([tessera, *map(str, words), "--json", str(tmp_path / "r.json")], delay)
        kills, delay = kills + 1, delay * 1.15
    assert out.exists() and kills > 3
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    left = {p.name for p in tmp_path.iterdir() if not p.name.startswith(".tessera-")} - {f"{out.name}.partial"}  # of kills at the end
    assert left <= {"m", "t.txt", "result.json", "r.json", out.name, "whole.safetensors"}
    out.unlink()
    progress = tmp_path / "resumed.safetensors.partial/progress"
    while not progress.exists():
        harness.kill_after([tessera, *map(str, words)], delay)
        out.unlink(missing_ok=True)
        delay *= 0.9
    stdout = harness.succeed(tessera, [*words, "--json", tmp_path / "r.json"])
    resumed = json.loads((tmp_path / "r.json").read_text())["layers_resumed"]
    assert resumed > 0 and f"resumed after {resumed} layer" in stdout
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()


def test_a_state_of_another_run(tmp_path, tessera):
    m = Whole("llama")
    src, tokens, out = m.write(tmp_path / "m"), token_file(m, tmp_path / "t.txt"), tmp_path / "o.safetensors"
    words = ["calibrate", src, "--tokens", tokens, "--device", "cpu", "--save-every", "0", "-o", out]
    progress, delay = tmp_path / "o.safetensors.partial/progress", 0.05
    while not progress.exists():
        harness.kill_after([tessera, *map(str, words)], delay)
        out.unlink(missing_ok=True)
        delay *= 0.9
    harness.expect(tessera, [*words, "--hessians"], 2, "begun with another model", "remove the folder to start over")
    data = bytearray(progress.read_bytes())
    data[100] ^= 1
    progress.write_bytes(data)
    code, _, err = harness.run(tessera, words)
    assert code == 3 and f"{progress}: damaged" in err and not out.exists()


def test_quantize_reads_the_file(tmp_path, calibrate, tessera, quantize):
    """One file has the ranges of inputs, the importance, and the ranges of keys and values."""
    m = Whole("llama")
    src = m.write(tmp_path / "m")
    calibrate(src, token_file(m, tmp_path / "t.txt"))
    stats = tmp_path / "stats.safetensors"
    dst = quantize(src, "--scheme", "nvfp4", "--activations", stats, "--importance", stats, "--kv-ranges", stats)
    rows = json.loads((dst / "quantization_report.json").read_text())["tensors"]
    assert rows and all("weighted_sqnr_db" in row for row in rows)
    got = read(dst / "model.safetensors")
    assert "model.layers.1.self_attn.k_scale" in got and "model.layers.2.mlp.down_proj.input_global_scale" in got


@pytest.mark.parametrize("words, code, message", [
    (["SRC", "-o", "OUT"], 2, "no text given"), (["SRC", "--tokens", "TOKENS"], 2, "no output given"),
    (["--tokens", "TOKENS", "-o", "OUT"], 2, "no checkpoint given"),
    (["SRC", "--tokens", "TOKENS", "-o", "stats.txt"], 2, "must end in .safetensors"),
    (["SRC", "--tokens", "TOKENS", "-o", "SRC/model.safetensors"], 2, "SRC/model.safetensors"),
    (["SRC", "--tokens", "TOKENS", "-o", "OLD"], 2, "exists; remove it or name another file"),
    (["SRC", "--tokens", "NONE", "-o", "OUT"], 3, "NONE"), (["SRC", "--tokens", "TOKENS", "-o", "OUT", "--count", "0"], 2, "--count"),
    (["SRC", "--tokens", "TOKENS", "-o", "OUT", "--memory", "1kB"], 3, "more than --memory")], ids=str)
def test_refusals(tmp_path, tessera, words, code, message):
    m = Whole("llama")
    places = {"SRC": m.write(tmp_path / "m"), "TOKENS": token_file(m, tmp_path / "t.txt"), "OUT": tmp_path / "o.safetensors",
              "OLD": tmp_path / "old.safetensors", "NONE": tmp_path / "none.txt"}
    places["OLD"].write_bytes(b"kept")
    place = lambda text: "".join(str(places[p]) if p in places else p for p in text.partition("/"))
    harness.expect(tessera, ["calibrate", *(place(w) for w in words), *(["--device", "cpu"] if len(words) > 3 else [])], code, place(message))
    assert not places["OUT"].exists() and places["OLD"].read_bytes() == b"kept"


@pytest.mark.parametrize("channels, value", [(slice(None), np.inf), (slice(5, 6), np.nan), (slice(7, 8), -np.inf)])
def test_inputs_that_are_not_finite(tmp_path, tessera, channels, value):
    m = Whole("llama")
    gain = m.tensors["model.layers.1.input_layernorm.weight"].astype(np.float32)
    gain[channels] = value
    m.tensors["model.layers.1.input_layernorm.weight"] = gain
    code, _, err = harness.run(tessera, ["calibrate", m.write(tmp_path / "m"), "--tokens", token_file(m, tmp_path / "t.txt"), "-o",
                                         tmp_path / "o.safetensors", "--device", "cpu"])
    assert code == 3 and "an input of 'model.layers.1.self_attn.q_proj' is NaN or infinite" in err and not (tmp_path / "o.safetensors").exists()
