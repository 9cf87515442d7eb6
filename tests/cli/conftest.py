"""Fixtures of the command tests: paths of the binaries, checkpoints made once per session, and the closing line."""

import ctypes
import json
import os
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / name) for name in ("common", "oracles")]

import harness  # noqa: E402
import results  # noqa: E402
import turns  # noqa: E402

pytest.register_assert_rewrite("output_checks", "absorbed_model", "loader_models")


def pytest_addoption(parser):
    parser.addoption("--tessera", default=os.environ.get("TESSERA"), help="the tessera binary, or several with a colon between (or TESSERA)")
    parser.addoption("--make", default=os.environ.get("MAKE_CHECKPOINT"), help="make_checkpoint (beside the first of them)")


def pytest_configure(config):
    """Forks the tool for each run, because its start takes most of the time: 11 ms with sanitizers, 2.5 forked."""
    config.addinivalue_line("markers", "in_turn(together=False): runs with one of the binaries, with another one in another turn; "
                                       "together: as all tests of the module do, which share costly fixtures")
    config.addinivalue_line("markers", "last_tool: runs with the last of the binaries only, because it tests what they all write")
    found = binaries(config)
    if found:
        harness.fork_runs(found, Path(maker_of(config)).parents[2])


def binaries(config):
    given = config.getoption("--tessera") or ""
    return list(dict.fromkeys(os.path.abspath(path) for path in given.split(os.pathsep) if path))


def pytest_generate_tests(metafunc):
    """Runs each test with all binaries: all tests with the first, then all with the next. So one process loads Python's
    modules, and computes sources and expected values, once for all binaries."""
    found = binaries(metafunc.config)
    if len(found) > 1 and "tessera" in metafunc.fixturenames:
        metafunc.parametrize("tessera", found, ids=[Path(path).parent.parent.name for path in found], scope="session", indirect=True)


