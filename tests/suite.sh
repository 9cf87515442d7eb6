# shellcheck shell=bash disable=SC2154
# Sourced by ./dev: everything that CI runs. Checks are collected first, then run side by side, one more than there are CPUs, each
# as soon as there is the build that it needs; each says at once how it ended and what it took of the CPUs' time, which other work
# on the machine does not lengthen much; a failed one says how to run it again. A check that exits with 77 was skipped, and says
# why.

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

# check NAME COMMAND...: one by itself, which what follows waits for
check() {
    local name=$1 started=$SECONDS code=0
    shift
    need_scratch
    (timed "$scratch/times" "$@") >"$scratch/log" 2>&1 || code=$?
    report "$name" "$code" $((SECONDS - started)) "$scratch/log" "$scratch/times"
}

# The builds, in their order: what a check calls each, its name here, and the folder by which a command names it.
builds=(gcc clang tsan)
declare -A build_name=([gcc]="build: gcc, no warning" [clang]="build: clang, no warning; ASan, UBSan" [tsan]="build: gcc, TSan")
declare -A build_folder=([clang]=build-clang-asan [tsan]=build-tsan)

names=() commands_of=() suites=() needs_of=() waiting=()
suite=
needs=
# Most checks need these: the Python environment of the tests, and the build that is judged.
usual="python gcc"
# add NAME COMMAND...: one that runs beside others; of the suite that `suite` names, for `meson test --suite`. It waits for what
# `needs` says, and for the builds whose folders its command names.
add() {
    local build needed=${needs:-$usual} command
    names+=("$1")
    suites+=("$suite")
    shift
    command=$(printf '%q ' "$@")
    for build in "${!build_folder[@]}"; do
        [[ $command != *"${build_folder[$build]}"* ]] || needed+=" $build"
    done
    commands_of+=("$command")
    needs_of+=("$needed")
}

# nproc counts what OMP_NUM_THREADS leaves, which set_environment makes one.
processors() { env -u OMP_NUM_THREADS nproc; }

# Rows of what others need, the exit codes of the rows that have ended, and which are builds: these take a place for each process.
declare -A row_of=() code_of=() is_build=()

# pick FREE: takes from `waiting` the first that fits into so many free places, a build into `width`, and has all that it needs, as
# `picked`
pick() {
    local at i need
    [ "$1" -gt 0 ] || return 1
    for at in "${!waiting[@]}"; do
        i=${waiting[at]}
        [ -z "${is_build[$i]:-}" ] || [ "$width" -le "$1" ] || continue
        for need in ${needs_of[i]}; do
            [ -z "${row_of[$need]:-}" ] || [ "${code_of[${row_of[$need]}]:-}" = 0 ] || continue 2
        done
        unset "waiting[at]"
        picked=$i
        return 0
    done
    return 1
}

# run_all: those of `waiting` (indices), in their order, as far as that is there which they need; what is left in it needs what
# failed. Each says itself that it has ended: a shell forgets what ended while it did not wait, and `wait -n` then knows no such
# job.
run_all() {
    local -A started=()
    local free width running=0 ended i code picked
    width=$(processors)
    free=$((width + 1)) # some wait for a disk, a clock or a process that they kill, and would leave a CPU idle
    mkfifo "$scratch/ended"
    exec {ended}<>"$scratch/ended"
    rm "$scratch/ended"
    while :; do
        while pick "$free"; do
            i=$picked
            started[$i]=$SECONDS
            running=$((running + 1)) free=$((free - (${is_build[$i]:-0} ? width : 1)))
            (
                code=0
                # A build takes what the checks beside it leave, and is as long at work as they are: the fuzzer by the clock.
                [ -z "${is_build[$i]:-}" ] || renice -n $(($(nice) + 5)) -p "$BASHPID" >/dev/null 2>&1 || true
                timed "$scratch/times.$i" eval "${commands_of[i]}" >"$scratch/log.$i" 2>&1 </dev/null || code=$?
                echo "$i $code" >&"$ended"
            ) &
        done
        [ "$running" -gt 0 ] || break
        read -r i code <&"$ended"
        running=$((running - 1)) free=$((free + (${is_build[$i]:-0} ? width : 1)))
        code_of[$i]=$code
        report "${names[i]}" "$code" $((SECONDS - started[$i])) "$scratch/log.$i" "$scratch/times.$i"
        rm -f "$scratch/log.$i" "$scratch/times.$i"
    done
    exec {ended}<&-
    wait
}

