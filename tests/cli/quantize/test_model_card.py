"""Tests the model card: front matter, command, errors, the source's card, --no-card, resuming and the manifest."""

import json
import re

from checkpoints import REPORT
import harness
import mx_oracle as mx
import pytest
import yaml_lines

CARD = """---
license: other
license_name: "my license"
license_link: https://example.org/LICENSE
language:
- en
- de
pipeline_tag: text-generation
tags: [a, b]
---
# A model
"""


def source(path, card=CARD, **config):
    src, _ = mx.model(path)
    if config:
        text = json.loads((src / "config.json").read_text())
        (src / "config.json").write_text(json.dumps({**text, **config}))
    if card is not None:
        (src / "README.md").write_text(card)
    return src


def front(directory):
    """Returns {key: value} of the YAML at the beginning, with values and lists of values."""
    return yaml_lines.read((directory / "README.md").read_text())


def test_a_quantized_model(tmp_path, quantize):
    src = source(tmp_path / "src", _name_or_path="org/Model-1.5")
    dst = quantize(src, "--scheme", "nvfp4-weight-only", "--exclude", "*o_proj*")
    assert front(dst) == {"license": "other", "license_name": '"my license"', "license_link": "https://example.org/LICENSE",
                          "pipeline_tag": "text-generation", "base_model": "org/Model-1.5", "base_model_relation": "quantized",
                          "tags": ["tessera", "quantized", "nvfp4-weight-only", "compressed-tensors"]}
    text = (dst / "README.md").read_text()
    assert "\n    tessera quantize SRC -o DST --scheme=nvfp4-weight-only '--exclude=*o_proj*'" in text
    assert "- Loaders: vLLM, SGLang; transformers except for experts\n" in text
    report = json.loads((dst / REPORT).read_text())
    assert f"SQNR {report['whole']['sqnr_db']:.2f} dB, relative error {report['whole']['relative_error']:.5f}" in text
    assert re.findall(r"^\| `(.*)` \|", text, re.M) == report["lowest_sqnr"][:5]
    assert (dst / "README.source.md").read_text() == CARD


def test_a_converted_model_and_the_cards_before(tmp_path, quantize, convert):
    src = source(tmp_path / "src", _name_or_path="/home/me/model")
    first = quantize(src, "--scheme", "fp8-channel")
    dst = convert(first, "--to", "bf16")
    assert front(dst)["tags"] == ["tessera"] and "base_model" not in front(dst)
    assert "tessera convert SRC -o DST --to=bf16" in (dst / "README.md").read_text()
    assert (dst / "README.source.md").read_text() == (first / "README.md").read_text()
    assert (dst / "README.source.source.md").read_text() == CARD


@pytest.mark.parametrize("card", ["", "# no front matter\n", "---\nlicense: mit\n", "---\nlicense: [mit]\n---\n", "\0---\n"])
def test_a_source_without_front_matter(card, tmp_path, quantize):
    dst = quantize(source(tmp_path / "src", card))
    assert front(dst) == {"tags": ["tessera", "quantized", "fp8-block", "deepseek"]}
    assert (dst / "README.source.md").exists()
    assert ("README.source.md" in (dst / "README.md").read_text()) == (card != "\0---\n")


def test_no_card(tmp_path, quantize, convert):
    """All other bytes of the output are the same."""
    src = source(tmp_path / "src")
    one, two = quantize(src, "--scheme", "mxfp8"), quantize(src, "--scheme", "mxfp8", "--no-card")
    assert (two / "README.md").read_text() == CARD and not (two / "README.source.md").exists()
    for path in two.iterdir():
        if path.is_file() and path.name not in ("README.md", "tessera.manifest.json"):
            assert path.read_bytes() == (one / path.name).read_bytes(), path.name
    assert (convert(one, "--to", "bf16", "--no-card") / "README.md").read_text() == (one / "README.md").read_text()


def test_a_source_without_a_card(tmp_path, quantize):
    dst = quantize(source(tmp_path / "src", None))
    assert not (dst / "README.md").exists() and not (dst / "README.source.md").exists()


def test_other_outputs_have_no_card(tmp_path, convert):
    src = source(tmp_path / "src")
    assert (convert(src, "--to", "archive") / "README.md").read_text() == CARD


def test_the_manifest_and_a_second_run(tmp_path, tessera):
    src, dst = source(tmp_path / "src"), tmp_path / "dst"
    run = ["quantize", src, "-o", dst, "--scheme", "fp8-channel"]
    harness.succeed(tessera, run)
    names = {file["name"] for file in json.loads((dst / "tessera.manifest.json").read_text())["files"]}
    assert {"README.md", "README.source.md"} <= names
    written = (dst / "README.md").read_bytes()
    (dst / "README.md").unlink()
    code, out, err = harness.run(tessera, run)
    assert code == 0 and "already complete" in out and (dst / "README.md").read_bytes() == written, out + err
    harness.succeed(tessera, ["verify", "--manifest", dst])
    code, out, err = harness.run(tessera, [*run, "--no-card"])
    assert code != 0 and "another command" in err or "--force" in err, err


def test_a_single_file_has_no_card(tmp_path, quantize):
    src = source(tmp_path / "src")
    dst = quantize(src / "model.safetensors", "--include", "*down_proj*")
    assert not (dst / "README.md").exists()


def test_refusals(tmp_path, tessera):
    src = source(tmp_path / "src")
    harness.expect(tessera, ["convert", src, "-o", tmp_path / "dst", "--to", "archive", "--no-card"], 2, "--no-card cannot be combined with --to archive")
