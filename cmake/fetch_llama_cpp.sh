#!/bin/sh
# Fetches an unmodified release of llama.cpp, v0.5.0: its prebuilt libraries and its headers, from the packages of
# node-llama-cpp 3.22.1 that carry them. Nothing of it is built or run here.
#
#   cmake/fetch_llama_cpp.sh FOLDER [linux-x64 | linux-arm64]...
#
# Afterwards FOLDER/source/include and FOLDER/source/ggml hold headers, which -DCRUMB_GGML_DIR=FOLDER/source wants, and
# FOLDER/linux-x64 libraries. What is there already is kept. An archive whose SHA-512 is another one is an error.
set -eu

release=v0.5.0
version=3.22.1
registry=${npm_config_registry:-https://registry.npmjs.org}

if [ $# -lt 1 ]; then
    echo "usage: $0 FOLDER [linux-x64 | linux-arm64]..." >&2
    exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift

# fetch NAME FILE SHA512_IN_BASE64: the package's archive as $work/FILE
fetch() {
    curl --fail --silent --show-error --location --retry 3 --output "$work/$2" \
        "${registry%/}/$1/-/${1##*/}-$version.tgz"
    sum=$(openssl dgst -sha512 -binary "$work/$2" | base64 -w 0)
    if [ "$sum" != "$3" ]; then
        echo "fetch_llama_cpp: $1 $version has another SHA-512 than the one it was tested with" >&2
        exit 1
    fi
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The new name comes last: no half-written folder has it.
if [ ! -d "$folder/source" ]; then
    fetch node-llama-cpp source.tgz \
        bltIipuWmc123H7tMIgDGKSsSrhmhlQYeVUC48XTjVW7XGJJiJJyCdlTMzQ/LiWoPkGDpcL4FviDpgw7qfTiDw==
    tar -xzf "$work/source.tgz" -C "$work" package/llama/gitRelease.bundle package/llama/binariesGithubRelease.json
    grep -q "\"$release\"" "$work/package/llama/binariesGithubRelease.json"
    git clone --quiet --bare "$work/package/llama/gitRelease.bundle" "$work/release.git"
    mkdir "$work/source"
    git --git-dir "$work/release.git" archive HEAD include ggml/include ggml/src/ggml-backend-impl.h |
        tar -x -C "$work/source"
    mv "$work/source" "$folder/source"
fi
for platform; do
    case $platform in
        linux-x64) sum=5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg== ;;
        linux-arm64) sum=W+7naKCXX9/eEjjFmRS8vvx91QyLXDbeFxexZc3bh/PtQABZgmRL3C0AtYYXn4YGTj/3Qor4lWZn2tpjZFPLdQ== ;;
        *) echo "fetch_llama_cpp: no libraries for $platform, only for linux-x64 and linux-arm64" >&2; exit 2 ;;
    esac
    if [ ! -d "$folder/$platform" ]; then
        fetch "@node-llama-cpp/$platform" "$platform.tgz" "$sum"
        mkdir "$work/$platform"
        tar -xzf "$work/$platform.tgz" -C "$work/$platform" --strip-components=3 "package/bins/$platform"
        mv "$work/$platform" "$folder/$platform"
    fi
done
