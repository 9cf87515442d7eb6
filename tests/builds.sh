# shellcheck shell=bash disable=SC2154
# Sourced by ./dev: makes the builds of the tests, and calls `meson test` (tests/meson.build).

# Prints the number of processors. nproc alone prints at most OMP_NUM_THREADS.
processors() { env -u OMP_NUM_THREADS nproc; }

# strict_build FOLDER TARGETS -- [meson options...]: builds with -Werror
strict_build() {
    local folder=$1
    [ ! -f "$folder/build.ninja" ] || grep -q -- '-Werror ' "$folder/build.ninja" || meson configure "$folder" -Dwerror=true
    build "$@" -Dwerror=true
}

# Builds with gcc. -g1 keeps the lines for traces and saves a seventh of the compile time. Without a GPU nothing runs the GPU
# kernels, and nvcc compiles them without its optimizer in half the time; './dev gpu' compiles such a build again.
build_gcc() {
    local quickly=()
    # Not a pipe into 'grep -q', which ends early and makes nvcc fail.
    has_gpu || [[ $(nvcc --help 2>/dev/null) != *--Ofast-compile* ]] ||
        quickly=('-Dcuda_args=--Ofast-compile=max -DTSR_COMPILED_QUICKLY')
    strict_build build -- -Dc_args=-g1 -Dcuda=auto -Dasan_build=build-clang-asan -Dtsan_build=build-tsan "${quickly[@]}"
}

# sanitized_build FOLDER SANITIZERS CFLAGS MESON_OPTIONS... -- TARGETS...
# Programs without the CUDA runtime start in a third of the time. Programs at a fixed address need no relocation.
sanitized_build() {
    local folder=$1 sanitizers=$2 compiler=$3 options=()
    shift 3
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    shift
    strict_build "$folder" "$@" -- "-Db_sanitize=$sanitizers" -Db_lundef=false -Dcuda=disabled -Dmpi=disabled \
        -Db_pie=false -Db_staticpic=false "-Dc_args=-fno-pie $compiler" "-Dc_link_args=-no-pie ${linker:-}" "${options[@]}"
}

# Builds with clang, AddressSanitizer and UndefinedBehaviorSanitizer. Undefined behaviour traps, which keeps the program small. A
# build without -fsanitize-trap prints the line. Functions with more than 200 memory accesses check them by calls, and loops are
# not unrolled: both compile faster and run no slower.
build_clang() {
    local linker='' flags="-gline-tables-only -fno-unroll-loops -mllvm -asan-use-stack-safety=1"
    ! have ld.lld || linker=-fuse-ld=lld
    CC="$(! have ccache || echo ccache) $(find_clang)" sanitized_build build-clang-asan address,undefined \
        "$flags -mllvm -asan-instrumentation-with-call-threshold=200 -fsanitize-trap=undefined" --
}

# Builds with ThreadSanitizer, which does not see what the kernel writes for io_uring.
build_tsan() { sanitized_build build-tsan thread -g1 -Doptimization=0 -During=disabled -- cli/tessera; }

# Sets TMPDIR to /dev/shm if it has 12 GiB. The tests write more than a hundred gigabytes, and keep none.
choose_tmpdir() {
    local needed=$((12 << 20)) # KiB
    [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] || return 0
    [ "$(df -k --output=avail /dev/shm | tail -1)" -ge "$needed" ] || return 0
    [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -ge "$needed" ] || return 0
    export TMPDIR=/dev/shm
}

# Sets TESSERA_TURN from the commit: it selects the cases of tests that run a part of them (tests/common/turns.py).
choose_turn() {
    local commit
    commit=$(git rev-parse HEAD 2>/dev/null) || commit=0
    export TESSERA_TURN=${TESSERA_TURN:-$((16#${commit:0:7}))}
    [ -z "${TESSERA_LONG:-}" ] || { say "all cases of each test"; return; }
    say "a part of the cases of long tests: TESSERA_TURN=$TESSERA_TURN repeats the choice, --long runs all"
}

# list_tests OPTION SUITE [NAME...]: prints the tests of a suite (--suite), of all others (--no-suite) or of a setup (--setup), whose
# names contain a NAME
list_tests() {
    local all words=()
    all=$(meson test -C build --no-rebuild --list "$1" "$2" 2>/dev/null | sed -n 's/^.* \/ //p')
    shift 2
    [ $# -gt 0 ] || { echo "$all"; return; }
    for word in "$@"; do words+=(-e "$word"); done
    grep -iF "${words[@]}" <<<"$all"
}

# run_tests [--sample | --long] [NAME...]: implements ./dev test
run_tests() {
    local suite=(--no-suite attack) words=test names=() code=0 log=testlog
    case ${1:-} in
    --sample) export FUZZ_SECONDS=20 ;;
    --long) export FUZZ_SECONDS=3600 TESSERA_LONG=1 ;;
    esac
    case ${1:-} in
    --sample) suite=(--suite attack) words+=" $1"; shift ;;
    --long) suite=(--setup long) words+=" $1" log+=-long; shift ;; # Meson adds the name of the setup
    esac
    choose_turn
    need_for test
    venv || { echo "dev: the tests cannot run without their Python environment (tests/requirements.txt)" >&2; return 1; }
    build_gcc
    if [ $# -gt 0 ]; then
        mapfile -t names < <(list_tests "${suite[@]}" "$@")
        [ ${#names[@]} -gt 0 ] || {
            echo "dev: no test's name contains '$*'. They are:" >&2
            list_tests "${suite[@]}" | sed 's/^/    /' >&2
            exit 2
        }
    fi
    build_clang
    [ ${#names[@]} -gt 0 ] && [[ ${names[*]} != *ThreadSanitizer* ]] || build_tsan
    choose_tmpdir
    # One process more than processors, because some tests wait for a disk, a clock or a process.
    meson test -C build --no-rebuild "${suite[@]}" --num-processes $(($(processors) + 1)) --print-errorlogs "${names[@]}" || code=$?
    python3 tests/summary.py "build/meson-logs/$log.json" "./dev $words" || code=1
    return "$code"
}
