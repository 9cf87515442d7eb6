"""Checks config.json and quantization_report.json of a block FP8 output against figures computed in NumPy."""

import json
import math
from pathlib import Path

import fp8_oracle
import numpy as np
import pytest
from checkpoints import REPORT, load, split

NOISE = 1e-7  # relative errors below the rounding of FP32 are all the same


def assert_config(src, dst, expected, ignored):
    """Checks that config.json is the source's text with one insertion, which contains `expected`."""
    before, after = (Path(d, "config.json").read_bytes() for d in (src, dst))
    end = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), len(before))
    inserted = len(after) - len(before)
    assert inserted > 0 and before[:end] + after[end:end + inserted] + before[end:] == after
    config = json.loads(after)
    quantization = config.pop("quantization_config")
    assert config == json.loads(before)
    key = "modules_to_not_convert" if quantization["quant_method"] == "fp8" else "ignore"
    listed = quantization.pop(key)
    assert sorted(listed) == sorted(ignored)
    assert quantization == expected


def deepseek_config(**more):
    fixed = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return fixed | more


def assert_report(source, dst, suffix="_scale_inv"):
    report = json.loads((dst / REPORT).read_text())
    tensors = load(dst)
    rows = {row["name"]: row for row in report["tensors"]}
    assert rows.keys() == split(tensors, suffix)[0].keys()
    for name, row in rows.items():
        w, codes, scales = source[name], tensors[name], tensors[name + suffix]
        assert row["shape"] == list(w.shape)
        truth = fp8_oracle.figures(w, codes, scales)
        for key in ("elements", "nonzero", "saturated", "flushed", "blocks", "zero_blocks"):
            assert row[key] == getattr(truth, key), f"{name}: {key}"
        for key in ("amax", "scale_min", "scale_median", "scale_max"):
            assert row[key] == pytest.approx(float(getattr(truth, key)), rel=1e-8), f"{name}: {key}"
        assert row["relative_error"] == pytest.approx(truth.relative_error, rel=1e-4, abs=NOISE), name
        assert row["cosine"] == pytest.approx(truth.cosine, abs=1e-6), name
        assert row["max_abs_error"] == pytest.approx(truth.max_abs_error, rel=1e-5), name
        if truth.relative_error < NOISE:
            assert row["sqnr_db"] is None or row["sqnr_db"] > -20 * math.log10(NOISE), name
        else:
            assert row["sqnr_db"] == pytest.approx(truth.sqnr_db, abs=1e-3), name
        rms = np.sqrt(fp8_oracle.block_mean_squares(w, codes, 0 * scales))
        usual = rms[rms > 0].mean() if rms.any() else 1
        errors = fp8_oracle.block_mean_squares(w, codes, scales)
        worst, noise = np.sqrt(errors.max()) / usual, NOISE * rms.max() / usual
        assert row["worst_block_error"] == pytest.approx(worst, rel=1e-4, abs=noise), name
        if worst > 100 * noise:
            *stack, down, wide = row["worst_block_at"]
            assert errors[(*stack, down // 128, wide // 128)] == pytest.approx(errors.max(), rel=1e-4), name
        at = tuple(row["max_abs_error_at"])
        there = abs(float(w[at]) - fp8_oracle.dequantize(codes, scales)[at])
        assert row["max_abs_error"] == pytest.approx(there, rel=1e-8), name
    whole = report["whole"]
    assert whole["tensors_quantized"] == len(rows) and whole["tensors_kept"] == len(source) - len(rows)
    for key in ("elements", "nonzero", "saturated", "flushed", "blocks", "zero_blocks"):
        assert whole[key] == sum(row[key] for row in rows.values()), key
    return rows
