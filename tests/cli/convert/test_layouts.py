"""Tests the interleaved layouts in whole conversions, against an address function in closed form.

Covers BF16 and packed integers as input, conversion back, names and configuration of TensorRT-LLM, and rejected
inputs."""

import json
import resource
import subprocess

from checkpoints import BF16, make, random_weight, read, same_bits
import harness
import int_oracle
from int_oracle import away, packed
import numpy as np
import pytest

LAYER = "model.layers.0."
Q, K, V, O = (LAYER + f"self_attn.{n}_proj.weight" for n in "qkvo")
GATE, UP, DOWN = (LAYER + f"mlp.{n}_proj.weight" for n in ("gate", "up", "down"))
EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
MANIFEST = "tessera-layout.json"
T = ("T", [("ft", 75), ("ft", 80), ("ft", 86), ("ft", 89), ("trtllm-main", 80), ("trtllm-main", 89), ("trtllm-0.7", 90)])


def quantized(w, bits, group=0, **settings):
    """Quantizes as the quantizers of these layouts do: a group of zeros has the scale 0."""
    codes, scale, zero = int_oracle.quantized(w, bits, group, **settings)
    empty = ~w.reshape(len(w), -1, group or w.shape[1]).any(axis=2)
    assert (scale[empty] == 1).all() and not codes.reshape(*empty.shape, -1)[empty].any()
    return codes, np.where(empty, np.float32(0), scale), zero


