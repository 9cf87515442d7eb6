"""Helpers of the Python tests: runs the tool, compares trees, writes safetensors files, counts checks. Standard library only."""

import argparse
import contextlib
import fcntl
import json
import math
import os
import pathlib
import pty
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

import forked


class Checks:
    """Counts passed and failed checks, and prints failures immediately."""

    def __init__(self):
        self.passed = 0
        self.failed = 0

    def check(self, name, ok, detail=""):
        """Counts one check, and prints the detail if it failed. Returns ok."""
        if ok:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {name}: {detail}" if detail else f"FAILED {name}", flush=True)
        return bool(ok)

    def ends(self, name, tool, args, wanted=0, *words):
        """Checks that a run ends with this exit code, and with all these words on stdout, or on stderr after a failure."""
        code, out, err = run(tool, args)
        return self.check(name, code == wanted and all(word in (err if code else out) for word in words), f"exit {code}: {err.strip()}")

    def same_tree(self, name, expected, found):
        """Checks that two directories have the same files."""
        difference = tree_difference(expected, found)
        return self.check(name, difference is None, difference)

    def finish(self):
        """Prints 'N passed, N failed' and exits: with 1 if a check failed or there was none, otherwise with 0."""
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(0 if self.passed and not self.failed else 1)


def argument_parser(description):
    """Returns a parser with the options of all tests: --tessera PATH, --make PATH (of make_checkpoint), --directory and
    --shim."""
    parser = argparse.ArgumentParser(description=description)
    for option, variable, what in (("--tessera", "TESSERA", "the tool under test"),
                                   ("--make", "MAKE_CHECKPOINT", "make_checkpoint")):
        path = os.environ.get(variable)
        parser.add_argument(option, default=path, required=path is None, metavar="PATH", help=f"{what} ({variable})")
    parser.add_argument("--shim", metavar="PATH", help="what is preloaded (as built)")
    parser.add_argument("--directory", metavar="DIR", help="where to work (the system's temporary directory)")
    return parser


def parse_options(doc, **switches):
    """Parses the options of a test: those of argument_parser() with the first line of `doc`, and a switch for each name and
    help."""
    parser = argument_parser(doc.splitlines()[0])
    for name, what in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=what)
    return parser.parse_args()


def _run(command, timeout, cpu, **how):
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how) as process:
        if cpu:  # from here, not in the child: a child with something to do first is a copy of this process, which takes long
            try:
                resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu, cpu + 1))
            except ProcessLookupError:  # it has ended
                pass
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace")


# Result of fork_runs(): the shared object, the forked programs, and those that were started, each with its environment.
_forking = {"preloaded": None, "tools": (), "started": {}}
_forking_one = threading.Lock()


def _made_for(path):
    """Returns the machine type of a program; nothing for a script."""
    with open(path, "rb") as file:
        head = file.read(20)
    return head[:6], head[18:20]


def fork_runs(tools, build):
    """Makes run() start each of these programs once and fork it at main for every run (see forked.c). Scripts and programs
    of another machine are started for each run. So are all programs if the build folder lacks the preloaded library, as a
    build with sanitizers does."""
    shared_object = os.path.join(build, "tests/common/forked.so")
    if os.path.exists(shared_object):
        tools = tuple(tool for tool in tools if _made_for(tool) == _made_for(shared_object))
        _forking.update(preloaded=os.path.abspath(shared_object), tools=tools)


