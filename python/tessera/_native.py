"""Binding of libtessera by ctypes: the structs and functions of tessera.h."""

import ctypes
import os
import pathlib
import re
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_int, c_size_t, c_uint64, c_void_p

MAX_RANK = MAX_STORED = 8


def escape(message):
    """Returns a message with control characters, bidirectional marks and invalid UTF-8 escaped, as the command prints it. Names
    come from untrusted files."""
    known = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}

    def escape_one(found):
        character = found.group()
        if "\udc80" <= character <= "\udcff":
            return f"\\x{ord(character) - 0xdc00:02x}"  # a byte, as os.fsdecode has it
        return known.get(character) or (f"\\x{ord(character):02x}" if character < "\x80" else f"\\u{ord(character):04x}")

    return re.sub("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]", escape_one, message)


class Error(Exception):
    """An error of libtessera: .status is "format", "usage", "io", ...; the text is one line and suggests a remedy."""

    __module__ = "tessera"

    def __init__(self, status, message):
        super().__init__(escape(message))
        self.status = status


class ErrorStruct(ctypes.Structure):
    _fields_ = [("status", c_int), ("message", c_char * 1024)]


class StoredStruct(ctypes.Structure):
    _fields_ = [("role", c_char_p), ("name", c_char_p), ("dtype", c_char_p), ("shape", c_uint64 * MAX_RANK),
                ("rank", c_uint64), ("bytes", c_uint64), ("file", c_char_p), ("offset", c_uint64), ("data", c_void_p)]


class WeightStruct(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("format", c_char_p), ("shape", c_uint64 * MAX_RANK), ("rank", c_uint64),
                ("bits", c_uint64), ("block_rows", c_uint64), ("block_cols", c_uint64), ("n_stored", c_uint64),
                ("stored", StoredStruct * MAX_STORED)]


class ArrayStruct(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", c_char_p), ("shape", c_uint64 * MAX_RANK), ("rank", c_uint64),
                ("data", c_void_p), ("bytes", c_uint64)]


class PlanSums(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in ("tensors", "files", "bytes_in", "bytes_out", "memory", "warnings")]


class PlanNote(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("action", c_char_p), ("reason", c_char_p)]


class ProgressStruct(ctypes.Structure):
    _fields_ = [("phase", c_char_p), ("bytes_done", c_uint64), ("bytes_total", c_uint64), ("items_done", c_uint64),
                ("items_total", c_uint64), ("items", c_char_p), ("seconds", c_double)]


class ResultStruct(ctypes.Structure):
    _fields_ = [("already_complete", c_int), ("files_resumed", c_uint64), ("bytes_read", c_uint64),
                ("bytes_written", c_uint64), ("seconds", c_double), ("threads", c_uint64), ("sqnr", c_double)]


class FindingStruct(ctypes.Structure):
    _fields_ = [("check", c_char_p), ("where", c_char_p), ("what", c_char_p)]


class VerdictStruct(ctypes.Structure):
    _fields_ = [("tensors", c_uint64), ("findings", c_uint64), ("finding", POINTER(FindingStruct)), ("sqnr", c_double)]


ProgressFn = ctypes.CFUNCTYPE(c_int, POINTER(ProgressStruct), c_void_p)
Words = POINTER(c_char_p)

# Argument types of each function that returns a status, without the error, which comes last.
FALLIBLE = {
    "tessera_open": (POINTER(c_void_p), c_char_p, Words),
    "tessera_weight_at": (c_void_p, c_size_t, POINTER(WeightStruct)),
    "tessera_find": (c_void_p, c_char_p, POINTER(c_size_t)),
    "tessera_read": (c_void_p, c_size_t, c_char_p, c_uint64, c_uint64, c_void_p, c_size_t),
    "tessera_read_stored": (c_void_p, c_char_p, c_uint64, c_void_p, c_size_t),
    "tessera_open_arrays": (POINTER(c_void_p), POINTER(ArrayStruct), c_size_t, c_char_p, Words),
    "tessera_quantize": (POINTER(c_void_p), POINTER(ArrayStruct), Words),
    "tessera_plan_make": (POINTER(c_void_p), c_char_p, c_char_p, Words),
    "tessera_plan_note_at": (c_void_p, c_size_t, POINTER(PlanNote)),
    "tessera_plan_run": (c_void_p, c_char_p, ProgressFn, c_void_p, POINTER(ResultStruct)),
    "tessera_verify": (POINTER(POINTER(VerdictStruct)), c_char_p, c_char_p, Words, ProgressFn, c_void_p),
}
OTHERS = {
    "tessera_version": (c_char_p, ()),
    "tessera_status_name": (c_char_p, (c_int,)),
    "tessera_close": (None, (c_void_p,)),
    "tessera_count": (c_size_t, (c_void_p,)),
    "tessera_plan_free": (None, (c_void_p,)),
    "tessera_plan_sum": (None, (c_void_p, POINTER(PlanSums))),
    "tessera_plan_warning": (c_char_p, (c_void_p, c_size_t)),
    "tessera_verdict_free": (None, (POINTER(VerdictStruct),)),
}


def find_library():
    """Returns the path of the library: TESSERA_LIBRARY, or the one installed with this module."""
    here = pathlib.Path(__file__).resolve().parent
    beside = sorted(here.glob("libtessera.so*")) + sorted(here.parent.glob(".tessera.mesonpy.libs/libtessera.so*"))
    return os.environ.get("TESSERA_LIBRARY") or (str(beside[0]) if beside else "libtessera.so.0")


def load():
    library = ctypes.CDLL(find_library())
    for name, arguments in FALLIBLE.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [*arguments, POINTER(ErrorStruct)], c_int
    for name, (result, arguments) in OTHERS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = list(arguments), result
    return library


library = load()


def call(name, *arguments):
    """Calls a function that may fail. Raises Error with its status and its message."""
    error = ErrorStruct()
    if getattr(library, name)(*arguments, byref(error)) != 0:
        raise Error(text(library.tessera_status_name(error.status)), text(error.message))


def text(raw):
    """Returns bytes of C, such as a name that may not be UTF-8, as a str."""
    return os.fsdecode(raw)


def raw(path_or_text):
    """Returns a path or text as bytes for C. Rejects a NUL, where C would end the text."""
    encoded = os.fsencode(path_or_text)
    if b"\0" in encoded:
        raise Error("usage", f"{path_or_text!r} contains a NUL, which no name and no option may contain")
    return encoded


def words(options):
    """Returns options such as {"scale_fmt": "ue8m0", "zero_points": True, "exclude": ["a", "b"]} as the words of a command line,
    terminated by NULL."""
    arguments = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            arguments.append(option)
            continue
        for item in value if isinstance(value, (list, tuple, set, frozenset)) else [value]:
            arguments += [option, item if isinstance(item, (str, bytes)) else str(item)]
    return (c_char_p * (len(arguments) + 1))(*map(raw, arguments), None)
