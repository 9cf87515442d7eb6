"""Reads a page of `tessera report --html`: its elements, its data, and references to other resources."""

import html.parser
import json
import re

VOID = {"meta", "link", "input", "br", "img", "hr"}
# Attributes that make a browser load something. A link within the page, or to data, stays in it.
LOADING = {"src", "href", "srcset", "data", "action", "formaction", "poster", "background", "cite", "manifest", "ping"}
SPEAKING = re.compile(r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|Worker)\s*\(|\bimport\s*[('\"{*]")


class Page(html.parser.HTMLParser):
    """Parses a page. `maker`: the line above the verdict; `scripts`, `styles`: their texts; `data`: the embedded report;
    `texts`: by id of the enclosing element; `outside`: references outside the file; `verdict`: the word in the heading."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open_elements, self.scripts, self.styles, self.outside, self.comments = [], [], [], [], []
        self.data, self.verdict, self.title, self.heading, self.maker = None, None, "", "", ""
        self.feed(text)
        self.close()
        assert self.open_elements == [], self.open_elements
        for style in self.styles:
            self.outside += re.findall(r"@import[^;]*|url\((?!\s*['\"]?data:)[^)]*\)", style)
        for script in self.scripts:
            self.outside += [found.group(0) for found in SPEAKING.finditer(without_comments(script))]
            self.outside += re.findall(r"sourceMappingURL\S*", script)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        for name, value in attributes:
            if name in LOADING and value and not value.startswith(("#", "data:")):
                self.outside.append(f"<{tag} {name}={value}>")
            if name.startswith("on"):
                self.outside.append(f"<{tag} {name}>")
        if given.get("id") == "verdict":
            self.verdict = given["data-verdict"]
        if tag not in VOID:
            self.open_elements.append((tag, given))
        if tag == "script" and given.get("type") != "application/json":
            self.scripts.append("")

    def handle_endtag(self, tag):
        assert self.open_elements and self.open_elements[-1][0] == tag, (tag, self.open_elements)
        self.open_elements.pop()

    def handle_data(self, text):
        if not self.open_elements:
            return
        tag, given = self.open_elements[-1]
        if tag == "script" and given.get("id") == "data":
            assert self.data is None
            self.data = json.loads(text)
        elif tag == "script":
            self.scripts[-1] += text
        elif tag == "style":
            self.styles.append(text)
        elif any(around.get("class") == "maker" for _, around in self.open_elements):
            self.maker += text
        elif tag == "title":
            self.title += text
        elif any(t == "h1" for t, _ in self.open_elements):
            self.heading += text

    def handle_comment(self, text):
        self.comments.append(text)


def without_comments(script):
    return re.sub(r"/\*.*?\*/", " ", script, flags=re.S)


def texts(column, count):
    """Decodes a column of texts: 0 is the previous text. A missing column has none."""
    above, out = None, []
    for value in column if column is not None else [None] * count:
        above = above if value in (0, None) else value
        out.append(None if value is None else above)
    assert len(out) == count
    return out


def rows(result):
    """Returns the rows of a result as objects with all columns and figures."""
    columns, count = result["rows"], result["rows"]["count"]
    named = {key: texts(columns.get(key), count) for key in ("name", "what", "note", "file", "shape", "dtype", "error_at", "block_at")}
    figures = columns["figures"]
    assert all(len(column) == count for column in figures.values())
    return [{**{key: column[at] for key, column in named.items()}, **{key: column[at] for key, column in figures.items()}}
            for at in range(count)]
