"""Tests `tessera merge` with quantized bases: what is stored, scales that loaders share, and what is refused."""

import json

from checkpoints import BF16, make, random_weight, read, same_bits
import fp8_oracle
import harness
import int_oracle
import merge_oracle as oracle
import mx_oracle
import numpy as np
import pytest
import stored_oracle as stored

F32 = np.float32
ATTENTION, MLP = "model.layers.0.self_attn.", "model.layers.0.mlp."
SHAPES = {ATTENTION + "q_proj": (160, 256), ATTENTION + "k_proj": (64, 256), ATTENTION + "v_proj": (64, 256), ATTENTION + "o_proj": (256, 160),
          MLP + "gate_proj": (320, 256), MLP + "up_proj": (320, 256), MLP + "down_proj": (256, 320)}
UPDATED = [ATTENTION + "q_proj", ATTENTION + "v_proj", MLP + "gate_proj", MLP + "up_proj", MLP + "down_proj"]


def bf16_model(path):
    tensors = {f"{module}.weight": (random_weight(shape, seed) * F32(1 + seed % 3)).astype(BF16) for seed, (module, shape) in enumerate(SHAPES.items())}
    return make(path, {"model.safetensors": {**tensors, "model.layers.0.input_layernorm.weight": np.ones(256, BF16)}}, quantization=None,
                hidden_size=256, num_hidden_layers=1, num_attention_heads=4)


def updates(size=0.01):
    pairs = {module: oracle.factors(*SHAPES[module], seed=seed, size=size) for seed, module in enumerate(UPDATED)}
    return pairs, {module: oracle.update(a, b, oracle.scale()) for module, (a, b) in pairs.items()}


def blocks_of(tensors, module):
    return tensors[module + ".weight"].astype(F32) * fp8_oracle.spread(tensors[module + ".weight_scale_inv"], SHAPES[module])


def rows_of(tensors, module):
    return tensors[module + ".weight"].astype(F32) * tensors[module + ".weight_scale"].astype(F32)


