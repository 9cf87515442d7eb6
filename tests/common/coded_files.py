"""Writes and reads checkpoints with a few modules of coded weights (format_samples)."""

import json

import harness
import stored_oracle as stored


def write(directory, *modules, plain=()):
    """Writes these modules and unquantized tensors, with the configuration of the first module if it has one."""
    directory.mkdir()
    entries = dict(plain)
    for m in modules:
        entries |= m.tensors
    harness.write_safetensors(directory / "model.safetensors", entries, {"format": "pt"})
    stated = {} if modules[0].config is None else {"quantization_config": modules[0].config}
    config = {"model_type": "llama", "hidden_size": 0, **stated}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def tensors(dst):
    return stored.read_any(dst / "model.safetensors")


def module(dst, x):
    got = tensors(dst)
    return {name: array for name, array in got.items() if name.startswith(x + ".")}


def quantization(dst):
    return json.loads((dst / "config.json").read_text())["quantization_config"]
