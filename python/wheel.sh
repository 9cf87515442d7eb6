#!/usr/bin/env bash
# python/wheel.sh [--cuda | --arch aarch64]: builds a wheel for distribution, and tests it in a clean environment.
# It is written to dist/, to dist/cuda/ with --cuda, or to dist/aarch64/. Libraries are linked statically. It runs with glibc 2.28
# and later (manylinux_2_28), which is checked. Build tools are installed from PyPI into .venv-wheel. An emulator tests a wheel for
# aarch64, with a Python that apt fetches into build-wheel-aarch64-python/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
environment=${WHEEL_ENVIRONMENT:-.venv-wheel} folder=build-wheel target=dist compiler=gcc options=() test_options=()

for_aarch64() {
    local tool
    for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
        command -v $tool >/dev/null ||
            { echo "wheel: no $tool: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" >&2; exit 1; }
    done
    folder=build-wheel-aarch64 target=dist/aarch64 compiler=aarch64-linux-gnu-gcc
    tests/aarch64/libraries.sh $folder-libraries liburing-dev
    [ -d $folder-python/root ] || tests/aarch64/packages.sh $folder-python --whole python3-minimal libpython3-stdlib libstdc++6
    options=("-Csetup-args=--cross-file=$PWD/$folder-libraries/place.ini" "-Csetup-args=--cross-file=$PWD/tests/aarch64/cross.ini"
             "-Csetup-args=--cross-file=$PWD/python/aarch64.ini"
             "-Csetup-args=-Dc_link_args=['-s', '-L$PWD/$folder-libraries/root/usr/lib/aarch64-linux-gnu']")
    test_options=(--emulated "$folder-python/root")
    export _PYTHON_HOST_PLATFORM=linux-aarch64 # meson-python writes it to the wheel's tag
}

case "${*:-}" in
"" | "--arch $(uname -m)") ;;
"--arch aarch64") for_aarch64 ;;
--cuda)
    command -v nvcc >/dev/null || { echo "wheel: no nvcc: install the CUDA Toolkit, or leave --cuda out" >&2; exit 1; }
    folder=build-wheel-cuda target=dist/cuda
    options=(-Csetup-args=-Dcuda=enabled -Csetup-args=-Dcuda_link_args=-Xlinker=-s)
    ;;
*)
    echo "usage: dev wheel [--cuda | --arch aarch64]" >&2
    exit 2
    ;;
esac

wanted=$(python3 -V; cat python/requirements.txt)
if ! [ -x "$environment/bin/python" ] || [ "$wanted" != "$(cat "$environment/stamp" 2>/dev/null)" ]; then
    rm -rf "$environment"
    python3 -m venv "$environment"
    "$environment/bin/pip" install -q --disable-pip-version-check --only-binary :all: -r python/requirements.txt
    printf '%s\n' "$wanted" >"$environment/stamp"
fi
PATH=$(realpath "$environment")/bin:$PATH
export PATH
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
printf "[binaries]\nc = ['%s', '%s']\n" "$PWD/python/cc-glibc-2.28" "$compiler" >"$made/compiler.ini"
options+=("-Csetup-args=--$([ "$compiler" = gcc ] && echo native || echo cross)-file=$made/compiler.ini")
if [ "$target" = dist/cuda ]; then # nvcc looks for a host compiler of these names
    mkdir "$made/host"
    for name in gcc g++; do
        printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$PWD/python/cc-glibc-2.28" $name >"$made/host/$name"
        chmod +x "$made/host/$name"
    done
    export NVCC_PREPEND_FLAGS="-ccbin $made/host${NVCC_PREPEND_FLAGS:+ $NVCC_PREPEND_FLAGS}"
fi
pip wheel . --disable-pip-version-check --no-build-isolation --no-deps -q -w "$made" "-Cbuild-dir=$folder" "${options[@]}"
unset _PYTHON_HOST_PLATFORM
mkdir -p "$target"
rm -f "$target"/*.whl
auditwheel repair -w "$target" "$made"/*.whl 2>"$made/log" || { cat "$made/log" >&2; exit 1; }
ls -l "$target"/*.whl
if [[ $(ls "$target") != *manylinux_2_2[0-8]_* ]]; then
    echo "wheel: it needs a newer glibc than 2.28: python/cc-glibc-2.28 did not link it" >&2
    exit 1
fi
if ! [ -x build/tests/make/make_checkpoint ]; then
    [ -f build/build.ninja ] || meson setup build >/dev/null
    ninja -C build cli/tessera tests/make/make_checkpoint >/dev/null
fi
python tests/install/wheel.py --wheel "$(ls "$target"/*.whl)" --tessera build/cli/tessera --make build/tests/make/make_checkpoint "${test_options[@]}"