# Every source, with git or without it.
sources() {
    find common formats kernels quantize convert verify report lib cli tests -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) |
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
# Where there is no GPU, nothing runs the kernels for one: nvcc compiles them in half of the time then, without its optimizer. Whoever
# takes such a build to a GPU is warned by its tests and benchmarks, and './dev gpu' compiles it anew (compile_for_gpu).
build_gcc() {
    local quickly=()
    # No pipe into 'grep -q', which leaves once it has found the word: nvcc, still talking, would fail by that, and the pipe with it.
    has_gpu || [[ $(nvcc --help 2>/dev/null) != *--Ofast-compile* ]] ||
        quickly=('-Dcuda_args=--Ofast-compile=max -DTSR_COMPILED_QUICKLY')
    strict_build build -- -Dc_args=-g1 -Dcuda=auto "${quickly[@]}"
}
# sanitized_build FOLDER SANITIZERS COMPILER'S MESON'S... -- TARGETS...
# The kernels of a GPU are nvcc's to compile, and once is enough: in the build that is judged. Without their runtime a program
# also starts in a third of the time, which the thousands of runs under sanitizers feel. One at a fixed address need not be
# relocated.
sanitized_build() {
    local folder=$1 sanitizers=$2 compiler=$3 options=()
    shift 3
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    strict_build "$folder" "$@" -- "-Db_sanitize=$sanitizers" -Db_lundef=false -Dcuda=disabled -Dmpi=disabled \
        -Db_pie=false -Db_staticpic=false "-Dc_args=-fno-pie $compiler" "-Dc_link_args=-no-pie ${linker:-}" "${options[@]}"
}
# One build of clang's is all that clang is asked: its warnings, whether what its optimizer makes of the rooms that compute passes
# the tests, and the sanitizers. Its AddressSanitizer watches what the optimizer leaves, where GCC's comes before most of it, and
# the tool takes half to two thirds of the time so. An access to the stack that can be proven right is not watched, as is clang's
# default from 15 on. What is undefined traps, which makes a small program and so a quick search for leaks; AddressSanitizer tells
# the function (set_environment), and a build without -fsanitize-trap says in words, with the line, what was undefined there.
# Where LLVM's linker is there, the seventy programs are linked in half the time.
build_clang() {
    local linker=
    ! have ld.lld || linker=-fuse-ld=lld
    CC="$(! have ccache || echo ccache) $(find_clang)" sanitized_build build-clang-asan address,undefined \
        "$watched -fsanitize-trap=undefined" --
}
# In a function of more than 200 accesses to memory, most of them kernels' unrolled loops, each is watched by a call in place of
# a test of its own, which such functions take half as long again to compile for. Loops unrolled by the optimizer's choice would
# only make more such accesses: they take longer to compile and run no faster.
watched="-gline-tables-only -fno-unroll-loops -mllvm -asan-use-stack-safety=1 -mllvm -asan-instrumentation-with-call-threshold=200"
# Its runs are few and small: they take less time than an optimizer would. Every access to memory is there to be watched.
# It sees nothing of what the kernel writes for io_uring, and would take the order in which buffers are used for a race.
build_tsan() { sanitized_build build-tsan thread -g1 -Doptimization=0 -During=disabled -- cli/tessera; }

unit_tests() {
    meson test -C "$1" --suite unit --no-rebuild --print-errorlogs --timeout-multiplier 20 --num-processes $((($(processors) + 1) / 2))
}

fuzz_clang() {
    # shellcheck disable=SC2086
    "$(find_clang)" -std=gnu11 $watched -O1 -I. -D_GNU_SOURCE -DTSR_VERSION='"fuzz"' -ffp-contract=off \
        -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all "$@"
}

