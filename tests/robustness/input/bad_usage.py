#!/usr/bin/env python3
"""Tests that invalid options are rejected: exit code 2, one line that names the option, no output. Help goes to stdout."""

import os
import pathlib
import shlex
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness

# command line (SRC is a sound checkpoint, DST does not exist), words of the message
ROWS = [
    ("conjure SRC", ["conjure"]),
    ("quantize", ["SRC"]),
    ("quantize SRC", ["-o DST"]),
    ("quantize SRC OTHER -o DST", ["unexpected argument 'OTHER' ("]),
    ("quantize SRC OTHER", ["did you mean '-o OTHER'?"]),
    ("convert SRC OTHER --to bf16", ["did you mean '-o OTHER'?"]),
    ("quantize SRC -o DST --scheme fp8", ["did you mean 'fp8-tensor'?", "docs/coming-from.md"]),
    ("quantize SRC -o DST --scheme FP8_DYNAMIC", ["did you mean 'fp8-channel'?"]),
    ("quantize SRC -o DST --scheme W4A16", ["did you mean 'int4-weight-only'?"]),
    ("quantize SRC -o DST --scheme w8a8", ["did you mean 'int8-channel'?"]),
    ("quantize SRC -o DST --scheme NVFP4A16", ["did you mean 'nvfp4-weight-only'?"]),
    ("quantize SRC -o DST --scheme W4A16_ASYM", ["did you mean 'int4-weight-only --zero-points'?"]),
    ("quantize SRC -o DST --scheme FP8_BLOCK", ["did you mean 'fp8-block --dialect compressed-tensors'?"]),
    ("quantize SRC -o DST --scheme NVFP4", ["did you mean 'nvfp4'?"]),
    ("quantize SRC -o DST --scheme nvfp4_default", ["did you mean 'nvfp4'?"]),
    ("quantize SRC -o DST --scheme MXFP8_DEFAULT_CFG", ["did you mean 'mxfp8'?"]),
    ("quantize SRC -o DST --scheme FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG", ["did you mean 'fp8-block'?"]),
    ("quantize SRC -o DST --scheme W4A16_NVFP4_CFG", ["did you mean 'nvfp4-weight-only --dialect modelopt'?"]),
    ("quantize SRC -o DST --scheme nvfp", ["did you mean 'nvfp4'?"]),
    ("quantize SRC -o DST --scheme=nvfp4a16", ["did you mean 'nvfp4-weight-only'?"]),
    ("convert SRC -o DST --to gptq", ["can be read but not written"]),
    ("quantize SRC -o DST --scheme q4_k_m", ["GGUF cannot be written"]),
    ("convert SRC -o DST --to gguf", ["GGUF cannot be written"]),
    ("convert SRC -o DST --to W4A16", ["did you mean 'int4-weight-only'?"]),
    ("quantize SRC -o", ["-o"]),
    ("merge", ["BASE LORA"]),
    ("merge SRC -o DST", ["no adapter given", "merge BASE LORA -o DST"]),
    ("merge SRC SRC", ["-o DST"]),
    ("merge SRC A B C D E F -o DST", ["'F' is one adapter too many", "up to 5"]),
    ("merge SRC SRC=0 -o DST", ["a factor of 0"]),
    ("merge SRC SRC -o DST --source-block 128", ["--source-block", "128"]),
    ("merge SRC SRC -o DST --min-sqnr 20", ["--min-sqnr"]),
    ("merge SRC SRC -o DST --scheme nvfp4", ["--scheme"]),
    ("quantize SRC -o DST --sheme fp8-block", ["--sheme"]),
    ("quantize SRC -o DST --scheme fp9", ["--scheme", "fp9", "fp8-block"]),
    ("quantize SRC -o DST --scale-fmt e8m0", ["--scale-fmt", "e8m0", "ue8m0"]),
    ("quantize SRC -o DST --scales max", ["--scales", "max", "amax"]),
    ("quantize SRC -o DST --dialect gguf", ["--dialect", "gguf", "deepseek"]),
    ("quantize SRC -o DST --block 128", ["--block", "128"]),
    ("quantize SRC -o DST --block 0x128", ["--block", "0x128"]),
    ("quantize SRC -o DST --block 128x128x1", ["--block"]),
    ("quantize SRC -o DST --block 4294967424x128", ["--block", "4294967424x128"]),
    ("quantize SRC -o DST --block 128x18446744073709551744", ["--block"]),
    ("quantize SRC -o DST --block 4097x128", ["--block", "4096"]),
    ("quantize SRC -o DST --block 128x4097", ["--block", "4096"]),
    ("quantize SRC -o DST --block 0128x128", ["--block", "0128x128"]),
    ("quantize SRC -o DST --block +128x128", ["--block"]),
    ("quantize SRC -o DST '--block= 128x128'", ["--block"]),
    ("quantize SRC -o DST --block 128x-1", ["--block"]),
    ("convert SRC -o DST --to bf16 --source-block 4294967424x128", ["--source-block"]),
    ("quantize SRC -o DST '--threads= -1'", ["--threads", "' -1'"]),
    ("quantize SRC -o DST '--threads= 2'", ["--threads", "' 2'"]),
    ("quantize SRC -o DST --threads +2", ["--threads", "+2"]),
    ("quantize SRC -o DST --threads 02", ["--threads", "02"]),
    ("quantize SRC -o DST --threads 2.0", ["--threads", "2.0"]),
    ("quantize SRC -o DST --threads 18446744073709551617", ["--threads"]),
    ("quantize SRC -o DST --cpumask 0x", ["--cpumask"]),
    ("quantize SRC -o DST --cpumask 0x-1", ["--cpumask"]),
    ("convert SRC -o DST --to tp --tp 010", ["--tp", "010"]),
    ("convert SRC -o DST --to tp --tp 4294967298", ["--tp"]),
    ("quantize SRC -o DST --scheme int4-weight-only --group-size 0100", ["--group-size", "0100"]),
    ("quantize SRC -o DST '--memory= 2GiB'", ["--memory"]),
    ("quantize SRC -o DST --memory 0x10GiB", ["--memory"]),
    ("quantize SRC -o DST --memory infinityGB", ["--memory"]),
    ("quantize SRC -o DST --memory -1GiB", ["--memory"]),
    ("quantize SRC -o DST --shard 00/2", ["--shard"]),
    ("quantize SRC -o DST --shard 0/4294967298", ["--shard"]),
    ("inspect SRC --can-load vllm --tp 02", ["--tp"]),
    ("diff SRC SRC --tolerance nan", ["--tolerance", "nan"]),
    ("diff SRC SRC --tolerance 0x1p-3", ["--tolerance"]),
    ("diff SRC SRC '--tolerance= 1'", ["--tolerance"]),
    ("quantize SRC -o DST --min-sqnr nan", ["--min-sqnr", "nan"]),
    ("quantize SRC -o DST --min-sqnr inf", ["--min-sqnr", "inf"]),
    ("quantize SRC -o DST --min-sqnr 1e999", ["--min-sqnr", "1e999"]),
    ("quantize SRC -o DST --exclude 'a\x7f'", ["--exclude", "control character"]),
    ("quantize SRC -o DST --threads 0", ["--threads"]),
    ("quantize SRC -o DST --threads -1", ["--threads"]),
    ("quantize SRC -o DST --threads two", ["--threads", "two"]),
    ("quantize SRC -o DST --memory much", ["--memory", "much"]),
    ("quantize SRC -o DST --memory 99999999999GiB", ["--memory"]),
    ("quantize SRC -o DST --max-shard-size 0", ["--max-shard-size"]),
    ("quantize SRC -o DST --cpumask all", ["--cpumask", "all"]),
    ("quantize SRC -o DST --dry-run=yes", ["--dry-run"]),
    ("quantize SRC -o SRC", ["SRC", "the output is the same path"]),
    ("quantize SRC -o SRC/out", ["SRC"]),
    ("quantize SRC/. -o SRC", ["SRC"]),
    ("quantize SRC -o DST --sheme fp8-block", ["--sheme", "did you mean '--scheme'?"]),
    ("quantize SRC -o DST --scheme int4-weight-onyl", ["did you mean 'int4-weight-only'?"]),
    ("conver SRC", ["did you mean 'convert'?"]),
    ("help conjure", ["conjure"]),
    ("convert SRC -o DST", ["--to"]),
    ("convert SRC -o DST --to bf17", ["--to", "did you mean 'bf16'?"]),
    ("convert SRC -o DST --to bf16 --tp 2", ["--tp", "--to bf16"]),
    ("convert SRC -o DST --to bf16 --merge", ["--merge"]),
    ("convert SRC -o DST --to bf16 --lossy", ["--lossy", "--to bf16"]),
    ("convert SRC -o DST --to nvfp4-weight-onyl", ["did you mean 'nvfp4-weight-only'?"]),
    ("convert SRC -o DST --to mxfp4-weight-only --dialect deepseek", ["--dialect deepseek", "mxfp4", "compressed-tensors"]),
    ("convert SRC -o DST --to fp8-block --dialect modelopt", ["--dialect modelopt", "fp8-block"]),
    ("convert SRC -o DST --to mxfp8 --group-size 32", ["--group-size", "--to mxfp8"]),
    ("convert SRC -o SRC --to bf16 --force", ["SRC"]),
    ("quantize SRC -o DST --rules SRC/config.json --scheme mxfp8", ["--scheme", "--rules"]),
    ("quantize SRC -o DST --rules SRC/config.json --mx-scale even", ["--mx-scale", "--rules"]),
    ("quantize SRC -o DST --rules SRC/config.json --exclude x", ["--exclude", "--rules"]),
    ("fold SRC -o OUT", ["no statistics given"]),
    ("fold -o OUT --importance s.json", ["SRC"]),
    ("fold SRC --importance s.json", ["-o"]),
    ("fold SRC -o OUT --importance s.json --scheme int5", ["int5", "int4-weight-only"]),
    ("fold SRC -o OUT --importance s.json --scheme keep", ["--scheme keep"]),
    ("sensitivities", ["no checkpoint given"]),
    ("sensitivities SRC", ["no quantized checkpoint given"]),
    ("sensitivities SRC --against SRC", ["no text given"]),
    ("sensitivities SRC --against SRC --tokens t.txt", ["no output given"]),
    ("sensitivities SRC --against SRC --tokens t.txt -o x.json --count 0", ["--count"]),
    ("sensitivities SRC --against SRC --tokens t.txt -o SRC/x.json", ["SRC"]),
    ("plan-schemes", ["no checkpoint given"]),
    ("plan-schemes SRC", ["--max-bytes", "--bits"]),
    ("plan-schemes SRC --bits 4.5 --max-bytes 1GB", ["--max-bytes", "--bits"]),
    ("plan-schemes SRC --bits few", ["--bits", "few"]),
    ("plan-schemes SRC --bits 0", ["--bits"]),
    ("plan-schemes SRC --bits 33", ["--bits"]),
    ("plan-schemes SRC --bits 5 --threads 0", ["--threads"]),
    ("plan-schemes SRC --bits 5 --schemes nvfp5", ["--schemes", "nvfp5", "nvfp4-weight-only"]),
    ("plan-schemes SRC --bits 5 --schemes mxfp8,", ["--schemes"]),
    ("plan-schemes SRC --bits 5 --schemes bf16,keep", ["--schemes", "twice"]),
    ("plan-schemes SRC --bits 5 --schemes int8-channel,bf16", ["int8-channel", "cannot be mixed"]),
    ("plan-schemes SRC --bits 5 --schemes fp8-block,fp8-channel", ["fp8-channel", "cannot be mixed"]),
    ("plan-schemes SRC --bits 5 -o SRC/rules.json", ["SRC"]),
    ("plan-schemes SRC --bits 5 -o - --json -", ["--json and -o", "would both be written to"]),
    ("diff SRC", ["two checkpoints are needed"]),
    ("diff SRC SRC --tolerance low", ["--tolerance", "low"]),
    ("compare-schemes", ["no checkpoint given"]),
    ("verify SRC", ["--against SRC", "verify --manifest"]),
    ("verify SRC OTHER", ["unexpected argument", "did you mean '--against OTHER'?"]),
    ("verify SRC SRC --against SRC", ["unexpected argument"]),
    ("verify gem SRC", ["gem", "did you mean 'gemm'?"]),
    ("verify gemm", ["verify gemm DST"]),
    ("verify --manifest", ["verify --manifest DST"]),
    ("verify manifest SRC --threads 0", ["--threads"]),
    ("verify epilogue SRC --scaling 64x128", ["--scaling", "verify epilogue"]),
    ("verify dequant SRC --scaling 64x128", ["--scaling", "verify dequant"]),
    ("verify forward", ["verify forward DST --against SRC"]),
    ("verify forward SRC SRC", ["verify forward DST --against SRC"]),
    ("verify forward SRC", ["no source given", "--against SRC"]),
    ("verify forward SRC --against SRC --reference SRC", ["not both"]),
    ("verify all", ["verify all DST --against SRC"]),
    ("verify all SRC", ["no source given", "--against SRC"]),
    ("verify all SRC SRC --against SRC", ["unexpected argument"]),
    ("verify all SRC --against SRC --skip gem", ["--skip", "did you mean 'gemm'?"]),
    ("verify all SRC --against SRC --layers 0..99", ["--layers", "the model has layers"]),
    ("verify all SRC --against SRC --layers x", ["--layers"]),
    ("verify all SRC --against SRC --threads 0", ["--threads"]),
    ("verify all SRC --against SRC --min-sqnr high", ["--min-sqnr", "high"]),
    ("verify all SRC --against SRC --scaling 64x128", ["--scaling"]),
    ("verify all SRC --against SRC --json SRC/all.json", ["SRC"]),
    ("verify al SRC --against SRC", ["did you mean 'all'?"]),
    ("report", ["no results given"]),
    ("report SRC/config.json --junk", ["--junk"]),
    ("report SRC/config.json --max-regression 1", ["--baseline"]),
    ("report SRC/config.json --baseline SRC/config.json --max-regression big", ["--max-regression", "big"]),
    ("report SRC/config.json SRC/config.json --baseline SRC/config.json", ["--baseline"]),
    ("report SRC/config.json --csv SRC/config.json", ["config.json", "is a file of"]),
    ("report SRC/config.json --csv - --markdown -", ["--markdown", "--csv"]),
    ("report SRC/config.json --csv OUT.safetensors", ["--csv", "weights"]),
    ("batch", ["no jobs given"]),
    ("batch SRC/config.json --keep-goin", ["--keep-goin", "did you mean '--keep-going'?"]),
    ("batch SRC/config.json OTHER", ["OTHER"]),
    ("batch SRC/config.json --json SRC/config.json", ["config.json", "is a file of"]),
    ("batch SRC/config.json --json - --junit -", ["--json", "--junit"]),
    ("inspect", ["PATH"]),
    ("inspect SRC OTHER", ["OTHER"]),
    ("inspect SRC --tp 2", ["--tp", "--can-load"]),
    ("inspect SRC --can-load vlm", ["--can-load", "vlm", "vllm"]),
    ("inspect SRC --can-load vllm,", ["--can-load"]),
    ("inspect SRC --can-load vllm,vllm", ["--can-load", "twice"]),
    ("inspect SRC --can-load all --tp 0", ["--tp", "0"]),
    ("inspect SRC --can-load all --tp 2,x", ["--tp", "2,x"]),
    ("inspect SRC --can-load all --tp 2,", ["--tp"]),
    ("inspect SRC --can-load all --tp -1", ["--tp"]),
    ("inspect SRC:lm_head.weight --can-load vllm", ["--can-load", "tensor"]),
    ("inspect SRC --source-block 128", ["--source-block", "128"]),
]
HELP = ["--help", "-h", "help", "quantize --help", "inspect --help", "help quantize", "batch --help", "quantize -h", "convert SRC -h"]


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    harness.fork_runs([options.tessera], os.path.join(os.path.dirname(options.make), "../.."))
    checks = harness.Checks()
    with harness.temporary_directory(options.directory) as work:
        source, target = os.path.join(work, "SRC"), os.path.join(work, "DST")
        harness.make_checkpoint(options.make, "llama", source)
        for command, words in ROWS:
            before = sorted(os.listdir(work)), sorted(os.listdir(source))
            args = [word.replace("SRC", source).replace("DST", target) for word in shlex.split(command)]
            code, _, stderr = harness.run(options.tessera, args)
            checks.check(f"{command}: exit code", code == 2, f"{code} instead of 2: {stderr.strip()}")
            checks.check(f"{command}: one line", stderr.startswith("tessera: ") and stderr.count("\n") == 1, stderr)
            checks.check(f"{command}: words", all(word in stderr for word in words), stderr.strip())
            after = sorted(os.listdir(work)), sorted(os.listdir(source))
            checks.check(f"{command}: nothing written", after == before, f"{before}, now {after}")
        for command in HELP:
            code, stdout, stderr = harness.run(options.tessera, command.split())
            checks.check(command, code == 0 and "tessera" in stdout and stderr == "", f"exit {code}: {stderr}")
        for command in ("--version", "-V", "version"):
            code, stdout, stderr = harness.run(options.tessera, [command])
            checks.check(command, code == 0 and stdout.startswith("tessera ") and stderr == "", f"exit {code}: {stderr}")
    checks.finish()


if __name__ == "__main__":
    main()
