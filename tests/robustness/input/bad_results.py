#!/usr/bin/env python3
"""Tests that `tessera report` rejects invalid and damaged results with exit code 3 and the file and byte.

It must write nothing, in time and memory bounded by the size of the file."""

import json
import os
import pathlib
import resource
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness
import turns

HEAD = '{"schema": "tessera-quantization-report/1", "version": "1", "command": "c", '
TAIL = ', "whole": {}, "kept": []}'
TENSOR = '{"name": "a.layers.0.q.weight", "sqnr_db": 31.5}'
VERIFY = ('{"schema": "tessera-verify/1", "version": "1", "passed": false, "whole": {}, "judged": {"values": 1}, '
          '"findings": [%s], "tensors": []}')


def report(tensors):
    return HEAD + '"tensors": [' + tensors + "]" + TAIL


# name -> (bytes or text, words of the message)
REFUSED = {
    "empty": ("", ["byte 0"]),
    "binary": (bytes(range(256)), ["byte 0"]),
    "not JSON": ("tensors: 3", ["byte 0"]),
    "a list": ("[1, 2]", ["not a result of Tessera"]),
    "another JSON": ('{"model_type": "llama"}', ["no 'schema'", "quantization_report.json"]),
    "another program's schema": ('{"schema": "https://json-schema.org"}', ["not a result of a command"]),
    "a manifest": ('{"schema": "tessera-layout/1"}', ["not a result of a command"]),
    "a later version": ('{"schema": "tessera-verify/2", "news": 1}', ["tessera-verify/2", "reads tessera-verify/1"]),
    "cut in a name": (report(TENSOR)[:100], ["byte"]),
    "cut in front of the end": (report(TENSOR)[:-1], ["byte"]),
    "twice": (report(TENSOR) * 2, ["text after the end"]),
    "a byte order mark": (b"\xef\xbb\xbf" + report(TENSOR).encode(), ["byte 0"]),
    "UTF-16": (report(TENSOR).encode("utf-16"), ["byte 0"]),
    "no UTF-8": (report('{"name": "\xff"}').encode("latin-1"), ["not UTF-8"]),
    "a NUL in a name": (report('{"name": "a\\u0000b"}'), ["NUL"]),
    "no tensors": (HEAD[:-2] + TAIL, ["ends without 'tensors'"]),
    "tensors of another kind": (HEAD + '"tensors": {}' + TAIL, ["expected an array"]),
    "a tensor without a name": (report('{"sqnr_db": 3}'), ["ends without 'name'"]),
    "a tensor that is a number": (report("7"), ["expected an object"]),
    "a name that is a list": (report('{"name": []}'), ["expected a string"]),
    "a figure that is a string": (report('{"name": "a", "sqnr_db": "31"}'), ["expected a number"]),
    "a figure without end": (report('{"name": "a", "sqnr_db": 1' + "0" * 5000 + "}"), ["too many digits"]),
    "a figure beyond doubles": (report('{"name": "a", "amax": 1e400}'), ["exceeds the range of a double"]),
    "a count below 0": (report('{"name": "a", "elements": -1}'), ["a non-negative integer"]),
    "a place of words": (report('{"name": "a", "worst_block_at": ["here"]}'), ["a list of integers"]),
    "a place without end": (report('{"name": "a", "shape": [' + "1, " * 500 + "1]}"), ["too many numbers"]),
    "NaN": (report('{"name": "a", "sqnr_db": NaN}'), ["byte"]),
    "a key twice": (report('{"name": "a", "name": "b"}'), ["duplicate member 'name'"]),
    "a verdict twice": (HEAD + '"passed": true, "passed": false, "tensors": []' + TAIL, ["duplicate member 'passed'"]),
    "a verdict of words": (HEAD + '"passed": "yes", "tensors": []' + TAIL, ["true or false"]),
    "nested too deeply": (HEAD + '"more": ' + "[" * 100 + "]" * 100 + ', "tensors": []' + TAIL, ["nested too deeply"]),
    "too many facts": (HEAD + ", ".join(f'"f{i}": 1' for i in range(1000)) + ', "tensors": []' + TAIL, ["more than"]),
    "a finding without text": (VERIFY % '{"check": null, "where": "x", "what": "y"}', ["without text"]),
    "a finding of numbers": (VERIFY % '{"check": 1, "where": "x", "what": "y"}', ["expected a string"]),
    "a block without size": ('{"schema": "tessera-diff/1", "version": "1", "whole": {}, "tensors": [{"name": "a", "state": "differs", '
                             '"worst_blocks": [{"rows": [5, 5], "columns": [0, 1], "relative_error": 1}]}]}', ["an empty range"]),
}


