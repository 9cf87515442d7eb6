"""Tests that quantize and verify can read the output of tools/capture_activations.py.

Small NumPy modules replace torch and transformers: the tool only needs minima, maxima and the first rows."""

import json
import os
import pathlib
import subprocess
import sys

from checkpoints import BF16, make, random_weight, read
import harness
import numpy as np
import pytest

SCRIPT = pathlib.Path(__file__).parents[3] / "tools" / "capture_activations.py"

LAYER = "model.layers.0."
MODULES = [LAYER + f"self_attn.{n}_proj" for n in "qkvo"] + [LAYER + f"mlp.{n}_proj" for n in ("gate", "up", "down")]
O = MODULES[3]

TORCH = """
import contextlib, types
import numpy as np


class Tensor(np.ndarray):
    numel = lambda self: self.size
    def to(self, device, copy=False): return self.copy()

def tensor(x): return np.asarray(x, np.float32).view(Tensor)
def cat(parts): return np.concatenate(parts)
no_grad = contextlib.nullcontext

class Linear:
    hook = None
    def register_forward_pre_hook(self, hook, with_kwargs):
        self.hook = hook if with_kwargs else None
    def __call__(self, *args, **kwargs): self.hook(self, args, kwargs)

nn = types.SimpleNamespace(Linear=Linear)
"""

TRANSFORMERS = """
import json, os, types
import torch

__version__ = os.environ["STANDS_FOR"]

class Tokens(dict):
    def to(self, device): return self

class AutoTokenizer:
    def from_pretrained(path):
        return lambda text, return_tensors, truncation, max_length: Tokens(x=[float(w) for w in text.split()][:max_length])

class Model:
    device = "cpu"
    def __init__(self, path):
        self.names = json.load(open(path + "/modules.json"))
        self.layers = {name: torch.Linear() for name in self.names}
    def named_modules(self): return [("", self), ("norm", object()), *self.layers.items()]
    def named_parameters(self): return [("mlp.experts.gate_up_proj", types.SimpleNamespace(ndim=3))]
    def eval(self): pass
    def to(self, device): assert device == "cpu"
    def __call__(self, x, use_cache):
        for i, (name, layer) in enumerate(self.layers.items()):
            rows = torch.tensor([[v * (i + 1)] * 32 for v in x]).reshape(1, -1, 32)
            if name == "model.layers.9.mlp.experts.0.up_proj":
                layer(rows[:, :0])
            elif i % 2:
                layer(input=rows)
            else:
                layer(rows)

class AutoModelForCausalLM:
    def from_pretrained(path, **options):
        assert options == {"dtype" if int(__version__.split(".")[0]) >= 5 else "torch_dtype": "auto"}
        return Model(path)
"""

SAVE = """
import numpy as np
from safetensors.numpy import save_file as save
def save_file(tensors, path): save({n: np.array(x) for n, x in tensors.items()}, path)
"""


@pytest.fixture
def source(tmp_path):
    return make(tmp_path / "src", {"model.safetensors": {m + ".weight": random_weight((16, 32), i).astype(BF16)
                                                         for i, m in enumerate(MODULES)}}, quantization=None)


def capture(tmp_path, source, text, *options, names=MODULES, version="5.17.0"):
    stands_in = tmp_path / "stands-in"
    stands_in.mkdir(exist_ok=True)
    (stands_in / "torch.py").write_text(TORCH)
    (stands_in / "transformers.py").write_text(TRANSFORMERS)
    (stands_in / "torch_of_safetensors.py").write_text(SAVE)
    (stands_in / "sitecustomize.py").write_text(
        "import sys, torch_of_safetensors\nsys.modules['safetensors.torch'] = torch_of_safetensors\n")
    (source / "modules.json").write_text(json.dumps(names))
    (tmp_path / "text").write_text(text)
    return subprocess.run([sys.executable, SCRIPT, source, "--text", tmp_path / "text", "-o", tmp_path / "ranges.json", *options],
                          env=os.environ | {"PYTHONPATH": str(stands_in), "STANDS_FOR": version}, capture_output=True, text=True)


@pytest.mark.parametrize("version", ["4.57.1", "5.17.0"])
def test_ranges_are_what_quantize_reads(tmp_path, source, quantize, version):
    done = capture(tmp_path, source, "0.5 -1.5 2\n\n0.25 -3\n", version=version)
    assert done.returncode == 0, done.stderr
    ranges = json.loads((tmp_path / "ranges.json").read_text())
    assert ranges == {m: {"min": -3.0 * (i + 1), "max": 2.0 * (i + 1)} for i, m in enumerate(MODULES)}
    assert f"{len(MODULES)} of {len(MODULES)} linear layers" in done.stdout and "gate_up_proj" in done.stdout
    dst = quantize(source, "--scheme", "int8-channel", "--activations", tmp_path / "ranges.json")
    got = read(dst / "model.safetensors")
    assert got[O + ".input_scale"][0] == np.float32(-ranges[O]["min"]) / np.float32(127.5)


def test_inputs_are_what_verify_reads(tmp_path, source, quantize, tessera):
    inputs = tmp_path / "inputs.safetensors"
    done = capture(tmp_path, source, "0.5 -1.5 2\n0.25 -3\n", "--inputs", inputs, "--rows", "4", "--samples", "2")
    assert done.returncode == 0, done.stderr
    kept = read(inputs)
    assert kept.keys() == {m + ".input" for m in MODULES} and kept[MODULES[0] + ".input"][:, 0].tolist() == [0.5, -1.5, 2, 0.25]
    dst = quantize(source, "--scheme", "int8-channel", "--activations", tmp_path / "ranges.json")
    harness.succeed(tessera, ["verify", "epilogue", dst, "--activations", inputs, "--device", "cpu"])


def test_what_no_token_reached_is_named(tmp_path, source):
    unseen = "model.layers.9.mlp.experts.0.up_proj"
    done = capture(tmp_path, source, "1 2\n", names=[*MODULES, unseen])
    assert done.returncode == 0 and f"no token reached {unseen}" in done.stdout
    assert unseen not in json.loads((tmp_path / "ranges.json").read_text())


@pytest.mark.parametrize("text, words", [("\n \n", "no line with text"), ("1 nan\n", "NaN or Inf")])
def test_refusals(tmp_path, source, text, words):
    done = capture(tmp_path, source, text)
    assert done.returncode == 1 and words in done.stderr and not (tmp_path / "ranges.json").exists()
