#!/usr/bin/env python3
"""A wheel in a clean virtual environment: what it holds and needs, the command, which is the same program, and the module, by which the
blocks of docs/python.md run. './dev wheel' gives the one that it made. Without --wheel meson-python packs one over a copy of the build
that is tested, whose objects have the same options, so that little is compiled."""

import email.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "common"))
import harness

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CXX = {"libstdc++.so.6", "libgcc_s.so.1"}  # of the host's half of CUDA code; manylinux has them everywhere
LIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
MOST_BYTES = 10_000_000  # without CUDA


def output(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


def pack(built, place):
    """A wheel as `pip wheel .` makes it, but that most of it is compiled already."""
    folder = ROOT / "build-wheel-test"
    options = json.loads((built / "meson-info/intro-buildoptions.json").read_text())
    features = next(one["value"] for one in options if one["name"] == "auto_features")  # with other ones most would be compiled again
    shutil.rmtree(folder, ignore_errors=True)
    try:
        shutil.copytree(built, folder, symlinks=True, ignore=shutil.ignore_patterns("tests", "meson-logs"))
        output(sys.executable, "-m", "pip", "wheel", ROOT, "--no-build-isolation", "--no-deps", "--no-index", "-q", "-w", place,
               f"-Cbuild-dir={folder}", "-Csetup-args=-Dwerror=true", f"-Csetup-args=-Dauto_features={features}",
               env={**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return next(pathlib.Path(place).glob("*.whl"))


def needs(binary):
    said = output("readelf", "-dW", binary)
    return {name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", said) if not name.startswith("ld-linux")}


def contents(checks, wheel, place, alone):
    """`alone`: it was linked for other machines. A copy of a build keeps the libraries that it was configured with."""
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
    cuda = "CUDA runtime" in listed
    checks.check("it is small", wheel.stat().st_size < MOST_BYTES or cuda, wheel.stat().st_size)
    for binary in (next(place.rglob("scripts/tessera")), next(place.rglob("libtessera.so*"))):
        checks.check(f"{binary.name} needs the C library only{', and that of C++' if cuda else ''}",
                     needs(binary) <= (LIBC | CXX if cuda else LIBC), needs(binary))


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--wheel", type=pathlib.Path, help="this one")
    options = parser.parse_args()
    checks = harness.Checks()
    tool = pathlib.Path(options.tessera).resolve()
    if options.wheel is None and subprocess.run([sys.executable, "-c", "import mesonpy"], capture_output=True, check=False).returncode != 0:
        print("skipped: the wheel (no meson-python in this environment)")
        sys.exit(77)
    with harness.temporary_directory(options.directory) as folder:
        place = pathlib.Path(folder)
        wheel = options.wheel or pack(tool.parent.parent, place)
        contents(checks, wheel, place / "contents", options.wheel is not None)
        output(sys.executable, "-m", "venv", "--without-pip", place / "venv")
        python = place / "venv/bin/python"
        output(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", wheel)
        # NumPy is taken from the environment of the tests: nothing else is.
        site = next((place / "venv/lib").glob("python*/site-packages"))
        numpy = pathlib.Path(output(sys.executable, "-c", "import numpy; print(numpy.__path__[0])").strip())
        for part in (numpy, numpy.parent / "numpy.libs"):
            if part.exists():
                (site / part.name).symlink_to(part)
        installed = place / "venv/bin/tessera"
        clean = {"PATH": "/usr/bin:/bin", "HOME": folder}
        harness.make_checkpoint(options.make, "llama", place / "model", scale="tiny")
        for number, binary in enumerate((tool, installed)):
            output(binary, "quantize", place / "model", "-o", place / f"out-{number}", env=clean)
        checks.check("the command makes the same bytes", all(path.read_bytes() == (place / "out-1" / path.name).read_bytes()
                                                              for path in (place / "out-0").iterdir() if path.is_file()))
        for arguments in (["--version"], ["quantize", "nowhere", "-o", "x"], ["verify"], ["inspect", "model", "--can-load", "all"]):
            ours, theirs = (subprocess.run([binary, *arguments], cwd=place, env=clean, capture_output=True, text=True, check=False)
                            for binary in (installed, tool))
            checks.check(f"tessera {' '.join(arguments)}", (ours.returncode, ours.stdout, ours.stderr) ==
                         (theirs.returncode, theirs.stdout, theirs.stderr), ours)
        page = "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.M | re.S))
        (place / "page").mkdir()
        shutil.copytree(place / "model", place / "page/model")
        done = subprocess.run([python, "-I", "-c", page], cwd=place / "page", env=clean, capture_output=True, text=True, check=False)
        checks.check("the blocks of docs/python.md", done.returncode == 0, done.stdout + done.stderr)
        told = output(python, "-I", "-c", "import tessera; print(tessera.version(), tessera.command())", cwd=place, env=clean).split()
        checks.check("the module finds its command", told == [output(installed, "--version").split()[1], str(installed)], told)
    checks.finish()


if __name__ == "__main__":
    main()
