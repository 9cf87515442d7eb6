"""A sample of ./dev families: classes of transformers whose layers, stacks or conversions differ from Llama's."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "families"))
from check_families import LIMITS, describe, is_bad, judge_type

# A model type, and the verdict of `inspect --can-load transformers` for each scheme; "yes" where none is given.
SAMPLE = {
    "qwen3_moe": {"nvfp4-weight-only": "no"},  # experts without global scales
    "gpt_oss": dict.fromkeys(LIMITS, "no") | {"mxfp4-weight-only": "yes"},  # stacks, [experts, in, out]
    "t5": dict.fromkeys(LIMITS, "no") | dict.fromkeys(("fp8-block", "fp8-channel"), "yes"),  # initialization reads weights
    "bert": {}, "falcon_h1": {},
    "rt_detr": dict.fromkeys(LIMITS, "no") | {"fp8-block": "yes"},  # a conversion that fails for scales
    "lara_mini": dict.fromkeys(LIMITS, "no"),  # a conversion that loads codes as values without an error
    "blt": dict.fromkeys(LIMITS, "no") | dict.fromkeys(("fp8-block", "fp8-channel"), "yes"),  # initialization reads weights
    "deepseek_ocr2": dict.fromkeys(LIMITS, "no") | {"fp8-block": "yes"},  # layers of the class have other names
    "eomt": dict.fromkeys(LIMITS, "no") | {"fp8-block": "yes"},  # queries that are an embedding
    "ultravbert": {},  # the text model's class has other names, this one has those of the file
    "imagegpt": dict.fromkeys(LIMITS, "refused"),  # Conv1D
}


@pytest.mark.parametrize("model_type", SAMPLE)
def test_class(model_type, tessera, tmp_path):
    """The layers, the verdict and each loaded parameter of a tiny model agree with the class."""
    records = judge_type(os.fspath(tessera), list(LIMITS), tmp_path, model_type)
    assert "" not in records, records
    for scheme, record in records.items():
        assert not is_bad(record), f"{scheme}: {record['verdict']}; {describe(record)}"
        assert record["verdict"] == SAMPLE[model_type].get(scheme, "yes"), f"{scheme}: {describe(record)}"
