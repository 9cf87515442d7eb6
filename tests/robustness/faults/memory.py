#!/usr/bin/env python3
"""Tests --memory in all jobs, and the time and memory of planning.

One job has 1.5 GB or 25,000 tensors with a limit of 128 MiB. The others have three eighths of that, or five eighths
to read an archive. A plan of 200,000 tensors may cost eight times that of 25,000.
"""

import array
import collections
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import deepseek_v3
import harness
import jobs
import remade
import turns

MIB = 1 << 20
# A run may take `memory` plus `slack`: program, libraries, stacks, and the kernel's rounding. A giant tensor
# made of codes that Python writes, in its own memory, has the bytes of `remade`. What grows with bytes or tensors is found at
# each size alike; what a run takes at any size weighs more in the part.
Size = collections.namedtuple("Size", "memory slack giant remade many")  # MiB, MiB, bytes, bytes, tensors
WHOLE = Size(128, 32, "1500M", "300M", 25000)
PART = Size(48, 10, "553M", "108M", 9000)
TOGETHER = PART._replace(memory=80)  # four jobs of one source: what each holds of its step, in each lane
ARCHIVED = Size(80, 16, "922M", "180M", 15000)  # to unpack one takes 75 MiB, whatever is in it
# The CPU's time, which other work on the machine does not lengthen much: each tensor costs the same, however many there are.
# The cost of one tensor has a generous bound: 200,000 take one to three seconds on the machines tried so far.
PLANNED = (25000, 200000)
GROWTH = 2.5
CPU_SECONDS = 10
# The bound for jobs over real names and shapes, as a multiple of the time of json.loads() for the same headers, measured beside each.
# 8 to 21 when this was written; plans for ranks, which may take twice the bound, 17 to 28.
PARSINGS = 32
PLANNED_BYTES = 3000  # of a tensor; 1,280 when this was written
# A model for passes over tokens: a dense layer, and one of 32 experts. The Hessian of o_proj's input takes 134 MB in double.
PASSED = deepseek_v3.DEEPSEEK_V3 | {
    "hidden_size": 1024, "intermediate_size": 3072, "moe_intermediate_size": 512, "num_hidden_layers": 2, "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0, "num_attention_heads": 32, "num_key_value_heads": 32, "n_routed_experts": 32, "q_lora_rank": 256,
    "kv_lora_rank": 128, "vocab_size": 8192}
LAYER = deepseek_v3.DEEPSEEK_V3 | {"num_hidden_layers": 1, "first_k_dense_replace": 0, "num_nextn_predict_layers": 0}
PASS_SLACK = 24  # MiB: program, libraries, stacks


def run_measured(tool, args, stderr_path):
    """Returns (exit code, peak resident bytes, seconds of CPU, stderr)."""
    with open(stderr_path, "w+b") as stderr:
        process = subprocess.Popen([tool, *args], stdout=subprocess.DEVNULL, stderr=stderr)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = usage.ru_utime + usage.ru_stime
        process.returncode = os.waitstatus_to_exitcode(status)
        stderr.seek(0)
        return process.returncode, usage.ru_maxrss * 1024, seconds, stderr.read().decode(errors="replace")


def check_memory(checks, options, job, kind, size, source, work, io):
    name = f"{job.name}, {kind}, {size.memory} MiB, {io}"
    target = os.path.join(work, "out")
    args = jobs.words(job.command, source, target) + ["--memory", f"{size.memory}MiB", "--quiet", "--io", io]
    code, peak, seconds, stderr = run_measured(options.tessera, args, os.path.join(work, "stderr"))
    print(f"{name}: peak {peak / MIB:.0f} MiB, {seconds:.1f} s of CPU")
    checks.check(f"{name}: exit code", code == 0, f"{code}: {stderr.strip()}")
    bound = (size.memory + size.slack) * MIB
    checks.check(f"{name}: peak memory", peak < bound, f"{peak / MIB:.0f} MiB, --memory {size.memory}MiB")
    shutil.rmtree(target, ignore_errors=True)


