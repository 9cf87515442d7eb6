#!/bin/sh
# Runs a command, and reports a skipped test if the command finds no usable GPU (exit code 5): tests/gpu/run.sh COMMAND...
code=0
"$@" || code=$?
[ "$code" != 5 ] || { echo "skipped: no usable GPU"; exit 77; }
exit "$code"
