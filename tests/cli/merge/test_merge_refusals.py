"""Tests what `tessera merge` refuses: adapters that are no plain LoRA, tensors without a place, values that are no numbers."""

import adapters
from checkpoints import BF16, make, random_weight
import harness
import merge_oracle as oracle
import numpy as np
import pytest

Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"
PAIR = oracle.factors(48, 70)


@pytest.fixture
def base(tmp_path):
    weights = {f"{Q}.weight": random_weight((48, 70)).astype(BF16), f"{UP}.weight": random_weight((64, 70)).astype(BF16)}
    return make(tmp_path / "base", {"model.safetensors": weights}, quantization=None)


@pytest.fixture
def refused(tessera, base, tmp_path):
    """Returns refused(code, adapter, *words): the merge exits with this code and all these words, and writes no weights."""

    def run(code, adapter, *words, src=base):
        harness.expect(tessera, ["merge", src, adapter, "-o", tmp_path / "dst"], code, *words)
        assert not (tmp_path / "dst" / "config.json").exists()

    return run


@pytest.mark.parametrize("config,words", [
    ({"peft_type": "LOHA"}, ["'peft_type' is \"LOHA\"", "supported: \"LORA\""]),
    ({"peft_type": "absent"}, ["'peft_type' is missing"]),
    ({"r": "absent"}, ["'r' is missing"]),
    ({"lora_alpha": "absent"}, ["'lora_alpha' is missing"]),
    ({"use_dora": True}, ["'use_dora' is true", "scale * B * A"]),
    ({"use_qalora": True}, ["'use_qalora' is true"]),
    ({"lora_bias": True}, ["'lora_bias' is true"]),
    ({"bias": "all"}, ["'bias' is \"all\"", "supported: \"none\""]),
    ({"modules_to_save": ["lm_head"]}, ["'modules_to_save' is [\"lm_head\"]", "PEFT"]),
    ({"trainable_token_indices": [1, 2]}, ["'trainable_token_indices' is [1, 2]"]),
    ({"layer_replication": [[0, 2], [1, 3]]}, ["'layer_replication'", "number of layers"]),
    ({"alora_invocation_tokens": [5]}, ["'alora_invocation_tokens'"]),
    ({"some_future_option": {"scale": 2}}, ["'some_future_option' is {\"scale\": 2}"]),
    ({"init_lora_weights": "pissa"}, ["'init_lora_weights' is \"pissa\"", "path_initial_model_for_weight_conversion"]),
    ({"init_lora_weights": "olora"}, ["'init_lora_weights' is \"olora\""]),
    ({"r": 0}, ["'r' must be an integer from 1 on"]),
    ({"r": 2.5}, ["'r' must be an integer from 1 on"]),
    ({"r": "4"}, ["'r' must be a number"]),
    ({"lora_alpha": None}, ["'lora_alpha' must be a number"]),
    ({"use_rslora": 1}, ["'use_rslora' must be true or false"]),
    ({"rank_pattern": [4]}, ["'rank_pattern' must be an object of numbers"]),
    ({"rank_pattern": {"q_proj": 0}}, ["'rank_pattern' must be an integer from 1 on"]),
    ({"alpha_pattern": {"(?=q_proj)": 4}}, ["'alpha_pattern'"]),
    ({"target_modules": 5}, ["'target_modules' must be a name or a list of names"]),
    ({"target_modules": "(q_proj"}, ["'target_modules'"]),
    ({"target_modules": None}, ["neither 'target_modules' nor 'target_parameters'"]),
    ({"target_modules": ["k_proj"]}, ["lora_A.weight", "does not target"]),
    ({"target_modules": ["_proj"]}, ["does not target"]),
    ({"target_modules": r".*self_attn"}, ["does not target"]),
    ({"exclude_modules": ["q_proj"]}, ["does not target"]),
    ({"exclude_modules": r".*\.q_proj"}, ["does not target"]),
    ({"layers_to_transform": [1]}, ["does not target"]),
    ({"layers_to_transform": 0, "layers_pattern": ["blocks"]}, ["does not target"]),
    ({"layers_to_transform": 0, "layers_pattern": ["layer."]}, ["'layers_pattern' has 'layer.'", "not a plain name"]),
    ({"layers_to_transform": "0"}, ["'layers_to_transform' must be"]),
    ({"rank_pattern": {"q_proj": 2}}, ["rank 4 and 4", "says 2"]),
    ({"r": 8}, ["lora_A.weight", "rank 4 and 4", "says 8"]),
    ({"fan_in_fan_out": True}, ["[4, 70]", "[48, 70]", "fan_in_fan_out"]),
    ({"lora_alpha": 1e40}, ["beyond FP32", Q]),
])
def test_configurations(refused, tmp_path, config, words):
    refused(3, oracle.write(tmp_path / "lora", {Q: PAIR}, **config), *words)


