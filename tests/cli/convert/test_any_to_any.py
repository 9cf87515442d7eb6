"""Tests conversion between any two coded formats, compared with NumPy.

Covers moves without rounding, rejected conversions, --lossy, split stacks of experts, and requantization, which
equals that by way of floating point."""

import json

import block_file
import format_samples as f
import harness
import numpy as np
import pytest
import stored_oracle as stored
from checkpoints import save
from coded_files import module, quantization, tensors, write

pytestmark = pytest.mark.in_turn

X, Y = "model.layers.0.mlp.down_proj", "model.layers.0.mlp.experts.gate_up_proj"
V4 = {"names": (".weight", ".scale"), "dtypes": ("I8", "F8_E8M0"), "config": f.V4}
CT_MXFP4 = f.compressed("mxfp4-pack-quantized", f.group(4, 32, "torch.uint8"))
W1, W3 = "layers.0.ffn.experts.0.w1", "layers.0.ffn.experts.0.w3"
SPELLINGS = {
    "ct": {"names": (".weight_packed", ".weight_scale"), "dtypes": ("U8", "U8"), "config": CT_MXFP4},
    "ct, F8_E8M0": {"names": (".weight_packed", ".weight_scale"), "dtypes": ("U8", "F8_E8M0"), "config": CT_MXFP4},
    "v4": V4,
    "v4, F4": {**V4, "dtypes": ("F4", "F8_E8M0")},
    "modelopt": {"names": (".weight", ".weight_scale"), "dtypes": ("U8", "U8"), "config": f.QUARK},
}


def mxfp4(x, codes, scales, names, dtypes, config):
    packed = f.pack_nibbles(codes)
    data = ("F4", list(codes.shape), packed.tobytes()) if dtypes[0] == "F4" else f.entry(dtypes[0], packed)
    return f.Module(x + ".weight", {x + names[0]: data, x + names[1]: f.entry(dtypes[1], scales)},
                    f.E2M1[codes] * f.spread(f.powers(scales), 32), config)


