#!/usr/bin/env python3
"""Runs ./dev as a newcomer would: relative names, misspelt commands, help, a machine where tools are missing.

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


def gpu_kernels(checks, place, work):
    """The kernels for GPUs are compiled for a GPU, and for what is asked of one; a build/ that was brought with them is run as it is."""
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
    """A build made by root is refused for another user with one line."""
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


# run_tests with all that costs something put in by this test: what is built, installed and checked says so in $told.
STAND_INS = """
    set -euo pipefail
    here=$PWD command=test scratch=$1 told=$1/said
    have() { command -v "$1" >/dev/null 2>&1; }
    need_scratch() { :; }
    need_for() { :; }
    choose_place() { :; }
    . tests/suite.sh
    . tests/attacks.sh
    processors() { echo 2; }
    say() { echo "$*" >>"$told"; }
    venv() { say the environment; }
    was=$(nice)
    build_gcc() { sleep 0.3; say gcc built; [ "$(nice)" -gt "$was" ] || [ "$was" -gt 14 ] || say before its checks; }
    build_clang() { say clang; sleep 0.3; say clang built; }
    build_tsan() { say tsan built; }
    fuzz() { say "$1 for $FUZZ_SECONDS s"; }
    """


def needs(checks, work):
    """Checks without a build run next to the first build; checks of a failed build are not run."""
    script = STAND_INS + """
        collect() {
            needs=nothing; add 'needs nothing' say nothing
            needs=; add 'needs gcc' say needs gcc
            add 'needs clang' say needs ./build-clang-asan/tool
            add 'needs TSan' say needs build-tsan
        }
        [ "${2:-}" != fails ] || build_clang() { echo cannot be built; return 1; }
        shift 2
        code=0
        run_tests "$@" || code=$?
        echo "code $code"; cat "$told"; rm "$told"
        """
    code, out, err = run(["bash", "-c", script, "-", work, ""], ROOT)
    said = out[out.find("code "):].splitlines()
    checks.check("needs: all have run", code == 0 and said[0] == "code 0" and len(said) == 10 and "8 passed, 0 failed" in out, f"{out}{err}")
    for first, then in (("nothing", "gcc built"), ("gcc built", "needs gcc"), ("the environment", "needs gcc"), ("gcc built", "clang"),
                        ("needs gcc", "clang built"), ("clang built", "needs ./build-clang-asan/tool"),
                        ("tsan built", "needs build-tsan")):
        checks.check(f"needs: '{first}' before '{then}'",
                     first in said and then in said and said.index(first) < said.index(then), f"{said}")
    code, out, err = run(["bash", "-c", script, "-", work, "fails"], ROOT)
    said = out[out.find("code "):].splitlines()
    checks.check("needs: a build that fails", "code 1" in said and "needs gcc" in said and "needs ./build-clang-asan/tool" not in said and
                 "cannot be built" in out and "again: ./dev test build:\\ clang" in out and
                 "not run, for want of a build or an environment: 1 checks" in out and "6 passed, 1 failed" in out, f"{out}{err}")
    code, out, err = run(["bash", "-c", script, "-", work, "", "needs GCC"], ROOT)
    said = out[out.find("code "):].splitlines()
    checks.check("needs: a name brings what it needs alone", sorted(said) == ["code 0", "gcc built", "needs gcc", "the environment"],
                 f"{out}{err}")
    code, out, err = run(["bash", "-c", script, "-", work, "", "needs nothing"], ROOT)
    checks.check("needs: a name that needs nothing", out.endswith("code 0\nnothing\n"), f"{out}{err}")
    code, out, err = run(["bash", "-c", script, "-", work, "", "build: gcc, TSan"], ROOT)
    checks.check("needs: a build by its name", out.endswith("code 0\ntsan built\n"), f"{out}{err}")
    script = STAND_INS + "renice() { return 1; }; collect() { add one say one; }; shift; run_tests"
    code, out, err = run(["timeout", "60", "bash", "-c", script, "-", work], ROOT)
    checks.check("needs: a user who may not be nicer", code == 0 and "3 passed, 0 failed" in out, f"{code}: {out}{err}")


def attacks(checks, work):
    """--sample and --long have the same attacks, each longer in the second; a name chooses among them, and a failed one is told
    with its option."""
    script = STAND_INS + """
        for option in --sample --long; do
            names=() commands_of=()
            run_all() { printf '%s|' "${names[@]}"; printf '%s|' "${commands_of[@]}"; passed=1; waiting=(); }
            code=0
            (run_tests "$option") || code=$?
            echo "code $code"
        done
        """
    code, out, err = run(["bash", "-c", script, "-", work], ROOT)
    rows = [[cell for cell in line.split("|")[:-1]] for line in out.splitlines() if "|" in line]
    if checks.check("attacks: both lists", code == 0 and len(rows) == 2 and len(rows[0]) == len(rows[1]) and out.count("code 0") == 2,
                    f"{code}: {out}{err}"):
        commands = list(zip(*rows))[len(rows[0]) // 2:]
        pairs = [pair for pair in commands if "python_environment" not in pair[0] and "build_" not in pair[0]]
        targets = len(list((ROOT / "tests/robustness/fuzz").glob("fuzz_*.c")))
        checks.check("attacks: the fuzzer's targets", sum(" fuzz " in sample for sample, _ in pairs) == targets > 3, f"{pairs}")
        for sample, long in pairs:
            checks.check(f"attacks: longer than {sample}", sample != long and (" --all" in long or "3600" in long), f"{long}")
    script = STAND_INS + """
        fuzz() { [ "$1" != fuzz_archive ] || { echo "$1 for $FUZZ_SECONDS s"; return 4; }; }
        shift
        run_tests "$@"
        """
    code, out, err = run(["bash", "-c", script, "-", work, "--sample", "archive"], ROOT)
    checks.check("attacks: one by its name, which fails", code == 1 and "    | fuzz_archive for 60 s" in out and "0 passed, 1 failed" in out and
                 "again: ./dev test --sample fuzz\\ for\\ 60\\ s:\\ archive" in out, f"{code}: {out}{err}")
    code, out, err = run(["bash", "-c", script, "-", work, "--long", "headers"], ROOT)
    checks.check("attacks: one of the long ones", code == 0 and "1 passed, 0 failed" in out and "fuzz for 3600 s: headers" in out, f"{code}: {out}{err}")
    code, out, err = run([ROOT / "dev", "test", "--sample", "no such check"], ROOT)
    checks.check("attacks: a name that none has", code == 2 and "fuzz for 60 s: headers" in err, f"{code}: {out}{err[:300]}")


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    checks = harness.Checks()
    with harness.temporary_directory(options.directory) as place:
        work = pathlib.Path(place)
        words(checks)
        relative_names(checks, options, work)
        suite(checks, work)
        needs(checks, work)
        attacks(checks, work)
        missing_criterion(checks, work)
        place = copy(work)
        missing_tools(checks, place, work)
        gpu_kernels(checks, place, work)
        another_user(checks, place, work)
        style(checks, place)
    checks.finish()


if __name__ == "__main__":
    main()
