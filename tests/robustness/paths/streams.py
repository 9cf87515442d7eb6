#!/usr/bin/env python3
"""Tests stdin, stdout and stderr: closed descriptors, failing writes and untrusted names.

A closed descriptor never becomes a file of the job. A failing write to stdout ends with exit code 4 and a message, or
with 141 if the reader has closed it. Names from files are escaped.
"""

import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness

READER_LEFT = 141
# Commands that print to stdout, as text and JSON; SRC and FP8 are checkpoints, DST a fresh name.
PRINTING = [
    "--help", "--version", "quantize --help", "help verify gemm",
    "inspect SRC", "inspect SRC --can-load all", "inspect SRC --json -", "inspect SRC:lm_head.weight",
    "quantize SRC -o DST", "quantize SRC -o DST --dry-run", "quantize SRC -o DST --json -", "quantize SRC --dry-run --json -",
    "convert FP8 -o DST --to bf16", "convert FP8 -o DST --to bf16 --json -", "convert FP8 --to bf16 --dry-run",
    "compare-schemes SRC", "compare-schemes SRC --json -",
    "plan-schemes SRC --bits 8", "plan-schemes SRC --bits 8 --json -", "plan-schemes SRC --bits 8 -o -",
    "diff SRC SRC", "diff SRC SRC --json -", "verify FP8 --against SRC", "verify FP8 --against SRC --json -",
    "verify FP8 --against SRC --junit STDOUT --quiet",
    "verify gemm FP8 --device cpu --sample 1", "verify gemm FP8 --device cpu --sample 1 --json -",
    "report FP8/quantization_report.json", "report FP8/quantization_report.json --csv -", "report --help",
    "report FP8/quantization_report.json --junit -", "report FP8/quantization_report.json --markdown -",
    "verify forward FP8 --against SRC --count 4", "verify forward FP8 --against SRC --count 4 --json -",
]

CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
# Forges a line, clears the screen, sets the title, turns text around, and ends an XML element.
EVIL = "x\nPASS  names\x1b[2J\x1b]0;title\x07\r\u202e\u009b31m\u2028\x7f<b>&\"'"


def words_of(work, command, number):
    target = os.path.join(work, f"DST{number}")
    names = {name: os.path.join(work, name) for name in ("SRC", "FP8", "STDOUT")} | {"DST": target}
    return [names.get(w, w.replace("SRC:", names["SRC"] + ":").replace("FP8/", names["FP8"] + "/")) for w in command.split()]


def run_to(stdout, tool, words, **options):
    done = subprocess.run([tool, *words], stdout=stdout, stderr=subprocess.PIPE, timeout=600, **options)
    return done.returncode, done.stderr.decode(errors="replace")


