"""The conversions that the crash tests run, in one table."""

import collections
import fnmatch
import os
import shutil
import subprocess
import sys

import adapters
import harness
import remade
import turns

# Exit codes of inspect, `diff SRC DST` and `verify DST --against SRC` for the output.
Codes = collections.namedtuple("Codes", "inspect diff verify", defaults=[0, 1, 0])
LOSSY, EXACT, MERGED = Codes(), Codes(diff=0), Codes(verify=1)
APART = Codes(diff=3, verify=3)  # SRC or DST is no checkpoint: they say what makes one of it
RANKS = Codes(3, 3, 3)           # inspect, too, wants one rank

RULES, MODELOPT_RULES = (os.path.join(os.path.dirname(__file__), f"mixed_rules{end}.json") for end in ("", "_modelopt"))

# `made` turns a generated BF16 checkpoint into the job's source: a command, several, a kind of remade.KINDS or remade.PLAIN, or None; SRC
# means the source, DST for the destination, LORA an adapter for it, RULES and MODELOPT_RULES for rules files. The weights are spread over several shards where the target writes shards. `unfit`: kinds of checkpoint
# that the target rightly refuses, or for which it takes minutes (50,000 weights with a file each are 50,000 syncs), or that
# would go through the very steps of another job once more (MXFP8 is written as MXFP4 is, and cast as NVFP4 is).
# `kind` and `codes` are for the test that reads the output (tests/cli/test_pairs.py).
Job = collections.namedtuple("Job", "name made command unfit kind codes", defaults=[(), "llama", LOSSY])

FP8 = "quantize SRC -o DST --max-shard-size 8MB --quiet"
# Some experts have values at the end of BF16's range, where the outermost codes stand for values beyond it.
INT4 = ("quantize SRC -o DST --scheme int4-weight-only --zero-points --exclude *.mlp.experts.1.gate_proj.weight "
        "--max-shard-size 8MB --quiet")
INT8 = "quantize SRC -o DST --scheme int8-weight-only --max-shard-size 8MB --quiet"
MXFP4 = "quantize SRC -o DST --scheme mxfp4 --mx-scale floor --max-shard-size 8MB --quiet"
BLOBS = "convert SRC -o DST --to fastertransformer --arch sm80 --max-shard-size 8MB --quiet"
TP_OF_ABSORBED = ("convert SRC -o DST --to mla-absorbed --consumer sglang --weights fp8-tensor --drop-kv-b --quiet",
                  "convert SRC -o DST --to tp --tp 2 --quiet")
FP8_MP = (FP8, "convert SRC -o DST --to deepseek-mp --mp 2 --quiet")
PACKED = "convert SRC -o DST --to archive --shuffle --level 1 --quiet"

