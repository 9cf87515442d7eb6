"""Tests quantize --prove: the figures of verify forward with a baseline made by hand, verdicts, refusals, kills, and that no folder is left."""

import json
import shutil
import signal
import subprocess
import time

from checkpoints import read
from forward_oracle import Whole
import harness
import numpy as np
import pytest
from safetensors.numpy import save_file

GPTQ = "--scheme nvfp4-weight-only --method gptq"
CASES = [  # options of the output, of a checkpoint that is its counterpart, and of the proof
    ("--scheme nvfp4-weight-only --importance STATS --method gptq", "--scheme nvfp4-weight-only", ""),
    ("--scheme int4-weight-only --zero-points --group-size 32 --exclude *.o_proj.* --importance STATS",
     "--scheme int4-weight-only --zero-points --group-size 32 --exclude *.o_proj.*", "--exact"),
    ("--scheme mxfp4-weight-only --scales mse", "--scheme mxfp4-weight-only", "--count 5 --batch 1"),
    ("--rules RULES --importance STATS --method gptq", "--rules PLAIN", "--devices 2"),
]
SHARED = ("device", "devices", "activations", "inputs", "rounding", "sequences", "token_count", "perplexity_source", "perplexity_source_error",
          "perplexity", "perplexity_error", "kl_median_nats", "kl_90_nats", "kl_99_nats", "kl_99_9_nats")


@pytest.fixture(scope="module")
def places(tessera, tmp_path_factory):
    """Makes a Llama, statistics of its inputs, a text, and rules: {word: path}."""
    folder, m = tmp_path_factory.mktemp("proof"), Whole("llama")
    made = {word: folder / name for word, name in (("SRC", "src"), ("STATS", "stats.safetensors"), ("BAD", "bad.safetensors"),
                                                   ("CALIBRATION", "calibration.txt"), ("TOKENS", "tokens.txt"),
                                                   ("RULES", "rules.json"), ("PLAIN", "plain.json"))}
    m.write(made["SRC"])
    random = np.random.default_rng(5)
    for word, rows in (("CALIBRATION", 20), ("TOKENS", 4)):
        made[word].write_text("\n".join(" ".join(map(str, random.integers(0, 97, 40))) for _ in range(rows)))
    for word, scales in (("RULES", " --scales best"), ("PLAIN", "")):
        made[word].write_text(json.dumps({"rules": [{"match": "*.mlp.*", "scheme": f"int4-weight-only --group-size 32{scales}"},
                                                    {"match": "*", "scheme": "int8-weight-only"}]}))
    harness.succeed(tessera, ["calibrate", made["SRC"], "--tokens", made["CALIBRATION"], "--hessians", "--device", "cpu", "-o", made["STATS"]])
    # The channels with small inputs get the large weights.
    save_file({n: 1 / np.maximum(t, 1e-9)**2 for n, t in read(made["STATS"]).items() if n.endswith("mean_square")}, made["BAD"])
    return made


@pytest.fixture
def run(tessera, places, tmp_path):
    """Returns run(command) -> (exit code, stdout, stderr, the JSON or None). Replaces OUT and the words of `places`."""

    def run_words(command):
        result = tmp_path / "result.json"
        result.unlink(missing_ok=True)
        words = [str(places.get(w, w)).replace("OUT", str(tmp_path / "out")) for w in command.split()]
        code, out, err = harness.run(tessera, [*words, "--json", result])
        return code, out, err, json.loads(result.read_text()) if result.exists() else None

    return run_words


@pytest.mark.parametrize("options, counterpart, proof", CASES)
def test_the_figures_are_those_of_verify_forward(options, counterpart, proof, run, tmp_path):
    code, out, err, got = run(f"quantize SRC -o OUT {options} --prove TOKENS --device cpu {proof}")
    proven = got["proof"]
    worse = proven["kl_mean_nats"] > proven["baseline"]["kl_mean_nats"]
    assert (code, err) == (worse, "") and not ("gptq" in options and worse) and got["passed"] == proven["passed"] == (not worse)
    assert got["judged"] == {"proof": 1} and len(got["findings"]) == worse
    assert "baseline rounding to nearest" in out and not (tmp_path / "out.rounded").exists()
    assert run(f"quantize SRC -o OUT.plain {counterpart}")[0] == 0
    count = "" if "--count" in proof else "--count 512"
    _, _, _, want = run(f"verify forward OUT --against SRC --tokens TOKENS --device cpu {proof} {count} --baseline OUT.plain")
    (logits,) = [j for j in want["judgements"] if j["what"] == "logits"]
    assert {k: proven[k] for k in SHARED} == {k: want[k] for k in SHARED}
    assert [proven[k] for k in ("kl_mean_nats", "kl_max_nats", "agreement")] == [logits[k] for k in ("kl_mean_nats", "kl_max_nats", "agreement")]
    assert proven["baseline"] == want["baseline"] | {"checkpoint": "rounding to nearest"}
    assert proven["judgements"] == len(want["judgements"]) and proven["judgements_failed"] == sum(not j["passed"] for j in want["judgements"])


