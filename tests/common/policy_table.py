"""Reads and writes tests/cli/policy_table.txt: the tensors of a small model of each family, and the decision for each."""

import itertools
import json
import pathlib
import re

import harness

TABLE = pathlib.Path(__file__).resolve().parent.parent / "cli/policy_table.txt"


def expand(name):
    """The names that a name with alternatives in braces means, as in a shell: x.{0,1}.{k,v} is x.0.k, x.0.v, x.1.k and x.1.v."""
    parts = re.split(r"\{(.*?)\}", name)  # text and alternatives by turns
    return ["".join(words) for words in itertools.product(*(part.split(",") if i % 2 else [part] for i, part in enumerate(parts)))]


def read_table():
    """Returns {title: (options, config, [(action, shape, name, reason)])}. The file has an example of the format."""
    families = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("== "):
            title, options, config = re.fullmatch(r"== (.+?) \[(.*)\] (\{.*\})", line).groups()
            rows = []
            for one in title.split("|") if '"@"' in config else [title]:
                families[one] = options.split(), json.loads(config.replace('"@"', f'"{one}"')), rows
        elif line and not line.startswith("#"):
            action, shape, name, reason = re.fullmatch(r"(\w+) +(\S+) +(\S+) +\((.*)\)", line).groups()
            rows.extend((action, tuple(map(int, shape.split("x"))), one, reason) for one in expand(name))
    return families


def write_holes(directory, config, tensors):
    """Writes a checkpoint of BF16 zeros as a sparse file."""
    directory.mkdir()
    harness.write_safetensors(directory / "model.safetensors", harness.bf16_holes(tensors))
    (directory / "config.json").write_text(json.dumps(config))
    return directory
