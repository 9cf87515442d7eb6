#!/bin/sh
# tests/counted.sh COMMAND...: runs a test of ./dev coverage. Its counters go to a new folder in $COUNTERS, since tests run side by side.
place=$(mktemp -d "$COUNTERS/XXXXXX") || exit 1
GCOV_PREFIX=$place GCOV_ERROR_FILE=$place/errors exec "$@"
