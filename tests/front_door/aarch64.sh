#!/usr/bin/env bash
# aarch64.sh FOLDER: builds for aarch64 and compares, under qemu, with the build in FOLDER: the golden vectors, and the bytes of
# every scheme and of an archive. Needs a cross compiler, qemu-user and the two libraries for arm64; without them it is skipped (77).
set -euo pipefail
native=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
libraries=/usr/lib/aarch64-linux-gnu
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || true)
if ! command -v aarch64-linux-gnu-gcc >/dev/null || [ -z "$qemu" ] || ! [ -e "$libraries/pkgconfig/libzstd.pc" ]; then
    echo "skipped: no aarch64-linux-gnu-gcc, qemu-aarch64 or arm64 libraries (packages gcc-aarch64-linux-gnu qemu-user" \
        "libzstd-dev:arm64 libxxhash-dev:arm64)"
    exit 77
fi
scratch=$(mktemp -d "${TMPDIR:-/tmp}/tessera.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
if ! [ -f build-aarch64/build.ninja ]; then
    cat >"$scratch/cross.ini" <<END
[binaries]
c = 'aarch64-linux-gnu-gcc'
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkg-config = '$(command -v pkg-config)'
[properties]
pkg_config_libdir = ['$libraries/pkgconfig', '/usr/share/pkgconfig']
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
END
    meson setup --cross-file "$scratch/cross.ini" build-aarch64 -Dwerror=true -Dauto_features=disabled
fi
ninja -C build-aarch64 cli/tessera tests/golden/check_golden >"$scratch/log" || { cat "$scratch/log"; exit 1; }
foreign() { "$qemu" -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH="$libraries" "build-aarch64/$1" "${@:2}"; }

foreign tests/golden/check_golden tests/golden/vectors | tail -1
"$native/tests/make/make_checkpoint" deepseek-v3 --scale tiny -o "$scratch/model" >/dev/null
same=0
# compare NAME COMMAND...: the command writes what -o names
compare() {
    local name=$1
    shift
    "$native/cli/tessera" "$@" -o "$scratch/$name" --quiet >/dev/null
    foreign cli/tessera "$@" -o "$scratch/$name-arm" --quiet >/dev/null
    rm -r "$scratch/$name/.tessera" "$scratch/$name-arm/.tessera"
    diff -r "$scratch/$name" "$scratch/$name-arm"
    same=$((same + 1))
}
for scheme in fp8-block fp8-channel int8-channel int8-weight-only int4-weight-only; do
    compare "$scheme" quantize "$scratch/model" --scheme "$scheme"
done
compare archive convert "$scratch/model" --to archive --shuffle
foreign cli/tessera verify "$scratch/fp8-block-arm" --against "$scratch/model" --quiet >/dev/null
echo "$((same + 2)) passed, 0 failed"
