"""Tests the policy against policy_table.txt, family by family, and decisions for fused layers."""

import json

from checkpoints import load, save
import harness
import ml_dtypes
import numpy as np
from policy_table import read_table, write_holes
import pytest
from safetensors.numpy import save_file

FAMILIES = read_table()


@pytest.fixture
def plan(tessera, tmp_path):
    """Returns plan(config, {name: shape}, *options) -> (exit code, {name: (action, reason)}, the JSON, stderr)."""
    runs = []

    def run(config, tensors, *options):
        src = write_holes(tmp_path / f"src{len(runs)}", config, tensors)
        runs.append(src)
        code, out, err = harness.run(tessera, ["quantize", src, "--dry-run", "--json", "-", *options])
        got = json.loads(out)
        return code, {row["name"]: (row["action"], row["reason"]) for row in got["plan"]}, got, err

    return run


@pytest.mark.parametrize("title", FAMILIES)
def test_the_table(title, plan):
    options, config, rows = FAMILIES[title]
    code, got, _, _ = plan(config, {name: shape for _, shape, name, _ in rows}, *options)
    assert got == {name: (action, reason) for action, _, name, reason in rows}
    assert code == (0 if any(action == "quantize" for action, *_ in rows) else 1)


# Families of which there are official releases in few bits.
RELEASED = """gpt_oss deepseek_v3 deepseek_v32 deepseek_v4 deepseek_v41 kimi_k2 kimi_k25 kimi_k3 kimi_linear qwen3_next qwen3_5 qwen3_5_moe
    minimax_m2 glm4_moe glm_moe_dsa hunyuan_v1_moe llama4 gemma3n""".split()


# Families that loaders know, and of which none has been seen.
UNSEEN = """minimax_m3 minimax_m3_text minimax_m3_vl hy_v4 qwen4_exp qwen4_exp_text glm5_next glm5_next_text step5
    step5_text""".split()


def test_every_family_of_releases_has_its_rows(tessera):
    """Each family of a release is in the tool's printed tables and in this test's table, with a quantized weight."""
    code, out, _ = harness.run(tessera, ["quantize", "--list-families", "--json", "-"])
    listed = {family["model_type"]: family["release_seen"] for family in json.loads(out)["families"]}
    assert code == 0 and set(listed) >= set(RELEASED)
    assert {family for family, seen in listed.items() if not seen} == set(UNSEEN)
    for family in RELEASED + UNSEEN:
        rows = FAMILIES[family][2]
        assert {"quantize", "copy"} <= {action for action, *_ in rows}, family


@pytest.mark.parametrize("family", ["llama", *UNSEEN])
def test_a_family_of_which_no_release_has_been_seen_is_announced(family, plan, tessera):
    """The list of rules and every plan with such a family have the note."""
    rows = FAMILIES[family][2] if family in UNSEEN else [("quantize", (256, 256), "model.layers.0.mlp.up_proj.weight", "")]
    _, _, got, err = plan({"model_type": family}, {name: shape for _, shape, name, _ in rows})
    said = f"no official release of model_type '{family}' in 4 or 8 bits is known: the rules are those of its parent"
    assert (said in err) == (said in "".join(got["warnings"])) == (family in UNSEEN)
    _, out, _ = harness.run(tessera, ["quantize", "--list-families"])
    (line,) = (line for line in out.splitlines() if family in line.partition("  ")[0].split(", "))
    assert ("no official release" in line) == (family in UNSEEN)


# ---- nothing to quantize ----

SCHEMES = ("fp8-block", "fp8-channel", "int8-channel", "int8-weight-only", "int4-weight-only")
GPT_OSS = {"model.layers.0.mlp.experts.gate_up_proj": (2, 256, 512), "model.embed_tokens.weight": (512, 256),
           "model.layers.0.mlp.experts.down_proj": (2, 256, 256), "model.layers.0.self_attn.q_proj.weight": (256, 256)}


def assert_refused(tessera, src, dst, command, *words):
    harness.expect(tessera, [*command[:1], src, "-o", dst, *command[1:]], 1, "nothing to quantize", *words)
    assert not dst.exists()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_to_quantize(scheme, tessera, tmp_path):
    """The exit code is 1, the message has the reason, and the output has no config.json."""
    dst, command = tmp_path / "dst", ("quantize", "--scheme", scheme)
    gpt_oss = write_holes(tmp_path / "a", {"model_type": "gpt_oss", "hidden_size": 256}, GPT_OSS)
    llama = write_holes(tmp_path / "b", {"model_type": "llama"}, {"model.layers.0.mlp.up_proj.weight": (256, 256)})
    stacked = (*command, "--experts", "stack")
    assert_refused(tessera, gpt_oss, dst, stacked, "gate_up_proj", "[experts, in, out]", "--experts split")
    assert_refused(tessera, gpt_oss, dst, (*stacked, "--include", "*.experts.*"), "none of which can be quantized")
    assert_refused(tessera, gpt_oss, dst, (*stacked, "--dry-run"))
    assert_refused(tessera, llama, dst, (*command, "--exclude", "*"))
    assert_refused(tessera, llama, dst, (*command, "--exclude", "*", "--dry-run", "--json", "-"))


