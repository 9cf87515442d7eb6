"""PEFT's merge_and_unload, in FP32 and rounded once, gives what `tessera merge` writes, up to the order of additions."""

import json

import harness
import peft
import pytest
import safetensors.torch
import torch

CONFIGS = {
    "plain": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "rank 64": {"r": 64, "lora_alpha": 7, "target_modules": ["up_proj"]},
    "stabilized": {"r": 6, "lora_alpha": 5, "use_rslora": True, "target_modules": r".*\.(k_proj|gate_proj)"},
    "all linear": {"r": 2, "lora_alpha": 3, "target_modules": "all-linear"},
    "patterns": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "o_proj", "up_proj"], "rank_pattern": {"q_proj": 2, "^model.layers.1.mlp.up_proj": 5},
                 "alpha_pattern": {"layers.0.self_attn.o_proj": 3, ".*o_proj": 5}},
    "some layers": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1]},
    "excluded": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "up_proj"], "exclude_modules": ["layers.1.mlp.up_proj"]},
    "a parameter": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "target_parameters": ["up_proj.weight"]},
}
EXPERTS, HIDDEN, INNER = 3, 24, 16


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (torch.nn.Linear(48, 48, bias=False) for _ in range(4))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(48, 80, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(80, 48, bias=False)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp()


class Model(torch.nn.Module):
    """Has the modules of a decoder. It is not run, so there is no forward pass."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList([Layer(), Layer()])


class Experts(torch.nn.Module):
    def __init__(self, turned):
        super().__init__()
        self.is_transposed = turned
        shapes = ((HIDDEN, 2 * INNER), (INNER, HIDDEN)) if turned else ((2 * INNER, HIDDEN), (HIDDEN, INNER))
        self.gate_up_proj, self.down_proj = (torch.nn.Parameter(torch.randn(EXPERTS, *shape) * 0.02) for shape in shapes)


class Sparse(torch.nn.Module):
    def __init__(self, turned):
        super().__init__()
        self.mlp = torch.nn.Module()
        self.mlp.experts = Experts(turned)


def save(model, base):
    """Rounds a model to BF16, and writes it as a checkpoint."""
    base.mkdir()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).to(torch.float32)
    safetensors.torch.save_file({name: x.to(torch.bfloat16) for name, x in model.state_dict().items()}, base / "model.safetensors")
    (base / "config.json").write_text(json.dumps({"model_type": "llama"}))


def check(tessera, tmp_path, make, config):
    """Saves a model and an adapter of random values, merges both ways, and compares all tensors.

    PEFT reads the adapter again, because it saves patterns in alphabetical order, and the first that matches counts."""
    model, base = make(), tmp_path / "base"
    save(model, base)
    again = make()
    again.load_state_dict(model.state_dict())
    peft.get_peft_model(model, peft.LoraConfig(init_lora_weights=False, **config)).save_pretrained(tmp_path / "lora")
    adapted = peft.PeftModel.from_pretrained(again, tmp_path / "lora")
    harness.succeed(tessera, ["merge", base, tmp_path / "lora", "-o", tmp_path / "dst", "--json", tmp_path / "result.json"])
    expected, got = adapted.merge_and_unload().state_dict(), safetensors.torch.load_file(tmp_path / "dst" / "model.safetensors")
    merged = {row["name"] for row in json.loads((tmp_path / "result.json").read_text())["updates"]}
    before = safetensors.torch.load_file(base / "model.safetensors")
    assert expected.keys() == got.keys() and merged
    for name, x in expected.items():
        rounded = x.to(torch.bfloat16)
        assert (name in merged) == bool((rounded != before[name]).any()), name
        apart = (got[name].view(torch.int16).int() - rounded.view(torch.int16).int()).abs()
        assert apart.max() <= 1 and (apart > 0).float().mean() < 1e-3, name


@pytest.mark.parametrize("name", CONFIGS)
def test_matrices(tessera, tmp_path, name):
    torch.manual_seed(1)
    check(tessera, tmp_path, Model, CONFIGS[name])


@pytest.mark.parametrize("parameters", [["experts.gate_up_proj"], ["experts.down_proj"], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]])
@pytest.mark.parametrize("turned", [False, True])
def test_stacked_experts(tessera, tmp_path, turned, parameters):
    torch.manual_seed(2)
    check(tessera, tmp_path, lambda: Sparse(turned), {"r": 3, "lora_alpha": 8, "target_modules": [], "target_parameters": parameters,
                                             "rank_pattern": {"experts.down_proj": 2}})


def test_several_adapters(tessera, tmp_path):
    """Tests PEFT's add_weighted_adapter of two without rounding: combination_type "cat"."""
    torch.manual_seed(4)
    model, base = Model(), tmp_path / "base"
    save(model, base)
    again = Model()
    again.load_state_dict(model.state_dict())
    adapted = peft.get_peft_model(model, peft.LoraConfig(init_lora_weights=False, **CONFIGS["plain"]), adapter_name="one")
    adapted.add_adapter("two", peft.LoraConfig(init_lora_weights=False, **{**CONFIGS["plain"], "r": 6, "lora_alpha": 5}))
    adapted.save_pretrained(tmp_path / "lora")
    adapted.add_weighted_adapter(["one", "two"], [0.5, 2.0], "both", combination_type="cat")
    harness.succeed(tessera, ["merge", base, f"{tmp_path}/lora/one=0.5", f"{tmp_path}/lora/two=2", "-o", tmp_path / "dst"])
    expected = adapted.merge_and_unload(adapter_names=["both"]).state_dict()
    got = safetensors.torch.load_file(tmp_path / "dst" / "model.safetensors")
    changed = 0
    for name, x in again.state_dict().items():
        rounded = expected[name].to(torch.bfloat16)
        changed += bool((rounded != x.to(torch.bfloat16)).any())
        apart = (got[name].view(torch.int16).int() - rounded.view(torch.int16).int()).abs()
        near = (got[name].float() - rounded.float()).abs() <= rounded.float().abs() * 2**-7 + 1e-6  # sums may cancel
        assert near.all() and (apart > 0).float().mean() < 1e-3, name
    assert changed == 6


@pytest.mark.parametrize("config,word", [({"use_dora": True}, "use_dora"), ({"bias": "lora_only"}, "bias"), ({"lora_bias": True}, "lora_bias"),
                                         ({"init_lora_weights": "pissa"}, "init_lora_weights"), ({"modules_to_save": ["up_proj"]}, "modules_to_save")])
def test_refusals(tessera, tmp_path, config, word):
    torch.manual_seed(3)
    model, base = Model(), tmp_path / "base"
    save(model, base)
    peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj"], **config)).save_pretrained(tmp_path / "lora")
    harness.expect(tessera, ["merge", base, tmp_path / "lora", "-o", tmp_path / "dst"], 3, word)
