"""Reads, quantizes, converts and verifies checkpoints of large language models with libtessera.

    with tessera.open("DeepSeek-V3") as model:
        weight = model["model.layers.3.mlp.down_proj.weight"]
        weight.format, weight.shape, weight.read()

Options have the names of the command line (`tessera quantize --help`), with underscores: scale_fmt="ue8m0". A failure raises
tessera.Error, whose text names the file or tensor and suggests a remedy.
"""

import ctypes
import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import sysconfig
import warnings
from ctypes import byref

import numpy as np

from tessera import _native
from tessera._native import Error

__all__ = ["Checkpoint", "Error", "Plan", "Result", "Stored", "Verdict", "Weight", "command", "convert", "open", "open_arrays",
           "plan", "quantize", "quantize_checkpoint", "report", "run", "verify", "version"]

# NumPy dtype of each dtype. BF16 and FP8, which NumPy does not have, are unsigned integers of the same size; ml_dtypes can view
# them.
NUMPY = {"BOOL": "?", "U8": "u1", "I8": "i1", "F8_E5M2": "u1", "F8_E4M3": "u1", "F8_E8M0": "u1", "F8_E4M3FNUZ": "u1",
         "F8_E5M2FNUZ": "u1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "U32": "<u4", "F32": "<f4",
         "C64": "<c8", "F64": "<f8", "I64": "<i8", "U64": "<u8"}
FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
DTYPES = {**FLOATS, "float64": "F64", "int8": "I8", "uint8": "U8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32",
          "int64": "I64", "uint64": "U64", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
          "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"}


def version():
    """Returns the version of libtessera."""
    return _native.text(_native.library.tessera_version())


def command():
    """Returns the path of the `tessera` command that was installed with this module."""
    for folder in (sysconfig.get_path("scripts"), pathlib.Path(sys.executable).parent,
                   sysconfig.get_path("scripts", f"{os.name}_user")):
        path = pathlib.Path(folder, "tessera")
        if path.is_file():
            return str(path)
    return "tessera"


def run(arguments, **options):
    """Runs the command, as subprocess.run does: tessera.run(["inspect", "model"]).returncode."""
    return subprocess.run([command(), *map(str, arguments)], **options)


# ---- checkpoints ----


