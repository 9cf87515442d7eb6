"""Fixtures of the tests of remote sources: the environment, and a skip where the build reads none."""

import json

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
