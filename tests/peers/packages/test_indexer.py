"""Scores of transformers' indexers, run in FP32: `tessera verify mla --sparse --stages` computes the same from the same hidden states."""

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

import harness

sys.path.append(str(Path(__file__).parents[2] / "gpu"))
import interop_forward

FULL = {"deepseek_v32": {}, "glm_moe_dsa": {"indexer_types": ["full"]}}


def record(model, tokens):
    """The first layer's hidden states, latent of the queries, and index scores of one forward pass."""
    stages = {}
    attention = model.model.layers[0].self_attn
    original = torch.Tensor.topk

    def topk(scores, *args, **kwargs):
        stages["index_scores"] = scores.clone()
        return original(scores, *args, **kwargs)

    def watch(*_):
        torch.Tensor.topk = topk

    def stop(*_):
        torch.Tensor.topk = original

    hooks = [attention.register_forward_pre_hook(lambda _, args, kwargs: stages.__setitem__("hidden_states", kwargs.get("hidden_states", *args[:1])),
                                                 with_kwargs=True),
             attention.q_a_layernorm.register_forward_hook(lambda _, args, out: stages.__setitem__("q_a_norm", out)),
             attention.indexer.register_forward_pre_hook(watch), attention.indexer.register_forward_hook(stop)]
    try:
        with torch.no_grad():
            model(tokens)
    finally:
        stop()
        for hook in hooks:
            hook.remove()
    return {name: x.contiguous().clone() for name, x in stages.items()}


@pytest.mark.parametrize("family", sorted(FULL))
@pytest.mark.parametrize("flaw", [None, "relu", "bias"])
def test_transformers_agrees(tessera, tmp_path, family, flaw):
    torch.manual_seed(3)
    sizes = interop_forward.GROUPED | interop_forward.INDEXED | {"num_hidden_layers": 1} | FULL[family]
    config = transformers.AutoConfig.for_model(family, **sizes)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    norm = model.model.layers[0].self_attn.indexer.k_norm
    for p in (norm.weight, norm.bias):
        torch.nn.init.uniform_(p, 0.5, 2.0)
    model.save_pretrained(tmp_path / "m")
    relu = torch.nn.functional.relu
    if flaw == "bias":
        torch.nn.init.zeros_(norm.bias)
    try:
        if flaw == "relu":
            torch.nn.functional.relu = lambda x: x
        stages = record(model, torch.randint(2, config.vocab_size, (2, 33)))
    finally:
        torch.nn.functional.relu = relu
    assert set(stages) == {"hidden_states", "q_a_norm", "index_scores"}
    save_file(stages, str(tmp_path / "stages.safetensors"))
    code, out, err = harness.run(tessera, ["verify", "mla", tmp_path / "m", "--sparse", "--stages", tmp_path / "stages.safetensors",
                                           "--device", "cpu", "--json", "-"])
    judged = {j["what"]: j for j in json.loads(out)["judgements"]}
    scores = judged["stage index_scores"]
    assert (code == 0) == scores["passed"] == (flaw is None), (err, judged)
    assert scores["relative_error"] < 1e-5 if flaw is None else scores["relative_error"] > 1e-3
    if flaw == "relu":
        assert "ReLU is missing" in scores["fault"]