@pytest.mark.parametrize("tensors,words", [
    ({f"{Q}.lora_magnitude_vector.weight": np.ones(48, np.float32)}, ["lora_magnitude_vector", "DoRA"]),
    ({f"{Q}.lora_B.bias": np.ones(48, np.float32)}, ["lora_B.bias", "a bias"]),
    ({"model.embed_tokens.lora_embedding_A": np.ones((4, 8), np.float32)}, ["lora_embedding_A", "embedding"]),
    ({"lm_head.modules_to_save.weight": np.ones((4, 8), np.float32)}, ["modules_to_save", "replacement"]),
    ({"lm_head.weight": np.ones((4, 8), np.float32)}, ["lm_head.weight", "neither"]),
    ({f"{UP}.lora_A.default.weight": np.ones((4, 70), np.float32)}, ["lora_A.default", "save_pretrained"]),
    ({f"{UP}.lora_A.weight": np.ones((4, 70), np.float32)}, ["up_proj.lora_A.weight", "has no", "up_proj.lora_B.weight"]),
    ({f"{UP}.lora_B.weight": np.ones((64, 4), np.float32)}, ["up_proj.lora_B.weight", "has no", "up_proj.lora_A.weight"]),
])
def test_tensors(refused, tmp_path, tensors, words):
    named = {adapters.PREFIX + name: x for name, x in tensors.items()}
    refused(3, oracle.write(tmp_path / "lora", {Q: PAIR}, named), *words)


def test_names_without_the_prefix(refused, tmp_path):
    refused(3, oracle.write(tmp_path / "lora", {}, {f"{Q}.lora_A.weight": PAIR[0], f"{Q}.lora_B.weight": PAIR[1]}), f"'{Q}.lora_A.weight'")


@pytest.mark.parametrize("module,pair,words", [
    ("model.layers.7.self_attn.q_proj", PAIR, ["layers.7.self_attn.q_proj", "does not have"]),
    (f"{Q}.base_layer", PAIR, [Q, "base_layer"]),
    (Q, oracle.factors(70, 48), ["[4, 48]", "[70, 4]", "[48, 70]"]),
    (Q, oracle.factors(48, 71), ["[4, 71]", "do not fit"]),
    (Q, [PAIR[0], PAIR[1][:, :3]], ["rank 4 and 3"]),
    (Q, [PAIR[0].reshape(4, 70, 1), PAIR[1]], ["must be a matrix"]),
    (Q, [PAIR[0].astype(np.float64), PAIR[1]], ["must be a matrix of BF16, F16 or F32"]),
])
def test_places(refused, tmp_path, module, pair, words):
    refused(3, oracle.write(tmp_path / "lora", {module: pair}), *words)


def test_no_tensors(refused, tmp_path):
    refused(3, oracle.write(tmp_path / "lora", {}), "nothing to merge")


@pytest.mark.parametrize("letter", [0, 1])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_of_the_adapter(refused, tmp_path, letter, value):
    pair = [x.copy() for x in PAIR]
    pair[letter][1, 2] = value
    refused(3, oracle.write(tmp_path / "lora", {Q: pair}), f"lora_{'AB'[letter]}.weight", "NaN or infinite")


