#!/usr/bin/env python3
"""Runs many jobs in one process with libtessera: memory, descriptors and threads must not grow, and equal jobs give equal bytes.

Jobs quantize, convert, verify and read checkpoints of several sizes. Some are cancelled and then resumed, and some fail.
Figures are taken after every STEP jobs, beginning after the first fifth, which fills caches. glibc is limited to one heap:
otherwise it keeps freed memory in a heap per thread, up to the peak of each."""

import collections
import ctypes
import gc
import hashlib
import os
import pathlib
import random
import struct
import sys
import threading
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness
import turns

ROOT = pathlib.Path(__file__).resolve().parents[3]
STEP = 20
MOST_GROWTH = 2 << 20
M_ARENA_MAX = -8
MODELS = {"tiny": ("deepseek-v3", {"scale": "tiny", "weights": "ordinary"}), "half": ("deepseek-v3", {"scale": "half", "weights": "ordinary"}), "llama": ("llama", {"scale": "tiny"}),
          "experts": ("qwen3-moe", {"scale": "tiny"})}
SCHEMES = [{"scheme": "fp8-block"}, {"scheme": "fp8-block", "scale_fmt": "ue8m0"}, {"scheme": "fp8-channel"}, {"scheme": "int8-channel"},
           {"scheme": "int8-weight-only", "group_size": 128}, {"scheme": "int4-weight-only", "zero_points": True},
           {"scheme": "int4-weight-only", "scales": "best"}, {"scheme": "nvfp4-weight-only", "dialect": "modelopt"},
           {"scheme": "mxfp4", "mx_scale": "floor"}, {"scheme": "mxfp8"}]
CODES = {"fp8": {}, "int4": {"scheme": "int4-weight-only"}, "nvfp4": {"scheme": "nvfp4-weight-only"}, "mxfp8": {"scheme": "mxfp8"}}
CONVERSIONS = [*((codes, {"to": "bf16"}) for codes in CODES), ("fp8", {"to": "fp8-block", "scale_fmt": "ue8m0"}), ("fp8", {"to": "archive"}),
               ("model", {"to": "tp", "tp": 2}), ("nvfp4", {"to": "fp8-block"}), ("model", {"to": "mla-absorbed", "consumer": "vllm"}),
               ("int4", {"to": "int8-channel", "lossy": True})]
# The reason, the status of the failure, and the call.
FAILURES = {
    "unknown scheme": ("usage", lambda s, to: s.tessera.quantize_checkpoint(s.place / "tiny", to, scheme="int3")),
    "no source": ("format", lambda s, to: s.tessera.quantize_checkpoint(s.place / "nothing", to)),
    "truncated file": ("format", lambda s, to: s.tessera.quantize_checkpoint(s.place / "truncated", to)),
    "NaN": ("value", lambda s, to: s.tessera.quantize_checkpoint(s.place / "nan", to)),
    "too little memory": ("no memory", lambda s, to: s.tessera.quantize_checkpoint(s.place / "half", to, memory="64KB")),
    "foreign destination": ("exists", lambda s, to: s.tessera.quantize_checkpoint(s.place / "tiny", s.place / "llama")),
    "a file as folder": ("io", lambda s, to: s.tessera.quantize_checkpoint(s.place / "tiny", s.place / "tiny/config.json/out")),
    "wrong source": ("unsupported", lambda s, to: s.tessera.convert(s.place / "tiny", to, to="bf16")),
    "no such weight": ("usage", lambda s, to: s.tessera.open(s.place / "tiny")._find("absent")),
}

Figures = collections.namedtuple("Figures", "resident descriptors threads")
libc = ctypes.CDLL(None)


