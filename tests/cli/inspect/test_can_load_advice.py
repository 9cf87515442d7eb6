"""Advice of `tessera inspect --can-load`: every command exists, and its output for a refused checkpoint loads."""

import json
import pathlib
import re
import shlex

import harness
from loader_models import load_table
from loader_rules import READS, RULES, changed
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOURCES = [*sorted((ROOT / "formats" / "loaders").glob("*.c")), ROOT / "verify" / "survey" / "contents.c"]
STANDS_FOR = {"GLOB": "*.o_proj.*", "NAME": "compressed-tensors", "N": "1"}


def advised():
    """Returns every command in backquotes in the advice of rules."""
    text = "".join(path.read_text() for path in SOURCES)
    text = re.sub(r'"[\s\\]*\n\s*"', "", text)  # a text that goes on in the next line
    makes = re.search(r'#define MAKES\(target\) "(.*)" target "(.*)"\n', text).groups()
    text = re.sub(r'MAKES\("(.*?)"\)', lambda m: makes[0] + m[1] + makes[1], text)
    return sorted(set(re.findall(r"`(tessera [^`]*)`", text)) - {'tessera convert --to " target "'})


def test_advised_commands_exist(tessera, quantize, checkpoint, tmp_path):
    """Plans accept each advised command with its options and values."""
    bf16, commands = checkpoint("llama"), advised()
    assert {"tessera convert --to bf16", "tessera convert --to nvfp4-weight-only --dialect modelopt"} < set(commands)
    assert len(commands) > 15, commands
    sources = {"quantize": bf16, "convert": quantize(bf16), "deepseek-mp": quantize(checkpoint("deepseek-v3")), "stack": quantize(checkpoint("fused-experts"))}
    for command in commands:
        _, verb, *options = [STANDS_FOR.get(word, word) for word in shlex.split(command)]
        if "--exclude" in options:  # a glob of tensors that the models of its rule have
            options[options.index("--exclude") + 1] = STANDS_FOR["GLOB"]
        src = sources[next((word for word in ("deepseek-mp", "stack") if word in options), verb)]
        harness.succeed(tessera, [verb, src, "-o", tmp_path / "dst", *options, "--dry-run"])


def refused_with_advice(got, rules):
    """Returns {(loader, command)} of the refusals by these rules whose advice is one conversion."""
    found = set()
    for f in got["load_findings"]:
        command = re.fullmatch(r"`tessera (convert [^`]*)` (writes a supported format|writes one for all)", f["advice"] or "")
        if f["severity"] == "error" and f["rule"] in rules and command:
            found.add((f["loader"], command[1]))
    return found


def hold_advice(got, rules, tessera, inspect, tmp_path):
    """Checks that the loader reads the output of the advised command, run on the rejected checkpoint."""
    advice = sorted(refused_with_advice(got, rules))
    for n, (loader, command) in enumerate(advice):
        verb, *options = shlex.split(command)
        done, out, err = harness.run(tessera, [verb, tmp_path / "m", "-o", tmp_path / f"dst-{n}", *options, "--quiet"])
        assert done == 0, f"{command}: exit {done}\n{out}{err}"
        code, again = inspect(tmp_path / f"dst-{n}", "--can-load", loader, "--tp", "1")
        assert code == 0, f"{loader}, {command}: {json.dumps(again['load_findings'], indent=1)}"
    return advice


@pytest.mark.parametrize("make", [make for make, _ in READS.values()], ids=READS)
def test_advice_makes_what_is_read(make, tessera, inspect, tmp_path):
    got = load_table(inspect, make(), tmp_path, loaders="vllm,sglang,transformers,trtllm")
    refused = {f["loader"] for f in got["load_findings"] if f["rule"] == "kind" and "`tessera" in f["advice"] and "convert --to bf16" not in f["advice"]}
    assert {loader for loader, _ in hold_advice(got, {"kind"}, tessera, inspect, tmp_path)} == refused


@pytest.mark.parametrize("name", ["globals of q, k and v", "globals of gate and up", "globals of an expert", "asymmetric GPTQ",
                                  "act-order of GPTQ", "GPTQ v2", "V4's wo_a plain, the rest in FP8",
                                  "V4's wo_a in groups that cut blocks", "V4's wq_a and wkv, joined by name",
                                  "V4's plain layers under transformers' names"])
def test_advice_mends_a_broken_rule(name, tessera, inspect, tmp_path):
    make, act, tp, loaders, rule, _ = RULES[name]
    got = load_table(inspect, changed(make(), *([act] if act else [])), tmp_path, str(tp), ",".join(sorted(loaders - {"trtllm"})))
    assert {loader for loader, _ in hold_advice(got, {rule}, tessera, inspect, tmp_path)} == loaders - {"trtllm"}


def test_all_commands_stand_in_backquotes():
    """All commands in advice are in backquotes, so the test above finds them."""
    for path in SOURCES:
        for line in path.read_text().splitlines():
            assert not re.search(r"(?<!`)tessera [a-z-]+ -", line) or "'tessera convert --from'" in line, f"{path}: {line}"


@pytest.mark.parametrize("mixed", (False, True))
def test_one_scale_of_a_joined_layer(mixed, tessera, tmp_path):
    """Phi-3 stores q, k and v, and gate and up, as one layer each. SGLang's W4A16_NVFP4 loads its global scale into the
    first of several places, and uses the largest of all."""
    rng, layer = np.random.default_rng(0), "model.layers.0."
    shapes = {"self_attn.qkv_proj": (384, 128), "self_attn.o_proj": (128, 128), "mlp.gate_up_proj": (512, 128), "mlp.down_proj": (128, 256)}
    tensors = {layer + name + ".weight": ("BF16", list(shape),
                                          (rng.standard_normal(shape, np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()) for name, shape in shapes.items()}
    source, rules = tmp_path / "source", tmp_path / "rules.json"
    source.mkdir()
    harness.write_safetensors(str(source / "model.safetensors"), tensors, {"format": "pt"})
    (source / "config.json").write_text(json.dumps({
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 128, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": 128, "intermediate_size": 256, "num_hidden_layers": 1, "vocab_size": 128}))
    rules.write_text(json.dumps({"schema": "tessera-rules/1", "dialect": "modelopt", "rules": [
        {"match": "*.down_proj.*", "scheme": "mxfp8"}, {"match": "*", "scheme": "nvfp4-weight-only"}]}))
    scheme = ["--rules", str(rules)] if mixed else ["--scheme", "nvfp4-weight-only"]
    harness.succeed(tessera, ["quantize", source, "-o", tmp_path / "codes", *scheme, "--dialect", "modelopt", "--quiet"])
    code, out, _ = harness.run(tessera, ["inspect", tmp_path / "codes", "--can-load", "vllm,sglang", "--tp", "1", "--json", "-", "--quiet"])
    found = [(f["loader"], f["tensor"]) for f in json.loads(out)["load_findings"] if f["rule"] == "global scales"]
    assert code == 1 and found and {loader for loader, _ in found} == {"sglang"}
    assert any("qkv_proj" in name for _, name in found) and any("gate_up_proj" in name for _, name in found)
    if mixed:
        return
    harness.run(tessera, ["convert", tmp_path / "codes", "-o", tmp_path / "read", "--to", "nvfp4-weight-only", "--quiet"])
    _, out, _ = harness.run(tessera, ["inspect", tmp_path / "read", "--can-load", "vllm,sglang", "--tp", "1", "--json", "-", "--quiet"])
    assert {f["rule"] for f in json.loads(out)["load_findings"]} == {"missing"}  # a layer alone is no model