def test_the_output_is_that_without_a_proof(run, tmp_path):
    assert run(f"quantize SRC -o OUT {GPTQ} --importance STATS --prove TOKENS --device cpu")[0] == 0
    code, out, _, result = run(f"quantize SRC -o OUT.other {GPTQ} --importance STATS")
    assert code == 0 and "proof" not in result and "--prove FILE" in out
    assert harness.tree_difference(tmp_path / "out", tmp_path / "out.other") is None
    code, out, _, result = run(f"quantize SRC -o OUT.other {GPTQ} --importance STATS --prove TOKENS --device cpu")
    assert code == 0 and "was already complete" in out and result["proof"]["passed"]


def test_plain_rounding_is_compared_with_the_source_alone(run):
    code, out, _, result = run("quantize SRC -o OUT --scheme int4-weight-only --group-size 32 --prove TOKENS --device cpu")
    assert code == 0 and "the command rounds to nearest" in out
    assert result["proof"]["baseline"] is None and result["proof"]["kl_mean_nats"] > 0


def test_rounding_that_is_nearer(run, tessera, tmp_path):
    """The scales are weighted by the wrong channels, so rounding is nearer: exit code 1, and the output is kept."""
    code, out, _, result = run("quantize SRC -o OUT --scheme nvfp4-weight-only --importance BAD --prove TOKENS --device cpu")
    proof = result["proof"]
    assert code == 1 and proof["kl_mean_nats"] > proof["baseline"]["kl_mean_nats"] and proof["baseline"]["layers_worse"] > 0
    assert not proof["passed"] and not result["passed"] and [f["check"] for f in result["findings"]] == ["proof"]
    assert "FAIL" in out and "rounding to nearest" in out and (tmp_path / "out/config.json").exists() and not (tmp_path / "out.rounded").exists()
    code, out, err = harness.run(tessera, ["report", tmp_path / "result.json"])
    assert code == 1 and "proof: baseline: kl_mean_nats" in " ".join(out.split()), err
    code, out, _, result = run("quantize SRC -o OUT --scheme nvfp4-weight-only --importance BAD --prove TOKENS --device cpu --min-sqnr 1")
    assert code == 1 and list(result["judged"]) == ["sqnr", "proof"] and "--min-sqnr 1; 1 finding" in out


@pytest.mark.parametrize("options, expected, words", [
    ("--prove OUT.none", 3, ["out.none"]),
    ("--prove OUT.large", 3, ["out.large", "line 2", "vocabulary size 97"]),
    ("--prove OUT.text", 3, ["out.text", "tokenizer.json"]),
    ("--prove TOKENS --memory 1k", 3, ["--memory", "--count, --batch"]),
    ("--prove TOKENS --count 0", 2, ["--count"]),
    ("--prove TOKENS --devices 17 --device cpu", 2, ["--devices"]),
    ("--prove TOKENS --shard 0/2", 2, ["--shard", "finish"]),
    ("--prove TOKENS --mpi", 2, ["--mpi"]),
    ("--exact", 2, ["--exact", "--prove"]),
    ("--device cpu", 2, ["--device", "--prove"]),
])
def test_refusals_before_any_work(options, expected, words, run, tmp_path):
    (tmp_path / "out.large").write_text("1 2\n3 97\n")
    (tmp_path / "out.text").write_text("Some words.")
    code, _, err, _ = run(f"quantize SRC -o OUT {options}")
    assert code == expected and all(word in err for word in words), err
    assert not (tmp_path / "out").exists()


