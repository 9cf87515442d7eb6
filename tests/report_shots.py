#!/usr/bin/env python3
"""Takes screenshots of the page of `tessera report --html` in headless Chromium, for `./dev report-shots`.

They show the first screen in light, charts in dark, one tensor, a phone, and print. docs/images/ has copies."""

import argparse
import os
import pathlib
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[0] / name) for name in ("common", "oracles")]

import browser  # noqa: E402
import harness  # noqa: E402

PAPER = (794, 1123)  # A4 in CSS pixels
OUTLIER = "model.layers.37.mlp.experts.17.down_proj.weight"
COMMANDS = {"quantize": "quantize SRC -o DST --json JSON", "weights": "verify DST --against SRC --json JSON",
            "gemm": "verify gemm DST --against SRC --device cpu --sample 6 --json JSON",
            "mla": "verify mla DST --layer 0 --against SRC --device cpu --json JSON",
            "forward": "verify forward DST --against SRC --count 16 --json JSON"}


def page(tessera, folder, name, *arguments):
    """Makes a page with the tool. Prints the error on failure."""
    path = folder / f"{name}.html"
    code, _, err = harness.run(tessera, ["report", *arguments, "--html", path, "--quiet"])
    if code not in (0, 1):
        sys.exit(err.strip())
    return path


def small_model(tessera, maker, folder):
    """Makes the page of a complete run for a small model: quantized and verified in every way."""
    source, output = folder / "deepseek-v3-small", folder / "deepseek-v3-small-fp8"
    harness.make_checkpoint(maker, "deepseek-v3", source)
    made = []
    for name, command in COMMANDS.items():
        made.append(folder / f"{name}.json")
        code, _, err = harness.run(tessera, [{"SRC": source, "DST": output, "JSON": made[-1]}.get(word, word) for word in command.split()])
        if code != 0:
            sys.exit(f"{command}: {err}")
    return page(tessera, folder, "small", made[0], output / "quantization_report.json", *made[1:])


def made_up(tessera, folder):
    """Makes the pages of a generated large report: one with an outlier, and one with a baseline."""
    import results  # NumPy, which only these figures take
    rows = results.deepseek(61, 32)
    worse = [dict(row) for row in rows]
    worse[5] = results.row(rows[5]["name"], 30.2, 0.09)
    worse[777] = results.row(rows[777]["name"], 31.0)
    at = next(at for at, row in enumerate(rows) if row["name"] == OUTLIER)
    outlier = [*rows[:at], results.row(OUTLIER, 24.1, 0.4, worst_block_at=[128, 640], max_abs_error=0.119), *rows[at + 1:]]
    last, now, large = (results.write(folder / f"{name}.json", results.quantization_report(of, scheme="fp8-block"))
                        for name, of in (("last-night", rows), ("tonight", worse), ("large", outlier)))
    return page(tessera, folder, "large", large), page(tessera, folder, "worse", now, "--baseline", last)


def shoot(chromium, small, large, worse, place):
    """Takes each screenshot."""
    chromium.open(small, 1280, 1000)
    yield "report-light.png", chromium.screenshot()
    yield "report.pdf", chromium.pdf()
    chromium.open(large, 1280, 1000, dark=True)
    chromium.js("scrollTo({ top: document.getElementById('result-0').offsetTop - 24, behavior: 'instant' })")
    yield "report-dark.png", chromium.screenshot()
    chromium.open(small, 1280, 1180)
    chromium.js("document.getElementById('worst').scrollIntoView({ behavior: 'instant' }); document.querySelector('#worst button').click()")
    yield "report-tensor.png", chromium.screenshot()
    chromium.open(worse, 390, 844, touch=True)
    yield "report-phone.png", chromium.screenshot()
    chromium.open(small, *PAPER)
    chromium.call("Emulation.setEmulatedMedia", media="print")
    chromium.js("document.body.style.padding = '14mm'; dispatchEvent(new Event('beforeprint'))")
    yield "report-paper.png", chromium.screenshot()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--tessera", "--make", "--dir"):
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    path = browser.find()
    if path is None:
        sys.exit("report-shots: no Chromium here (Debian's package: chromium)")
    place = pathlib.Path(args.dir).resolve()
    tessera, maker = map(os.path.abspath, (args.tessera, args.make))
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # pages show paths as they are given
        folder = pathlib.Path()
        small = small_model(tessera, maker, folder)
        large, worse = made_up(tessera, folder)
        chromium = browser.Browser(path)
        try:
            for name, picture in shoot(chromium, small, large, worse, place):
                (place / name).write_bytes(picture)
                print(f"{place / name}: {len(picture)} bytes")
        finally:
            chromium.close()


if __name__ == "__main__":
    main()
