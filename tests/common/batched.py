"""Runs many commands in one process of the tool, as jobs of a batch that is planned and run one job after the other.

With sanitizers, starting a process and its leak check take ten times as long as rejecting invalid input."""

import collections
import json
import os
import re

import harness


def run_batch(tool, commands, place, cpu=60):
    """Runs the commands as a batch in the folder `place`. Returns exit code and stderr of each command."""
    listed, told = os.path.join(place, "jobs.jsonl"), os.path.join(place, "told.json")
    with open(listed, "w") as file:
        for number, words in enumerate(commands):
            words = list(map(str, words))
            own = ["--memory", "2GiB"] if words[0] in ("quantize", "convert") else []  # so that none is read together with others
            print(json.dumps({"name": f"job{number}", "args": [words[0], *own, *words[1:]]}), file=file)
    code, _, stderr = harness.run(tool, ["batch", listed, "--keep-going", "--json", told, "--quiet"], cpu=cpu)
    said, last = collections.defaultdict(str), None
    for line in stderr.splitlines(True):
        speaker = re.match(r"tessera: (job\d+): ", line)
        last = speaker[1] if speaker else last  # a second line of a message belongs to who began it
        said[last] += line.replace(f"{last}: ", "", 1) if speaker else line
    if code not in range(5) or None in said:
        raise RuntimeError(f"a batch of {len(commands)} commands: exit code {code}: {stderr}")
    with open(told) as file:
        ended = json.load(file)["jobs"]
    if [job["name"] for job in ended] != [f"job{number}" for number in range(len(commands))]:
        raise RuntimeError(f"of {len(commands)} commands {len(ended)} ended")
    return [(job["code"], said[job["name"]]) for job in ended]
