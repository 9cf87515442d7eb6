"""llm-compressor's rounding, GPTQ and AWQ of a model, by `oneshot` with its default options.

By default, it sends all tokens through all experts of a layer when it measures inputs."""

from llmcompressor import oneshot
from llmcompressor.modeling.moe.linearize import load_quantizable_moe
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from loguru import logger
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

logger.disable("llmcompressor")  # lines for each layer


def load(source, device):
    """Returns a model in FP32, each projection of an expert as a linear layer."""
    with load_quantizable_moe():
        return AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval().to(device)


def recipe(method, arguments, observer):
    """Returns the modifiers of a method. All linear layers are quantized but the head and the router."""
    how = {"ignore": ["lm_head", "re:.*mlp.gate$"], "config_groups": {"all": {"targets": ["Linear"], "weights": {**arguments, "observer": observer}}}}
    if method == "GPTQ":
        return [GPTQModifier(**how)]
    return [*([AWQModifier(duo_scaling="both")] if method == "AWQ" else []), QuantizationModifier(**how)]


def quantized(model, modifiers, tokens):
    """Returns the model with scales, and weights by GPTQ or AWQ. Its forward pass rounds the weights."""
    if not torch.cuda.is_available():
        IntermediatesCache.pin_memory = lambda *_: None  # 0.14 pins memory without a GPU too, and PyTorch then raises
    text = DataLoader([{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in tokens.cpu()], batch_size=8)
    oneshot(model=model, dataset=text, num_calibration_samples=len(tokens), recipe=modifiers)
    return model
