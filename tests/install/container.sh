#!/usr/bin/env bash
# container.sh MAKE_CHECKPOINT: builds the image of the Dockerfile with docker or podman, and uses it as its user.
# It is skipped without a container engine, and if the base image can be neither found nor fetched. ./dev deb runs the Dockerfile's commands
# in a minimal root, which needs no engine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
engine=
for name in docker podman; do
    if command -v "$name" >/dev/null && "$name" info >/dev/null 2>&1; then
        engine=$name
        break
    fi
done
[ -n "$engine" ] || { echo "skipped: no container engine: neither docker nor podman answers"; exit 77; }
base=debian:$(sed -n 's/^ARG DEBIAN=//p' Dockerfile)-slim
"$engine" image inspect "$base" >/dev/null 2>&1 || "$engine" pull "$base" || { echo "skipped: $engine cannot fetch $base"; exit 77; }
place=$(mktemp -d "${TMPDIR:-/tmp}/tessera.XXXXXX") image=tessera-test-$$
trap 'rm -rf "$place"; "$engine" image rm -f "$image" >/dev/null 2>&1 || true' EXIT
git archive HEAD | tar -x -C "$place" --one-top-level=source
"$engine" build -t "$image" "$place/source"
"$1" llama --scale tiny -o "$place/model"
chmod -R a+rX "$place"
# shellcheck disable=SC2016
"$engine" run --rm -v "$place/model:/models/model:ro" "$image" sh -ec '
    test "$(id -u)" = 1000 && test "$(pwd)" = /work && ! test -w /usr/local
    tessera --version --json
    tessera inspect /models/model
    tessera quantize /models/model -o out --quiet
    tessera verify out --against /models/model'
echo "1 passed"
