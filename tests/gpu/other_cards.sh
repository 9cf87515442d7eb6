#!/bin/sh
# tests/gpu/other_cards.sh PROGRAM [ARCH...]: the PTX that is in the program, assembled for cards that are not available here, and
# disassembled: it shows that there is code for them, not that it was run. Without ARCH only whether there is PTX.
set -eu
command -v cuobjdump >/dev/null || { echo "skipped: no cuobjdump (of the CUDA Toolkit)"; exit 77; }
program=$(realpath "$1")
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cuobjdump -xptx all "$program" >/dev/null
[ -n "$(ls *.ptx 2>/dev/null)" ] || { echo "FAILED: $program holds no PTX, so that cards after sm_90 run nothing"; exit 1; }
echo "PTX of $(ls *.ptx | wc -l) files, $(cat *.ptx | grep -c '\.entry') kernels"
for arch; do
    kernels=0 instructions=0
    for ptx in *.ptx; do
        ptxas -arch="$arch" -o out.cubin "$ptx"
        cuobjdump -sass out.cubin >sass
        kernels=$((kernels + $(grep -c 'Function :' sass || true)))
        instructions=$((instructions + $(grep -cE '[IHQ]MMA' sass || true)))
    done
    echo "$arch: $kernels kernels assembled, $instructions instructions of tensor cores (not run)"
    [ "$kernels" -gt 0 ] && [ "$instructions" -gt 0 ]
done