def check_jobs(checks, options, kind, size, fitting):
    """Runs each of these jobs for a checkpoint of this kind. Jobs with the same source share it."""
    for made in dict.fromkeys(job.made for job in fitting):
        with harness.temporary_directory(options.directory) as work:
            alike = [job for job in fitting if job.made == made]
            many = size.many // 2 if remade.STACKS in jobs.steps_of(alike[0]) else size.many  # a stack is gate and up
            giant = {"bytes": size.remade if jobs.is_remade(alike[0]) else size.giant}
            source = jobs.make_source(options.tessera, options.make, alike[0], kind, os.path.join(work, "source"),
                                      **({"tensors": many} if kind == "many" else giant))
            for number, job in enumerate(alike):
                check_memory(checks, options, job, kind, size, source, work, ("direct", "buffered")[number % 2])


def plan(checks, options, tensors):
    """Returns the seconds of CPU of a dry run for a checkpoint of so many tensors."""
    with harness.temporary_directory(options.directory) as work:
        source = harness.make_checkpoint(options.make, "many", os.path.join(work, "source"), tensors=tensors)
        args = ["quantize", source, "-o", os.path.join(work, "out"), "--dry-run"]
        code, peak, seconds, stderr = run_measured(options.tessera, args, os.path.join(work, "stderr"))
        print(f"dry run of {tensors} tensors: {seconds:.2f} s of CPU, peak {peak / MIB:.0f} MiB")
        checks.check(f"dry run of {tensors}: exit code", code == 0, f"{code}: {stderr.strip()}")
        return seconds, peak


def check_dry_run(checks, options):
    few, many = PLANNED
    # The smaller run is short, so its cost is the least of three measurements.
    plans = [plan(checks, options, few) for _ in range(3)]
    least = min(seconds for seconds, _ in plans)
    most, peak = plan(checks, options, many)
    growth = most / least / (many / few)
    room = (peak - plans[0][1]) / (many - few)
    checks.check("dry run: a tensor costs the same among many", growth < GROWTH, f"{growth:.2f} times as much")
    checks.check("dry run: a tensor takes as much memory among many", room < PLANNED_BYTES, f"{room:.0f} bytes")
    checks.check("dry run: CPU", most < CPU_SECONDS, f"{most:.2f} s")


PARSE = """
import json, pathlib, sys, time
texts = []
for path in pathlib.Path(sys.argv[1]).glob("*.safetensors"):
    with open(path, "rb") as file:
        texts.append(file.read(int.from_bytes(file.read(8), "little")))
times = []
for _ in range(3):
    began = time.process_time()
    for text in texts:
        json.loads(text)
    times.append(time.process_time() - began)
print(sorted(times)[1])
"""


def parsing_seconds(checkpoint):
    """Returns the seconds of CPU that json.loads() takes for all headers, in another process."""
    return float(subprocess.run([sys.executable, "-c", PARSE, checkpoint], check=True, capture_output=True, text=True).stdout)


def check_archive_of_layer(checks, options):
    with harness.temporary_directory(options.directory) as work:
        layer, told = (os.path.join(work, name) for name in ("layer", "told.json"))
        deepseek_v3.make(layer, deepseek_v3.layer(0))
        args = ["convert", layer, "-o", os.path.join(work, "out"), "--to", "archive", "--memory", f"{PART.memory}MiB", "--quiet", "--json", told]
        code, peak, seconds, stderr = run_measured(options.tessera, args, os.path.join(work, "stderr"))
        print(f"archive of a layer: {seconds:.2f} s of CPU, peak {peak / MIB:.0f} MiB")
        with open(told) as file:
            made = json.load(file)
        checks.check("archive of a layer", code == 0 and made["bytes_read"] > 1.1e9 and made["bytes_written"] < 1e6, f"{code}: {stderr.strip()}")
        checks.check("archive of a layer: peak memory", peak < (PART.memory + PART.slack) * MIB, f"{peak / MIB:.0f} MiB")


