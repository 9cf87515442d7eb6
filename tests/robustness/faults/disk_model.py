"""Models a disk that keeps only synced data: the states that a power cut may leave at any moment.

The input is a recording of the shim (shim/record.c). Bytes of a file are kept from its sync on, and names from the
sync of their folder on. Any part of other changes may be on the disk, in any order. A rename is atomic.
"""

import collections
import os

import trees

FOLDER = "folder"
SYNCS = ("fsync", "fdatasync")
# How much of what was not synced is kept: of names, and of the data of each file.
NONE, ALL, SOME = "none", "all", "some"
WAYS = [(NONE, NONE), (ALL, NONE), (ALL, ALL), (NONE, ALL), (ALL, SOME), (SOME, SOME)]

Call = collections.namedtuple("Call", "what path to at data", defaults=[None, 0, None])


def read_record(path, root):
    """Yields the calls below `root` in order."""
    calls = []
    with open(path, "rb") as file:
        data = memoryview(file.read())
    at = 0
    while at < len(data):
        end = at + bytes(data[at:at + 9000]).index(b"\n")
        words = bytes(data[at:end]).decode().split("\t")
        at, what, name = end + 1, words[0], os.path.normpath(words[1])
        body, to, offset = None, None, 0
        if what == "write":
            offset, size = int(words[2]), int(words[3])
            body = data[at:at + size]
            at += size
        elif what == "link":
            size = int(words[2])
            body = data[at:at + size]
            at += size
        elif what == "size":
            offset = int(words[2])
        elif what == "rename":
            to = os.path.normpath(words[2])
        if name.endswith(" (deleted)"):  # a file that never had a name, by which it was tried whether direct writes go
            continue
        if (name + "/").startswith(f"{root}/") or name == os.path.dirname(root):
            calls.append(Call(what, name, to, offset, body))
    return calls


class File:
    """Has the bytes that are certainly on the disk, and later changes."""

    def __init__(self, data=b""):
        self.durable, self.changes, self._digests = data, [], {}

    def change(self, at, data):
        """Writes data at an offset; without data, sets the size."""
        self.changes.append((at, data))
        self._digests.pop(ALL, None)

    def content(self, way, random=None):
        """Yields the contents that are possible after a power cut."""
        if way == NONE or not self.changes:
            return bytes(self.durable)
        found = bytearray(self.durable)
        for at, data in self.changes:
            if way == SOME:
                kept = random.random()
                if kept < 0.4:
                    continue
                if kept < 0.6 and data is not None:  # a part of it
                    data = data[:random.randrange(len(data) + 1)]
            if data is None:
                found = found[:at] + bytes(max(0, at - len(found)))
            else:
                found += bytes(max(0, at - len(found)))
                found[at:at + len(data)] = data
        return bytes(found)

    def digest(self, way):
        """Returns the content of a deterministic choice."""
        if way not in self._digests:
            self._digests[way] = trees.digest(self.content(way))
        return self._digests[way]

    def sync(self):
        if self.changes:
            self.durable, self.changes, self._digests = self.content(ALL), [], {}


class Disk:
    """Has names and files below `root`, and its folder."""

    def __init__(self, root):
        self.root = root
        self.durable = {os.path.dirname(root): FOLDER}
        for place, folders, files in os.walk(root):
            self.durable[place] = FOLDER
            for name in files:
                with open(os.path.join(place, name), "rb") as file:
                    self.durable[os.path.join(place, name)] = File(file.read())
        self.now = dict(self.durable)
        self.pending = []

    def play(self, call):
        """Applies one call."""
        if call.what in ("write", "size"):
            self.now[call.path].change(call.at, call.data)
        elif call.what in SYNCS:
            self._sync(call.path)
        elif call.what == "link":  # of a file that lies elsewhere and may not have been synced
            file = File()
            file.change(0, bytes(call.data))
            self.pending.append(("create", call.path, None, file))
            apply(self.now, self.pending[-1])
        else:
            change = (call.what, call.path, call.to, File() if call.what == "create" else None)
            self.pending.append(change)
            apply(self.now, change)

    def _sync(self, path):
        found = self.now.get(path)
        if isinstance(found, File):
            found.sync()
            return
        # The changes in this folder, and what they rest on: earlier changes of the same names.
        kept, names = [], set()
        for change in reversed(self.pending):
            touched = {name for name in change[1:3] if name is not None}
            if any(os.path.dirname(name) == path for name in touched) or touched & names:
                kept.append(change)
                names |= touched
        for change in reversed(kept):
            apply(self.durable, change)
        chosen = set(map(id, kept))
        self.pending = [change for change in self.pending if id(change) not in chosen]

    def state(self, names, random):
        """Returns {path: File or FOLDER} of a possible state of the disk. The contents of a lost folder are lost, too."""
        found = dict(self.durable)
        for change in self.pending if names != NONE else []:
            if names == ALL or random.random() < 0.5:
                apply(found, change)
        return {path: what for path, what in sorted(found.items())
                if path.startswith(f"{self.root}/") and self._is_reached(path, found) or path == self.root}

    def _is_reached(self, path, found):
        while path != self.root:
            path = os.path.dirname(path)
            if found.get(path) is not FOLDER:
                return False
        return True


def apply(names, change):
    """Applies one change of names. A change without its preconditions has no effect."""
    what, path, to, file = change
    if what == "create":
        names[path] = file
    elif what == "mkdir":
        names[path] = FOLDER
    elif what in ("unlink", "rmdir"):
        names.pop(path, None)
    elif what == "rename" and path in names:
        names[to] = names.pop(path)
