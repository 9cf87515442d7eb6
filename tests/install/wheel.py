#!/usr/bin/env python3
"""Tests a wheel in a clean virtual environment: its contents and requirements, the command, and the module by docs/python.md.

'./dev wheel' passes its wheel. Without --wheel, meson-python makes one from a copy of the tested build, so that
little is compiled. qemu-aarch64 runs a wheel for aarch64 with a Python for that machine (--emulated)."""

import email.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
MOST_BYTES = 10_000_000  # without CUDA


def output(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def pack(built, place):
    """Makes a wheel as `pip wheel .` does, with most of it already compiled."""
    folder = ROOT / "build-wheel-test"
    options = json.loads((built / "meson-info/intro-buildoptions.json").read_text())
    kept = ("auto_features", "cuda", "html", "mpi", "uring")  # with other ones most would be compiled again
    kept = [f"-Csetup-args=-D{one['name']}={one['value']}" for one in options if one["name"] in kept]
    shutil.rmtree(folder, ignore_errors=True)
    try:
        shutil.copytree(built, folder, symlinks=True, ignore=shutil.ignore_patterns("tests", "meson-logs"))
        output(sys.executable, "-m", "pip", "wheel", ROOT, "--no-build-isolation", "--no-deps", "--no-index", "-q", "-w", place,
               f"-Cbuild-dir={folder}", "-Csetup-args=-Dwerror=true", *kept,
               env={**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return next(pathlib.Path(place).glob("*.whl"))


def needs(binary):
    said = output("readelf", "-dW", binary)
    return {name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", said) if not name.startswith("ld-linux")}


def without_pip(*arguments):
    """Returns the pip of this environment, for another one."""
    return output(sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments)


class Here:
    """Is a virtual environment with the wheel, and with NumPy and pandas of the tests' environment if present."""

    def __init__(self, wheel, place, _):
        output(sys.executable, "-m", "venv", "--without-pip", place / "venv")
        self.python, self.tool = [place / "venv/bin/python", "-I"], [place / "venv/bin/tessera"]
        without_pip("--python", self.python[0], "install", "-q", "--no-index", "--no-deps", wheel)
        self.environment = {"PATH": "/usr/bin:/bin", "HOME": place}
        self.command = place / "venv/bin/tessera"
        there = pathlib.Path(output(sys.executable, "-c", "import numpy; print(numpy.__path__[0])").strip()).parent
        site = next((place / "venv/lib").glob("python*/site-packages"))
        for part in ("numpy", "numpy.libs", "pandas", "pandas.libs", "dateutil", "six.py", "pytz", "tzdata"):
            if (there / part).exists():
                (site / part).symlink_to(there / part)


class Emulated:
    """Is an environment for aarch64 in the emulator: a Python unpacked in `root`, with NumPy from PyPI."""

    def __init__(self, wheel, place, root):
        root = root.resolve()
        run = ["qemu-aarch64", "-L", root]
        self.python = [*run, max(root.glob("usr/bin/python3.*[0-9]"))]
        version = self.python[-1].name.removeprefix("python")
        without_pip("install", "-q", "--no-deps", "--only-binary", ":all:", "--target", place / "site", "--implementation", "cp",
                    "--python-version", version, *(f"--platform={one}" for one in (wheel.stem.split("-")[-1], "manylinux_2_28_aarch64",
                                                                                   "manylinux_2_27_aarch64", "manylinux2014_aarch64")),
                    wheel, "numpy")
        self.tool = [*run, place / "site/bin/tessera"]
        self.command = "tessera"  # the system starts no program of another machine: it is found in PATH
        self.environment = {"PATH": f"{place}/bin:/usr/bin:/bin", "HOME": place, "PYTHONPATH": place / "site", "PYTHONDONTWRITEBYTECODE": "1"}
        (place / "bin").mkdir()
        (place / "bin/tessera").write_text(f'#!/bin/sh\nexec {" ".join(map(str, self.tool))} "$@"\n')
        (place / "bin/tessera").chmod(0o755)


def contents(checks, wheel, place, alone):
    """Checks the contents. `alone`: the wheel was linked for other machines. A copy of a build keeps its configured
    libraries."""
    checks.check("its name says no version of Python", "-py3-none-" in wheel.name, wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
        names = archive.namelist()
        facts = email.parser.Parser().parsestr(archive.read(next(name for name in names if name.endswith("/METADATA"))).decode())
    bill = json.loads(next(place.rglob("sbom.spdx.json")).read_text())
    listed = {one["name"] for one in bill["packages"]}
    checks.check("NumPy is all that it asks for", [one for one in facts.get_all("Requires-Dist") if "extra" not in one] == ["numpy>=1.22"])
    checks.check("the libraries that are linked, with versions", {"tessera", "glibc", "libxxhash", "libzstd"} <= listed and
                 all(one["versionInfo"] for one in bill["packages"]), listed)
    if not alone:
        return
    checks.check("it is small", wheel.stat().st_size < MOST_BYTES or "CUDA runtime" in listed, wheel.stat().st_size)
    for binary in (next(place.rglob("scripts/tessera")), next(place.rglob("libtessera.so*"))):
        checks.check(f"{binary.name} needs the C library only", needs(binary) <= LIBC, needs(binary))


def module(checks, installed, place):
    page = "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.M | re.S))
    (place / "page").mkdir()
    shutil.copytree(place / "model", place / "page/model")

    def python(program, where):
        return subprocess.run([*installed.python, "-c", program], cwd=where, env=installed.environment, capture_output=True, text=True, check=False)

    done = python(page, place / "page")
    checks.check("the blocks of docs/python.md", done.returncode == 0, done.stdout + done.stderr)
    done = python("import tessera; print(tessera.version(), tessera.command())", place)
    version = output(*installed.tool, "--version", env=installed.environment).split()[1]
    checks.check("the module finds its command", done.stdout.split() == [version, str(installed.command)], done)
    done = python("import pandas, tessera; table = tessera.report('out-0/quantization_report.json')\n"
                  "print(len(table), table.name.is_unique, table.sqnr_db.between(25, 40).all(), table.sqnr_db.dtype)", place)
    if "No module named 'pandas'" in done.stderr:
        print("skipped: a report in pandas (it is not in this environment)")
        return
    rows = len(json.loads((place / "out-0/quantization_report.json").read_text())["tensors"])
    checks.check("a report in pandas", done.stdout.split() == [str(rows), "True", "True", "float64"], done)


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=pathlib.Path, help="this one")
    parser.add_argument("--emulated", type=pathlib.Path, metavar="ROOT", help="a folder with a Python of aarch64, for which the wheel is")
    options = parser.parse_args()
    tool = pathlib.Path(options.tessera).resolve()
    if options.wheel is None and subprocess.run([sys.executable, "-c", "import mesonpy"], capture_output=True, check=False).returncode != 0:
        print("skipped: the wheel (no meson-python in this environment)")
        sys.exit(77)
    with harness.checks_in(options.directory) as (checks, place):
        wheel = options.wheel or pack(tool.parent.parent, place)
        contents(checks, wheel, place / "contents", options.wheel is not None)
        installed = (Emulated if options.emulated else Here)(wheel, place, options.emulated)
        harness.make_checkpoint(options.make, "llama", place / "model", scale="tiny")
        for number, binary in enumerate(([tool], installed.tool)):
            output(*binary, "quantize", place / "model", "-o", place / f"out-{number}", env=installed.environment)
        checks.check("the command makes the same bytes", all(path.read_bytes() == (place / "out-1" / path.name).read_bytes()
                                                              for path in (place / "out-0").iterdir() if path.is_file()))
        for arguments in (["--version"], ["quantize", "nowhere", "-o", "x"], ["verify"], ["inspect", "model", "--can-load", "all"]):
            ours, theirs = (subprocess.run([*binary, *arguments], cwd=place, env=installed.environment, capture_output=True, text=True, check=False)
                            for binary in (installed.tool, [tool]))
            checks.check(f"tessera {' '.join(arguments)}", (ours.returncode, ours.stdout, ours.stderr) ==
                         (theirs.returncode, theirs.stdout, theirs.stderr), ours)
        if options.wheel is not None:
            features = json.loads(output(*installed.tool, "--version", "--json", env=installed.environment))["features"]
            chart = pathlib.Path("/usr/share/javascript/chart.js/chart.min.js").exists()
            checks.check("the page of report, where Chart.js was found", features["html"] == chart and not features["mpi"], features)
            checks.check("io_uring, where liburing was found", features["liburing"] or not shutil.which("pkg-config") or
                         subprocess.run(["pkg-config", "liburing"], check=False).returncode != 0, features)
        module(checks, installed, place)


if __name__ == "__main__":
    main()
