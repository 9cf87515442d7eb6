"""Tests the forked runs of the tests: they give the same result as a new process, and the sanitizers report the same faults."""

import signal
from pathlib import Path

import pytest

import harness

SANITIZERS = 99  # the exit code of their findings


@pytest.fixture
def faulty(tessera, monkeypatch):
    """Returns a program of the same build that commits a fault (tests/common/faulty.c), and true if sanitizers check it."""
    monkeypatch.setenv("ASAN_OPTIONS", f"detect_leaks=1:exitcode={SANITIZERS}:handle_sigill=1")
    path = Path(tessera).parent.parent / "tests/common/faulty"
    if not path.exists():
        pytest.skip(f"no {path}: another build's tool")
    return str(path), b"__asan_init" in path.read_bytes()


@pytest.fixture
def forked(tessera, faulty, maker, monkeypatch):
    """Returns forked(tool, words, **limits) -> the result of a forked run."""
    shared_object = Path(maker).parent.parent / "common/forked.so"
    if not shared_object.exists() or tessera not in harness._forking["tools"]:
        pytest.skip("runs of this tool are not forked: a script, or another machine's, or no build of these tests beside make_checkpoint")
    monkeypatch.setitem(harness._forking, "started", {})
    monkeypatch.setitem(harness._forking, "tools", (tessera, faulty[0]))

    def run(tool, words, **limits):
        told = harness.run(tool, words, **limits)
        assert [key[0] for key in harness._forking["started"]].count(tool) == 1, "it was started by itself"
        return told

    yield run
    for server in harness._forking["started"].values():
        server.close()


@pytest.mark.parametrize("words", [["--version"], ["quantize"], ["inspect", "here", "--json", "-"], ["inspect", "nowhere\nat all"],
                                   ["verify", "", "--against", "ä\x80"], ["--help"]], ids=lambda words: words[0] + str(len(words)))
def test_a_forked_run_tells_what_a_started_one_tells(tessera, forked, checkpoint, tmp_path, monkeypatch, words):
    (tmp_path / "here").symlink_to(checkpoint("llama"))
    monkeypatch.chdir(tmp_path)
    started = harness._run([tessera, *words], 600, None)
    assert started[1] or started[2]
    for _ in range(2):
        assert forked(tessera, words) == started


@pytest.mark.parametrize("what, told", [("leaks", "detected memory leaks"), ("reads-beyond", "heap-buffer-overflow"), ("overflows", "")])
def test_sanitizers_find_it_in_a_forked_run(faulty, forked, what, told):
    program, watched = faulty
    assert forked(program, ["nothing"]) == (0, "nothing\n", "to stderr\n")
    if not watched:
        pytest.skip("a build without sanitizers")
    for code, _, err in (harness._run([program, what], 600, None), forked(program, [what])):
        assert code == SANITIZERS and "Sanitizer" in err and told in err, (code, err)
    assert forked(program, ["nothing"])[0] == 0


def test_a_forked_run_is_ended_by_its_limit(faulty, forked):
    program, watched = faulty
    if watched:
        pytest.skip("it takes a second, and is no sanitizer's matter")
    assert forked(program, ["spins"], cpu=1)[0] == -signal.SIGXCPU
    with pytest.raises(TimeoutError):
        forked(program, ["spins"], timeout=0.1)
    assert forked(program, ["nothing"])[:2] == (0, "nothing\n")
