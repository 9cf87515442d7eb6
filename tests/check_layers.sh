#!/usr/bin/env bash
# Fails on an include that points up: formats <- kernels <- quantize <- convert <- cli; formats, kernels <- verify <- cli.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
wrong=0
forbid() {
    local folder=$1 upper=$2
    [ -d "$folder" ] || return 0
    if grep -rnE "^[[:space:]]*#[[:space:]]*include[[:space:]]+\"($upper)/" "$folder" --include='*.[ch]' \
        --include='*.cu' --include='*.cuh' --include='*.inc'; then
        echo "$folder must not include $upper"
        wrong=1
    fi
}
forbid formats 'kernels|quantize|convert|verify|cli'
forbid kernels 'quantize|convert|verify|cli'
forbid quantize 'convert|verify|cli'
forbid convert 'verify|cli'
forbid verify 'quantize|convert|cli'
for folder in formats kernels quantize convert verify; do
    [ -d "$folder" ] || continue
    if grep -rnE '(^|[^a-z_])(exit|printf|puts)\(' "$folder" --include='*.c'; then
        echo "$folder must not print or exit"
        wrong=1
    fi
done
# Names from files reach a terminal only through cli/output.c, which makes them visible and looks at every write.
if grep -nE '(^|[^a-z_])(v?f?printf|f?puts|putchar|fputc|putc|fwrite|perror)\(' cli/*.c | grep -v '^cli/output\.c:'; then
    echo "cli prints through cli/output.h: tsr_print and tsr_tell"
    wrong=1
fi
exit $wrong