def place(layout, bits, k, n, big_k, big_n):
    """Returns (byte, nibble) of W[k][n] for arrays of k and n: sections 2 and 3 of the closed form."""
    per_word, group, turns = 32 // bits, 128 // bits, 16 // bits
    half = per_word // 2
    if layout in ("R", "CM"):
        e = k * big_n + n if layout == "R" else n * big_k + k
        word, i = e // per_word, e % per_word
        slot = i // 2 + i % 2 * half
    elif layout == "P":
        e = n * big_k + k
        word, slot = e // per_word, e % per_word
    else:
        slot = k % group // 8 + k % 2 * half
        inside = 4 * (k % 64 // group) + k % 8 // 2
        if layout == "T":
            word = 32 * (n // turns * (big_k // 64) + k // 64) + n % turns * (64 // per_word) + inside
        else:
            word = n * (big_k // per_word) + 4 * (k // group) + k % 8 // 2
    return (4 * word + slot, 0 * slot) if bits == 8 else (4 * word + slot // 2, slot % 2)


def laid_out(codes, layout, bits):
    """Converts codes [N, K] to the bytes of the layout."""
    big_n, big_k = codes.shape
    out = np.zeros(big_n * big_k * bits // 8, np.uint8)
    n, k = np.meshgrid(np.arange(big_n), np.arange(big_k), indexing="ij")
    stored = codes.astype(np.int64) + (0 if layout == "P" else 2 ** (bits - 1)) & (2**bits - 1)
    byte, nibble = place(layout, bits, k, n, big_k, big_n)
    np.bitwise_or.at(out, byte.ravel(), (stored << 4 * nibble).ravel().astype(np.uint8))
    return out


CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32, "hidden_size": 128,
          "intermediate_size": 192, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
          "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu"}


def llama(path, dtype=BF16, head=True, bias=False, change=lambda t: None):
    shapes = {Q: (128, 128), K: (64, 128), V: (64, 128), O: (128, 128), GATE: (192, 128), UP: (192, 128), DOWN: (128, 192),
              EMBED: (32, 128)}
    tensors = {n: random_weight(s, i).astype(dtype) for i, (n, s) in enumerate(shapes.items())}
    tensors[UP][5] = 0
    if head:
        tensors[HEAD] = random_weight((32, 128), 20).astype(dtype)
    if bias:
        tensors.update({n[:-6] + "bias": random_weight((s[0],), 30).astype(dtype) for n, s in shapes.items() if n in (Q, K, V)})
    tensors[NORM] = np.ones(128, dtype)
    change(tensors)
    src = make(path, {"model.safetensors": tensors}, quantization=None)
    (src / "config.json").write_text(json.dumps(CONFIG))
    (src / "tokenizer.json").write_text("{}")
    return src, tensors


LAYOUTS = [("ft", 70, "R", (8, 4)), ("ft", 75, "T", (8, 4)), ("ft", 80, "T", (8, 4)), ("ft", 86, "T", (8, 4)),
           ("ft", 89, "T", (8, 4)), ("trtllm-0.7", 70, "CM", (8, 4)), ("trtllm-0.7", 90, "T", (8, 4)),
           ("trtllm-0.10", 90, "P", (8, 4)), ("trtllm-main", 90, "H", (8, 4)), ("trtllm-main", 80, "T", (8, 4))]


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("producer,arch,layout,_", LAYOUTS)
def test_blobs(tmp_path, convert, producer, arch, layout, _, bits):
    src, source = llama(tmp_path / "src")
    dst = convert(src, "--to", "fastertransformer", "--arch", f"sm{arch}", "--producer", producer, "--bits", str(bits))
    manifest = json.loads((dst / MANIFEST).read_text())
    divisor = 2 ** (bits - 1)
    assert {k: v for k, v in manifest.items() if k not in ("weights", "tensors", "schema")} == {
        "target": "fastertransformer", "producer": producer, "arch": arch, "layout": layout, "bits": bits, "group_size": 0,
        "divisor": divisor, "rounding": "away", "scale_dtype": "BF16"}
    assert [w["name"] for w in manifest["weights"]] and {w["name"] for w in manifest["weights"]} == {Q, K, V, O, GATE, UP, DOWN}
    for w in manifest["weights"]:
        codes, scale, _ = quantized(source[w["name"]], bits, divisor=divisor, rounding=away)
        n, k = codes.shape
        assert (w["k"], w["n"], w["first"], w["columns"], w["file"]) == (k, n, 0, n, w["name"] + ".0.bin")
        data = np.frombuffer((dst / w["file"]).read_bytes(), np.uint8)
        assert same_bits(data[: n * k * bits // 8], laid_out(codes, layout, bits)), w["name"]
        assert same_bits(data[n * k * bits // 8:].view(BF16), scale[:, 0].astype(BF16)), w["name"]
    rest = read(dst / "model.safetensors")
    assert rest.keys() == {EMBED, NORM, HEAD} and all(same_bits(rest[n], source[n]) for n in rest)
    assert json.loads((dst / "config.json").read_text()) == CONFIG and (dst / "tokenizer.json").exists()


@pytest.mark.parametrize("bits,group", [(8, 0), (8, 32), (4, 0), (4, 64), (4, 32)])
@pytest.mark.parametrize("producer,arch,layout", [("ft", 80, "T"), ("ft", 70, "R"), ("trtllm-main", 90, "H")])
def test_from_packed_integers_and_back(tmp_path, quantize, convert, producer, arch, layout, bits, group):
    """Codes and scales do not change. --from restores the tensors."""
    src, source = llama(tmp_path / "src")
    ints = quantize(src, "--scheme", f"int{bits}-weight-only", "--group-size", str(group))
    blobs = convert(ints, "--to", "fastertransformer", "--arch", f"sm{arch}", "--producer", producer)
    for name in (O, DOWN, UP):
        codes, scale, _ = int_oracle.quantized(source[name], bits, group, dtype=BF16)
        data = np.frombuffer((blobs / (name + ".0.bin")).read_bytes(), np.uint8)
        size = codes.size * bits // 8
        assert same_bits(data[:size], laid_out(codes, layout, bits)), name
        assert same_bits(data[size:].view(BF16), np.ascontiguousarray(scale.T.astype(BF16)).ravel()), name
    back = convert(blobs, "--from", "fastertransformer")
    want, got = read(ints / "model.safetensors"), read(back / "model.safetensors")
    assert want.keys() == got.keys() and all(same_bits(want[n], got[n]) for n in want)
    a, b = (json.loads((d / "config.json").read_text()) for d in (ints, back))
    assert a == b and (back / "tokenizer.json").exists() and not (back / MANIFEST).exists()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("arch,layout", [(80, "T"), (90, "H")])
@pytest.mark.parametrize("bits,group", [(8, 0), (4, 0), (4, 64)])
def test_trtllm(tmp_path, tessera, convert, bits, group, arch, layout, head, bias):
    src, source = llama(tmp_path / "src", np.float16, head, bias)
    dst = convert(src, "--to", "trtllm", "--arch", f"sm{arch}", "--bits", str(bits), "--group-size", str(group),
                  "--scale-dtype", "f16")
    got, there = read(dst / "rank0.safetensors"), "transformer.layers.0."
    names = {"attention.qkv": [Q, K, V], "attention.dense": [O], "mlp.fc": [GATE], "mlp.gate": [UP], "mlp.proj": [DOWN]}
    for module, parts in names.items():
        codes, scale, _ = quantized(np.concatenate([source[p] for p in parts]), bits, group,
                                    divisor=2 ** (bits - 1), rounding=away)
        n, k = codes.shape
        weight = got.pop(there + module + ".weight")
        assert same_bits(weight.view(np.uint8).ravel(), laid_out(codes, layout, bits)), module
        assert weight.shape == ((k, n // 4) if group else (k, n * bits // 8)) and weight.dtype == (np.float16 if group else np.int8)
        stored = got.pop(there + module + (".weights_scaling_factor" if group else ".per_channel_scale"))
        assert same_bits(stored, np.ascontiguousarray(scale.T).astype(np.float16) if group else scale[:, 0].astype(np.float16))
        if group:
            zero = got.pop(there + module + ".zero")
            assert zero.shape == stored.shape and not zero.any()
    if bias:
        assert same_bits(got.pop(there + "attention.qkv.bias"),
                         np.concatenate([source[p[:-6] + "bias"] for p in (Q, K, V)]))
    assert got.keys() == {"transformer.vocab_embedding.weight", "transformer.ln_f.weight", "lm_head.weight"}
    assert same_bits(got["lm_head.weight"], source[HEAD if head else EMBED])
    config = json.loads((dst / "config.json").read_text())
    want = {"quant_algo": "W4A16_GPTQ" if group else f"W{bits}A16", "kv_cache_quant_algo": None}
    want |= {"group_size": group, "has_zero_point": True, "pre_quant_scale": False} if group else {}
    excluded = config["quantization"].pop("exclude_modules")
    assert config["quantization"] == want and set(excluded) == {"transformer.vocab_embedding", "lm_head"}
    assert (config["attn_bias"], config["mlp_bias"]) == (bias, False)
    assert config["mapping"] == {"world_size": 1, "tp_size": 1, "pp_size": 1} and config["dtype"] == "float16"
    assert (config["architecture"], config["head_size"], config["num_key_value_heads"], config["rotary_base"],
            config["norm_epsilon"]) == ("LlamaForCausalLM", 32, 2, 500000.0, 1e-5)
    back = read(convert(dst, "--from", "trtllm") / "model.safetensors")
    for parts in names.values():
        for p in parts:
            codes, scale, _ = quantized(source[p], bits, group, divisor=2 ** (bits - 1), rounding=away)
            assert same_bits(back.pop(p + "_packed"), packed(codes, bits)), p
            scale[scale == 0] = 1  # as the packed form has it
            assert same_bits(back.pop(p + "_scale"), scale.astype(np.float16)), p
            assert back.pop(p + "_shape").tolist() == list(codes.shape)
    assert all(same_bits(back[n], source[n]) for n in back) and back.keys() == {n for n in source if n not in sum(names.values(), [])}


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("producer,arch,layout,_", LAYOUTS)
def test_any_shape_that_a_layout_takes(tmp_path, convert, producer, arch, layout, _, bits):
    """Converts every shape that a layout supports, and back."""
    rng = np.random.default_rng(arch * bits)
    step_k = 1 if layout == "R" else 64 if layout == "T" or bits == 4 else 32
    step_n = 32 // bits if layout == "R" else 64 if bits == 4 or producer == "ft" else 32
    for i in range(3):
        k, n = step_k * int(rng.integers(1, 5)), step_n * int(rng.integers(1, 6))
        k *= 32 // bits if layout == "R" else 1  # the way back packs rows into words
        w = random_weight((n, k), i).astype(BF16)
        src = make(tmp_path / f"src{i}", {"model.safetensors": {O: w, NORM: np.ones(128, BF16)}}, quantization=None)
        (src / "config.json").write_text(json.dumps(CONFIG))
        dst = convert(src, "--to", "fastertransformer", "--arch", f"sm{arch}", "--producer", producer, "--bits", str(bits))
        codes, scale, _ = quantized(w, bits, divisor=2 ** (bits - 1), rounding=away)
        data = np.frombuffer((dst / (O + ".0.bin")).read_bytes(), np.uint8)
        assert same_bits(data[: n * k * bits // 8], laid_out(codes, layout, bits)), (k, n)
        back = read(convert(dst, "--from", "fastertransformer") / "model.safetensors")
        assert same_bits(back[O + "_packed"], packed(codes, bits)) and same_bits(back[O + "_scale"], scale.astype(BF16)), (k, n)


@pytest.mark.parametrize("said,base,scaling", [
    ({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}, 5e5, {"type": "linear", "factor": 2.0}),
    ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, None),
    ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}, 5e5,
     {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}),
    ({}, 1e4, None)])
def test_rotary_settings_of_either_spelling(tmp_path, convert, said, base, scaling):
    src, _ = llama(tmp_path / "src")
    (src / "config.json").write_text(json.dumps({k: v for k, v in CONFIG.items() if k != "rope_theta"} | said))
    config = json.loads((convert(src, "--to", "trtllm", "--arch", "sm80") / "config.json").read_text())
    assert (config["rotary_base"], config["rotary_scaling"]) == (base, scaling)


def test_two_rotary_bases_are_named(tmp_path, refuse):
    src, _ = llama(tmp_path / "src")
    (src / "config.json").write_text(json.dumps(CONFIG | {"rope_parameters": {"rope_theta": 1e6}}))
    refuse(src, 3, "rope_theta is 500000", "rope_parameters.rope_theta is 1000000", options=("--to", "trtllm", "--arch", "sm80"))


def test_nothing_but_blobs(tmp_path, convert):
    """A checkpoint whose tensors all have a layout leaves no safetensors file. The inverse conversion does not need one."""
    w = random_weight((128, 128), 1).astype(BF16)
    src = make(tmp_path / "src", {"model.safetensors": {O: w}}, quantization=None)
    (src / "config.json").write_text(json.dumps(CONFIG))
    blobs = convert(src, "--to", "fastertransformer", "--arch", "sm80")
    assert not list(blobs.glob("*.safetensors"))
    codes, scale, _ = quantized(w, 8, divisor=128, rounding=away)
    back = read(convert(blobs, "--from", "fastertransformer") / "model.safetensors")
    assert same_bits(back[O + "_packed"], packed(codes, 8)) and same_bits(back[O + "_scale"], scale.astype(BF16))


def test_more_files_than_a_process_may_have_open(tmp_path, tessera):
    weights = {f"model.layers.{i}.mlp.down_proj.weight": random_weight((64, 64), i).astype(BF16) for i in range(200)}
    src = make(tmp_path / "src", {"model.safetensors": weights}, quantization=None)
    (src / "config.json").write_text(json.dumps(CONFIG))
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    command = [str(tessera), "convert", str(src), "-o", str(tmp_path / "dst"), "--to", "fastertransformer", "--arch", "sm80"]
    subprocess.run(command + ["--quiet"], preexec_fn=few, check=True)
    assert len(list((tmp_path / "dst").glob("*.bin"))) == 200


def test_the_way_back_can_be_verified(tmp_path, tessera, convert):
    src, _ = llama(tmp_path / "src")
    back = convert(convert(src, "--to", "trtllm", "--arch", "sm80"), "--from", "trtllm")
    harness.succeed(tessera, ["verify", back, "--against", src])


def test_the_report_names_what_was_joined(tmp_path, convert):
    src, source = llama(tmp_path / "src")
    dst = convert(src, "--to", "trtllm", "--arch", "sm80")
    rows = {r["name"]: r for r in json.loads((dst / "quantization_report.json").read_text())["tensors"]}
    row = rows["transformer.layers.0.attention.qkv.weight"]
    w = np.concatenate([source[p] for p in (Q, K, V)])
    codes, scale, _ = quantized(w, 8, divisor=128, rounding=away)
    error = np.abs(w.astype(np.float64) - codes * scale.astype(np.float64))
    assert row["shape"] == list(w.shape) and row["max_abs_error"] == pytest.approx(error.max(), rel=1e-4)
    assert row["max_abs_error_at"] == list(np.unravel_index(error.argmax(), error.shape))


def tall(name, shape):
    return lambda tensors: tensors.__setitem__(name, np.ones(shape, BF16))


REFUSED = [
    (tall(DOWN, (128, 96)), ("fastertransformer", "--arch", "sm80"), 3, [DOWN, "K = 96", "64 and 128"]),
    (tall(DOWN, (96, 192)), ("fastertransformer", "--arch", "sm80"), 3, [DOWN, "N = 96", "64 and 128"]),
    (None, ("fastertransformer", "--arch", "sm90"), 3, ["no layout for sm90"]),
    (None, ("trtllm", "--arch", "sm70"), 3, ["no layout for sm70"]),
    (None, ("fastertransformer",), 2, ["--arch sm70"]),
    (None, ("trtllm", "--arch", "sm80", "--group-size", "64"), 3, ["W4A16_GPTQ"]),
    (None, ("trtllm", "--arch", "sm80", "--bits", "4", "--group-size", "128", "--scale-dtype", "f16"), 3,
     ["groups of 128", "192", "groups of 64 do"]),
    (None, ("fastertransformer", "--arch", "sm80", "--divisor", "7"), 2, ["--divisor 7"]),
    (None, ("fastertransformer", "--arch", "sm80", "--producer", "ft-9"), 2, ["ft-9"]),
    (lambda t: t.pop(K), ("trtllm", "--arch", "sm80"), 3, [K, "is missing"]),
    (lambda t: t.__setitem__("model.layers.0.self_attn.g_proj.weight", t[O]), ("trtllm", "--arch", "sm80"), 3, ["g_proj", "no TensorRT-LLM name"]),
]


@pytest.mark.parametrize("change,arguments,expected,words", REFUSED)
def test_refusals(tmp_path, tessera, change, arguments, expected, words):
    src, _ = llama(tmp_path / "src", change=change or (lambda t: None))
    harness.expect(tessera, ["convert", src, "-o", tmp_path / "out", "--to", *arguments], expected, *words)
    assert not (tmp_path / "out" / "config.json").exists()


def test_packed_sources_that_do_not_fit(tmp_path, tessera, quantize):
    src, _ = llama(tmp_path / "src")
    for options, arguments, expected, word in [
            (("--scheme", "int4-weight-only", "--zero-points", "--group-size", "32"), (), 3, "zero points"),
            (("--scheme", "int8-channel"), (), 3, "int8 for W8A8"),
            ((), (), 3, "FP8"),
            (("--scheme", "int8-weight-only"), ("--bits", "4"), 2, "--bits has no effect")]:
        ints = quantize(src, *options)
        harness.expect(tessera, ["convert", ints, "-o", tmp_path / "out", "--to", "fastertransformer", "--arch", "sm80", *arguments], expected, word)


def test_what_trtllm_cannot_take_of_packed_sources(tmp_path, tessera, quantize):
    src, _ = llama(tmp_path / "src", change=tall(DOWN, (128, 96)))
    for options, target, words in [
            (("--group-size", "0", "--scale-dtype", "f32"), "trtllm", ["its scales are F32", "--scale-dtype bf16"]),
            (("--group-size", "0"), "fastertransformer", [DOWN, "K = 96", "quantize the original again with --exclude for it"])]:
        ints = quantize(src, "--scheme", "int8-weight-only", *options)
        harness.expect(tessera, ["convert", ints, "-o", tmp_path / "out", "--to", target, "--arch", "sm80"], 3, *words)


@pytest.mark.parametrize("dtype, scale", [(BF16, "f16"), (np.float16, "bf16")])
def test_one_dtype_for_all_that_trtllm_gets(dtype, scale, tmp_path, tessera):
    """TensorRT-LLM's plugins accept only inputs of their own type, and keep a parameter of another type with a warning."""
    src, _ = llama(tmp_path / "src", dtype)
    command = ["convert", src, "-o", tmp_path / "out", "--to", "trtllm", "--arch", "sm80", "--scale-dtype", scale]
    own = "bf16" if dtype == BF16 else "f16"
    harness.expect(tessera, command, 3, f"is {own.upper()}", f"scales in {scale.upper()}", f"--scale-dtype {own}")
    harness.succeed(tessera, [*command[:-1], own])


def edit(change):
    def run(dst):
        manifest = json.loads((dst / MANIFEST).read_text())
        change(manifest)
        (dst / MANIFEST).write_text(json.dumps(manifest))
    return run


def shorten(dst):
    path = dst / (O + ".0.bin")
    path.write_bytes(path.read_bytes()[:-2])


BROKEN = [
    (lambda d: (d / MANIFEST).unlink(), ["tessera-layout.json is missing"]),
    (lambda d: (d / (O + ".0.bin")).unlink(), [O + ".0.bin"]),
    (shorten, [O, "needs"]),
    (lambda d: (d / MANIFEST).write_text("{"), [MANIFEST]),
    (edit(lambda m: m.__setitem__("schema", "other/1")), ["schema"]),
    (edit(lambda m: m.__setitem__("target", "trtllm")), ["--from trtllm"]),
    (edit(lambda m: m.__setitem__("bits", 3)), ["or invalid"]),
    (edit(lambda m: m.__setitem__("arch", 90)), ["sm90"]),
    (edit(lambda m: m.__setitem__("group_size", 7)), ["outside this layout"]),
    (edit(lambda m: m["weights"][0].__setitem__("k", 2**62)), ["K = "]),
    (edit(lambda m: m["weights"][0].__setitem__("columns", 2**63)), ["outside this layout"]),
    (edit(lambda m: m["weights"][0].__setitem__("first", 1)), ["outside this layout"]),
    (edit(lambda m: m["weights"][0].update(first=1, columns=m["weights"][0]["n"] // 2)), ["outside this layout"]),
    (edit(lambda m: m["weights"][0].__setitem__("file", "../../etc/passwd")), ["no '../../etc/passwd'"]),
    (edit(lambda m: m["weights"][0].pop("n")), ["without name"]),
    (edit(lambda m: m["weights"][0].update(k=2**31 - 64, n=2**31 - 64, first=0, columns=64)), ["needs", "which has"]),
    (edit(lambda m: m["weights"].append(m["weights"][0])), ["two output tensors would have the name", "_packed"]),
]


@pytest.mark.parametrize("damage,words", BROKEN)
def test_broken_blobs(tmp_path, tessera, convert, damage, words):
    src, _ = llama(tmp_path / "src")
    dst = convert(src, "--to", "fastertransformer", "--arch", "sm80")
    damage(dst)
    harness.expect(tessera, ["convert", dst, "-o", tmp_path / "out", "--from", "fastertransformer"], 3, *words)


@pytest.mark.parametrize("dtype,bits", [("F4", 4), ("F8_E8M0", 8), ("F8_E5M2", 8), ("I8", 8)])
@pytest.mark.parametrize("target", ["trtllm", "fastertransformer"])
def test_only_plain_data_comes_back_beside_weights(tmp_path, tessera, convert, target, dtype, bits):
    """Only unquantized data may be restored beside the weights. An F4 tensor was restored with 0 bytes."""
    src, _ = llama(tmp_path / "src")
    dst = convert(src, "--to", target, "--arch", "sm80")
    path = next(dst.glob("*.safetensors"))
    metadata, tensors = harness.read_safetensors(path)
    name = next(n for n in tensors if n.endswith(("vocab_embedding.weight", "embed_tokens.weight")))
    _, shape, data = tensors[name]
    tensors[name] = (dtype, [shape[0], len(data) // shape[0] * 8 // bits], data)
    harness.write_safetensors(path, tensors, metadata)
    harness.expect(tessera, ["convert", dst, "-o", tmp_path / "out", "--from", target], 3, name, dtype)


def test_threads_and_instruction_sets_agree(tmp_path, tessera, convert):
    src, _ = llama(tmp_path / "src", change=tall(UP, (2048, 128)))
    first = convert(src, "--to", "fastertransformer", "--arch", "sm80", "--bits", "4")
    for options in (("--threads", "1", "--cpumask", "0"), ("--threads", "3", "--cpumask", "1")):
        assert harness.tree_difference(first, convert(src, "--to", "fastertransformer", "--arch", "sm80", "--bits", "4", *options)) is None


def test_every_name_of_qwen3_is_tensorrt_llms(tmp_path, convert):
    """Compares names with a second copy of those in tensorrt_llm/models/qwen. A norm with a wrong name would keep its ones
    without a message."""
    layer = "model.layers.0."
    vectors = {layer + "self_attn.q_norm.weight": 2.0, layer + "self_attn.k_norm.weight": 3.0,
               layer + "input_layernorm.weight": 4.0, layer + "post_attention_layernorm.weight": 5.0, "model.norm.weight": 6.0}
    src, source = llama(tmp_path / "src", change=lambda t: t.update(
        {n: np.full(32 if "_norm." in n else 128, x, BF16) for n, x in vectors.items()}))
    (src / "config.json").write_text(json.dumps(CONFIG | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}))
    dst = convert(src, "--to", "trtllm", "--arch", "sm80")
    got, there = read(dst / "rank0.safetensors"), "transformer.layers.0."
    want = {there + "attention.q_layernorm.weight": 2.0, there + "attention.k_layernorm.weight": 3.0,
            there + "input_layernorm.weight": 4.0, there + "post_layernorm.weight": 5.0, "transformer.ln_f.weight": 6.0}
    for name, x in want.items():
        assert (got.pop(name).astype(np.float32) == x).all(), name
    linear = {there + m + end for m in ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
              for end in (".weight", ".per_channel_scale")}
    assert got.keys() == linear | {"transformer.vocab_embedding.weight", "lm_head.weight"}
    assert json.loads((dst / "config.json").read_text())["qwen_type"] == "qwen3"
    back = read(convert(dst, "--from", "trtllm") / "model.safetensors")
    assert all(same_bits(back[n], source[n]) for n in vectors)


@pytest.mark.parametrize("target,name", [("trtllm", "TensorRT-LLM"), ("fastertransformer", "FasterTransformer")])
def test_inspect_says_what_a_layout_holds(tmp_path, tessera, convert, target, name):
    src, _ = llama(tmp_path / "src")
    dst = convert(src, "--to", target, "--arch", "sm80", "--bits", "4")
    code, out, err = harness.run(tessera, ["inspect", dst])
    assert code == 0 and "7 weights of int4" in out and out.count("warning") <= 1 and name in out and "sm80" in out, out + err
    assert "quantization: none" not in out and "router" not in out
    code, out, _ = harness.run(tessera, ["inspect", dst, "--json", "-", "--quiet"])
    layout = json.loads(out)["layout"]
    assert (layout["target"], layout["arch"], layout["bits"], layout["group_size"]) == (target, 80, 4, 0)
    harness.expect(tessera, ["inspect", dst, "--can-load", "all"], 3, "layout of a kernel")
