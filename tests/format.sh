#!/usr/bin/env bash
# tests/format.sh OPTION...: runs the clang-format of the tests' Python environment over all C and CUDA sources.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mapfile -t files < <(find common formats kernels quantize convert verify report lib cli tests -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) | sort)
[ ${#files[@]} -gt 300 ] || { echo "only ${#files[@]} sources found"; exit 1; }
exec .venv/bin/clang-format "$@" "${files[@]}"
