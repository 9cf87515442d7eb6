"""Answers jobs, one JSON object a line on stdin, with one line each: {"ok": true, false, or null where not even the plain
model loads, "rank": where, "why": one line}. `why` begins with SILENT where a loader said nothing and its values are wrong."""

import gc
import json
import os
import signal
import sys
import traceback

import torch
import values

LIMIT_S = 900  # of one job: a loader that waits for other ranks is stopped, too


def judge(job, plain, quantized, ranks):
    for rank in range(ranks(job)):
        stage = "plain"
        try:
            reference = plain(job, rank)
            stage = "quantized"
            why = values.compare(quantized(job, rank), reference)
        except Exception as e:
            if os.environ.get("LOADERS_TRACE"):
                traceback.print_exc()
            line = str(e).strip().splitlines() or [""]
            if "validation error" in line[0] and len(line) > 1:
                line = [line[1].strip()]
            return {"ok": None if stage == "plain" else False, "rank": rank,
                    "why": f"{stage}: {type(e).__name__}: {line[0]}"}
        if why is not None:
            return {"ok": False, "rank": rank, "why": "SILENT " + why}
    return {"ok": True, "rank": None, "why": None}


def stop(*_):
    raise TimeoutError(f"took longer than {LIMIT_S} s")


def main(plain, quantized, ranks):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGALRM, stop)
    torch.set_num_threads(1)  # small tensors, and other jobs beside this one
    gc.freeze()  # what the packages made is not looked through again after each load
    for line in sys.stdin:
        signal.alarm(LIMIT_S)
        answer = judge(json.loads(line), plain, quantized, ranks)
        signal.alarm(0)
        print(json.dumps(answer), file=answers, flush=True)
