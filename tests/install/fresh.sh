# shellcheck shell=bash disable=SC2154
# Sourced by ./dev: runs demo and test in a minimal root as root, as a user with sudo, and as a user without.
# debootstrap makes the root. Separate namespaces end all mounts and processes with the test.
#   FRESH_MIRROR   archive to install from (default: apt's archive if it has that distribution, else debootstrap's default)
#   FRESH_KEYRING  keys that sign the archive, if debootstrap does not find them; those of Ubuntu's archive are fetched
#   FRESH_ROOT     an existing root, which is used and kept

fresh_usage="usage: dev fresh bookworm|trixie|noble [NAME...]    (NAME: a part of the names of the checks to run; default: all)"

passed=0 failed=0

# check NAME COMMAND...: runs a check, counts it in `passed` or `failed`, and prints the end of its output if it failed
check() {
    local name=$1 log started=$SECONDS
    shift
    need_scratch
    log=$scratch/check.log
    if "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        printf 'ok      %-60s %4d s\n' "$name" $((SECONDS - started))
    else
        failed=$((failed + 1))
        printf 'FAILED  %s\n' "$name"
        tail -60 "$log"
    fi
}

# apt_mirror DISTRIBUTION: prints the archive that apt uses, if this system has the distribution
apt_mirror() {
    local distribution=$1 id codename
    id=$(. /etc/os-release 2>/dev/null && echo "${ID:-}")
    codename=$(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}")
    [ "$id" = "$distribution" ] || return 0
    apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 2>/dev/null |
        awk -v release="$codename" '$2 == release { print $1; exit }'
}

# ubuntu_keys MIRROR: prints the path of a file with Ubuntu's keys, which debootstrap needs. Debian has no package of them, so they
# come from a package of the archive, which is checked by its digest. The key that signs noble is
# F6EC B376 2474 EDA9 D21B 7022 8719 20D1 991B C93C.
ubuntu_keys() {
    local mirror=$1 installed=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    local package=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
    local digest=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
    [ ! -f "$installed" ] || { echo "$installed"; return; }
    # Reads the default archive from debootstrap's script for Ubuntu, which sets it first.
    [ -n "$mirror" ] || mirror=$(
        # shellcheck disable=SC2034,SC2317
        ARCH=$(dpkg --print-architecture) SUITE=noble
        # shellcheck disable=SC2317
        default_mirror() { echo "$1"; exit; }
        # shellcheck source=/dev/null
        . /usr/share/debootstrap/scripts/gutsy
    )
    /usr/lib/apt/apt-helper download-file "$mirror/$package" "$scratch/keys.deb" "SHA256:$digest" >&2 || return 1
    dpkg-deb -x "$scratch/keys.deb" "$scratch/keys" || return 1
    echo "$scratch/keys$installed"
}

bootstrap() {
    local codename=$1 root=$2 distribution=debian components=main script=sid mirror keys=${FRESH_KEYRING:-} arguments=(--variant=minbase)
    [ "$codename" != noble ] || { distribution=ubuntu; components=main,universe; script=gutsy; }
    # A debootstrap that is older than the release uses the script of its family.
    [ ! -e "/usr/share/debootstrap/scripts/$codename" ] || script=$codename
    mirror=${FRESH_MIRROR:-$(apt_mirror "$distribution")}
    [ -n "$keys" ] || [ "$distribution" = debian ] || keys=$(ubuntu_keys "$mirror") || return 1
    [ -z "$keys" ] || arguments+=(--keyring="$keys")
    say "a root of $distribution $codename${mirror:+ from $mirror}"
    # Refuses unsigned packages.
    if ! debootstrap --force-check-gpg "${arguments[@]}" --components="$components" "$codename" "$root" "$mirror" "$script" \
        >"$root.log" 2>&1; then
        tail -5 "$root.log" >&2
        echo "dev: cannot make a root of $codename; FRESH_MIRROR and FRESH_KEYRING select another archive and its keys" >&2
        return 1
    fi
}