def check_true_shapes(checks, options):
    """Plans the full DeepSeek-V3 and Kimi-K2, 46,183 and 69,975 tensors in sparse files, and checks what loads them in FP8."""
    with harness.temporary_directory(options.directory) as work:
        told = os.path.join(work, "told.json")
        for name, config, most in ("DeepSeek-V3", deepseek_v3.DEEPSEEK_V3, 120), ("Kimi-K2", deepseek_v3.KIMI_K2, 180):
            source, fp8 = (os.path.join(work, f"{name}{end}") for end in ("", "-fp8"))
            size = deepseek_v3.make(source, config=config)
            deepseek_v3.make(fp8, config=config, fp8=True)
            for command, share, bound in ((["quantize", source, "--dry-run"], 1, most),
                                          (["convert", source, "--to", "tp", "--tp", "8", "--dry-run"], 2, 280),
                                          (["inspect", fp8, "--can-load", "vllm,sglang"], 1, most)):
                case = f"{name}, {' '.join(command[:1] + command[2:])}"
                code, peak, seconds, stderr = run_measured(options.tessera, [*command, "--json", told], os.path.join(work, "stderr"))
                parsings = seconds / parsing_seconds(command[1])
                print(f"{case}: {seconds:.2f} s of CPU, {parsings:.1f} times that of parsing the headers, peak {peak / MIB:.0f} MiB")
                checks.check(f"{case}: exit code", code == 0, f"{code}: {stderr.strip()}")
                checks.check(f"{case}: CPU", parsings < PARSINGS * share, f"{seconds:.2f} s, {parsings:.1f} times")
                checks.check(f"{case}: memory", peak < bound * MIB, f"{peak / MIB:.0f} MiB")
                if "--dry-run" in command:
                    with open(told) as file:
                        checks.check(f"{case}: each byte is read once", abs(json.load(file)["bytes_in"] / size - 1) < 0.01)


def make_model(directory):
    """Writes a checkpoint of PASSED whose weights are between 2**-7 and 2**-6, with random signs."""
    chance = random.Random(0)
    block = array.array("H", (0x3C00 | chance.getrandbits(1) << 15 | chance.getrandbits(7) for _ in range(65521))).tobytes()
    deepseek_v3.make(directory, config=PASSED)
    for path in directory.glob("*.safetensors"):
        with open(path, "r+b") as file:
            at, end = 8 + int.from_bytes(file.read(8), "little"), path.stat().st_size
            for at in range(at, end, len(block)):
                file.seek(at)
                file.write(block[:end - at])


def check_least(checks, options, name, words, work):
    """Runs a command with the least --memory that it accepts. Returns that memory."""
    args = [*map(str, words), "--threads", "2", "--quiet", "--memory"]
    told = run_measured(options.tessera, [*args, "1kB"], work / "stderr")[3]
    found = re.search(r"needs? (\d+)( MB)?", told)
    checks.check(f"{name}: the memory that it needs", found, told.strip())
    least = 0 if found is None else int(found[1]) * (1_000_000 if found[2] else 1)
    code, peak, seconds, stderr = run_measured(options.tessera, [*args, str(least)], work / "stderr")
    print(f"{name}, {least / MIB:.0f} MiB: peak {peak / MIB:.0f} MiB, {seconds:.1f} s of CPU")
    checks.check(f"{name}: exit code", code == 0, f"{code}: {stderr.strip()}")
    checks.check(f"{name}: peak memory", peak < least + PASS_SLACK * MIB, f"{peak / MIB:.0f} MiB, --memory {least / MIB:.0f} MiB")
    return least