@pytest.mark.parametrize("dtype,value,size,when", [(np.float16, 1, 300, "once it is rounded"), (BF16, 3.39e38, 3.5e17, "once it is rounded"),
                                                  (BF16, 1, 1e30, "after the merge"), (np.float32, 1, 1e30, "after the merge")])
def test_values_beyond_the_range(refused, tmp_path, dtype, value, size, when):
    src = make(tmp_path / "src", {"model.safetensors": {f"{Q}.weight": np.full((48, 70), value, dtype)}}, quantization=None)
    refused(3, oracle.write(tmp_path / "lora", {Q: [np.full((4, 70), size, np.float32), np.full((48, 4), size, np.float32)]}),
            f"'{Q}.weight': the value at [0, 0] of matrix 0 is NaN or infinite {when}", src=src)


def test_a_base_with_nan(refused, tmp_path):
    w = random_weight((48, 70)).astype(BF16)
    w[5, 6] = np.nan
    src = make(tmp_path / "src", {"model.safetensors": {f"{Q}.weight": w}}, quantization=None)
    refused(3, oracle.write(tmp_path / "lora", {Q: PAIR}), f"'{Q}.weight': the value at [5, 6] of matrix 0 is NaN or infinite after the merge", src=src)


@pytest.mark.parametrize("tied", [{"tie_word_embeddings": True}, {"text_config": {"tie_word_embeddings": True}}, {"tie_word_embeddings": False}, {}])
def test_a_head_that_loaders_tie_to_the_embedding(refused, tessera, tmp_path, tied):
    head = {"lm_head.weight": random_weight((48, 70)).astype(BF16)}
    src = make(tmp_path / "src", {"model.safetensors": head}, quantization=None, **tied)
    adapter = oracle.write(tmp_path / "lora", {"lm_head": PAIR}, target_modules=["lm_head"])
    if "true" in str(tied).lower():
        refused(3, adapter, "'base_model.model.lm_head.lora_A.weight' updates 'lm_head.weight'", "set tie_word_embeddings false", src=src)
    else:
        harness.succeed(tessera, ["merge", src, adapter, "-o", tmp_path / "dst"])


@pytest.mark.parametrize("text", ["", "[]", "{", '{"peft_type": "LORA", "peft_type": "LORA"}', '{"r": 4} x', "\xff"])
def test_damaged_configurations(refused, tmp_path, text):
    adapter = oracle.write(tmp_path / "lora", {Q: PAIR})
    (adapter / "adapter_config.json").write_text(text, encoding="latin-1")
    refused(3, adapter, "adapter_config.json")


def test_folders(refused, tmp_path, base, tessera):
    adapter = oracle.write(tmp_path / "lora", {Q: PAIR})
    refused(3, base, "no adapter_config.json in it")
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    refused(3, adapter, "no adapter_model.safetensors in it")
    refused(3, tmp_path / "absent", "absent: No such file or directory", "adapter_config.json and adapter_model.safetensors")
    refused(3, adapter / "adapter_config.json", "adapter_config.json: Not a directory", "an adapter is a directory")
    harness.expect(tessera, ["merge", base, "-o", tmp_path / "dst"], 2, "no adapter given: tessera merge BASE LORA -o DST")
    harness.expect(tessera, ["merge", "-o", tmp_path / "dst"], 2, "no checkpoint given: tessera merge BASE LORA -o DST")
    harness.expect(tessera, ["merge", base, adapter], 2, "no output directory given: tessera merge BASE LORA -o DST")
    harness.expect(tessera, ["merge", base, adapter, "-o", adapter / "dst"], 2)


def test_an_adapter_as_the_base(refused, tmp_path):
    adapter = oracle.write(tmp_path / "lora", {Q: PAIR})
    refused(3, adapter, "a LoRA adapter", src=adapter)