def ints_of(tensors, module):
    if module + ".weight_packed" in tensors:
        words = tensors[module + ".weight_packed"].view(np.uint32)
        bits = 32 * words.shape[1] // SHAPES[module][1]
        fields = words[..., None] >> (bits * np.arange(32 // bits, dtype=np.uint32)) & np.uint32(2**bits - 1)
        codes = fields.reshape(len(words), -1).astype(np.int32) - 2 ** (bits - 1)
    else:
        codes = tensors[module + ".weight"].astype(np.int32)
    scales = tensors[module + ".weight_scale"].astype(F32)
    zeros = np.zeros_like(scales)
    if module + ".weight_zero_point" in tensors:
        words = tensors[module + ".weight_zero_point"].view(np.uint32)
        zeros = (words[:, None] >> (4 * np.arange(8, dtype=np.uint32))[:, None] & 15).reshape(-1, words.shape[1])[:len(codes)].astype(F32) - 8
    width = codes.shape[1] // scales.shape[1]
    return ((codes - np.repeat(zeros, width, 1)) * np.repeat(scales, width, 1)).astype(F32)


def groups_of(dialect, scheme="nvfp4"):
    return lambda tensors, module: mx_oracle.decoded(tensors, module, scheme, dialect, F32)


def stored_blocks(ue8m0):
    def store(x, _):
        codes, scales = fp8_oracle.quantize(x, ue8m0)
        return {".weight": codes, ".weight_scale_inv": scales}
    return store


def stored_rows(dtype):
    def store(x, _):
        codes, scales = fp8_oracle.quantize_rows(x, dtype)
        return {".weight": codes, ".weight_scale": scales.astype(dtype)}
    return store


def stored_ints(bits, group, asymmetric):
    def store(x, old):
        codes, scales, zeros = int_oracle.quantized(x, bits, group, asymmetric, dtype=old[".weight_scale"].dtype.type)
        made = {".weight_scale": scales.astype(old[".weight_scale"].dtype)}
        made[".weight_packed"] = int_oracle.packed(codes, bits)
        if asymmetric:
            padded = np.pad(zeros.astype(np.int64) + 8, [(0, -len(zeros) % 8), (0, 0)]).reshape(-1, 8, zeros.shape[1])
            made[".weight_zero_point"] = (padded << (4 * np.arange(8))[:, None]).sum(axis=1).astype(np.uint32).view(np.int32)
        return made
    return store


def stored_powers(elements):
    def store(x, old):
        codes, scales = mx_oracle.mx(x, elements, "rceil")
        return {".weight_packed" if elements == 4 else ".weight": codes, ".weight_scale": scales}
    return store


SCHEMES = {
    "fp8-block": ("--include *_proj.weight", blocks_of, stored_blocks(False)),
    "fp8-block, powers": ("--include *_proj.weight --scale-fmt ue8m0", blocks_of, stored_blocks(True)),
    "fp8-channel": ("--scheme fp8-channel", rows_of, stored_rows(F32)),
    "fp8-channel, BF16": ("--scheme fp8-channel --scale-dtype bf16", rows_of, stored_rows(BF16)),
    "int4": ("--scheme int4-weight-only --group-size 32", ints_of, stored_ints(4, 32, False)),
    "int4, zero points": ("--scheme int4-weight-only --group-size 32 --zero-points", ints_of, stored_ints(4, 32, True)),
    "int8": ("--scheme int8-weight-only", ints_of, stored_ints(8, 0, False)),
    "mxfp4": ("--scheme mxfp4-weight-only", groups_of("compressed-tensors", "mxfp4"), stored_powers(4)),
    "mxfp8": ("--scheme mxfp8-weight-only", groups_of("compressed-tensors", "mxfp8"), stored_powers(8)),
}


def run(tessera, base, adapter, dst, *options):
    out = harness.succeed(tessera, ["merge", base, adapter, "-o", dst, "--json", f"{dst}.json", *options])
    return read(dst / "model.safetensors"), json.loads(open(f"{dst}.json").read()), out


@pytest.mark.parametrize("name", SCHEMES)
def test_codes_scales_and_report(tmp_path, tessera, quantize, name):
    options, decode, store = SCHEMES[name]
    base = quantize(bf16_model(tmp_path / "src"), *options.split())
    before, (pairs, changes) = read(base / "model.safetensors"), updates()
    after, result, _ = run(tessera, base, oracle.write(tmp_path / "lora", pairs), tmp_path / "dst")
    assert after.keys() == before.keys()
    rows = {row["name"].removesuffix(".weight"): row for row in result["updates"]}
    assert rows.keys() == changes.keys()
    made = set()
    for module, x in changes.items():
        old = {key.removeprefix(module): value for key, value in before.items() if key.startswith(module + ".")}
        for ending, value in store(oracle.merged(decode(before, module), x), old).items():
            assert same_bits(after[module + ending], value.reshape(after[module + ending].shape)), module + ending
            made.add(module + ending)
        for key, value in oracle.figures(decode(before, module), x, decode(after, module)).items():
            assert rows[module][key] == pytest.approx(value, rel=1e-5), (module, key)
        assert rows[module]["dtype"] == harness.read_safetensors(base / "model.safetensors")[1][
            module + (".weight" if module + ".weight" in before else ".weight_packed")][0]
    assert all(same_bits(after[key], before[key]) for key in before.keys() - made)
    assert (tmp_path / "dst" / "config.json").read_bytes() == (base / "config.json").read_bytes()
    harness.succeed(tessera, ["verify", "manifest", tmp_path / "dst"])
    harness.succeed(tessera, ["verify", tmp_path / "dst", "--against", tmp_path / "dst"])


@pytest.mark.parametrize("size", [0.01, 0.3])
@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
def test_nvfp4_keeps_a_shared_global_scale(tmp_path, tessera, quantize, dialect, size):
    """The global scale, and weights without an update, are kept while e4m3 scales suffice. Otherwise the whole fused layer
    gets a new one."""
    base = quantize(bf16_model(tmp_path / "src"), "--scheme", "nvfp4-weight-only", "--dialect", dialect)
    before, (pairs, changes) = read(base / "model.safetensors"), updates(size)
    after, result, _ = run(tessera, base, oracle.write(tmp_path / "lora", pairs), tmp_path / "dst")
    codes, scales, total, _ = mx_oracle.names("nvfp4", dialect)
    decode, modules = groups_of(dialect), [name.removesuffix(codes) for name in before if name.endswith(scales)]
    modules, grown = [name.removesuffix(scales) for name in before if name.endswith(scales)], set()
    assert sorted(modules) == sorted(SHAPES) and codes
    values = {module: oracle.merged(decode(before, module), changes.get(module, np.zeros(SHAPES[module], F32))) for module in modules}
    for module in modules:
        together = mx_oracle.joined(module, modules)
        amax = max(np.abs(values[member]).max() for member in together)
        g = F32(before[module + total].reshape(()))
        unit = F32(1) / g if dialect == "compressed-tensors" else g
        if amax > F32(464) * F32(6) * unit:
            g = F32(mx_oracle.global_scale(amax, F32, dialect))
            grown.add(module)
        if module in changes or module in grown:
            expected = mx_oracle.nvfp4(values[module], dialect, g)
            assert same_bits(after[module + codes], expected[0]) and same_bits(after[module + scales], expected[1]), module
        else:
            assert same_bits(after[module + codes], before[module + codes]) and same_bits(after[module + scales], before[module + scales])
        assert F32(after[module + total].reshape(())) == g, module
    assert bool(grown) == (size > 0.1) and grown != set(SHAPES)
    assert {row["name"].removesuffix(".weight") for row in result["updates"]} == set(changes) | grown
    assert result["whole"]["tensors_merged"] == len(changes)
    assert all(same_bits(after[module + total], after[member + total]) for module in modules for member in mx_oracle.joined(module, modules))


@pytest.mark.parametrize("size", [0.001, 1])
def test_fp8_with_a_scale_a_tensor(tmp_path, tessera, quantize, size):
    base = quantize(bf16_model(tmp_path / "src"), "--scheme", "fp8-tensor", "--input-scale", "1")
    before, (pairs, changes) = read(base / "model.safetensors"), updates(size)
    after, _, _ = run(tessera, base, oracle.write(tmp_path / "lora", pairs), tmp_path / "dst")
    for module in SHAPES:
        old = F32(before[module + ".weight_scale"].reshape(()))
        x = before[module + ".weight"].astype(F32) * old
        if module in changes:
            x = oracle.merged(x, changes[module])
            amax = np.abs(x).max()
            codes, scale = fp8_oracle.quantize_tensor(x, None if amax > F32(448) * old else old * F32(448))
            assert same_bits(after[module + ".weight"], codes), module
            assert after[module + ".weight_scale"].reshape(()) == (scale if amax > F32(448) * old else old), module
        else:
            assert same_bits(after[module + ".weight"], before[module + ".weight"])


def test_threads_and_sets(tmp_path, tessera, quantize):
    pairs, _ = updates(0.3)
    adapter = oracle.write(tmp_path / "lora", pairs)
    for number, scheme in enumerate(("fp8-block", "nvfp4-weight-only", "int4-weight-only", "fp8-channel")):
        groups = ("--group-size", "32") if scheme.startswith("int4") else ()
        base = quantize(bf16_model(tmp_path / f"src-{number}"), "--scheme", scheme, *groups)
        first, result, _ = run(tessera, base, adapter, tmp_path / f"a-{number}", "--threads", "1")
        for k, options in enumerate((("--threads", "3"), ("--cpumask", "0"), ("--cpumask", "1"))):
            other, again, _ = run(tessera, base, adapter, tmp_path / f"b-{number}-{k}", *options)
            assert all(same_bits(first[name], other[name]) for name in first) and again["updates"] == result["updates"]


def test_a_small_update_is_drowned(tmp_path, tessera, quantize):
    base = quantize(bf16_model(tmp_path / "src"), "--scheme", "int4-weight-only", "--group-size", "32")
    pairs, _ = updates(1e-3)
    _, result, out = run(tessera, base, oracle.write(tmp_path / "lora", pairs), tmp_path / "dst")
    assert result["whole"]["tensors_drowned"] == len(UPDATED) and "5 updates are smaller than the rounding of the format" in out


@pytest.mark.parametrize("option, limit, beyond, words", [
    ("--max-update-error", "1", 5, ["update has a relative error of", "above the limit of 1"]), ("--max-update-error", "1e6", 0, []),
    ("--min-survived", "0.999999", 1, ["of the update survived, below the limit of 0.999999"])])
def test_limits_of_updates(tmp_path, tessera, quantize, option, limit, beyond, words):
    """The output is complete, and the exit code is 1 if an update exceeds the limit."""
    base = quantize(bf16_model(tmp_path / "src"), "--scheme", "int4-weight-only", "--group-size", "32")
    pairs, _ = updates(1e-3)
    adapter, dst = oracle.write(tmp_path / "lora", pairs), tmp_path / "dst"
    code, out, err = harness.run(tessera, ["merge", base, adapter, "-o", dst, "--json", tmp_path / "json", option, limit])
    got = json.loads((tmp_path / "json").read_text())
    check = option.removeprefix("--m").removeprefix("in-").removeprefix("ax-").replace("-", "_")
    assert code == (1 if beyond else 0) and ("FAIL" if beyond else "PASS") in out, out + err
    assert got["passed"] == (not beyond) and list(got["limits"].values()) == [float(limit)] and got["judged"] == {check: len(UPDATED)}
    failed = {f["where"] for f in got["findings"]}
    figure = "survived" if check == "survived" else "relative_error"
    wrong = {row["name"] for row in got["updates"] if (row[figure] < float(limit) if check == "survived" else row[figure] > float(limit))}
    assert failed == wrong and len(failed) >= beyond and all(word in f["what"] for f in got["findings"] for word in words)
    assert (dst / "config.json").exists() and harness.run(tessera, ["verify", "manifest", dst])[0] == 0


@pytest.mark.parametrize("options, words", [
    (["--max-update-error", "-1"], ["--max-update-error: '-1' is not a number of at least 0"]), (["--min-survived", "most"], ["--min-survived: 'most' is not a number"])])
def test_usage(tmp_path, tessera, options, words):
    harness.expect(tessera, ["merge", "base", "lora", *options, "-o", tmp_path / "dst"], 2, *words)


@pytest.mark.parametrize("scheme,words", [(("--scheme", "int8-channel"), ["tessera-azp.safetensors", "has the sums of its codes"])])
def test_refused_formats(tmp_path, tessera, quantize, scheme, words):
    base = quantize(bf16_model(tmp_path / "src"), *scheme)
    pairs, _ = updates()
    harness.expect(tessera, ["merge", base, oracle.write(tmp_path / "lora", pairs), "-o", tmp_path / "dst"], 3, *words, "convert --to bf16")


def test_int4_of_sglang_is_refused(tmp_path, tessera):
    module, (a, b) = MLP + "down_proj", oracle.factors(256, 384)
    base = make(tmp_path / "base", {"model.safetensors": {module + ".weight": np.zeros((256, 192), np.int8),
                                                          module + ".weight_scale_inv": np.ones((256, 3), F32)}}, quantization={"quant_method": "w4afp8"})
    code, _, err = harness.run(tessera, ["merge", base, oracle.write(tmp_path / "lora", {module: (a, b)}), "-o", tmp_path / "dst"])
    assert code == 3 and all(word in err for word in (module + ".weight", "reads int4 of SGLang but does not write it", "convert --to bf16")), err


def test_mxfp6_is_refused(tmp_path, tessera):
    module, (a, b) = MLP + "down_proj", oracle.factors(256, 320)
    codes, scale = stored.mxfp6(random_weight((256, 320)).astype(BF16), "e2m3")
    base = make(tmp_path / "base", {"model.safetensors": {module + ".weight_packed": codes, module + ".weight_scale": scale}},
                quantization={"quant_method": "compressed-tensors", "format": "mxfp6-pack-quantized", "config_groups": {"group_0": {
                    "targets": ["Linear"], "weights": {"num_bits": 6, "type": "float", "strategy": "group", "group_size": 32}}}})
    code, _, err = harness.run(tessera, ["merge", base, oracle.write(tmp_path / "lora", {module: (a, b)}), "-o", tmp_path / "dst"])
    assert code == 3 and all(word in err for word in (module + ".weight_packed", "reads MXFP6 but does not write it", "convert --to bf16")), err
    assert not (tmp_path / "dst" / "config.json").exists()
