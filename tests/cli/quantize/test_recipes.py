"""Tests --recipe: the published form of each release, what a recipe may say, refusals, docs/recipes.md.

`python tests/cli/quantize/test_recipes.py` writes the table of docs/recipes.md from recipes/."""

import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("common", "oracles")]

from checkpoints import BF16, make, random_weight
import harness
import pytest
from released_models import RELEASES

RECIPES = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "recipes").glob("*.json"))}
SMALL = {"deepseek-v4": "DeepSeek-V4-Flash", "kimi-k2.5": "Kimi-K2.6", "kimi-k3": "Kimi-K3", "gpt-oss": "gpt-oss",
         "qwen3.6-moe-fp8": "Qwen3.6-MoE-FP8"}
LISTS = ("ignore", "modules_to_not_convert")


def tensors(directory):
    """Returns {name: (dtype, shape)}."""
    return {name: (dtype, tuple(shape)) for path in sorted(directory.glob("*.safetensors"))
            for name, (dtype, shape, _) in harness.read_safetensors(path)[1].items()}


def stated(directory):
    config = json.loads((directory / "config.json").read_text())
    return config.get("quantization_config") or config["text_config"]["quantization_config"]


def listed(quantization):
    return next((quantization[key] for key in LISTS if key in quantization), [])


def is_listed(module, entries):
    """Matches as loaders do: a name, a part of a name, an expression after re:, or a glob."""
    for entry in entries:
        expression = entry[3:] if entry.startswith("re:") else ".*" + re.escape(entry).replace(r"\*", ".*") + ".*"
        if re.fullmatch(expression + (".*" if entry.startswith("re:") else ""), module):
            return True
    return False


def assert_published(made, published):
    """Compares each member of the release's configuration, except lists."""
    for key, value in published.items():
        if isinstance(value, dict):
            assert_published(made[key], value)
        elif key not in (*LISTS, "observer", "fmt"):
            assert made[key] == value, key


# ---- releases ----

@pytest.mark.parametrize("name", SMALL)
def test_the_tensors_and_configuration_of_a_release(name, tmp_path, tessera, convert, quantize):
    """The recipe makes the release's names, shapes and dtypes from a small BF16 copy. The dtypes of scales may differ."""
    release = RELEASES[SMALL[name]]().write(tmp_path / "release")
    plain = convert(release, "--to", "bf16", *(("--experts", "stack") if name == "gpt-oss" else ()))
    made = quantize(plain, "--recipe", name)
    theirs, ours = tensors(release), tensors(made)
    assert theirs.keys() == ours.keys()
    other = {n for n in ours if ours[n] != theirs[n]}
    assert all(ours[n][1] == theirs[n][1] and n.endswith((".scale", "_scale_inv", ".weight_shape")) for n in other), other
    assert_published(stated(made), RECIPES[name]["published"])
    assert RECIPES[name]["published"].keys() <= stated(release).keys()
    assert_published(stated(release), RECIPES[name]["published"])
    if listed(stated(release)):
        routers = re.compile(r".*(\.gate|routed_expert_(down|up)_proj|fused_qkv_a_proj|qkv_proj|conv1d)$")
        left = [m for m in listed(stated(made)) if not is_listed(m, listed(stated(release))) and not routers.fullmatch(m)]
        assert not left, left


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3.1"])
def test_deepseek_v3(name, checkpoint, quantize):
    made = quantize(checkpoint("deepseek-v3"), "--recipe", name)
    assert_published(stated(made), RECIPES[name]["published"])
    assert ("scale_fmt" in stated(made)) == (name == "deepseek-v3.1") and not listed(RECIPES[name]["published"])


def minimax(path):
    names = {f"model.layers.0.self_attn.{n}_proj.weight": (128, 128) for n in "qkvo"}
    names |= {f"model.layers.0.block_sparse_moe.experts.{e}.{w}.weight": (128, 128) for e in range(2) for w in ("w1", "w2", "w3")}
    kept = {"model.layers.0.block_sparse_moe.gate.weight": (2, 128), "model.embed_tokens.weight": (64, 128), "lm_head.weight": (64, 128),
            "model.layers.0.block_sparse_moe.e_score_correction_bias": (2,), "model.layers.0.input_layernorm.weight": (128,)}
    weights = {n: random_weight(shape, i).astype(BF16) for i, (n, shape) in enumerate({**names, **kept}.items())}
    return make(path, {"model.safetensors": weights}, quantization=None, model_type="minimax_m2", hidden_size=128,
                num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1), names, kept


