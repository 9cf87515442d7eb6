#!/usr/bin/env bash
# packages.sh FOLDER [--whole] PACKAGE...: fetches packages for arm64 and unpacks them into FOLDER/root; --whole adds dependencies.
# It uses the archives of this system, but keeps the state and cache of apt in FOLDER. It changes nothing else and needs no root.
# If a package cannot be fetched, it prints one line and exits with code 77.
#   ARM64_MIRROR   archive to fetch from, if the system's archive has no arm64
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
: >"$folder/status" # no package counts as installed, so the result does not depend on this machine

# Copies the lists of sources. Ubuntu has a separate archive for arm64.
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

apt_for_arm64() {
    apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Acquire::Languages=none -o APT::Sandbox::User= \
        -o Dir::State="$folder/state" -o Dir::State::status="$folder/status" -o Dir::Cache="$folder/cache" \
        -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$folder/sources" -o Acquire::Retries=1 "$@"
}

fetch() {
    [ -z "$whole" ] || { apt_for_arm64 -y --no-install-recommends --download-only install "$@" && mv "$folder"/cache/archives/*.deb "$folder/packages/"; return; }
    (cd "$folder/packages" && apt_for_arm64 download "$@")
}

log=$folder/log
apt_for_arm64 update >"$log" 2>&1 || true
fetch "$@" >>"$log" 2>&1 ||
    skip "apt-get fetched no $* for arm64 ($(grep -E '^[EW]:' "$log" | tail -1); ARM64_MIRROR names another archive)"
for file in "$folder"/packages/*.deb; do
    dpkg-deb -x "$file" "$folder/root"
done
rm -rf "$folder"/{state,cache,packages}
