#!/usr/bin/env bash
# Runs fuzz programs, two at a time, and says what they have done; fails if any of them finds something.
#
#   run.sh DIR SECONDS PROGRAM...   the programs and crumb-make-corpus are in DIR
#
# Environment:
#   CRUMB_FUZZ_CORPUS   where inputs that reached something new are kept, and findings (default: DIR/corpus)
#   CRUMB_FUZZ_JOBS     programs at a time (default: 2)
# The corpus directory also has executions.log, a line per program and run, of which the last columns are sums.
set -uo pipefail

if (($# < 3)); then
    echo "usage: $0 DIR SECONDS PROGRAM..." >&2
    exit 2
fi
dir=$1 seconds=$2
shift 2
corpus=${CRUMB_FUZZ_CORPUS:-$dir/corpus}
jobs=${CRUMB_FUZZ_JOBS:-2}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$corpus/logs" "$corpus/findings" || exit
rm -rf "$dir/seeds"
"$dir/crumb-make-corpus" "$dir/seeds" || exit

# Deep stacks of allocations cost more than the fuzzed code.
export ASAN_OPTIONS="malloc_context_size=6:quarantine_size_mb=16:${ASAN_OPTIONS-}"
# A cgroup may set these for other programs.
unset CRUMB_ISA

run_one() {
    local name=$1 options=()
    [[ -f $here/$name.dict ]] && options+=("-dict=$here/$name.dict")
    mkdir -p "$corpus/$name"
    # Speed is measured in seconds of CPU time, as others may use the machine as well.
    local TIMEFORMAT='cpu %U %S' status
    {
        time "$dir/$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=4096 -max_len=32768 -len_control=0 \
            -print_final_stats=1 "-artifact_prefix=$corpus/findings/$name-" "${options[@]}" \
            "$corpus/$name" "$dir/seeds/$name" 2>&1
        status=$?
    } >"$corpus/logs/$name" 2>&1
    echo "status $status" >>"$corpus/logs/$name"
}

for name; do
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n; done
    run_one "$name" &
done
wait

# Executions, speed, coverage and corpus of a log, and whether the program has found something.
numbers_of() {
    awk '
        /^#[0-9]+.* cov: / {
            for (i = 1; i < NF; ++i) {
                if ($i == "cov:") edges = $(i + 1)
                if ($i == "ft:") features = $(i + 1)
                if ($i == "corp:") { split($(i + 1), c, "/"); inputs = c[1] }
            }
            executions = substr($1, 2)
        }
        /^stat::number_of_executed_units:/ { executions = $2 }
        /^cpu / { seconds = $2 + $3 }
        /^status / { failed = $2 != 0 }
        END { print executions + 0, (seconds > 0 ? int(executions / seconds) : 0), edges + 0, features + 0, inputs + 0, failed + 0 }' "$1"
}

log=$corpus/executions.log
for name; do
    read -r executions _ < <(numbers_of "$corpus/logs/$name")
    printf '%s %s %s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$name" "$executions" "$seconds" >>"$log"
done

failed=0
printf '\n%-15s %12s %9s %8s %9s %8s %9s %14s\n' program executions per_cpu_s edges features inputs findings \
    executions_ever
for name; do
    read -r executions speed edges features inputs bad < <(numbers_of "$corpus/logs/$name")
    ever=$(awk -v name="$name" '$2 == name { sum += $3 } END { printf "%.0f", sum }' "$log")
    printf '%-15s %12d %9d %8d %9d %8d %9d %14d\n' "$name" "$executions" "$speed" "$edges" "$features" "$inputs" \
        "$bad" "$ever"
    failed=$((failed + bad))
done
awk -v failed="$failed" -v names="$*" '
    BEGIN { split(names, list, " "); for (i in list) wanted[list[i]] = 1 }
    $2 in wanted { ever += $3; last[$2] = $3; seconds += $4 }
    END {
        for (name in last) now += last[name]
        printf "%-15s %12d %9s %8s %9s %8s %9d %14d\n", "total", now, "", "", "", "", failed, ever
        printf "%.2e executions in all runs so far, %.1f hours\n", ever, seconds / 3600
    }' "$log"

for name; do
    if ! tail -n 1 "$corpus/logs/$name" | grep -qx 'status 0'; then
        printf '\n-------- %s --------\n' "$name"
        grep -E -A 25 'ERROR: |runtime error: |^fuzz: |precondition violated|DEDUP_TOKEN' "$corpus/logs/$name" |
            head -n 60
        grep -hE 'Test unit written to' "$corpus/logs/$name"
    fi
done
exit "$((failed > 0))"
