"""Tests errors in quantization_report.json and on the terminal: rankings, kept tensors and the limit."""

import json

from checkpoints import REPORT, save
import harness
from int_oracle import quantized
import ml_dtypes
import numpy as np
import pytest

BF16 = ml_dtypes.bfloat16
NAMES = [f"model.layers.{i}.mlp.down_proj.weight" for i in range(4)]
PLANTED, ZEROS = NAMES[2], NAMES[3]


@pytest.fixture
def source(tmp_path):
    """Makes normally distributed weights. One tensor contains a 30, one has only zeros."""
    rng = np.random.default_rng(11)
    tensors = {name: (rng.standard_normal((256, 256)) / 50).astype(BF16) for name in NAMES}
    tensors[PLANTED][17, 140] = 30
    tensors[ZEROS][:] = 0
    plain = {"model.embed_tokens.weight": np.ones((8, 256), BF16), "model.norm.weight": np.ones(256, BF16)}
    return save(tmp_path / "src", tensors | plain, {"model_type": "llama"}), tensors


def run(tessera, src, dst, *options):
    out = harness.succeed(tessera, ["quantize", src, "-o", dst, "--json", f"{dst}.json", *options])
    return json.loads((dst / REPORT).read_text()), json.loads(open(f"{dst}.json").read()), out


@pytest.mark.parametrize("options, limit", [
    (("--scheme", "int4-weight-only"), 12), (("--scheme", "int4-weight-only", "--zero-points"), 12),
    (("--scheme", "int8-weight-only"), 30), (("--scheme", "int8-channel"), 30)], ids=str)
def test_an_outlier_ranks_first(options, limit, source, tessera, tmp_path):
    """The tensor with the 30 may have the best SQNR, but has the worst block."""
    report, result, out = run(tessera, source[0], tmp_path / "dst", *options)
    assert report["worst_blocks"][0] == PLANTED
    (row,) = (row for row in report["tensors"] if row["name"] == PLANTED)
    blocks = [r["worst_block_error"] for r in report["tensors"] if r["name"] != PLANTED]
    assert row["worst_block_error"] > 1.5 * max(blocks)
    section = out[out.index("worst blocks"):].splitlines()[1]
    assert PLANTED in section and f"{row['worst_block_error']:.4f}" in section
    assert result["sqnr_limit_db"] == limit and not any("30_db" in key for key in result)
    below = [r for r in report["tensors"] if r["sqnr_db"] is not None and r["sqnr_db"] < limit]
    assert result["tensors_below_limit"] == len(below)


@pytest.mark.parametrize("halfway", [False, True])
def test_tensors_that_are_alike_are_no_list(halfway, tessera, tmp_path):
    """Normally distributed tensors have the same error. A tensor of 17, halfway between codes for an amax of 448, has a
    larger one."""
    rng = np.random.default_rng(3)
    tensors = {name: (rng.standard_normal((256, 256)) / 50).astype(BF16) for name in NAMES}
    if halfway:
        tensors[PLANTED][:] = 17
        tensors[PLANTED][::128, ::128] = 448
    _, _, out = run(tessera, save(tmp_path / "src", tensors, {"model_type": "llama"}), tmp_path / "dst")
    assert ("below the range of" if halfway else "typical of") + " fp8-block, which usually leaves 31.3 to 31.8 dB" in out
    assert (": no outlier" in out) != halfway and ("\nworst tensors:\n" in out) == halfway


def test_int4_ranks_the_outlier_best_by_energy(source, tessera, tmp_path):
    report, _, out = run(tessera, source[0], tmp_path / "dst", "--scheme", "int4-weight-only")
    assert report["lowest_sqnr"][-1] == PLANTED and report["worst_blocks"][0] == PLANTED
    assert "check it: one outlier may dominate its block" in out[out.index("worst blocks"):]


@pytest.mark.parametrize("group", [0, 32, 128])
@pytest.mark.parametrize("zero_points", [False, True])
def test_the_worst_group_of_integers(group, zero_points, source, tessera, tmp_path):
    options = ("--scheme", "int4-weight-only", "--group-size", group, *(("--zero-points",) if zero_points else ()))
    report, _, _ = run(tessera, source[0], tmp_path / "dst", *options)
    assert len(report["tensors"]) > 1
    for row in report["tensors"]:
        w = source[1][row["name"]]
        codes, scale, zero = quantized(w, 4, group, zero_points, dtype=BF16)
        y = (codes.reshape(*scale.shape, -1).astype(np.float64) - zero[..., None]) * scale[..., None].astype(np.float64)
        x = w.astype(np.float64).reshape(y.shape)
        if not x.any():
            assert row["worst_block_error"] == 0 and "worst_block_at" not in row
            continue
        errors = np.square(x - y).mean(axis=-1)
        usual = np.sqrt(np.square(x).mean(axis=-1)).mean()
        assert row["worst_block_error"] == pytest.approx(np.sqrt(errors.max()) / usual, rel=1e-4)
        at = np.unravel_index(errors.argmax(), errors.shape)
        assert row["worst_block_at"] == [at[0], at[1] * y.shape[-1]]


def test_zeros_are_in_no_ranking(source, tessera, tmp_path):
    """A tensor of zeros has no error. Its SQNR is null, which many tools sort first."""
    report, _, out = run(tessera, source[0], tmp_path / "dst")
    assert {row["name"]: row["sqnr_db"] for row in report["tensors"]}[ZEROS] is None
    assert sorted(report["lowest_sqnr"]) == sorted(report["worst_blocks"]) == sorted(set(NAMES) - {ZEROS})
    assert ZEROS not in out
    ranked = [row for name in report["lowest_sqnr"] for row in report["tensors"] if row["name"] == name]
    assert [row["sqnr_db"] for row in ranked] == sorted(row["sqnr_db"] for row in ranked)


def test_what_is_kept_is_named(source, tessera, tmp_path):
    report, _, _ = run(tessera, source[0], tmp_path / "dst", "--exclude", NAMES[0])
    assert report["kept"] == [{"name": "model.embed_tokens.weight", "reason": "embedding"},
                              {"name": NAMES[0], "reason": f"--exclude '{NAMES[0]}'"},
                              {"name": "model.norm.weight", "reason": "norm"}]
    assert report["whole"]["tensors_kept"] == len(report["kept"])
