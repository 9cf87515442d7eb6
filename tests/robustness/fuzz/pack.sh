#!/usr/bin/env bash
# pack.sh DIR: puts all fuzz targets into DIR, at -O2 with AddressSanitizer and UBSan, with their seeds, the dictionary, and long.sh as run.sh.
# The programs need the C library only, so DIR can be copied to another machine and run there: DIR/run.sh CORES SECONDS OUT.
set -euo pipefail
[ $# = 1 ] || { echo "usage: pack.sh DIR" >&2; exit 2; }
mkdir -p "$1"
place=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
have() { command -v "$1" >/dev/null 2>&1; }
folder=$(mktemp -d "${TMPDIR:-/tmp}/tessera.XXXXXX")
trap 'rm -rf "$folder"' EXIT
FUZZ_OPTIMIZE=-O2
# shellcheck source=tests/robustness/fuzz/build.sh
. tests/robustness/fuzz/build.sh
build_sources
for target in "${targets[@]}"; do
    link_target "$target" -static-libstdc++ -static-libgcc -l:libzstd.a -Wl,--compress-debug-sections=zlib
    mv "$folder/fuzz_$target" "$place/"
done
cp "$folder/fuzzed.dict" "$place/"
cp "$seeds/long.sh" "$place/run.sh"
rm -rf "$place/seeds"
cp -r "$seeds/corpus" "$place/seeds"
