"""Every conversion that has to survive what the crash tests do to it: one table for all of them."""

import collections
import os
import shutil

import harness

# `made` turns a generated BF16 checkpoint into what the job reads, or is None; SRC stands for the source, DST for the
# destination. The weights are spread over several shards where the target has such a thing. `unfit`: kinds of checkpoint
# that the target rightly refuses, or that take it minutes: a file for each of 50,000 weights is 50,000 syncs.
Job = collections.namedtuple("Job", "name made command unfit", defaults=[()])

FP8 = "quantize SRC -o DST --max-shard-size 16MB --quiet"
# Some experts have values at the end of BF16's range, where the outermost codes stand for values beyond it.
INT4 = ("quantize SRC -o DST --scheme int4-weight-only --zero-points --exclude *.mlp.experts.1.gate_proj.weight "
        "--max-shard-size 16MB --quiet")
INT8 = "quantize SRC -o DST --scheme int8-weight-only --max-shard-size 16MB --quiet"
BLOBS = "convert SRC -o DST --to fastertransformer --arch sm80 --max-shard-size 16MB --quiet"
PACKED = "convert SRC -o DST --to archive --shuffle --level 1 --quiet"

JOBS = [
    Job("quantize f32", None, "quantize SRC -o DST --max-shard-size 16MB"),
    Job("quantize ue8m0", None, "quantize SRC -o DST --max-shard-size 16MB --scale-fmt ue8m0"),
    Job("quantize fp8-channel", None, "quantize SRC -o DST --scheme fp8-channel --max-shard-size 16MB"),
    Job("quantize int8-channel", None, "quantize SRC -o DST --scheme int8-channel --max-shard-size 16MB"),
    Job("quantize int4", None, "quantize SRC -o DST --scheme int4-weight-only --zero-points --max-shard-size 16MB"),
    Job("convert bf16", FP8, "convert SRC -o DST --to bf16 --max-shard-size 16MB"),
    Job("convert bf16 from int4", INT4, "convert SRC -o DST --to bf16 --max-shard-size 16MB"),
    Job("convert fp8-block ue8m0", FP8, "convert SRC -o DST --to fp8-block --scale-fmt ue8m0 --max-shard-size 16MB"),
    Job("convert fp8-block dialect", FP8, "convert SRC -o DST --to fp8-block --dialect compressed-tensors"),
    Job("convert deepseek-mp", FP8, "convert SRC -o DST --to deepseek-mp --mp 2", ("many",)),
    Job("convert tp", FP8, "convert SRC -o DST --to tp --tp 2 --max-shard-size 8MB", ("many",)),
    Job("convert tp of BF16", None, "convert SRC -o DST --to tp --tp 2 --max-shard-size 16MB"),
    Job("convert merge", "convert SRC -o DST --to tp --tp 2 --quiet", "convert SRC -o DST --merge"),
    Job("convert mla-absorbed", FP8, "convert SRC -o DST --to mla-absorbed --consumer sglang --weights fp8-block "
        "--max-shard-size 16MB", ("many", "giant")),
    Job("convert mla-absorbed, requantized", None, "convert SRC -o DST --to mla-absorbed --consumer vllm --weights "
        "fp8-tensor --drop-kv-b --max-shard-size 16MB", ("many", "giant")),
    Job("convert mla-absorbed, folded", FP8, "convert SRC -o DST --to mla-absorbed --consumer vllm --fold "
        "--max-shard-size 16MB", ("many", "giant")),
    Job("convert fastertransformer", None, "convert SRC -o DST --to fastertransformer --arch sm80 --bits 4 "
        "--max-shard-size 16MB", ("many",)),
    Job("convert fastertransformer from int8", INT8, "convert SRC -o DST --to fastertransformer --arch sm89",
        ("many",)),
    Job("convert from fastertransformer", BLOBS, "convert SRC -o DST --from fastertransformer --max-shard-size 16MB",
        ("many",)),
    Job("convert archive", None, "convert SRC -o DST --to archive --shuffle"),
    Job("convert safetensors", PACKED, "convert SRC -o DST --to safetensors"),
    Job("quantize an archive", PACKED, "quantize SRC -o DST --max-shard-size 16MB"),
]


def words(command, source, destination):
    """The command as arguments of the tool."""
    places = {"SRC": str(source), "DST": str(destination)}
    return [places.get(word, word) for word in command.split()]


def make_source(tool, maker, job, kind, directory, **options):
    """Generates a checkpoint of this kind and makes of it what the job reads. Returns its directory."""
    made = harness.make_checkpoint(maker, kind, str(directory), **options)
    if job.made is None:
        return made
    source = str(directory) + "-made"
    code, _, stderr = harness.run(tool, words(job.made, made, source))
    if code != 0:
        raise RuntimeError(f"{job.made}: exit {code}: {stderr}")
    shutil.rmtree(os.path.join(source, ".tessera"))
    shutil.rmtree(made)
    return source