def pytest_collection_modifyitems(config, items):
    """Runs each case of a test with parameters, and each test marked in_turn, with one of the binaries in turn."""
    found = binaries(config)
    if turns.whole() or len(found) < 2:
        return
    left_out, cases = [], {}
    for item in items:
        parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
        binary = parameters.pop("tessera", None)
        mark = item.get_closest_marker("in_turn")
        if binary is not None and item.get_closest_marker("last_tool"):
            left_out += [item] if binary != found[-1] else []
            continue
        if binary is None or not (parameters or mark):
            continue
        group = item.function if parameters else item.module, binary
        cases[group] = cases.get(group, -1) + 1 if mark is None or not mark.kwargs.get("together") else 0
        if (cases[group] + turns.turn() // 12) % len(found) != found.index(binary):  # independent of what turns.part() takes
            left_out.append(item)
    config.hook.pytest_deselected(items=left_out)
    apart = set(left_out)
    items[:] = [item for item in items if item not in apart]


def first_binary(config):
    found = binaries(config)
    return found[0] if found else pytest.exit("which binary? --tessera PATH, or TESSERA in the environment", 2)


@pytest.fixture(scope="session")
def tessera(request):
    return getattr(request, "param", None) or first_binary(request.config)


def maker_of(config):
    """Returns the path of make_checkpoint. The default is its place in the build: cli/tessera -> tests/make/make_checkpoint."""
    path = config.getoption("--make")
    return os.path.abspath(path) if path else str(Path(first_binary(config)).parent.parent / "tests/make/make_checkpoint")


@pytest.fixture(scope="session")
def maker(request):
    return maker_of(request.config)


@pytest.fixture(scope="session")
def checkpoint(maker, tmp_path_factory):
    """Returns checkpoint(kind) -> a directory with a generated checkpoint, the same one for the whole session. Tests do not
    change it."""
    made = {}

    def get(kind):
        if kind not in made:
            options = {"scale": "tiny"} if kind == "deepseek-v3" else {}
            made[kind] = Path(harness.make_checkpoint(maker, kind, tmp_path_factory.mktemp("src") / kind, **options))
        return made[kind]

    return get


@pytest.fixture(scope="session")
def made(tessera, checkpoint, tmp_path_factory):
    """{command: (path of its result, exit code)} for all commands, which no test changes."""
    return results.make(tessera, checkpoint("deepseek-v3"), tmp_path_factory.mktemp("results") / "made")


def runs_of(command):
    """Returns a fixture: command(src, *options) -> DST of a successful run, a new one for each call."""

    @pytest.fixture
    def fixture(tessera, tmp_path):
        runs = []

        def run(src, *options):
            dst = tmp_path / f"{command}-{len(runs)}"
            runs.append(dst)
            harness.succeed(tessera, [command, src, "-o", dst, "--quiet", *options])
            return dst

        return run

    return fixture


quantize = runs_of("quantize")
convert = runs_of("convert")


@pytest.fixture
def refuse(tessera, tmp_path):
    """Returns refuse(src, code, *words): the plan is rejected with this exit code and all these words, and nothing is
    written."""

    def run(src, code, *words, options=("--to", "bf16")):
        harness.expect(tessera, ["convert", src, "-o", tmp_path / "refused", *options], code, *words)
        assert not list((tmp_path / "refused").rglob("*.safetensors*")) if (tmp_path / "refused").exists() else True

    return run


@pytest.fixture
def inspect(tessera, tmp_path):
    """Returns inspect(path, *options) -> (exit code, the JSON). Checks that stderr is empty."""

    def run(path, *options):
        result = tmp_path / "inspect.json"
        code, out, err = harness.run(tessera, ["inspect", path, "--json", result, "--quiet", *options])
        assert code in (0, 1) and out == "" and err == "", f"exit {code}\n{out}{err}"
        return code, json.loads(result.read_text())

    return run


@pytest.fixture
def text(tessera):
    """Returns text(path, *options) -> stdout, for any exit code."""

    def run(path, *options):
        code, out, err = harness.run(tessera, ["inspect", path, *options])
        assert code in (0, 1) and err == "", f"exit {code}\n{err}"
        return out

    return run


@pytest.fixture
def verify(tessera, tmp_path):
    """Returns verify(check, dst, *options) -> (exit code, the JSON result)."""

    def run(check, dst, *options):
        junit = tmp_path / "junit.xml"
        code, out, err = harness.run(tessera, ["verify", check, dst, "--device", "cpu", "--json", "-", "--junit", junit, *options])
        assert code in (0, 1), err
        result = json.loads(out)
        failed = [j for j in result["judgements"] if not j["passed"]]
        assert result["passed"] == (code == 0) == (not failed)
        suite = xml.etree.ElementTree.parse(junit).getroot()
        assert int(suite.get("tests")) == len(result["judgements"]) + len(result["skipped"]) == len(list(suite.iter("testcase")))
        assert len(result["skipped"]) == len(list(suite.iter("skipped")))
        assert int(suite.get("failures")) == len(failed) == len(list(suite.iter("failure")))
        return code, result

    return run


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Exits with 77 if all tests were skipped, as every skipped check does, and prints the reason last."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    stats = reporter.stats if reporter else {}
    if exitstatus == 0 and stats.get("skipped") and not stats.get("passed"):
        session.exitstatus = 77


def pytest_unconfigure(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter:
        counts = {kind: len(reporter.stats.get(kind, [])) for kind in ("passed", "failed", "error")}
        print(f"{counts['passed']} passed, {counts['failed'] + counts['error']} failed; {turns.told()}")
        if not any(counts.values()) and reporter.stats.get("skipped"):
            print("skipped:", reporter.stats["skipped"][0].longrepr[2].removeprefix("Skipped: "))


@pytest.fixture
def openblas(monkeypatch):
    """Skips a test of FP32 products if OpenBLAS cannot be loaded. Its libraries keep memory in globals."""
    monkeypatch.setenv("LSAN_OPTIONS", "use_globals=1")
    try:
        ctypes.CDLL("libopenblas.so.0")
    except OSError as why:
        pytest.skip(f"no OpenBLAS: {why}")
