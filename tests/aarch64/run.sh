#!/usr/bin/env bash
# run.sh FOLDER [PART...]: builds for aarch64 with Debian's cross compiler, and tests the build under qemu-user.
# FOLDER has the build for this machine. Both must write the same bytes. Without PART, it runs these parts:
#   golden   golden vectors
#   unit     unit tests of the kernels: each form against its scalar definition
#   bytes    codes, scales, reports and journals of quantize and convert, and results of verify, compared with those of FOLDER
#   killed   kills at a few moments
#   interop  a module of tests/cli
# The part `whole` takes hours of CPU: all unit tests, all modules, bad usage and all files of bad input. Exit code 77 means skipped; the last
# line gives the reason.
set -euo pipefail
native=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- golden unit bytes killed interop
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=$PWD
folder=build-aarch64

skip() { echo "skipped: $*"; exit 77; }
[ "$(uname -m)" != aarch64 ] || skip "this machine is an aarch64 itself: the other checks ran there"
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || skip "no qemu-aarch64 (package qemu-user)"
command -v aarch64-linux-gnu-gcc >/dev/null || skip "no aarch64-linux-gnu-gcc (packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"
tests/aarch64/libraries.sh $folder-libraries || exit $?

scratch=$(mktemp -d "${TMPDIR:-/tmp}/tessera.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
passed=0
# pass NAME COMMAND...: runs a command, and prints its output only if it fails
pass() {
    local name=$1
    shift
    "$@" >"$scratch/log" 2>&1 || { echo "failed: $name"; tail -40 "$scratch/log"; exit 1; }
    passed=$((passed + 1))
    times >"$scratch/times"
    printf '%-60s %s\n' "$name" "$(tail -1 "$scratch/times")"
}

build() {
    [ -f $folder/build.ninja ] ||
        meson setup --cross-file $folder-libraries/place.ini --cross-file tests/aarch64/cross.ini $folder -Dwerror=true \
            -Dauto_features=disabled -Doptimization=1 -Ddebug=false -Dstrip=false || return 1
    ninja -C $folder "$@"
}
foreign() { "$qemu" "$folder/$1" "${@:2}"; }
# A script that runs the tool in the emulator
tool=$scratch/tessera
printf '#!/bin/sh\nexec %q %q "$@"\n' "$qemu" "$here/$folder/cli/tessera" >"$tool"
chmod +x "$tool"
make=$native/tests/make/make_checkpoint

golden() {
    pass "build: the golden vectors" build tests/peers/golden/check_golden
    pass "golden vectors" foreign tests/peers/golden/check_golden tests/peers/golden/vectors
    pass "golden vectors of small groups" foreign tests/peers/golden/check_golden tests/peers/golden/vectors-4bit
}

# unit TEST...
unit() {
    local test
    [ $# -gt 0 ] || set -- float_bits float_mode block_fp8 e4m3_decode fp8_gemm group_max int4_values int_decode mx_codes \
        mx_error mx_values
    pass "build: the unit tests" build "${@/#/tests/unit/test_}"
    [ "${whole:-}" = yes ] || export TESSERA_SWEEP_STEP=15 # tests one scale in fifteen, and all numbers
    for test in "$@"; do
        pass "unit $test" foreign "tests/unit/test_$test"
    done
}

# same NAME COMMAND...: runs a command with both builds, and compares all output files, the journal included. Keeps the output as
# $scratch/NAME.
same() {
    local name=$1 side
    shift
    for side in native foreign; do
        rm -rf "$scratch/$side/at"
        mkdir -p "$scratch/$side/at"
        ln -s ../.. "$scratch/$side/at/in"
    done
    (cd "$scratch/native/at" && "$native/cli/tessera" "$@" --quiet) || return 1
    (cd "$scratch/foreign/at" && "$tool" "$@" --quiet) || return 1
    rm "$scratch"/{native,foreign}/at/in
    find "$scratch"/{native,foreign}/at -name result.json -exec sed -i 's/"seconds": *[0-9.e+-]*/"seconds": 0/g; s/"phase_seconds": *{[^}]*}/"phase_seconds": 0/g' {} +
    diff -r "$scratch/native/at" "$scratch/foreign/at" || return 1
    [ ! -e "$scratch/native/at/out" ] || mv "$scratch/native/at/out" "$scratch/$name"
}

bytes() {
    local line name
    pass "build: the tool" build cli/tessera
    "$make" deepseek-v3 --scale tiny -o "$scratch/v3" >/dev/null
    "$make" llama --scale tiny -o "$scratch/llama" >/dev/null
    while read -r name line; do
        [[ $name != +* ]] || [ "${whole:-}" = yes ] || continue # takes seconds
        # shellcheck disable=SC2086
        [ -z "$name" ] || pass "same bytes: $line" same "$name" $line
    done <<END
fp8      quantize in/v3 -o out
+ue8m0   quantize in/v3 -o out --scale-fmt ue8m0 --scales mse
channel  quantize in/llama -o out --scheme fp8-channel
int8     quantize in/v3 -o out --scheme int8-channel
w8       quantize in/v3 -o out --scheme int8-weight-only
azp      quantize in/llama -o out --scheme int4-weight-only --zero-points
w4       quantize in/llama -o out --scheme int4-weight-only
nvfp4    quantize in/llama -o out --scheme nvfp4-weight-only
+mse     quantize in/llama -o out --scheme nvfp4-weight-only --scales mse
mxfp4    quantize in/llama -o out --scheme mxfp4
mxfp8    quantize in/llama -o out --scheme mxfp8
bf16     convert in/fp8 -o out --to bf16
f16      convert in/w4 -o out --to bf16 --dtype f16
f32      convert in/mxfp8 -o out --to bf16 --dtype f32
ints     convert in/azp -o out --to bf16
small    convert in/nvfp4 -o out --to bf16
blocks   convert in/fp8 -o out --to fp8-block --scale-fmt ue8m0
moved    convert in/mxfp4 -o out --to fp8-block
other    convert in/w4 -o out --to mxfp8
ranks    convert in/channel -o out --to tp --tp 2
mp       convert in/fp8 -o out --to deepseek-mp --mp 1
mla      convert in/fp8 -o out --to mla-absorbed --consumer sglang
blobs    convert in/w4 -o out --to fastertransformer --arch sm80
archive  convert in/v3 -o out --to archive --shuffle
verified verify in/fp8 --against in/v3 --json result.json
channels verify in/channel --against in/llama --json result.json
+forward verify forward in/channel --against in/llama --json result.json
END
}

# kill_after SECONDS: kills a run after SECONDS. The same command again must give the output of an undisturbed run.
kill_after() {
    local out=$scratch/killed/out code=0
    rm -rf "$scratch/killed" && mkdir "$scratch/killed" && ln -s .. "$scratch/killed/in"
    (cd "$scratch/killed" && exec timeout -s KILL "$1" "$tool" quantize in/v3 -o out --quiet) || code=$?
    [ "$code" = 137 ] || [ "$code" = 0 ] || return 1
    (cd "$scratch/killed" && "$tool" quantize in/v3 -o out --quiet) || return 1
    diff -r "$scratch/fp8" "$out"
}

killed() {
    local seconds
    pass "build: the tool" build cli/tessera
    [ -e "$scratch/v3" ] || "$make" deepseek-v3 --scale tiny -o "$scratch/v3" >/dev/null
    [ -e "$scratch/fp8" ] || pass "same bytes, not killed" same fp8 quantize in/v3 -o out
    for seconds in 0.05 0.15 0.3; do
        pass "kill -9 after $seconds s, and again" kill_after "$seconds"
    done
}

# interop MODULE...
interop() {
    local module
    [ $# -gt 0 ] || set -- activations
    [ -x .venv/bin/python ] || { echo "skipped: interop, because there is no Python environment .venv, which './dev test' makes"; return; }
    pass "build: the tool" build cli/tessera
    for module in "$@"; do
        pass "interop $module" env TESSERA="$tool" MAKE_CHECKPOINT="$make" \
            .venv/bin/python -m pytest -q --tb=short -p no:cacheprovider "$(find tests/cli -name "test_$module.py")"
    done
}

whole() {
    local names whole=yes
    build tests/unit/test_float_bits >"$scratch/log" # configures the build; the names come from ninja
    mapfile -t names < <(ninja -C $folder -t targets all | sed -n 's,^tests/unit/test_\([a-z0-9_]*\): c_LINKER.*,\1,p' | sort)
    golden
    unit "${names[@]}"
    bytes
    killed
    pass "bad usage" python3 tests/robustness/input/bad_usage.py --tessera "$tool" --make "$make"
    pass "kill -9 at a few moments of every job" python3 tests/robustness/faults/crash.py --tessera "$tool" --make "$make" --kills 6
    pass "bad input" python3 tests/robustness/input/bad_input.py --tessera "$tool"
    mapfile -t names < <(find tests/cli -name 'test_*.py' | sort | sed 's,.*/test_\(.*\)\.py,\1,')
    interop "${names[@]}"
}

for part in "$@"; do
    "$part"
done
echo "$passed passed, 0 failed"
