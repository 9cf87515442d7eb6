"""Tests small copies of models released in 2026, from inspect to BF16, block FP8 and NVFP4: exit codes, values and loader verdicts."""

import collections
import json

from checkpoints import INDEX
import harness
from released_models import RELEASES
import numpy as np
import pytest
import stored_oracle as stored

# Exit codes of a step, of `diff SRC DST` and of `verify DST --against SRC`.
EXACT, LOSSY = (0, 0, 0), (0, 1, 0)
KEPT = NONE = (1, None, None)  # its policy, or its shape, keeps every weight from this scheme: nothing is written

# Who loads the release at a tensor parallelism of 1, and who does not; who is in neither list is not known to. Then the steps:
# to BF16; from there by quantize; from the release itself by convert.
Row = collections.namedtuple("Row", "loads refuses bf16 fp8 nvfp4 direct_fp8 direct_nvfp4")
HF = "vllm sglang transformers"
TABLE = {
    #                           loads                 refuses            --to bf16 quantize: fp8  nvfp4  convert: fp8  nvfp4
    "DeepSeek-V4-Flash":      Row(HF,                   "trtllm deepseek",  EXACT, LOSSY, LOSSY, EXACT, LOSSY),
    "DeepSeek-V4.1-Flash":    Row("vllm sglang", "transformers trtllm deepseek", EXACT, LOSSY, LOSSY, LOSSY, LOSSY),
    "Kimi-K2.6":              Row(HF,                   "trtllm deepseek",  LOSSY, LOSSY, LOSSY, LOSSY, LOSSY),
    "Kimi-K3":                Row(HF,                   "deepseek",         EXACT, LOSSY, LOSSY, EXACT, EXACT),
    # Its experts end inside a block of 128, as in the release. In NVFP4 each has tensors of its own.
    "gpt-oss":                Row(HF + " trtllm",       "deepseek",         EXACT, KEPT,  LOSSY, NONE,  EXACT),
    "Qwen3.6-MoE-FP8":        Row(HF + " trtllm",       "deepseek",         LOSSY, LOSSY, LOSSY, EXACT, LOSSY),
    "Llama-NVFP4 (ModelOpt)": Row("vllm sglang trtllm", "deepseek",         LOSSY, LOSSY, LOSSY, LOSSY, LOSSY),
    "Llama-AWQ":              Row("vllm",               "deepseek",         LOSSY, LOSSY, LOSSY, LOSSY, LOSSY),
    "Llama-GPTQ, act-order":  Row("sglang",             "vllm deepseek",    LOSSY, LOSSY, LOSSY, LOSSY, LOSSY),
}
SCHEMES = {"fp8": "fp8-block", "nvfp4": "nvfp4-weight-only"}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """Returns release(name) -> (the model in memory, its directory), made once."""
    made = {}

    def get(name):
        if name not in made:
            model = RELEASES[name]()
            made[name] = model, model.write(tmp_path_factory.mktemp("release") / "src")
        return made[name]

    return get


def step(tessera, command, src, dst, codes):
    """Runs a step, then diff and verify against its source. Checks the expected results."""
    run, diff, verify = codes
    code, out, err = harness.run(tessera, [command[0], src, "-o", dst, *command[1:], "--quiet"])
    assert code == run, f"{command}: exit {code}\n{out}{err}"
    if code:
        assert "nothing was written" in err and not dst.exists(), err
        return
    for name, words, expected in (("diff", ("diff", src, dst), diff), ("verify", ("verify", dst, "--against", src), verify)):
        code, out, err = harness.run(tessera, words)
        assert code == expected, f"{command}, {name}: exit {code}\n{out}{err}"


def test_the_table_is_of_all_releases():
    assert TABLE.keys() == RELEASES.keys()


@pytest.mark.parametrize("name", TABLE)
def test_who_loads_it(tessera, inspect, release, name):
    model, src = release(name)
    code, out, err = harness.run(tessera, ["inspect", src])
    assert code == 0 and err == "", out + err
    code, got = inspect(src, "--can-load", "all", "--tp", "1")
    ok = {loader: row["1"] for loader, row in got["can_load"].items()}
    assert code == int(not all(ok.values()))
    expected = dict.fromkeys(TABLE[name].loads.split(), True) | dict.fromkeys(TABLE[name].refuses.split(), False)
    for loader, loads in expected.items():
        assert ok[loader] == loads, [f for f in got["load_findings"] if f["loader"] == loader]


