"""Tests `tessera verify forward` with quantized inputs, against NumPy; also planted faults, token files, perplexity and memory."""

import json
import math
import sys

from checkpoints import load, write
from forward_oracle import (BASE, BATCH, BF16, command, DIM, failed, HEADS, KV_HEADS, LAYERS, noisy, rms_norm, softmax, sqnr, TOKENS,
                            verify, VOCABULARY, Whole)
import harness
import ml_dtypes
import mx_oracle
import numpy as np
import pytest
import served_inputs as given

pytestmark = pytest.mark.in_turn


def bf16(x):
    return np.asarray(x).astype(np.float32).astype(BF16).astype(np.float64)


INPUTS = {"fp8-block": given.fp8_blocks, "fp8-token": given.fp8_rows, "int8-token": given.int8_rows, "int8-azp": given.azp_rows,
          "none": lambda x: x}


def served_layer(m, layer, x, w, quantize, coded):
    """Computes a layer of Llama or Qwen3 with some coded linear layers: bf16 where vLLM uses it, and `quantize(x, module)`
    before their products. w: {name: values}."""
    w = {n.removeprefix(f"model.layers.{layer}."): t for n, t in w.items() if n.startswith(f"model.layers.{layer}.")}
    x = bf16(x)
    at = lambda name: f"model.layers.{layer}.{name}_proj"
    product = lambda y, name: bf16((quantize(y, at(name)) if coded(at(name)) else y) @ w[f"{name}_proj.weight"].T)
    norm = lambda y, name: bf16(rms_norm(y, w[f"{name}.weight"]))
    normed = norm(x, "input_layernorm")
    angle = np.arange(TOKENS)[:, None] * m.frequency(layer)
    cos, sin = (np.concatenate([u, u], -1)[None, :, None] for u in (np.cos(angle), np.sin(angle)))
    q, k, v = (product(normed, f"self_attn.{n}").reshape(BATCH, TOKENS, -1, DIM) for n in "qkv")
    turn = lambda y: bf16(y * cos + np.concatenate([-y[..., DIM // 2:], y[..., : DIM // 2]], -1) * sin)
    if "head norms" in m.traits:
        q, k = norm(q, "self_attn.q_norm"), norm(k, "self_attn.k_norm")
    q, k = turn(q), turn(k)
    k, v = (np.repeat(u, HEADS // KV_HEADS, axis=2) for u in (k, v))
    scores = np.where(np.tril(np.ones((TOKENS, TOKENS), bool)), np.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(DIM), -np.inf)
    mixed = bf16(np.einsum("bhqk,bkhd->bqhd", softmax(scores), v).reshape(BATCH, TOKENS, -1))
    x = bf16(x + product(mixed, "self_attn.o"))
    normed = norm(x, "post_attention_layernorm")
    gate, up = product(normed, "mlp.gate"), product(normed, "mlp.up")
    return bf16(x + product(bf16(gate / (1 + np.exp(-gate)) * up), "mlp.down"))


def decoded(path):
    """Returns {name: values} of a checkpoint with FP8 codes and scales per row or block, or int8 codes."""
    values = {name: array.astype(np.float64) for name, array in load(path).items()}
    for name in [n for n in values if n.endswith(".weight")]:
        for scale in (values.get(f"{name}_scale_inv"), values.get(f"{name}_scale")):
            if scale is not None:
                grid = np.repeat(scale.reshape(scale.shape[0], -1), 1 if scale.size == len(values[name]) else 128, 0)[: len(values[name])]
                values[name] = values[name] * np.repeat(grid, 128 if grid.shape[1] > 1 else values[name].shape[1], 1)[:, : values[name].shape[1]]
    return values


def write_both(tmp_path, m):
    """Writes the model, and its tokens to t.txt."""
    (tmp_path / "t.txt").write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
    return m.write(tmp_path / "a")


def check_layers(m, w, found, quantize, coded):
    """Checks that each layer, computed from the source's input, has the error that NumPy finds. A value near a tie may be
    rounded to the other side."""
    x = m.tensors["model.embed_tokens.weight"].astype(np.float64)[m.tokens]
    for layer in range(LAYERS):
        behind, _ = m.run_layer(layer, x, m.tensors)
        there = served_layer(m, layer, x, w, quantize, coded)
        assert found[f"model.layers.{layer}", "layer alone"]["sqnr_db"] == pytest.approx(sqnr(behind - x, there - x), abs=0.05), layer
        x = behind


@pytest.mark.parametrize("family, scheme, kinds", [
    ("llama", "fp8-block", [None, "fp8-block", "int8-azp"]), ("qwen3", "fp8-channel", [None, "fp8-token", "none"]),
    ("llama", "int8-channel", [None, "int8-token"])])
def test_a_pass_as_it_is_served(tmp_path, verify, quantize, family, scheme, kinds):
    """The served pass, layer by layer from the source's input, equals that of NumPy, with roundings to BF16. Values near a
    tie may be rounded to the other side, so the last bits may differ."""
    m = Whole(family)
    src = write_both(tmp_path, m)
    dst = quantize(src, "--scheme", scheme)
    w = decoded(dst)
    stated = {"fp8-block": "fp8-block", "fp8-channel": "fp8-token", "int8-channel": "int8-token"}[scheme]
    coded = lambda module: any(f"{module}.weight{scale}" in w for scale in ("_scale_inv", "_scale"))
    for kind in kinds:
        found = verify(src, dst, "--served", "--tokens", tmp_path / "t.txt", *(["--activations", kind] if kind else []))
        check_layers(m, w, found, lambda x, _, kind=kind: INPUTS[kind or stated](x), coded)


# ---- scales that the checkpoint states, and groups of 4 and 8 bits ----

RANGE = (-2.5, 3.0)  # narrower than what comes, so that values are clipped


def static_fp8(tensors, config, method):
    """Makes FP8 with a scale per tensor for weights and inputs, in the form of quant_method fp8 or of compressed-tensors."""
    out = dict(tensors)
    for name in [n for n in tensors if n.endswith("_proj.weight")]:
        module, x = name.removesuffix(".weight"), tensors[name].astype(np.float32)
        scale = np.float32(np.abs(x).max() / 448)
        out[name] = (x / scale).astype(ml_dtypes.float8_e4m3fn)
        out |= {f"{module}.weight_scale": np.full(1, scale), f"{module}.input_scale": np.full(1, RANGE[1] / 448 * 0.9, np.float32)}
    fp8 = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    stated = {"fp8": {"activation_scheme": "static"},
              "compressed-tensors": {"format": "float-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
                                     "config_groups": {"group_0": {"targets": ["Linear"], "weights": fp8, "input_activations": fp8}}}}
    return out, config | {"quantization_config": {"quant_method": method} | stated[method]}


def of_one(tensors, name):
    return tensors[name].astype(np.float32).reshape(()) if name in tensors else np.float32(0)


# Quantization of each module, and the resulting coding of its inputs.
STATED = {
    "fp8, static": ("fp8", lambda t, m: given.fp8_static(of_one(t, f"{m}.input_scale"))),
    "fp8 of compressed-tensors, static": ("compressed-tensors", lambda t, m: given.fp8_static(of_one(t, f"{m}.input_scale"))),
    "int8, static": (["int8-channel", "compressed-tensors", "RANGES"], lambda t, m: given.int8_static(of_one(t, f"{m}.input_scale"))),
    "int8, static with zero points": (
        ["int8-channel", "compressed-tensors", "RANGES", "--activation-zero-points"],
        lambda t, m: given.int8_static(of_one(t, f"{m}.input_scale"), of_one(t, f"{m}.input_zero_point"))),
    "nvfp4": (["nvfp4", "compressed-tensors", "RANGES"], lambda t, m: given.nvfp4(of_one(t, f"{m}.input_global_scale"))),
    "nvfp4 of modelopt": (["nvfp4", "modelopt", "RANGES"], lambda t, m: given.nvfp4(1 / of_one(t, f"{m}.input_scale"))),
    "mxfp4": (["mxfp4", "compressed-tensors"], lambda t, m: given.mx(given.E2M1)),
    "mxfp8": (["mxfp8", "compressed-tensors"], lambda t, m: given.mx(given.E4M3)),
    "mxfp8 of modelopt": (["mxfp8", "modelopt"], lambda t, m: given.mx(given.E4M3)),
    "quant_method mxfp8": (["mxfp8", "deepseek"], lambda t, m: given.mx(given.E4M3)),
}


def made(tmp_path, m, src, how, quantize):
    """Returns a checkpoint, its tensors, and the values of its weights by NumPy."""
    modules = [n.removesuffix(".weight") for n in m.tensors if n.endswith("_proj.weight")]
    if isinstance(how, str):
        dst = write(tmp_path / "static", *static_fp8(m.tensors, m.config, how))
    else:
        ranges = tmp_path / "ranges.json"
        ranges.write_text(json.dumps({module: {"min": RANGE[0], "max": RANGE[1]} for module in modules}))
        words = [word for name in how[2:] for word in (["--activations", ranges] if name == "RANGES" else [name])]
        dst = quantize(src, "--scheme", how[0], "--dialect", how[1], *words)
    tensors = load(dst)
    values = {n: x.astype(np.float64) for n, x in tensors.items() if n.endswith("norm.weight")}
    for module in modules:
        if isinstance(how, str) or how[0] == "int8-channel":
            values[f"{module}.weight"] = tensors[f"{module}.weight"].astype(np.float64) * tensors[f"{module}.weight_scale"].astype(np.float64)
        else:
            values[f"{module}.weight"] = mx_oracle.decoded(tensors, module, *how[:2])
    return dst, tensors, values


@pytest.mark.parametrize("name", STATED)
def test_inputs_as_the_checkpoint_states_them(tmp_path, verify, quantize, name):
    """Tests static scales with some values beyond the range, and groups of NVFP4, MXFP4 and MXFP8, against NumPy's formulas."""
    m = Whole("llama")
    src = write_both(tmp_path, m)
    how, inputs = STATED[name]
    dst, tensors, values = made(tmp_path, m, src, how, quantize)
    found = verify(src, dst, "--served", "--tokens", tmp_path / "t.txt")
    check_layers(m, values, found, lambda x, module: inputs(tensors, module)(x), lambda module: True)


@pytest.mark.parametrize("layer", [0, 2])
def test_a_doubled_scale_is_reported_in_its_layer(tmp_path, tessera, verify, quantize, layer):
    """The first judgement that fails is that of the faulty layer, with the default limits."""
    m = Whole("llama")
    src = m.write(tmp_path / "a")
    dst = quantize(src)
    assert not failed(verify(src, dst, "--served"))
    name = f"model.layers.{layer}.mlp.down_proj.weight_scale_inv"
    for file in dst.glob("*.safetensors"):
        metadata, tensors = harness.read_safetensors(file)
        if name in tensors:
            dtype, shape, data = tensors[name]
            tensors[name] = dtype, shape, (np.frombuffer(data, np.float32) * 2).tobytes()
            harness.write_safetensors(file, tensors, metadata)
    found = verify(src, dst, "--served")
    assert failed(found)[0] == f"model.layers.{layer}" and not found[f"model.layers.{layer}", "layer alone"]["passed"]
    assert all(j["passed"] for (_, what), j in found.items() if what == "layer alone" and _ != f"model.layers.{layer}")
    code, out, _ = harness.run(tessera, ["verify", "forward", dst, "--against", src])
    assert code == 1 and out.index("FAIL") > out.index(f"model.layers.{layer}")


def test_token_files_of_all_kinds(tmp_path, tessera, verify, monkeypatch):
    m = Whole("qwen3")
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", noisy(m, 0.01), m.config)
    rows = np.arange(24, dtype=np.int32).reshape(2, 12) * 3
    (tmp_path / "lines").write_text("\n".join(" ".join(map(str, row)) for row in rows))
    rows.tofile(tmp_path / "raw")
    np.save(tmp_path / "wide.npy", rows.astype(np.int64))
    np.save(tmp_path / "flat.npy", rows.reshape(-1))
    found = [verify(a, b, "--tokens", tmp_path / n, "--count", "12") for n in ("lines", "raw", "wide.npy", "flat.npy")]
    assert found.count(found[0]) == 4 and found[0]["model", "logits"]["elements"] == 24 * VOCABULARY
    # Text goes through a process of its own, which gets both paths and answers with int32.
    (tmp_path / "prose").write_text("What tokenizers make of this is theirs to say.")
    arguments = command(a, b, "--tokens", tmp_path / "prose", "--count", "12")
    code, _, err = harness.run(tessera, arguments)
    assert code == 3 and "tokenizer.json cannot be read" in err and err.count("\n") == 1
    (tmp_path / "a/tokenizer.json").write_text("{}")
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\n[ \"$3\" = {tmp_path}/a/tokenizer.json ] && [ \"$4\" = {tmp_path}/prose ] && cat {tmp_path}/raw\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("TESSERA_PYTHON", str(stand_in))
    assert verify(a, b, "--tokens", tmp_path / "prose", "--count", "12") == found[0]
    # Lines of JSON, with a package that makes a token of each byte.
    (tmp_path / "tokenizers.py").write_text(
        "class Tokenizer:\n    from_file = staticmethod(lambda path: Tokenizer())\n"
        "    encode_batch = staticmethod(lambda texts: [type('E', (), {'ids': list(t.encode('latin-1'))}) for t in texts])\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TESSERA_PYTHON", sys.executable)
    lines = [json.dumps({"text": bytes(row.astype(np.uint8)).decode("latin-1"), "id": 1}) for row in rows]
    (tmp_path / "text.jsonl").write_text("\n\n".join(lines) + "\n")
    assert verify(a, b, "--tokens", tmp_path / "text.jsonl", "--count", "12") == found[0]
    for line, words in (('{"txt": "a"}', 'line 2 is no object with a string "text"'), ("{", "could not tokenize it")):
        (tmp_path / "bad.jsonl").write_text(lines[0] + "\n" + line)
        harness.expect(tessera, command(a, b, "--tokens", tmp_path / "bad.jsonl"), 3, words)
    monkeypatch.setenv("TESSERA_PYTHON", str(stand_in))
    stand_in.write_text("#!/bin/sh\necho 'no package' >&2; exit 1\n")
    code, _, err = harness.run(tessera, arguments)
    assert code == 3 and "no package" in err and err.count("\n") == 1
    monkeypatch.setenv("TESSERA_PYTHON", str(tmp_path / "none"))
    harness.expect(tessera, arguments, 3, "cannot be run")


@pytest.mark.parametrize("data, code, words", [
    (b"\1\0\0", 3, "not int32"), (b"\xff\xff\xff\xff\0\0\0\0", 3, "token 0"), (b"\x93NUMPY\1\0\xff\xff{", 3, "header"),
    (b"\x93NUMPY\1\0\x40\0" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }".ljust(64), 3, "integers"),
    (b"\x93NUMPY\1\0\x40\0" + b"{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }".ljust(64), 3, "ends before")])
def test_broken_token_files(tmp_path, tessera, data, code, words):
    a = Whole("llama").write(tmp_path / "a")
    (tmp_path / "t").write_bytes(data)
    harness.expect(tessera, command(a, a, "--tokens", tmp_path / "t"), code, words)


def test_perplexity_of_both(tmp_path, tessera):
    m = Whole("qwen2")
    other = noisy(m, 0.02)
    (tmp_path / "t.txt").write_text("\n".join(" ".join(map(str, row)) for row in m.tokens))
    a, b = m.write(tmp_path / "a"), write(tmp_path / "b", other, m.config)
    code, out, err = harness.run(tessera, [*command(a, b, "--tokens", tmp_path / "t.txt"), "--json", "-"])
    result = json.loads(out)
    both = []
    for key, tensors in (("perplexity_source", m.tensors), ("perplexity", other)):
        log_p = np.log(softmax(m.run(tensors=tensors)["logits"]))
        both.append(log_p)
        of_next = np.take_along_axis(log_p[:, :-1], m.tokens[:, 1:, None], -1)
        assert result[key] == pytest.approx(np.exp(-of_next.mean()), rel=1e-6)
        assert result[f"{key}_error"] == pytest.approx(np.exp(-of_next.mean()) * of_next.std() / np.sqrt(of_next.size - 1), rel=1e-6)
    kl = (np.exp(both[0]) * (both[0] - both[1])).sum(-1).reshape(-1)
    for key, percent in (("kl_median_nats", 50), ("kl_90_nats", 90), ("kl_99_nats", 99), ("kl_99_9_nats", 99.9)):
        assert result[key] == pytest.approx(np.percentile(kl, percent, method="inverted_cdf"), rel=1e-5), key
    assert "99 % below" in harness.run(tessera, command(a, b, "--tokens", tmp_path / "t.txt"))[1]
    drawn = json.loads(harness.run(tessera, [*command(a, b), "--json", "-"])[1])
    assert drawn["perplexity"] is None and drawn["token_count"] == 64 and drawn["rounding"] == "none"


def test_weights_are_never_held_whole(tmp_path, tessera):
    """85 MB of weights, 340 MB in double, are processed in less than 64 MB."""
    config = BASE | {"model_type": "llama", "hidden_size": 512, "intermediate_size": 4096, "num_hidden_layers": 6, "head_dim": 128}
    rng, tensors = np.random.default_rng(1), {"model.norm.weight": np.ones(512, BF16)}
    pool = (rng.standard_normal(4096 * 512) / 23).astype(BF16)
    matrix = lambda rows, cols: pool[: rows * cols].reshape(rows, cols)
    tensors |= {"model.embed_tokens.weight": matrix(VOCABULARY, 512), "lm_head.weight": matrix(VOCABULARY, 512)}
    for n in range(6):
        shapes = {"self_attn.q": (512, 512), "self_attn.k": (256, 512), "self_attn.v": (256, 512), "self_attn.o": (512, 512),
                  "mlp.gate": (4096, 512), "mlp.up": (4096, 512), "mlp.down": (512, 4096)}
        tensors |= {f"model.layers.{n}.{name}_proj.weight": matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"model.layers.{n}.{name}_layernorm.weight": np.ones(512, BF16) for name in ("input", "post_attention")}
    a = write(tmp_path / "a", tensors, config)
    watch = ("import json, resource, subprocess, sys; out = subprocess.run(sys.argv[1:], stdout=-1).stdout;"
             "print(json.dumps([resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, json.loads(out)]))")
    out = harness.run("python3", ["-c", watch, tessera, *command(a, a, "--count", "4", "--threads", "2"), "--json", "-"])[1]
    most, result = json.loads(out)
    assert 85e6 < result["weight_bytes_read"] / 2
    assert most * 1024 < 64e6 or "-asan" in tessera  # AddressSanitizer's own memory is 30 MB of it
    assert 0 < result["activation_bytes"] < 4e6
    harness.expect(tessera, command(a, a, "--count", "4", "--memory", "100k"), 3, "more than --memory")
