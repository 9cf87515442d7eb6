# shellcheck shell=bash disable=SC2154
# Sourced by ./dev: measures with gcov the lines and branches that the suites `unit` and `counted` run.

# merge_counters FOLDER: sums the counters in the subfolders of FOLDER, and writes them to build-coverage/, where gcov reads them.
# Omits damaged counters, as of a process that was killed.
merge_counters() {
    local one all=$1.all built=$here/build-coverage
    find build-coverage -name '*.gcda' -delete
    for one in "$1"/*/; do
        one=${one%/}
        [ -d "$one$built" ] || continue
        find "$one$built" -name '*.gcda' -size -1 -delete
        if [ ! -d "$all" ]; then
            cp -r "$one$built" "$all"
        elif gcov-tool merge -o "$1.sum" "$all" "$one$built" >/dev/null 2>&1; then
            rm -rf "$all"
            mv "$1.sum" "$all"
        else
            rm -rf "$1.sum"
            echo "skipped: $one, whose counters are damaged" >&2
        fi
    done
    cp -r "$all/." build-coverage
}

# Implements ./dev coverage. Ignores failed tests, which ./dev test reports.
coverage() {
    need_for coverage
    venv
    choose_tmpdir
    need_scratch
    export TESSERA_SWEEP_STEP=7 COUNTERS=$scratch/counters
    mkdir "$COUNTERS"
    build build-coverage -- -Db_coverage=true -Doptimization=1 -Dcuda=disabled
    meson test -C build-coverage --no-rebuild --suite unit --suite counted --num-processes $(($(processors) + 1)) \
        --wrapper "$here/tests/counted.sh" || true
    merge_counters "$COUNTERS"
    gcovr --root . --object-directory build-coverage --gcov-ignore-parse-errors --exclude tests/ --exclude build-coverage/ \
        --json "$scratch/coverage.json" build-coverage >"$scratch/gcovr.log" 2>&1 # gcovr warns about each count that threads lost
    python3 tests/coverage.py "$scratch/coverage.json"
    cp "$scratch/coverage.json" build-coverage/coverage.json
}
