"""Writes checkpoints of NumPy arrays, as single files or directories with a configuration, and reads them."""

import json
from pathlib import Path

import harness
import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save_file

KINDS = ["deepseek-v3", "llama", "qwen3-moe", "fused-experts"]
SOURCES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F32": np.float32}
DTYPES = {**SOURCES, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
          "F8_E8M0": ml_dtypes.float8_e8m0fnu, "F64": np.float64, "I64": np.int64, "I32": np.int32, "I8": np.int8,
          "U8": np.uint8, "BOOL": np.bool_}
NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
WIDTHS = {name: np.dtype(dtype).itemsize for name, dtype in DTYPES.items()}
BF16, E4M3, E8M0 = (DTYPES[name] for name in ("BF16", "F8_E4M3", "F8_E8M0"))
REPORT, BLOCKS, INDEX = "quantization_report.json", "quantization_blocks.zst", "model.safetensors.index.json"
DEEPSEEK = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
# --include that quantizes experts stacked in tensors of rank 3, which stay as they are for a model_type of no table.
STACKS = {"fused-experts": ("--include", "*.mlp.experts.*_proj")}
FP8_CONFIG = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}


def shards(directory):
    return sorted(Path(directory).glob("*.safetensors"))


def read(path):
    """Returns {name: array} of one file, read by the safetensors package."""
    return {name: np.frombuffer(entry["data"], DTYPES[entry["dtype"]]).reshape(entry["shape"])
            for name, entry in safetensors.deserialize(Path(path).read_bytes())}


def load(directory):
    """Returns {name: array} of all files of a directory."""
    return {name: array for path in shards(directory) for name, array in read(path).items()}


def split(tensors, suffix="_scale_inv"):
    """Returns (scales by weight name, all other tensors)."""
    scales = {name.removesuffix(suffix): value for name, value in tensors.items() if name.endswith(suffix)}
    return scales, {name: value for name, value in tensors.items() if not name.endswith(suffix)}


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def save(directory, tensors, config=None):
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    return directory


def llama_config(hidden_size, layers=1, heads=1, **more):
    """Returns the keys of a Llama's config.json that all loaders require."""
    return {"architectures": ["LlamaForCausalLM"], "hidden_size": hidden_size, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": heads, **more}


def llama_ends(hidden_size):
    """Returns the tensors outside the layers that all loaders require for a Llama."""
    return {"model.embed_tokens.weight": random_weight((64, hidden_size), 98).astype(BF16), "model.norm.weight": np.ones(hidden_size, BF16)}


def make(directory, files, quantization=DEEPSEEK, **config):
    """Writes a directory with these files ({tensor: array} each), and an index if there are several."""
    directory.mkdir()
    for number, (name, tensors) in enumerate(files.items()):
        entries = {n: (NAMES[t.dtype], t.shape, t.tobytes()) for n, t in tensors.items()}
        harness.write_safetensors(directory / name, entries, {"format": "pt"})
    if len(files) > 1:
        index = {n: file for file, tensors in files.items() for n in tensors}
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    if quantization is not None:
        config["quantization_config"] = quantization
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", "torch_dtype": "bfloat16", **config}))
    return directory


def write(directory, tensors, config=None):
    """Writes a directory with one file and, if none is given, an empty configuration."""
    directory.mkdir()
    harness.write_safetensors(directory / "model.safetensors",
                              {name: (NAMES[x.dtype], x.shape, x.tobytes()) for name, x in tensors.items()})
    (directory / "config.json").write_text(json.dumps(config or {}))
    return directory


def random_weight(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32) * np.float32(0.02)
