#!/usr/bin/env python3
"""Tests ./dev: relative names, typos, help, machines without tools, and builds of other users.

Most cases run a copy of the script and of what it sources, with a PATH that holds nothing but what is named. The folder
of the repository has a build in build/.
"""

import os
import pathlib
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Commands that the script itself needs on any machine.
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
    """Makes a folder for PATH with links to these tools, and small scripts {name: text}."""
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
    """Copies the script and the sources, without git and without a build."""
    place = work / "copy"
    place.mkdir()
    shutil.copy(ROOT / "dev", place)
    for folder in ("common", "formats", "kernels", "quantize", "convert", "verify", "report", "lib", "cli", "tests"):
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
    """`run` resolves names in the caller's folder, for any place of the repository."""
    made = work / "elsewhere/model"
    made.parent.mkdir()
    harness.make_checkpoint(options.make, "deepseek-v3", made, scale="tiny")
    code, out, err = run([ROOT / "dev", "run", "quantize", "model", "-o", "out", "--quiet"], made.parent)
    checks.check("run: names from the caller's folder", code == 0 and (made.parent / "out/config.json").exists(), f"{code}: {err}")
    code, out, err = run([ROOT / "dev", "run", "inspect", "no-such-model"], made.parent)
    checks.check("run: the tool's exit code", code == 4 or code == 3, f"{code}: {err}")


def missing_tools(checks, place, work):
    """Without root and sudo, the command to install is printed, and nothing else happens. If nothing is missing, no package
    is installed."""
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
    code, out, err = run(["bash", "-c", ". ./tests/needs.sh; have() { command -v \"$1\" >/dev/null 2>&1; }; need_for build && echo here"],
                         place, f"{whole}:{os.environ['PATH']}")
    checks.check("everything there, whatever its package", code == 0 and out == "here\n", f"{code}: {out}{err}")