def test_minimax_m2(tmp_path, quantize):
    src, names, kept = minimax(tmp_path / "src")
    made = quantize(src, "--recipe", "minimax-m2")
    found = tensors(made)
    assert all(found[n][0] == "F8_E4M3" for n in names) and all(found[n][0] == "BF16" for n in kept)
    assert_published(stated(made), RECIPES["minimax-m2"]["published"])
    assert all(is_listed(m, listed(RECIPES["minimax-m2"]["published"])) for m in listed(stated(made)))


def small_qwen(path, model_type):
    """Makes Qwen3-MoE or Qwen3-Next with the layers that its release quantizes, and those that it keeps."""
    moe, attention = "model.layers.{}.mlp.", "model.layers.{}.self_attn."
    fp8 = {f"{moe.format(0)}experts.{e}.{n}_proj.weight": (128, 128) for e in range(2) for n in ("gate", "up", "down")}
    kept = {moe.format(0) + "gate.weight": (2, 128), "model.layers.0.input_layernorm.weight": (128,), "lm_head.weight": (64, 128),
            "model.embed_tokens.weight": (64, 128)}
    if model_type == "qwen3_next":
        linear = "model.layers.0.linear_attn."
        fp8 |= {f"{moe.format(0)}shared_expert.{n}_proj.weight": (128, 128) for n in ("gate", "up", "down")}
        fp8 |= {linear + "in_proj_qkvz.weight": (512, 128), linear + "out_proj.weight": (128, 128)}
        kept |= {moe.format(0) + "shared_expert_gate.weight": (1, 128), linear + "in_proj_ba.weight": (2, 128),
                 linear + "conv1d.weight": (384, 1, 4), linear + "A_log": (1,), linear + "dt_bias": (1,), linear + "norm.weight": (128,)}
    at = attention.format(3 if model_type == "qwen3_next" else 0)
    fp8 |= {f"{at}{n}_proj.weight": (128, 128) for n in "qkvo"}
    kept |= {f"{at}{n}_norm.weight": (128,) for n in "qk"}
    weights = {n: random_weight(shape, i).astype(BF16) for i, (n, shape) in enumerate({**fp8, **kept}.items())}
    return make(path, {"model.safetensors": weights}, quantization=None, model_type=model_type, hidden_size=128,
                num_hidden_layers=4, num_attention_heads=1, num_key_value_heads=1, num_experts=2), fp8, kept


@pytest.mark.parametrize("name, model_type", [("qwen3-moe-fp8", "qwen3_moe"), ("qwen3-next-fp8", "qwen3_next")])
def test_qwen(name, model_type, tmp_path, quantize):
    src, fp8, kept = small_qwen(tmp_path / "src", model_type)
    made = quantize(src, "--recipe", name)
    found, published = tensors(made), RECIPES[name]["published"]
    assert {n for n in found if found[n][0] == "F8_E4M3"} == set(fp8)
    assert all(found[n][0] == "BF16" for n in kept)
    assert_published(stated(made), published)
    assert set(listed(stated(made))) <= set(listed(published))
    matrices = {n.removesuffix(".weight") for n, shape in kept.items() if len(shape) == 2 and "embed" not in n}
    assert matrices <= set(listed(stated(made)))


