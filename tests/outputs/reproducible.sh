#!/usr/bin/env bash
# reproducible.sh [--all]: builds the commit twice, and checks that the binaries are identical.
# The builds differ in folder, umask, locale, time zone and number of jobs. They do not use CUDA, because nvcc is not reproducible,
# nor ccache. Without --all only make_checkpoint is built; --all builds the tool and both libraries in some minutes.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[ -e "$root/.git" ] || { echo "skipped: no repository to take a commit from"; exit 77; }
commit=$(git -C "$root" rev-parse HEAD)
place=$(mktemp -d "${TMPDIR:-/tmp}/tessera-reproducible.XXXXXX")
trap 'rm -rf "$place"' EXIT
export CCACHE_DISABLE=1
targets=(tests/make/make_checkpoint)
[ "${1:-}" != --all ] ||
    targets=(cli/tessera "lib/libtessera.so.$(sed -n "s/^ *version: .\([0-9.]*\).,\$/\1/p" "$root/meson.build")" lib/libtessera.a)

# build FOLDER UMASK JOBS LOCALE ZONE
build() {
    (
        umask "$2"
        export LC_ALL=$4 TZ=$5
        git clone -q --no-hardlinks "$root" "$1"
        cd "$1"
        git checkout -q --detach "$commit"
        if ! CC=${CC:-gcc} meson setup build -Dauto_features=disabled >../log 2>&1 || ! ninja -C build -j "$3" "${targets[@]}" >>../log 2>&1; then
            tail -40 ../log
            exit 1
        fi
    )
}

mkdir -p "$place/another/and deeper"
build "$place/one" 077 2 C UTC
build "$place/another/and deeper/tree" 022 5 C.UTF-8 Asia/Kathmandu
same=0 differ=0
for target in "${targets[@]}"; do
    if cmp "$place/one/build/$target" "$place/another/and deeper/tree/build/$target"; then
        same=$((same + 1))
    else
        differ=$((differ + 1))
    fi
done
# Checks that the tool was built from this commit.
[ "${1:-}" != --all ] || grep -q "${commit:0:12}" "$place/one/build/cli/tessera" || { echo "FAILED: the tool has another commit"; differ=$((differ + 1)); }
echo "$same passed, $differ failed"
[ "$differ" = 0 ]
