"""Formats the help of a command as a manual page in the language of man(7)."""

import re

SPECIAL = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
ENVIRONMENT = [("NO_COLOR", "if it is set, nothing is coloured"),
               ("TESSERA_PYTHON", "the Python with transformers that turns text into tokens for verify forward --tokens (python3)")]
ABOUT = """Tessera quantizes checkpoints of large language models offline, converts them, and says what that cost. What it cannot interpret, \
it names and refuses. It needs no GPU. A run that was killed is resumed by the same command, and the output of a job has no \
config.json before it is whole."""


def escape(text):
    """Escapes a text so that groff prints it unchanged."""
    said = "".join(SPECIAL.get(character, character) for character in text)
    return rf"\&{said}" if said.startswith(".") else said


def bold(text):
    return rf"\fB{escape(text)}\fP"


def table(lines):
    """Rows of a help's table, "  name  what it is" with what follows further in, as tagged paragraphs."""
    rows = []
    for line in lines:
        row = re.match(r"  (\S.*?)  +(\S.*)$", line) or re.match(r"  (\S+) (\S.*)$", line)
        if row:
            rows.append([row.group(1), row.group(2)])
        else:
            rows[-1][1] += f" {line.strip()}"
    return [part for name, text in rows for part in (".TP", bold(name), escape(text))]


def example(line):
    command, _, told = line.strip().partition("  ")
    return [".PP", bold(command)] + ([".RS 4", escape(told.strip()), ".RE"] if told else [])


def paragraph(lines):
    """A paragraph of a help: text, or lines that are a table, examples or code."""
    title = re.fullmatch(r"([A-Z][a-z]+):", lines[0])
    if title and title.group(1) == "Examples":
        return [".SH EXAMPLES", *(part for line in lines[1:] for part in example(line))]
    if title and lines[1].startswith("  "):
        return [f".SH {title.group(1).upper()}", *table(lines[1:])]
    text, rows = [line for line in lines if not line.startswith(" ")], [line for line in lines if line.startswith(" ")]
    if not rows:
        return [".PP", *map(escape, lines)]
    if not text:
        return [".PP", ".nf", *(escape(line) for line in lines), ".fi"]
    first = lines.index(rows[0])
    last = len(lines) - next(i for i, line in enumerate(reversed(lines)) if line.startswith(" "))
    return [*(paragraph(lines[:first]) if first else []), *table(lines[first:last]), *(paragraph(lines[last:]) if last < len(lines) else [])]


def head(name, version, summary):
    page = name.replace(" ", "-")
    return [f'.TH {escape(page.upper())} 1 "" "Tessera {version}" "Tessera"', ".ad l", ".nh", ".SH NAME",
            rf"{escape(page)} \- {escape(summary)}"]


def tail(codes, others):
    rows = [part for code in codes for part in (".TP", bold(str(code["code"])), escape(code["meaning"]))]
    pages = [rf"\fB{escape(name)}\fP(1)" for name in others]
    return [".SH EXIT STATUS", *rows, ".SH SEE ALSO", *(f"{page}," for page in pages[:-1]), pages[-1], ".PP",
            "Pages about what each command does, and the formats that it reads and writes, are installed as",
            rf"\fI{escape('doc/tessera/docs')}\fP below the folder for data ({escape('/usr/share')})."]


def name_of(command):
    """The page of a command: tessera-verify-gemm."""
    return f"tessera-{command.name.replace(' ', '-')}"


def page_of_command(command, version, codes, commands):
    family = [other for other in commands if other is not command and other.name.split()[0] == command.name.split()[0]]
    lines = head(f"tessera {command.name}", version, command.summary) + [".SH SYNOPSIS"]
    lines += [part for i, usage in enumerate(command.usage) for part in ([".br"] if i else []) + [bold(usage)]]
    lines += [".SH DESCRIPTION"]
    examples = []
    for text in re.split(r"\n\n+", command.body.strip()):
        made = paragraph(text.split("\n"))
        (examples if made[0] == ".SH EXAMPLES" else lines).extend(made)
    lines += [".SH OPTIONS"]
    for option in command.options:
        value = rf" \fI{escape(option.argument.replace('|', ' | '))}\fP" if option.argument else ""
        lines += [".SS", escape(option.topic)] if option.topic else []
        lines += [".TP", bold(option.name) + value, escape(option.help)]
    return lines + examples + tail(codes, ["tessera"] + [name_of(other) for other in family])


def page_of_all(version, codes, commands):
    lines = head("tessera", version, "offline quantization of LLM checkpoints")
    lines += [".SH SYNOPSIS", bold("tessera COMMAND [options]"), ".br", bold("tessera help COMMAND"), ".br",
              bold("tessera --version [--json [FILE]]"), ".SH DESCRIPTION", escape(ABOUT), ".SH COMMANDS"]
    for command in commands:
        lines += [".TP", rf"\fB{escape(name_of(command))}\fP(1)", escape(command.summary)]
    lines += [".SH ENVIRONMENT"]
    for name, text in ENVIRONMENT:
        lines += [".TP", bold(name), escape(text)]
    return lines + tail(codes, [name_of(command) for command in commands])


def pages(version, codes, commands):
    """{file name: text} of all pages."""
    made = {"tessera.1": page_of_all(version, codes, commands)}
    made |= {f"{name_of(command)}.1": page_of_command(command, version, codes, commands) for command in commands}
    comment = '.\\" Made by cli/manual from `tessera help --json`.'
    return {name: "\n".join([comment, *lines, ""]) for name, lines in made.items()}
