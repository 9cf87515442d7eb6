"""AWQ of llm-compressor, with `oneshot` and its default search: 20 exponents for each set of layers with one input."""

from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.pipelines.cache import IntermediatesCache
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM


def quantized(source, arguments, tokens):
    """Returns the model of `source` in FP32 with weights scaled by AWQ. Its forward pass rounds them by `arguments`."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    text = DataLoader([{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in tokens])
    if not torch.cuda.is_available():
        IntermediatesCache.pin_memory = lambda *_: None  # 0.14 pins memory without a GPU too, and PyTorch then raises
    oneshot(model=model, dataset=text, num_calibration_samples=len(tokens),
            recipe=[AWQModifier(duo_scaling="both"),
                    QuantizationModifier(ignore=["lm_head"], config_groups={"all": {"targets": ["Linear"], "weights": arguments}})])
    return model
