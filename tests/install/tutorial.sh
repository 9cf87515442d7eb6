#!/bin/sh
# tutorial.sh MODEL: runs the steps of docs/tutorial.md with the installed `tessera` on a small Llama checkpoint, in a temporary folder.
set -eu
model=$(realpath "$1")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
tessera inspect "$model" >/dev/null
tessera quantize "$model" -o fp8 --dry-run --quiet >/dev/null
tessera quantize "$model" -o fp8 --quiet
tessera verify fp8 --against "$model" --json weights.json --quiet
tessera verify forward fp8 --against "$model" --count 8 --json forward.json --quiet
tessera report weights.json forward.json --html report.html --quiet
grep -q '<title>[^<]*PASS' report.html
tessera inspect fp8 --can-load vllm --tp 1 >/dev/null
echo "1 passed"
