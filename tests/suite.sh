# shellcheck shell=bash disable=SC2154
# Sourced by ./dev: everything that CI runs. Checks are collected first, then run side by side, one more than there are CPUs; each
# says at once how it ended and what it took of the CPUs' time, which other work on the machine does not lengthen much; a failed
# one says how to run it again. A check that exits with 77 was skipped, and says why.

# The build that is judged, and the one with sanitizers; tests/check.sh names others.
built=${built:-$here/build} sanitized=${sanitized:-$here/build-clang-asan}

passed=0 failed=0 skipped=0
failures=()

# cpu_of TIMES: seconds of CPU, whole ones, in what `times` printed: of a shell and of all that it waited for
cpu_of() { awk '{ for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); sum += 60 * part[1] + part[2] } } END { printf "%.0f", sum }' "$1"; }

# report NAME CODE SECONDS LOG TIMES
report() {
    local name=$1 code=$2 seconds=$3 log=$4 cpu=0
    [ ! -f "$5" ] || cpu=$(cpu_of "$5")
    if [ "$code" = 0 ]; then
        passed=$((passed + 1))
        printf 'ok      %-50s %4d s, %4d of CPU   %s\n' "$name" "$seconds" "$cpu" \
            "$(grep -E '^[0-9]+ passed|Synthesis' "$log" | tail -1 | tr -d '=[]' || true)"
    elif [ "$code" = 77 ]; then
        skipped=$((skipped + 1))
        printf 'skipped %-50s                       %s\n' "$name" "$(grep -i skipped "$log" | tail -1)"
    else
        failed=$((failed + 1))
        failures+=("$name")
        printf 'FAILED  %-50s %4d s, %4d of CPU   exit %s; again: ./dev %s %q\n' "$name" "$seconds" "$cpu" "$code" "$command" "$name"
        tail -60 "$log" | sed 's/^/    | /'
    fi
}

# timed FILE COMMAND...: in a shell of its own, whose `times` it leaves in FILE
timed() {
    local file=$1 code=0
    shift
    "$@" || code=$?
    times >"$file"
    return "$code"
}

# check NAME COMMAND...: one that the others wait for
check() {
    local name=$1 started=$SECONDS code=0
    shift
    need_scratch
    (timed "$scratch/times" "$@") >"$scratch/log" 2>&1 || code=$?
    report "$name" "$code" $((SECONDS - started)) "$scratch/log" "$scratch/times"
}

names=() commands_of=() suites=() waiting=()
suite=
# add NAME COMMAND...: one that runs beside others; of the suite that `suite` names, for `meson test --suite`
add() {
    names+=("$1")
    suites+=("$suite")
    shift
    commands_of+=("$(printf '%q ' "$@")")
}

# nproc counts what OMP_NUM_THREADS leaves, which set_environment makes one.
processors() { env -u OMP_NUM_THREADS nproc; }