# Further sources for fuzz_inputs and fuzz_manifest. Only the parsers are called, so the rest that
# these files name is left unresolved, and a call to it would be found at once.
fuzzed_besides="convert/schemes/dialects.c convert/schemes/schemes.c convert/search/rules.c convert/search/rules_match.c convert/records/journal_records.c verify/forward/tokens/token_file.c
    verify/forward/tokens/tokens.c verify/manifest/manifest_parse.c verify/manifest/manifest_sources.c cli/batch/batch_jobs.c"

# Builds the archive that all targets are linked with, once: fuzzed.a. And the words that parsers know: fuzzed.dict
fuzzed_sources() {
    (
        flock 9
        [ ! -f "$scratch/fuzzed.a" ] || exit 0
        mkdir -p "$scratch/fuzzed"
        export scratch watched
        export -f have find_clang fuzz_clang
        # MPI is used by a separate module, which no parser needs.
        # shellcheck disable=SC2016,SC2086
        printf '%s\n' $(find common formats report -name '*.c') $fuzzed_besides | grep -v '^common/cluster/transport_mpi.c$' | xargs -P "$(processors)" -I{} \
            bash -c 'fuzz_clang -c -o "$scratch/fuzzed/${1//\//-}.o" "$1"' - {} || exit 1
        # shellcheck disable=SC2086
        grep -ohE '"[A-Za-z_][A-Za-z0-9_.-]{2,40}"' $(find formats report -name '*.c') $fuzzed_besides | grep -v '\.h"' | sort -u |
            sed 's/"\(.*\)"/"\\"\1\\""/' | cat tests/robustness/fuzz/safetensors.dict - >"$scratch/fuzzed.dict" || exit 1
        ar rc "$scratch/fuzzed.a.new" "$scratch"/fuzzed/*.o && mv "$scratch/fuzzed.a.new" "$scratch/fuzzed.a"
    ) 9>"$scratch/fuzzed.lock"
}

# The mutators know JSON, or the packing of archives (tests/robustness/fuzz/mutate_*.c). For each target the suite runs all seeds and
# some seconds more; the sample that CI takes after it (tests/attacks.sh) has a minute for each.
fuzz() {
    local target=$1 mutator=json
    [ "$target" != fuzz_archive ] || mutator=archive
    mkdir -p "$scratch/$target.corpus"
    fuzzed_sources || return 1
    fuzz_clang -no-pie -Wl,--unresolved-symbols=ignore-all -o "$scratch/$target" "tests/robustness/fuzz/$target.c" \
        "tests/robustness/fuzz/mutate_$mutator.c" "$scratch/fuzzed.a" -lzstd -lpthread -lm || return 1
    "$scratch/$target" -max_total_time="${FUZZ_SECONDS:-3}" -max_len=4096 -dict="$scratch/fuzzed.dict" \
        "$scratch/$target.corpus" "tests/robustness/fuzz/corpus/${target#fuzz_}"
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
    add "bad input ($2)" python3 tests/robustness/input/bad_input.py --tessera "$tool" "${@:3}"
    add "bad results ($2)" python3 tests/robustness/input/bad_results.py --tessera "$tool" --make "$make"
    add "bad usage ($2)" python3 tests/robustness/input/bad_usage.py --tessera "$tool" --make "$make"
    add "outputs apart from sources ($2)" python3 tests/robustness/paths/places.py --tessera "$tool" --make "$make"
    add "streams and hostile names ($2)" python3 tests/robustness/paths/streams.py --tessera "$tool" --make "$make"
    add "limits, pipes, circles of links ($2)" python3 tests/robustness/paths/limits.py --tessera "$tool" --make "$make"
}

# Files of a passed test are removed: all of a module's folders together are gigabytes of memory, each of whose pages the
# system has to find and to clear.
# The modules one by one: each tells its result when it has one. One process makes all of a module's tests with the sanitized
# binary and then all with the other, for Python's start and the values to compare with take as long as the tool itself. The search
# for leaks passes over global variables: all that the tool keeps there at its end is a leak as well, and half of the search would
# go through AddressSanitizer's own tables. Plugins that pytest finds by itself (xdist) are imported for nothing here.
interop() {
    local module
    suite=interop
    for module in tests/cli/test_*.py tests/cli/*/test_*.py; do
        add "cli $(basename "$module")" env LSAN_OPTIONS=use_globals=0 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 \
            TESSERA="$sanitized/cli/tessera:$built/cli/tessera" MAKE_CHECKPOINT="$built/tests/make/make_checkpoint" \
            .venv/bin/python -m pytest -q --tb=short -p no:cacheprovider -o tmp_path_retention_policy=failed "$module"
    done
}

# Made where there is none; in a fresh clone that takes longer than the tests.
other_packages() { tests/peers/packages/run.sh "$built/cli/tessera" "$built/tests/make/make_checkpoint"; }

# First what needs no build, beside the first of them; then what waits for a disk, a clock or other processes, beside the others;
# then the longest, so that nothing long is left alone at the end.
collect() {
    local tool=(--tessera "$built/cli/tessera" --make "$built/tests/make/make_checkpoint")
    suite=fuzz needs=nothing
    add "fuzz: headers and configurations" fuzz fuzz_headers
    add "fuzz: codes and their scales" fuzz fuzz_pairing
    add "fuzz: archives" fuzz fuzz_archive
    add "fuzz: results" fuzz fuzz_result
    add "fuzz: rules, tokens, journals and other inputs" fuzz fuzz_inputs
    add "fuzz: manifests" fuzz fuzz_manifest
    suite=layers
    add "layers: every header compiles alone, in C and C++" tests/check_headers.py
    add "layers: arrows point down" tests/check_layers.py
    add "layers: files and functions are short" tests/check_sizes.py
    add "layers: call cycles, names, folders" tests/check_structure.py
    add "layers: language of comments, pages and commits" tests/check_language.py
    add "layers: C's structs, as Python's benchmarks have them" tests/check_structs.py
    add "layers: every source has a test" tests/check_tests.py
    add "GPU kernels: fences before others read shared memory" tests/gpu/check_fences.py kernels/cuda/block_fp8_{narrow,wide,grouped_wide,tokens}.cu \
        kernels/cuda/weight_only_tiles.cu
    add "layers: the faults to plant in GPU kernels are those of the sources" python3 tests/mutation/mutants.py --check
    add "layers: the faults to plant are those of the sources" python3 tests/mutation/planted.py --tessera - --make - --check
    suite=format needs=python
    add "clang-format" style --dry-run -Werror
    suite=interop needs=
    add "compressed-tensors, ModelOpt, transformers themselves" other_packages
    suite=crash
    add "kill -9 at random moments" python3 tests/robustness/faults/crash.py "${tool[@]}"
    add "ranks that mpirun starts" python3 tests/robustness/faults/mpi.py "${tool[@]}"
    add "disk full" python3 tests/robustness/faults/disk_full.py "${tool[@]}"
    add "memory and planning time" python3 tests/robustness/faults/memory.py "${tool[@]}"
    suite=aarch64
    add "aarch64, emulated: tests, and the same bytes" tests/aarch64/run.sh "$built"
    suite=crash
    add "memory that runs out" python3 tests/robustness/faults/allocations.py "${tool[@]}"
    suite=unit
    # Every scale is swept over in the build that is judged; under sanitizers each third of them.
    add "unit (clang, ASan, UBSan)" TESSERA_SWEEP_STEP=3 unit_tests build-clang-asan
    add "unit" unit_tests build
    suite=front_door
    add "front door: ./dev itself" .venv/bin/python tests/install/dev.py "${tool[@]}"
    add "front door: README's commands" python3 tests/install/readme.py "${tool[@]}"
    add "front door: shards on Slurm and Kubernetes" .venv/bin/python tests/install/cluster.py "${tool[@]}"
    add "front door: what is installed" python3 tests/install/install.py "${tool[@]}"
    add "front door: the manual, and what shells complete" python3 tests/install/manual.py "${tool[@]}"
    add "front door: the pages' commands, links and errors" python3 tests/install/blocks.py "${tool[@]}"
    add "front door: what families are supported, as the page has it" python3 tests/install/families.py "${tool[@]}"
    add "front door: the library, installed, in C and C++" python3 tests/install/library.py "${tool[@]}"
    add "front door: a wheel in a clean environment" .venv/bin/python tests/install/wheel.py "${tool[@]}"
    add "front door: the Python module" .venv/bin/python tests/install/python.py "${tool[@]}"
    interop
    black_box "$here/build-clang-asan" "ASan, UBSan" --batch
    black_box "$built" gcc
    suite=crash
    add "valgrind" valgrind_demo
    add "TSan, and reruns find every output complete" thread_sanitizer build-tsan
    add "reruns, ^C, two at once" python3 tests/robustness/faults/rerun.py "${tool[@]}"
    add "shards, and finish" python3 tests/robustness/faults/shards.py "${tool[@]}"
    add "order of writes and syncs" python3 tests/robustness/faults/order.py "${tool[@]}"
    add "past the page cache and through it" python3 tests/robustness/faults/io_ways.py "${tool[@]}"
    add "changing sources, foreign files, failing calls" python3 tests/robustness/faults/files.py "${tool[@]}"
    add "a floating-point mode that others set" python3 tests/robustness/faults/float_mode.py "${tool[@]}"
    suite=golden
    add "golden vectors" "$built/tests/peers/golden/check_golden" tests/peers/golden/vectors
    add "golden vectors of small groups" "$built/tests/peers/golden/check_golden" tests/peers/golden/vectors-4bit
    add "golden vectors (ASan, UBSan)" build-clang-asan/tests/peers/golden/check_golden tests/peers/golden/vectors
    add "golden vectors of small groups (ASan, UBSan)" build-clang-asan/tests/peers/golden/check_golden tests/peers/golden/vectors-4bit
    add "golden vectors: what is wrong is refused" tests/peers/golden/refusals.sh "$sanitized/tests/peers/golden/check_golden"
}

# Undefined behaviour stops a run, with an exit code that the tool never has. Checks run side by side, so NumPy and PyTorch have one
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

python_environment() {
    venv || { echo "dev: without their Python environment (tests/requirements.txt) the tests cannot run"; return 1; }
}

# add_needed WORDS...: rows for what the rows of `waiting` need and for the builds that the words select, before all others
add_needed() {
    local i build needed=" " first=() whole=${#names[@]}
    needs=nothing
    for i in "${waiting[@]}"; do needed+="${needs_of[i]} "; done
    if [[ $needed = *" python "* ]]; then
        row_of[python]=${#names[@]}
        add "the Python environment of the tests" python_environment
    fi
    for build in "${builds[@]}"; do
        if [[ $needed = *" $build "* ]] || selected "${build_name[$build]}" "$@"; then
            row_of[$build]=${#names[@]}
            is_build[${#names[@]}]=1
            add "${build_name[$build]}" "build_$build"
        fi
    done
    for ((i = whole; i < ${#names[@]}; i++)); do first+=("$i"); done
    waiting=("${first[@]}" "${waiting[@]}")
}

# run_tests [--sample | --long] [NAME...]
run_tests() {
    local i began=$SECONDS whole=
    case ${1:-} in
    --sample) collect_attacks 60 ;;
    --long) collect_attacks 3600 --all ;;
    *) collect; [ $# -gt 0 ] || whole=1 ;;
    esac
    case ${1:-} in --sample | --long) command+=" $1"; shift ;; esac
    for i in "${!names[@]}"; do
        ! selected "${names[i]}" "$@" || waiting+=("$i")
    done
    add_needed "${@:-$'\n'}"
    if [ ${#waiting[@]} = 0 ]; then
        echo "dev: no check's name contains '$*'. They are:" >&2
        printf '    %s\n' "${build_name[@]}" "${names[@]}" >&2
        exit 2
    fi
    need_for test
    choose_place
    need_scratch
    set_environment
    run_all
    [ ${#waiting[@]} = 0 ] || printf 'not run, for want of a build or an environment: %s\n' "${#waiting[@]} checks"
    [ -z "$whole" ] || echo "skipped: GPU tests (no device here; './dev gpu interop' runs them on a machine that has one)"
    [ ${#failures[@]} = 0 ] || {
        printf '\nfailed; to run one again:\n'
        printf "    ./dev $command %q\n" "${failures[@]}"
    }
    times >"$scratch/times"
    printf '\n%d passed, %d failed; %d s, %d s of CPU in all\n' "$passed" "$failed" $((SECONDS - began)) "$(cpu_of "$scratch/times")"
    [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
