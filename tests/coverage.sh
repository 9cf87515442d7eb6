# shellcheck shell=bash disable=SC2154
# Sourced by ./dev: counts by gcov which lines and branches the tests of the suites `unit` and `counted` run.

# merge_counters FOLDER: adds up the counters in the folders of FOLDER, in build-coverage/, where gcov looks for them. Counters of a
# process that was killed while it wrote them are left out.
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
            echo "left out: $one, whose counters are damaged" >&2
        fi
    done
    cp -r "$all/." build-coverage
}

# coverage: failed tests are ignored here; './dev test' reports them.
coverage() {
    need_for coverage
    venv
    choose_place
    need_scratch
    export TESSERA_SWEEP_STEP=7 COUNTERS=$scratch/counters
    mkdir "$COUNTERS"
    build build-coverage -- -Db_coverage=true -Doptimization=1 -Dcuda=disabled
    meson test -C build-coverage --no-rebuild --suite unit --suite counted --num-processes $(($(processors) + 1)) \
        --wrapper "$here/tests/counted.sh" || true
    merge_counters "$COUNTERS"
    gcovr --root . --object-directory build-coverage --gcov-ignore-parse-errors --exclude tests/ --exclude build-coverage/ \
        --json "$scratch/coverage.json" build-coverage >"$scratch/gcovr.log" 2>&1 # prints a line for each count that threads lost
    python3 tests/coverage.py "$scratch/coverage.json"
    cp "$scratch/coverage.json" build-coverage/coverage.json
}
