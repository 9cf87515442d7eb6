#!/usr/bin/env python3
"""Checks `meson install`: a stripped and hardened tool, pages, manual and shell completions, all of them and nothing else."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Libraries that the tool may need. CUDA libraries are not among them: they are loaded at run time. Those of C++, which CUDA code
# needs, are linked statically.
NEEDED = {"libc.so.6", "libm.so.6", "libzstd.so.1", "libxxhash.so.0", "libdl.so.2", "librt.so.1", "libpthread.so.0", "liburing.so.2"}
LIBRARY = {"libtessera.so", "libtessera.so.0", "libtessera.so.0.1.0", "libtessera.a", "tessera.h", "tessera.pc"}
LOADER = re.compile(r"ld-linux.*\.so\.\d+")


def output(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def traits(binary):
    """Returns the traits of a binary by readelf, {trait: bool}, and the libraries that it needs."""
    sections, rest = output("readelf", "-SW", binary), output("readelf", "-lhdW", binary)
    called = output("readelf", "--dyn-syms", "-W", binary)
    stack = re.search(r"GNU_STACK.*", rest)
    found = {"no symbols": ".symtab" not in sections, "no debugging data": ".debug_" not in sections,
             "loaded anywhere (PIE)": re.search(r"Type:\s+DYN", rest) is not None,
             "tables read-only once filled (relro)": "GNU_RELRO" in rest,
             "filled at the start (now)": re.search(r"BIND_NOW|Flags:.*\bNOW\b", rest) is not None,
             "no stack is executable": stack is not None and " RWE " not in stack.group(0),
             "overwritten return addresses end it (stack protector)": "__stack_chk_fail" in called,
             "copies of known size are checked (fortify)": "__memcpy_chk" in called or "__snprintf_chk" in called,
             "no path of the build machine (rpath)": not re.search(r"\((RPATH|RUNPATH)\)", rest)}
    return found, set(re.findall(r"\(NEEDED\).*\[(.*)\]", rest))


def unhardened(build):
    """Returns sources of the tool and its library that are compiled without an option of meson.build, in the form 'source:
    option'."""
    words = ["-fstack-protector-strong", "-fstack-clash-protection"]
    if os.uname().machine == "x86_64":
        words.append("-fcf-protection")
    commands = [entry for entry in json.loads((build / "compile_commands.json").read_text())
                if entry["file"].endswith(".c") and "/tests/" not in entry["file"]]
    return len(commands), [f"{entry['file']}: {word}" for entry in commands for word in words if word not in entry["command"]]


def where_from(binary):
    """Returns the paths in a binary that begin with this source tree. A short folder such as '/src' may be part of any
    library's path."""
    folders = "|".join(re.escape(path.name) for path in ROOT.iterdir() if path.is_dir())
    path = re.compile(rb"(?<![\w./-])" + re.escape(os.fsencode(ROOT)) + rb"/(?:" + folders.encode() + rb")[\w./-]*")
    return sorted({found.decode(errors="replace") for found in path.findall(binary.read_bytes())})


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    built = pathlib.Path(options.tessera).resolve()
    if not shutil.which("readelf") or not shutil.which("meson"):
        print("skipped: what is installed (readelf or meson is missing)")
        sys.exit(77)
    with harness.checks_in(options.directory) as (checks, place):
        output("meson", "install", "-C", built.parent.parent, "--no-rebuild", "--destdir", place, "--quiet")
        files = {path for path in pathlib.Path(place).rglob("*") if path.is_file()}
        tools = [path for path in files if path.parent.name == "bin"]
        checks.check("one tool", [path.name for path in tools] == ["tessera"], tools)
        pages = {path for path in files if "doc/tessera" in str(path)}
        defaults = json.loads(output("meson", "introspect", ROOT / "meson.build", "--buildoptions"))
        checks.check("libraries go where every Linux looks", [one["value"] for one in defaults if one["name"] == "libdir"] == ["lib"], defaults)
        modules = {path for path in files if path.name == "tessera_mpi.so"}  # where it was built with MPI
        # Each where the manual and that shell look for it.
        manual = {path for path in files if re.search(r"/share/(man/man1/tessera[a-z-]*\.1|bash-completion/completions/tessera|"
                                                      r"zsh/site-functions/_tessera|fish/vendor_completions\.d/tessera\.fish)$", str(path))}
        made = {path.name for path in (built.parent / "manual").iterdir() if path.is_file()}
        checks.check("the manual and the completions", {path.name for path in manual} == made and len(made) > 12, manual)
        library = {path for path in files if path.name in LIBRARY}  # tests/install/library.py looks into it
        checks.check("the library, shared and static, its header and its description", {path.name for path in library} == LIBRARY, library)
        recipes = {path for path in files if path.parent.name == "recipes"}
        checks.check("the recipes", {path.name for path in recipes} == {path.name for path in (ROOT / "recipes").iterdir()}, recipes)
        code, _, stderr = harness.run(tools[0], ["quantize", place, "-o", place, "--recipe", "none"])
        checks.check("installed: the tool finds its recipes", code == 2 and "recipes: " + "|".join(sorted(r.stem for r in recipes)) in stderr,
                     stderr)
        checks.check("nothing but these, the tool, its module, its pages and recipes",
                     files == pages | modules | manual | library | recipes | set(tools),
                     files - pages - manual)
        for module in modules:
            source = harness.make_checkpoint(options.make, "llama", pathlib.Path(place, "source"), scale="tiny")
            code, _, stderr = harness.run(tools[0], ["quantize", source, "--dry-run", "--mpi"])
            checks.check("installed: the tool finds its module", code == 0 and module.parent.name == "tessera", stderr)
        wanted = {"README.md", "CHANGELOG.md"} | {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*") if path.is_file()}
        checks.check("all pages", {str(path).split("doc/tessera/")[1] for path in pages} == wanted, pages)
        found, needed = traits(tools[0])
        for trait, has in found.items():
            checks.check(f"installed: {trait}", has)
        strange = {name for name in needed - NEEDED if not LOADER.fullmatch(name)}
        checks.check("installed: libraries", needed and not strange, strange)
        checks.check("installed: it runs", output(tools[0], "--version") == output(built, "--version"))
        shared, _ = traits(next(path for path in library if path.name == "libtessera.so.0"))
        for trait in set(shared) - {"loaded anywhere (PIE)"}:
            checks.check(f"the library: {trait}", shared[trait])
        compiled, left_out = unhardened(built.parent.parent)
        checks.check("all sources are compiled with what no binary shows (stack clash, jumps)", compiled > 200 and not left_out, left_out[:3])
        told = {path.name: where_from(path) for path in tools + sorted(library)}
        checks.check("no binary knows where its source was", not any(told.values()), told)
        sown = pathlib.Path(place, "sown")
        sown.write_bytes(b"\0" + os.fsencode(ROOT / "cli" / "main.c") + b"\0/elsewhere" + os.fsencode(ROOT / "cli") + b"\0")
        checks.check("where it was would be seen", where_from(sown) == [str(ROOT / "cli" / "main.c")], where_from(sown))
        # The one in the build folder is not stripped: were it taken for stripped, nothing above would mean anything.
        before, _ = traits(built)
        checks.check("built: symbols are seen", not before["no symbols"] and not before["no debugging data"], before)


if __name__ == "__main__":
    main()
