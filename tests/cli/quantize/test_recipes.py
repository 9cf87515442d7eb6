"""Tests --recipe: the published form of each release, what a recipe may say, refusals, docs/recipes.md.

`python tests/cli/quantize/test_recipes.py` writes the table of docs/recipes.md from recipes/."""

import json
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("common", "oracles")]

import harness
import pytest
from released_models import RELEASES
import small_families

RECIPES = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "recipes").glob("*.json"))}
SMALL = {"deepseek-v4": "DeepSeek-V4-Flash", "kimi-k2.5": "Kimi-K2.6", "kimi-k3": "Kimi-K3", "gpt-oss": "gpt-oss",
         "qwen3.6-moe-fp8": "Qwen3.6-MoE-FP8"}
LISTS = ("ignore", "modules_to_not_convert", "exclude_modules")


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
    """Compares each member of the release's configuration, except those that list modules."""
    for key, value in published.items():
        if key in (*LISTS, "quantized_layers", "observer", "fmt"):
            continue
        if isinstance(value, dict):
            assert_published(made[key], value)
        else:
            assert made[key] == value, key


def readers(directory, inspect):
    """Returns the loaders that read the form of a checkpoint. A small model can lack other tensors and keys."""
    _, got = inspect(directory, "--can-load", "vllm,sglang,transformers,trtllm", "--tp", "1")
    refuse = {f["loader"] for f in got["load_findings"] if f["severity"] == "error" and f["rule"] not in ("missing", "configuration")}
    return [loader for loader in got["can_load"] if loader not in refuse]


# ---- releases ----

@pytest.mark.parametrize("name", SMALL)
def test_the_tensors_and_configuration_of_a_release(name, tmp_path, inspect, convert, quantize):
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
    assert readers(made, inspect) == RECIPES[name]["loaders"]


# The dtype of a weight's codes. None: it is not quantized.
CODES = {None: "BF16", "fp8": "F8_E4M3", "FP8": "F8_E4M3", "MXFP8": "F8_E4M3", "NVFP4": "U8", "W4A16_NVFP4": "U8"}
TABLES = ("embed_tokens", "embeddings")
ALWAYS = ["*.gate", *(f"*{table}" for table in TABLES)]  # routers and tables are no linear layers, so that lists can lack them
IMPLIED = ["lm_head", "*.eh_proj", "*.indexer.weights_proj"]  # what a release without a list keeps: its code says so
LATENT = {"deepseek_v3", "deepseek_v32", "glm_moe_dsa", "kimi_k2", "kimi_k25"}  # no scales of a KV cache are made for these


def published_algorithm(module, published):
    """Returns how the release stores a matrix; None: not quantized."""
    if "quantized_layers" in published:
        return next((layer["quant_algo"] for name, layer in published["quantized_layers"].items() if f"{module}.".startswith(f"{name}.")), None)
    kept = [entry.replace("indexers_proj", "indexer.weights_proj") for entry in listed(published) or IMPLIED]
    whole = "|".join(re.escape(entry).replace(r"\*", ".*") for entry in kept + ALWAYS)
    return None if re.fullmatch(rf"(.*\.)?({whole})(\..*)?", module) else published.get("quant_algo", published["quant_method"])


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - SMALL.keys() - {"nemotron-3-ultra-nvfp4"}))
def test_the_layers_of_a_release(name, tmp_path, inspect, quantize):
    """Each matrix has the published format, and the output lists those that are not quantized."""
    published, model_type = RECIPES[name]["published"], RECIPES[name]["model_types"][-1]
    scales = ["--input-scale", "1"] if "modelopt" in RECIPES[name]["options"] else []
    with_cache = scales and model_type not in LATENT and "rules" not in RECIPES[name]
    made = quantize(small_families.write(tmp_path / "src", model_type), "--recipe", name, *scales, *(["--kv-scale", "1"] if with_cache else []))
    found, config = tensors(made), stated(made)
    assert ("scale_fmt" in config) == ("scale_fmt" in published)
    for module in small_families.modules(model_type):
        algorithm = published_algorithm(module, published)
        assert found[f"{module}.weight"][0] == CODES[algorithm], module
        assert module.endswith(TABLES) or published_algorithm(module, config) == algorithm, module
    if scales:
        config |= json.loads((made / "hf_quant_config.json").read_text())["quantization"]
    assert_published(config, {k: v for k, v in published.items() if with_cache or not k.startswith("kv_cache")})
    assert readers(made, inspect) == RECIPES[name]["loaders"]
    assert "vllm" in readers(with_lists_of(published, made), inspect)


