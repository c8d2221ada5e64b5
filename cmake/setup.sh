#!/bin/sh
# Installs what building crumb needs and this machine lacks (Debian 12, Ubuntu 24.04 or newer; elsewhere it says
# what is needed). Silent when nothing is missing.
#
#   cmake/setup.sh            to build, test and run
#   cmake/setup.sh --board    to build crumb-bench for AArch64 boards, and to try it under an emulator
#   cmake/setup.sh --ci       all of that, and clang, clang-format, clang-tidy and doxygen, as .ci/run wants them
set -eu

ci=no
board=no
case "${1-}" in
    "") ;;
    --board) board=yes ;;
    --ci) ci=yes board=yes ;;
    *) echo "usage: $0 [--board | --ci]" >&2; exit 2 ;;
esac

has_command() { command -v "$1" >/dev/null 2>&1; }

cmake_is_new_enough() {
    has_command cmake || return 1
    version=$(cmake --version | sed -n '1s/^cmake version \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
    # shellcheck disable=SC2086 # two numbers
    set -- $version
    [ "${1-0}" -gt 3 ] || { [ "${1-0}" -eq 3 ] && [ "${2-0}" -ge 25 ]; }
}

if ! has_command apt-get || ! has_command dpkg-query; then
    if cmake_is_new_enough && has_command ninja && { has_command c++ || [ -n "${CXX-}" ]; }; then
        # The libraries are fetched during configuration if they are not installed.
        [ "$ci" = no ] || echo "setup: no apt here; .ci/run needs Debian 12 or Ubuntu 24.04" >&2
        exit 0
    fi
    cat >&2 <<'EOF'
setup: this is neither Debian nor Ubuntu, please install:
  CMake 3.25 or newer, Ninja, git
  GCC 12 or newer, or clang 16 or newer (on x86-64: 14)
and, if you do not want them fetched: xsimd, Eigen 3.4, GoogleTest, Google Benchmark, CLI11, PCRE2
EOF
    exit 1
fi

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
is_available() { apt-cache show "$1" >/dev/null 2>&1; }

missing=
want() {
    for package; do
        is_installed "$package" || missing="$missing $package"
    done
}

cmake_is_new_enough || want cmake
has_command ninja || want ninja-build
has_command git || want git
has_command c++ || want g++
want libxsimd-dev libeigen3-dev libgtest-dev libbenchmark-dev libcli11-dev libpcre2-dev

# clang 19 if there is one, otherwise the newest known; older than 16 cannot compile the Arm kernels.
clang=
clang_versions="19 22 21 20 18 17 16"
sources=/usr/local/src
missing_sources=
if [ "$board" = yes ]; then
    want g++-aarch64-linux-gnu qemu-user
    has_command python3 || want python3
    for package in benchmark pcre2; do
        [ -f "$sources/$package/CMakeLists.txt" ] || missing_sources="$missing_sources $package"
    done
fi
if [ "$ci" = yes ]; then
    # What fetches an unmodified llama.cpp, see cmake/fetch_llama_cpp.sh.
    want curl ca-certificates openssl
    want googletest clang-format-19 clang-tidy-19 doxygen
    for version in $clang_versions; do
        if is_installed "clang-$version"; then
            clang=$version
            want "libclang-rt-$version-dev"
            break
        fi
    done
    [ -n "$clang" ] || missing="$missing clang"
fi

[ -n "$missing$missing_sources" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! has_command sudo; then
        echo "setup: neither root nor sudo; please have these installed:$missing" >&2
        exit 1
    fi
    as_root=sudo
fi

$as_root apt-get update
if [ "$ci" = yes ] && [ -z "$clang" ]; then
    missing=$(echo "$missing" | sed 's/ clang$//')
    for version in $clang_versions; do
        if is_available "clang-$version"; then
            missing="$missing clang-$version libclang-rt-$version-dev"
            break
        fi
    done
fi
# shellcheck disable=SC2086 # a list of words
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing

# Libraries for a cross build. Their packages for the other architecture would need that among this machine's
# architectures; sources do not. apt checks their signature. It is asked apart, as few machines have sources
# enabled, and about the mirrors that have the package, as not all of them have its sources.
fetch_sources() {
    apt-cache policy "lib$1-dev" |
        sed -n 's|^ *[0-9]* \([a-z]*://[^ ]*\) \([^ /]*\)/\([^ ]*\) .*|\1 \2 \3|p' >"$work/mirrors"
    keys=
    for file in /usr/share/keyrings/debian-archive-keyring.gpg /usr/share/keyrings/ubuntu-archive-keyring.gpg; do
        [ ! -f "$file" ] || keys=${keys:+$keys,}$file
    done
    while read -r mirror; do
        ! fetch_sources_from "$mirror" "$1" </dev/null || return 0
    done <"$work/mirrors"
    return 1
}
fetch_sources_from() {
    rm -rf "$work/lists" "$work/unpacked"
    echo "deb-src ${keys:+[signed-by=$keys] }$1" >"$work/sources.list"
    mkdir -p "$work/lists/partial" "$work/unpacked"
    apt="apt-get -q -o Dir::State::Lists=$work/lists -o Dir::Etc::SourceList=$work/sources.list
        -o Dir::Etc::SourceParts=/dev/null -o Dir::Cache=$work -o APT::Sandbox::User=$(id -un)"
    # The new name comes last: no half-written folder has it.
    # shellcheck disable=SC2086 # a list of words
    (cd "$work" && $apt update && $apt source --download-only "$2") &&
        tar -xf "$work/$2"_*.orig.tar.* -C "$work/unpacked" --strip-components=1 &&
        $as_root mkdir -p "$sources" &&
        $as_root rm -rf "$sources/$2" "$sources/$2.new" &&
        $as_root cp -r "$work/unpacked" "$sources/$2.new" &&
        $as_root mv "$sources/$2.new" "$sources/$2"
}
if [ -n "$missing_sources" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    for package in $missing_sources; do
        fetch_sources "$package" ||
            echo "setup: no sources of $package from apt; the configuration will fetch them" >&2
    done
fi

if ! cmake_is_new_enough; then
    echo "setup: CMake 3.25 or newer is needed, this system has $(cmake --version | head -n 1)" >&2
    exit 1
fi
