#!/bin/sh
# tests/skip.sh REASON: ends a test as skipped, and prints the reason
echo "skipped: $1"
exit 77
