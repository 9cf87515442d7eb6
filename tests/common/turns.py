"""Chooses a part of the cases of a long test: another part in each turn, and all cases with TESSERA_LONG.

`./dev test` sets TESSERA_TURN, a number that follows from the commit. The same number repeats the same choice."""

import os


def whole():
    """Returns true if all cases are requested."""
    return bool(os.environ.get("TESSERA_LONG"))


def turn():
    """Returns the number of the turn."""
    return int(os.environ.get("TESSERA_TURN") or 0)


def part(cases, of, always=0):
    """Returns one case in `of`, and the first `always` cases. As many turns in a row as `of` take each case once."""
    cases = list(cases)
    return [case for at, case in enumerate(cases) if whole() or at < always or (at + turn()) % of == 0]


def first(count, options):
    """Returns the number of the first of `count` numbered cases: --first, or 0 with --all, or other cases in each turn."""
    if options.first is not None:
        return options.first
    return 0 if options.all or whole() else turn() % 1_000_000 * count


def told():
    """Describes the choice, for the output of a test."""
    return "all cases" if whole() else f"TESSERA_TURN={turn()} repeats this choice, TESSERA_LONG=1 takes all cases"
