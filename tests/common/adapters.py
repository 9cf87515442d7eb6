"""Writes LoRA adapters in PEFT's format. Standard library only."""

import array
import json
import pathlib
import random

import harness

PREFIX = "base_model.model."
CONFIG = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base", "r": 4, "lora_alpha": 8, "lora_dropout": 0.05,
          "bias": "none", "use_rslora": False, "use_dora": False, "fan_in_fan_out": False, "init_lora_weights": True, "inference_mode": True,
          "modules_to_save": None, "layers_to_transform": None, "layers_pattern": None, "rank_pattern": {}, "alpha_pattern": {},
          "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], "target_parameters": None,
          "loftq_config": {}, "eva_config": None, "megatron_config": None, "megatron_core": "megatron.core", "layer_replication": None,
          "runtime_config": {"ephemeral_gpu_offload": False}, "lora_bias": False, "exclude_modules": None, "peft_version": "0.21.2"}
# Columns that one element of codes holds, by the ending of their name and by dtype.
PACKED = {(".weight", "U8"): 2, (".weight_packed", "U8"): 2, (".weight_packed", "I32"): 8}


def write(path, entries, **config):
    """Writes an adapter with these tensors, {name: (dtype, shape, bytes)}. An option "absent" is omitted. Returns the path."""
    path = pathlib.Path(path)
    path.mkdir(parents=True)
    harness.write_safetensors(path / "adapter_model.safetensors", entries, {"format": "pt"})
    (path / "adapter_config.json").write_text(json.dumps({key: value for key, value in {**CONFIG, **config}.items() if value != "absent"}))
    return path


def matrices(base):
    """Returns {module: (outputs, inputs)} of all matrices of a checkpoint."""
    found = {}
    for name, entry in harness.headers(base).items():
        module = name.rpartition(".")[0]
        if len(entry["shape"]) == 2 and name[len(module):] in (".weight", ".weight_packed"):
            outputs, inputs = entry["shape"]
            found[module] = outputs, inputs * PACKED.get((name[len(module):], entry["dtype"]), 1)
    return found


def for_base(path, base, leaves=("o_proj", "down_proj"), rank=4, size=0.02):
    """Writes an adapter for all matrices of the base whose names end in one of the leaves. Returns the path."""
    generator, entries = random.Random(1), {}
    for module, (outputs, inputs) in sorted(matrices(base).items()):
        if module.rpartition(".")[2] in leaves:
            for letter, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                values = array.array("f", (generator.gauss(0, size) for _ in range(shape[0] * shape[1])))
                entries[f"{PREFIX}{module}.lora_{letter}.weight"] = "F32", shape, values.tobytes()
    return write(path, entries, r=rank, target_modules=list(leaves))