@pytest.mark.parametrize("to", ["trtllm", "fastertransformer"])
def test_nothing_to_lay_out(to, tessera, tmp_path):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
              "num_hidden_layers": 1, "num_attention_heads": 2,
              "vocab_size": 256, "intermediate_size": 256, "max_position_embeddings": 64,
              "rms_norm_eps": 1e-5, "num_key_value_heads": 2, "hidden_act": "silu", "torch_dtype": "bfloat16"}
    src = write_holes(tmp_path / "src", config, {"model.layers.0.mlp.up_proj.weight": (256, 256)})
    command = ("convert", "--to", to, "--arch", "sm80", "--bits", "8", "--exclude", "*")
    for more in ((), ("--dry-run",)):
        assert_refused(tessera, src, tmp_path / "dst", (*command, *more))


# ---- what is said of the rules ----

LINEAR = {"model.layers.0.mlp.up_proj.weight": (256, 256)}


@pytest.mark.parametrize("config, expected, model_type", [
    ({"model_type": "novel"}, "unknown model_type 'novel': general rules; check with --dry-run", "novel"),
    ({"model_type": "wrap", "text_config": {"model_type": "inner"}}, "unknown model_type 'inner': general rules", "inner"),
    ({}, "no model_type (config.json): general rules", None),
    ({"model_type": "llama"}, None, "llama"),
    ({"model_type": "wrap", "text_config": {"model_type": "qwen3"}}, None, "qwen3"),
], ids=str)
def test_a_family_without_a_table_is_announced(config, expected, model_type, plan, tessera, tmp_path):
    _, _, got, err = plan(config, LINEAR)
    assert (got["model_type"], got["rules"]) == (model_type, "table" if expected is None else "general")
    src = write_holes(tmp_path / "m", config, LINEAR)
    code, dry, _ = harness.run(tessera, ["quantize", src, "--dry-run"])
    code, _, real = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", "--quiet", "--json", tmp_path / "j"])
    assert code == 0
    if expected is None:
        assert err == real == "" and got["warnings"] == [] and "general rules" not in dry
    else:
        assert expected in err and expected in real and expected in dry and expected in got["warnings"][0]
        assert expected in json.loads((tmp_path / "j").read_text())["warnings"][0]


def test_a_glob_of_what_cannot_be_quantized_is_told(plan):
    tensors = {**LINEAR, "model.norm.weight": (256,)}
    _, _, got, err = plan({"model_type": "llama"}, tensors, "--include", "*norm*", "--include", "*.up_proj.*", "--exclude", "*norm*")
    assert got["warnings"] == ["--include '*norm*' matches 1 tensors, none of which can be quantized: --dry-run says why"]
    assert all(f"tessera: {warning}\n" in err for warning in got["warnings"])


def test_little_is_quantized(plan):
    """The experts, most of the model, are kept. A warning reports this."""
    experts = {f"model.layers.0.mlp.experts.{i}.{part}_proj.weight": (192, 256) if part != "down" else (256, 192)
               for i in range(4) for part in ("gate", "up", "down")}
    _, _, got, _ = plan({"model_type": "qwen3_moe"}, {**LINEAR, **experts})
    (warning,) = got["warnings"]
    assert warning.startswith("only 10 % of the weights are quantized; 'model.layers.0.mlp.experts.0.")
    assert "192 rows end inside a block of 128" in warning


def weights_of(shapes, config, path):
    rng = np.random.default_rng(1)
    return save(path, {name: rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16) for name, shape in shapes.items()}, config)


