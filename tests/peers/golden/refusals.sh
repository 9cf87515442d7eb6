#!/usr/bin/env bash
# Tests that check_golden fails for damaged test vectors: refusals.sh CHECKER. Each case damages a copy in one place.
set -euo pipefail
checker=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")"
folder=vectors
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wrong=0

# refuses CODE TEXT COMMAND...: COMMAND damages the copy of $folder; the checker must then print TEXT and exit with CODE
refuses() {
    local code=$1 text=$2 got=0
    shift 2
    rm -rf "$scratch/copy"
    cp -r "$folder" "$scratch/copy"
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
refuses 1 "unknown producer 'cublas'" sed -i 's/"ft"/"cublas"/' manifest.json
refuses 1 'ft has no layout for sm90' sed -i 's/"arch": 80/"arch": 90/' manifest.json
refuses 1 'K = 96: layout T of int8' sed -i 's/"K": 64/"K": 96/' manifest.json
refuses 2 'manifest.json' rm manifest.json
refuses 2 'manifest.json' truncate -s 2000 manifest.json
refuses 2 'lists no vector' bash -c 'echo "{\"format\": 1, \"cases\": []}" >manifest.json'
refuses 2 'lists no vector' bash -c 'echo "{\"format\": 1}" >manifest.json'
refuses 2 '"format" is not 1' sed -i 's/"format": 1/"format": 2/' manifest.json

# Tensors in the formats of checkpoints; the last byte of a file is a tensor's.
folder=vectors-4bit
flip_last() { printf '\xA5' | dd of="$1" bs=1 seek=$(($(stat -c %s "$1") - 1)) conv=notrunc status=none; }
refuses 0 '0 failed' true
refuses 1 "FAILED  mxfp4_ct_encode_64x128: scalar: 'model.layers.0.mlp.down_proj.weight_packed': element 4095 is" \
    flip_last mxfp4_ct_encode_64x128.in.safetensors
refuses 1 "weight_scale': element 255 is 0x76, expected 0xA5" flip_last mxfp4_ct_encode_64x128.out.safetensors
refuses 1 'FAILED  table_e8m0: scalar: ' flip_last table_e8m0.out.safetensors
refuses 1 'FAILED  nvfp4_modelopt_to_ct_64x128: scalar: ' flip_last nvfp4_modelopt_to_ct_64x128.out.safetensors
refuses 1 'mxfp4_v4_to_fp8_256x256: scalar: it has to be refused, and was made' \
    sed -i 's/"op": "convert"/"refused": true, "op": "convert"/' manifest.json
refuses 1 'refuse_mxfp4_v4_to_fp8: the input: ' rm refuse_mxfp4_v4_to_fp8.in.safetensors
refuses 1 'refuse_mxfp4_v4_to_fp8: what is expected: ' sed -i 's/"refused": true/"refused": false/' manifest.json
refuses 1 'gptq_decode_g32_64x96: what is expected: ' truncate -s 1000 gptq_decode_g32_64x96.out.safetensors
refuses 1 "kind 'mxfp6' is not known" sed -i 's/"kind": "mxfp4-ct"/"kind": "mxfp6"/' manifest.json
refuses 1 "is U8 [64, 64], expected U8 [13, 32]" sed -i 's/mxfp4_ct_encode_64x128.out/mxfp4_ct_encode_edges_13x64.out/' manifest.json
exit $wrong
