"""Snapshots and compares trees of files."""

import hashlib
import os


def digest(data):
    return hashlib.sha1(data).hexdigest()


def is_note(name):
    """Returns True for Tessera's own records, which may describe a repair or be left over."""
    return "/.tessera/" in f"/{name}"


def is_config(name):
    return name.rpartition("/")[2] == "config.json"


def tree_of(folder):
    """Returns {name: digest} of all below a folder; records and folders have only names."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(place, name)
            relative = os.path.relpath(path, folder)
            if os.path.isdir(path) or is_note(relative):
                found[relative] = ""
            else:
                with open(path, "rb") as file:
                    found[relative] = digest(file.read())
    return found


def difference(expected, found):
    """Returns the first difference between two trees in words, or None."""
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            return f"{name}: " + ("is missing" if name not in found else "should not be there" if name not in expected else "its bytes differ")
    return None


def is_whole(config, whole, found):
    """Returns True if all files that this config.json of `found` refers to are the same as in `whole`. The output may also
    have folders of other ranks, whose config.json may be missing. Records may differ."""
    root = config.rpartition("/")[0]
    while root and f"{root}/.tessera" not in whole:
        root = root.rpartition("/")[0]

    def part(tree):
        return {name: told for name, told in tree.items() if name.startswith(root) and not is_note(name)}

    expected = part(whole)
    for name in expected.keys() - found.keys():
        if is_config(name) and name != config:
            del expected[name]
    return difference(expected, part(found)) is None
