#!/usr/bin/env bash
# threads.sh TESSERA MAKE_CHECKPOINT: runs jobs with several threads, with a tool built with ThreadSanitizer, and repeats each.
# The second run must find the output complete.
set -euo pipefail
tool=$1
place=$(mktemp -d "${TMPDIR:-/tmp}/tessera.XXXXXX")
trap 'rm -rf "$place"' EXIT
"$2" deepseek-v3 --scale tiny -o "$place/model"
for _ in 1 2 3 4 5; do
    rm -rf "$place/out"
    "$tool" quantize "$place/model" -o "$place/out" --threads 4 --quiet
    "$tool" quantize "$place/model" -o "$place/out" --threads 4 | grep 'complete already'
    "$tool" verify "$place/out" --against "$place/model" --threads 4 --quiet
done
for scheme in fp8-block int8-channel int4-weight-only; do
    printf '{"name": "%s", "args": ["quantize", "%s", "-o", "%s", "--scheme", "%s"]}\n' \
        "$scheme" "$place/model" "$place/$scheme" "$scheme"
done >"$place/jobs.jsonl"
"$tool" convert "$place/model" -o "$place/tp" --to tp --tp 2 --io direct --threads 4 --quiet
"$tool" batch "$place/jobs.jsonl" --threads 4 | grep '^read together: fp8-block int8-channel int4-weight-only;'
