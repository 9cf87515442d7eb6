"""Generates completions for bash, zsh and fish: a fixed frame, filled with tables of commands and options."""

import collections
import pathlib

FRAMES = pathlib.Path(__file__).resolve().parent
COMMENT = "# Made by cli/manual from `tessera help --json`."


def quote(text):
    """For any shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def frame(name, **tables):
    text = (FRAMES / name).read_text()
    for place, lines in {"made": [COMMENT], **tables}.items():
        assert text.count(f"@{place}@") == 1, place
        text = text.replace(f"@{place}@", "\n".join(lines))
    return text


def names(commands):
    """Returns (name, summary) of the commands, and of those behind `verify`."""
    checks = next(command.checks for command in commands if command.name == "verify")
    assert all(command.checks in ([], checks) for command in commands)
    summaries = {command.name: command.summary for command in commands}
    return ([(command.name, command.summary) for command in commands if " " not in command.name] + [("help", "tells more of a command")],
            [(check, summaries[f"verify {check}"]) for check in checks])


def flags(commands):
    """Options without a value: a name is one in all commands, or in none."""
    kinds = collections.defaultdict(set)
    for command in commands:
        for option in command.options:
            kinds[option.name].add(option.argument is None)
    assert all(len(kind) == 1 for kind in kinds.values()), kinds
    return sorted(name for name, kind in kinds.items() if True in kind)


# ---- bash ----

def bash_offer(option):
    if option.offer == "words":
        return ("@list " if option.several else "") + " ".join(option.choices)
    return f"@{option.offer or 'nothing'}"


def bash(commands):
    values = collections.defaultdict(list)
    for command in commands:
        for option in command.options:
            if option.argument:
                values[bash_offer(option)].append(f"'{command.name} {option.name}'")
    first, checks = names(commands)
    return frame("frame.bash",
                 commands=[" ".join(name for name, _ in first)], checks=[" ".join(name for name, _ in checks)], flags=[" ".join(flags(commands))],
                 options=[f"    {quote(command.name)}) echo {quote(' '.join(o.name for o in command.options))} ;;" for command in commands],
                 values=[f"    {' | '.join(of)}) echo {quote(offer)} ;;" for offer, of in values.items()])


# ---- zsh ----

def zsh_spec(option):
    told = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    attached = "=" if option.argument and option.name.startswith("--") else ""
    action = {"files": "_files", "tensors": "_tessera_tensors", None: " ",
              "words": f"_sequence compadd - {' '.join(option.choices)}" if option.several else f"({' '.join(option.choices)})"}[option.offer]
    label = (option.argument or "").replace(":", "\\:") if option.offer != "words" else "word"
    return quote(f"{'*' if option.repeats else ''}{option.name}{attached}[{told}]" + (f":{label}:{action}" if option.argument else ""))


def zsh(commands):
    first, checks = names(commands)
    described = [[f"    {quote(name + ':' + summary.replace(':', chr(92) + ':'))}" for name, summary in of] for of in (first, checks)]
    specs = [line for command in commands
             for line in [f"    {quote(command.name)}) specs=(", *(f"        {zsh_spec(option)}" for option in command.options), "        ) ;;"]]
    return frame("frame.zsh", commands=described[0], checks=described[1], specs=specs)


# ---- fish ----

def fish_lines(command):
    when = quote(f"__tessera_is {command.name}")
    for option in command.options:
        name = f"-l {option.name[2:]}" if option.name.startswith("--") else f"-s {option.name[1:]}"
        offer = {"files": "-r -F", "tensors": "-x -a '(__tessera_tensors)'", "words": f"-x -a {quote(' '.join(option.choices))}",
                 None: "-x" if option.argument else ""}[option.offer]
        if option.several:
            offer = f"-x -a '(__tessera_list {' '.join(option.choices)})'"
        yield f"complete -c tessera -n {when} {name} {offer} -d {quote(option.help)}"


def fish(commands):
    first, checks = names(commands)
    return frame("frame.fish",
                 commands=[f"complete -c tessera -n '__tessera_at 1; or __tessera_at 2 help' -a {name} -d {quote(told)}" for name, told in first],
                 checks=[f"complete -c tessera -n '__tessera_at 2 verify; or __tessera_at 3 help' -a {name} -d {quote(told)}"
                         for name, told in checks],
                 names=[" ".join(name for name, _ in checks)], flags=[" ".join(flags(commands))],
                 options=[line for command in commands for line in fish_lines(command)])


def files(commands):
    """{file name: text} for all shells. Each looks for its own by such a name."""
    return {"tessera": bash(commands), "_tessera": zsh(commands), "tessera.fish": fish(commands)}
