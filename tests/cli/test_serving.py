"""Tests the commands that a finished job prints to serve its output: loaders, sizes, and reasons."""

import json
import shlex

import harness
import pytest

SCHEMES = ("fp8-block", "fp8-block --dialect compressed-tensors", "fp8-channel", "int8-channel", "int8-weight-only",
           "int4-weight-only --group-size 32")
SMALL_GROUPS = ("mxfp4", "nvfp4-weight-only", "nvfp4-weight-only --dialect modelopt", "mxfp8", "mxfp8 --dialect deepseek")
TOLD = ("vllm", "sglang", "transformers", "trtllm")


def serve(tessera, src, dst, *options):
    out = harness.succeed(tessera, ["quantize", src, "-o", dst, "--json", f"{dst}.json", *options])
    with open(f"{dst}.json") as file:
        return {row["loader"]: row for row in json.load(file)["serve"]}, out


def hold_to_inspect(got, out, tessera, tmp_path, but=()):
    harness.run(tessera, ["inspect", tmp_path / "dst", "--can-load", "all", "--tp", "1,2,4,8", "--json", tmp_path / "i"])
    can_load = json.loads((tmp_path / "i").read_text())["can_load"]
    assert set(can_load) == {"vllm", "sglang", "transformers", "deepseek", "trtllm"}
    for loader, at in can_load.items():
        if loader not in TOLD or loader in but:
            continue
        sizes = [size for size in (1, 2, 4, 8) if at[str(size)]]
        if not sizes:
            assert loader == "trtllm" and loader not in got or got[loader]["reason"] in out and "tp" not in got[loader]
        elif loader == "transformers":
            assert "tp" not in got[loader] and got[loader]["command"] in out
        else:
            assert got[loader]["tp"] == sizes
            assert f"  {got[loader]['command']}    # tensor-parallel {', '.join(map(str, sizes))}\n" in out


@pytest.mark.parametrize("kind, scheme", [
    *((kind, scheme) for kind in ("llama", "qwen3-moe", "deepseek-v3") for scheme in SCHEMES),
    *((kind, scheme) for kind in ("llama", "qwen3-moe") for scheme in SMALL_GROUPS)])
def test_the_lines_are_what_inspect_says(kind, scheme, checkpoint, tessera, tmp_path):
    got, out = serve(tessera, checkpoint(kind), tmp_path / "dst", "--scheme", *scheme.split())
    if (kind, scheme) == ("deepseek-v3", "int4-weight-only --group-size 32"):
        assert "no command to serve it: only" in out and not any("command" in row for row in got.values())
        return
    hold_to_inspect(got, out, tessera, tmp_path, but=["sglang"] if (kind, scheme) == ("llama", "fp8-block") else [])


def test_the_lines_of_a_mixed_job(checkpoint, tessera, tmp_path):
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"schema": "tessera-rules/1", "rules": [
        {"match": "*.self_attn.*", "scheme": "mxfp8"}, {"match": "*", "scheme": "nvfp4-weight-only"}]}))
    got, out = serve(tessera, checkpoint("qwen3-moe"), tmp_path / "dst", "--rules", rules)
    hold_to_inspect(got, out, tessera, tmp_path)
    assert "command" in got["vllm"] and "MXFP8" in got["sglang"]["reason"]


@pytest.mark.parametrize("scheme", ["fp8-block --dialect compressed-tensors", "fp8-channel", "int4-weight-only",
                                    "nvfp4-weight-only"])
def test_plain_layers_are_listed_as_joined(scheme, checkpoint, tessera, tmp_path):
    """SGLang's class of Llama looks up qkv_proj in the list of compressed-tensors. Without it, it would use uninitialized
    memory."""
    got, _ = serve(tessera, checkpoint("llama"), tmp_path / "dst", "--exclude", "*self_attn*", "--scheme", *scheme.split())
    ignored = json.loads((tmp_path / "dst" / "config.json").read_text())["quantization_config"]["ignore"]
    assert {f"model.layers.0.self_attn.{leaf}_proj" for leaf in ("q", "k", "v", "o", "qkv")} < set(ignored)
    assert not any("gate_up_proj" in entry for entry in ignored)
    assert "command" in got["sglang"] and "command" in got["vllm"]


def test_the_commands(checkpoint, tessera, tmp_path):
    dst = tmp_path / "a b'c"
    got, _ = serve(tessera, checkpoint("qwen3-moe"), dst)
    words = {loader: shlex.split(row["command"]) for loader, row in got.items()}
    assert words["vllm"] == ["vllm", "serve", str(dst)]
    assert words["sglang"] == ["python", "-m", "sglang.launch_server", "--model-path", str(dst)]
    assert words["transformers"][-1] == str(dst) and words["trtllm"] == ["trtllm-serve", str(dst)]
    compile(words["transformers"][2], "command", "exec")


@pytest.mark.parametrize("model_type, drops", [("llama", True), ("mistral", True), ("phi3", True), ("qwen2", False)])
def test_sglang_and_the_names_of_scales(model_type, drops, checkpoint, tessera, tmp_path):
    """SGLang's Llama class does not load weight_scale_inv, so the other dialect is recommended."""
    src = tmp_path / "src"
    src.mkdir()
    for path in checkpoint("llama").iterdir():
        (src / path.name).write_bytes(path.read_bytes())
    config = json.loads((src / "config.json").read_text())
    (src / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
    got, out = serve(tessera, src, tmp_path / "deepseek")
    assert ("command" in got["sglang"]) != drops
    assert ("--dialect compressed-tensors" in out) == drops
    got, _ = serve(tessera, src, tmp_path / "other", "--dialect", "compressed-tensors")
    assert "command" in got["sglang"]


def test_no_lines_for_layouts(checkpoint, tessera, tmp_path):
    code, out, _ = harness.run(tessera, ["convert", checkpoint("llama"), "-o", tmp_path / "dst", "--to", "fastertransformer",
                                         "--arch", "sm80", "--bits", "8"])
    assert code == 0 and "vllm" not in out and "next:" in out
