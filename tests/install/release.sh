# shellcheck shell=bash disable=SC2154
# Sourced by ./dev: makes the files of a release in dist/release/, and tests each in a minimal root.
#
# All are built from the source archive of HEAD. The same commit, built with the same packages, gives the same bytes.

release_usage="usage: dev release [--sign KEY] [--again] [--debs CODENAME[,CODENAME...] | --debs none]
       dev release --test bookworm|trixie|noble"

# Prints the version in meson.build.
release_version() { sed -n "s/^ *version: '\(.*\)',\$/\1/p" meson.build; }

# release_source FOLDER: writes the source archive to FOLDER, and unpacks it in $scratch/source
release_source() {
    local name
    name=tessera-$(release_version)
    git -c core.abbrev=12 archive --format=tar --prefix="$name/" HEAD | gzip -9n >"$1/$name.tar.gz" || return 1
    rm -rf "$scratch/source"
    mkdir -p "$scratch/source"
    tar -C "$scratch/source" --strip-components=1 -xzf "$1/$name.tar.gz"
}

# release_static FOLDER: archives the command as a static program, with its manual pages and completions
release_static() {
    local name
    name=tessera-$(release_version)-linux-$(uname -m)
    # `set -e` has no effect in a check, so each step is checked.
    (
        cd "$scratch/source" &&
            CC=gcc meson setup build -Dauto_features=disabled -Dhtml=enabled -During=enabled -Dprefer_static=true -Db_pie=false \
                -Dc_link_args=-static --prefix=/usr &&
            ninja -C build cli/tessera cli/manual/tessera.1 tests/make/make_checkpoint &&
            DESTDIR=$scratch/static meson install -C build --no-rebuild --tags runtime --quiet &&
            mkdir "$scratch/$name" &&
            mv "$scratch/static/usr/bin" "$scratch/static/usr/share" "$scratch/$name/" &&
            cp LICENSE CHANGELOG.md "$scratch/$name/" &&
            python3 python/sbom.py "$1/tessera-$(release_version).spdx.json" "$scratch/$name/bin/tessera"
    ) || return 1
    tar -C "$scratch" --sort=name --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw "--mtime=@$SOURCE_DATE_EPOCH" -cf - "$name" |
        gzip -9n >"$1/$name.tar.gz"
}

# release_wheel FOLDER [OPTIONS...]: builds a wheel, and tests it
release_wheel() {
    local folder=$1
    shift
    (cd "$scratch/source" && rm -rf dist && python/wheel.sh "$@") || return 1
    find "$scratch/source/dist" -name '*.whl' -exec cp {} "$folder" \;
}

# release_packages FOLDER CODENAME: builds Debian packages of version 0.1.0~CODENAME in a minimal root
release_packages() {
    local folder=$1 codename=$2 root=$scratch/root-$2
    [ -d "$root" ] || bootstrap "$codename" "$root" || return 1
    chroot "$root" useradd --create-home --shell /bin/bash newcomer || return 1
    cp -r "$scratch/source" "$root/home/newcomer/tessera" && rm -rf "$root"/home/newcomer/tessera/{build,dist}* || return 1
    sed -i "1s/^\(.*\)) [a-z]*;/\1~$codename) $codename;/" "$root/home/newcomer/tessera/debian/changelog" || return 1
    chroot "$root" chown -R newcomer /home/newcomer
    install_build_dependencies "$root" && build_package "$root" || return 1
    find "$root/home/newcomer" -maxdepth 1 -name '*.deb' ! -name '*-dbgsym_*' -exec cp {} "$folder" \;
    rm -rf "$root"
}

# release_sums FOLDER KEY: writes SHA256SUMS, and signs it with GnuPG if KEY is not empty
release_sums() {
    rm -f "$1"/SHA256SUMS*
    (cd "$1" && find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum -- >"$scratch/sums") || return 1
    mv "$scratch/sums" "$1/SHA256SUMS"
    [ -z "$2" ] || gpg --batch --yes --local-user "$2" --armor --detach-sign -o "$1/SHA256SUMS.asc" "$1/SHA256SUMS"
}

# make_release FOLDER KEY CODENAMES: builds all files. Prints what is left out, and counts it as failed.
make_release() {
    local folder=$1 codename
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH WHEEL_ENVIRONMENT=$here/.venv-wheel CCACHE_DISABLE=1
    mkdir -p "$folder"
    check "source archive" release_source "$folder"
    check "static program, and its bill of materials" release_static "$folder"
    check "wheel for $(uname -m)" release_wheel "$folder"
    check "wheel for aarch64" release_wheel "$folder" --arch aarch64
    if have nvcc; then
        mkdir -p "$folder/cuda"
        check "wheel for $(uname -m) with CUDA" release_wheel "$folder/cuda" --cuda
    else
        echo "left out: the wheel with CUDA, since nvcc is not in PATH"
    fi
    for codename in $3; do
        check "packages for $codename" release_packages "$folder" "$codename"
    done
    check "digests${2:+, signed}" release_sums "$folder" "$2"
}

