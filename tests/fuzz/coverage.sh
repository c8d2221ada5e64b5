#!/usr/bin/env bash
# Runs all inputs that there are - the seeds, and what `run.sh` has kept - through programs that count, and says how
# much of the code that reads files they reach, in regions, and which lines they do not.
#
#   coverage.sh DIR COMPILER PROGRAM...   the programs are in DIR; built by the preset `fuzz-coverage`
#
# Environment: CRUMB_FUZZ_CORPUS, as in run.sh. llvm-profdata, llvm-cov and llvm-cxxfilt of the compiler's version are needed
# (Debian: the package llvm-19).
set -euo pipefail

if (($# < 3)); then
    echo "usage: $0 DIR COMPILER PROGRAM..." >&2
    exit 2
fi
dir=$1 compiler=$2
shift 2
corpus=${CRUMB_FUZZ_CORPUS:-$dir/corpus}
source=$(cd "$(dirname "$0")/../.." && pwd)
version=$("$compiler" -dumpversion)
version=${version%%.*}
tool() { command -v "$1-$version" || command -v "$1"; }
profdata=$(tool llvm-profdata) cov=$(tool llvm-cov) demangle=$(tool llvm-cxxfilt)

rm -rf "$dir/seeds" "$dir/profiles" "$dir/missed.txt"
mkdir -p "$dir/profiles"
LLVM_PROFILE_FILE=/dev/null "$dir/crumb-make-corpus" "$dir/seeds"
objects=()
for name; do
    mkdir -p "$corpus/$name"
    LLVM_PROFILE_FILE=$dir/profiles/$name.profraw "$dir/$name" -runs=0 -timeout=60 -max_len=32768 \
        "$corpus/$name" "$dir/seeds/$name" >"$dir/profiles/$name.log" 2>&1 ||
        { tail -n 20 "$dir/profiles/$name.log" && exit 1; }
    # The first is an argument by itself.
    objects+=(${objects[0]+-object} "$dir/$name")
done
"$profdata" merge -sparse -o "$dir/all.profdata" "$dir"/profiles/*.profraw

# What reads files. Functions that write, and those of a model that has been loaded, are none of it.
files=(examples/lm/gguf/gguf.cpp examples/lm/gguf/gguf_value.hpp examples/lm/gguf/ggml_type.hpp
    examples/lm/text/tokenizer.cpp examples/lm/model/model.cpp examples/lm/model/matrix.cpp
    examples/lm/model/ffn_file.cpp examples/lm/model/kv_file.cpp examples/lm/model/schedule_file.cpp
    include/crumb/format/packed.hpp include/crumb/format/nested.hpp include/crumb/format/nested_levels.hpp
    include/crumb/format/neuron_rows.hpp include/crumb/op/cache/kv_snapshot.hpp)
[[ -f $source/include/crumb/format/invariants.hpp ]] && files+=(include/crumb/format/invariants.hpp)
excluded='::gguf::open|::tokenizer::(encode|decode|append|token_reader)|::model::(matrices|floats|replace|bits_per_weight)'
excluded+='|lm::model::load\(std::.*basic_string|::matrix::(floats|replace|prepare|run)\(|::matrix_input::|::find_role|write_'
excluded+='|::folded_layer::|namespace\)::begin\(|ffn_training'
excluded+='|::pack<|::pack\(|packed_bytes|::save\(|::header_of|::neuron_writer::|::encode_row|::snapshot_bytes'
excluded+='|::nested_storage_view::|::storage_view<|lookup_tables|::uniform\(|operator==|::has_scales|::rounds_factors'
excluded+='|::gguf_strings::iterator::operator\+\+\(int'

"$cov" report -show-functions -show-branch-summary=false -instr-profile "$dir/all.profdata" -Xdemangler "$demangle" \
    "${objects[@]}" "${files[@]/#/$source/}" \
    >"$dir/functions.txt" 2>"$dir/cov.log"
# Of the instances of a template, the best covered one counts.
awk -v excluded="$excluded" -v root="$source/" '
    # Without template arguments.
    function plain(name, out, depth, i, c) {
        out = ""; depth = 0
        for (i = 1; i <= length(name); ++i) {
            c = substr(name, i, 1)
            if (c == "<") ++depth
            if (depth == 0) out = out c
            if (c == ">" && substr(name, i - 1, 1) != "-" && depth > 0) --depth
        }
        return out
    }
    /^File / { file = $2; gsub(/[\047:]/, "", file); sub(root, "", file); next }
    NF > 6 && /%$/ && $(NF - 5) ~ /^[0-9]+$/ {
        name = $0
        sub(/ +[0-9]+ +[0-9]+ +[0-9.]+% +[0-9]+ +[0-9]+ +[0-9.]+%$/, "", name)
        if (name ~ /^TOTAL/ || name ~ excluded) next
        regions = $(NF - 5); missed = $(NF - 4)
        key = file "\t" plain(name)
        if (!(key in all) || regions > all[key]) all[key] = regions
        if (!(key in least) || missed < least[key]) least[key] = missed
    }
    END {
        for (key in all) {
            split(key, k, "\t")
            sum[k[1]] += all[key]; miss[k[1]] += least[key]; total += all[key]; out += least[key]
        }
        printf "%-45s %8s %8s %9s\n", "file", "regions", "missed", "reached"
        for (f in sum) printf "%-45s %8d %8d %8.2f%%\n", f, sum[f], miss[f], 100 * (1 - miss[f] / sum[f]) | "sort"
        close("sort")
        printf "%-45s %8d %8d %8.2f%%\n", "total", total, out, 100 * (1 - out / total)
        for (key in least) if (least[key] > 0) { split(key, k, "\t"); print least[key], k[1] ": " k[2] >"'"$dir"'/missed.txt" }
    }' "$dir/functions.txt"
sort -rn -o "$dir/missed.txt" "$dir/missed.txt"

"$cov" export -format=lcov -instr-profile "$dir/all.profdata" "${objects[@]}" "${files[@]/#/$source/}" \
    >"$dir/lines.lcov" 2>>"$dir/cov.log"
awk -v root="$source/" '
    /^SF:/ { path = substr($0, 4); file = path; sub(root, "", file); n = 0; while ((getline line <path) > 0) text[++n] = line; close(path) }
    /^DA:/ { split(substr($0, 4), d, ","); if (d[2] == 0) print file ":" d[1] ": " text[d[1]] }' "$dir/lines.lcov" >"$dir/unreached.txt"
echo "functions with regions that are missed: $dir/missed.txt; lines: $dir/unreached.txt"
