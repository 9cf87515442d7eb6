"""Small models of linear layers in PyTorch, and the files that hold them."""

import json

import safetensors.torch
import torch
from checkpoints import shards


def load(directory):
    """Returns {name: tensor} of a model's files, by the safetensors package."""
    return {name: tensor for path in shards(directory) if not path.name.startswith("tessera-")
            for name, tensor in safetensors.torch.load_file(path).items()}


def config_of(directory):
    return json.loads((directory / "config.json").read_text())


def of_linear_layers(weights):
    """Makes a tree of modules with these linear layers: {module: weight}."""
    model = torch.nn.Module()
    for name, weight in weights.items():
        *path, leaf = name.split(".")
        parent = model
        for part in path:
            if part not in dict(parent.named_children()):
                parent.add_module(part, torch.nn.Module())
            parent = parent.get_submodule(part)
        layer = torch.nn.Linear(*reversed(weight.shape), bias=False, dtype=weight.dtype)
        layer.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
        parent.add_module(leaf, layer)
    return model


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(bytes_of(a), bytes_of(b))


def bytes_of(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def same_values(a, b):
    """Compares BF16 or FP32. Zeros may differ in sign."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def differing(a, b):
    """Returns the difference of two tensors that should be equal."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
    places = (bytes_of(a) != bytes_of(b)).nonzero()
    return f"{len(places)} of {bytes_of(a).numel()} bytes, first {places[:3].flatten().tolist()}"
