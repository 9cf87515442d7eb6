#!/usr/bin/env bash
# Tests Tessera against compressed-tensors, ModelOpt and transformers, in both directions:
#   tests/peers/packages/run.sh TESSERA MAKE_CHECKPOINT [pytest's arguments | --script FILE ARGS...]
# Installs the packages from PyPI into .venv-packages: a download of 0.6 GB, 1.2 GB on disk. Exit code 77: this failed.
set -euo pipefail
TESSERA=$(realpath "$1") MAKE_CHECKPOINT=$(realpath "$2")
export TESSERA MAKE_CHECKPOINT
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
place=.venv-packages

# Installs the packages. After a failure, the last line of its output is the reason.
make_environment() {
    rm -rf "$place"
    # The pip of the tests' environment can install into this one. Unpacking a second pip would take seconds.
    local pip=("$place/bin/pip")
    if [ -x .venv/bin/pip ]; then
        python3 -m venv --without-pip "$place" || return 1
        pip=(.venv/bin/pip --python "$place/bin/python")
    else
        python3 -m venv "$place" || return 1
    fi
    "${pip[@]}" install -q --disable-pip-version-check --no-cache-dir --no-compile --no-deps --only-binary :all: \
        -r tests/peers/packages/requirements.txt || return 1
    python3 tests/peers/packages/without_cuda.py "$("$place/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/torch" ||
        return 1
    "$place/bin/python" -c 'import torch' || return 1
}

wanted=$(python3 -V; cat tests/peers/packages/requirements.txt tests/peers/packages/without_cuda.py)
if ! [ -x "$place/bin/python" ] || [ "$wanted" != "$(cat "$place/stamp" 2>/dev/null)" ]; then
    why=$(make_environment 2>&1) || {
        echo "skipped: compressed-tensors, ModelOpt, transformers and PyTorch cannot be installed: $(tail -1 <<<"$why")"
        exit 77
    }
    printf '%s\n' "$wanted" >"$place/stamp"
fi
if [ "${1:-}" = --script ]; then
    exec "$place/bin/python" "${@:2}"
fi
exec "$place/bin/python" -m pytest -q --tb=short -p no:cacheprovider -W ignore "${@:-tests/peers/packages}"
