"""Reads and writes tests/cli/policy_table.txt: the tensors of a small model of each family, and the decision for each."""

import json
import math
import pathlib
import re

TABLE = pathlib.Path(__file__).resolve().parent.parent / "cli/policy_table.txt"


def read_table():
    """{title: (options, config, [(action, shape, name, reason)])}; the file has an example of the format."""
    families = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("== "):
            title, options, config = re.fullmatch(r"== (.+?) \[(.*)\] (\{.*\})", line).groups()
            rows = []
            for one in title.split("|") if '"@"' in config else [title]:
                families[one] = options.split(), json.loads(config.replace('"@"', f'"{one}"')), rows
        elif line and not line.startswith("#"):
            action, shape, name, reason = re.fullmatch(r"(\w+) +(\S+) +(\S+) +\((.*)\)", line).groups()
            rows.append((action, tuple(map(int, shape.split("x"))), name, reason))
    return families


def write_holes(directory, config, tensors):
    """A checkpoint of BF16 zeros that takes no space."""
    directory.mkdir()
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + offset)
    (directory / "config.json").write_text(json.dumps(config))
    return directory
