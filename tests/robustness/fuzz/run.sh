#!/usr/bin/env bash
# run.sh TARGET FOLDER: builds fuzz_TARGET.c with libFuzzer in FOLDER and runs it over its seeds, then for FUZZ_SECONDS (3) more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
target=$1 folder=$2
mkdir -p "$folder"
have() { command -v "$1" >/dev/null 2>&1; }
# shellcheck source=tests/robustness/fuzz/build.sh
. tests/robustness/fuzz/build.sh
has_fuzzer || { echo "skipped: no clang with libFuzzer (clang, $(clang_runtime))"; exit 77; }

exec {lock}>"$folder/lock"
flock "$lock"
build_sources
exec {lock}>&-
link_target "$target"
corpus=$(mktemp -d "${TMPDIR:-/tmp}/tessera.XXXXXX")
trap 'rm -rf "$corpus"' EXIT
if [ "$target" = values ]; then # the seeds must reach the decoder of every kind
    "$folder/fuzz_values" -runs=0 "$seeds/corpus/values" 2>&1 | tee "$corpus/log"
    grep -E 'decoded [0-9]+ values of ([0-9]+) of \1 kinds' "$corpus/log"
    rm "$corpus/log"
fi
"$folder/fuzz_$target" -max_total_time="${FUZZ_SECONDS:-3}" -max_len=4096 -dict="$folder/fuzzed.dict" "$corpus" "$seeds/corpus/$target"
