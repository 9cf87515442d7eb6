#!/usr/bin/env python3
"""Compares digests of outputs with those in drift.txt, which must not depend on kernels, compiler, optimization or version.

Each job of tests/common/jobs.py runs on a tiny checkpoint that is made from a seed. A digest is SHA-256 over names
and contents, without .tessera, the manifest and the model card. A sample runs the built tool with all instruction sets, and a third
of the jobs also with none: other jobs in each turn. --all runs all combinations of --cpumask, builds by GCC and Clang
from -O0 to -O3, and one for aarch64 if a cross compiler and qemu-user are installed.

--write writes drift.txt after an intended change, and lists the jobs that changed. The commit must give the reason."""

import contextlib
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("common", "oracles")]
import harness  # noqa: E402
import jobs  # noqa: E402
import turns  # noqa: E402

KEPT = ROOT / "tests/outputs/drift.txt"
# Files that tell of a run: when its sources were made, which commit and version.
RUNS_OWN = (".tessera", "tessera.manifest.json", "README.md", "README.source.md", "README.source.source.md")
BUILDS = {f"{compiler} -O{level}": (compiler, level) for compiler in ("gcc", "clang") for level in (0, 1, 2, 3)}


def digest_of(tree):
    """Returns the digest of all names and contents, in the order of the names."""
    total = hashlib.sha256()
    for path in sorted(path for path in pathlib.Path(tree).rglob("*") if path.is_file()):
        name = path.relative_to(tree)
        if name.name in RUNS_OWN or name.parts[0] in RUNS_OWN or ".tessera" in name.parts:
            continue
        total.update(str(name).encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:32]


def read_kept():
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else []
    return dict(reversed(line.split("  ", 1)) for line in lines if line and not line.startswith("#"))


def write_kept(found):
    told = "# Digests of what each job of tests/common/jobs.py writes: tests/outputs/drift.py, which says how to make them anew.\n"
    KEPT.write_text(told + "".join(f"{digest}  {name}\n" for name, digest in found.items()), encoding="utf-8")


def run_job(tool, job, words):
    """Returns the digest of the job's output for the folder `in`, or the error."""
    shutil.rmtree("out", ignore_errors=True)
    code, _, stderr = harness.run(tool, [*jobs.words(job.command, "in", "out"), *words, "--quiet"])
    return digest_of("out") if code == 0 else f"exit {code}: {stderr.strip()[-200:]}"


def sources_of(options):
    """Yields each job after making its source as `in` in the working directory of this process."""
    for job in [*jobs.JOBS, *jobs.MORE]:
        for place in ("in", "out"):
            shutil.rmtree(place, ignore_errors=True)
        kind, small, _ = job.kind.partition("-small")
        made = jobs.make_source(options.tessera, options.make, job, kind, "made", scale="small" if small else "tiny")
        os.rename(made, "in")
        yield job


def masks_of(job, most):
    """Returns the instruction sets to test: all and scalar, and with `most` those between."""
    return [[], *(["--cpumask", str(mask)] for mask in ((0, 1, 3) if most else (0,)))]


@contextlib.contextmanager
def emulated(work):
    """Yields the tool for aarch64 as a program for this machine, or None if it cannot be built or run."""
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    libraries = subprocess.run([str(ROOT / "tests/aarch64/libraries.sh"), "build-aarch64-libraries"], cwd=ROOT, check=False)
    if not qemu or libraries.returncode != 0:
        yield None
        return
    folder = os.path.join(work, "aarch64")
    subprocess.run(["meson", "setup", folder, str(ROOT), "--cross-file", str(ROOT / "build-aarch64-libraries/place.ini"), "--cross-file",
                    str(ROOT / "tests/aarch64/cross.ini"), "-Dauto_features=disabled"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", folder, "cli/tessera"], check=True, stdout=subprocess.DEVNULL)
    script = pathlib.Path(work, "tessera-aarch64")
    script.write_text(f"#!/bin/sh\nexec {shlex.quote(qemu)} {shlex.quote(folder)}/cli/tessera \"$@\"\n", encoding="utf-8")
    script.chmod(0o755)
    yield str(script)


def built(work):
    """Returns {name: tool} of every installed compiler and each of its optimization levels."""
    tools = {}
    for name, (compiler, level) in BUILDS.items():
        found = shutil.which(compiler) or next(filter(None, (shutil.which(f"clang-{n}") for n in range(20, 13, -1))), None)
        if compiler == "clang" and not found:
            print(f"left out: {name}: no such compiler here")
            continue
        folder = os.path.join(work, name.replace(" ", ""))
        cached = "ccache " if shutil.which("ccache") else ""
        subprocess.run(["meson", "setup", folder, str(ROOT), f"-Doptimization={level}", "-Ddebug=false", "-Dauto_features=disabled",
                        "-During=auto"], check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, CC=cached + found))
        subprocess.run(["ninja", "-C", folder, "cli/tessera"], check=True, stdout=subprocess.DEVNULL)
        tools[name] = os.path.join(folder, "cli/tessera")
        print(f"built by {name}", flush=True)
    return tools


def main():
    parser = harness.argument_parser(__doc__)
    parser.add_argument("--all", action="store_true", help="every form of the kernels, and builds of its own")
    parser.add_argument("--write", action="store_true", help="make drift.txt anew")
    options = parser.parse_args()
    options.tessera, options.make = (os.path.abspath(path) for path in (options.tessera, options.make))
    checks, kept, found = harness.Checks(), read_kept(), {}
    with harness.temporary_directory(options.directory) as work, contextlib.ExitStack() as stack:
        tools = {"the built tool": options.tessera, **(built(work) if options.all else {})}
        foreign = stack.enter_context(emulated(work)) if options.all else None
        tools.update({"aarch64, emulated": foreign} if foreign else {})
        os.makedirs(os.path.join(work, "at"))
        os.chdir(os.path.join(work, "at"))
        harness.fork_runs([options.tessera], str(pathlib.Path(options.make).parents[2]))
        of_definitions = turns.part([job.name for job in (*jobs.JOBS, *jobs.MORE)], 1 if options.all or options.write else 3)
        for job in sources_of(options):
            for name, tool in tools.items():
                for words in masks_of(job, options.all) if tool != foreign and job.name in of_definitions else [[]]:
                    digest = run_job(tool, job, words)
                    found.setdefault(job.name, digest)
                    what = " ".join([f"{job.name}: {name}", *words])
                    checks.check(what, digest == (found if options.write else kept).get(job.name), f"{digest}; kept is {kept.get(job.name)}")
    if options.write:
        changed = [name for name in {**kept, **found} if kept.get(name) != found.get(name)]
        write_kept(found)
        print(f"{len(found)} digests, {len(changed)} of them changed: {', '.join(changed[:20])}")
    else:
        checks.check("every job has a line, and every line a job", set(kept) == set(found), sorted(set(kept) ^ set(found))[:5])
        print(f"{len(found)} jobs, {len(tools)} builds, {checks.passed} outputs as they are kept")
    checks.finish()


if __name__ == "__main__":
    main()
