"""The names of other tools that docs/coming-from.md has are names that these tools have."""

import importlib.util
import pathlib
import re

from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs/coming-from.md").read_text()


def section(heading):
    return re.search(rf"^## {heading}$(.*?)^## ", PAGE, re.M | re.S).group(1)


def test_schemes_of_llm_compressor():
    named = set(re.findall(r'"([A-Z][A-Z0-9_]+)"', section("llm-compressor")))
    assert len(named) > 8 and named <= set(PRESET_SCHEMES), named - set(PRESET_SCHEMES)


def test_formats_of_modelopt():
    presets = pathlib.Path(importlib.util.find_spec("modelopt_recipes").submodule_search_locations[0], "configs/ptq/presets/model")
    named = set(re.findall(r"^\| `(\w+)`", section("NVIDIA ModelOpt"), re.M))
    assert len(named) == 5 and named <= {path.stem for path in presets.glob("*.yaml")}, named
