#!/usr/bin/env bash
# check_golden CHECKER: it must fail where it should. Each case breaks one thing of a copy of the vectors.
set -euo pipefail
checker=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/vectors"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wrong=0

# refuses CODE TEXT COMMAND...: COMMAND breaks the copy in the current folder; the checker then exits with CODE, says TEXT
refuses() {
    local code=$1 text=$2 got=0
    shift 2
    rm -rf "$scratch/copy"
    cp -r . "$scratch/copy"
    (cd "$scratch/copy" && chmod u+w ./* && "$@")
    "$checker" "$scratch/copy" >"$scratch/log" 2>&1 || got=$?
    if [ "$got" != "$code" ] || ! grep -qF -- "$text" "$scratch/log"; then
        echo "exit $got, wanted $code and '$text', after: $*"
        cat "$scratch/log"
        wrong=1
    fi
}
flip() { printf '\xA5\x5A' | dd of="$1" bs=1 seek=100 conv=notrunc status=none; }

refuses 0 '0 failed' true
refuses 1 'ft_sm80_int4_64x64: expert 0, scalar: from [K, N]: the layout: byte 100 ' flip ft_sm80_int4_64x64.out.bin
refuses 1 'FAILED  ft_sm70_int8_64x64' flip ft_sm70_int8_64x64.in.bin
refuses 1 'the scales: byte 100' flip quant_int8_ties_64x64.s.f32.bin
refuses 1 'the codes: byte 100' flip quant_int8_ties_64x64.q.bin
refuses 1 'quant_int8_ties_64x64: expert 0, scalar' flip quant_int8_ties_64x64.p.bin
refuses 1 'No such file' rm trtmain_sm90_int8_64x64.out.bin
refuses 1 'has 4000 bytes; the shape wants 4096' truncate -s 4000 trtmain_sm90_int8_64x64.out.bin
refuses 1 "op 'transpose' is not known" sed -i 's/"preprocess"/"transpose"/' manifest.json
refuses 1 "producer 'cublas' is not known" sed -i 's/"ft"/"cublas"/' manifest.json
refuses 1 'ft has no layout for sm90' sed -i 's/"arch": 80/"arch": 90/' manifest.json
refuses 1 'K = 96: layout T of int8' sed -i 's/"K": 64/"K": 96/' manifest.json
refuses 2 'manifest.json' rm manifest.json
refuses 2 'manifest.json' truncate -s 2000 manifest.json
refuses 2 'lists no vector' bash -c 'echo "{\"format\": 1, \"cases\": []}" >manifest.json'
refuses 2 'lists no vector' bash -c 'echo "{\"format\": 1}" >manifest.json'
refuses 2 '"format" is not 1' sed -i 's/"format": 1/"format": 2/' manifest.json
exit $wrong
