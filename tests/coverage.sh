# shellcheck shell=bash disable=SC2154,SC2034
# Sourced by ./dev: which lines and branches the checks of tests/suite.sh run, counted by gcov in a build of its own.

# counted SUITE COMMAND: whether the check runs the build that counts, and no other. Where allocations fail, gcov itself fails.
counted() {
    case "$1" in
    unit | golden | interop | bad_input | crash) ;;
    front_door) [[ $2 = *python.py* || $2 = *cluster.py* ]] || return 1 ;;
    *) return 1 ;;
    esac
    [[ $2 != *build-clang-asan* && $2 != *build-tsan* && $2 != other_packages* && $2 != valgrind* && $2 != *allocations.py* ]]
}

# merge_counters FOLDER: adds up what the checks have left in the folders of FOLDER, for gcov to find in build-coverage/. A process
# that was killed while it wrote leaves files that cannot be added: they are left out.
merge_counters() {
    local one all=$1/all
    find build-coverage -name '*.gcda' -delete
    for one in "$1"/[0-9]*; do
        [ -d "$one$built" ] || continue
        find "$one$built" -name '*.gcda' -size -1 -delete
        if [ ! -d "$all" ]; then
            cp -r "$one$built" "$all"
        elif gcov-tool merge -o "$1/sum" "$all" "$one$built" >/dev/null 2>&1; then
            rm -rf "$all"
            mv "$1/sum" "$all"
        else
            rm -rf "$1/sum"
            echo "left out: $one, whose counters are damaged" >&2
        fi
    done
    cp -r "$all/." build-coverage
}

# coverage [NAME...]: a check that fails here is told, and is for './dev test' to judge.
coverage() {
    local i place
    need_for coverage
    venv
    choose_place
    need_scratch
    set_environment
    export TESSERA_SWEEP_STEP=7
    built=$here/build-coverage sanitized=$here/build-coverage
    build build-coverage -- -Db_coverage=true -Doptimization=1 -Dcuda=disabled
    collect
    waiting=()
    for i in "${!names[@]}"; do
        if ! counted "${suites[i]}" "${commands_of[i]}" || ! selected "${names[i]}" "$@"; then continue; fi
        place=$scratch/counters/$i
        mkdir -p "$place"
        commands_of[i]="GCOV_PREFIX=$place GCOV_ERROR_FILE=$place/errors ${commands_of[i]/#unit_tests build /unit_tests build-coverage }"
        waiting+=("$i")
    done
    [ ${#waiting[@]} -gt 0 ] || { echo "dev: no check that counts has '$*' in its name" >&2; exit 2; }
    run_all
    merge_counters "$scratch/counters"
    gcovr --root . --object-directory build-coverage --gcov-ignore-parse-errors --exclude tests/ --exclude build-coverage/ \
        --json "$scratch/coverage.json" build-coverage >"$scratch/gcovr.log" 2>&1 # counts that threads lost: a line for each
    python3 tests/coverage.py "$scratch/coverage.json"
    cp "$scratch/coverage.json" build-coverage/coverage.json
}
