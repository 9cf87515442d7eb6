"""Checks that the log lines quoted in docs/tutorial.md are in the installed sources of vLLM and SGLang. Nothing is imported."""

import importlib.metadata
import importlib.util
import pathlib
import re
import sys

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs/tutorial.md").read_text()
# For each package: the quoted line, the file that logs it, and its words there.
QUOTED = {
    "vllm": [("Initializing a V1 LLM engine", "v1/engine/core.py", "Initializing a V1 LLM engine"),
             ("quantization=fp8", "config/vllm.py", "quantization={self.model_config.quantization}"),
             ("Loading safetensors checkpoint shards: 100% Completed", "model_executor/model_loader/weight_utils.py",
              "Loading safetensors checkpoint shards"),
             ("Loading safetensors checkpoint shards: 100% Completed", "model_executor/model_loader/weight_utils.py", "% Completed")],
    "sglang": [("Detected fp8 checkpoint.", "srt/layers/quantization/fp8.py", "Detected fp8 checkpoint."),
               ("Load weight begin.", "srt/model_executor/model_runner.py", "Load weight begin."),
               ("Load weight end.", "srt/model_executor/model_runner.py", "Load weight end.")],
}


def main():
    wrong = 0
    for package, quotes in QUOTED.items():
        spec = importlib.util.find_spec(package)
        if spec is None:
            print(f"skipped: the words of {package}, which is not installed")
            continue
        version, told = importlib.metadata.version(package), re.search(rf"\b{package} ([0-9.]+\d)", PAGE, re.I)
        missing = [words for quote, file, words in quotes
                   if quote not in PAGE or words not in pathlib.Path(spec.submodule_search_locations[0], file).read_text()]
        if told is None or told.group(1) != version:
            missing.append(f"the version, {version}")
        print(f"{package} {version}: " + (f"docs/tutorial.md is wrong about {missing}" if missing else "says what docs/tutorial.md quotes"))
        wrong += bool(missing)
    return 1 if wrong else 0


sys.exit(main())
