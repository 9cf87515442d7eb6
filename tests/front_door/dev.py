#!/usr/bin/env python3
"""What a newcomer types at ./dev: relative names, misspelt commands, help, a machine where tools are missing.

Most cases run a copy of the script and of what it sources, with a PATH that holds nothing but what is named. The folder
of the repository has a build in build/.
"""

import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "common"))
import harness

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# What the script itself is made of, on any machine.
PLAIN = ("bash", "sh", "env", "awk", "cat", "cut", "dirname", "find", "grep", "head", "id", "mktemp", "rm", "sed", "sort", "tail",
         "tr", "wc", "mkdir", "cmp", "uname")


def run(command, where, path=None, **variables):
    env = {key: value for key, value in os.environ.items() if key not in ("CC",)}
    env.update(variables)
    if path:
        env["PATH"] = str(path)
    done = subprocess.run(list(map(str, command)), cwd=where, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def machine(work, name, tools, scripts=()):
    """A folder for PATH: links to these tools, and small scripts {name: text}."""
    folder = work / name
    folder.mkdir()
    for tool in (*PLAIN, *tools):
        found = shutil.which(tool)
        if found:
            (folder / tool).symlink_to(os.path.realpath(found) if tool == "bash" else found)
    for script, text in dict(scripts).items():
        (folder / script).unlink(missing_ok=True)
        (folder / script).write_text(f"#!/bin/sh\n{text}\n")
        (folder / script).chmod(0o755)
    return folder


def copy(work):
    """The script and the sources, without git and without a build."""
    place = work / "copy"
    place.mkdir()
    shutil.copy(ROOT / "dev", place)
    for folder in ("common", "formats", "kernels", "quantize", "convert", "verify", "cli", "tests"):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".clang-format", place)
    return place


def words(checks):
    dev = ROOT / "dev"
    for typed, meant in (("tset", "test"), ("dmeo", "demo"), ("rnu", "run"), ("formt", "format")):
        code, out, err = run([dev, typed], ROOT)
        checks.check(f"dev {typed}", code == 2 and not out and f"did you mean './dev {meant}'" in err, f"{code}: {out}{err}")
    code, out, err = run([dev, "deploy-everywhere"], ROOT)
    checks.check("dev deploy-everywhere", code == 2 and "did you mean" not in err and "./dev help" in err, f"{code}: {err}")
    code, help_text, _ = run([dev, "help"], "/")
    commands = (ROOT / "dev").read_text().split("commands=(")[1].split(")")[0].split()
    told = {line.split()[1] for line in help_text.splitlines() if line.startswith("  ./dev ")}
    checks.check("help tells of every command", code == 0 and set(commands) == told, f"{sorted(told)} of {commands}")
    arms = {name.strip() for line in (ROOT / "dev").read_text().split('case "$command" in')[1].splitlines() if ")" in line
            for name in line.split(")")[0].split("|") if line[:1].isalpha()}
    checks.check("every command is one of the list", arms - {"-h", "--help"} == set(commands), f"{sorted(arms)}")


def relative_names(checks, options, work):
    """`run` works on the names that the caller meant, wherever the repository lies."""
    made = work / "elsewhere/model"
    made.parent.mkdir()
    harness.make_checkpoint(options.make, "deepseek-v3", made, scale="tiny")
    code, out, err = run([ROOT / "dev", "run", "quantize", "model", "-o", "out", "--quiet"], made.parent)
    checks.check("run: names from the caller's folder", code == 0 and (made.parent / "out/config.json").exists(), f"{code}: {err}")
    code, out, err = run([ROOT / "dev", "run", "inspect", "no-such-model"], made.parent)
    checks.check("run: the tool's exit code", code == 4 or code == 3, f"{code}: {err}")


def missing_tools(checks, place, work):
    """Neither root nor sudo: the exact line, and nothing else happens; with everything there, no package is asked for."""
    user = {"id": 'echo 1000', "dpkg-query": "exit 1", "apt-get": "echo apt-get was run >&2; exit 9",
            "apt-cache": "exit 1"}
    bare = machine(work, "bare", (), user)
    for task in ("demo", "test"):
        code, out, err = run([place / "dev", task], work, bare)
        line = [line for line in err.splitlines() if "apt-get install" in line]
        checks.check(f"{task} without tools: exit code", code == 1, f"{code}: {err}")
        checks.check(f"{task} without tools: one line to run", len(line) == 1 and "apt-get update && apt-get install -y" in line[0], err)
        asked = set(line[0].split("--no-install-recommends")[1].split()) if line else set()
        checks.check(f"{task} without tools: a compiler and Meson", {"gcc", "libc6-dev", "meson", "ninja-build"} <= asked, f"{asked}")
        more = {"clang", "valgrind", "libcriterion-dev", "zstd"}
        checks.check(f"{task} without tools: no more than it needs",
                     more <= asked if task == "test" else not any(name.startswith(("clang", "valgrind", "libcri")) for name in asked),
                     f"{asked}")
        checks.check(f"{task} without tools: nothing was installed", "was run" not in err, err)
    failing_sudo = machine(work, "sudo", (), {**user, "sudo": "exit 1"})
    code, _, err = run([place / "dev", "demo"], work, failing_sudo)
    checks.check("a sudo that may not: the line", code == 1 and "apt-get install" in err, f"{code}: {err}")
    # The same user on this machine, where all is installed, though dpkg knows of no package.
    whole = machine(work, "whole", (), user)
    code, out, err = run(["bash", "-c", f". ./tests/needs.sh; have() {{ command -v \"$1\" >/dev/null 2>&1; }}; need_for build && echo here"],
                         place, f"{whole}:{os.environ['PATH']}")
    checks.check("everything there, whatever its package", code == 0 and out == "here\n", f"{code}: {out}{err}")


