"""Small random models of each family, run by transformers in FP32: `tessera verify forward --reference` computes the same hidden
states and logits, layer by layer (tests/gpu/interop_forward.py)."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "gpu"))
import interop_forward


# The others are held to NumPy by tests/cli/verify/test_verify_forward.py.
NAMES = ["Qwen2, layers with a window", "Qwen2-MoE", "Mixtral", "GLM-4 MoE", "Gemma 2", "Gemma 3", "gpt-oss", "MiniMax-M3, as released", "Mistral 4, as released",
         *interop_forward.FAMILIES]


@pytest.mark.parametrize("name", NAMES)
def test_transformers_agrees(tessera, name, capsys):
    assert interop_forward.check(tessera, name, interop_forward.MODELS[name]()), capsys.readouterr().out
