# shellcheck shell=bash disable=SC2034,SC2154
# Functions that build the fuzz targets. The sourcing script is in the root of the sources and sets $folder.
# The targets share one archive of the sources and one dictionary. The mutators (mutate_*.c) know JSON and packed archives.
seeds=tests/robustness/fuzz
targets=(headers pairing values archive result inputs manifest)
# shellcheck source=tests/needs.sh
. tests/needs.sh
clang=$(find_clang)
optimized=${FUZZ_OPTIMIZE:--O1}

compile() {
    "$clang" -std=gnu11 -gline-tables-only -fno-unroll-loops "$optimized" -I. -D_GNU_SOURCE -DTSR_VERSION='"fuzz"' -ffp-contract=off \
        -Werror=implicit-function-declaration -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all "$@"
}

# compile_source FILE: compiles a source of the archive, a kernel for the instruction set in its name (kernels/meson.build)
compile_source() {
    local set=() narrow=(-mavx2 -mfma -mf16c -mbmi -mbmi2) wide=(-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512cd)
    case "$1" in
    *_avx2.c) set=("${narrow[@]}") ;;
    *_avx512.c) set=("${narrow[@]}" "${wide[@]}") ;;
    *_vbmi.c) set=("${narrow[@]}" "${wide[@]}" -mavx512vbmi) ;;
    esac
    compile "${set[@]}" -c -o "$folder/objects/${1//\//-}.o" "$1"
}

# Prints the sources of the archive: common, formats and report, parsers outside them, and decoders with their kernels. The linker
# ignores their calls to other code; such a call would crash at once. MPI is a separate module that no parser needs.
list_sources() {
    local kernel
    find common formats report verify/values -name '*.c' ! -name transport_mpi.c
    printf '%s\n' convert/schemes/{dialects,schemes}.c convert/search/{rules,rules_match}.c convert/records/journal_records.c \
        verify/forward/tokens/{token_file,tokens}.c verify/manifest/{manifest_parse,manifest_sources}.c cli/batch/batch_jobs.c \
        lib/api_{call,checkpoint,values}.c convert/io/chunks.c convert/ops/rows/{row_decoder,scale_op}.c \
        quantize/{awq_gptq,fp6,fp8,integer,mx}_decode.c quantize/scales/mx_format.c kernels/cpu/cpu.c
    for kernel in block_fp8 e4m3_decode int4_columns int4_values int_decode int_quant mx_scales mx_values transpose; do
        echo "kernels/cpu/$kernel.c"
        case $(uname -m) in
        x86_64) find kernels/cpu/x86 -name "${kernel}_*.c" ;;
        aarch64) find kernels/cpu/arm -name "${kernel}_*.c" ;;
        esac
    done
}

# Compiles the sources into fuzzed.a and collects the words of the parsers in fuzzed.dict, if one of them changed.
build_sources() {
    [ ! -f "$folder/fuzzed.a" ] || [ -n "$(find common formats report convert verify cli kernels lib quantize "$seeds/build.sh" \
        '(' -name '*.[ch]' -o -name build.sh ')' -newer "$folder/fuzzed.a" -print -quit)" ] || return 0
    rm -rf "$folder/objects"
    mkdir "$folder/objects"
    export clang folder optimized
    export -f compile compile_source
    # shellcheck disable=SC2016
    list_sources | xargs -P "$(nproc)" -I{} bash -c 'compile_source "$1"' - {}
    list_sources | grep -v ^kernels/ | xargs grep -ohE '"[A-Za-z_][A-Za-z0-9_.-]{2,40}"' | grep -v '\.h"' | sort -u |
        sed 's/"\(.*\)"/"\\"\1\\""/' | cat $seeds/safetensors.dict - >"$folder/fuzzed.dict"
    rm -f "$folder/fuzzed.new"
    ar rc "$folder/fuzzed.new" "$folder"/objects/*.o
    mv "$folder/fuzzed.new" "$folder/fuzzed.a"
}

# link_target NAME [LIBRARY...]: links fuzz_NAME with libzstd, or with these libraries that contain it
link_target() {
    local mutator=json name=$1
    [ "$name" != archive ] || mutator=archive
    shift
    [ $# -gt 0 ] || set -- -lzstd
    compile -no-pie -Wl,--unresolved-symbols=ignore-all -o "$folder/fuzz_$name" "$seeds/fuzz_$name.c" "$seeds/mutate_$mutator.c" \
        "$folder/fuzzed.a" "$@" -lpthread -lm
}
