#!/usr/bin/env bash
# run.sh TARGET FOLDER: builds fuzz_TARGET.c with libFuzzer in FOLDER and runs it over its seeds, then for FUZZ_SECONDS (3) more.
# The targets share one archive of the sources and one dictionary. The mutators (mutate_*.c) know JSON and packed archives.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
target=fuzz_$1 folder=$2 seeds=tests/robustness/fuzz
mkdir -p "$folder"
have() { command -v "$1" >/dev/null 2>&1; }
# shellcheck source=tests/needs.sh
. tests/needs.sh
clang=$(find_clang)
has_fuzzer || { echo "skipped: no clang with libFuzzer (clang, $(clang_runtime))"; exit 77; }

compile() {
    "$clang" -std=gnu11 -gline-tables-only -fno-unroll-loops -O1 -I. -D_GNU_SOURCE -DTSR_VERSION='"fuzz"' -ffp-contract=off \
        -Werror=implicit-function-declaration -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all "$@"
}

# Parsers outside common, formats and report. The linker ignores their calls to other code; such a call would crash at once.
others=(convert/schemes/dialects.c convert/schemes/schemes.c convert/search/rules.c convert/search/rules_match.c
    convert/records/journal_records.c verify/forward/tokens/token_file.c verify/forward/tokens/tokens.c
    verify/manifest/manifest_parse.c verify/manifest/manifest_sources.c cli/batch/batch_jobs.c)
# MPI is a separate module that no parser needs.
mapfile -t sources < <(find common formats report -name '*.c' ! -name transport_mpi.c; printf '%s\n' "${others[@]}")

# Compiles the sources into fuzzed.a and collects the words of the parsers in fuzzed.dict, if one of them changed.
build_sources() {
    [ ! -f "$folder/fuzzed.a" ] || [ -n "$(find common formats report convert verify cli -name '*.[ch]' -newer "$folder/fuzzed.a" -print -quit)" ] || return 0
    rm -rf "$folder/objects"
    mkdir "$folder/objects"
    export clang folder
    export -f compile
    # shellcheck disable=SC2016
    printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} bash -c 'compile -c -o "$folder/objects/${1//\//-}.o" "$1"' - {}
    grep -ohE '"[A-Za-z_][A-Za-z0-9_.-]{2,40}"' "${sources[@]}" | grep -v '\.h"' | sort -u | sed 's/"\(.*\)"/"\\"\1\\""/' |
        cat $seeds/safetensors.dict - >"$folder/fuzzed.dict"
    rm -f "$folder/fuzzed.new"
    ar rc "$folder/fuzzed.new" "$folder"/objects/*.o
    mv "$folder/fuzzed.new" "$folder/fuzzed.a"
}

exec {lock}>"$folder/lock"
flock "$lock"
build_sources
exec {lock}>&-
mutator=json
[ "$1" != archive ] || mutator=archive
compile -no-pie -Wl,--unresolved-symbols=ignore-all -o "$folder/$target" "$seeds/$target.c" "$seeds/mutate_$mutator.c" \
    "$folder/fuzzed.a" -lzstd -lpthread -lm
corpus=$(mktemp -d "${TMPDIR:-/tmp}/tessera.XXXXXX")
trap 'rm -rf "$corpus"' EXIT
"$folder/$target" -max_total_time="${FUZZ_SECONDS:-3}" -max_len=4096 -dict="$folder/fuzzed.dict" "$corpus" "$seeds/corpus/$1"
