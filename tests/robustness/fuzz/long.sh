#!/usr/bin/env bash
# run.sh CORES SECONDS OUT [CORPUS.tar.gz]: runs all fuzz targets of a folder made by pack.sh, and minimizes their corpora.
# CORES processes run for SECONDS, each with one target; those of a target share a corpus, which begins with its seeds and that of an
# earlier run. A process that crashes is started again. In OUT: corpus.tar.gz with the minimized corpora, crashes/TARGET/, logs/, and
# summary.txt with a line per target. Minimizing takes about a fifth of SECONDS more, on a core per target.
set -euo pipefail
[ $# = 3 ] || [ $# = 4 ] || { echo "usage: run.sh CORES SECONDS OUT [CORPUS.tar.gz]" >&2; exit 2; }
cores=$1 seconds=$2 here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$3"
out=$(realpath "$3")
# One word per process: a third of the processes has the target that decodes values.
turns=(values pairing headers values inputs result values pairing archive manifest)
mapfile -t targets < <(printf '%s\n' "${turns[@]}" | sort -u)
[ "$cores" -ge "${#turns[@]}" ] || echo "run.sh: with fewer than ${#turns[@]} cores, the targets take turns" >&2
work=$(mktemp -d "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)/fuzz.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
for target in "${targets[@]}"; do
    mkdir -p "$work/corpus/$target" "$work/min/$target" "$work/tmp" "$out/crashes/$target" "$out/logs"
done
[ $# = 3 ] || tar -xzf "$4" -C "$work/corpus" --strip-components=1
export TMPDIR=$work/tmp
export ASAN_OPTIONS=quarantine_size_mb=16:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
# With much address space randomization, the sanitizer of old compilers crashes at its start.
fixed=()
! setarch -R true 2>/dev/null || fixed=(setarch -R)

# fuzz TARGET NUMBER SECONDS: runs one process, again after each crash, and logs the CPU time
fuzz() {
    local target=$1 log=$out/logs/$1.$2 end=$((SECONDS + $3)) crashes=0
    local TIMEFORMAT='stat::cpu_seconds: %U %S'
    while [ "$SECONDS" -lt "$end" ] && [ "$crashes" -lt 50 ]; do
        { time "${fixed[@]}" "$here/fuzz_$target" -max_total_time=$((end - SECONDS)) -max_len=4096 -reload=1 -print_final_stats=1 -timeout=20 \
            -rss_limit_mb=2560 -dict="$here/fuzzed.dict" -artifact_prefix="$out/crashes/$target/" "$work/corpus/$target" "$here/seeds/$target" \
            >"$log.now" 2>&1 || crashes=$((crashes + 1)); } 2>>"$log"
        grep -vE '^(#.*(NEW|REDUCE|RELOAD|pulse)|"|[[:space:]]*NEW_FUNC)' "$log.now" >>"$log" || true
    done
    rm -f "$log.now"
}

# For each process its share of the targets, so that a few cores run all of them.
for ((i = 0; i < cores; i++)); do
    mine=()
    for ((k = i; k < (i < ${#turns[@]} ? ${#turns[@]} : i + 1); k += cores)); do mine+=("${turns[k % ${#turns[@]}]}"); done
    for k in "${!mine[@]}"; do fuzz "${mine[k]}" "$i.$k" $((seconds / ${#mine[@]})); done &
done
wait

minimize() {
    local target=$1
    "${fixed[@]}" "$here/fuzz_$target" -merge=1 -max_len=4096 -timeout=20 -rss_limit_mb=2560 "$work/min/$target" "$here/seeds/$target" "$work/corpus/$target" \
        >"$out/logs/$target.merge" 2>&1 || echo "$target: the corpus was not minimized: see logs/$target.merge"
    "${fixed[@]}" "$here/fuzz_$target" -runs=0 -max_len=4096 "$work/min/$target" "$here/seeds/$target" >"$out/logs/$target.cover" 2>&1 || true
    "${fixed[@]}" "$here/fuzz_$target" -runs=0 -max_len=4096 "$here/seeds/$target" >"$out/logs/$target.seeds" 2>&1 || true
}
for target in "${targets[@]}"; do minimize "$target" & done
wait
tar -czf "$out/corpus.tar.gz" -C "$work" min

# last PATTERN FILES: the last number after the pattern
last() { grep -ohE "$1 *[0-9]+" "${@:2}" | tail -1 | grep -oE '[0-9]+$' || echo 0; }
{
    printf '%-9s %12s %9s %9s %9s %9s %8s %7s\n' target executions cpu_s seeds_cov cov ft inputs crashes
    for target in "${targets[@]}"; do
        printf '%-9s %12s %9s %9s %9s %9s %8s %7s\n' "$target" \
            "$(grep -h number_of_executed_units "$out/logs/$target".*.* | awk '{n += $2} END {print n + 0}')" \
            "$(grep -h cpu_seconds "$out/logs/$target".*.* | awk '{n += $2 + $3} END {printf "%.0f", n}')" \
            "$(last cov: "$out/logs/$target.seeds")" "$(last cov: "$out/logs/$target.cover")" "$(last ft: "$out/logs/$target.cover")" \
            "$(find "$work/min/$target" -type f | wc -l)" "$(find "$out/crashes/$target" -type f | wc -l)"
    done
    printf 'CPU hours: '
    grep -h cpu_seconds "$out"/logs/*.*.* | awk '{n += $2 + $3} END {printf "%.2f\n", n / 3600}'
    printf 'decoded values: '
    grep -h '^decoded' "$out"/logs/values.*.* | awk '{n += $2} END {print n}'
    ls -l "$out/corpus.tar.gz"
} | tee "$out/summary.txt"
