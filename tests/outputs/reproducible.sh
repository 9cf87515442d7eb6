#!/usr/bin/env bash
# One commit gives one binary: it is built twice, in folders of other names and depths, one after the other, with another umask, locale,
# time zone and number of jobs; the tool and both libraries have to be the same bytes. Without CUDA, whose compiler is not asked for that,
# and without ccache. With --all, which takes some minutes of CPU time; a sample is the program that makes checkpoints for tests.
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
# The compared parts must exist: a build of another commit contains another commit.
[ "${1:-}" != --all ] || grep -q "${commit:0:12}" "$place/one/build/cli/tessera" || { echo "FAILED: the tool does not know its commit"; differ=$((differ + 1)); }
echo "$same passed, $differ failed"
[ "$differ" = 0 ]