def drawn(x=W1, rows=300, cols=352, low=110, high=122, seed=1, **spelling):
    """Makes a weight with partial tiles of 128x128, whose tiles all contain the largest and the smallest scale."""
    rng = f.numbers(seed)
    scales = rng.integers(low, high, (rows, cols // 32), np.uint8)
    scales[::100, ::3], scales[5::100, 1::3] = low, high - 1
    return mxfp4(x, rng.integers(0, 16, (rows, cols), np.uint8), scales, **(spelling or V4))


def blocks(codes, scales, block=128):
    full = np.repeat(np.repeat(scales.astype(np.float64), block, 0), block, 1)[:codes.shape[0], :codes.shape[1]]
    return codes.astype(np.float64) * full


def fp8_values(dst, x, scale=".weight_scale_inv"):
    got = tensors(dst)
    return blocks(got[x + ".weight"], got[x + scale])


# ---- relations without loss ----


@pytest.mark.parametrize("name", SPELLINGS)
def test_mxfp4_to_block_fp8(tmp_path, convert, name):
    m = drawn(**SPELLINGS[name])
    dst = convert(write(tmp_path / "src", m), "--to", "fp8-block")
    native = name.startswith("v4")
    got = tensors(dst)
    assert got[W1 + (".scale" if native else ".weight_scale_inv")].dtype == np.float32
    assert (fp8_values(dst, W1, ".scale" if native else ".weight_scale_inv") == m.values).all()
    assert json.loads((dst / "config.json").read_text()).get("expert_dtype") == ("fp8" if native else None)
    assert quantization(dst)["quant_method"] == "fp8" and quantization(dst)["weight_block_size"] == [128, 128]
    assert "scale_fmt" not in quantization(dst)


@pytest.mark.parametrize("dialect", ["compressed-tensors", "modelopt"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_mxfp4_to_nvfp4(tmp_path, convert, name, dialect):
    m = drawn(low=105, high=123, **SPELLINGS[name])  # all 17 binades
    dst = convert(write(tmp_path / "src", m), "--to", "nvfp4-weight-only", "--dialect", dialect)
    kind = "nvfp4-ct" if dialect == "compressed-tensors" else "nvfp4-modelopt"
    assert (stored.values(kind, module(dst, W1)) == m.values).all()
    codes = next(iter(m.tensors.values()))[2]
    assert module(dst, W1)[W1 + (".weight_packed" if kind == "nvfp4-ct" else ".weight")].tobytes() == codes


@pytest.mark.parametrize("name", SPELLINGS)
def test_mxfp4_under_another_name(tmp_path, convert, name):
    m = drawn(low=0, high=253, **SPELLINGS[name])
    got = module(convert(write(tmp_path / "src", m), "--to", "mxfp4"), W1)
    codes, scales = (data for _, _, data in m.tensors.values())
    assert got[W1 + ".weight_packed"].tobytes() == codes and got[W1 + ".weight_scale"].tobytes() == scales
    assert got[W1 + ".weight_scale"].dtype == np.uint8


@pytest.mark.parametrize("dialect", ["compressed-tensors", "deepseek", "modelopt"])
@pytest.mark.parametrize("block", [(128, 128), (32, 32)])
def test_powers_of_two_to_mxfp8(tmp_path, convert, dialect, block):
    m = f.fp8_block("layers.0.attn.wq_a", rows=300, cols=352, block=block)
    dst = convert(write(tmp_path / "src", m), "--to", "mxfp8", "--dialect", dialect)
    got = tensors(dst)
    scale = got["layers.0.attn.wq_a" + (".weight_scale_inv" if dialect == "deepseek" else ".weight_scale")]
    assert got["layers.0.attn.wq_a.weight"].tobytes() == m.tensors["layers.0.attn.wq_a.weight"][2]
    assert (got["layers.0.attn.wq_a.weight"].astype(np.float64) * stored.spread(stored.powers(scale), (300, 352)) ==
            m.values).all()


@pytest.mark.parametrize("dialect, scale_of", [("ct", 0.0021), ("modelopt", 0.0021), ("ct", 2.0**-9), ("modelopt", 2.0**-9)])
def test_nvfp4_in_the_other_dialect(tmp_path, convert, dialect, scale_of):
    m = f.nvfp4(X, dialect, scale_of=np.float32(scale_of))
    other = "modelopt" if dialect == "ct" else "compressed-tensors"
    dst = convert(write(tmp_path / "src", m), "--to", "nvfp4-weight-only", "--dialect", other)
    names = {"ct": (".weight_packed", ".weight_global_scale"), "modelopt": (".weight", ".weight_scale_2")}
    here, there = names[dialect], names["modelopt" if dialect == "ct" else "ct"]
    got = module(dst, X)
    assert got[X + there[0]].tobytes() == m.tensors[X + here[0]][2]
    assert got[X + ".weight_scale"].tobytes() == m.tensors[X + ".weight_scale"][2]
    stated = np.frombuffer(m.tensors[X + here[1]][2], np.float32)
    assert got[X + there[1]].tobytes() == (np.float32(1) / stated).tobytes()
    if scale_of == 2.0**-9:
        assert (stored.values("nvfp4-" + ("modelopt" if dialect == "ct" else "ct"), got) == m.values).all()


@pytest.mark.parametrize("dialect", ["ct", "modelopt"])
def test_the_scale_of_the_input_goes_along(tmp_path, convert, refuse, dialect):
    m = f.nvfp4(X, dialect)
    other = "modelopt" if dialect == "ct" else "compressed-tensors"
    got = module(convert(write(tmp_path / "src", m), "--to", "nvfp4", "--dialect", other), X)
    scale = got[X + (".input_scale" if dialect == "ct" else ".input_global_scale")]
    assert scale.tobytes() == (np.float32(1) / np.float32(7)).tobytes()
    for bare, words in ((f.nvfp4(X, dialect, inputs=False), "--activations"), (drawn(X, **SPELLINGS["ct"]), "--activations")):
        refuse(write(tmp_path / f"bare{len(bare.tensors)}", bare), 2, X, words, options=("--to", "nvfp4"))


@pytest.mark.parametrize("m", [drawn(X, **SPELLINGS["ct"]), *(f.nvfp4(X, d, scale_of=np.float32(2**-9)) for d in ("ct", "modelopt"))],
                         ids=["mxfp4", "ct", "modelopt"])
def test_the_scale_of_the_input_is_measured(tmp_path, convert, m):
    """The scale is computed from the ranges, as by quantize. MXFP4 has none, and that of NVFP4 is replaced."""
    ranges = harness.write_json(tmp_path / "ranges.json", {X: {"min": -3.0, "max": 5.0}})
    dst = convert(write(tmp_path / "src", m), "--to", "nvfp4", "--dialect", "modelopt", "--activations", ranges)
    got = module(dst, X)
    assert got[X + ".input_scale"] == np.float32(5) / np.float32(2688)
    assert (stored.values("nvfp4-modelopt", got) == m.values).all()


def test_the_same_blocks_keep_their_codes(tmp_path, convert):
    """Weights of DeepSeek-V4 that are FP8 keep their codes. Their E8M0 scales become FP32."""
    experts, attention = drawn(), f.fp8_block("layers.0.attn.wq_a")
    got = tensors(convert(write(tmp_path / "src", experts, attention), "--to", "fp8-block"))
    assert got["layers.0.attn.wq_a.weight"].tobytes() == attention.tensors["layers.0.attn.wq_a.weight"][2]
    scales = np.frombuffer(attention.tensors["layers.0.attn.wq_a.scale"][2], np.uint8)
    assert got["layers.0.attn.wq_a.scale"].tobytes() == f.powers(scales).tobytes()


def test_gate_and_up_share_a_global_scale(tmp_path, convert):
    a, b = drawn(W1, low=100, high=110), drawn(W3, low=103, high=117, seed=2)
    dst = convert(write(tmp_path / "src", a, b), "--to", "nvfp4-weight-only", "--dialect", "modelopt")
    got = tensors(dst)
    assert got[W1 + ".weight_scale_2"] == got[W3 + ".weight_scale_2"] == 2.0**(116 - 127 - 8)
    for m, x in ((a, W1), (b, W3)):
        assert (stored.values("nvfp4-modelopt", module(dst, x)) == m.values).all()


# ---- where it stops ----


def stepped(code, binades):
    """Makes a weight with one group of this code, in row 129, columns 160 to 191, so many binades below the largest."""
    codes, scales = np.full((256, 256), 2, np.uint8), np.full((256, 8), 120, np.uint8)
    codes[129, 160:192], scales[129, 5] = code, 120 - binades
    return mxfp4(W1, codes, scales, **V4)


@pytest.mark.parametrize("code, window", [(1, 14), (3, 14), (2, 15), (5, 15), (4, 16), (7, 16), (6, 17), (14, 17)])
def test_the_window_of_block_fp8(tmp_path, convert, refuse, code, window):
    m = stepped(code, window)
    assert (fp8_values(convert(write(tmp_path / "fits", m), "--to", "fp8-block"), W1, ".scale") == m.values).all()
    refuse(write(tmp_path / "beyond", stepped(code, window + 1)), 3, f"'{W1}.weight'", "row 128", "column 128",
           f"{window + 1} binades", "row 129", "column 160", options=("--to", "fp8-block"))


def test_the_window_of_nvfp4(tmp_path, convert, refuse):
    m = stepped(1, 17)
    dst = convert(write(tmp_path / "fits", m), "--to", "nvfp4-weight-only")
    assert (stored.values("nvfp4-ct", module(dst, W1)) == m.values).all()
    refuse(write(tmp_path / "beyond", stepped(1, 18)), 3, f"'{W1}.weight'", "row 129", "columns 160", "18 binades",
           options=("--to", "nvfp4-weight-only"))


def test_a_group_of_zeros_has_no_window(tmp_path, convert):
    m = stepped(0, 100)
    src = write(tmp_path / "src", m)
    assert (fp8_values(convert(src, "--to", "fp8-block"), W1, ".scale") == m.values).all()
    assert (stored.values("nvfp4-ct", module(convert(src, "--to", "nvfp4-weight-only"), W1)) == m.values).all()


def rounded_blocks(dst):
    """Checks W1 in quantization_blocks.zst: its codes, the blocks with an error, its largest error, the number of counted
    codes."""
    t, = block_file.read(dst).values()
    assert t.name == W1 + ".weight"
    return t.codes, np.argwhere(t.bytes["error"][0]).tolist(), t.peaks, sum(t.counts)


def test_rounded_where_asked(tmp_path, convert):
    m = stepped(3, 15)  # 1.5 * 2^-9 lies half way between two codes: the even one is 2 * 2^-9
    dst = convert(write(tmp_path / "src", m), "--to", "fp8-block", "--lossy")
    want = m.values.copy()
    want[129, 160:192] = 2.0**(120 - 15 - 127 + 1)
    assert (fp8_values(dst, W1, ".scale") == want).all()
    row, = json.loads((dst / "quantization_report.json").read_text())["tensors"]
    assert row["name"] == W1 + ".weight" and row["max_abs_error"] == pytest.approx(2.0**(120 - 15 - 128))
    error = np.linalg.norm(want.astype(np.float64) - m.values) / np.linalg.norm(m.values.astype(np.float64))
    assert row["relative_error"] == pytest.approx(error, rel=1e-4)
    before = float(m.values[129, 160])
    assert rounded_blocks(dst) == ("e4m3", [[1, 1]], [(129 * 256 + 160, before, float(want[129, 160]))], want.size)


def test_rounded_to_nvfp4_where_asked(tmp_path, convert):
    m = stepped(7, 19)  # 6 two binades below the window: 1.5
    dst = convert(write(tmp_path / "src", m), "--to", "nvfp4-weight-only", "--lossy")
    assert (stored.values("nvfp4-ct", module(dst, W1)) == m.values).all()
    m = stepped(1, 18)  # 0.5, halved: half way to 0, which is even
    dst = convert(write(tmp_path / "tiny", m), "--to", "nvfp4-weight-only", "--lossy")
    want = m.values.copy()
    want[129, 160:192] = 0
    assert (stored.values("nvfp4-ct", module(dst, W1)) == want).all()
    row, = json.loads((dst / "quantization_report.json").read_text())["tensors"]
    assert row["max_abs_error"] == pytest.approx(2.0**(120 - 18 - 128))
    before = float(m.values[129, 160])
    assert rounded_blocks(dst) == ("e2m1", [[129, 10], [129, 11]], [(129 * 256 + 160, before, 0)], want.size)


@pytest.mark.parametrize("target", ["fp8-block", "nvfp4-weight-only", "mxfp4", "mxfp8"])
def test_what_is_damaged_is_not_moved(tmp_path, refuse, target):
    m = drawn()
    kind, shape, data = m.tensors[W1 + ".scale"]
    m.tensors[W1 + ".scale"] = (kind, shape, b"\xff" + data[1:])
    refuse(write(tmp_path / "src", m), 3, W1, "NaN", options=("--to", target))


# ---- stacks of experts ----


@pytest.mark.parametrize("target", ["mxfp4", "nvfp4-weight-only"])
def test_gpt_oss_taken_apart(tmp_path, convert, target):
    rng = f.numbers(9)
    codes = rng.integers(0, 16, (3, 64, 96), np.uint8)
    scales = rng.integers(110, 120, (3, 64, 3), np.uint8)
    bias = rng.standard_normal((3, 64)).astype(f.BF16)
    entries = {Y + "_blocks": f.entry("U8", f.pack_nibbles(codes).reshape(3, 64, 3, 16)), Y + "_scales": f.entry("U8", scales)}
    m = f.Module(Y, entries, None, f.GPT_OSS)
    dst = convert(write(tmp_path / "src", m, plain={Y + "_bias": f.entry("BF16", bias)}), "--to", target)
    got = tensors(dst)
    assert not any(name.startswith(Y) for name in got)
    values = f.E2M1[codes] * f.spread(f.powers(scales), 32)
    for expert in range(3):
        for turn, projection in enumerate(("gate_proj", "up_proj")):  # every other row
            x = f"model.layers.0.mlp.experts.{expert}.{projection}"
            kind = "mxfp4-ct" if target == "mxfp4" else "nvfp4-ct"
            mine = {name: array for name, array in got.items() if name.startswith(x + ".weight")}
            assert (stored.values(kind, mine) == values[expert, turn::2]).all()
            assert got[x + ".bias"].tobytes() == bias[expert, turn::2].tobytes()


@pytest.mark.parametrize("target", ["mxfp8", "int8-weight-only", "fp8-block"])
def test_a_stack_of_nvfp4(tmp_path, tessera, convert, target):
    """Gate and up follow one another in the stack. Each expert has its own global scale."""
    m = f.nvfp4(Y, "modelopt", rows=256, cols=128, experts=3, inputs=False)
    dst = convert(write(tmp_path / "src", m), "--to", target)
    back = tensors(convert(dst, "--to", "bf16", "--dtype", "f32"))
    for expert in range(3):
        for half, projection in enumerate(("gate_proj", "up_proj")):
            want = m.values[expert, half * 128:(half + 1) * 128].astype(np.float64)
            got = back[f"model.layers.0.mlp.experts.{expert}.{projection}.weight"]
            assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)


def test_a_layer_of_two_kinds_is_made_anew(tmp_path, convert):
    """Gate is int4 and up is NVFP4. They share a global scale, so the codes of up are computed again."""
    gate, up = (f"model.layers.0.mlp.{leaf}_proj" for leaf in ("gate", "up"))
    a, b = f.int_packed(gate, rows=64, cols=96), f.nvfp4(up, "ct", rows=64, cols=96, inputs=False)
    groups = [{**m.config["config_groups"]["group_0"], "format": m.config["format"], "targets": [f"re:.*{leaf}_proj"]}
              for m, leaf in ((a, "gate"), (b, "up"))]
    src = write(tmp_path / "src", a._replace(config=f.compressed("mixed-precision", *groups)), b)
    got = tensors(convert(src, "--to", "nvfp4-weight-only", "--lossy"))
    assert got[gate + ".weight_global_scale"] == got[up + ".weight_global_scale"]
    for m, x in ((a, gate), (b, up)):
        values = stored.values("nvfp4-ct", {name: array for name, array in got.items() if name.startswith(x + ".")})
        assert np.linalg.norm(values - m.values) < 0.15 * np.linalg.norm(m.values)


@pytest.mark.parametrize("change, word", [({"model_type": "llama4"}, "llama4"), ({"hidden_size": 256}, "hidden_size 256"),
                                          ({"model_type": "x", "text_config": {"model_type": "qwen3_vl_moe_text"}}, "[in, out]")])
def test_a_stack_the_other_way_round(tmp_path, refuse, change, word):
    src = write(tmp_path / "src", f.nvfp4(Y, "modelopt", rows=256, cols=128, experts=3, inputs=False))
    config = json.loads((src / "config.json").read_text())
    (src / "config.json").write_text(json.dumps({**config, **change}))
    refuse(src, 3, Y, word, options=("--to", "mxfp8"))


def test_matrices_of_a_stack_that_end_inside_a_block(tmp_path, convert):
    """Each matrix of an FP8 stack begins a new row of scales. --exclude makes the plan move codes weight by weight."""
    experts, attention = "model.layers.0.mlp.experts.down_proj", "model.layers.0.self_attn.o_proj.weight"
    rng = f.numbers(11)
    stack = {experts: f.e4m3_codes(rng, (3, 200, 256)).view(f.E4M3), experts + "_scale_inv": rng.uniform(1e-4, 1e-2, (3, 2, 2)).astype(np.float32)}
    plain = {attention: f.e4m3_codes(rng, (128, 256)).view(f.E4M3), attention + "_scale_inv": np.ones((1, 2), np.float32)}
    config = {"model_type": "qwen3_5_moe_text", "hidden_size": 200, "quantization_config": {**f.V4, "scale_fmt": None}}
    got = tensors(convert(save(tmp_path / "src", stack | plain, config), "--to", "fp8-block", "--exclude", "*o_proj*"))
    assert got[attention].dtype == f.BF16
    for name, array in stack.items():
        assert got[name].shape == array.shape and got[name].tobytes() == array.tobytes(), name


# ---- made anew ----

SOURCES = {
    "mxfp4": lambda: drawn(X, rows=384, cols=512),
    "nvfp4": lambda: f.nvfp4(X, "ct", rows=384, cols=512),
    "mxfp8": lambda: f.mxfp8(X, rows=384, cols=512, suffix=".weight_scale"),
    "fp8-block": lambda: f.fp8_block(X, rows=384, cols=512, suffix=".weight_scale_inv", dtype="F32",
                                     config={**f.V4, "scale_fmt": None}),
    "int4": lambda: f.int_packed(X, rows=384, cols=512),
    "awq": lambda: f.awq(X, rows=384, cols=512),
    "gptq, act-order": lambda: f.gptq(X, rows=384, cols=512, order=True),
    "gptq, several units": lambda: f.gptq(X, rows=1048, cols=2976),
}
SCHEMES = ["fp8-block", "fp8-channel", "int8-channel", "int8-weight-only", "int4-weight-only --group-size 32", "nvfp4-weight-only",
           "nvfp4-weight-only --dialect modelopt", "mxfp4", "mxfp8", "mxfp8 --dialect deepseek"]
MOVED = {("mxfp4", "fp8-block"), ("mxfp4", "nvfp4-weight-only"), ("mxfp4", "mxfp4"), ("nvfp4", "nvfp4-weight-only"),
         ("mxfp8", "mxfp8"), ("fp8-block", "fp8-block"), ("int4", "int4-weight-only")}


@pytest.mark.parametrize("source", SOURCES)
def test_made_anew_as_by_way_of_fp32(tmp_path, tessera, convert, quantize, source):
    """The bytes and the configuration equal those of a conversion to FP32 followed by quantize."""
    src = write(tmp_path / "src", SOURCES[source]())
    plain = convert(src, "--to", "bf16", "--dtype", "f32")
    for scheme in SCHEMES:
        if (source, scheme.split()[0]) in MOVED:
            continue
        loses = ["--lossy"] if scheme.startswith("int4") and source.startswith(("awq", "gptq")) else []
        dst = convert(src, "--to", *scheme.split(), *loses)
        want = quantize(plain, "--scheme", *scheme.split(), "--include", X + ".weight")
        assert (dst / "model.safetensors").read_bytes() == (want / "model.safetensors").read_bytes(), scheme
        assert quantization(dst) == quantization(want), scheme
        report = json.loads((dst / "quantization_report.json").read_text())["tensors"]
        assert [row["name"] for row in report] == [X + ".weight"] and report[0]["relative_error"] < 0.2


def test_what_was_plain_stays(tmp_path, convert):
    """Unquantized neighbours are not quantized, scales of the KV cache stay, and the list has the unquantized modules."""
    q, k_scale = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_scale"
    plain = {q: f.entry("BF16", f.numbers(3).standard_normal((256, 256)).astype(f.BF16)),
             k_scale: f.entry("BF16", np.array([0.5]).astype(f.BF16))}
    dst = convert(write(tmp_path / "src", drawn(X, config=CT_MXFP4, names=SPELLINGS["ct"]["names"], dtypes=("U8", "U8")), plain=plain),
                  "--to", "mxfp8")
    got = tensors(dst)
    assert got[q].tobytes() == plain[q][2] and got[k_scale].tobytes() == plain[k_scale][2]
    assert quantization(dst)["ignore"] == ["lm_head", "model.layers.0.self_attn.q_proj"]
    assert quantization(dst)["format"] == "mxfp8-quantized"


def test_excluded_becomes_bf16(tmp_path, convert):
    other = "model.layers.1.mlp.down_proj"
    a, b = drawn(X, **SPELLINGS["ct"]), drawn(other, **SPELLINGS["ct"])
    dst = convert(write(tmp_path / "src", a, b), "--to", "mxfp8", "--exclude", "*.layers.1.*")
    got = tensors(dst)
    assert X + ".weight_scale" in got and other + ".weight_scale" not in got
    assert got[other + ".weight"].tobytes() == b.values.astype(f.BF16).tobytes()
    assert quantization(dst)["ignore"] == ["lm_head", other]


# ---- against the checkpoint that the codes came from ----

MADE = ["fp8-block --scale-fmt ue8m0", "nvfp4-weight-only", "mxfp8", "int8-weight-only", "int4-weight-only --group-size 32"]
TARGETS = ["fp8-block", "fp8-channel", "int8-channel", "int8-weight-only", "int4-weight-only", "nvfp4-weight-only",
           "nvfp4-weight-only --dialect modelopt", "mxfp4", "mxfp8", "mxfp8 --dialect deepseek"]
SAME = {("fp8-block", "fp8-block"), ("fp8-block", "mxfp8"), ("nvfp4-weight-only", "nvfp4-weight-only"), ("mxfp8", "mxfp8"),
        ("int8-weight-only", "int8-weight-only"), ("int4-weight-only", "int4-weight-only")}


@pytest.mark.parametrize("made", MADE)
def test_verify_against_the_original(made, tmp_path, tessera, maker, quantize, convert):
    """Moved codes pass verify against the source and against the BF16 model from which the source was made. Codes that were
    rounded twice are not the nearest; verify finds only this."""
    original = harness.make_checkpoint(maker, "llama", str(tmp_path / "original"))
    src = quantize(original, "--scheme", *made.split())
    for target in TARGETS:
        dst = convert(src, "--to", *target.split())
        harness.succeed(tessera, ["verify", dst, "--against", src])
        code, out, err = harness.run(tessera, ["verify", dst, "--against", original])
        same = (made.split()[0], target.split()[0]) in SAME
        assert code == (0 if same else 1), f"{target}: {out}{err}"
        failed = [line.split()[1] for line in out.splitlines() if line.startswith("FAIL")]
        assert failed in ([[]] if same else [["values"], ["values", "blocks"]]), f"{target}: {out}"
        assert same or "are not the nearest" in out, f"{target}: {out}"


def test_nothing_that_fits(tmp_path, refuse):
    src = write(tmp_path / "src", f.fp8_block(X))
    refuse(src, 1, X, "300 columns", "a multiple of 32", options=("--to", "mxfp8"))
