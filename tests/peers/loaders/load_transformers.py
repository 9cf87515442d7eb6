"""The same for transformers (see load_vllm.py): from_pretrained on the CPU, dequantizing. Ranks do not matter to it."""

import json
import os

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import torch
import serve
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config


def load(path):
    with open(f"{path}/config.json") as file:
        method = json.load(file).get("quantization_config", {}).get("quant_method", "").lower()
    how = {"fp8": lambda: FineGrainedFP8Config(dequantize=True),
           "compressed-tensors": lambda: CompressedTensorsConfig(run_compressed=False)}.get(method)
    torch.manual_seed(hash(path) % 1000)  # what is not loaded is not the same twice
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, **({"quantization_config": how()} if how else {}))
    return {name: p.data.double() for name, p in model.state_dict().items() if p.is_floating_point()}


serve.main(lambda job, rank: load(job["plain"]), lambda job, rank: load(job["quantized"]), ranks=lambda job: 1)
