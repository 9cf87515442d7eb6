#!/usr/bin/env bash
# valgrind.sh TESSERA MAKE_CHECKPOINT: runs quantize under valgrind, which finds invalid accesses and leaks.
set -euo pipefail
valgrind -q true >/dev/null 2>&1 || { echo "skipped: no valgrind"; exit 77; }
place=$(mktemp -d "${TMPDIR:-/tmp}/tessera.XXXXXX")
trap 'rm -rf "$place"' EXIT
"$2" deepseek-v3 --scale tiny -o "$place/model"
# valgrind does not know AVX-512: mask 0 selects the scalar kernels.
valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
    "$1" quantize "$place/model" -o "$place/out" --cpumask 0 --threads 2
