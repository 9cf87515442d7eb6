"""Tests that each byte of the source is read once, for outputs of several ranks and for sums beside codes.

test_pairs.py checks this for all conversions with small sources."""

import json
import pathlib

import harness
import pytest

FP8 = ["--exclude", "*.mlp.experts.1.gate_proj.weight"]  # has values that no FP8 scale holds together
# name, is its source FP8, command, a budget that holds far less than the source, and one that holds too little; None: there is none,
# since one step makes all
ROWS = [
    ("tp", False, ["convert", "--to", "tp", "--tp", "4", "--max-shard-size", "8MB"], "32MiB", "16MiB"),
    ("deepseek-mp", True, ["convert", "--to", "deepseek-mp", "--mp", "4"], "24MiB", "10MiB"),
    ("azp_adj", False, ["quantize", "--scheme", "int8-channel", "--max-shard-size", "32MB"], "20MiB", None),
    ("scales of whole tensors", False, ["quantize", "--scheme", "nvfp4-weight-only", *FP8], "48MiB", "20MiB"),
]


@pytest.fixture(scope="module")
def sources(tessera, maker, tmp_path_factory):
    """Makes a model of 142 MB whose weights are divided among four ranks, and the same in FP8."""
    plain = pathlib.Path(harness.make_checkpoint(maker, "deepseek-v3", tmp_path_factory.mktemp("src") / "plain", scale="small"))
    fp8 = tmp_path_factory.mktemp("src") / "fp8"
    harness.succeed(tessera, ["quantize", plain, "-o", fp8, "--quiet"])
    return {False: plain, True: fp8}


@pytest.mark.parametrize("name, of_fp8, command, enough, short", ROWS, ids=[row[0] for row in ROWS])
def test_bytes_are_read_once(tessera, sources, tmp_path, name, of_fp8, command, enough, short):
    def run(*options):
        out = tmp_path / "-".join(options)
        words = [command[0], sources[of_fp8], "-o", out, *command[1:], *options, "--quiet", "--json", tmp_path / "told.json"]
        harness.succeed(tessera, words)
        return json.loads((tmp_path / "told.json").read_text()), out

    whole, reference = run("--threads", "1")
    assert whole["bytes_read"] == whole["bytes_in"] == pytest.approx(len_of_source(sources[of_fp8], name), rel=0.01)
    again, out = run("--threads", "3", "--memory", enough, "--io", "direct")
    assert again["bytes_read"] <= 1.01 * whole["bytes_in"]
    assert harness.tree_difference(reference, out) is None, "the journal's records are in the plan's order"
    # Data that does not fit is read again, and the output is the same.
    if short is None:
        return
    again, out = run("--threads", "2", "--memory", short, "--io", "buffered")
    assert again["bytes_read"] > 1.1 * whole["bytes_in"]
    assert harness.tree_difference(reference, out) is None


def len_of_source(source, name):
    """Returns the bytes of all tensors and of the side files that the job copies. deepseek-mp omits the MTP layer and most
    side files."""
    tensors = sum(harness.entry_size(entry) for key, entry in harness.headers(source).items() if not (name == "deepseek-mp" and is_mtp(source, key)))
    asides = [p for p in source.iterdir() if p.suffix in (".json", ".txt", ".model")
              and p.name not in ("config.json", "model.safetensors.index.json", "quantization_report.json", harness.MANIFEST)
              and (name != "deepseek-mp" or "token" in p.name)]
    return tensors + sum(p.stat().st_size for p in asides)


def is_mtp(source, key):
    layers = json.loads((source / "config.json").read_text())["num_hidden_layers"]
    return key.startswith("model.layers.") and int(key.split(".")[2]) >= layers