def check_lost_output(checks, tool, work):
    for number, command in enumerate(PRINTING):
        words = words_of(work, command, number)
        with open("/dev/full", "w") as full:
            code, stderr = run_to(full, tool, words)
        checks.check(f"{command} >/dev/full", code == 4 and "stdout" in stderr and "space" in stderr, f"{code}: {stderr}")
        code, stderr = run_to(None, tool, words, preexec_fn=lambda: os.close(1))
        checks.check(f"{command} >&-", code == 4 and "stdout" in stderr and "closed" in stderr, f"{code}: {stderr}")
        reader, writer = os.pipe()
        os.close(reader)
        code, stderr = run_to(writer, tool, words)
        os.close(writer)
        want = 1 if "--can-load" in command else READER_LEFT  # a verdict stays
        checks.check(f"{command} | (gone)", code == want and stderr == "", f"{code}: {stderr}")
    # A verdict is not lost with it, and --quiet needs no stdout.
    code, stderr = run_to(None, tool, words_of(work, "diff SRC FP8 --quiet", 0), preexec_fn=lambda: os.close(1))
    checks.check("diff --quiet >&-", code == 1 and stderr == "", f"{code}: {stderr}")
    code, stderr = run_to(None, tool, words_of(work, "quantize SRC -o DST --quiet", 999), preexec_fn=lambda: os.close(1))
    checks.check("quantize --quiet >&-", code == 0 and stderr == "", f"{code}: {stderr}")
    # If two things fail, the command's own failure is reported.
    for number, command in enumerate(("inspect SRC", "diff SRC SRC", "compare-schemes SRC --sample 2", "quantize SRC -o DST")):
        words = [*words_of(work, command, 990 + number), "--json", os.path.join(work, "limited.json")]
        with open("/dev/full", "w") as full:
            code, stderr = run_to(full, tool, words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
        checks.check(f"{command}, its report too large, >/dev/full", code == 4 and stderr.count("\n") == 1, f"{code}: {stderr}")


def close_all():
    for fd in (0, 1, 2):
        os.close(fd)


def check_closed(checks, tool, work):
    """With 0 to 2 closed, no file of a job gets their numbers. Checked during the run, and by the bytes."""
    source, target, plain = (os.path.join(work, n) for n in ("BIG", "closed", "plain"))
    process = subprocess.Popen([tool, "quantize", source, "-o", target, "--threads", "1"], preexec_fn=close_all, close_fds=False)
    seen = set()
    while process.poll() is None:
        for fd in (0, 1, 2):
            try:
                seen.add(os.readlink(f"/proc/{process.pid}/fd/{fd}"))
            except OSError:
                pass
    # Between fork and exec they are this program's own; a file below `work` can only be the job's.
    taken = sorted(name for name in seen if name.startswith(os.path.realpath(work)))
    checks.check("closed descriptors: /dev/null stands in", "/dev/null" in seen and not taken, sorted(seen))
    checks.check("closed descriptors: exit code", process.returncode == 4, process.returncode)
    code, _, stderr = harness.run(tool, ["quantize", source, "-o", plain, "--quiet"])
    difference = harness.tree_difference(target, plain)
    checks.check("closed descriptors: the same output", code == 0 and difference is None, difference or stderr)


# ---- hostile names ----


def check_shown(checks, command, code, text, forged="PASS  names"):
    """Checks `text`, the output for a terminal."""
    found = CONTROLS.search(text)
    checks.check(f"{command}: nothing steers the terminal", found is None, found and repr(text[max(0, found.start() - 60):][:120]))
    checks.check(f"{command}: no forged line", not any(line.startswith(forged) for line in text.split("\n")), text)


def hostile_checkpoint(path, names, config, extra=0):
    os.makedirs(path)
    bf16 = b"\x80\x3f" * (128 * 128 - extra) + b"\x00\x40" * extra
    harness.write_safetensors(os.path.join(path, "model.safetensors"), {n: ("BF16", (128, 128), bf16) for n in names})
    with open(os.path.join(path, "config.json"), "w") as file:
        json.dump(config, file)


def check_hostile(checks, tool, work):
    path = lambda name: os.path.join(work, name)
    names = [f"model.layers.0.mlp.{EVIL}.up_proj.weight", "model.layers.0.mlp.down_proj.weight", f"{EVIL}.norm.weight"]
    config = {"model_type": EVIL, "hidden_size": 128, "architectures": [EVIL], "torch_dtype": EVIL}
    hostile_checkpoint(path("evil"), names, config)
    hostile_checkpoint(path("other"), names, config, extra=5000)
    hostile_checkpoint(path("short"), names[:1], config)
    hostile_checkpoint(path("method"), names, config | {"quantization_config": {"quant_method": EVIL, "fmt": EVIL}})
    commands = [
        (["inspect", path("evil"), "--can-load", "all"], None), (["inspect", path("method"), "--can-load", "all"], None),
        (["inspect", f"{path('evil')}:{names[0]}"], None), (["inspect", f"{path('evil')}:{EVIL}"], 2),
        (["quantize", path("evil"), "--dry-run"], 0), (["quantize", path("evil"), "-o", path("out")], 0),
        (["quantize", path("evil"), "-o", path("evil/out")], 2), (["quantize", path("method"), "-o", path("never")], None),
        (["convert", path("out"), "-o", path("back"), "--to", "bf16"], 0),
        (["convert", path("out"), "--to", "bf16", "--dry-run"], 0),
        (["convert", path("evil"), "-o", path("ranks"), "--to", "tp", "--tp", "2"], None),
        (["convert", path("evil"), "-o", path("packed"), "--to", "archive"], 0),
        (["convert", path("evil"), "-o", path("never"), "--to", "deepseek-mp", "--mp", "1"], None),
        (["compare-schemes", path("evil")], None), (["plan-schemes", path("evil"), "--bits", "8"], None),
        (["diff", path("evil"), path("other")], 1),
        (["diff", path("evil"), path("short")], 1), (["verify", path("other"), "--against", path("evil")], 1),
        (["verify", path("short"), "--against", path("evil"), "--junit", path("junit.xml")], 1),
        (["verify", "all", path("short"), "--against", path("evil"), "--device", "cpu"], 1),
        (["verify", "gemm", path("out"), "--device", "cpu"], None), (["verify", "mla", path("evil"), "--layer", "0"], None),
        (["verify", "forward", path("evil"), "--against", path("evil")], 3), ([EVIL], 2), (["inspect", EVIL], 2),
        (["quantize", path("evil"), f"--{EVIL}"], 2), (["quantize", path("evil"), "--scheme", EVIL], 2),
        (["quantize", path("evil"), "-o", path("never"), "--exclude", "a\nb"], 2),
        (["quantize", path("evil"), "-o", path("never\n")], 2), (["inspect", path("evil"), "--can-load", EVIL], 2),
        (["verify", path("evil"), "--against", path("other"), "--tensors", EVIL], 2), (["verify", EVIL, EVIL], 2),
    ]
    for command, want in commands:
        code, stdout, stderr = harness.run(tool, command)
        shown = " ".join(str(w).replace(f"{work}/", "") for w in command).replace(EVIL, "EVIL")
        checks.check(f"{shown}: exit code", want is None or code == want, f"{code} instead of {want}: {stderr}")
        if "verify" not in command or code > 1:
            check_shown(checks, shown, code, stdout + stderr)
        else:
            check_shown(checks, shown, code, stdout + stderr, "PASS  names\\")
    checks.check("the escaped name is told", "\\nPASS  names\\x1b[2J" in harness.run(tool, ["diff", path("evil"), path("short")])[1])
    failures = [f.text for f in ElementTree.parse(path("junit.xml")).iter("failure")]
    checks.check("JUnit is XML, and says the whole name", any("\\x1b[2J" in t and "<b>&\"'" in t for t in failures), failures)
    code, stdout, _ = harness.run(tool, ["diff", path("evil"), path("short"), "--json", "-"])
    checks.check("JSON keeps names as they are", names[0] in [t["name"] for t in json.loads(stdout)["tensors"]])
    checks.check("JSON does not steer the terminal", CONTROLS.search(stdout) is None, stdout)


def check_file_names(checks, tool, work):
    """Names of files with control characters would be in journals and lists, so they are rejected first."""
    for name in ("notes\nforged.txt", "notes\x1b[2J.txt", "tokenizer\x7f.json"):
        source = os.path.join(work, f"names{len(name)}{ord(name[5])}")
        hostile_checkpoint(source, ["model.layers.0.mlp.up_proj.weight"], {"model_type": "llama"})
        with open(os.path.join(source, name), "w") as file:
            file.write("text\n")
        for words in (["inspect", source], ["quantize", source, "-o", source + "-out"]):
            code, stdout, stderr = harness.run(tool, words)
            checks.check(f"{name!r}: refused", code == 3 and "control character" in stderr, f"{code}: {stderr}")
            check_shown(checks, repr(name), code, stdout + stderr)
        checks.ends(f"{name!r}: --ignore-file leaves it out", tool, ["inspect", source, "--ignore-file", "notes*", "--ignore-file", "tokenizer*"])


def check_long_names(checks, tool, work):
    """The reason is printed after a name of any length."""
    for length in 900, 1100, 5000, 60000:
        source = os.path.join(work, f"long{length}")
        name = f"model.layers.0.mlp.{'x' * length}.up_proj.weight"
        os.makedirs(source)
        harness.write_safetensors(os.path.join(source, "model.safetensors"), {name: ("BF16", (128, 128), b"\xc0\x7f" * (128 * 128))})
        with open(os.path.join(source, "config.json"), "w") as file:
            json.dump({"model_type": "llama"}, file)
        code, _, stderr = harness.run(tool, ["quantize", source, "-o", source + "-out"])
        checks.check(f"NaN in a tensor whose name has {length} bytes", code == 3 and "NaN" in stderr and "up_proj.weight'" in stderr and len(stderr) < 1100,
                     f"{code}: {stderr}")


# ---- a terminal ----


def on_terminal(tool, words, columns, **environment):
    return harness.on_terminal(tool, words, columns, **{"NO_COLOR": None, **environment})


def check_terminal(checks, tool, work):
    source, target = os.path.join(work, "BIG"), os.path.join(work, "shown")
    for columns in (12, 40, 80, 200):
        code, text = on_terminal(tool, ["quantize", source, "-o", target, "--force", "--scales", "mse", "--threads", "1"], columns)
        updates = [u.split("\n")[0].rstrip("\r") for u in text.split("\r\x1b[K")[1:]]
        shown = [u for u in updates[:-1] if u]
        checks.check(f"{columns} columns: progress fits", code == 0 and shown and all(len(u) < columns for u in shown),
                     (code, max(map(len, shown), default=0), shown[:2]))
        if columns >= 80:
            checks.check(f"{columns} columns: verb and count", any(u.startswith("quantizing: ") for u in shown)
                         and not any("converting" in u for u in shown), shown[:2])
        if columns == 200:
            checks.check("tensors are counted", any("/1500 tensors, " in u for u in shown), shown[:2])
    archive = ["convert", source, "-o", os.path.join(work, "packed-big"), "--to", "archive", "--level", "9", "--threads", "1"]
    code, text = on_terminal(tool, archive, 200)
    checks.check("archives count files", code == 0 and re.search("archiving: [01]/1 files, ", text) and "tensors, " not in text.split("next")[0],
                 text[:200])
    words = ["verify", os.path.join(work, "FP8"), "--against", os.path.join(work, "SRC")]
    colours = lambda text: set(re.findall(r"\x1b\[[0-9;]*m", text))
    checks.check("colour on a terminal", colours(on_terminal(tool, words, 80)[1]) == {"\x1b[32m", "\x1b[0m"})
    wrong = [*words[:3], os.path.join(work, "NONE")]
    checks.check("colour of an error", "\x1b[31mtessera:" in on_terminal(tool, wrong, 80)[1])
    for why, environment in (("NO_COLOR", {"NO_COLOR": "1"}), ("a dumb terminal", {"TERM": "dumb"})):
        text = on_terminal(tool, words, 80, **environment)[1] + on_terminal(tool, wrong, 80, **environment)[1]
        checks.check(f"{why}: no colour", not colours(text), text)
    checks.check("no colour in a pipe", not colours("".join(harness.run(tool, words)[1:])))


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        source = harness.make_checkpoint(options.make, "llama", os.path.join(work, "SRC"))
        os.symlink("/proc/self/fd/1", os.path.join(work, "STDOUT"))  # never /dev/stdout: it could be renamed over
        harness.run(options.tessera, ["quantize", source, "-o", os.path.join(work, "FP8"), "--quiet"])
        hostile_checkpoint(os.path.join(work, "BIG"), [f"model.layers.{i}.mlp.up_proj.weight" for i in range(1500)],
                           {"model_type": "llama"})
        check_closed(checks, options.tessera, work)
        check_lost_output(checks, options.tessera, work)
        check_hostile(checks, options.tessera, work)
        check_terminal(checks, options.tessera, work)
        check_file_names(checks, options.tessera, work)
        check_long_names(checks, options.tessera, work)


if __name__ == "__main__":
    main()