def missing_criterion(checks, work):
    """A build without Criterion: setting it up says so, and the unit suite is an error, not a skip or a success."""
    found, build = work / "pkgconfig", work / "without-criterion"
    found.mkdir()
    for library in ("libxxhash", "libzstd"):
        code, folder, _ = run(["pkg-config", "--variable=pcfiledir", library], work)
        if not checks.check(f"{library} is described to pkg-config", code == 0):
            return
        shutil.copy(pathlib.Path(folder.strip()) / f"{library}.pc", found)
    env = {"PKG_CONFIG_LIBDIR": str(found), "PKG_CONFIG_PATH": ""}
    code, out, err = run(["meson", "setup", build, ROOT, "-Dauto_features=disabled"], work, **env)
    checks.check("without Criterion: a warning", code == 0 and "WARNING: Criterion was not found (libcriterion-dev)" in out,
                 f"{code}: {out[-500:]}{err}")
    code, out, err = run(["meson", "test", "-C", build, "--no-rebuild", "--suite", "unit"], work)
    checks.check("without Criterion: the unit suite fails", code != 0 and "install libcriterion-dev" in out, f"{code}: {out}{err}")


def style(checks, place):
    """The check of the style is never vacuous: without git it judges every source, and a misformatted one fails."""
    script = 'eval "$(sed -n "/^sources()/,/^}/p; /^style()/,/^}/p" tests/suite.sh)"; style --dry-run -Werror'
    env = {"GIT_DIR": "/nonexistent"}
    venv = ROOT / ".venv/bin/clang-format"
    if not venv.exists():
        checks.check("the tests' environment has clang-format", False, f"{venv} is missing")
        return
    (place / ".venv/bin").mkdir(parents=True)
    (place / ".venv/bin/clang-format").symlink_to(venv)
    code, out, err = run(["bash", "-c", script], place, **env)
    checks.check("style without git", code == 0, f"{code}: {out}{err[:500]}")
    with open(place / "verify/mla/rope.c", "a") as file:
        file.write("int  misformatted( void ) ;\n")
    code, out, err = run(["bash", "-c", script], place, **env)
    checks.check("style: a misformatted file fails", code != 0 and "rope.c" in err, f"{code}: {out}{err[:500]}")
    for folder in ("verify", "kernels", "convert", "formats", "tests/unit"):
        shutil.rmtree(place / folder)
    code, out, err = run(["bash", "-c", script], place, **env)
    checks.check("style: nothing to judge is no success", code != 0 and "sources found" in out, f"{code}: {out}")


def suite(checks, work):
    """Checks side by side: what failed is said with the line that runs it again, what was skipped with its reason. The slow one
    waits until the failure is told, however busy the machine is."""
    script = """
        set -euo pipefail
        here=$PWD command=test scratch=$1
        have() { command -v "$1" >/dev/null 2>&1; }
        need_scratch() { :; }
        . tests/suite.sh
        [ "$(processors)" = "$(OMP_NUM_THREADS=1 processors)" ] && echo all processors
        processors() { echo 2; }  # also where there is one
        fails() { echo detail 17; return 3; }
        skips() { echo 'skipped: no device'; return 77; }
        told=$1/told
        add 'a slow one' sh -c 'for i in $(seq 600); do ! grep -q ^FAILED "$0" || break; sleep 0.1; done; echo 5 passed, 0 failed' "$told"
        add 'a bad one' fails
        add 'an absent one' skips
        waiting=(0 1 2)
        run_all >"$told"
        cat "$told"
        echo "$passed $failed $skipped ${failures[*]}"
        selected 'Golden vectors' nothing GOLD && ! selected 'golden vectors' nothing && selected anything && echo selects
        """
    code, out, err = run(["bash", "-c", script, "-", work], ROOT)
    for words in ("FAILED  a bad one", "exit 3; again: ./dev test a\\ bad\\ one", "    | detail 17", "skipped an absent one", "no device",
                  "ok      a slow one", "5 passed, 0 failed", "\n1 1 1 a bad one\n", "selects", "all processors"):
        checks.check(f"suite: {words.strip()}", code == 0 and words in out, f"{code}: {out}{err}")
    checks.check("suite: a failure is told before the slow ones end", out.find("FAILED") < out.find("a slow one"), out)
    code, out, err = run([ROOT / "dev", "test", "no such check"], ROOT)
    checks.check("test: a name that no check has", code == 2 and "no check's name contains 'no such check'" in err and "valgrind" in err,
                 f"{code}: {out}{err[:300]}")


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    checks = harness.Checks()
    with harness.temporary_directory(options.directory) as place:
        work = pathlib.Path(place)
        words(checks)
        relative_names(checks, options, work)
        suite(checks, work)
        missing_criterion(checks, work)
        place = copy(work)
        missing_tools(checks, place, work)
        style(checks, place)
    checks.finish()


if __name__ == "__main__":
    main()