def test_deepseek_v32(tmp_path, quantize):
    """The projections of the indexer's queries and keys are FP8 with powers of two. The weights of its heads are not."""
    x = "model.layers.0.self_attn."
    fp8 = {x + "q_a_proj.weight": (128, 256), x + "q_b_proj.weight": (192, 128), x + "kv_a_proj_with_mqa.weight": (192, 256),
           x + "kv_b_proj.weight": (256, 128), x + "o_proj.weight": (256, 128), x + "indexer.wq_b.weight": (256, 128),
           x + "indexer.wk.weight": (128, 256)}
    kept = {x + "indexer.weights_proj.weight": (2, 256), x + "indexer.k_norm.weight": (128,), x + "indexer.k_norm.bias": (128,),
            "model.embed_tokens.weight": (64, 256), "lm_head.weight": (64, 256)}
    weights = {n: random_weight(shape, i).astype(BF16) for i, (n, shape) in enumerate({**fp8, **kept}.items())}
    src = make(tmp_path / "src", {"model.safetensors": weights}, quantization=None, model_type="deepseek_v32", hidden_size=256,
               num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, q_lora_rank=128, kv_lora_rank=128,
               qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, index_n_heads=2, index_head_dim=128, index_topk=16)
    made = quantize(src, "--recipe", "deepseek-v3.2")
    found = tensors(made)
    assert {n for n in found if found[n][0] == "F8_E4M3"} == set(fp8)
    assert all(found[n][0] == "BF16" for n in kept)
    assert_published(stated(made), RECIPES["deepseek-v3.2"]["published"])


def nemotron(path):
    b = "backbone.layers."
    fp8 = {f"{b}0.mixer.in_proj.weight": (160, 128), f"{b}0.mixer.out_proj.weight": (128, 64),
           f"{b}1.mixer.shared_experts.up_proj.weight": (64, 128), f"{b}1.mixer.shared_experts.down_proj.weight": (128, 64)}
    fp4 = {f"{b}1.mixer.experts.{e}.{n}_proj.weight": shape for e in range(2) for n, shape in (("up", (64, 128)), ("down", (128, 64)))}
    kept = {**{f"{b}2.mixer.{n}_proj.weight": (128, 128) for n in "qkvo"}, f"{b}1.mixer.gate.weight": (2, 128),
            "backbone.embeddings.weight": (64, 128), "lm_head.weight": (64, 128), f"{b}0.mixer.conv1d.weight": (96, 1, 4)}
    weights = {n: random_weight(shape, i).astype(BF16) for i, (n, shape) in enumerate({**fp8, **fp4, **kept}.items())}
    return make(path, {"model.safetensors": weights}, quantization=None, model_type="nemotron_h", hidden_size=128,
                num_hidden_layers=3, num_attention_heads=1, num_key_value_heads=1), fp8, fp4, kept


def test_nemotron_3_ultra(tmp_path, quantize):
    src, fp8, fp4, kept = nemotron(tmp_path / "src")
    made = quantize(src, "--recipe", "nemotron-3-ultra-nvfp4", "--input-scale", "1", "--kv-scale", "1")
    found, q = tensors(made), stated(made)
    assert all(found[n][0] == "F8_E4M3" for n in fp8) and all(found[n][0] == "U8" for n in fp4) and all(found[n][0] == "BF16" for n in kept)
    algorithms = {n: layer["quant_algo"] for n, layer in q["quantized_layers"].items()}
    assert {n for n, a in algorithms.items() if a == "FP8"} >= {n.removesuffix(".weight") for n in fp8}
    assert {n for n, a in algorithms.items() if a == "NVFP4"} >= {n.removesuffix(".weight") for n in fp4}
    assert_published(q, RECIPES["nemotron-3-ultra-nvfp4"]["published"])
    assert json.loads((made / "hf_quant_config.json").read_text())["quantization"]["kv_cache_quant_algo"] == "FP8"
    assert {n: found[n] for n in found if n.endswith(("k_scale", "v_scale"))} == {
        f"backbone.layers.2.mixer.{n}_proj.{n}_scale": ("F32", ()) for n in "kv"}
    assert '"four-six"' not in (made / "config.json").read_text()


# ---- what a recipe is ----

def test_a_recipe_is_its_options(tmp_path, quantize):
    src, _, _ = minimax(tmp_path / "src")
    one, two = quantize(src, "--recipe", "minimax-m2"), quantize(src, "--scheme", "fp8-block")
    for path in two.iterdir():
        if path.is_file() and path.name not in ("README.md", "tessera.manifest.json"):
            assert path.read_bytes() == (one / path.name).read_bytes(), path.name
    manifest = json.loads((one / "tessera.manifest.json").read_text())
    again = manifest["reproduce"]
    assert again["options"][0] == "--recipe=minimax-m2.json" and "--scheme" not in str(again["options"])
    assert json.loads(again["inputs"][0]["text"]) == RECIPES["minimax-m2"]