def _forked(tool):
    """Returns the started program with the environment of this process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}  # another one in each test
    key = tool, tuple(sorted(environment.items()))
    if key not in _forking["started"]:
        _forking["started"][key] = forked.Forked(tool, _forking["preloaded"])
    return _forking["started"][key]


def run(tool, args, timeout=600, cpu=None):
    """Runs the tool to its end. Returns (exit code, stdout, stderr); a signal is a negative code. `cpu` limits the CPU time,
    after which SIGXCPU ends the tool. `timeout` only ends a run that hangs, and is long enough for a busy machine."""
    args = list(map(str, args))
    if tool not in _forking["tools"] or not _forking_one.acquire(blocking=False):  # another thread's run is under way
        return _run([tool, *args], timeout, cpu)
    try:
        code, *told = _forked(tool).run(args, timeout, cpu)
    finally:
        _forking_one.release()
    return code, *(text.decode(errors="replace") for text in told)


def succeed(tool, args, **limits):
    """The same for a run that must end with exit code 0. Returns its stdout."""
    code, out, err = run(tool, args, **limits)
    assert code == 0, f"{' '.join(map(str, args))}: exit {code}\n{out}{err}"
    return out


def expect(tool, args, wanted, *words):
    """The same for a run that must end with this exit code and all these words on stderr. Returns its stderr."""
    code, out, err = run(tool, args)
    assert code == wanted and all(word in err for word in words), f"{' '.join(map(str, args))}: exit {code}\n{out}{err}"
    return err


def shows(tool, args, wanted, *words):
    """The same with the words on stdout. Returns its stdout."""
    code, out, err = run(tool, args)
    assert code == wanted and all(word in out for word in words), f"{' '.join(map(str, args))}: exit {code}\n{out}{err}"
    return out


def run_in(environment, tool, args, timeout=600, cpu=None):
    """Runs the tool in an environment. Otherwise as run()."""
    return _run([tool, *map(str, args)], timeout, cpu, env=environment)


def run_shimmed(tool, args, shim, timeout=600, cpu=None, **settings):
    """Runs the tool with tests/robustness/faults/shim preloaded and its FAULTS_* variables set: run_shimmed(...,
    PLAN="pwrite 1+ 28")."""
    if "COMMAND" in settings:  # it starts a program, which the tool's sandbox refuses
        args = ["--no-sandbox", *args]
    environment = dict(os.environ, LD_PRELOAD=str(shim), **{f"FAULTS_{name}": str(value) for name, value in settings.items()})
    return _run([tool, *map(str, args)], timeout, cpu, env=environment)


def on_terminal(tool, words, columns, **environment):
    """(exit code, output with its escapes) of a run on a terminal of this many columns. A variable that is None is removed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    variables = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8", **environment}
    variables = {name: value for name, value in variables.items() if value is not None}
    process = subprocess.Popen([tool, *map(str, words)], stdout=slave, stdin=slave, stderr=slave, env=variables)
    shown, ended = b"", False
    while True:  # the terminal stays open, because data may be lost when the last process closes it
        if select.select([master], [], [], 0.2)[0]:
            shown += os.read(master, 65536)
        elif ended:
            break
        ended = process.poll() is not None
    os.close(master)
    os.close(slave)
    return process.returncode, shown.decode().replace("\r\n", "\n")


def stop(process):
    """Kills a process. Returns true if it was still running and this call ended it."""
    process.send_signal(signal.SIGSTOP)
    if process.returncode is not None:  # it had ended, and its caller or send_signal() has learned that
        return False
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return process.poll() is None