class Stored:
    """A stored tensor: role, name, dtype, shape, nbytes, and, if a file contains the bytes unchanged, file and offset."""

    def __init__(self, checkpoint, struct):
        self._checkpoint = checkpoint
        self.role, self.name, self.dtype = (_native.text(value) for value in (struct.role, struct.name, struct.dtype))
        self.shape = tuple(struct.shape[:struct.rank])
        self.nbytes, self.offset = struct.bytes, struct.offset
        self.file = None if struct.file is None else _native.text(struct.file)
        self._data = struct.data

    def __repr__(self):
        return f"<{self.role} {self.name} {self.dtype} {list(self.shape)}>"

    def array(self):
        """Returns the bytes as a read-only array. Bytes of a file are mapped, not copied. BF16 and FP8 are unsigned integers. F4 has
        two values in a byte, and the last axis counts bytes."""
        packed = self.dtype not in NUMPY
        dtype = np.dtype("u1" if packed else NUMPY[self.dtype])
        shape = self.shape
        if packed:
            rest = math.prod(shape[:-1]) if shape else 1
            shape = (*shape[:-1], self.nbytes // rest if rest else 0)
        if self.nbytes == 0:
            return np.zeros(shape, dtype)
        if self._data is not None:
            memory = (ctypes.c_char * self.nbytes).from_address(self._data)
            memory._keep = self._checkpoint._memory()
            array = np.frombuffer(memory, dtype).reshape(shape)
        elif self.file is not None:
            return np.memmap(self.file, dtype, "r", self.offset, shape)
        else:
            array = np.empty(shape, dtype)
            self._checkpoint._call("tessera_read_stored", _native.raw(self.name), 0, array.ctypes.data, self.nbytes)
        array.flags.writeable = False
        return array


class Weight:
    """A weight: name, format ("plain", "fp8-block", ...), shape of its values, bits of a code, block (rows and columns that share a
    scale), and stored: {role: Stored}."""

    def __init__(self, checkpoint, index):
        struct = _native.WeightStruct()
        owner = checkpoint._memory()  # holds the names that the struct points to until they are copied
        _native.call("tessera_weight_at", owner.pointer, index, byref(struct))
        self._checkpoint, self._index = checkpoint, index
        self.name, self.format = _native.text(struct.name), _native.text(struct.format)
        self.shape = tuple(struct.shape[:struct.rank])
        self.bits, self.block = struct.bits, (struct.block_rows, struct.block_cols)
        parts = [Stored(checkpoint, struct.stored[i]) for i in range(struct.n_stored)]
        self.stored = {part.role: part for part in parts}

    def __repr__(self):
        return f"<{self.name} {self.format} {list(self.shape)}>"

    @property
    def dtype(self):
        """The dtype of the codes, or of the plain tensor: "F8_E4M3"."""
        return self._first().dtype

    def _first(self):
        return self.stored["plain" if self.format == "plain" else "codes"]

    def read(self, dtype="float32", rows=slice(None)):
        """Returns the values, dequantized to "float32", "float16" or "bfloat16" (needs ml_dtypes). `rows` is a slice of the rows; all
        axes but the last count as one. codes() reads plain tensors of integers."""
        if dtype not in FLOATS:
            raise Error("usage", f"'{dtype}' is not float32, float16 or bfloat16")
        if not isinstance(rows, slice):
            raise Error("usage", f"rows={rows!r} is not a slice: slice(5, 6) is row 5")
        *outer, length = self.shape or (1,)
        first, end, step = rows.indices(math.prod(outer))
        if step != 1:
            raise Error("usage", "rows must be a slice without a step")
        count = max(0, end - first)
        if dtype == "bfloat16":
            import ml_dtypes
            out = np.empty((count, length), ml_dtypes.bfloat16)
        else:
            out = np.empty((count, length), dtype)
        self._checkpoint._call("tessera_read", self._index, _native.raw(FLOATS[dtype]), first, count, out.ctypes.data, out.nbytes)
        return out.reshape(self.shape) if count == math.prod(outer) else out

    def codes(self):
        """Returns the codes, or a plain tensor, as stored (Stored.array)."""
        return self._first().array()

    def scale(self):
        """Returns the scales as stored, or None."""
        return self.stored["scale"].array() if "scale" in self.stored else None


class _Owner:
    """Owner of the library's object of a checkpoint. Arrays in its memory keep a reference to it."""

    def __init__(self, pointer):
        self.pointer = pointer

    def __del__(self):
        _native.library.tessera_close(self.pointer)


class Checkpoint:
    """An open checkpoint: a mapping from names to weights. `with` or close() closes it."""

    def __init__(self, pointer):
        self._owner = _Owner(pointer)

    def _memory(self):
        if self._owner is None:
            raise Error("usage", "the checkpoint is closed")
        return self._owner

    def _call(self, name, *arguments):
        """Calls a function of the library on this checkpoint. Keeps the owner until it returns, because another thread may close
        the checkpoint."""
        owner = self._memory()
        _native.call(name, owner.pointer, *arguments)

    def __len__(self):
        owner = self._memory()
        return _native.library.tessera_count(owner.pointer)

    def __iter__(self):
        return (weight.name for weight in self.weights())

    def __contains__(self, name):
        self._memory()
        try:
            self._find(name)
        except Error:
            return False
        return True

    def __getitem__(self, name):
        self._memory()
        try:
            index = self._find(name)
        except Error as error:
            self._memory()  # raises Error if another thread has closed it
            raise KeyError(str(error)) from None
        return Weight(self, index)

    def _find(self, name):
        index = ctypes.c_size_t()
        self._call("tessera_find", _native.raw(name), byref(index))
        return index.value

    def weights(self):
        """Returns all weights, in the order of the files."""
        return [Weight(self, i) for i in range(len(self))]

    def close(self):
        """Closes the checkpoint. Arrays that it returned stay valid. Reads of other threads that have begun end normally; later
        ones raise Error."""
        self._owner = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def open(path, **options):
    """Opens a directory or a .safetensors file in any format that Tessera reads. Options: source_block, ignore_file."""
    pointer = ctypes.c_void_p()
    _native.call("tessera_open", byref(pointer), _native.raw(path), _native.words(options))
    return Checkpoint(pointer)


# ---- arrays ----


def _native_order(name, values):
    """Returns an array with the same values in C order and native byte order, as the library needs it."""
    if np.ma.is_masked(values):
        raise Error("usage", f"'{name}' has masked elements: fill them (.filled)")
    values = np.asarray(values, order="C")  # np.ascontiguousarray would give a scalar an axis
    if values.ndim > _native.MAX_RANK:
        raise Error("usage", f"'{name}' has {values.ndim} axes; the limit is {_native.MAX_RANK}")
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _array(name, values, dtype=None):
    """Returns a struct that describes an array, and the array, which must live as long as the struct."""
    values = _native_order(name, values)
    own = DTYPES.get(values.dtype.name)
    if dtype is None and own is None:
        raise Error("usage", f"'{name}' is an array of {values.dtype}; supported are {', '.join(DTYPES)}")
    # Integers and raw bytes can hold the bits of any dtype. Floats of another dtype and objects cannot.
    bits = values.dtype.kind in "iu" or values.dtype.type is np.void
    same = dtype in (None, own) or (dtype in NUMPY and values.dtype == np.dtype(NUMPY[dtype]))
    if not same and not bits:
        raise Error("usage", f"'{name}': an array of {values.dtype} is not {dtype}: pass its bits as unsigned integers of that size")
    struct = _native.ArrayStruct(name=_native.raw(name), dtype=_native.raw(dtype or own), rank=values.ndim, data=values.ctypes.data,
                                 bytes=values.nbytes)
    struct.shape[:values.ndim] = values.shape
    return struct, values


def open_arrays(arrays, config=None, **options):
    """Opens {name: array} as a checkpoint. `config` is a dict with the contents of config.json. An array may be a pair of bytes and
    their dtype: (array, "F8_E4M3")."""
    structs = [_array(name, *(values if isinstance(values, tuple) else (values,))) for name, values in arrays.items()]
    pointer = ctypes.c_void_p()
    _native.call("tessera_open_arrays", byref(pointer), (_native.ArrayStruct * len(structs))(*(struct for struct, _ in structs)),
                 len(structs), None if config is None else json.dumps(config).encode(), _native.words(options))
    return Checkpoint(pointer)


def quantize(array, name="array.weight", **options):
    """Quantizes a matrix [outputs, inputs] of float32, float16 or ml_dtypes.bfloat16 as `tessera quantize` does:
    scheme="nvfp4-weight-only", scales="mse", ... Returns a Weight with codes and scales in memory."""
    struct, keep = _array(name, array)
    pointer = ctypes.c_void_p()
    _native.call("tessera_quantize", byref(pointer), byref(struct), _native.words(options))
    del keep
    return Weight(Checkpoint(pointer), 0)


# ---- plans ----


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of a run. sqnr: in dB, of all quantized weights, or NaN if there is none. warnings: those of the plan."""
    already_complete: bool
    files_resumed: int
    bytes_read: int
    bytes_written: int
    seconds: float
    threads: int
    sqnr: float
    warnings: list


class _Watch:
    """Progress callback for C. An exception of the caller's function stops the job, and is raised after the job has ended."""

    def __init__(self, progress):
        self.failure = None
        self.callback = _native.ProgressFn() if progress is None else _native.ProgressFn(self._report)
        self._progress = progress

    def _report(self, struct, _):
        fields = {name: getattr(struct.contents, name) for name, _ in _native.ProgressStruct._fields_}
        try:
            stop = self._progress({name: _native.text(value) if isinstance(value, bytes) else value for name, value in fields.items()})
        except BaseException as failure:
            self.failure = failure
            return 1
        return 1 if stop else 0

    def call(self, *arguments):
        try:
            _native.call(*arguments)
        except Error:
            if self.failure is None:
                raise
        if self.failure is not None:
            raise self.failure


class Plan:
    """A planned command: .notes ((name, action, reason) of each tensor), .warnings, .sums. run(destination) carries it out."""

    def __init__(self, pointer):
        self._pointer = pointer
        sums = _native.PlanSums()
        _native.library.tessera_plan_sum(pointer, byref(sums))
        self.sums = {name: getattr(sums, name) for name, _ in sums._fields_}
        self.warnings = [_native.text(_native.library.tessera_plan_warning(pointer, i)) for i in range(sums.warnings)]

    @property
    def notes(self):
        notes, note = [], _native.PlanNote()
        for i in range(self.sums["tensors"]):
            _native.call("tessera_plan_note_at", self._pointer, i, byref(note))
            notes.append((_native.text(note.name), _native.text(note.action), _native.text(note.reason)))
        return notes

    def run(self, destination, progress=None):
        """Runs the plan, or continues a stopped run. progress(dict) is called about five times a second; a true result stops the
        run."""
        result, watch = _native.ResultStruct(), _Watch(progress)
        watch.call("tessera_plan_run", self._pointer, _native.raw(destination), watch.callback, None, byref(result))
        fields = {name: getattr(result, name) for name, _ in result._fields_}
        return Result(**{**fields, "already_complete": bool(result.already_complete), "warnings": list(self.warnings)})

    def __del__(self):
        if getattr(self, "_pointer", None):
            _native.library.tessera_plan_free(self._pointer)
            self._pointer = None


def plan(command, source, **options):
    """Makes the plan of `tessera COMMAND SOURCE`. The command is "quantize" or "convert"; the options are those of the command."""
    pointer = ctypes.c_void_p()
    _native.call("tessera_plan_make", byref(pointer), _native.raw(command), _native.raw(source), _native.words(options))
    return Plan(pointer)


def _make(command, source, destination, progress, options):
    """Makes and runs a plan. Its warnings name the line that called the caller of this function."""
    made = plan(command, source, **options)
    for warning in made.warnings:
        warnings.warn(warning, stacklevel=3)
    return made.run(destination, progress)


def quantize_checkpoint(source, destination, progress=None, **options):
    """Runs `tessera quantize SOURCE -o DESTINATION`, without its report on loaders. The warnings of the command are in the result,
    and are issued as UserWarning."""
    return _make("quantize", source, destination, progress, options)


def convert(source, destination, progress=None, **options):
    """Runs `tessera convert SOURCE -o DESTINATION`: to="bf16", ... Warnings are those of quantize_checkpoint."""
    return _make("convert", source, destination, progress, options)


# ---- verdicts and reports ----


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Result of `tessera verify`: findings are (check, where, what). The list is empty if every check passed."""
    tensors: int
    findings: list
    sqnr: float

    @property
    def passed(self):
        return not self.findings


def verify(path, source, progress=None, **options):
    """Compares a checkpoint with its source. Options: tensors, source_block, threads, memory, and the limits min_sqnr,
    max_block_error, max_misrounded and max_cast_error."""
    pointer, watch = ctypes.POINTER(_native.VerdictStruct)(), _Watch(progress)
    watch.call("tessera_verify", byref(pointer), _native.raw(path), _native.raw(source), _native.words(options), watch.callback, None)
    verdict = pointer.contents
    found = [verdict.finding[i] for i in range(verdict.findings)]
    result = Verdict(verdict.tensors, [tuple(map(_native.text, (one.check, one.where, one.what))) for one in found], verdict.sqnr)
    _native.library.tessera_verdict_free(pointer)
    return result


def report(path):
    """Returns the tensors of a JSON result (quantization_report.json, verify --json) as a pandas.DataFrame."""
    import pandas
    with pathlib.Path(path).open(encoding="utf-8") as file:
        result = json.load(file)
    if not isinstance(result.get("tensors"), list):
        raise Error("format", f"{path} has no list of tensors: only results of quantize, convert, diff and verify have one")
    return pandas.json_normalize(result["tensors"])
