#!/usr/bin/env bash
# libraries.sh FOLDER [PACKAGE...]: fetches what the aarch64 build is linked with, and these packages, into FOLDER/root, as packages.sh
# does, and writes for Meson where they are: FOLDER/place.ini. If something cannot be fetched, one line says so, and the exit code is 77.
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
mkdir -p "$1"
folder=$(realpath "$1")
shift
[ ! -e "$folder/place.ini" ] || exit 0
"$here/packages.sh" "$folder" libzstd-dev libxxhash-dev "$@"
# Without the shared ones, the static ones are linked.
rm -rf "$folder"/root/usr/lib/aarch64-linux-gnu/*.so*
printf "[constants]\nlibraries = '%s'\n" "$folder/root/usr" >"$folder/place.ini"