def many(most):
    """Makes the largest number that fits. Each is small in the file, and must need little memory and time."""
    return {
        "tensors": report(", ".join(['{"name": "a"}'] * most)),
        "layers": report(", ".join(f'{{"name": "l.{i}.x.weight", "sqnr_db": {i % 97}}}' for i in range(most * 2 // 3))),
        "stacks": report(", ".join(f'{{"name": "s{i}.1.x{i}.weight", "sqnr_db": 30}}' for i in range(most * 2 // 3))),
        "findings": VERIFY % ", ".join(f'{{"check": "c{i}", "where": "w.{i}.x", "what": "y"}}' for i in range(most // 3)),
    }


def limits():
    resource.setrlimit(resource.RLIMIT_CPU, (60, 61))


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    harness.fork_runs([options.tessera], os.path.join(os.path.dirname(options.make), "../.."))
    slow = any(word in options.tessera for word in ("asan", "tsan"))
    with harness.checks_in(options.directory) as (checks, work):
        path, sound, out = (os.path.join(work, name) for name in ("result.json", "sound.json", "out.csv"))
        pathlib.Path(sound).write_text(report(TENSOR))
        code, _, stderr = harness.run(options.tessera, ["report", sound])
        checks.check("a sound report", code == 0 and stderr == "", stderr)
        for name, (data, words) in REFUSED.items():
            pathlib.Path(path).write_bytes(data if isinstance(data, bytes) else data.encode())
            for args in ([path], [sound, path], [sound, "--baseline", path]):
                code, stdout, stderr = harness.run(options.tessera, ["report", *args, "--csv", out], cpu=60)
                checks.check(f"{name}: exit code", code == 3 and stdout == "", f"{code}: {stderr.strip()}")
                checks.check(f"{name}: one line", stderr.startswith(f"tessera: {path}: ") and stderr.count("\n") == 1, stderr)
                checks.check(f"{name}: words", all(word in stderr for word in words), stderr.strip())
                checks.check(f"{name}: nothing written", not os.path.exists(out))
        # Under sanitizers neither time nor memory is measured.
        for name, text in many(30_000 if slow and not turns.whole() else 300_000).items():
            pathlib.Path(path).write_text(text)
            for args in ([path], [path, "--baseline", path], [path, "--markdown", os.devnull, "--junit", os.devnull, "--json", out]):
                if name in ("findings", "tensors") and "--baseline" in args:
                    continue  # there is not a figure in them
                done = subprocess.run([options.tessera, "report", *args], capture_output=True, preexec_fn=None if slow else limits)
                checks.check(f"many {name}: {args[1:2]}", done.returncode in (0, 1) and done.stderr == b"",
                             f"{done.returncode}: {done.stderr[-300:]}")
        for place, want in ((work, 2), (os.path.join(work, "none.json"), 3)):
            code, _, stderr = harness.run(options.tessera, ["report", place])
            checks.check(f"exit code {want}", code == want and stderr.count("\n") == 1 and str(place) in stderr, f"{code}: {stderr}")
        json.loads(pathlib.Path(out).read_text())


if __name__ == "__main__":
    main()