JOBS = [
    Job("quantize f32", None, "quantize SRC -o DST --max-shard-size 8MB"),
    Job("quantize ue8m0", None, "quantize SRC -o DST --max-shard-size 8MB --scale-fmt ue8m0"),
    Job("quantize fp8-channel", None, "quantize SRC -o DST --scheme fp8-channel --max-shard-size 8MB"),
    Job("quantize int8-channel", None, "quantize SRC -o DST --scheme int8-channel --max-shard-size 8MB"),
    Job("quantize int4", None, "quantize SRC -o DST --scheme int4-weight-only --zero-points --max-shard-size 8MB"),
    # Some experts have values at the end of BF16's range, which only the rule that clips leaves in it.
    Job("quantize nvfp4", None, "quantize SRC -o DST --scheme nvfp4-weight-only --dialect modelopt --max-shard-size 8MB"),
    Job("quantize mxfp4", None, "quantize SRC -o DST --scheme mxfp4 --mx-scale floor --max-shard-size 8MB"),
    Job("quantize mxfp8, DeepSeek", None, "quantize SRC -o DST --scheme mxfp8 --dialect deepseek --mx-scale floor --max-shard-size 8MB",
        ("many", "giant")),
    Job("quantize mixed", None, "quantize SRC -o DST --rules RULES --max-shard-size 8MB", ("many", "giant")),
    Job("quantize mixed, ModelOpt", None, "quantize SRC -o DST --rules MODELOPT_RULES --max-shard-size 8MB", ("many", "giant")),
    Job("quantize mxfp4, DeepSeek-V4", remade.V4, "quantize SRC -o DST --scheme mxfp4 --dialect deepseek --mx-scale floor --max-shard-size 8MB",
        ("many", "giant")),
    Job("quantize w4afp8, SGLang", None, "quantize SRC -o DST --scheme w4afp8 --dialect sglang --input-scale 0.02 --max-shard-size 8MB",
        ("many", "giant"), "deepseek-v3-small"),
    Job("quantize mxfp4, gpt-oss", remade.GPT_OSS, "quantize SRC -o DST --scheme mxfp4-weight-only --dialect gpt-oss --mx-scale floor "
        "--max-shard-size 8MB", ("many",)),
    Job("convert mxfp4, gpt-oss put together", (remade.GPT_OSS, "quantize SRC -o DST --scheme mxfp4 --dialect compressed-tensors "
        "--mx-scale floor --max-shard-size 8MB --quiet"), "convert SRC -o DST --to mxfp4-weight-only --max-shard-size 8MB",
        ("many", "giant"), codes=EXACT),
    Job("quantize experts one by one", remade.STACKS, "quantize SRC -o DST --scheme nvfp4-weight-only --max-shard-size 8MB"),
    Job("convert bf16, experts put together", (remade.STACKS, "quantize SRC -o DST --scheme mxfp8 --mx-scale floor --max-shard-size 8MB --quiet"),
        "convert SRC -o DST --to bf16 --experts stack --max-shard-size 8MB", codes=EXACT),
    Job("convert bf16", FP8, "convert SRC -o DST --to bf16 --max-shard-size 8MB"),
    Job("convert bf16 from nvfp4, ModelOpt", "quantize SRC -o DST --scheme nvfp4-weight-only --dialect modelopt --max-shard-size 8MB --quiet",
        "convert SRC -o DST --to bf16 --max-shard-size 8MB"),
    Job("convert bf16 from mxfp8, floor", "quantize SRC -o DST --scheme mxfp8 --mx-scale floor --max-shard-size 8MB --quiet",
        "convert SRC -o DST --to bf16 --max-shard-size 8MB", ("many", "giant"), codes=EXACT),
    *(Job(f"convert bf16 from {kind}", kind, "convert SRC -o DST --to bf16 --max-shard-size 8MB", ("many",),
          codes=EXACT if kind == "gpt-oss" else LOSSY)
      for kind in remade.KINDS),
    Job("convert bf16 from int4", INT4, "convert SRC -o DST --to bf16 --max-shard-size 8MB"),
    Job("convert fp8-block ue8m0", FP8, "convert SRC -o DST --to fp8-block --scale-fmt ue8m0 --max-shard-size 8MB"),
    Job("convert fp8-block dialect", FP8, "convert SRC -o DST --to fp8-block --dialect compressed-tensors", codes=EXACT),
    Job("convert mxfp8 from fp8-block", "quantize SRC -o DST --max-shard-size 8MB --scale-fmt ue8m0 --quiet",
        "convert SRC -o DST --to mxfp8 --max-shard-size 8MB", codes=EXACT),
    Job("convert w4afp8, SGLang, from fp8-block", FP8, "convert SRC -o DST --to w4afp8 --dialect sglang --input-scale 0.02 --max-shard-size 8MB",
        ("many", "giant"), "deepseek-v3-small"),
    Job("convert fp8-block from mxfp4", MXFP4, "convert SRC -o DST --to fp8-block --lossy --max-shard-size 8MB",
        codes=EXACT),
    Job("convert nvfp4 from mxfp4", MXFP4, "convert SRC -o DST --to nvfp4-weight-only --lossy --max-shard-size 8MB",
        codes=EXACT),
    Job("convert nvfp4 from fp8-block", FP8, "convert SRC -o DST --to nvfp4-weight-only --dialect modelopt "
        "--max-shard-size 8MB"),
    Job("convert int4 from gptq", "gptq", "convert SRC -o DST --to int4-weight-only --group-size 32 --zero-points "
        "--max-shard-size 8MB", codes=EXACT),
    Job("convert deepseek-mp", FP8, "convert SRC -o DST --to deepseek-mp --mp 2", ("many",), "deepseek-v3-small", RANKS),
    Job("convert tp", FP8, "convert SRC -o DST --to tp --tp 2 --max-shard-size 4MB", ("many",), "deepseek-v3-small",
        RANKS),
    Job("convert tp of BF16", None, "convert SRC -o DST --to tp --tp 2 --max-shard-size 8MB", codes=RANKS),
    Job("convert merge", "convert SRC -o DST --to tp --tp 2 --quiet", "convert SRC -o DST --merge", codes=APART),
    Job("convert mla-absorbed", FP8, "convert SRC -o DST --to mla-absorbed --consumer sglang --weights fp8-block "
        "--max-shard-size 8MB", ("many", "giant"), "deepseek-v3", EXACT),
    Job("convert mla-absorbed, requantized", None, "convert SRC -o DST --to mla-absorbed --consumer vllm --weights "
        "fp8-tensor --drop-kv-b --max-shard-size 8MB", ("many", "giant"), "deepseek-v3"),
    Job("convert mla-absorbed, folded", FP8, "convert SRC -o DST --to mla-absorbed --consumer vllm --fold "
        "--max-shard-size 8MB", ("many", "giant"), "deepseek-v3"),
    Job("convert fastertransformer", None, "convert SRC -o DST --to fastertransformer --arch sm80 --bits 4 "
        "--max-shard-size 8MB", ("many",), codes=APART),
    Job("convert fastertransformer from int8", INT8, "convert SRC -o DST --to fastertransformer --arch sm89",
        ("many",), codes=APART),
    Job("convert from fastertransformer", BLOBS, "convert SRC -o DST --from fastertransformer --max-shard-size 8MB",
        ("many",), codes=APART),
    Job("merge", None, "merge SRC LORA -o DST --max-shard-size 8MB", ("many", "giant"), codes=MERGED),
    Job("merge into fp8-block", FP8, "merge SRC LORA -o DST --max-shard-size 8MB", ("many", "giant"), codes=MERGED),
    Job("convert archive", None, "convert SRC -o DST --to archive --shuffle", codes=EXACT),
    Job("convert safetensors", PACKED, "convert SRC -o DST --to safetensors", codes=EXACT),
    Job("quantize an archive", PACKED, "quantize SRC -o DST --max-shard-size 8MB"),
]

