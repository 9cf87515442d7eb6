"""Lists the cases of the robustness tests: each conversion of jobs.py, and every other command with its inputs."""

import collections
import json
import os
import pathlib
import re
import shutil
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness
import jobs

# A command: its words, with SRC, DST (what it makes, or None), RESULTS (a fresh folder for its reports) and names of `places` in them.
# `begins`: the place that DST is a copy of when it begins. It runs with --json - and is judged by what it tells where `tells`. `makes_output`:
# DST becomes what the command is for.
Case = collections.namedtuple("Case", "name words places writes begins tells makes_output", defaults=[{}, True, None, False, True])

SMALL = {"8MB": "1MB", "4MB": "400kB"}
KINDS = {"deepseek-v3": ("deepseek-v3", "tiny"), "deepseek-v3-small": ("deepseek-v3", "half")}

# Begins from nothing, and writes DST.
WRITING = [
    ("convert, compared with an original", "convert FP8 -o DST --to fp8-block --scale-fmt ue8m0 --against SRC"),
    ("quantize, limits and reports", "quantize SRC -o DST --min-sqnr 20 --json RESULTS/a.json --junit RESULTS/a.xml --progress-file RESULTS/progress"),
    ("a shard", "quantize SRC -o DST --max-shard-size 1MB --shard 0/2"),
    ("quantize, hard links", "quantize SRC -o DST --max-shard-size 1MB --link hard"),
    ("quantize, reflinks", "quantize SRC -o DST --max-shard-size 1MB --link reflink"),
    ("convert, hard links of shards", "convert MIXED -o DST --to safetensors --link hard"),
    ("convert, reflinks of shards", "convert MIXED -o DST --to safetensors --link reflink"),
    ("batch", "batch JOBS --json RESULTS/batch.json"),
    ("batch, results of each", "batch JOBS --results RESULTS --keep-going"),
    ("fold", "fold LLAMA -o DST --importance MEANS"),
    ("quantize, proven", "quantize LLAMA -o DST --scheme int4-weight-only --importance MEANS --prove TOKENS --device cpu"),
    ("report", "report JSON JSON2 --markdown RESULTS/a.md --csv RESULTS/a.csv --junit RESULTS/a.xml --json RESULTS/a.json"),
]
# Begins from a place, and changes or completes it.
CHANGING = [
    ("finish", "finish DST", "SHARDS"),
    ("finish again", "finish DST", "FINISHED"),
    ("quantize, complete already", "quantize SRC -o DST --max-shard-size 1MB", "FP8"),
    ("quantize, repair", "quantize SRC -o DST --max-shard-size 1MB", "HALF"),
    ("quantize, other options", "quantize SRC -o DST --max-shard-size 1MB --scale-fmt ue8m0 --force", "FP8"),
    ("quantize over links", "quantize SRC -o DST --max-shard-size 1MB --force", "LINKED"),
    ("quantize, links again", "quantize SRC -o DST --max-shard-size 1MB --link hard --force", "LINKED"),
    ("convert over another", "convert SRC -o DST --to tp --tp 2 --force", "FP8"),
]
# Refused from the beginning, and what is there stays as it is, whatever fails on the way.
REFUSED = [
    ("an output inside its source", "quantize DST -o DST/out", "SRC"),
    ("an output around its source", "quantize DST/part -o DST", "WITHIN"),
    ("a report over its source", "inspect DST --json DST/config.json", "SRC"),
    ("finish what is not complete", "finish DST", "UNFINISHED"),
    ("a foreign output", "quantize SRC -o DST", "INT8"),
]
TELLING = [
    "inspect FP8", "inspect FP8 --can-load all --tp 1,2", "inspect FP8:lm_head.weight", "inspect PACKED", "quantize SRC -o ABSENT --dry-run",
    "verify FP8 --against SRC", "verify INT4 --against SRC", "verify PACKED --against SRC", "verify gemm FP8 --against SRC --device cpu --sample 1",
    "verify dequant INT4 --device cpu --sample 1", "verify epilogue INT8 --against SRC --device cpu --sample 1",
    "verify mla FP8 --layer 0 --against SRC --device cpu", "verify forward FP8 --against SRC --count 2",
    "verify all FP8 --against SRC --device cpu --sample 1 --count 2", "verify --manifest FP8", "verify --manifest FP8 --source SRC", "verify --manifest FP8 --source PACKED",
    "diff SRC FP8", "diff SRC PACKED", "compare-schemes SRC --sample 2",
    "plan-schemes SRC --bits 9", "batch JOBS --dry-run", "report JSON", "verify forward INT4 --against SRC --devices 3 --device cpu",
    "verify gemm FP8 --device cpu --tp 2 --tensors *.o_proj.weight --sample 1 --columns 128 --tokens 4",
    "sensitivities LLAMA --against LLAMA4 --tokens TOKENS --device cpu -o RESULTS/measured.json",
]


