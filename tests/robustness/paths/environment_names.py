"""Tests names with control characters, invalid UTF-8 or the maximum length, for each file and folder of a command line.

The output has the usual bytes, or the name is rejected with one message. Printed names have no control characters,
and JSON is valid UTF-8."""

import json
import os
import re
import shutil
import subprocess

import harness

NAMES = {
    "a newline": b"a\nPASS  forged", "an unsupported escape": b"a\x1b[2J\x1b]0;t\x07", "UTF-8": "Gewichte \u00e9\u4e2d\U0001f419".encode(), "turned text": "a\u202eb\u2028c".encode(),
    "no UTF-8": b"a\xff\xfe\x80b", "half a character": b"a\xe4\xb8", "quotes": b"a'\"\\`$(x)<&>%s%n", "a blank": b" a b ", "a dash": b"-o", "255 bytes": b"n" * 255,
    "255 bytes of UTF-8": ("\u4e2d" * 85).encode(), "dots": b"...", "a colon": b"a:b.weight",
}
SAMPLE = ("a newline", "an unsupported escape", "no UTF-8", "255 bytes", "a dash", "a colon")
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]")
# The place of the name, ODD in its own directory, and the command.
PLACES = {
    "the source": ("SRC", "quantize ODD -o DST --json JSON"), "the output": (None, "quantize SRC -o ODD --json JSON"),
    "what is inspected": ("FP8", "inspect ODD --json JSON"), "one tensor's": ("FP8", "inspect ODD:lm_head.weight --json JSON"),
    "what is verified": ("FP8", "verify ODD --against SRC --json JSON --junit JUNIT"), "the original": ("SRC", "verify FP8 --against ODD --json JSON"),
    "a side of diff": ("SRC", "diff ODD FP8 --json JSON"), "an archive's output": (None, "convert SRC -o ODD --to archive --json JSON"),
    "a manifest's": ("FP8", "verify --manifest ODD --json JSON"), "finished outputs": ("FP8", "finish ODD --json JSON"),
    "a result": (None, "inspect FP8 --json ODD"), "JUnit's": (None, "verify FP8 --against SRC --junit ODD"), "progress": (None, "quantize SRC -o DST --progress-file ODD"),
    "rules": ("RULES", "quantize SRC -o DST --rules ODD --json JSON"), "tokens": ("TOKENS", "verify forward FP8 --against SRC --count 2 --tokens ODD --json JSON"),
    "what report reads": ("RESULT", "report ODD --json JSON --markdown MARK --junit JUNIT"), "what report writes": (None, "report RESULT --markdown ODD"),
    "jobs": ("JOBS", "batch ODD --json JSON"), "a side file": ("SRC/ODD", "quantize SIDE -o DST --json JSON"), "none that is there": (None, "inspect ODD --json JSON"),
}


class Named:
    def __init__(self, options, work):
        self.tool, self.work = os.path.abspath(options.tessera), work
        self.places = {word: os.fsencode(work / word.lower()) for word in ("SRC", "FP8", "DST", "JSON", "JUNIT", "MARK", "RULES", "TOKENS", "RESULT", "JOBS", "SIDE")}
        harness.make_checkpoint(options.make, "llama", work / "src", scale="tiny")
        harness.run(self.tool, ["quantize", work / "src", "-o", work / "fp8", "--quiet", "--json", work / "result"])
        (work / "rules").write_text('[{"match": "lm_head.*", "scheme": "none"}]')
        (work / "tokens").write_text("1 2 3 4\n")
        (work / "jobs").write_text(json.dumps({"name": "one", "args": ["quantize", str(work / "src"), "-o", str(work / "dst")]}) + "\n")

    def run(self, begins, command, name):
        """Returns (exit code, stdout, stderr, the output's files) with this name."""
        folder = os.fsencode(self.work / "odd")
        for place in (folder, *(self.places[word] for word in ("DST", "JSON", "JUNIT", "MARK", "SIDE"))):
            shutil.rmtree(place, ignore_errors=True)
            if os.path.lexists(place) and not os.path.isdir(place):
                os.unlink(place)
        os.mkdir(folder)
        odd = os.path.join(folder, name)
        if begins == "SRC/ODD":
            shutil.copytree(self.places["SRC"], self.places["SIDE"])
            with open(os.path.join(self.places["SIDE"], name), "wb") as file:
                file.write(b"text\n")
        elif begins is not None:
            (shutil.copytree if os.path.isdir(self.places[begins]) else shutil.copyfile)(self.places[begins], odd)
        places = {**self.places, "ODD": odd}
        words = [places.get(word.partition(":")[0], word.encode()) + (word[word.index(":"):].encode() if ":" in word else b"") for word in command.split()]
        ended = subprocess.run([self.tool, *words], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=300, cwd=folder)
        target = odd if "-o ODD" in command else self.places["DST"]
        written = {}
        for place, _, files in os.walk(target):
            for file in files:
                path = os.path.relpath(os.path.join(place, file), target)
                if not path.startswith(b".tessera/") and path not in (b"tessera.manifest.json", name):
                    with open(os.path.join(place, file), "rb") as data:
                        written[path] = data.read()
        return ended.returncode, ended.stdout, ended.stderr, written, odd


def check_told(checks, title, named, run):
    code, stdout, stderr, _, odd = run
    shown = stdout + stderr
    text = shown.decode(errors="replace")
    found = CONTROL.search(text)
    checks.check(f"{title}: nothing steers a terminal", found is None and b"\nPASS  forged" not in shown, repr(text[:300]))
    checks.check(f"{title}: what is shown is UTF-8", "\ufffd" not in text, repr(shown[:300]))
    checks.check(f"{title}: one sentence", code in (0, 1) or (stderr.startswith(b"tessera: ") and stderr.count(b"\n") == 1), repr(text[-300:]))
    for place in (named.places["JSON"], odd):
        if os.path.isfile(place) and (place != odd or b"--json" in odd):
            with open(place, "rb") as file:
                data = file.read()
            try:
                json.loads(data.decode())
                wrong = None
            except ValueError as error:
                wrong = error
            checks.check(f"{title}: JSON is JSON", wrong is None, f"{wrong}: {data[:200]}")


def check(checks, options, work):
    named = Named(options, work)
    refused = runs = 0
    for where, (begins, command) in PLACES.items():
        usual = named.run(begins, command, b"plain")
        expected = 3 if where == "none that is there" else usual[0]
        checks.check(f"{where}: as ever", usual[0] == expected and usual[0] in (0, 1, 3), f"{usual[0]}: {usual[2]}")
        for kind, name in NAMES.items():
            if not options.all and kind not in SAMPLE:
                continue
            title = f"{where} has {kind}"
            run = named.run(begins, command, name)
            runs += 1
            refused += run[0] in (2, 3) and usual[0] not in (2, 3)
            checks.check(f"{title}: exit code", run[0] in (usual[0], 2, 3), f"{run[0]}: {run[2]}")
            if run[0] == usual[0]:
                checks.check(f"{title}: the same bytes", run[3].keys() == usual[3].keys() and all(
                    data == usual[3][path] for path, data in run[3].items() if not path.endswith(b"report.json")), sorted(run[3].keys() ^ usual[3].keys()))
            check_told(checks, title, named, run)
    print(f"{runs} odd names in {len(PLACES)} places of a command line; {refused} refused")
