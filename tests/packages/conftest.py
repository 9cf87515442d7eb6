"""The fixtures of tests/interop, for tests that run other people's packages."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent.parent / "common")]

pytest_plugins = "interop.conftest"
