"""quantize --for, --tp and --gpu: a scheme that the loaders or the GPU do not support ends before any work."""

import json

import harness
import pytest


@pytest.fixture
def run(tessera, checkpoint, tmp_path):
    """Returns run(command, *options) -> (exit code, stdout, stderr) for a small Llama and the output tmp_path/out."""
    def call(command, *options):
        output = ["-o", tmp_path / "out"] if command == "quantize" else []
        return harness.run(tessera, [command, checkpoint("llama"), *output, *options])
    return call


@pytest.mark.parametrize("options, words", [
    (["--scheme", "int8-channel", "--for", "vllm", "--gpu", "b200"], ["vllm 0.33.0 cannot run it on b200", "_proj.weight", "fp8-channel"]),
    (["--scheme", "nvfp4-weight-only", "--for", "vllm", "--gpu", "mi300"], ["emulates", "fp8-block"]),
    (["--scheme", "nvfp4-weight-only", "--for", "sglang", "--gpu", "mi300"], ["CUDA kernel only"]),
    (["--scheme", "mxfp8", "--dialect", "deepseek", "--for", "sglang"], ["renames weight_scale_inv"]),
    (["--scheme", "int4-weight-only", "--for", "vllm,deepseek"], ["deepseek 9b4e978 cannot load it"]),
    (["--for", "vllm", "--tp", "8"], ["vllm 0.33.0 cannot load it at TP 8", "divided among 8 ranks"]),
    (["--for", "vllm", "--tp", "2", "--gpu", "h100"], ["vllm 0.33.0 cannot run it on h100 at TP 2", "_proj.weight", "TP 1 would do"]),
])
def test_what_a_loader_cannot_use(options, words, run, tmp_path):
    code, _, err = run("quantize", *options)
    assert code == 3 and all(word in err for word in words), err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("options", [
    ["--for", "vllm,transformers", "--gpu", "h100"], ["--scheme", "fp8-channel", "--for", "vllm", "--tp", "2"], ["--scheme", "int8-channel", "--for", "vllm", "--gpu", "h100"],
    ["--scheme", "nvfp4-weight-only", "--for", "vllm,sglang", "--gpu", "b200"]])
def test_what_they_can(options, run, tmp_path):
    code, _, err = run("quantize", *options)
    assert code == 0 and (tmp_path / "out/config.json").exists(), err


@pytest.mark.parametrize("options, word", [(["--gpu", "h100"], "--gpu needs --for"), (["--for", "vlm"], "'vlm' is none of"),
                                           (["--for", "vllm,vllm"], "named twice"), (["--for", "vllm", "--gpu", "v100"], "--gpu"),
                                           (["--tp", "8"], "--tp needs --for"), (["--for", "vllm", "--tp", "5000"], "from 1 to 4096"),
                                           (["--for", "vllm", "--tp", "5000"], "from 1 to 4096")])
@pytest.mark.parametrize("command", ["quantize", "plan-schemes"])
def test_usage(command, options, word, run):
    budget = ["--bits", "9"] if command == "plan-schemes" else []
    code, _, err = run(command, *budget, *options)
    assert code == 2 and word in err, err


def test_plan_schemes(run, tmp_path):
    """A listed scheme that the loaders do not support is an error; without a list such schemes are omitted."""
    target = ["--bits", "9", "--for", "vllm", "--gpu", "mi300"]
    code, _, err = run("plan-schemes", *target)
    assert code == 3 and "--schemes: nvfp4-weight-only: vllm" in err, err
    code, _, err = run("plan-schemes", *target, "--schemes", "fp8-block,bf16", "-o", tmp_path / "rules.json")
    assert code == 0, err
    code, _, err = run("quantize", "--rules", tmp_path / "rules.json", "--for", "vllm", "--gpu", "mi300")
    assert code == 0, err


def test_inspect(run, tessera, checkpoint, tmp_path):
    """inspect --can-load accepts the same GPUs for an existing checkpoint."""
    assert run("quantize", "--scheme", "int8-channel")[0] == 0
    codes = {}
    for gpu in ("h100", "b200"):
        codes[gpu], out, _ = harness.run(tessera, ["inspect", tmp_path / "out", "--can-load", "vllm", "--gpu", gpu, "--tp", "1", "--json", "-"])
        rules = {f["rule"] for f in json.loads(out)["load_findings"] if f["severity"] == "error"}
        assert ("GPU" in rules) == (gpu == "b200"), rules
    assert codes == {"h100": 0, "b200": 1}
    assert harness.run(tessera, ["inspect", tmp_path / "out", "--gpu", "h100"])[0] == 2


SCHEMES = ["fp8-block", "fp8-channel", "int8-channel", "int8-weight-only", "int4-weight-only", "nvfp4-weight-only", "mxfp4-weight-only",
           "mxfp8", "fp8-block --dialect compressed-tensors", "nvfp4-weight-only --dialect modelopt", "mxfp8 --dialect deepseek",
           "int4-weight-only --zero-points", "int4-weight-only --group-size 32"]


@pytest.mark.parametrize("kind", ["llama", "qwen3-moe", "deepseek-v3", "fused-experts"])  # one expert of deepseek-v3 is beyond 4 bits
@pytest.mark.parametrize("scheme", SCHEMES)
def test_before_and_after(kind, scheme, tessera, checkpoint, tmp_path):
    """--for decides before the run as inspect --can-load does for the output, for each loader and GPU."""
    src, out, options = checkpoint(kind), tmp_path / "out", ["--scheme", *scheme.split()]
    if kind == "deepseek-v3":
        options += ["--exclude", "*.experts.1.*"]
    harness.succeed(tessera, ["quantize", src, "-o", out, "--quiet", *options])
    for gpu in ("any", "h100", "b200", "mi300"):
        _, table, _ = harness.run(tessera, ["inspect", out, "--can-load", "all", "--tp", "1", "--gpu", gpu, "--json", "-"])
        for loader, sizes in json.loads(table)["can_load"].items():
            code, _, err = harness.run(tessera, ["quantize", src, "--dry-run", "--quiet", *options, "--for", loader, "--gpu", gpu])
            assert code == (0 if sizes["1"] else 3), (loader, gpu, err)