def write(path, **members):
    path.write_text(json.dumps({"schema": "tessera-recipe/1", "release": "mine", "model_types": ["minimax_m2"], **members}))
    return path


def test_a_path_and_more_options(tmp_path, quantize):
    src, _, _ = minimax(tmp_path / "src")
    path = write(tmp_path / "own.json", options=["--scheme", "fp8-channel", "--exclude", "*q_proj*"])
    found = tensors(quantize(src, "--recipe", path, "--exclude", "*o_proj*"))
    assert found["model.layers.0.block_sparse_moe.experts.0.w1.weight_scale"] == ("F32", (128, 1))
    assert all(found[f"model.layers.0.self_attn.{n}_proj.weight"][0] == "BF16" for n in "qkvo")


@pytest.mark.parametrize("members, options, status, words", [
    ({"options": ["--scheme", "fp8-block"]}, ("--scheme", "mxfp8"), 2, "--scheme cannot be combined with --recipe, which sets it"),
    ({"options": ["--scheme", "fp9"]}, (), 2, "fp9"),
    ({"options": ["--scheme", "mxfp4", "--group-size", "32"]}, (), 2, "--group-size cannot be combined with --scheme mxfp4"),
    ({"options": [1]}, (), 3, "options has at most 32 strings"),
    ({}, (), 3, "needs release, model_types, and options or rules"),
    ({"options": ["--scheme", "fp8-block"], "sheme": "x"}, (), 3, "unknown key 'sheme'"),
    ({"rules": [{"match": "*", "scheme": "mxfp8"}]}, ("--rules", "OWN"), 2, "--rules cannot be combined with --recipe"),
    ({"options": ["--scheme", "fp8-block"], "model_types": ["llama"]}, (), 2, "model_type is minimax_m2, but --recipe is for llama (mine)")], ids=str)
def test_refusals(members, options, status, words, tmp_path, tessera):
    src, _, _ = minimax(tmp_path / "src")
    path = write(tmp_path / "own.json", **members)
    code, out, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", "--recipe", path,
                                           *(path if o == "OWN" else o for o in options)])
    assert code == status and words in err, (code, err)


def test_other_files_and_names(tmp_path, tessera):
    src, _, _ = minimax(tmp_path / "src")
    rules = tmp_path / "rules.json"
    rules.write_text('{"schema": "tessera-rules/1", "rules": []}')
    recipe = write(tmp_path / "own.json", rules=[])
    for options, status, words in ((("--recipe", rules), 3, "a rules file is given by --rules"), (("--rules", recipe), 3, "not tessera-rules/1"),
                                   (("--recipe", "minimax-m3x"), 2, "did you mean 'minimax-m2'?"),
                                   (("--recipe", "./none.json"), 4, "none.json")):
        code, out, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", *options])
        assert code != 0 and words in err, (options, code, err)


# ---- the page ----

def table():
    rows = ["| `--recipe` | release | options | published form read in |", "|---|---|---|---|"]
    for name, recipe in RECIPES.items():
        options = " ".join(f"'{w}'" if "*" in w else w for w in recipe.get("options", []))
        schemes = ", ".join(rule["scheme"] for rule in recipe.get("rules", []))
        rows.append(f"| `{name}` | {recipe['release']} | {f'`{options}`' if options else ''}{f'; rules with {schemes}' if schemes else ''} "
                    f"| {recipe['source']} |")
    return "\n".join([*rows, "", *(textwrap.fill(f"- `{name}`: {recipe['note']}", 118, subsequent_indent="  ", break_on_hyphens=False)
                                   for name, recipe in RECIPES.items() if "note" in recipe), ""])


def page(text):
    begin, end = text.index("| `--recipe` |"), text.index("\n## ", text.index("| `--recipe` |"))
    return text[:begin] + table() + text[end:]


def test_the_page_has_all_recipes():
    text = (ROOT / "docs/recipes.md").read_text()
    assert text == page(text), "python tests/cli/quantize/test_recipes.py writes it"


if __name__ == "__main__":
    path = ROOT / "docs/recipes.md"
    path.write_text(page(path.read_text()))
