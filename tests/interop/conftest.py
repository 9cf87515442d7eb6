"""Where the binaries are, checkpoints made once a session, and the closing line."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "common"))

import harness  # noqa: E402


def pytest_addoption(parser):
    parser.addoption("--tessera", default=os.environ.get("TESSERA"), help="the tessera binary (or TESSERA)")
    parser.addoption("--make", default=os.environ.get("MAKE_CHECKPOINT"), help="make_checkpoint (beside it)")


@pytest.fixture(scope="session")
def tessera(request):
    path = request.config.getoption("--tessera")
    if not path:
        pytest.exit("which binary? --tessera PATH, or TESSERA in the environment", 2)
    return os.path.abspath(path)


@pytest.fixture(scope="session")
def maker(request, tessera):
    """make_checkpoint, by default where the build puts it: cli/tessera -> tests/make/make_checkpoint."""
    path = request.config.getoption("--make")
    return os.path.abspath(path) if path else str(Path(tessera).parent.parent / "tests/make/make_checkpoint")


@pytest.fixture(scope="session")
def checkpoint(maker, tmp_path_factory):
    """checkpoint(kind) -> a directory with a made-up checkpoint; the same one for the whole session."""
    made = {}

    def get(kind):
        if kind not in made:
            options = {"scale": "tiny"} if kind == "deepseek-v3" else {}
            made[kind] = Path(harness.make_checkpoint(maker, kind, tmp_path_factory.mktemp("src") / kind, **options))
        return made[kind]

    return get


@pytest.fixture
def quantize(tessera, tmp_path):
    """quantize(src, *options) -> DST of a run that has to succeed."""
    runs = []

    def run(src, *options):
        dst = tmp_path / f"out{len(runs)}"
        runs.append(dst)
        code, out, err = harness.run(tessera, ["quantize", src, "-o", dst, "--quiet", *options])
        assert code == 0, f"exit {code}\n{out}{err}"
        return dst

    return run


def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter:
        counts = {kind: len(reporter.stats.get(kind, [])) for kind in ("passed", "failed", "error")}
        print(f"{counts['passed']} passed, {counts['failed'] + counts['error']} failed")