WHOLE = {"architectures": ["A"], "hidden_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2}


@pytest.mark.parametrize("family", ["novel", "qwen3"])
@pytest.mark.parametrize("kept, warned, served", [(0, False, True), (1, True, False), (7, True, False), (4, True, False)])
def test_the_share_of_quantized_weights(kept, warned, served, family, tessera, tmp_path):
    """Rules may not know the names of layers, such as RoBERTa's query and ModernBERT's Wo. F64, of four times the bytes, is
    not quantized."""
    shapes = {f"model.layers.0.mlp.{leaf}.weight": (256, 256) for leaf in ("up_proj", "down_proj", "gate_proj")}
    shapes["model.embed_tokens.weight"] = (256, 256)
    shapes |= {f"model.layers.0.self_attn.own{i}.weight": (256, 256) for i in range(kept)}
    src = weights_of(shapes, {"model_type": family, **WHOLE}, tmp_path / "src")
    if kept == 4:
        tensors = {name: array for name, array in load(src).items() if "self_attn" not in name}
        save_file(tensors | {"model.layers.0.self_attn.o_proj.weight": np.ones((256, 256))}, src / "model.safetensors", {"format": "pt"})
    code, out, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", "--json", tmp_path / "j"])
    rows = json.loads((tmp_path / "j").read_text())["serve"]
    assert code == 0 and ("% of the weights are quantized" in err) == warned
    assert any("command" in row for row in rows) == served
    assert (f"no command to serve it: only {round(300 / (3 + kept))} % of the weights" in out) == (not served)


FLUX = {"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.42.1"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_model_of_diffusers_is_refused(scheme, tessera, tmp_path):
    """The message has the model's name. Only weights that --include names are quantized, and no loader reads the result."""
    shapes = {f"transformer_blocks.0.{leaf}.weight": (256, 256) for leaf in ("attn.to_q", "norm1.linear", "ff.net.0.proj")}
    src, dst = weights_of(shapes, FLUX, tmp_path / "src"), tmp_path / "dst"
    command = ["quantize", src, "-o", dst, "--scheme", scheme]
    code, out, err = harness.run(tessera, command)
    assert code == 3 and "FluxTransformer2DModel" in err and "--include GLOB" in err and not dst.exists(), err
    code, out, err = harness.run(tessera, [*command, "--include", "*.attn.*", "--include", "*.ff.*"])
    assert code == 0 and "vllm serve" not in out and "from_pretrained" not in out, out
    for path in (src, dst):
        code, out, err = harness.run(tessera, ["inspect", path, "--can-load", "all", "--tp", "1", "--as-is"])
        assert code == 1 and "a diffusers model" in out and " ok" not in out, out


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_ignore_list_of_experts_kept_together(scheme, quantize, tmp_path):
    """One excluded expert keeps the experts of its layer, and all of them are listed as unquantized."""
    rng = np.random.default_rng(1)
    names = {f"model.layers.{i}.mlp.experts.{e}.{part}_proj" for i in range(2) for e in range(2)
             for part in ("gate", "up", "down")}
    source = {f"{name}.weight": rng.standard_normal((128, 128), np.float32).astype(ml_dtypes.bfloat16) for name in names}
    dst = quantize(save(tmp_path / "src", source, {"model_type": "qwen3_moe"}), "--scheme", scheme,
                   "--exclude", "*.0.mlp.experts.1.up_proj.weight")
    config = json.loads((dst / "config.json").read_text())["quantization_config"]
    listed = config.get("modules_to_not_convert", config.get("ignore"))
    experts = ["model.layers.0.mlp.experts"] * (scheme == "fp8-block")  # the module of all, as transformers stacks them
    assert sorted(listed) == sorted(["lm_head", *experts] + [name for name in names if ".layers.0." in name])


def test_the_key_of_the_table_is_the_tables(plan):
    """The tool knows every family of the table file, except those named unknown."""
    for title, (options, config, rows) in FAMILIES.items():
        _, _, got, _ = plan(config, {rows[0][2]: rows[0][1]})
        assert (got["rules"] == "general") == title.startswith("an unknown family"), title


@pytest.mark.parametrize("model_type, head", [("llama", "lm_head"), ("bert", "cls.predictions.decoder"), ("modernbert", "decoder"),
                                              ("roberta", "lm_head.decoder"), ("whisper", "proj_out")])
@pytest.mark.parametrize("scheme", ["fp8-block", "fp8-channel"])
def test_a_tied_head_is_listed(scheme, model_type, head, quantize, tmp_path):
    """The head has no tensor, but needs an entry. Otherwise transformers builds it quantized, without a scale."""
    shapes = {f"model.layers.0.{leaf}.weight": (256, 256) for leaf in ("self_attn.q_proj", "attention.self.query", "attn.Wo")}
    src = weights_of(shapes | {"model.layers.0.mlp.gate.weight": (256, 256)}, {"model_type": model_type}, tmp_path / "src")
    config = json.loads((quantize(src, "--scheme", scheme) / "config.json").read_text())["quantization_config"]
    assert head in config.get("modules_to_not_convert", config.get("ignore"))
