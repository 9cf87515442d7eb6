#!/bin/sh
# tests/run.sh [--needs FILE]... [--attack] COMMAND...: runs a test in the root of the sources, for `meson test`.
# It is skipped (exit code 77) if FILE is missing. --attack adds --all to the command if TESSERA_LONG is set.
set -u
cd "$(dirname "$0")/.." || exit 1
while :; do
    case $1 in
    --needs)
        [ -e "$2" ] || { echo "skipped: there is no $2, which './dev test' makes"; exit 77; }
        shift 2
        ;;
    --attack)
        shift
        [ -z "${TESSERA_LONG:-}" ] || set -- "$@" --all
        ;;
    *) break ;;
    esac
done
# Tests run side by side. NumPy and PyTorch get one thread each, because their threads wait in busy loops.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
# Undefined behaviour ends a program with an exit code that the tool never returns.
export ASAN_OPTIONS=detect_leaks=1:exitcode=99:handle_sigill=1:allow_addr2line=1
export UBSAN_OPTIONS=halt_on_error=1:exitcode=99:print_stacktrace=1
unset MALLOC_PERTURB_
exec "$@"
