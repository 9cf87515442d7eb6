#!/usr/bin/env bash
# packages.sh FOLDER [--whole] PACKAGE...: fetches packages of arm64 from where apt gets this machine's own, with --whole all that they
# need as well, and unpacks them into FOLDER/root. apt learns of arm64 by its own state and cache in FOLDER: nothing of the
# system changes, and it needs no root. If something cannot be fetched, one line says so, and the exit code is 77.
#   ARM64_MIRROR   archive to fetch from, where the one that the system uses carries no arm64
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1")
shift
whole=
[ "$1" != --whole ] || { whole=yes; shift; }

skip() { echo "skipped: $*"; exit 77; }
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "no apt-get to fetch $* for arm64"

rm -rf "${folder:?}"/*
mkdir -p "$folder"/{root,state/lists/partial,cache/archives/partial,sources,packages}
: >"$folder/status" # nothing is installed: what is fetched does not depend on what this machine has

# Ubuntu keeps arm64 in an archive of its own, beside the one of x86-64.
copy_sources() {
    local file edit=
    if [ -n "${ARM64_MIRROR:-}" ]; then
        edit="s,[a-z]*://[^ ]*,$ARM64_MIRROR,"
    elif (. /etc/os-release && [ "${ID:-}" = ubuntu ]); then
        edit='s,://[^ /]*\.\([^ ./]*\.[^ ./]*\)/ubuntu/*,://ports.\1/ubuntu-ports/,'
    fi
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
        [ ! -f "$file" ] || sed -e "$edit" "$file" >"$folder/sources/${file##*/}"
    done
}
copy_sources

private() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Acquire::Languages=none -o APT::Sandbox::User= \
        -o Dir::State="$folder/state" -o Dir::State::status="$folder/status" -o Dir::Cache="$folder/cache" \
        -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$folder/sources" -o Acquire::Retries=1 "$@"
}

fetch() {
    [ -z "$whole" ] || { private -y --no-install-recommends --download-only install "$@" && mv "$folder"/cache/archives/*.deb "$folder/packages/"; return; }
    (cd "$folder/packages" && private download "$@")
}

said=$folder/said
private update >"$said" 2>&1 || true
fetch "$@" >>"$said" 2>&1 ||
    skip "apt-get fetched no $* for arm64 ($(grep -E '^[EW]:' "$said" | tail -1); ARM64_MIRROR names another archive)"
for file in "$folder"/packages/*.deb; do
    dpkg-deb -x "$file" "$folder/root"
done
rm -rf "$folder"/{state,cache,packages}
