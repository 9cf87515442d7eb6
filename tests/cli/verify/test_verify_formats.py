"""Tests verify and diff with MXFP4, NVFP4, MXFP8, AWQ and GPTQ.

Correct outputs of each rule pass, values equal those of the packages that made the vectors, and each planted fault is
found with tensor, place and figures."""

import json
from pathlib import Path

from checkpoints import BF16, E4M3
from coded_weights import Coded, checkpoint, GPTQ, int4_config, KINDS, MODULE, mx_config, NVFP4, WEIGHT
from format_samples import AWQ
import harness
import mx_oracle as mx
import numpy as np
import pytest
import stored_oracle as stored

VECTORS = Path(__file__).parents[2] / "peers/golden/vectors-4bit"
CASES = {case["name"]: case["kind"] for case in json.loads((VECTORS / "manifest.json").read_text())["cases"]
         if case["op"] == "decode"}


def run_verify(tessera, dst, src, *options):
    """Returns (exit code, {check: {where: what}}, {tensor: figures})."""
    code, out, err = harness.run(tessera, ["verify", dst, "--against", src, "--json", "-", *options])
    assert code in (0, 1), err
    result, found = json.loads(out), {}
    for f in result["findings"]:
        found.setdefault(f["check"], {})[f["where"]] = f["what"]
    assert (code == 0) == (not found)
    return code, found, {t["name"]: t for t in result["tensors"]}


@pytest.fixture
def expect(tessera, tmp_path):
    """Returns expect(tensors of DST, of SRC, config, check, where, *words), which checks that the fault is found there with
    these words."""
    def run(dst, src, config, check, where, *words, options=()):
        code, found, figures = run_verify(tessera, checkpoint(tmp_path / "dst", dst, config),
                                          checkpoint(tmp_path / "src", src), *options)
        assert code == 1 and where in found.get(check, {}), found
        assert all(word in found[check][where] for word in words), found[check][where]
        return found, figures
    return run


# ---- values, as the packages have them ----


def block_size(name):
    return 32 if "v41" in name else 128