@pytest.mark.parametrize("name", TABLE)
def test_steps(tessera, release, tmp_path, name):
    model, src = release(name)
    bf16 = tmp_path / "bf16"
    step(tessera, ("convert", "--to", "bf16"), src, bf16, TABLE[name].bf16)
    for column, scheme in SCHEMES.items():
        step(tessera, ("quantize", "--scheme", scheme), bf16, tmp_path / column, getattr(TABLE[name], column))


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize("column", SCHEMES)
def test_direct_conversions(tessera, release, tmp_path, name, column):
    """No BF16 is written. The values are exact if codes can be moved."""
    model, src = release(name)
    step(tessera, ("convert", "--to", SCHEMES[column]), src, tmp_path / "dst", getattr(TABLE[name], "direct_" + column))


def test_gpt_oss_again(tessera, convert, inspect, release, tmp_path):
    """Converts BF16 to the layout of the release: its tensors, its configuration, its values, its loaders."""
    model, src = release("gpt-oss")
    bf16, dst = convert(src, "--to", "bf16"), tmp_path / "dst"
    step(tessera, ("quantize", "--scheme", "mxfp4-weight-only"), bf16, dst, EXACT)
    got = stored.read_any(dst / "model.safetensors")
    assert {n: (t.dtype, t.shape) for n, t in got.items()} == {n: (t.dtype, t.shape) for n, t in model.tensors.items()}
    assert json.loads((dst / "config.json").read_text())["quantization_config"] == model.config["quantization_config"]
    harness.succeed(tessera, ["diff", src, dst])
    code, told = inspect(dst, "--can-load", TABLE["gpt-oss"].loads.replace(" ", ","), "--tp", "1")
    assert code == 0, told["load_findings"]


def without_quantization(config):
    """Returns the tensors that remain if no weight is quantized."""
    kept = {key: value for key, value in config.items() if key not in ("quantization_config", "expert_dtype", "torch_dtype")}
    return kept | {key: without_quantization(value) for key, value in kept.items() if key == "text_config"}


@pytest.mark.parametrize("name", TABLE)
def test_values(tessera, convert, release, name):
    """Each weight has the values of its codes, rounded once, and every other tensor is unchanged. No companion of codes and
    no scale of the KV cache remains."""
    model, src = release(name)
    dst = convert(src, "--to", "bf16")
    files = set(json.loads((dst / INDEX).read_text())["weight_map"].values()) if (dst / INDEX).exists() else {"model.safetensors"}
    got = {n: t for file in files for n, t in stored.read_any(dst / file).items()}
    values = {n: t for n, t in model.values.items() if not n.endswith((".k_scale", ".v_scale"))}
    assert got.keys() == values.keys()
    for tensor, want in values.items():
        as_it_was = tensor in model.tensors and want is model.tensors[tensor]
        want = want if as_it_was else stored.in_bf16(want)
        assert got[tensor].dtype == want.dtype and got[tensor].shape == want.shape, tensor
        wrong = np.flatnonzero(got[tensor].reshape(-1).view(np.uint8) != want.reshape(-1).view(np.uint8))
        assert wrong.size == 0, f"{tensor}: {wrong.size} bytes differ, the first is {wrong[0]}"
    config = json.loads((dst / "config.json").read_text())
    assert without_quantization(config) == without_quantization(model.config)
    assert "quantization_config" not in json.dumps(config) and not (dst / "hf_quant_config.json").exists()


def test_verify_looks_into_text_config(tessera, convert, release):
    """A key of the language model of a multimodal model is compared like any other."""
    _, src = release("Kimi-K2.6")
    dst = convert(src, "--to", "bf16")
    path = dst / "config.json"
    text = path.read_text()
    for change, words in ((('"hidden_size": 256', '"hidden_size": 512'), ("text_config.hidden_size", "512, but 256")),
                          (('"first_k_dense_replace": 1, ', ""), ("text_config.first_k_dense_replace", "missing")),
                          (('"first_k_dense_replace": 1', '"first_k_dense_replace": 1, "new": 1'),
                           ("text_config.new", "no such key"))):
        assert text.count(change[0]) == 1
        path.write_text(text.replace(*change))
        harness.shows(tessera, ["verify", dst, "--against", src], 1, *words)