def check_passes(checks, options):
    """Runs passes over tokens, and GPTQ, with a small model, and passes with a layer of DeepSeek-V3 of zeros. All tokens take the same
    eight of its 256 experts."""
    with harness.temporary_directory(options.directory) as work:
        work = pathlib.Path(work)
        model, fp8, ids, statistics = work / "model", work / "fp8", work / "ids.txt", work / "hessians.safetensors"
        make_model(model)
        ids.write_text(" ".join(str(7 * i % PASSED["vocab_size"]) for i in range(1024)))
        subprocess.run([options.tessera, "quantize", model, "-o", fp8, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        tokens = ["--tokens", ids, "--count", "128", "--device", "cpu"]
        check_least(checks, options, "calibrate", ["calibrate", model, *tokens, "-o", work / "statistics.safetensors"], work)
        check_least(checks, options, "calibrate --hessians", ["calibrate", model, *tokens, "--hessians", "-o", statistics], work)
        check_least(checks, options, "verify forward", ["verify", "forward", fp8, "--against", model, *tokens, "--batch", "8"], work)
        check_least(checks, options, "quantize --method gptq", ["quantize", model, "-o", work / "gptq", "--scheme", "int4-weight-only",
                                                                "--importance", statistics, "--method", "gptq"], work)
        for path, coded in (work / "layer", False), (work / "layer-fp8", True):
            deepseek_v3.make(path, config=LAYER, fp8=coded)
        tokens = ["--tokens", ids, "--count", "64", "--batch", "1", "--device", "cpu"]
        for name, words in (("calibrate", ["calibrate", work / "layer", *tokens, "-o", work / "true.safetensors"]),
                            ("verify forward", ["verify", "forward", work / "layer-fp8", "--against", work / "layer", *tokens])):
            least = check_least(checks, options, f"{name}, a layer of DeepSeek-V3", words, work)
            checks.check(f"{name}, a layer of DeepSeek-V3: 8 GB", least < 8e9, f"{least / 1e9:.1f} GB")


def check_batch(checks, options):
    """Outputs of one source that are made together share one memory limit."""
    with harness.temporary_directory(options.directory) as work:
        source = harness.make_checkpoint(options.make, "giant", os.path.join(work, "source"), bytes=TOGETHER.remade)
        with open(os.path.join(work, "jobs.jsonl"), "w") as file:
            for scheme in "fp8-block", "nvfp4-weight-only", "int8-channel", "int4-weight-only":
                words = ["quantize", source, "-o", os.path.join(work, scheme), "--scheme", scheme]
                print(json.dumps({"name": scheme, "args": words}), file=file)
        told = os.path.join(work, "batch.json")
        args = ["batch", file.name, "--memory", f"{TOGETHER.memory}MiB", "--json", told, "--quiet"]
        code, peak, _, stderr = run_measured(options.tessera, args, os.path.join(work, "stderr"))
        print(f"batch, {TOGETHER.memory} MiB: peak {peak / MIB:.0f} MiB")
        checks.check("batch: exit code", code == 0, f"{code}: {stderr.strip()}")
        checks.check("batch: peak memory", peak < (TOGETHER.memory + TOGETHER.slack) * MIB, f"{peak / MIB:.0f} MiB, --memory {TOGETHER.memory}MiB")
        with open(told) as file:
            checks.check("batch: read together", len(json.load(file)["together"][0]["jobs"]) == 4)


def main():
    options = jobs.choice(harness.argument_parser(__doc__.splitlines()[0])).parse_args()
    checks = harness.Checks()
    if options.only is None:
        check_dry_run(checks, options)
        check_archive_of_layer(checks, options)
        check_batch(checks, options)
        check_passes(checks, options)
    print(turns.told())
    for kind in "many", "giant":
        fitting = [job for job in jobs.chosen(options) if kind not in job.unfit]
        check_jobs(checks, options, kind, WHOLE, fitting[:1])
        fitting = fitting if options.only else turns.part(fitting, 3)
        check_jobs(checks, options, kind, PART, [job for job in fitting if job.made != jobs.PACKED])
        check_jobs(checks, options, kind, ARCHIVED, [job for job in fitting if job.made == jobs.PACKED])
    if options.only is None:
        check_true_shapes(checks, options)  # last: the peak memory of a run includes that of this process, which needs 100 MiB here
    checks.finish()


if __name__ == "__main__":
    main()