def test_a_family_that_cannot_be_run(run, places, tmp_path):
    shutil.copytree(places["SRC"], tmp_path / "out.src")
    config = tmp_path / "out.src/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "starcoder2"}))
    code, _, err, _ = run("quantize OUT.src -o OUT --scheme int8-channel --prove TOKENS")
    assert code == 3 and "starcoder2" in err and "llama" in err and not (tmp_path / "out").exists()


def test_outputs_elsewhere(run, tessera, places, tmp_path):
    code, _, err, _ = run("quantize SRC -o s3://bucket/name --prove TOKENS")
    assert code == 2 and "s3://" in err
    code, _, err, _ = run("quantize SRC -o OUT/. --scheme mxfp4-weight-only --scales mse --prove TOKENS --device cpu")
    assert code == 2 and "by its name" in err and not (tmp_path / "out").exists()
    jobs = tmp_path / "jobs.jsonl"
    jobs.write_text(json.dumps({"name": "a", "args": ["quantize", str(places["SRC"]), "-o", str(tmp_path / "out"), "--prove", str(places["TOKENS"])]}))
    code, _, err = harness.run(tessera, ["batch", jobs])
    assert code == 2 and "--prove" in err and "verify forward" in err and not (tmp_path / "out").exists()


def test_a_folder_of_the_user_is_kept(run, tmp_path):
    """Also a folder that the same command without --prove would have made is kept."""
    made = tmp_path / "out.rounded"
    made.mkdir()
    (made / "notes").write_text("mine")
    command = f"quantize SRC -o OUT/ {GPTQ} --importance STATS --prove TOKENS --device cpu"
    code, _, err, _ = run(command)
    assert code == 2 and "out.rounded" in err and (made / "notes").read_text() == "mine" and not (tmp_path / "out").exists()
    shutil.rmtree(made)
    assert run("quantize SRC -o OUT.rounded --scheme nvfp4-weight-only --no-card")[0] == 0
    shutil.copytree(made, tmp_path / "copy")
    code, _, err, _ = run(command)
    assert code == 2 and "out.rounded" in err and harness.tree_difference(made, tmp_path / "copy") is None


def test_a_dry_run(run, tmp_path):
    code, out, _, _ = run(f"quantize SRC -o OUT {GPTQ} --importance STATS --prove TOKENS --device cpu --dry-run")
    assert code == 0 and "out.rounded, removed afterwards" in out and not list(tmp_path.glob("out*"))
    assert "against SRC alone" in run("quantize SRC --scheme int8-channel --prove TOKENS --device cpu --dry-run")[1]
    assert run("quantize SRC --scheme int8-channel --prove OUT.none --dry-run")[0] == 3


def command_of(tessera, places, tmp_path):
    return [tessera, "quantize", places["SRC"], "-o", tmp_path / "out", *GPTQ.split(), "--importance", places["STATS"],
            "--prove", places["TOKENS"], "--device", "cpu", "--json", tmp_path / "result.json"]


def test_a_killed_run_is_resumed(run, tessera, places, tmp_path):
    _, _, _, want = run(f"quantize SRC -o OUT.other {GPTQ} --importance STATS --prove TOKENS --device cpu")
    (tmp_path / "result.json").unlink()
    delay, kills, resumed = 0.004, 0, 0
    while not (tmp_path / "result.json").exists() and kills < 60:
        harness.kill_after(command_of(tessera, places, tmp_path), delay)
        resumed += (tmp_path / "out.rounded").exists() and (tmp_path / "out/config.json").exists()
        kills, delay = kills + 1, delay * 1.15
    got = json.loads((tmp_path / "result.json").read_text())
    assert kills > 3 and resumed > 0
    for result in want, got:
        result["proof"].pop("seconds")
    assert got["proof"] == want["proof"] and harness.tree_difference(tmp_path / "out", tmp_path / "out.other") is None
    assert not (tmp_path / "out.rounded").exists()


def test_an_interrupted_proof_leaves_no_folder(tessera, places, tmp_path):
    """The output is complete once its config.json exists."""
    command = list(map(str, command_of(tessera, places, tmp_path)))
    command[command.index("--prove") + 1] = str(tmp_path / "long.txt")
    (tmp_path / "long.txt").write_text("\n".join(places["TOKENS"].read_text() for _ in range(50)))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "out.rounded/config.json").exists() and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=600)[1]
    assert process.returncode == 130 and "out is complete" in err and not (tmp_path / "out.rounded").exists()
    assert (tmp_path / "out/config.json").exists() and json.loads((tmp_path / "result.json").read_text())["error"]["code"] == 130