# Further schemes and targets. Their files are written in the same ways as those above, so the crash tests leave them out.
MLA = "convert SRC -o DST --to mla-absorbed --consumer "
QUANTIZED = {
    "int8-weight-only": "quantize SRC -o DST --scheme int8-weight-only",
    "int8-weight-only, groups": "quantize SRC -o DST --scheme int8-weight-only --group-size 128",
    "int4 without zero points": "quantize SRC -o DST --scheme int4-weight-only",
    "int4, scales of least error": "quantize SRC -o DST --scheme int4-weight-only --scales mse",
    "int8-channel, activation zero points": "quantize SRC -o DST --scheme int8-channel --activation-zero-points",
    "fp8-block, compressed-tensors": "quantize SRC -o DST --dialect compressed-tensors",
    "nvfp4-weight-only": "quantize SRC -o DST --scheme nvfp4-weight-only",
    "nvfp4, scales of least error": "quantize SRC -o DST --scheme nvfp4-weight-only --dialect modelopt --scales mse",
    "codes a channel, best scales": "quantize SRC -o DST --scheme fp8-channel --scale-dtype bf16 --scales best",
    "int4, best scales": "quantize SRC -o DST --scheme int4-weight-only --zero-points --scales best",
    "nvfp4, best scales": "quantize SRC -o DST --scheme nvfp4-weight-only --scales best",
    "mxfp4-weight-only": "quantize SRC -o DST --scheme mxfp4-weight-only --mx-scale rceil",
    "mxfp8": "quantize SRC -o DST --scheme mxfp8",
    "mxfp8, modelopt": "quantize SRC -o DST --scheme mxfp8 --dialect modelopt",
    "codes a channel": "quantize SRC -o DST --scheme fp8-channel --scales mse",
}
MORE = [
    *(Job(f"quantize {name}", None, command) for name, command in QUANTIZED.items()),
    # A code of a few bits times a power of two is a BF16 number.
    *(Job(f"convert bf16 from {name}", command + " --quiet", "convert SRC -o DST --to bf16",
          codes=EXACT if name.startswith("mxfp") else LOSSY) for name, command in QUANTIZED.items()),
    *(Job(f"archive of {name}", command + " --quiet", "convert SRC -o DST --to archive", codes=EXACT)
      for name, command in QUANTIZED.items()),
    Job("archive of absorbed", MLA + "sglang --weights fp8-head --quiet", "convert SRC -o DST --to archive --shuffle", (),
        "deepseek-v3", EXACT),
    Job("archive of folded", MLA + "vllm --fold --quiet", "convert SRC -o DST --to archive", (), "deepseek-v3", EXACT),
    *(Job(f"merge into {name}", f"quantize SRC -o DST {options} --quiet", "merge SRC LORA -o DST", codes=MERGED)
      for name, options in (("nvfp4", "--scheme nvfp4-weight-only"), ("nvfp4, ModelOpt", "--scheme nvfp4-weight-only --dialect modelopt"),
                            ("int4", "--scheme int4-weight-only --zero-points"), ("mxfp8", "--scheme mxfp8"), ("fp8-channel", "--scheme fp8-channel"))),
    Job("quantize stacked experts", None, "quantize SRC -o DST", (), "fused-experts"),
    Job("quantize qwen3-moe", None, "quantize SRC -o DST", (), "qwen3-moe"),
    *(Job(f"convert {target} from nvfp4", "quantize SRC -o DST --scheme nvfp4-weight-only --quiet",
          f"convert SRC -o DST --to {target}") for target in ("fp8-block", "fp8-channel", "int8-channel", "mxfp8", "mxfp4 --mx-scale floor")),
    Job("convert nvfp4 dialect", "quantize SRC -o DST --scheme nvfp4-weight-only --quiet",
        "convert SRC -o DST --to nvfp4-weight-only --dialect modelopt"),
    Job("convert int4 from awq", "awq", "convert SRC -o DST --to int4-weight-only --zero-points", codes=EXACT),
    Job("convert int4 from awq, made anew", "awq", "convert SRC -o DST --to int4-weight-only --lossy"),
    Job("convert int4 from int4", INT4, "convert SRC -o DST --to int4-weight-only --zero-points", codes=EXACT),
    Job("convert f16", FP8, "convert SRC -o DST --to bf16 --dtype f16"),
    Job("convert f32", FP8, "convert SRC -o DST --to bf16 --dtype f32"),
    Job("convert fp8-block, other blocks", FP8, "convert SRC -o DST --to fp8-block --block 64x64"),
    Job("convert deepseek-mp of BF16", None, "convert SRC -o DST --to deepseek-mp --mp 2", (), "deepseek-v3", RANKS),
    Job("convert deepseek-mp, one rank", FP8, "convert SRC -o DST --to deepseek-mp --mp 1 --keep-mtp", (), "deepseek-v3",
        RANKS),
    Job("convert from deepseek-mp", FP8_MP, "convert SRC -o DST --from deepseek-mp --max-shard-size 8MB", (),
        "deepseek-v3-small", APART),
    *(Job(f"convert mla-absorbed {consumer} {weights} of {'FP8' if made else 'BF16'}", made,
          f"{MLA}{consumer} --weights {weights}{drop}", (), "deepseek-v3",
          EXACT if (weights == "bf16") == (made is None) else LOSSY)
      for made in (None, FP8) for consumer in ("sglang", "vllm", "trtllm", "llamacpp")
      for weights, drop in (("bf16", ""), ("fp8-head", " --drop-kv-b"), ("fp8-tensor", ""), ("fp8-block", " --drop-kv-b"))
      if (weights == "bf16" or consumer != "llamacpp") and (weights != "fp8-block" or made)
      and not (made and weights in ("fp8-head", "fp8-tensor", "bf16"))),
    *(Job(f"convert mla-absorbed {consumer} {weights} of FP8", FP8, f"{MLA}{consumer} --weights {weights}", (),
          "deepseek-v3") for consumer in ("sglang", "vllm") for weights in ("bf16", "fp8-head", "fp8-tensor")),
    Job("convert tp of absorbed", MLA + "vllm --weights fp8-head --quiet", "convert SRC -o DST --to tp --tp 2", (),
        "deepseek-v3", RANKS),
    Job("convert merge of absorbed", TP_OF_ABSORBED, "convert SRC -o DST --merge", (), "deepseek-v3", APART),
    Job("convert trtllm", None, "convert SRC -o DST --to trtllm --arch sm90 --bits 8", codes=APART),
    Job("convert trtllm from int4", "quantize SRC -o DST --scheme int4-weight-only --group-size 0 --quiet",
        "convert SRC -o DST --to trtllm --arch sm80", codes=APART),
    Job("convert from trtllm", "convert SRC -o DST --to trtllm --arch sm90 --bits 8 --quiet",
        "convert SRC -o DST --from trtllm", codes=APART),
]


