"""Reads the front matter of a model card: plain members, and lists with an item a line."""


def read(text):
    head, rest = text.split("\n", 1)
    assert head == "---" and "\n---\n" in rest, "no front matter"
    found, key = {}, None
    for line in rest.split("\n---\n", 1)[0].split("\n"):
        if line.startswith("- "):
            found[key].append(line[2:])
            continue
        key, value = line.split(":", 1)
        assert key not in found and (value == "" or value.startswith(" ")), line
        found[key] = value[1:] if value else []
    return found
