#!/usr/bin/env bash
# libraries.sh FOLDER [PACKAGE...]: fetches the libraries of the aarch64 build, and these packages, into FOLDER/root by packages.sh.
# Writes their path for Meson to FOLDER/place.ini. If a package cannot be fetched, it prints one line and exits with code 77.
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
mkdir -p "$1"
folder=$(realpath "$1")
shift
[ ! -e "$folder/place.ini" ] || exit 0
"$here/packages.sh" "$folder" libzstd-dev libxxhash-dev "$@"
# Removes the shared libraries, so that the static ones are linked.
rm -rf "$folder"/root/usr/lib/aarch64-linux-gnu/*.so*
printf "[constants]\nlibraries = '%s'\n" "$folder/root/usr" >"$folder/place.ini"
