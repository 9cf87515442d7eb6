#!/usr/bin/env python3
"""Checks the installed libtessera: its files, its exports, and the programs of docs/library.md in C and C++.

They are built by pkg-config against the shared and the static library, also with AddressSanitizer."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/library.md").read_text()
NEEDED = {"libc.so.6", "libm.so.6", "libzstd.so.1", "liburing.so.2"}
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-fsanitize=address,undefined"]
PROGRAMS = {"c": ["cc", "-std=c11"], "cpp": ["c++", "-std=c++17"]}


def output(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr}")
    return done.stdout


def exported(library):
    """Returns the names that a shared library exports, except its version's."""
    lines = output("nm", "-D", "--defined-only", library).splitlines()
    return sorted(line.split()[2].split("@")[0] for line in lines if line.split()[1] != "A")


def listed():
    return re.findall(r"^    (tessera_\w+);", (ROOT / "lib/tessera.map").read_text(), re.M)


def declared():
    return re.findall(r"^TESSERA_API .*?(tessera_\w+)\(", (ROOT / "lib/tessera.h").read_text(), re.M)


def flags(prefix, *more):
    """Returns the output of pkg-config with `prefix` as the root of the machine."""
    folder = next(prefix.rglob("tessera.pc")).parent
    said = output("pkg-config", *more, "--cflags", "--libs", "tessera",
                  env={**os.environ, "PKG_CONFIG_PATH": folder, "PKG_CONFIG_SYSROOT_DIR": prefix})
    return said.split()


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S).group(1)


# As docs/library.md has it, for both languages: arguments are DESTDIR (empty: it is installed already), a folder and a source. DESTDIR's
# /usr/local takes the place of this machine's own, and so does an /etc that has only what ldconfig reads. It then keeps the links in
# /usr/lib (-X): those to /etc/alternatives lead nowhere, and it would remove them.
AS_DOCUMENTED = r"""
set -e
unset PKG_CONFIG_PATH PKG_CONFIG_LIBDIR LD_LIBRARY_PATH LIBRARY_PATH CPATH
cd "$2"
links=
[ -z "$1" ] || mount --bind "$1/usr/local" /usr/local
cc example.c -o example-c $(pkg-config --cflags --libs tessera)
c++ example.cpp -o example-cpp $(pkg-config --cflags --libs tessera)
if [ -n "$1" ]; then
    mkdir etc
    cp -r /etc/ld.so.conf /etc/ld.so.conf.d etc
    mount --bind etc /etc
    links=-X
fi
PATH=$PATH:/sbin ldconfig $links
./example-c "$3" documented-out
./example-cpp
"""


def use_as_documented(place, root, source):
    """Builds and runs the page's programs with the lines of the page, without environment variables. None: no namespaces on
    this machine."""
    for language in PROGRAMS:
        pathlib.Path(place, f"example.{language}").write_text(block(language))
    namespace = ["unshare", "--map-root-user", "--mount"] if root else []
    if root and subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode != 0:
        return None
    return subprocess.run([*namespace, "bash", "-c", AS_DOCUMENTED, "-", root, place, source], capture_output=True, text=True, check=False)


def check_as_documented(checks, place, root, source):
    done = use_as_documented(place, root, source)
    if done is None:
        print("left out: the library as it is found without variables (no namespaces here)")
        return
    checks.check("without a variable pkg-config, compiler and loader find it", done.returncode == 0 and "0 findings" in done.stdout, done)


def main():
    parser = harness.argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--installed", action="store_true", help="only what docs/library.md has one type, with what this machine has installed")
    options = parser.parse_args()
    built = pathlib.Path(options.tessera).resolve().parent.parent
    missing = [tool for tool in ("cc", "c++", "pkg-config", "nm", "readelf", "meson") if not shutil.which(tool)]
    if missing:
        print(f"skipped: the library ({', '.join(missing)} is missing)")
        sys.exit(77)
    with harness.checks_in(options.directory) as (checks, place):
        if options.installed:
            check_as_documented(checks, place, "", harness.make_checkpoint(options.make, "llama", pathlib.Path(place, "source"), scale="tiny"))
            checks.finish()
            return
        prefix = pathlib.Path(place, "root")
        output("meson", "install", "-C", built, "--no-rebuild", "--destdir", prefix, "--quiet", "--tags", "devel,runtime")
        shared = next(prefix.rglob("libtessera.so.0"))
        checks.check("it exports what lib/tessera.map lists", exported(shared) == sorted(listed()), exported(shared))
        checks.check("which is what tessera.h declares", sorted(declared()) == sorted(listed()), declared())
        dynamic = output("readelf", "-dW", shared)
        checks.check("its name has a version", "SONAME" in dynamic and "[libtessera.so.0]" in dynamic, dynamic)
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        checks.check("it needs no more than zstd", {name for name in needed - NEEDED if "ld-linux" not in name} == set(), needed)
        source = harness.make_checkpoint(options.make, "llama", pathlib.Path(place, "source"), scale="tiny")
        if (prefix / "usr/local").is_dir():  # the build's prefix is Meson's own
            check_as_documented(checks, place, prefix, source)
        alone = pathlib.Path(place, "static")  # where the linker finds no shared library
        shutil.copytree(prefix, alone, ignore=shutil.ignore_patterns("libtessera.so*", "bin"))
        said = {}
        for kind, root, more in (("shared", prefix, []), ("static", alone, ["--static"])):
            for language, compiler in PROGRAMS.items():
                program, text = pathlib.Path(place, f"{kind}-{language}"), pathlib.Path(place, f"example.{language}")
                text.write_text(block(language))
                output(*compiler, *STRICT, text, "-o", program, *flags(root, *more))
                done = subprocess.run([program, *([source, pathlib.Path(place, f"out-{kind}")] if language == "c" else [])],
                                      env={**os.environ, "LD_LIBRARY_PATH": str(shared.parent)}, capture_output=True, text=True, check=False)
                said[kind, language] = done.stdout.replace(f"out-{kind}", "out")
                checks.check(f"{kind}, {language}: it runs, and nothing leaks", done.returncode == 0 and done.stderr == "", done.stderr)
        checks.check("c: it is quantized and verified", re.match(
            r"made at 31\.\d dB\n0 findings\nmodel\.layers\.0\.self_attn\.q_proj\.weight is fp8-block in blocks of 128x128; its scales are "
            r"model\.layers\.0\.self_attn\.q_proj\.weight_scale_inv, at byte \d+ of \S+/out/model\.safetensors; it begins with -?0\.\d+\n$",
            said["shared", "c"]) is not None, said)
        checks.check("cpp: codes and scales, and a refusal", re.match(
            r"codes: I32, 8192 bytes\nscale: BF16, 1024 bytes\nweight_shape: I64, 16 bytes\nrefused: .*100.*\n2\d dB\n$",
            said["shared", "cpp"]) is not None, said)
        checks.check("the static library does the same", all(said["shared", name] == said["static", name] for name in PROGRAMS), said)
        names = {"quantization_report.json", "model.safetensors", "config.json"}
        made = harness.run(pathlib.Path(options.tessera), ["quantize", source, "-o", pathlib.Path(place, "tool"), "--exclude", "*.down_proj.*"])
        checks.check("the files are those that the tool makes", made[0] == 0 and all(
            pathlib.Path(place, "tool", name).read_bytes() == pathlib.Path(place, "out-shared", name).read_bytes() for name in names), made)


if __name__ == "__main__":
    main()
