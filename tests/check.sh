#!/usr/bin/env bash
# tests/check.sh BUILD SUITE NAME: one check of tests/suite.sh, run against that build. `meson test` calls it, so that one list
# of checks exists. tests/check.sh alone lists what one build can be asked: SUITE|NAME, a line each.
# Exit code 77: skipped, for want of something that the last line names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
here=$PWD
[ $# = 0 ] || built=$(realpath "$1")
built=${built:-$here/build}
sanitized=$built
scratch=
have() { command -v "$1" >/dev/null 2>&1; }
need_scratch() { scratch=$(mktemp -d "${TMPDIR:-/tmp}/tessera.XXXXXX"); }
trap '[ -z "$scratch" ] || rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
# shellcheck source=tests/needs.sh
. tests/needs.sh
# shellcheck source=tests/suite.sh
. tests/suite.sh

# Prints what the command needs and this machine lacks.
lacking() {
    case $1 in
    *.venv/bin/python*) [ -x .venv/bin/python ] || echo "the Python environment .venv, which './dev test' makes" ;;
    style\ *) [ -x .venv/bin/clang-format ] || echo "the Python environment .venv, which './dev test' makes" ;;
    other_packages*) [ -f .venv-packages/stamp ] || echo "the Python environment .venv-packages, which './dev test' makes" ;;
    fuzz\ *) has_fuzzer || echo "clang with libFuzzer (clang, $(clang_runtime))" ;;
    valgrind*) have valgrind || echo "valgrind" ;;
    esac
}

collect
for i in "${!names[@]}"; do
    # Those need builds of their own; unit tests are meson's already.
    case ${names[i]} in unit* | *"(ASan, UBSan)" | TSan*) continue ;; esac
    if [ $# = 0 ]; then
        echo "${suites[i]}|${names[i]}"
    elif [ "${suites[i]}|${names[i]}" = "$2|$3" ]; then
        missing=$(lacking "${commands_of[i]}")
        [ -z "$missing" ] || { echo "skipped: $3, for want of $missing"; exit 77; }
        need_scratch
        set_environment
        code=0
        (eval "${commands_of[i]}") </dev/null || code=$?
        exit "$code"
    fi
done
[ $# = 0 ] || { echo "tests/suite.sh has no check '$3' of the suite '$2'"; exit 1; }