# Compares the files of a second build with the first.
same_release() {
    local file
    for file in $(cd "$1" && find . -type f ! -name '*.asc'); do
        cmp "$1/$file" "$2/$file" || return 1
    done
}

# use_release ROOT: installs each file of the release in turn, and runs the tutorial with it
use_release() {
    local root=$1 codename=$2 place=$1/home/newcomer/tessera/release
    cp -r dist/release "$place"
    inside "$root" root sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null' || return 1
    gzip -dc "$place"/tessera-*-linux-"$(uname -m)".tar.gz | tar -C "$root/opt" -xf - || return 1
    build/tests/make/make_checkpoint llama --scale tiny -o "$root/tmp/model" || return 1
    check "$codename: static program" inside "$root" newcomer sh -c 'PATH=$(echo /opt/tessera-*/bin):$PATH tests/install/tutorial.sh /tmp/model'
    # shellcheck disable=SC2016
    check "$codename: wheel" inside "$root" newcomer sh -ec 'python3 -m venv /tmp/venv
        /tmp/venv/bin/pip install -q release/tessera-*manylinux*_$(uname -m).whl
        PATH=/tmp/venv/bin:$PATH tests/install/tutorial.sh /tmp/model && /tmp/venv/bin/python -c "import tessera; print(tessera.version())"'
    # shellcheck disable=SC2016
    check "$codename: source archive" inside "$root" root sh -ec '
        apt-get install -y -qq --no-install-recommends gcc libc6-dev libjs-chart.js liburing-dev libxxhash-dev libzstd-dev meson ninja-build pkgconf >/dev/null
        mkdir /tmp/source && tar -C /tmp/source --strip-components=1 -xzf $(ls release/tessera-*.tar.gz | grep -v linux) && cd /tmp/source
        meson setup build && ninja -C build && meson install -C build --no-rebuild --quiet && ldconfig
        tests/install/tutorial.sh /tmp/model && ninja -C build uninstall >/dev/null && ! command -v tessera'
    # shellcheck disable=SC2016
    check "$codename: packages" inside "$root" root sh -ec '
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ./release/*~'"$codename"'*_$(dpkg --print-architecture).deb >/dev/null
        tests/install/tutorial.sh /tmp/model && man_page=/usr/share/man/man1/tessera-verify-gemm.1.gz && test -f $man_page'
}

release() {
    local key='' again='' codenames='bookworm trixie noble' codename='' root
    while [ $# -gt 0 ]; do
        case "$1 ${2:-}" in
        "--again "*) again=yes; shift ;;
        "--sign "?*) key=$2; shift 2 ;;
        "--debs none") codenames=; shift 2 ;;
        "--debs "?*) codenames=${2//,/ }; shift 2 ;;
        "--test bookworm" | "--test trixie" | "--test noble") codename=$2; shift 2 ;;
        *) echo "$release_usage" >&2; exit 2 ;;
        esac
    done
    need_scratch
    [ -z "$codename$again" ] || [ -f dist/release/SHA256SUMS ] ||
        { echo "dev: dist/release/ has no release: run './dev release' first" >&2; exit 1; }
    if [ -n "$codename" ]; then
        check "digests" sh -c 'cd dist/release && sha256sum --quiet -c SHA256SUMS'
        need_for build
        build build tests/make/make_checkpoint --
        prepare_root release "$codename"
        use_release "$root" "$codename"
        printf '\n%d passed, %d failed\n' "$passed" "$failed"
        [ "$failed" = 0 ]
        return
    fi
    [ -z "$(git status --porcelain)" ] || { echo "dev: the release is made of HEAD: commit or remove what 'git status' lists" >&2; exit 1; }
    [ -z "$codenames" ] || [ "$(id -u)" = 0 ] || { echo "dev: packages are built in changed roots: run it as root, or with --debs none" >&2; exit 1; }
    need_for build
    if [ -n "$again" ]; then
        make_release "$scratch/again" "" "$codenames"
        check "the same bytes as in dist/release" same_release dist/release "$scratch/again"
    else
        rm -rf dist/release
        make_release "$here/dist/release" "$key" "$codenames"
        (cd dist/release && ls -l)
    fi
    printf '\n%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" = 0 ]
}
