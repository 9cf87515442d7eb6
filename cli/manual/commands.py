"""Reads the commands of a built tessera from `tessera help --json`, and finds the completions of each value."""

import collections
import json
import re
import subprocess

Command = collections.namedtuple("Command", "name summary usage body options checks")
Option = collections.namedtuple("Option", "name argument repeats choices several offer help topic")

# Words in capitals that name files. A shell offers nothing for numbers, sizes and names.
FILES = {"FILE", "FILE|random", "DST", "SRC", "ORIGINAL", "DIR", "OLD.json"}
TENSORS = {"GLOB"}
# Options whose values are words, or lists of words, that another place than the table of options checks.
WORDS = {
    ("inspect", "--can-load"): ["vllm", "sglang", "transformers", "deepseek", "trtllm", "all"],
    ("verify forward", "--activations"): ["auto", "none", "fp8-block", "fp8-token", "int8-token", "int8-azp"],
}
LISTS = {("inspect", "--can-load"), ("plan-schemes", "--schemes")}


def read(tool):
    """(version, exit codes, commands) of the tool at this path."""
    said = json.loads(subprocess.run([tool, "help", "--json"], check=True, capture_output=True, text=True).stdout)
    schemes = next(o["choices"] for c in said["commands"] if c["name"] == "quantize" for o in c["options"] if o["name"] == "--scheme")
    names = [command["name"] for command in said["commands"]]
    made = []
    for command in said["commands"]:
        usage, _, body = command["text"].partition("\n\n")
        name = command["name"]
        checks = [other.split()[1] for other in names if other.startswith(f"{name} ")]
        made.append(Command(name, command["summary"] if " " not in name else summary(body), usage.splitlines(),
                            re.sub(r"\n*Options:\n$", "", body), [option(name, o, schemes) for o in command["options"]], checks))
    return said["version"], said["exit_codes"], made


def summary(body):
    """The first sentence of a text."""
    first = re.match(r"(.+?)(?:\.\s|\.$| \(|: |,)", body.replace("\n", " ")).group(1)
    return first[0].lower() + first[1:]


def option(command, said, schemes):
    argument = said["argument"]
    words = said.get("choices") or WORDS.get((command, said["name"]), [])
    if (command, said["name"]) == ("plan-schemes", "--schemes"):
        words = [word for word in [*schemes, "bf16"] if word in re.findall(r"[a-z][a-z0-9-]+", said["help"])]
    elif argument and "|" in argument and argument.islower():
        words = argument.split("|")
    offer = "words" if words else "files" if argument in FILES or said["name"] == "--ignore-file" else "tensors" if argument in TENSORS else None
    return Option(said["name"], argument, said["kind"] == "list", words, (command, said["name"]) in LISTS, offer, said["help"], said["topic"])
