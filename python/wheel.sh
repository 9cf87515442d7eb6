#!/usr/bin/env bash
# python/wheel.sh [--cuda]: a wheel for other machines, in dist/ (with CUDA in dist/cuda/), tried in a clean environment.
# Its libraries are linked statically, and auditwheel tells from which glibc on it runs: that of this machine, or an earlier one.
# What builds it comes from PyPI into .venv-wheel.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
place=.venv-wheel folder=build-wheel target=dist options=()
if [ "${1:-}" = --cuda ]; then
    command -v nvcc >/dev/null || { echo "wheel: no nvcc: install the CUDA Toolkit, or leave --cuda out" >&2; exit 1; }
    folder=build-wheel-cuda target=dist/cuda
    options=(-Csetup-args=-Dauto_features=enabled -Csetup-args=-Dmpi=disabled -Csetup-args=-Dcuda_link_args=-Xlinker=-s)
elif [ $# -gt 0 ]; then
    echo "usage: dev wheel [--cuda]" >&2
    exit 2
fi

wanted=$(python3 -V; cat python/requirements.txt)
if ! [ -x "$place/bin/python" ] || [ "$wanted" != "$(cat "$place/stamp" 2>/dev/null)" ]; then
    rm -rf "$place"
    python3 -m venv "$place"
    "$place/bin/pip" install -q --disable-pip-version-check --only-binary :all: -r python/requirements.txt
    printf '%s\n' "$wanted" >"$place/stamp"
fi
PATH=$PWD/$place/bin:$PATH
export PATH
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
pip wheel . --disable-pip-version-check --no-build-isolation --no-deps -q -w "$made" "-Cbuild-dir=$folder" "${options[@]}"
mkdir -p "$target"
rm -f "$target"/*.whl
auditwheel repair -w "$target" "$made"/*.whl 2>"$made/log" || { cat "$made/log" >&2; exit 1; }
ls -l "$target"/*.whl
if ! [ -x build/tests/make/make_checkpoint ]; then
    [ -f build/build.ninja ] || meson setup build >/dev/null
    ninja -C build cli/tessera tests/make/make_checkpoint >/dev/null
fi
python tests/front_door/wheel.py --wheel "$(ls "$target"/*.whl)" --tessera build/cli/tessera --make build/tests/make/make_checkpoint