# inside ROOT USER COMMAND...: runs a command in the root, in /home/newcomer/tessera, with a clean environment
inside() {
    local root=$1 user=$2 home=/root names=() name=
    shift 2
    [ "$user" = root ] || home=/home/$user
    # Copies pip's certificate to a path that no package writes.
    if [ -f "${PIP_CERT:-}" ]; then
        cp -L "$PIP_CERT" "$root/etc/pip-cert.pem"
        names=(PIP_CERT=/etc/pip-cert.pem)
    fi
    for name in PIP_INDEX_URL http_proxy https_proxy no_proxy FUZZ_SECONDS; do
        [ -z "${!name:-}" ] || names+=("$name=${!name}")
    done
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -c '
        root=$1 user=$2
        shift 2
        mount -t proc proc "$root/proc"
        mount -t sysfs -o ro sysfs "$root/sys"
        mount --rbind /dev "$root/dev"
        cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
        chroot --userspec="$user" "$root" "$@" </dev/null' - "$root" "$user" \
        env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME="$home" TERM=dumb LANG=C.UTF-8 "${names[@]}" \
        sh -c 'cd /home/newcomer/tessera && exec "$@"' - "$@"
}

copy_into() {
    local place=$1/home/newcomer/tessera
    rm -rf "$place"
    mkdir -p "$place"
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git ls-files -z | tar --null -T - -cf - | tar -C "$place" -xf -
    else
        tar --exclude='./build*' --exclude=./.venv --exclude=./tessera-demo -cf - . | tar -C "$place" -xf -
    fi
}

refused_with_a_line() {
    local root=$1 code=0
    inside "$root" newcomer ./dev demo >"$root.output" 2>&1 || code=$?
    cat "$root.output"
    [ "$code" = 1 ] || { echo "exit $code, expected 1"; return 1; }
    grep -q 'apt-get update && apt-get install .* gcc .*meson' "$root.output" || { echo "the command to run is missing"; return 1; }
}

demo_inside() {
    local root=$1 user=$2 started
    inside "$root" "$user" ./dev demo || return 1
    # Measures a demo without the installation of packages.
    inside "$root" "$user" rm -rf build tessera-demo
    started=$SECONDS
    inside "$root" "$user" ./dev demo || return 1
    echo "1 passed: $((SECONDS - started)) s after the packages"
}

with_sudo() {
    local root=$1
    inside "$root" root apt-get update -qq
    inside "$root" root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends sudo >/dev/null
    echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/newcomer"
    demo_inside "$root" newcomer
}

without_sudo() {
    local root=$1
    rm -f "$root/etc/sudoers.d/newcomer"
    inside "$root" newcomer rm -rf build tessera-demo || return 1
    inside "$root" newcomer ./dev demo
}

# library_inside ROOT: runs the commands of docs/library.md. Runs before the suite installs dpkg-dev, without which Meson does not
# know Debian's library folder.
library_inside() {
    local root=$1
    inside "$root" root apt-get install -y -qq --no-install-recommends g++ >/dev/null || return 1
    inside "$root" root sh -ec 'meson compile -C build && meson install -C build --no-rebuild --quiet && ldconfig' || return 1
    inside "$root" root python3 tests/install/library.py --installed --tessera build/cli/tessera --make build/tests/make/make_checkpoint
}

suite_inside() {
    local root=$1
    shift
    inside "$root" root chown -R root /home/newcomer/tessera || return 1
    inside "$root" root ./dev test "$@" | tee "$root.suite"
    return "${PIPESTATUS[0]}"
}

# prepare_root COMMAND CODENAME: makes a root with the sources in the home of the user `newcomer`; sets `root` to its path
prepare_root() {
    local codename=$2
    [ "$(id -u)" = 0 ] || { echo "dev: $1 mounts and changes roots: run it as root" >&2; exit 1; }
    have debootstrap || [ -n "${FRESH_ROOT:-}" ] || { echo "dev: $1 needs debootstrap: apt-get install debootstrap" >&2; exit 1; }
    need_scratch
    root=${FRESH_ROOT:-$scratch/$codename}
    [ -d "$root/etc" ] || bootstrap "$codename" "$root" || exit 1
    chroot "$root" id newcomer >/dev/null 2>&1 || chroot "$root" useradd --create-home --shell /bin/bash newcomer
    copy_into "$root"
    chroot "$root" chown -R newcomer /home/newcomer
}

fresh() {
    local codename=${1:-} root
    case "$codename" in
    bookworm | trixie | noble) shift ;;
    *) echo "$fresh_usage" >&2; exit 2 ;;
    esac
    prepare_root fresh "$codename"
    chroot "$root" sh -c 'command -v gcc' >/dev/null ||
        check "a user without sudo gets the command to run" refused_with_a_line "$root"
    check "demo: a user with sudo" with_sudo "$root"
    check "demo: a user without sudo, all installed" without_sudo "$root"
    check "the library, installed and used without variables" library_inside "$root"
    say "./dev test $* as root"
    if suite_inside "$root" "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    printf '\n%d passed, %d failed\n' "$passed" "$failed"
    [ "$failed" = 0 ]
}
