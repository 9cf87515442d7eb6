# shellcheck shell=bash disable=SC2154
# Sourced by ./dev: finds the programs and libraries that a task needs, and installs the missing packages.
# It tests each program or library itself, not the package.

# Prints the C compiler that Meson uses.
c_compiler() {
    local name
    [ -z "${CC:-}" ] || { echo "$CC"; return; }
    for name in cc gcc clang; do
        ! have "$name" || { echo "$name"; return; }
    done
}

# compiles COMPILER...: compiles and links the program on stdin
compiles() { "$@" -x c -o /dev/null - >/dev/null 2>&1; }

has_compiler() {
    local compiler
    compiler=$(c_compiler)
    # CC may be several words, as in "ccache gcc".
    # shellcheck disable=SC2086
    [ -n "$compiler" ] && echo '#include <stdio.h>
int main(void) { return puts("") < 0; }' | compiles $compiler
}

# has_library MODULE HEADER: looks for a library with pkg-config, as Meson does, or for its header if there is no pkg-config
has_library() {
    if have pkg-config; then
        pkg-config --exists "$1"
    else
        # shellcheck disable=SC2046
        has_compiler && printf '#include <stddef.h>\n#include <%s>\nint main(void) { return 0; }\n' "$2" | compiles $(c_compiler)
    fi
}

# Tests for the chart library of `report --html`, as report/meson.build does.
has_chart_js() { [ -f /usr/share/javascript/chart.js/chart.min.js ]; }

has_venv() { [ -x .venv/bin/python ] || python3 -c 'import venv, ensurepip' 2>/dev/null; }

# Prints the name of the newest clang, with or without a version.
find_clang() {
    local name
    for name in clang clang-{30..14}; do
        ! have "$name" || { echo "$name"; return; }
    done
}

has_fuzzer() {
    local clang
    clang=$(find_clang)
    [ -n "$clang" ] && echo '#include <stddef.h>
int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) { return data && n == (size_t)-1; }' |
        compiles "$clang" -fsanitize=fuzzer,address,undefined
}

# Tests for a cross compiler for aarch64 that can link programs.
has_cross_compiler() {
    have aarch64-linux-gnu-gcc && echo '#include <stdio.h>
int main(void) { return puts("") < 0; }' | compiles aarch64-linux-gnu-gcc -static
}

# Prints the package of the sanitizer runtime, for the installed clang or the one that apt would install.
clang_runtime() {
    local clang version=
    clang=$(find_clang)
    if [ -n "$clang" ]; then
        version=$("$clang" -dumpversion | cut -d. -f1)
    else
        version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -1)
    fi
    echo "libclang-rt-${version:-$(. /etc/os-release 2>/dev/null; case "${VERSION_CODENAME:-}" in
        bookworm) echo 14 ;; noble) echo 18 ;; *) echo 19 ;; esac)}-dev"
}

# missing_for build|test|bench|coverage: prints the packages of missing programs and libraries
missing_for() {
    has_compiler || echo gcc libc6-dev
    have meson || echo meson
    have ninja || echo ninja-build
    have pkg-config || echo pkgconf
    has_library libxxhash xxhash.h || echo libxxhash-dev
    has_library libzstd zstd.h || echo libzstd-dev
    has_chart_js || echo libjs-chart.js
    has_library liburing liburing.h || echo liburing-dev
    has_library libcurl curl/curl.h || echo libcurl4-openssl-dev
    has_venv || echo python3-venv
    [ "$1" != bench ] || have fio || echo fio
    [ "$1" != coverage ] || have gcovr || echo gcovr
    [ "$1" = test ] || [ "$1" = coverage ] || return 0
    have gcc || echo gcc
    have c++ || have g++ || echo g++
    has_library criterion criterion/criterion.h || echo libcriterion-dev
    { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null || true; } | grep -q 'libopenblas\.so\.0' || echo libopenblas0-pthread
    [ -n "$(find_clang)" ] || echo clang
    has_fuzzer || clang_runtime
    valgrind -q true >/dev/null 2>&1 || echo valgrind libc6-dbg
    have zstd || echo zstd
    have nginx || [ -x /usr/sbin/nginx ] || echo nginx-light
    have openssl || echo openssl
    have xmllint || echo libxml2-utils
    have lexgrog || echo man-db
    have zsh || echo zsh
    have fish || echo fish
    have abidw || echo abigail-tools
    { have mpirun && has_library ompi-c mpi.h; } || echo openmpi-bin libopenmpi-dev
    [ "$1" = test ] && [ "$(uname -m)" != aarch64 ] || return 0
    has_cross_compiler || echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    have qemu-aarch64 || have qemu-aarch64-static || echo qemu-user
}

# need_for build|test|bench|coverage: installs missing packages, or prints the command to run and exits
need_for() {
    local task=$1 missing root=() install=(apt-get install -y --no-install-recommends)
    missing=$(missing_for "$task" | tr '\n' ' ')
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        root=(sudo)
        have sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; } || root=(none)
    fi
    if [ "${root[0]:-}" = none ] || ! have apt-get; then
        # These packages are optional: without them the demo skips its last check, `report` has no --html, direct I/O runs
        # one request at a time, and there are no remote sources.
        [ "$task" != build ] || [ -n "$(missing_for build | grep -vxE 'python3-venv|libjs-chart.js|liburing-dev|libcurl4-openssl-dev')" ] || return 0
        {
            echo "dev: packages are missing, and installing them needs root and apt-get. On Debian and Ubuntu, run:"
            echo "    apt-get update && ${install[*]} ${missing% }"
        } >&2
        exit 1
    fi
    say "installing ${missing% }"
    "${root[@]}" apt-get update -qq
    # The package lists determine the version of clang, and with it the runtime package.
    missing=$(missing_for "$task" | tr '\n' ' ')
    # shellcheck disable=SC2086
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" -qq $missing >/dev/null
    missing=$(missing_for "$task" | tr '\n' ' ')
    [ -z "$missing" ] || { echo "dev: still missing after the installation: $missing" >&2; exit 1; }
}

# venv_with PURPOSE FILTER: makes .venv with the lines of tests/requirements.txt that match FILTER
venv_with() {
    local purpose=$1 filter=$2 stamp=.venv/stamp wanted
    wanted=$(python3 -V; grep -vE '^ *(#|$)' tests/requirements.txt | grep -E "$filter")
    # An environment with all packages serves each part.
    if [ -f "$stamp" ] && [ -x .venv/bin/python ]; then
        [ "$(grep -Fxc -f <(printf '%s\n' "$wanted") "$stamp")" != "$(printf '%s\n' "$wanted" | wc -l)" ] || return 0
    fi
    say "making the Python environment of $purpose"
    rm -rf .venv
    # `set -e` has no effect if the caller handles the failure, so each step is checked.
    python3 -m venv .venv || return 1
    printf '%s\n' "$wanted" | tail -n +2 >.venv/wanted
    .venv/bin/pip install -q --disable-pip-version-check --no-deps --only-binary :all: -r .venv/wanted || return 1
    printf '%s\n' "$wanted" >"$stamp"
}

venv() { venv_with "the tests" .; }

# Prints a Python that has the packages of the demo's check: the system's, or that of .venv.
demo_python() {
    if python3 -c 'import numpy, ml_dtypes, safetensors' 2>/dev/null; then
        echo python3
    elif venv_with "the demo" '^(numpy|ml_dtypes|safetensors)' >&2; then
        echo "$here/.venv/bin/python"
    fi
}
