#!/usr/bin/env python3
"""Tests the module `tessera` with the built library: the blocks of docs/python.md, arrays and weights of each scheme, errors."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import traceback

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]
import harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMES = ["fp8-block", "fp8-channel", "int8-channel", "int8-weight-only", "int4-weight-only", "nvfp4-weight-only", "mxfp4", "mxfp8"]
NAME = "model.layers.1.mlp.down_proj.weight"


def blocks():
    """Joins the blocks of the page to one program."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/python.md").read_text(), re.M | re.S))


def same_bytes(ours, theirs):
    return {role: part.array().tobytes() for role, part in ours.stored.items()} == \
        {role: part.array().tobytes() for role, part in theirs.stored.items()}


def raises(tessera, status, words, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except tessera.Error as error:
        return error.status == status and words in str(error)
    return False


def close_while_others_read(checks, tessera, path):
    """Closes the checkpoint during a call of another thread. The call ends before memory is freed."""
    native, freed = tessera._native, tessera._native.library.tessera_close
    call = native.call
    for does, read in [("read", lambda model: model[NAME].read()), ("find", lambda model: NAME in model), ("take", lambda model: model[NAME].name)]:
        model, order = tessera.open(path), []
        weight = model[NAME]

        def closing(name, *arguments, model=model, order=order):
            model.close()
            order.append("closed")
            call(name, *arguments)
            order.append("returned")

        native.call, native.library.tessera_close = closing, lambda pointer, order=order: (order.append("freed"), freed(pointer))
        try:
            weight.read() if does == "read" else read(model)
        except tessera.Error:
            pass  # of a later call
        finally:
            native.call, native.library.tessera_close = call, freed
        checks.check(f"closed during {does}: freed when the call has returned", order[:3] == ["closed", "returned", "freed"], order)


def schemes(checks, tessera, tool, place):
    """An array is quantized to the bytes that the command writes, and decoded to the same values."""
    import ml_dtypes
    source = tessera.open(place / "model")
    x = source[NAME].codes().view(ml_dtypes.bfloat16)
    checks.check("plain values", (source[NAME].read() == x.astype("f4")).all())
    jobs = [["quantize", place / "model", "-o", place / scheme, "--scheme", scheme] for scheme in SCHEMES]
    jobs += [["convert", place / scheme, "-o", place / f"{scheme}-back", "--to", "bf16", "--dtype", "f32"] for scheme in SCHEMES]
    jobs.append(["convert", place / "fp8-block", "-o", place / "archive", "--to", "archive"])
    for job in jobs:
        checks.ends(f"{job[0]} {job[-1]}", tool, job)
    for scheme in SCHEMES:
        with tessera.open(place / scheme) as made, tessera.open(place / f"{scheme}-back") as back:
            ours = tessera.quantize(x, NAME, scheme=scheme)
            # Scales of NVFP4 follow from the largest value of all that is run as one layer: down_proj is alone.
            checks.check(f"{scheme}: an array becomes what the file holds", same_bytes(ours, made[NAME]), (ours.stored, made[NAME].stored))
            checks.check(f"{scheme}: values", all((weight.read() == back[weight.name].read()).all() for weight in made.weights()))
            checks.check(f"{scheme}: of an array", (ours.read() == back[NAME].read()).all())
            checks.check(f"{scheme}: some rows", (made[NAME].read(rows=slice(3, 77)) == back[NAME].read()[3:77]).all())
    with tessera.open(place / "archive") as packed, tessera.open(place / "fp8-block") as made:
        checks.check("an archive is read", packed[NAME].stored["codes"].file is None and same_bytes(packed[NAME], made[NAME]))
        checks.check("its values", (packed[NAME].read() == made[NAME].read()).all())
        checks.check("a map, no copy", type(made[NAME].codes()).__name__ == "memmap" and not made[NAME].codes().flags.writeable)


def plans(checks, tessera, place):
    with tessera.open(place / "model") as source:
        names = set(source)
    plan = tessera.plan("quantize", place / "model", scheme="mxfp8")
    checks.check("a note for each tensor", {name for name, _, _ in plan.notes} == names)
    result = plan.run(place / "planned")
    checks.check("run", not result.already_complete and 28 < result.sqnr < 34 and plan.run(place / "planned").already_complete, result)
    weights = sum(file.stat().st_size for file in (place / "planned").glob("*.safetensors"))
    checks.check("run: bytes", 0.9 * weights < result.bytes_written <= weights < 0.8 * result.bytes_read, (weights, result))
    checks.check("the same bytes", all((place / "planned" / path.name).read_bytes() == path.read_bytes()
                                       for path in (place / "mxfp8").iterdir() if path.is_file()))
    # It would take seconds, and progress is reported after a fifth of a second.
    slow = {"scheme": "int4-weight-only", "scales": "mse", "cpumask": 0, "threads": 1}
    checks.check("it can be stopped", raises(tessera, "cancelled", "interrupted", tessera.quantize_checkpoint, place / "giant",
                                             place / "stopped", progress=lambda told: True, **slow))
    try:
        tessera.convert(place / "mxfp8", place / "failed", progress=lambda told: 1 / 0, to="bf16")
        checks.check("what a callback raises is raised", False)
    except ZeroDivisionError:
        checks.check("what a callback raises is raised", True)
    verdict = tessera.verify(place / "mxfp8", place / "fp8-block")
    checks.check("findings", not verdict.passed and verdict.findings[0][0] == "values", verdict)
    sound = tessera.verify(place / "fp8-block", place / "model")
    strict = tessera.verify(place / "fp8-block", place / "model", min_sqnr=60)
    checks.check("limits, as the command has them", sound.passed and strict.findings and all(check == "values" for check, _, _ in strict.findings),
                 (sound, strict))
    checks.check("tessera.Error has that name", repr(tessera.Error) == "<class 'tessera.Error'>", repr(tessera.Error))
    checks.check("a limit that is no number", raises(tessera, "usage", "--min-sqnr", tessera.verify, place / "fp8-block", place / "model",
                                                     min_sqnr="much"))


def warned(checks, tessera, place):
    """Warnings of the command are Python warnings of the calling line, and are in the result."""
    import warnings
    shutil.copytree(place / "model", place / "unknown")
    config = place / "unknown/config.json"
    config.write_text(config.read_text().replace('"llama"', '"nobody"'))
    unknown = "unknown model_type 'nobody': general rules; check with --dry-run"
    file = "--ignore-file 'typo*' matches no file"
    cases = [("quantize_checkpoint", place / "unknown", {}, [unknown, file]),
             ("convert", place / "fp8-block", {"to": "fp8-block", "block": "64x64"}, [file])]
    for name, source, options, want in cases:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            result = getattr(tessera, name)(source, place / f"warned-{name}", ignore_file=["typo*"], **options)
        checks.check(f"{name}: warnings", result.warnings == want and [str(one.message) for one in told] == want and
                     all(one.filename == __file__ for one in told), (result, told))


def refusals(checks, tessera, tool, place):
    import numpy as np
    x = np.zeros((64, 64), "f4")
    cases = [("format", "No such file", tessera.open, (place / "nowhere",), {}),
             ("usage", "did you mean '--scheme'", tessera.quantize, (x,), {"schema": "mxfp8"}),
             ("usage", "float16 or bfloat16", tessera.quantize(x).read, ("int8",), {}),
             ("usage", "complex64", tessera.quantize, (x.astype("c8"),), {}),
             ("value", "[0, 1]", tessera.quantize, (np.array([[0, np.nan]], "f4"),), {}),
             ("usage", "lies in", tessera.quantize_checkpoint, (place / "model", place / "model" / "inside"), {}),
             ("exists", "", tessera.quantize_checkpoint, (place / "model", place), {"scheme": "fp8-block"})]
    for status, words, function, arguments, options in cases[:-1]:
        checks.check(f"refused: {words}", raises(tessera, status, words, function, *arguments, **options))
    # Names are printed as the command prints them; the module's own messages follow the same rule.
    evil = "x\nPASS\x1b[2J\u202e\x85.weight"
    harness.write_safetensors(place / "evil.safetensors", {evil: ("U16", (4, 8), bytes(64))})
    printed = harness.run(tool, ["convert", place / "evil.safetensors", "-o", place / "no", "--to", "bf16"])[2]
    try:
        tessera.open(place / "evil.safetensors")
        checks.check("refused: an evil name", False)
    except tessera.Error as error:
        checks.check("the text is the line that the command prints", printed == f"tessera: {error}\n", (printed, str(error)))
    checks.check("and of the module's own", raises(tessera, "usage", "'x\\nPASS\\x1b[2J\\u202e\\u0085.weight'", tessera.open_arrays,
                                                   {evil: x.astype("O")}))
    closed = tessera.open(place / "model")
    closed.close()
    checks.check("refused: closed", raises(tessera, "usage", "closed", len, closed))
    checks.check("refused: a weight of what is closed", raises(tessera, "usage", "closed", closed.__getitem__, NAME))
    checks.check("refused: a name in what is closed", raises(tessera, "usage", "closed", closed.__contains__, NAME))
    checks.check("tessera.Error by its name", traceback.format_exception_only(tessera.Error, tessera.Error("io", "x")) == ["tessera.Error: x\n"])
    close_while_others_read(checks, tessera, place / "model")
    try:
        tessera.open(place / "model")["no.such.weight"]
        checks.check("refused: no such weight", False)
    except KeyError as error:
        checks.check("refused: no such weight", "no.such.weight" in str(error))


def layouts(checks, tessera):
    """Arrays may have any order of bytes and elements. Arrays without values of their own are rejected."""
    import gc
    import numpy as np
    x = (np.arange(64 * 128, dtype="f4").reshape(64, 128) - 4000) / 64
    name, take = "x.weight", lambda values, **more: tessera.open_arrays({"x.weight": values}, **more)["x.weight"]
    wider = np.zeros((128, 256), "f4")
    wider[::2, ::2] = x
    orders = {"big-endian": x.astype(">f4"), "Fortran": np.asfortranarray(x), "big-endian Fortran": np.asfortranarray(x.astype(">f4")),
              "a view": wider[::2, ::2], "reversed": x[::-1, ::-1].copy()[::-1, ::-1], "a matrix": np.matrix(x),
              "nothing masked": np.ma.array(x, mask=np.zeros(x.shape, "?"))}
    for order, values in orders.items():
        checks.check(f"{order}: quantized", same_bytes(tessera.quantize(values), tessera.quantize(x)))
        checks.check(f"{order}: values", (take(values).read() == x).all())
    checks.check("big-endian float16", (take(x.astype(">f2")).read() == x.astype("f2")).all())
    checks.check("big-endian int64", (take(np.full((4, 8), 7, ">i8")).codes() == 7).all())
    checks.check("big-endian complex64", (take((np.full((4, 8), 1.5, ">c8"), "C64")).codes() == 1.5).all())
    for bits in ("<u2", ">u2", "<i2", ">i2"):
        checks.check(f"BF16 by {bits}", (take((np.full((4, 8), 0x3fc0, bits), "BF16")).read() == 1.5).all())
    fp8 = tessera.quantize(x)
    parts = {part.name: (part.array().astype(part.array().dtype.newbyteorder(">")), part.dtype) for part in fp8.stored.values()}
    with tessera.open_arrays(parts, source_block="128x128") as again:
        checks.check("big-endian scales", (again["array.weight"].read() == fp8.read()).all())
    checks.check("no axis, and none made up", take(np.float32(3)).shape == () and take(np.array(3, ">f4")).read() == 3)
    checks.check("no elements", take(np.zeros((0, 4), ">f4")).read().shape == (0, 4))
    masked = np.ma.array(x, mask=x > 0)
    cases = [("masked", masked), ("float16 is not BF16", (x.astype("f2"), "BF16")), ("float32 is not I32", (x, "I32")),
             ("object is not I64", (x.astype("O"), "I64")), ("object", x.astype("O")), ("datetime64", (np.zeros((4, 8), "M8[s]"), "I64")),
             ("9 axes", np.zeros((1,) * 9, "f4"))]
    for words, values in cases:
        checks.check(f"refused: {words}", raises(tessera, "usage", words, take, values))
    checks.check("refused: masked, to quantize", raises(tessera, "usage", "masked", tessera.quantize, masked))
    checks.check("refused: numbers that may be bits", raises(tessera, "unsupported", "U16", tessera.quantize, np.full((128, 128), 0x3fc0, "u2")))
    checks.check("refused: a row that is no slice", raises(tessera, "usage", "slice", tessera.quantize(x).read, rows=5))
    for scheme in ("int4-weight-only", "nvfp4-weight-only"):
        checks.check(f"refused: {scheme} of a name without .weight", raises(tessera, "shape", "does not end in '.weight'", tessera.quantize, x, "aaa", scheme=scheme))
    checks.check("refused: a NUL in a name", raises(tessera, "usage", "NUL", tessera.open_arrays, {f"{name}\0y": x}))
    checks.check("refused: a NUL in a path", raises(tessera, "usage", "NUL", tessera.open, "model\0y"))
    checks.check("a set of words", list(tessera._native.words({"exclude": {b"*.a"}}))[:-1] == [b"--exclude", b"*.a"])
    with tessera.open_arrays({name: x}) as model:
        kept = model[name].codes()
    gc.collect()
    other = [tessera.open_arrays({name: x + 1}) for _ in range(4)]
    checks.check("an array outlives its checkpoint", (kept == x).all() and len(other) == 4)


def reports(checks, tessera, place):
    """Checks the data for pandas, which a substitute replaces; './dev wheel' tests pandas itself (wheel.py)."""
    class StandIn:
        json_normalize = staticmethod(list)

    sys.modules["pandas"] = StandIn
    try:
        rows = tessera.report(place / "mxfp8/quantization_report.json")
        (place / "number.json").write_text('{"tensors": 14}')
        checks.check("a report: a row for each tensor", len(rows) == 14 and all(25 < row["sqnr_db"] < 40 for row in rows) and
                     len({row["name"] for row in rows}) == 14, rows)
        checks.check("a report: what is none", raises(tessera, "format", "no list of tensors", tessera.report, place / "number.json"))
    finally:
        del sys.modules["pandas"]


def main():
    options = harness.argument_parser(__doc__.splitlines()[0]).parse_args()
    tool = pathlib.Path(options.tessera).resolve()
    library = tool.parent.parent / "lib/libtessera.so"
    if not library.exists():
        print("skipped: the Python module (there is no libtessera.so in this build)")
        sys.exit(77)
    os.environ["TESSERA_LIBRARY"] = str(library)
    sys.path.insert(0, str(ROOT / "python"))
    import tessera
    with harness.checks_in(options.directory) as (checks, place):
        harness.make_checkpoint(options.make, "llama", place / "model", scale="tiny")
        harness.make_checkpoint(options.make, "giant", place / "giant", bytes="128M")
        checks.check("one version", harness.run(tool, ["--version"])[1].split() == ["tessera", tessera.version()])
        schemes(checks, tessera, tool, place)
        plans(checks, tessera, place)
        warned(checks, tessera, place)
        refusals(checks, tessera, tool, place)
        layouts(checks, tessera)
        reports(checks, tessera, place)
        (place / "page").mkdir()
        shutil.copytree(place / "model", place / "page/model")
        # The module takes the command beside its interpreter, and else the one in PATH.
        done = subprocess.run([sys.executable, "-c", blocks()], cwd=place / "page", capture_output=True, text=True, check=False,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "PATH": f"{tool.parent}:{os.environ['PATH']}"})
        checks.check("the blocks of docs/python.md", done.returncode == 0, done.stdout + done.stderr)


if __name__ == "__main__":
    main()
