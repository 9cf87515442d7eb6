#!/usr/bin/env python3
"""Tests that the sandbox blocks forbidden calls, and does not disturb normal runs.

A preloaded fault (escape.c) opens files that the command does not name, writes to the source, connects, and starts a
program. All this must fail, and must succeed with --no-sandbox. Then jobs run with and without the sandbox, and must
give the same bytes. --all runs all jobs."""

import errno
import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("common", "oracles")]
import harness
import jobs
import remote_servers
import s3_store

COMMANDS = ["quantize SRC -o DST", "convert SRC -o DST --to bf16 --dtype f16", "convert SRC -o new/below/DST --to archive", "inspect SRC",
            "quantize SRC -o DST --dry-run", "verify SRC --against SRC", "diff SRC SRC", "compare-schemes SRC --sample 2",
            "plan-schemes SRC --bits 5", "verify gemm SRC --device cpu", "verify forward SRC --against SRC --device cpu", "report SRC/config.json"]
# Quick ones that take every way through the engine.
SAMPLE = ("quantize f32", "quantize nvfp4", "convert tp", "convert archive", "convert merge")


def escapes(options, shim, place, command, *before):
    """Runs a command with the planted fault. Returns {attempted operation: error number}."""
    source = place / "source"
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(place / "model", source)
    for name in ("DST", "new"):
        shutil.rmtree(place / name, ignore_errors=True)
    other = place / "elsewhere" / "other"
    shutil.rmtree(other.parent, ignore_errors=True)
    other.parent.mkdir()
    other.write_text("nobody's")
    words = [{"SRC": "source", "SRC/config.json": "source/config.json"}.get(word, word) for word in command.split()]
    begin, end = os.pipe()
    environment = dict(os.environ, LD_PRELOAD=str(shim), ESCAPE_FD=str(end), ESCAPE_OTHER=str(other),
                       ESCAPE_SOURCE=str(next(source.glob("*.safetensors"))))
    with os.fdopen(begin) as told:
        subprocess.run([options.tessera, *before, *words], cwd=place, env=environment, pass_fds=[end], check=False,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(end)
        lines = told.read().splitlines()
    return {what: int(number) for what, number in (line.rsplit(" ", 1) for line in lines)}, other


def held_links(checks, options, shim, place):
    """Files linked by --link hard are writable neither in the source nor in the output."""
    os.environ["ESCAPE_LINKED"] = str(place / "DST" / "tokenizer.json")
    for before in [], ["--no-sandbox"]:
        found, _ = escapes(options, shim, place, "quantize SRC -o DST --link hard", *before)
        is_linked = (place / "DST" / "tokenizer.json").exists() and os.path.samefile(place / "DST" / "tokenizer.json", place / "source" / "tokenizer.json")
        right = (lambda number: number == 0) if before else (lambda number: number in (errno.EPERM, errno.EACCES, errno.EXDEV))
        wrong = [what for what, number in found.items() if not right(number)]
        checks.check(f"--link hard {''.join(before)}: the tries", len(found) == 19 and not wrong, wrong or found)
        if not before:
            checks.check("--link hard: links", is_linked)
            checks.check("--link hard: nothing was harmed", harness.tree_difference(place / "model", place / "source") is None)
    del os.environ["ESCAPE_LINKED"]


def held(checks, options, shim, place):
    for command in COMMANDS:
        found, other = escapes(options, shim, place, command)
        through = [what for what, number in found.items() if number not in (errno.EPERM, errno.EACCES, errno.EXDEV)]
        checks.check(f"{command}: nothing leaves the sandbox", len(found) == 16 and not through, through or found)
        checks.check(f"{command}: nothing was harmed", other.read_text() == "nobody's" and len(list(other.parent.iterdir())) == 1
                     and harness.tree_difference(place / "model", place / "source") is None, command)
    found, _ = escapes(options, shim, place, COMMANDS[0], "--no-sandbox")
    kept = {what for what, number in found.items() if number != 0}
    checks.check("--no-sandbox: all of it goes through", len(found) == 16 and not kept, kept)


def held_remote(checks, options, shim, place):
    """With a remote source or output, only connections are allowed in addition."""
    if not json.loads(harness.run(options.tessera, ["--version", "--json"])[1])["features"]["remote"]:
        print("skipped: remote sources (built without libcurl)")
        return
    os.environ.update(no_proxy="*", XDG_CACHE_HOME=str(place / "cache"))
    with remote_servers.Server(place) as server, s3_store.Store() as store:
        os.environ.update(store.environment(place))
        for command in (f"quantize {server.url}/model -o DST", f"inspect {server.url}/model", "quantize SRC -o s3://bucket/out --spool DST"):
            found, other = escapes(options, shim, place, command)
            checks.check(f"{command}: runs", "inspect" in command or (place / "DST" / "config.json").exists())
            connected = found.pop("connect", None)
            through = [what for what, number in found.items() if number not in (errno.EPERM, errno.EACCES, errno.EXDEV)]
            checks.check(f"{command}: only connections leave the sandbox", len(found) == 15 and connected == 0 and not through, through or found)
            checks.check(f"{command}: nothing was harmed", other.read_text() == "nobody's" and len(list(other.parent.iterdir())) == 1
                         and harness.tree_difference(place / "model", place / "source") is None, command)


def same_bytes(checks, options, work, chosen):
    for number, job in enumerate(chosen):
        place = work / f"job.{number}"
        place.mkdir()
        kind, small, _ = job.kind.partition("-small")
        source = jobs.make_source(options.tessera, options.make, job, kind, place / "source", scale="small" if small else "tiny")
        for folder, before in (("in", []), ("out", ["--no-sandbox"])):
            checks.ends(f"{job.name}: runs {folder}", options.tessera, [*before, *jobs.words(job.command, source, place / folder), "--quiet"])
            shutil.rmtree(place / folder / ".tessera", ignore_errors=True)
        difference = harness.tree_difference(place / "in", place / "out")
        checks.check(f"{job.name}: the same bytes", difference is None and (place / "in").is_dir(), difference)
        shutil.rmtree(place)


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="the bytes of every job, not of a sample")
    options = parser.parse_args()
    options.tessera = os.path.abspath(options.tessera)
    shim = pathlib.Path(options.make).resolve().parent.parent / "robustness/paths/escape.so"
    code, told, _ = harness.run(options.tessera, ["--version", "--json"])
    if code != 0 or '"landlock_abi": null' in told or '"seccomp": false' in told:
        print("skipped: the sandbox (this kernel has no Landlock, or no seccomp)")
        sys.exit(77)
    with harness.checks_in(options.directory) as (checks, work):
        harness.make_checkpoint(options.make, "llama", work / "model", scale="tiny")
        held(checks, options, shim, work)
        held_links(checks, options, shim, work)
        held_remote(checks, options, shim, work)
        chosen = jobs.JOBS if options.all else [job for job in jobs.JOBS if job.name in SAMPLE]
        same_bytes(checks, options, work, chosen)
        print(f"{(len(COMMANDS) + 3) * 16 + 19} tries to leave the sandbox; {len(chosen)} jobs inside and outside")


if __name__ == "__main__":
    main()
