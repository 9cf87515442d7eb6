"""`tessera inspect --can-load`: what has to be there, under whichever names a family has for it."""

from loader_models import HF, llama, load_table
import pytest


def test_an_empty_configuration(inspect, tmp_path):
    m = llama(quantized=False)
    m.config.clear()
    got = load_table(inspect, m, tmp_path)
    assert not any(row["1"] for loader, row in got["can_load"].items() if loader in HF)
    missing = {f["detail"].split("'")[1] for f in got["load_findings"] if f["rule"] == "configuration"}
    assert missing == {"model_type", "architectures", "hidden_size", "num_hidden_layers", "num_attention_heads"}


def tower(m):
    """Makes a vision tower with the names of SigLIP and CLIP: out_proj, fc1, fc2."""
    for layer in range(2):
        for leaf in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "mlp.fc1", "mlp.fc2"):
            m.plain(f"vision_tower.encoder.layers.{layer}.{leaf}", (256, 256))
            m.quantization["modules_to_not_convert"].append(f"vision_tower.encoder.layers.{layer}.{leaf}")


def gated(m):
    for layer in range(2):
        m.linear(f"model.layers.{layer}.self_attn.gate_proj", 256, 256)


def without_norms(m):
    m.drop("norm")


def linear_gates(m):
    """Hy-V4's gate of a dense MLP has another name than those of experts."""
    m.rename("layers.1.mlp", "layers.1.mlp.experts.0")
    m.rename("layers.0.mlp.gate_proj", "layers.0.mlp.linear_gate")


# Families whose names are not Llama's. None of it is missing.
OTHER_NAMES = {
    "a tower's out_proj": tower,
    "the gate of an attention": gated,
    "gate and up in one": lambda m: (m.drop("gate_proj"), m.rename("up_proj", "gate_up_proj")),
    "linear_gate": linear_gates,
    "no gate": lambda m: m.drop("gate_proj"),
    "final_layernorm": lambda m: m.rename("model.norm", "model.final_layernorm"),
    "embedding_norm": lambda m: m.rename("model.norm", "model.embedding_norm"),
    "norms without weights": without_norms,
    "word_embeddings": lambda m: m.rename("model.embed_tokens", "model.word_embeddings"),
    "head": lambda m: m.rename("lm_head.", "head."),
}


@pytest.mark.parametrize("act", OTHER_NAMES.values(), ids=OTHER_NAMES)
def test_names_of_other_families(act, inspect, tmp_path):
    m = llama()
    act(m)
    got = load_table(inspect, m, tmp_path)
    assert not [f for f in got["load_findings"] if f["rule"] == "missing"], got["load_findings"]
    assert got["can_load"]["transformers"]["1"], got["load_findings"]


MISSING = {
    "o_proj of one layer": (lambda m: m.drop("layers.1.self_attn.o_proj"), "layers.1.self_attn.o_proj"),
    "v_proj of one layer of a tower": (lambda m: (tower(m), m.drop("tower.encoder.layers.0.self_attn.v_proj")),
                                       "vision_tower.encoder.layers.0.self_attn.v_proj"),
    "the last norm": (lambda m: m.drop("model.norm"), "model.norm.weight"),
    "the embedding": (lambda m: m.drop("embed_tokens"), "model.embed_tokens.weight"),
    "up_proj of the only dense layer": (lambda m: (m.rename("layers.1.mlp", "layers.1.mlp.experts.0"), m.drop("layers.0.mlp.up_proj")),
                                        "layers.0.mlp.up_proj"),
}


@pytest.mark.parametrize("act, name", MISSING.values(), ids=MISSING)
def test_what_is_missing_is_named(act, name, inspect, tmp_path):
    m = llama()
    act(m)
    got = load_table(inspect, m, tmp_path)
    found = {f["loader"] for f in got["load_findings"] if f["rule"] == "missing" and name in f["detail"]}
    assert found == HF | {"deepseek"}, got["load_findings"]


@pytest.mark.parametrize("key", ["n_layer", "depth", "num_attention_layers", "encoder_num_hidden_layers"])
def test_names_of_the_number_of_layers(key, inspect, tmp_path):
    """GPT-2, vision towers and EfficientLoFTR have other names for the number of layers. One key only ends in the usual
    name."""
    m = llama()
    m.config[key] = m.config.pop("num_hidden_layers")
    assert not any("num_hidden_layers" in f["detail"] for f in load_table(inspect, m, tmp_path)["load_findings"])


# Keys that an engine class reads without a default: loader, model_type, key. A warning, because the plain model stops as well.
CLASS_KEYS = [("sglang", "deepseek_v3", "moe_layer_freq"), ("sglang", "qwen3_next", "full_attention_interval"),
              ("sglang", "qwen3_5_moe", "full_attention_interval"), ("sglang", "gpt_oss", "swiglu_limit"),
              ("vllm", "minimax_m2", "rotary_dim"), ("vllm", "minimax_m2", "scoring_func")]


@pytest.mark.parametrize("loader, model_type, key", CLASS_KEYS)
def test_keys_without_a_default(loader, model_type, key, inspect, tmp_path):
    warned = {}
    for there in (False, True):
        m = llama()
        m.config |= {"model_type": model_type} | ({key: 1} if there else {})
        place = tmp_path / str(there)
        place.mkdir()
        found = [f for f in load_table(inspect, m, place)["load_findings"] if f"no '{key}'" in f["detail"]]
        warned[there] = [(f["loader"], f["severity"]) for f in found]
    assert warned == {False: [(loader, "warning")], True: []}
