"""Fixtures of the tests of remote sources: the environment, and a skip where the build reads none."""

import json
import os

import harness
import pytest


@pytest.fixture(scope="module", autouse=True)
def remote(tessera, tmp_path_factory):
    """Stores headers in a folder of the module, and uses no proxy."""
    if not json.loads(harness.run(tessera, ["--version", "--json"])[1])["features"]["remote"]:
        pytest.skip("built without libcurl (libcurl4-openssl-dev)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("no_proxy", "*")
        patch.setenv("LSAN_OPTIONS", "use_globals=1")  # libraries of libcurl keep memory in globals
        yield


@pytest.fixture
def at_home(tessera, tmp_path):
    """Runs the tool with an empty home, without variables that begin with `prefixes`, and with those of `environment`."""

    def run(prefixes, environment, words):
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        cleared = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
        return harness.run_in({**cleared, "HOME": str(home), **environment}, tessera, words)

    return run