def choice(parser):
    """Adds --only, which selects jobs."""
    parser.add_argument("--only", action="append", metavar="TEXT", help="the jobs whose names contain it; may be given again")
    return parser


def chosen(options, of=1, more=()):
    """Returns the jobs that --only selects. Without it, one job in `of`, others in each turn, and `more`."""
    table = [*JOBS, *more]
    found = [*turns.part(JOBS, of, 1), *more] if options.only is None else [job for job in table if any(text in job.name for text in options.only)]
    if not found:
        raise SystemExit(f"--only {' '.join(options.only)}: no job is called so: {', '.join(job.name for job in table)}")
    return found


def words(command, source, destination):
    """Returns the command as arguments of the tool. Writes the adapter that it names beside the source; the caller writes HESSIANS there."""
    places = {"LORA": f"{source}-lora", "HESSIANS": f"{source}-hessians.safetensors", "SRC": str(source), "DST": str(destination), "RULES": RULES, "MODELOPT_RULES": MODELOPT_RULES}
    if "LORA" in command.split() and not os.path.exists(places["LORA"]):
        adapters.for_base(places["LORA"], source)
    return [places.get(word, word) for word in command.split()]


def without_unfit_exclude(arguments, source):
    """Returns the arguments without an --exclude that matches no tensor of the source, which the tool would reject."""
    if "--exclude" not in arguments:
        return arguments
    at = arguments.index("--exclude")
    return arguments if fnmatch.filter(harness.headers(source), arguments[at + 1]) else arguments[:at] + arguments[at + 2:]