def config_of(name):
    kind = CASES[name]
    if kind == "int4-ct":
        return int4_config(64 if "asym" in name else 32, "asym" not in name)
    if kind in ("fp8-block", "mxfp4-v4"):
        return {"quant_method": "fp8", "weight_block_size": [block_size(name)] * 2, "scale_fmt": "ue8m0"}
    if kind.startswith("mxfp6"):
        dtype = f"fp6_{kind.split('-')[1]}"
        return mx_config(6) if kind == "mxfp6-ct" else {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": dtype, "group_size": 32}}}
    return {"awq": AWQ, "gptq": GPTQ, "mxfp4-gptoss": {"quant_method": "mxfp4"}}.get(kind)


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_packages(name, tessera, tmp_path):
    """The oracle's values are exact. Rounded to BF16, they equal those of the package."""
    given = stored.read_any(VECTORS / f"{name}.in.safetensors")
    (key, made), = stored.read_any(VECTORS / f"{name}.out.safetensors").items()
    exact = stored.values(CASES[name], given)
    assert np.array_equal(stored.in_bf16(exact).astype(np.float32), made.astype(np.float32), equal_nan=True)
    coded = checkpoint(tmp_path / "coded", given, config_of(name))
    options = ["--source-block", f"{block_size(name)}x{block_size(name)}"] if CASES[name] == "fp8-block" else []
    for path, values, tolerance in (("exact", exact, None), ("made", made, 2.0**-9)):
        plain = checkpoint(tmp_path / path, {key: np.ascontiguousarray(values)})
        limit = [] if tolerance is None else ["--tolerance", tolerance]
        out = harness.succeed(tessera, ["diff", plain, coded, "--json", "-", *options, *limit])
        tensor, = json.loads(out)["tensors"]
        assert tensor["state"] == "equal" or (path == "made" and CASES[name].startswith(("nvfp4", "int4", "awq", "gptq")))


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith(("mxfp4", "nvfp4", "awq", "gptq"))])
def test_one_other_nibble_is_seen(name, tessera, tmp_path):
    """A changed nibble in any tensor of codes is found. diff reports one value and its position."""
    given = stored.read_any(VECTORS / f"{name}.in.safetensors")
    exact = np.ascontiguousarray(stored.values(CASES[name], given))
    (key, _), = stored.read_any(VECTORS / f"{name}.out.safetensors").items()
    codes, = (n for n in given if n.endswith(("_packed", ".qweight", "_blocks")) or (n == key and given[n].dtype != E4M3))
    other = dict(given, **{codes: given[codes].copy()})
    raw = other[codes].view(np.uint8).reshape(-1)
    raw[len(raw) // 3] ^= 0x20
    where = np.argwhere(stored.values(CASES[name], other) != exact)
    assert len(where) == 1
    code, out, err = harness.run(tessera, ["diff", checkpoint(tmp_path / "a", {key: exact}),
                                           checkpoint(tmp_path / "b", other, config_of(name)), "--json", "-"])
    tensor, = json.loads(out)["tensors"]
    assert code == 1 and tensor["differ"] == 1 and tensor["max_abs_error_at"] == where[0].tolist(), out + err


# ---- what is sound ----


def ranges(weights, path):
    path.write_text(json.dumps({module: {"min": -1.5, "max": 2.25} for module in weights}))
    return path


@pytest.mark.parametrize("options", [(), ("--scales", "mse")], ids=str)
@pytest.mark.parametrize("scheme, dialect", mx.PAIRS)
def test_what_quantize_writes_passes(scheme, dialect, options, tessera, quantize, tmp_path):
    """The weights have all edge cases: groups of zeros, of subnormals, ties, and amax next to each threshold."""
    src, weights = mx.model(tmp_path / "src")
    if scheme == "nvfp4":
        options = (*options, "--activations", ranges(weights, tmp_path / "ranges.json"))
    dst = quantize(src, "--scheme", scheme, "--dialect", dialect, *options)
    code, found, figures = run_verify(tessera, dst, src)
    assert (code, found) == (0, {})
    rows = [t for t in figures.values() if t["state"] == "differs"]
    assert len(rows) == len(weights) and all(t["misrounded"] == t["misscaled"] == 0 for t in rows)


@pytest.mark.parametrize("rule", mx.RULES)
@pytest.mark.parametrize("elements", [4, 8])
def test_every_rule_passes(elements, rule, tessera, tmp_path):
    """The tests' oracle makes the codes, not quantize."""
    w = mx.awkward((64, 256), 3, BF16)
    codes, scale = mx.mx(w, elements, rule)
    tensors = {(WEIGHT + "_packed" if elements == 4 else WEIGHT): codes, WEIGHT + "_scale": scale}
    code, found, _ = run_verify(tessera, checkpoint(tmp_path / "dst", tensors, mx_config(elements)),
                                checkpoint(tmp_path / "src", {WEIGHT: w}))
    assert (code, found) == (0, {})


def test_outliers_are_no_fault(tessera, tmp_path):
    """The values of some groups are all halfway between codes. Every error is as large as possible, and no code or scale is
    better."""
    w = np.full((64, 256), 5 * 2.0**-9).astype(BF16)
    codes, scale = mx.mx(w, 4, "even")
    dst = checkpoint(tmp_path / "dst", {WEIGHT + "_packed": codes, WEIGHT + "_scale": scale}, mx_config(4))
    src = checkpoint(tmp_path / "src", {WEIGHT: w})
    code, found, figures = run_verify(tessera, dst, src)
    assert (code, found) == (0, {}) and figures[WEIGHT]["sqnr_db"] < 14
    assert run_verify(tessera, dst, src, "--min-sqnr", "14")[0] == 1  # what is asked for is held to


# ---- planted faults ----


@pytest.mark.parametrize("kind", KINDS)
def test_sound(kind, tessera, tmp_path):
    c = Coded(kind)
    code, found, figures = run_verify(tessera, checkpoint(tmp_path / "dst", c.tensors, c.config),
                                      checkpoint(tmp_path / "src", {WEIGHT: c.w}))
    assert (code, found) == (0, {}) and figures[WEIGHT]["misrounded"] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("up", [True, False], ids=["larger", "smaller"])
def test_one_wrong_scale(kind, up, expect):
    """The scale is replaced by the next larger or smaller one of its dtype: half or twice, or an eighth more or less."""
    c = Coded(kind)
    scale = c.change((".scales" if kind in ("awq", "gptq") else "_scale"))
    at = (3, 70) if kind in ("awq", "gptq") else (70, 3)
    raw = scale.view(np.uint16 if kind in ("awq", "gptq") else np.uint8)
    raw[at] = int(raw[at]) + (1 if up else -1) * (64 if kind in ("awq", "gptq") else 1)
    found, figures = expect(*c.args(), "values", WEIGHT, "codes are not the nearest", "70, ")
    assert figures[WEIGHT]["misrounded"] > 0


@pytest.mark.parametrize("kind, by", [("mxfp4", 2), ("mxfp4", -3), ("nvfp4", 2), ("nvfp4", -3), ("mxfp8", -3),
                                      ("mxfp8", 14)])  # what e4m3 does not mind is no fault: 2^12 leaves 3 bits
def test_one_scale_that_its_codes_were_made_with(kind, by, expect):
    """No code is misrounded, but the scale follows no rule, and its error is larger than that of the rule's scale."""
    c = Coded(kind)
    elements = 8 if kind == "mxfp8" else 4
    scale = c.change("_scale").view(np.uint8)
    group = 16 if kind == "nvfp4" else 32
    x = c.w[70, 3 * group:4 * group].astype(np.float32)
    scale[70, 3] = int(scale[70, 3]) + by * (8 if kind == "nvfp4" else 1)
    unit = mx.power(scale[70, 3]) if kind != "nvfp4" else np.float32(scale.view(E4M3)[70, 3]) / c.tensors[WEIGHT + "_global_scale"][0]
    if elements == 8:
        c.change(".weight")[70, 96:128] = np.clip(x / unit, -448, 448).astype(E4M3)
    else:
        codes = mx.packed(mx.e2m1((x / unit)[None], x[None]))[0]
        c.change("_packed")[70, 3 * group // 2:4 * group // 2] = codes
    found, figures = expect(*c.args(), "blocks", WEIGHT, "1 of ", f"[70, {3 * group}]", "squared error")
    assert set(found) == {"blocks"} and figures[WEIGHT]["misscaled"] == 1 and figures[WEIGHT]["misrounded"] == 0


@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_nibbles_swapped(kind, expect):
    c = Coded(kind)
    packed = c.change("_packed")
    packed[:] = packed >> 4 | packed << 4
    expect(*c.args(), "values", WEIGHT, "the odd column of each pair is in the low four bits")


@pytest.mark.parametrize("swapped", [False, True])
def test_int4_of_sglang(swapped, quantize, tessera, tmp_path):
    """SGLang's form has the codes and scales that quantize writes for compressed-tensors."""
    w = Coded("mxfp4").w
    made = stored.read_any(quantize(checkpoint(tmp_path / "src", {WEIGHT: w}), "--scheme", "int4-weight-only") / "model.safetensors")
    codes = (made[WEIGHT + "_packed"].view(np.uint8) ^ 0x88).reshape(w.shape[0], -1)
    codes = (codes >> 4 | codes << 4 if swapped else codes).view(np.int8)
    dst = checkpoint(tmp_path / "dst", {WEIGHT: codes, WEIGHT + "_scale_inv": made[WEIGHT + "_scale"].astype(np.float32)}, {"quant_method": "w4afp8"})
    code, found, figures = run_verify(tessera, dst, tmp_path / "src")
    assert figures[WEIGHT]["misrounded"] == 0 or swapped
    assert (code, found) == (0, {}) if not swapped else "the odd column of each pair" in found["values"][WEIGHT]


@pytest.mark.parametrize("kind", ["mxfp4", "nvfp4"])
def test_two_nibbles_swapped(kind, expect):
    c = Coded(kind)
    packed = c.change("_packed")
    at = tuple(np.argwhere((packed & 15 == 4) & (packed >> 4 == 0xF))[0])  # 2 and -6
    packed[at] = packed[at] >> 4 | packed[at] << 4
    expect(*c.args(), "values", WEIGHT, "2 of 131072 codes are not the nearest", f"[{at[0]}, {2 * at[1]}]")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", [1, -1])
def test_groups_shifted_by_one(kind, by, expect):
    c = Coded(kind)
    suffix = ".scales" if kind in ("awq", "gptq") else "_scale"
    scale = c.change(suffix)
    scale[:] = np.roll(scale.view(np.uint8 if scale.itemsize == 1 else np.uint16), by, 0 if suffix == ".scales" else 1).view(scale.dtype)
    words = ("shifted by one block",) if kind.startswith(("mxfp", "nvfp4")) else ("codes are not the nearest",)
    expect(*c.args(), "values", WEIGHT, *words)


@pytest.mark.parametrize("wrong, words", [
    (lambda g: 1 / g, "the global scale is inverted"),
    (lambda g: g * np.float32(1.5), "by one factor, as from a wrong global scale"),
])
def test_global_scale(wrong, words, expect):
    c = Coded("nvfp4")
    total = c.change("_global_scale")
    total[:] = wrong(total)
    expect(*c.args(), "values", WEIGHT, words)


@pytest.mark.parametrize("value, what", [(0, "zero"), (-3, "negative"), (np.nan, "NaN"), (np.inf, "infinite")])
def test_global_scale_out_of_range(value, what, expect):
    c = Coded("nvfp4")
    c.change("_global_scale")[:] = value
    expect(*c.args(), "scales", WEIGHT + "_global_scale", what)


@pytest.mark.parametrize("parent, members", [("model.layers.0.self_attn", ("q_proj", "k_proj", "v_proj")),
                                             ("layers.0.attn", ("wq_a", "wkv")), ("layers.0.attn.compressor", ("wkv", "wgate"))])
def test_global_scales_that_differ_over_a_joined_layer(parent, members, expect):
    """Each scale is valid alone, but loaders use one of them for both members."""
    rng = np.random.default_rng(4)
    modules = [f"{parent}.{m}" for m in members]
    weights = {m: (rng.standard_normal((64, 128)) * 2.0**i).astype(BF16) for i, m in enumerate(modules)}
    tensors = {}
    for module, w in weights.items():
        tensors.update(mx.expected({module: w}, "nvfp4-weight-only", "compressed-tensors"))
    found, _ = expect(tensors, {m + ".weight": w for m, w in weights.items()}, NVFP4, "scales",
                      modules[1] + ".weight_global_scale", "which loaders join with it", modules[0])
    assert set(found) == {"scales"} and set(found["scales"]) == {m + ".weight_global_scale" for m in modules[1:]}


@pytest.mark.parametrize("kind, byte, what", [("mxfp4", 255, "NaN"), ("mxfp8", 255, "NaN"), ("mxfp4", 0, "subnormal"),
                                              ("mxfp6", 255, "NaN"), ("mxfp6_e3m2", 0, "subnormal"),
                                              ("nvfp4", 0x7F, "NaN"), ("nvfp4", 0x80 | 0x38, "negative"), ("nvfp4", 0, "zero")])
def test_scales_out_of_range(kind, byte, what, expect):
    c = Coded(kind)
    c.change("_scale").view(np.uint8)[9, 2] = byte
    expect(*c.args(), "scales", WEIGHT + "_scale", "1 of ", "block [9, 2]", what)


def test_a_group_of_zeros_may_have_any_scale(tessera, tmp_path):
    for kind, byte in (("mxfp4", 0), ("mxfp4", 127), ("nvfp4", 0), ("nvfp4", 0x38)):
        c = Coded(kind)
        c.w = c.w.copy()
        c.w[9, :32] = 0
        c.change("_packed")[9, :16] = 0
        c.change("_scale").view(np.uint8)[9, :1 if kind == "mxfp4" else 2] = byte
        code, found, _ = run_verify(tessera, checkpoint(tmp_path / f"dst-{kind}-{byte}", c.tensors, c.config),
                                    checkpoint(tmp_path / f"src-{kind}-{byte}", {WEIGHT: c.w}))
        assert (code, found) == (0, {}), (kind, byte)


@pytest.mark.parametrize("kind", ["awq", "gptq"])
@pytest.mark.parametrize("by", [1, -1])
def test_one_wrong_zero_point(kind, by, expect):
    c = Coded(kind)
    codes, zeros, *rest = c.parts
    zeros = zeros.copy()
    zeros[70, 3] = int(zeros[70, 3]) + by
    pack = stored.awq if kind == "awq" else stored.gptq
    c.tensors = {MODULE + s: np.ascontiguousarray(t) for s, t in pack(codes, zeros, *rest).items()}
    words = ("1 of 4096 zero points do not", "[70, 96]", f"{by:+d}") if kind == "awq" else ("codes are not the nearest", "[70, ")
    expect(*c.args(), "values", WEIGHT, *words)


@pytest.mark.parametrize("config, words", [("gptq_v2", "zero points are one too low"), ("gptq", "zero points are one too high")])
def test_zero_points_of_the_other_version(config, words, expect):
    c = Coded("gptq")
    less = 1 if config == "gptq_v2" else 0
    c.tensors = {MODULE + s: np.ascontiguousarray(t) for s, t in stored.gptq(*c.parts, stored_less=less).items()}
    c.config = dict(GPTQ, checkpoint_format=config)
    expect(*c.args(), "values", WEIGHT, words)


@pytest.mark.parametrize("zeros_too", [True, False])
def test_awq_in_plain_order(zeros_too, expect):
    c = Coded("awq")
    codes, zeros, scales = c.parts
    plain = stored.awq(codes, zeros, scales, order=lambda x: x)
    c.tensors[MODULE + ".qweight"] = np.ascontiguousarray(plain[".qweight"])
    if zeros_too:
        c.tensors[MODULE + ".qzeros"] = np.ascontiguousarray(plain[".qzeros"])
    expect(*c.args(), "values", WEIGHT, "codes and zero points are in plain order" if zeros_too else "codes are in plain order")


def test_g_idx_ignored_by_the_writer(expect):
    """The codes have groups in the order of columns, but g_idx has another order."""
    c = Coded("gptq")
    parts = c.integers(32, np.arange(c.w.shape[1]) // 32)
    c.tensors = {MODULE + s: np.ascontiguousarray(t) for s, t in stored.gptq(*parts, c.parts[3]).items()}
    expect(*c.args(), "values", WEIGHT, "not in that of g_idx")


def test_g_idx_lost(expect):
    """The codes have groups in the order of activations, but g_idx has the order of columns."""
    c = Coded("gptq")
    c.tensors[MODULE + ".g_idx"] = (np.arange(c.w.shape[1]) // 32).astype(np.int32)
    expect(*c.args(), "values", WEIGHT, "codes are not the nearest")


@pytest.mark.parametrize("group", [16, -1])
def test_g_idx_names_a_group_that_is_not_there(group, tessera, tmp_path):
    """512 columns have groups 0 to 15."""
    c = Coded("gptq")
    c.change(".g_idx")[77] = group
    code, out, err = harness.run(tessera, ["verify", checkpoint(tmp_path / "dst", c.tensors, c.config), "--against",
                                           checkpoint(tmp_path / "src", {WEIGHT: c.w})])
    assert code == 3 and all(w in err for w in (MODULE + ".g_idx", "77", f"group {group}")), out + err


@pytest.mark.parametrize("kind, words", [("mxfp4", "the error of MXFP4 of compressed-tensors"), ("mxfp8", "the error of MXFP8"),
                                         ("mxfp6", "the error of MXFP6 of compressed-tensors"), ("mxfp6_e3m2", "the error of MXFP6 E3M2 of Quark"),
                                         ("nvfp4", "the error of NVFP4 of compressed-tensors"),
                                         ("awq", "the error of AWQ's int4 in groups of 32"),
                                         ("gptq", "the error of GPTQ's int4 in groups of 32")])
def test_diff_says_what_it_is(kind, words, tessera, tmp_path):
    c = Coded(kind)
    paths = checkpoint(tmp_path / "src", {WEIGHT: c.w}), checkpoint(tmp_path / "dst", c.tensors, c.config)
    harness.shows(tessera, ["diff", *paths], 1, words)
    harness.succeed(tessera, ["diff", *paths, "--metric", "sqnr", "--tolerance", "14"])


# ---- gpt-oss: values are the transpose of what is stored ----

BLOCKS = "model.layers.0.mlp.experts.gate_up_proj"


def gpt_oss():
    rng = np.random.default_rng(5)
    w = (rng.standard_normal((3, 160, 192)) * np.exp2(rng.uniform(-3, 3, (3, 5, 192))).repeat(32, 1)).astype(BF16)
    codes, scales = zip(*(mx.mx(np.ascontiguousarray(expert.T), 4, "even") for expert in w))
    return w, {BLOCKS + "_blocks": np.stack(codes).reshape(3, 192, 5, 16), BLOCKS + "_scales": np.stack(scales)}


def test_gpt_oss(tessera, tmp_path, expect):
    w, tensors = gpt_oss()
    config = {"quant_method": "mxfp4"}
    code, found, figures = run_verify(tessera, checkpoint(tmp_path / "sound", tensors, config), checkpoint(tmp_path / "w", {BLOCKS: w}))
    assert (code, found) == (0, {}) and figures[BLOCKS]["misscaled"] == 0
    blocks, scales = (tensors[BLOCKS + s].copy() for s in ("_blocks", "_scales"))
    # Expert 2, output 37, inputs 64 to 95: codes and scale of one rule less, and codes that are the nearest under it.
    x = w[2, 64:96, 37].astype(np.float32)
    scales[2, 37, 2] += 2
    blocks[2, 37, 2] = mx.packed(mx.e2m1((x / mx.power(scales[2, 37, 2]))[None], x[None]))[0]
    found, _ = expect({BLOCKS + "_blocks": blocks, BLOCKS + "_scales": scales}, {BLOCKS: w}, config, "blocks", BLOCKS,
                      "1 of 2880 groups", "[64, 37] of matrix 2")
    assert set(found) == {"blocks"}


@pytest.mark.parametrize("spoil, words", [
    (lambda b, s: (b >> 4 | b << 4, s), "the odd column of each pair"),
    (lambda b, s: (np.concatenate([b[:2], b[2:] >> 4 | b[2:] << 4]), s), "the odd column of each pair"),
    (lambda b, s: (b, np.roll(s, 1, 2)), "codes are not the nearest"),
    (lambda b, s: (b, np.where(np.arange(b.shape[1])[:, None] == 37, s + 1, s).astype(np.uint8)), "37]"),
])
def test_gpt_oss_spoiled(spoil, words, expect):
    w, tensors = gpt_oss()
    blocks, scales = spoil(*(tensors[BLOCKS + s] for s in ("_blocks", "_scales")))
    expect({BLOCKS + "_blocks": blocks, BLOCKS + "_scales": scales}, {BLOCKS: w}, {"quant_method": "mxfp4"}, "values", BLOCKS, words)


@pytest.mark.parametrize("scheme, tensors, code", [("fp8-block", "*", 0), ("fp8-block", "*norm*", 2), ("mxfp8", "*", 0), ("fp8-channel", "*", 2),
                                                   ("int8-channel", "*", 2), ("nvfp4-weight-only", "*", 2)])
def test_a_limit_of_blocks_needs_blocks(tessera, tmp_path, scheme, tensors, code):
    """Blocks inside 128x128 are needed. Rows of 320 columns and formats other than FP8 have none."""
    rng = np.random.default_rng(7)
    src = checkpoint(tmp_path / "src", {"model.layers.0.mlp.down_proj.weight": (rng.standard_normal((256, 320)) / 50).astype(BF16),
                                        "model.norm.weight": np.ones(8, BF16)})
    harness.succeed(tessera, ["quantize", src, "-o", tmp_path / "dst", "--scheme", scheme])
    command = ["verify", tmp_path / "dst", "--against", src, "--tensors", tensors]
    harness.succeed(tessera, command)
    harness.expect(tessera, [*command, "--max-block-error", "0.07"], code, *(["--max-block-error has no effect"] if code else []))