# run_all: those of `waiting` (indices), in their order. Each says itself that it has ended: a shell forgets what ended while it
# did not wait, and `wait -n` then knows no such job.
run_all() {
    local -A started=()
    local slots running=0 ended i code
    slots=$(($(processors) + 1)) # some wait for a disk, a clock or a process that they kill, and would leave a CPU idle
    mkfifo "$scratch/ended"
    exec {ended}<>"$scratch/ended"
    rm "$scratch/ended"
    while [ ${#waiting[@]} -gt 0 ] || [ "$running" -gt 0 ]; do
        while [ ${#waiting[@]} -gt 0 ] && [ "$running" -lt "$slots" ]; do
            i=${waiting[0]}
            waiting=("${waiting[@]:1}")
            started[$i]=$SECONDS
            running=$((running + 1))
            (
                code=0
                timed "$scratch/times.$i" eval "${commands_of[i]}" >"$scratch/log.$i" 2>&1 </dev/null || code=$?
                echo "$i $code" >&"$ended"
            ) &
        done
        read -r i code <&"$ended"
        running=$((running - 1))
        report "${names[i]}" "$code" $((SECONDS - started[$i])) "$scratch/log.$i" "$scratch/times.$i"
        rm -f "$scratch/log.$i" "$scratch/times.$i"
    done
    exec {ended}<&-
    wait
}

# Every source, with git or without it.
sources() {
    find common formats kernels quantize convert verify report cli tests -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) |
        sort
}

# One version's judgement everywhere: the one that the tests' environment pins. Nothing to judge is no success.
style() {
    local files
    mapfile -t files < <(sources)
    [ ${#files[@]} -gt 300 ] || { echo "only ${#files[@]} sources found"; return 1; }
    .venv/bin/clang-format "$@" "${files[@]}"
}

# strict_build FOLDER TARGETS -- [meson options...]: a warning is an error
strict_build() {
    local folder=$1
    [ ! -f "$folder/build.ninja" ] || grep -q -- '-Werror ' "$folder/build.ninja" || meson configure "$folder" -Dwerror=true
    build "$@" -Dwerror=true
}
# A trace's lines are all that a test's log shows of the debugging information, the rest of which takes a seventh of GCC's time.
build_gcc() { strict_build build -- -Dc_args=-g1; }
# sanitized_build FOLDER SANITIZERS COMPILER'S MESON'S... -- TARGETS...
# The kernels of a GPU are nvcc's to compile, and once is enough: in the build that is judged. Without their runtime a program
# also starts in a third of the time, which the thousands of runs under sanitizers feel. One at a fixed address need not be
# relocated.
sanitized_build() {
    local folder=$1 sanitizers=$2 compiler=$3 options=()
    shift 3
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    strict_build "$folder" "$@" -- "-Db_sanitize=$sanitizers" -Db_lundef=false -Dauto_features=disabled -During=auto \
        -Db_pie=false -Db_staticpic=false "-Dc_args=-fno-pie $compiler" -Dc_link_args=-no-pie "${options[@]}"
}
# One build of clang's is all that clang is asked: its warnings, whether what its optimizer makes passes the tests, and the
# sanitizers. Its AddressSanitizer watches what the optimizer leaves, where GCC's comes before most of it, and the tool takes half
# to two thirds of the time so. An access to the stack that can be proven right is not watched, as is clang's default from 15 on.
# What is undefined traps, which makes a small program and so a quick search for leaks; AddressSanitizer tells the function
# (set_environment), and a build without -fsanitize-trap says in words, with the line, what was undefined there.
build_clang() {
    CC="$(! have ccache || echo ccache) $(find_clang)" sanitized_build build-clang-asan address,undefined \
        "$watched -fsanitize-trap=undefined" --
}
# In a function of more than 200 accesses to memory, most of them kernels' unrolled loops, each is watched by a call in place of
# a test of its own, which such functions take half as long again to compile for.
watched="-gline-tables-only -mllvm -asan-use-stack-safety=1 -mllvm -asan-instrumentation-with-call-threshold=200"
# Its runs are few and small: they take less time than an optimizer would. Every access to memory is there to be watched.
build_tsan() { sanitized_build build-tsan thread -fno-var-tracking -Doptimization=0 -- cli/tessera; }

unit_tests() {
    meson test -C "$1" --suite unit --no-rebuild --print-errorlogs --timeout-multiplier 20 --num-processes $((($(processors) + 1) / 2))
}

fuzz_clang() {
    # shellcheck disable=SC2086
    "$(find_clang)" -std=gnu11 $watched -O1 -I. -D_GNU_SOURCE -DTSR_VERSION='"fuzz"' -ffp-contract=off \
        -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all "$@"
}

# What all targets are linked with, compiled by the first that asks: fuzzed.a
fuzzed_sources() {
    (
        flock 9
        [ ! -f "$scratch/fuzzed.a" ] || exit 0
        mkdir -p "$scratch/fuzzed"
        export scratch watched
        export -f have find_clang fuzz_clang
        # What speaks to MPI is a module of its own, which no parser needs.
        # shellcheck disable=SC2016
        printf '%s\n' common/*.c formats/*/*.c report/*.c | grep -v '^common/transport_mpi.c$' | xargs -P "$(processors)" -I{} \
            bash -c 'fuzz_clang -c -o "$scratch/fuzzed/${1//\//-}.o" "$1"' - {} || exit 1
        ar rc "$scratch/fuzzed.a.new" "$scratch"/fuzzed/*.o && mv "$scratch/fuzzed.a.new" "$scratch/fuzzed.a"
    ) 9>"$scratch/fuzzed.lock"
}

fuzz() {
    local target=$1
    mkdir -p "$scratch/$target.corpus"
    fuzzed_sources || return 1
    fuzz_clang -o "$scratch/$target" "tests/fuzz/$target.c" "$scratch/fuzzed.a" -lzstd -lpthread -lm || return 1
    "$scratch/$target" -max_total_time="${FUZZ_SECONDS:-12}" -max_len=4096 -dict=tests/fuzz/safetensors.dict \
        "$scratch/$target.corpus" tests/fuzz/corpus
}

valgrind_demo() {
    "$built/tests/make/make_checkpoint" deepseek-v3 --scale tiny -o "$scratch/tiny" || return 1
    # AVX-512 is beyond valgrind: the scalar and AVX2 forms run there.
    valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
        "$built/cli/tessera" quantize "$scratch/tiny" -o "$scratch/tiny-out" --cpumask 0 --threads 2
}

# Any data race in the engine or the comparison, and any run that the next one does not find complete.
thread_sanitizer() {
    local tool=$1/cli/tessera scheme
    "$built/tests/make/make_checkpoint" deepseek-v3 --scale tiny -o "$scratch/race" || return 1
    for _ in 1 2 3 4 5; do
        rm -rf "$scratch/race-out"
        "$tool" quantize "$scratch/race" -o "$scratch/race-out" --threads 4 --quiet || return 1
        "$tool" quantize "$scratch/race" -o "$scratch/race-out" --threads 4 | grep 'complete already' || return 1
        "$tool" verify "$scratch/race-out" --against "$scratch/race" --threads 4 --quiet || return 1
    done
    for scheme in fp8-block int8-channel int4-weight-only; do
        printf '{"name": "%s", "args": ["quantize", "%s", "-o", "%s", "--scheme", "%s"]}\n' \
            "$scheme" "$scratch/race" "$scratch/race-$scheme" "$scheme"
    done >"$scratch/race.jsonl"
    "$tool" convert "$scratch/race" -o "$scratch/race-tp" --to tp --tp 2 --io direct --threads 4 --quiet || return 1
    "$tool" batch "$scratch/race.jsonl" --threads 4 | grep '^read together: fp8-block int8-channel int4-weight-only;' || return 1
}

# Black-box tests with one binary: black_box FOLDER NAME [OPTION].
# The option is bad_input.py's --batch: of the 7,000 runs there each has a process of its own once, with the tool as it is; under
# sanitizers, which take ten times as long to start and to look for leaks as to refuse a file, those of one file share one.
black_box() {
    local tool=$1/cli/tessera make=$built/tests/make/make_checkpoint
    suite=bad_input
    add "bad input ($2)" python3 tests/bad_input/bad_input.py --tessera "$tool" "${@:3}"
    add "bad results ($2)" python3 tests/bad_input/bad_results.py --tessera "$tool" --make "$make"
    add "bad usage ($2)" python3 tests/bad_input/bad_usage.py --tessera "$tool" --make "$make"
    add "outputs apart from sources ($2)" python3 tests/bad_input/places.py --tessera "$tool" --make "$make"
    add "streams and hostile names ($2)" python3 tests/bad_input/streams.py --tessera "$tool" --make "$make"
    add "limits, pipes, circles of links ($2)" python3 tests/bad_input/limits.py --tessera "$tool" --make "$make"
}

# What a test made goes with it, if it passed: all of a module's folders together are gigabytes of memory, each of whose pages the
# system has to find and to clear.
# The modules one by one: each tells its result when it has one. One process makes all of a module's tests with the sanitized
# binary and then all with the other, for Python's start and the values to compare with take as long as the tool itself. The search
# for leaks passes over global variables: all that the tool keeps there at its end is a leak as well, and half of the search would
# go through AddressSanitizer's own tables. Plugins that pytest finds by itself (xdist) are imported for nothing here.
interop() {
    local module
    suite=interop
    for module in tests/interop/test_*.py; do
        add "interop $(basename "$module")" env LSAN_OPTIONS=use_globals=0 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
            TESSERA="$sanitized/cli/tessera:$built/cli/tessera" MAKE_CHECKPOINT="$built/tests/make/make_checkpoint" \
            .venv/bin/python -m pytest -q --tb=short -p no:cacheprovider -o tmp_path_retention_policy=failed "$module"
    done
}

# Made where there is none; in a fresh clone that takes longer than the tests.
other_packages() { tests/packages/run.sh "$built/cli/tessera" "$built/tests/make/make_checkpoint"; }

# The longest first, and with them those that take a while by the clock alone, so that nothing long is left alone at the end.
collect() {
    local tool=(--tessera "$built/cli/tessera" --make "$built/tests/make/make_checkpoint")
    suite=crash
    add "kill -9 at random moments" python3 tests/crash/crash.py "${tool[@]}"
    add "memory and planning time" python3 tests/crash/memory.py "${tool[@]}"
    add "memory that runs out" python3 tests/crash/allocations.py "${tool[@]}"
    suite=aarch64
    add "aarch64, emulated: tests, and the same bytes" tests/aarch64/run.sh "$built"
    suite=unit
    add "unit (clang, ASan, UBSan)" unit_tests build-clang-asan
    suite=crash
    add "disk full" python3 tests/crash/disk_full.py "${tool[@]}"
    suite=unit
    add "unit" unit_tests build
    suite=fuzz
    add "fuzz: headers and configurations" fuzz fuzz_headers
    add "fuzz: codes and their scales" fuzz fuzz_pairing
    add "fuzz: archives" fuzz fuzz_archive
    add "fuzz: results" fuzz fuzz_result
    suite=front_door
    add "front door: ./dev itself" .venv/bin/python tests/front_door/dev.py "${tool[@]}"
    add "front door: README's commands" python3 tests/front_door/readme.py "${tool[@]}"
    add "front door: shards on Slurm and Kubernetes" .venv/bin/python tests/front_door/cluster.py "${tool[@]}"
    add "front door: what is installed" python3 tests/front_door/install.py "${tool[@]}"
    add "front door: the manual, and what shells complete" python3 tests/front_door/manual.py "${tool[@]}"
    add "front door: the pages' commands, links and errors" python3 tests/front_door/blocks.py "${tool[@]}"
    add "front door: what families are supported, as the page has it" python3 tests/front_door/families.py "${tool[@]}"
    add "front door: the library, installed, in C and C++" python3 tests/front_door/library.py "${tool[@]}"
    add "front door: a wheel in a clean environment" .venv/bin/python tests/front_door/wheel.py "${tool[@]}"
    add "front door: the Python module" .venv/bin/python tests/front_door/python.py "${tool[@]}"
    suite=layers
    add "layers: every header compiles alone, in C and C++" tests/check_headers.py
    suite=interop
    add "compressed-tensors, ModelOpt, transformers themselves" other_packages
    interop
    black_box "$here/build-clang-asan" "ASan, UBSan" --batch
    black_box "$built" gcc
    suite=crash
    add "valgrind" valgrind_demo
    add "TSan, and reruns find every output complete" thread_sanitizer build-tsan
    add "reruns, ^C, two at once" python3 tests/crash/rerun.py "${tool[@]}"
    add "shards, and finish" python3 tests/crash/shards.py "${tool[@]}"
    add "ranks that mpirun starts" python3 tests/crash/mpi.py "${tool[@]}"
    add "order of writes and syncs" python3 tests/crash/order.py "${tool[@]}"
    add "past the page cache and through it" python3 tests/crash/io_ways.py "${tool[@]}"
    add "changing sources, foreign files, failing calls" python3 tests/crash/files.py "${tool[@]}"
    add "a floating-point mode that others set" python3 tests/crash/float_mode.py "${tool[@]}"
    suite=golden
    add "golden vectors" "$built/tests/golden/check_golden" tests/golden/vectors
    add "golden vectors of small groups" "$built/tests/golden/check_golden" tests/golden/vectors-4bit
    add "golden vectors (ASan, UBSan)" build-clang-asan/tests/golden/check_golden tests/golden/vectors
    add "golden vectors of small groups (ASan, UBSan)" build-clang-asan/tests/golden/check_golden tests/golden/vectors-4bit
    add "golden vectors: what is wrong is refused" tests/golden/refusals.sh "$sanitized/tests/golden/check_golden"
    suite=layers
    add "layers: arrows point down" tests/check_layers.py
    add "layers: files and functions are short" tests/check_sizes.py
    suite=format
    add "clang-format" style --dry-run -Werror
}

# What is undefined stops a run, and with no exit code of the tool's own. Checks run side by side, so NumPy and PyTorch have one
# thread each: theirs wait for one another by spinning.
set_environment() {
    export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
    export ASAN_OPTIONS=detect_leaks=1:exitcode=99:handle_sigill=1:allow_addr2line=1
    export UBSAN_OPTIONS=halt_on_error=1:exitcode=99:print_stacktrace=1
}

# The tests write a hundred gigabytes and more, and keep none of them: in memory where there is room for the largest of them, whose
# source and results are ten gigabytes, else where temporary files go. TMPDIR says it otherwise.
choose_place() {
    local needed=$((12 << 20)) # KiB
    [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] || return 0
    [ "$(df -k --output=avail /dev/shm | tail -1)" -ge "$needed" ] || return 0
    [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -ge "$needed" ] || return 0
    export TMPDIR=/dev/shm
}

# selected NAME WORDS...: whether the name contains one of the words; no word selects all
selected() {
    local name=${1,,} word
    shift
    [ $# -gt 0 ] || return 0
    for word in "$@"; do
        [[ $name != *"${word,,}"* ]] || return 0
    done
    return 1
}

run_tests() {
    local i all="" build named=() began=$SECONDS
    local -A builds=(["build: gcc, no warning"]=build_gcc ["build: clang, no warning; ASan, UBSan"]=build_clang
                     ["build: gcc, TSan"]=build_tsan)
    local -A where=(["build: clang, no warning; ASan, UBSan"]=build-clang-asan ["build: gcc, TSan"]=build-tsan)
    collect
    for i in "${!names[@]}"; do
        ! selected "${names[i]}" "$@" || { waiting+=("$i"); all+=${commands_of[i]}; }
    done
    for build in "${!builds[@]}"; do
        ! selected "$build" "$@" || named+=("$build")
    done
    if [ ${#waiting[@]} = 0 ] && [ ${#named[@]} = 0 ]; then
        echo "dev: no check's name contains '$*'. They are:" >&2
        printf '    %s\n' "${!builds[@]}" "${names[@]}" >&2
        exit 2
    fi
    need_for test
    choose_place
    need_scratch
    venv || { echo "dev: without their Python environment (tests/interop/requirements.txt) the tests cannot run" >&2; exit 1; }
    set_environment
    for build in "build: gcc, no warning" "build: clang, no warning; ASan, UBSan" "build: gcc, TSan"; do
        if [ $# = 0 ] || selected "$build" "$@" || { [ -n "$all" ] && [[ $all == *"${where[$build]:-}"* ]]; }; then
            check "$build" "${builds[$build]}"
        fi
    done
    run_all
    [ $# -gt 0 ] || echo "skipped: GPU tests (no device here; './dev gpu interop' runs them on a machine that has one)"
    [ ${#failures[@]} = 0 ] || {
        printf '\nfailed; to run one again:\n'
        printf '    ./dev test %q\n' "${failures[@]}"
    }
    times >"$scratch/times"
    printf '\n%d passed, %d failed; %d s, %d s of CPU in all\n' "$passed" "$failed" $((SECONDS - began)) "$(cpu_of "$scratch/times")"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
