"""The fixtures of tests/cli, for tests that run other people's packages."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / name) for name in ("", "common", "oracles")]

pytest_plugins = "cli.conftest"