def steps_of(job):
    """Returns the commands that make the source, in order."""
    return () if job.made is None else (job.made,) if isinstance(job.made, str) else job.made


def is_remade(job):
    """Returns True if Python makes the source in its memory."""
    return any(step in (*remade.KINDS, *remade.PLAIN) for step in steps_of(job))


def make_source(tool, maker, job, kind, directory, **options):
    """Generates a checkpoint of this kind and turns it into the job's source. Returns its directory."""
    source = harness.make_checkpoint(maker, kind, str(directory), **options)
    for number, command in enumerate(steps_of(job)):
        made = f"{directory}-made" + (f"{number}" if number else "")
        if command in remade.KINDS or command in remade.PLAIN:
            # In a process of its own: what it takes would count as the memory of the programs that this one starts.
            subprocess.run([sys.executable, remade.__file__, command, source, made], check=True)
            shutil.rmtree(source)
            source = made
            continue
        harness.succeed(tool, without_unfit_exclude(words(command, source, made), source))
        shutil.rmtree(os.path.join(made, ".tessera"))
        shutil.rmtree(source)
        source = made
    return source


def shortened(command, sizes):
    """The command with other sizes of shards: {size: another}."""
    return " ".join(sizes.get(word, word) for word in command.split())


def with_sources(options, table, directory, source_of=lambda job: ("deepseek-v3", "half"), sizes=None):
    """(job, its source) of each job. Jobs whose sources are made alike share one, which is removed after the last of them.
    `source_of` gives the kind and the scale of what a source is made of; `sizes` shortens the commands that make it."""
    def key(job):
        return job.made, *source_of(job)

    for made, kind, scale in dict.fromkeys(map(key, table)):
        alike = [job for job in table if key(job) == (made, kind, scale)]
        steps = tuple(shortened(step, sizes or {}) for step in steps_of(alike[0]))
        options_of_kind = {} if scale is None else {"scale": scale}
        source = make_source(options.tessera, options.make, alike[0]._replace(made=steps or None), kind, directory, **options_of_kind)
        for job in alike:
            yield job, source
        shutil.rmtree(source)