def with_lists_of(published, made):
    """Replaces the lists of modules by the published ones, which vLLM is known to read."""
    (made / "hf_quant_config.json").unlink(missing_ok=True)
    config = json.loads((made / "config.json").read_text())
    for at in [config, config.get("text_config", {})]:
        for key in at.get("quantization_config", {}).keys() & {*LISTS, "quantized_layers"}:
            at["quantization_config"][key] = published["quantized_layers"] if key == "quantized_layers" else listed(published)
    (made / "config.json").write_text(json.dumps(config))
    return made


def test_nemotron_3_ultra(tmp_path, inspect, quantize):
    made = quantize(small_families.write(tmp_path / "src", "nemotron_h"), "--recipe", "nemotron-3-ultra-nvfp4", "--input-scale", "1",
                    "--kv-scale", "1")
    found, q = tensors(made), stated(made)
    algorithms = {n: layer["quant_algo"] for n, layer in q["quantized_layers"].items()}
    for module in small_families.modules("nemotron_h"):
        algorithm = ("NVFP4" if ".experts." in module else
                     "FP8" if module.endswith((".in_proj", ".out_proj", "shared_experts.up_proj", "shared_experts.down_proj")) else None)
        assert found[f"{module}.weight"][0] == CODES[algorithm] and algorithms.get(module) == algorithm, module
    assert_published(q, RECIPES["nemotron-3-ultra-nvfp4"]["published"])
    assert json.loads((made / "hf_quant_config.json").read_text())["quantization"]["kv_cache_quant_algo"] == "FP8"
    assert {n: found[n] for n in found if n.endswith(("k_scale", "v_scale"))} == {
        f"backbone.layers.5.mixer.{n}_proj.{n}_scale": ("F32", ()) for n in "kv"}
    assert '"four-six"' not in (made / "config.json").read_text()
    assert readers(made, inspect) == RECIPES["nemotron-3-ultra-nvfp4"]["loaders"]


# ---- what a recipe is ----

def test_a_recipe_is_its_options(tmp_path, quantize):
    src = small_families.write(tmp_path / "src", "minimax_m2")
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
    src = small_families.write(tmp_path / "src", "minimax_m2")
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
    src = small_families.write(tmp_path / "src", "minimax_m2")
    path = write(tmp_path / "own.json", **members)
    code, out, err = harness.run(tessera, ["quantize", src, "-o", tmp_path / "dst", "--recipe", path,
                                           *(path if o == "OWN" else o for o in options)])
    assert code == status and words in err, (code, err)


def test_other_files_and_names(tmp_path, tessera):
    src = small_families.write(tmp_path / "src", "minimax_m2")
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
    rows = ["| `--recipe` | release | options | read by | published form read in |", "|---|---|---|---|---|"]
    for name, recipe in RECIPES.items():
        options = " ".join(f"'{w}'" if "*" in w else w for w in recipe.get("options", []))
        schemes = ", ".join(rule["scheme"] for rule in recipe.get("rules", []))
        rows.append(f"| `{name}` | {recipe['release']} | {f'`{options}`' if options else ''}{f'; rules with {schemes}' if schemes else ''} "
                    f"| {', '.join(recipe['loaders'])} | {recipe['source']} |")
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