def table_cases(options, work, table):
    """Yields the conversions, each with its source, which exists until the next one is requested."""
    for job, source in jobs.with_sources(options, table, work / "source", lambda job: KINDS.get(job.kind, (job.kind, None)), SMALL):
        yield Case(job.name, jobs.words(jobs.shortened(job.command, SMALL), source, "DST"))


def _run(options, *args):
    code, stdout, stderr = harness.run(options.tessera, args)
    if code not in (0, 1):
        raise RuntimeError(f"{' '.join(map(str, args))}: exit {code}: {stderr}")
    return stdout


def make_places(options, work):
    """Makes the inputs of the other commands."""
    places = {word: work / word.lower() for word in ("SRC", "FP8", "INT4", "INT8", "PACKED", "SHARDS", "FINISHED", "UNFINISHED", "HALF", "JSON", "JSON2", "WITHIN", "MIXED", "LINKED",
                                                      "JOBS", "ABSENT", "LLAMA", "LLAMA4", "MEANS", "TOKENS")}
    harness.make_checkpoint(options.make, "deepseek-v3", places["SRC"], scale="tiny")
    cut = ["--max-shard-size", "1MB", "--quiet"]
    _run(options, "quantize", places["SRC"], "-o", places["FP8"], *cut, "--json", places["JSON"])
    _run(options, "quantize", places["SRC"], "-o", places["INT4"], "--scheme", "int4-weight-only", "--quiet")
    _run(options, "quantize", places["SRC"], "-o", places["INT8"], "--scheme", "int8-channel", "--quiet")
    _run(options, "convert", places["SRC"], "-o", places["PACKED"], "--to", "archive", "--level", "1", "--quiet")
    _run(options, "verify", places["FP8"], "--against", places["SRC"], "--json", places["JSON2"], "--quiet")
    for shard in "0/2", "1/2":
        _run(options, "quantize", places["SRC"], "-o", places["SHARDS"], *cut, "--shard", shard)
    shutil.copytree(places["SHARDS"], places["FINISHED"])
    _run(options, "finish", places["FINISHED"])
    _run(options, "quantize", places["SRC"], "-o", places["UNFINISHED"], *cut, "--shard", "0/2")
    shutil.copytree(places["FP8"], places["HALF"])
    (places["HALF"] / "model-00002-of-00004.safetensors").unlink()
    shutil.copytree(places["SRC"], places["MIXED"])
    shard = sorted(places["MIXED"].glob("*.safetensors"))[1].name
    (places["MIXED"] / shard).unlink()
    shutil.copy(places["PACKED"] / f"{shard}.zst", places["MIXED"])
    _run(options, "quantize", places["SRC"], "-o", places["LINKED"], *cut, "--link", "hard")
    places["MEANS"] = places["MEANS"].with_suffix(".json")
    harness.make_checkpoint(options.make, "llama", places["LLAMA"])
    _run(options, "quantize", places["LLAMA"], "-o", places["LLAMA4"], "--scheme", "int4-weight-only", "--quiet")
    places["MEANS"].write_text(json.dumps({f"model.layers.0.self_attn.{n}_proj": {"input_mean_square": list(range(1, 257))} for n in "qkv"}))
    places["TOKENS"].write_text("1 2 3 4")
    places["WITHIN"].mkdir()
    shutil.copytree(places["SRC"], places["WITHIN"] / "part")
    rows = {"fp8": "quantize SRC -o DST/fp8", "int8": "quantize SRC -o DST/int8 --scheme int8-channel",
            "diff": "diff SRC DST/fp8 --metric sqnr --tolerance 20"}
    places["JOBS"].write_text("".join(json.dumps({"name": name, "args": [place_of(word, {**places, "DST": work / "out"}) for word in row.split()]}) + "\n"
                                      for name, row in rows.items()))
    return places


def place_of(word, places):
    """Replaces the name of a place at the beginning of a word, or after a colon, by its path."""
    match = re.match(r"([A-Z][A-Z0-9]+)(?=$|[/:])", word)
    return str(places[match[1]]) + word[match.end():] if match and match[1] in places else word


def other_cases(options, work):
    """Returns the other commands."""
    places = make_places(options, work)
    for name, command in WRITING:
        yield Case(name, command.split(), places, makes_output=not command.startswith("report"))
    for name, command, begins in CHANGING:
        yield Case(name, command.split(), places, begins=begins)
    for name, command, begins in REFUSED:
        yield Case(name, command.split(), places, begins=begins, makes_output=False)
    for command in TELLING:
        yield Case(command, command.split(), places, writes=False, tells=True, makes_output=False)


def copy_or_link(source, target):
    """Copies a file. A file with several names gets another name instead."""
    return os.link(source, target) if os.stat(source).st_nlink > 1 else shutil.copy2(source, target)


def lay_out(case, out, results):
    """Creates the state in which the command starts."""
    for folder in out, results:
        shutil.rmtree(folder, ignore_errors=True)
    results.mkdir()
    if case.begins is not None:
        shutil.copytree(case.places[case.begins], out, copy_function=copy_or_link)