def gpu_kernels(checks, place, work):
    """Kernels are compiled if there is a GPU, or if a command needs one. A build/ from another machine is run unchanged."""
    if any(os.path.exists(device) for device in ("/dev/nvidiactl", "/dev/dxg")):
        print("left out: what is built without a GPU (there is one)")
        return
    log, build = work / "built", place / "build"
    note = f'echo "$(basename "$0") $*" >>{log}'
    scripts = {"meson": f'{note}; [ "$1" != setup ] || {{ mkdir -p "$2"; touch "$2/build.ninja"; }}', "ninja": note}
    where = [folder for folder in os.environ["PATH"].split(":") if not os.path.exists(os.path.join(folder, "nvcc"))]
    without = ":".join([str(machine(work, "no-nvcc", (), scripts)), *where])
    with_nvcc = ":".join([str(machine(work, "nvcc", (), {**scripts, "nvcc": note})), *where])

    def said(*command, path):
        log.write_text("")
        code, _, err = run([place / "dev", *command], work, path)
        return code, log.read_text().splitlines(), err

    _, steps, err = said("run", "--version", path=with_nvcc)
    checks.check("no GPU: run leaves its kernels out", steps[:1] == ["meson setup build -Dcuda=disabled"], f"{steps}{err}")
    _, steps, err = said("run", "--version", path=with_nvcc)
    checks.check("no GPU: the build stays as it is", steps and not any(step.startswith("meson") for step in steps), f"{steps}{err}")
    code, steps, err = said("gpu", "test", path=without)
    checks.check("gpu test of a build without its kernels, and no nvcc: what to do", code == 1 and steps == [] and "-Dcuda=enabled" in err, f"{code}: {steps}{err}")
    _, steps, err = said("gpu", "test", path=with_nvcc)
    checks.check("gpu test adds the kernels", "meson configure build -Dcuda=auto" in steps and steps[-1] == "ninja -C build", f"{steps}{err}")
    for path in (build / "tests/gpu/test_gemm", build / "tests/gpu/test_races"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\nexit 7\n")
        path.chmod(0o755)
    (build / "build.ninja").write_text("rule cuda_COMPILER\n")
    code, steps, err = said("gpu", "test", path=without)
    checks.check("gpu test runs a build that was brought", code == 7 and steps == [], f"{code}: {steps}{err}")
    (build / "build.ninja").unlink()
    code, steps, err = said("gpu", "test", path=without)
    checks.check("gpu test runs its programs alone, too", code == 7 and steps == [], f"{code}: {steps}{err}")
    shutil.rmtree(build)


def another_user(checks, place, work):
    """A build made by root is rejected with one line for another user."""
    build = place / "build"
    build.mkdir()
    (build / "build.ninja").touch()
    command = [place / "dev", "run", "--version"]
    if os.getuid() == 0:
        os.chmod(work, 0o755)
        command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
    else:
        build.chmod(0o555)
    code, out, err = run(command, work)
    checks.check("run in a build of another user: a line", code == 1 and err.count("\n") == 1 and "sudo chown -R" in err and "build" in err, f"{code}: {out}{err}")
    build.chmod(0o755)
    shutil.rmtree(build)


def missing_criterion(checks, work):
    """Without Criterion, meson setup prints a warning, and the unit suite is an error, not a skip or a success."""
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
    """The format check fails for a misformatted source and for an empty tree, also without git."""
    env = {"GIT_DIR": "/nonexistent"}
    venv = ROOT / ".venv/bin/clang-format"
    if not venv.exists():
        checks.check("the tests' environment has clang-format", False, f"{venv} is missing")
        return
    (place / ".venv/bin").mkdir(parents=True)
    (place / ".venv/bin/clang-format").symlink_to(venv)
    command = [place / "tests/format.sh", "--dry-run", "-Werror"]
    code, out, err = run(command, place, **env)
    checks.check("style without git", code == 0, f"{code}: {out}{err[:500]}")
    with open(place / "verify/mla/rope.c", "a") as file:
        file.write("int  misformatted( void ) ;\n")
    code, out, err = run(command, place, **env)
    checks.check("style: a misformatted file fails", code != 0 and "rope.c" in err, f"{code}: {out}{err[:500]}")
    for folder in ("verify", "kernels", "convert", "formats", "cli", "tests/unit"):
        shutil.rmtree(place / folder)
    code, out, err = run(command, place, **env)
    checks.check("style: an empty tree fails", code != 0 and "sources found" in out, f"{code}: {out}")


MESON_BUILD = """
project('sample', meson_version: '>=1.0.0')
run = find_program('tests/run.sh')
test('passes', run, args: ['true'], suite: 'usual')
test('lacks a file', run, args: ['--needs', 'no-such-file', 'false'], suite: 'usual')
test('fails', run, args: ['sh', '-c', 'echo detail 17; exit 3'], suite: 'usual')
test('attack', run, args: ['--attack', 'echo', 'arguments:'], suite: 'attack')
add_test_setup('long')
"""


def scheduled(checks, work):
    """Runs a small list of tests as ./dev test does: failures with the line to repeat them, skips with a reason, and
    complete logs of attacks."""
    place = work / "scheduled"
    (place / "tests").mkdir(parents=True)
    for script in ("run.sh", "summary.py", "builds.sh"):
        shutil.copy(ROOT / "tests" / script, place / "tests")
    (place / "meson.build").write_text(MESON_BUILD)
    script = """
        set -euo pipefail
        here=$PWD command=test
        have() { command -v "$1" >/dev/null 2>&1; }
        need_for() { :; }
        venv() { :; }
        say() { echo "$*" >&2; }
        . tests/builds.sh
        build_gcc() { [ -d build ] || meson setup build >/dev/null; }
        build_clang() { echo clang built; }
        build_tsan() { echo tsan built; }
        run_tests "$@"
        """

    def test(*words):
        code, out, err = run(["bash", "-c", script, "-", *words], place)
        log = place / f"build/meson-logs/testlog{'-long' if '--long' in words else ''}.txt"
        return code, out, err, log.read_text() if log.exists() else ""

    code, out, err, _ = test()
    for words in ("detail 17", "./dev test fails\n", "skipped lacks a file: skipped: there is no no-such-file", "1 passed, 1 failed, 1 skipped",
                  "clang built", "tsan built"):
        checks.check(f"test: {words.strip()}", code == 1 and words in out, f"{code}: {out}{err}")
    checks.check("test: no attack", "attack" not in out, out)
    code, out, err, _ = test("PASS")
    checks.check("test: one by a part of its name", code == 0 and "1 passed, 0 failed, 0 skipped" in out and "tsan" not in out, f"{code}: {out}{err}")
    code, out, err, log = test("--sample")
    checks.check("test --sample: a sample of the attacks", code == 0 and "1 passed" in out and "arguments:\n" in log, f"{code}: {out}{err}{log}")
    code, out, err, log = test("--long")
    checks.check("test --long: all tests, and all of the attacks", code == 1 and "detail 17" in out and "arguments: --all" in log, f"{code}: {out}{err}{log}")
    code, out, err, _ = test("no such test")
    checks.check("test: a name that no test has", code == 2 and "no test's name contains 'no such test'" in err and "lacks a file" in err, f"{code}: {out}{err}")


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    with harness.checks_in(options.directory) as (checks, work):
        words(checks)
        relative_names(checks, options, work)
        scheduled(checks, work)
        missing_criterion(checks, work)
        place = copy(work)
        missing_tools(checks, place, work)
        gpu_kernels(checks, place, work)
        another_user(checks, place, work)
        style(checks, place)


if __name__ == "__main__":
    main()