def kill_after(args, delay):
    """Kills a program so many seconds after its start. Returns None if it was still running, otherwise the seconds that it
    ran."""
    begin = time.monotonic()
    process = subprocess.Popen([*map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    handle = os.pidfd_open(process.pid)
    select.select([handle], [], [], delay)
    os.close(handle)
    process.kill()
    return None if process.wait() < 0 else time.monotonic() - begin


def figures(told):
    """Returns the JSON that a command printed, without members that differ between runs."""
    if isinstance(told, dict):
        return {key: figures(value) for key, value in told.items() if "second" not in key}
    return [figures(value) for value in told] if isinstance(told, list) else told


def of_kind(result, kind):
    """Returns the judgements of this kind in a result of `tessera verify`."""
    return [j for j in result["judgements"] if j["kind"] == kind]


# How the tool says that there is no GPU for it. A driver that refuses a kernel on one that is there is a failure.
_NO_GPU = ("no usable GPU", "no GPU can be used", "or newer is needed")


def skip_without_gpu(code, stderr):
    """Ends the program if the tool found no device: with 77, skipped, or with 1 if a device failed."""
    if code != 5:
        return
    missing = any(words in stderr for words in _NO_GPU)
    print(f"{'skipped' if missing else 'FAILED'}: {stderr.strip()}")
    sys.exit(77 if missing else 1)


def make_checkpoint(maker, kind, directory, **options):
    """Generates a checkpoint, e.g. make_checkpoint(maker, "llama", path, seed=3)."""
    succeed(maker, [kind, "-o", directory, *(word for name, value in options.items() for word in (f"--{name}", value))])
    return directory


def shim_path(options):
    """Returns the path of the shared object of tests/robustness/faults/shim: --shim, or its place in the build."""
    return options.shim or os.path.join(os.path.dirname(os.path.abspath(options.make)), "..", "robustness/faults/faults.so")


@contextlib.contextmanager
def temporary_directory(parent=None):
    """Creates a directory and removes it at the end, also after an error."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="tessera-test.", dir=parent)).resolve()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def checks_in(parent):
    """Checks, and a fresh directory for them. At its end prints the counts and leaves the process."""
    checks = Checks()
    with temporary_directory(parent) as work:
        yield checks, work
    checks.finish()


def same_file(a, b):
    """Returns True if two files have the same bytes. filecmp reads 8 KiB at a time, which takes 1.5 times as long."""
    if os.path.getsize(a) != os.path.getsize(b):
        return False
    with open(a, "rb", buffering=0) as left, open(b, "rb", buffering=0) as right:
        while True:
            ours, theirs = left.read(1 << 18), right.read(1 << 18)
            if ours != theirs:
                return False
            if not ours:
                return True


def _entries(root):
    found = {}
    for folder, subfolders, files in os.walk(root):
        for name in subfolders + files:
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = path
    return found


def bytes_of(directory):
    """Returns the bytes of all files in the folder."""
    return sum(path.stat().st_size for path in pathlib.Path(directory).rglob("*") if path.is_file())


# Files of an output that depend on the run: Tessera's own folder, and the manifest.
KEPT, MANIFEST = ".tessera", "tessera.manifest.json"


def without_records(*trees):
    """Returns the outputs without the records of their runs, to compare outputs that were made in different ways."""
    for tree in trees:
        shutil.rmtree(os.path.join(tree, KEPT), ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(tree, MANIFEST))
    return trees


def write_json(path, value):
    """Writes a value to a file. Returns its path."""
    path.write_text(json.dumps(value))
    return path


def tree_difference(a, b):
    """Returns None if both trees have the same names and bytes, with hidden files; otherwise the first difference in words."""
    left, right = _entries(a), _entries(b)
    for name in sorted(left.keys() | right.keys()):
        if name not in left or name not in right:
            return f"{name}: only in {a if name in left else b}"
        if os.path.isdir(left[name]) != os.path.isdir(right[name]):
            return f"{name}: a directory on one side only"
        if os.path.isfile(left[name]) and not same_file(left[name], right[name]):
            return f"{name}: bytes differ"
    return None


def read_header(path):
    """(where the data begins, {name: entry}, metadata) of a safetensors file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(length))
    return 8 + length, entries, entries.pop("__metadata__", {})


def headers(directory):
    """{name: entry} of all safetensors files of a directory."""
    return {name: entry for path in sorted(pathlib.Path(directory).glob("*.safetensors")) for name, entry in read_header(path)[1].items()}


def entry_size(entry):
    """Bytes of the tensor of an entry."""
    begin, end = entry["data_offsets"]
    return end - begin


def read_safetensors(path):
    """Returns (metadata, {name: (dtype, shape, bytes)}) of a safetensors file."""
    start, entries, metadata = read_header(path)
    data = memoryview(pathlib.Path(path).read_bytes())[start:]
    return metadata, {name: (entry["dtype"], entry["shape"], bytes(data[slice(*entry["data_offsets"])])) for name, entry in entries.items()}


def write_safetensors(path, tensors, metadata=None):
    """Writes {name: (dtype, shape, bytes)} in the order given. A number in place of bytes makes a hole of this size, which reads as
    zeros and takes no space. Returns the bytes of all tensors."""
    header = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name, (dtype, shape, data) in tensors.items():
        begin, end = end, end + (data if isinstance(data, int) else len(data))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            if isinstance(data, int):
                file.seek(data, os.SEEK_CUR)
            else:
                file.write(data)
        file.truncate(8 + len(text) + end)
    return end


def bf16_holes(shapes):
    """{name: (dtype, shape, size)} of BF16 tensors of zeros that take no space, for write_safetensors()."""
    return {name: ("BF16", shape, 2 * math.prod(shape)) for name, shape in shapes.items()}