def figures():
    """Measures this process after freed memory was returned to the system."""
    gc.collect()
    libc.malloc_trim(0)
    resident = int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Figures(resident, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")))


def digest(directory):
    """Hashes names and bytes of an output, except the records of its run."""
    total = hashlib.sha256()
    for path in sorted(pathlib.Path(directory).rglob("*")):
        if path.is_file() and harness.KEPT not in path.parts and path.name != harness.MANIFEST:
            total.update(os.fsencode(path.relative_to(directory)) + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


class Soak:
    """Runs jobs and has their counts, and the digest of each output by its job."""

    def __init__(self, tessera, checks, place, rng):
        self.tessera, self.checks, self.place, self.rng = tessera, checks, place, rng
        self.counts, self.digests = collections.Counter(), {}
        self.jobs = [self.quantize] * 8 + [self.convert] * 8 + [self.verify] * 3 + [self.read] * 3 + [self.array] * 2 + [self.cancel] + [self.fail] * 4

    def output(self, job, made):
        """Compares an output with that of an equal job, and removes it."""
        found = digest(made)
        self.checks.check(f"{job}: the same bytes", self.digests.setdefault(job, found) == found)
        self.remove(made)

    def remove(self, directory):
        for path in sorted(pathlib.Path(directory).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        if os.path.isdir(directory):
            os.rmdir(directory)

    def how(self):
        return {"threads": self.rng.randrange(1, 4), "io": self.rng.choice(["buffered", "direct"])}

    def quantize(self, to):
        model, options = self.rng.choice(list(MODELS)), self.rng.choice(SCHEMES)
        self.tessera.quantize_checkpoint(self.place / model, to, **options, **self.how())
        self.output(f"quantize {model} {options}", to)

    def convert(self, to):
        source, options = self.rng.choice(CONVERSIONS)
        self.tessera.convert(self.place / ("tiny" if source == "model" else source), to, **options, **self.how())
        self.output(f"convert {source} {options}", to)

    def verify(self, _):
        codes = self.rng.choice(list(CODES))
        other = self.rng.random() < 0.3
        verdict = self.tessera.verify(self.place / codes, self.place / ("other" if other else "tiny"), threads=self.rng.randrange(1, 4))
        self.checks.check(f"verify {codes}", verdict.passed != other, verdict)

    def read(self, _):
        source = self.rng.choice([*CODES, *MODELS])
        total = hashlib.sha256()
        with self.tessera.open(self.place / source) as model:
            for weight in model.weights():
                total.update(weight.name.encode() + weight.read().tobytes())
        self.checks.check(f"read {source}: the same values", self.digests.setdefault(f"read {source}", total.digest()) == total.digest())

    def array(self, _):
        options = self.rng.choice(SCHEMES)
        with self.tessera.open(self.place / "llama") as model:
            name = self.rng.choice([weight.name for weight in model.weights() if weight.name.endswith("_proj.weight")])
            found = self.tessera.quantize(model[name].read(), name, **options)
            total = {role: hashlib.sha256(part.array().tobytes()).digest() for role, part in found.stored.items()}
        self.checks.check(f"array {name} {options}", self.digests.setdefault(f"array {name} {options}", total) == total)

    def cancel(self, to):
        """Stops a job at one of its first reports, and completes it with another call."""
        calls, after = [], self.rng.randrange(1, 3)
        options = {"scheme": "int4-weight-only", "scales": "mse", "max_shard_size": "4MB", "threads": 1}

        def stop(told):
            calls.append(told["phase"])
            return len(calls) >= after

        try:
            self.tessera.quantize_checkpoint(self.place / "giant", to, progress=stop, cpumask=0, **options)
            self.counts["not cancelled in time"] += 1
        except self.tessera.Error as error:
            self.checks.check("cancelled", error.status == "cancelled", error)
        self.tessera.quantize_checkpoint(self.place / "giant", to, **options)
        self.output("giant after a stop", to)

    def fail(self, to):
        reason = self.rng.choice(list(FAILURES))
        status, call = FAILURES[reason]
        try:
            call(self, to)
            self.checks.check(f"failure, {reason}", False, "no error")
        except self.tessera.Error as error:
            self.checks.check(f"failure, {reason}", error.status == status, f"{error.status}: {error}")
        self.remove(to)

    def run(self):
        job = self.rng.choice(self.jobs)
        self.counts[job.__name__] += 1
        try:
            job(self.place / "out")
        except self.tessera.Error as error:
            self.checks.check(job.__name__, False, error)
            self.remove(self.place / "out")


def make_sources(options, tessera, place):
    for name, (kind, how) in MODELS.items():
        harness.make_checkpoint(options.make, kind, place / name, **how)
    harness.make_checkpoint(options.make, "deepseek-v3", place / "other", scale="tiny", weights="ordinary", seed=9)
    harness.make_checkpoint(options.make, "giant", place / "giant", bytes="64M")
    for name, how in CODES.items():
        tessera.quantize_checkpoint(place / "tiny", place / name, **how)
    for name in ("truncated", "nan"):
        harness.make_checkpoint(options.make, "deepseek-v3", place / name, scale="tiny", weights="ordinary")
    path = next((place / "truncated").glob("*.safetensors"))
    os.truncate(path, path.stat().st_size - 100)
    path = next((place / "nan").glob("*.safetensors"))
    metadata, tensors = harness.read_safetensors(path)
    name = next(name for name in tensors if name.endswith("down_proj.weight"))
    dtype, shape, data = tensors[name]
    tensors[name] = dtype, shape, data[:-2] + struct.pack("<H", 0x7FC1)
    harness.write_safetensors(path, tensors, metadata)


def prove(checks, before):
    """Checks that the figures change with one more descriptor, one more thread, and a leak above the limit."""
    descriptor, memory, end = os.open("/dev/null", os.O_RDONLY), bytearray(b"1") * (2 * MOST_GROWTH), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    after = figures()
    checks.check("a leak would be noticed", after.resident > before.resident + MOST_GROWTH and
                 after[1:] == (before.descriptors + 1, before.threads + 1) and len(memory) > 0, (before, after))
    end.set()
    thread.join()
    os.close(descriptor)


def judge(checks, found):
    first = found[0][1]
    for number, now in found[1:]:
        checks.check(f"after {number} jobs: descriptors and threads", now[1:] == first[1:], (now, first))
        checks.check(f"after {number} jobs: memory", now.resident <= first.resident + MOST_GROWTH, (now, first))


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=500 if turns.whole() else 60, help="(60; 500 with TESSERA_LONG)")
    parser.add_argument("--seed", type=int, default=turns.turn(), help="of the jobs (TESSERA_TURN)")
    options = parser.parse_args()
    library = pathlib.Path(options.tessera).resolve().parents[1] / "lib/libtessera.so"
    if not library.exists():
        print("skipped: there is no libtessera.so in this build")
        sys.exit(77)
    libc.mallopt(M_ARENA_MAX, 1)
    os.environ["TESSERA_LIBRARY"] = str(library)
    sys.path.insert(0, str(ROOT / "python"))
    import tessera
    checks, found, began = harness.Checks(), [], time.monotonic()
    with harness.temporary_directory(options.directory) as folder:
        make_sources(options, tessera, folder)
        soak = Soak(tessera, checks, folder, random.Random(options.seed))
        for number in range(1, options.jobs + 1):
            soak.run()
            if number >= options.jobs / 5 and number % STEP == 0:
                found.append((number, figures()))
    judge(checks, found)
    prove(checks, figures())
    for number, now in found:
        print(f"after {number:4} jobs: {now.resident / 2**20:6.1f} MiB resident, {now.descriptors} descriptors, {now.threads} threads")
    print(f"{options.jobs} jobs, seed {options.seed}, {time.monotonic() - began:.0f} s; {turns.told()}: {dict(soak.counts)}")
    checks.check("most cancelled jobs were running", soak.counts["not cancelled in time"] <= soak.counts["cancel"] / 2, soak.counts)
    checks.finish()


if __name__ == "__main__":
    main()
