#!/bin/sh
# tests/gpu/run.sh COMMAND...: runs it; where it finds no usable GPU (exit 5), the test is skipped, and says so.
code=0
"$@" || code=$?
[ "$code" != 5 ] || { echo "skipped: no usable GPU"; exit 77; }
exit "$code"
