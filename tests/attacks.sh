# shellcheck shell=bash disable=SC2154,SC2034
# Sourced by ./dev: what attacks the tool, and so can always go on: faults of the system, hostile files, faults planted in the code.
# `./dev test --sample` runs a sample of each, as CI does after the suite; `./dev test --long` runs all of each, for hours. Each
# program of tests/attacks/ takes a sample, or with --all everything, and ends with a line of what it counted (docs/reliability.md).

# collect_attacks SECONDS [--all]: SECONDS for each target of the fuzzer
collect_attacks() {
    local target seconds=$1 tool=(--tessera "$built/cli/tessera" --make "$built/tests/make/make_checkpoint")
    shift
    suite=attacks needs=nothing
    for target in tests/robustness/fuzz/fuzz_*.c; do
        target=$(basename "$target" .c)
        add "fuzz for $seconds s: ${target#fuzz_}" "FUZZ_SECONDS=$seconds" fuzz "$target"
    done
    needs=
    add "calls that fail, are short or interrupted" python3 tests/robustness/faults/faults.py "${tool[@]}" "$@"
    add "calls that fail (ASan, UBSan)" python3 tests/robustness/faults/faults.py --tessera "$sanitized/cli/tessera" "${tool[@]:2}" --faults 2 --most 3 "$@"
    add "power cuts after each call" python3 tests/robustness/faults/power.py "${tool[@]}" "$@"
    add "outputs, as their digests are kept" python3 tests/outputs/drift.py "${tool[@]}" "$@"
    add "hostile files through every command" .venv/bin/python tests/robustness/input/hostile.py "${tool[@]}" \
        --sanitized "$sanitized/cli/tessera" "$@"
    add "files that others read, read alike" .venv/bin/python tests/robustness/input/differential.py "${tool[@]}" "$@"
    add "the sandbox of the tool" python3 tests/robustness/paths/sandbox.py "${tool[@]}" "$@"
    add "environments of every command" python3 tests/robustness/paths/environment.py "${tool[@]}" "$@"
    add "faults planted in the code" .venv/bin/python tests/mutation/planted.py "${tool[@]}" "$@"
    add "one commit gives one binary" tests/outputs/reproducible.sh "$@"
}
