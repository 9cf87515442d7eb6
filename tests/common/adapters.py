"""Writes LoRA adapters in PEFT's format."""

import json

from checkpoints import header, NAMES, shards
import harness
import numpy as np

PREFIX = "base_model.model."
CONFIG = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base", "r": 4, "lora_alpha": 8, "lora_dropout": 0.05,
          "bias": "none", "use_rslora": False, "use_dora": False, "fan_in_fan_out": False, "init_lora_weights": True, "inference_mode": True,
          "modules_to_save": None, "layers_to_transform": None, "layers_pattern": None, "rank_pattern": {}, "alpha_pattern": {},
          "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], "target_parameters": None,
          "loftq_config": {}, "eva_config": None, "megatron_config": None, "megatron_core": "megatron.core", "layer_replication": None,
          "runtime_config": {"ephemeral_gpu_offload": False}, "lora_bias": False, "exclude_modules": None, "peft_version": "0.21.2"}


def factors(out, columns, rank=4, seed=1, size=0.02, dtype=np.float32):
    """A and B of one module."""
    random = np.random.default_rng(seed)
    return [(random.standard_normal(shape) * size).astype(dtype) for shape in ((rank, columns), (out, rank))]


def write(path, pairs, tensors=None, **config):
    """Writes an adapter with these pairs of A and B by module, and more tensors by their whole names. Returns the path."""
    path.mkdir(parents=True)
    named = {f"{PREFIX}{module}.lora_{letter}.weight": x for module, pair in pairs.items() for letter, x in zip("AB", pair)}
    entries = {name: (NAMES[x.dtype], x.shape, x.tobytes()) for name, x in {**named, **(tensors or {})}.items()}
    harness.write_safetensors(path / "adapter_model.safetensors", entries, {"format": "pt"})
    (path / "adapter_config.json").write_text(json.dumps({key: value for key, value in {**CONFIG, **config}.items() if value != "absent"}))
    return path


def for_base(path, base, leaves=("o_proj", "down_proj"), rank=4, size=0.02):
    """Writes an adapter for all matrices of the base with these names. Returns the path."""
    shapes = {name: entry["shape"] for file in shards(base) for name, entry in header(file)[1].items() if name != "__metadata__"}
    pairs = {name.removesuffix(".weight"): factors(*shape, rank, seed, size) for seed, (name, shape) in enumerate(sorted(shapes.items()))
             if len(shape) == 2 and name.split(".")[-2] in leaves and name.endswith(".weight")}
    return write(path, pairs, r=rank, target_modules=list(leaves))
