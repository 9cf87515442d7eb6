"""Tests checkpoints with very many tensors: time and memory grow linearly.

Ten times as many tensors may take at most twenty times the CPU time, and a fixed memory per tensor. A sample compares
2,000 with 20,000 tensors; --all goes to a million."""

import json
import os
import resource
import shutil
import subprocess

import harness

COMMANDS = ["inspect SRC", "inspect SRC --can-load all", "quantize SRC -o DST --dry-run",
            "quantize SRC -o DST --quiet --memory 8GB --max-shard-size 20MB", "convert SRC -o OTHER --to archive --quiet",
            "verify DST --against SRC --quiet", "verify --manifest DST --quiet", "diff SRC DST --quiet"]
# Share of the smaller checkpoint; the cost of a start is not growth.
LEAST_SECONDS = 0.05
GROWTH = 20         # of CPU time, for ten times as many tensors
BYTES_EACH = 4096   # of memory, of one tensor, at most
A_SHARD = 50000


def make(folder, count):
    """Makes `count` tensors: experts of some layers, a matrix of 16 x 16 in two of three, otherwise one number."""
    folder.mkdir(parents=True)
    names, shards = {}, -(-count // A_SHARD)
    for shard in range(shards):
        shapes = {}
        for i in range(shard * A_SHARD, min(count, (shard + 1) * A_SHARD)):
            name = f"model.layers.{i % 61}.mlp.experts.{i // 61}.{('up_proj', 'down_proj', 'norm')[i % 3]}.weight"
            shapes[name] = [1] if i % 3 == 2 else [16, 16]
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        harness.write_safetensors(folder / file, harness.bf16_holes(shapes))
        names.update(dict.fromkeys(shapes, file))
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_moe", "num_hidden_layers": 61, "hidden_size": 16}))


def check_header(checks, tool, work):
    """An output's header may be as long as readers accept. A plan that needs a longer one is rejected."""
    source, name = work / "long", "n" * 60000
    source.mkdir()
    shapes = {f"model.layers.{i}.mlp.{name}.up_proj.weight": [16, 16] for i in range(1000)}
    harness.write_safetensors(source / "model.safetensors", harness.bf16_holes(shapes))
    (source / "config.json").write_text('{"model_type": "llama"}')
    code, _, _, said = measured(tool, ["quantize", str(source), "-o", str(work / "never")])
    checks.check("a header above the format's limit: refused", code == 2 and "--max-shard-size" in said and not (work / "never").exists(), f"{code}: {said[-300:]}")
    shutil.rmtree(source)


def measured(tool, words):
    """Returns (exit code, seconds of CPU, bytes of memory, messages) of a run."""
    process = subprocess.Popen([tool, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    resource.prlimit(process.pid, resource.RLIMIT_CPU, (900, 901))
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    return process.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, said.decode(errors="replace")


def check(checks, options, work):
    counts = [2000, 20000] + ([200000, 1000000] if options.all else [])
    before = {}
    tool = os.path.abspath(options.tessera)
    for step, count in enumerate(counts):
        places = {word: work / f"{word.lower()}{count}" for word in ("SRC", "DST", "OTHER")}
        make(places["SRC"], count)
        for command in COMMANDS:
            code, seconds, memory, said = measured(tool, [str(places.get(word, word)) for word in command.split()])
            name = f"{command}, {count} tensors"
            checks.check(f"{name}: ends", code in (0, 1), f"exit {code}: {said[-300:]}")
            checks.check(f"{name}: memory", memory < (64 << 20) + BYTES_EACH * count, f"{memory >> 20} MiB")
            if step > 0:
                ratio = seconds / max(LEAST_SECONDS, before[command])
                allowed = GROWTH * count / counts[step - 1] / 10
                checks.check(f"{name}: grows with their number", ratio < allowed, f"{seconds:.2f} s after {before[command]:.2f} s for {counts[step - 1]}")
            if options.all or not checks.failed:
                print(f"  {name}: {seconds:.2f} s of CPU, {memory >> 20} MiB")
            before[command] = seconds
        for place in places.values():
            shutil.rmtree(place, ignore_errors=True)
    check_header(checks, tool, work)  # last: what this process takes for it would count as the tool's
    print(f"{len(COMMANDS)} commands on checkpoints of {', '.join(map(str, counts))} tensors")
