#!/bin/sh
# Runs crumb-bench on a board and brings one JSON file back, with what the board says of itself in its context.
#
#   bench/board.sh [options] user@host             over ssh
#   bench/board.sh [options] adb[:SERIAL]          on a phone, by adb
#   bench/board.sh [options] qemu[:CPU]            emulated: shows that everything works, its times mean nothing
#
#   --filter REGEX    rows to run, as --benchmark_filter; default: all
#   --cores LIST      pin to these cores, such as 4-7 or 0,2; needs taskset on the board
#   --out FILE        default: bench-<host>-<date>.json
#   --binary FILE     default: build/board/bench/crumb-bench (cmake --workflow --preset board)
#   -- OPTION...      further options of crumb-bench, such as --benchmark_repetitions=5
#
# The file appears when it is complete. Exit status: 0; 1 if a row failed (the file says which) or nothing could be
# measured; 2 if the command line is wrong.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
binary=$root/build/board/bench/crumb-bench
filter='' cores='' out='' target=''

fail() { echo "board.sh: $*" >&2; exit 1; }
usage() {
    echo "board.sh: $*" >&2
    sed -n '/^#   bench/,/^#   --/{/^#   bench/s/^#  / /p;}' "$0" >&2
    exit 2
}

while [ $# -gt 0 ]; do
    case $1 in
        --filter | --cores | --out | --binary)
            [ $# -ge 2 ] || usage "$1 needs a value"
            case $1 in
                --filter) filter=$2 ;;
                --cores) cores=$2 ;;
                --out) out=$2 ;;
                --binary) binary=$2 ;;
            esac
            shift 2 ;;
        --) shift; break ;;
        -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p;}' "$0"; exit 0 ;;
        -*) usage "unknown option $1 (options of crumb-bench come after --)" ;;
        *)
            [ -z "$target" ] || usage "two boards: $target and $1"
            target=$1
            shift ;;
    esac
done
[ -n "$target" ] || usage "which board?"
[ -f "$binary" ] || fail "$binary does not exist; build it with: cmake --workflow --preset board"

# The mask that taskset takes everywhere; lists of cores it takes on few phones.
mask=
if [ -n "$cores" ]; then
    mask=$(echo "$cores" | awk '
        !/^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$/ { exit 1 }
        {
            parts = split($0, part, ",")
            for (i = 1; i <= parts; ++i) {
                ends = split(part[i], end, "-")
                last = end[ends] + 0
                if (last > 4095 || end[1] + 0 > last) exit 1
                for (c = end[1] + 0; c <= last; ++c) set[c] = 1
                if (last > highest) highest = last
            }
            for (digit = int(highest / 4); digit >= 0; --digit) {
                value = 0
                for (bit = 3; bit >= 0; --bit) value = 2 * value + ((4 * digit + bit) in set)
                printf "%x", value
            }
        }') || usage "--cores $cores is no list of cores, such as 4-7 or 0,2"
fi

work=$(mktemp -d)
board_directory='' running=no
cleanup() {
    # An interrupted run goes on there otherwise.
    [ "$running" = no ] || on_board "kill \$(cat $board_directory/pid)" >/dev/null 2>&1 || true
    [ -z "$board_directory" ] || on_board "rm -rf $board_directory" >/dev/null 2>&1 || true
    [ ! -S "$work/ssh" ] || ssh -o ControlPath="$work/ssh" -O exit "$target" 2>/dev/null || true
    [ -z "$out" ] || rm -f "$out.part"
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM HUP

# ---- ways to a board: on_board COMMAND, push FILE PATH, pull PATH FILE, and how the program is started there ----
start='' temporary=/tmp name=$target
case $target in
    qemu | qemu:*)
        cpu=${target#qemu}
        cpu=${cpu#:}
        emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) ||
            fail "qemu-aarch64 is not installed (on Debian and Ubuntu: qemu-user)"
        start="$emulator -cpu ${cpu:-max}"
        name=qemu-${cpu:-max}
        on_board() { sh -c "$1"; }
        push() { cp "$1" "$2"; }
        pull() { cp "$1" "$2"; } ;;
    adb | adb:*)
        command -v adb >/dev/null || fail "adb is not installed (on Debian and Ubuntu: adb)"
        serial=${target#adb}
        serial=${serial#:}
        [ -z "$serial" ] || export ANDROID_SERIAL="$serial"
        state=$(adb get-state 2>&1) || fail "no phone by adb: $state"
        temporary=/data/local/tmp
        name=phone${serial:+-$serial}
        on_board() { adb shell "$1" </dev/null; }
        push() { adb push "$1" "$2" >/dev/null; }
        pull() { adb pull "$1" "$2" >/dev/null; } ;;
    *)
        # One connection, so that a password is asked for once.
        options="-o ControlMaster=auto -o ControlPath=$work/ssh -o ControlPersist=30"
        name=${target#*@}
        # shellcheck disable=SC2086,SC2029 # options are words; commands are for the board's shell
        on_board() { ssh $options "$target" "$1" </dev/null; }
        # shellcheck disable=SC2086
        push() { scp -q $options "$1" "$target:$2"; }
        # shellcheck disable=SC2086
        pull() { scp -q $options "$target:$1" "$2"; } ;;
esac
out=${out:-bench-$(echo "$name" | tr -c 'A-Za-z0-9._\n-' _)-$(date +%Y%m%d-%H%M%S).json}
[ -d "$(dirname "$out")" ] || fail "there is no directory for $out"

# ---- what the board is ----------------------------------------------------------------------------------------
# Lines key=value, written by the board's shell. Of an emulator there is nothing to ask: its /proc and /sys are those of
# this machine.
# shellcheck disable=SC2016 # nothing of it is for this shell
facts='
machine=$(uname -m)
echo "kernel=$(uname -s) $(uname -r) $machine"
cd /sys/devices/system/cpu
echo "cores=$(ls -d cpu[0-9]* | wc -l)"
echo "cores_online=$(cat online 2>/dev/null)"
by_core() {
    for c in $(ls -d cpu[0-9]* | sed s/cpu// | sort -n); do
        value=$(cat cpu$c/$1 2>/dev/null) && echo "cpu$c:$value"
    done | tr "\n" " "
}
echo "max_khz=$(by_core cpufreq/cpuinfo_max_freq)"
echo "limit_khz=$(by_core cpufreq/scaling_max_freq)"
echo "governors=$(by_core cpufreq/scaling_governor)"
echo "board=$({ cat /sys/firmware/devicetree/base/model || cat /sys/devices/virtual/dmi/id/product_name; } 2>/dev/null |
    tr -d "\0")"
echo "phone=$(getprop ro.product.model 2>/dev/null) $(getprop ro.soc.model 2>/dev/null)"
echo "cpu_parts=$(sed -n "s/^CPU implementer[^:]*: *//p; s/^CPU part[^:]*: *//p" /proc/cpuinfo | paste -d/ - - |
    sort | uniq -c | sed "s/^ *\([0-9]*\) /\1x/" | tr "\n" " ")"
echo "cpu_features=$(sed -n "s/^Features[^:]*: *//p" /proc/cpuinfo | head -n 1)"
echo "hottest_celsius=$(cat /sys/class/thermal/thermal_zone*/temp 2>/dev/null | sort -n | tail -n 1 | sed "s/...$//")"
echo "throttled=$(vcgencmd get_throttled 2>/dev/null | sed "s/.*=//")"
'
machine=$(on_board 'uname -m') || fail "cannot run a command on $target"
if [ -n "$start" ]; then
    emulator_version=$("$emulator" --version | head -n 1)
    printf '%s\n' "board=qemu-aarch64 -cpu ${cpu:-max}" "emulator=$emulator_version; times mean nothing" >"$work/facts"
else
    case $machine in
        aarch64 | arm64) ;;
        *) fail "$target is $machine; a 64-bit Arm system (aarch64) is needed" ;;
    esac
    on_board "$facts" >"$work/facts" || fail "cannot read /proc and /sys of $target"
fi
[ -z "$cores" ] || echo "pinned_to=$cores" >>"$work/facts"
commit=$(git -C "$root" describe --always --dirty 2>/dev/null) || commit=
echo "crumb_commit=$commit" >>"$work/facts"

quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
arguments=
while IFS='=' read -r key value; do
    # A comma and an equals sign would begin another pair.
    value=$(printf %s "$value" | tr ',=' ';:' | tr -d '\r' | sed 's/^ *//; s/ *$//')
    [ -z "$value" ] || arguments="$arguments $(quoted "--benchmark_context=$key=$value")"
done <"$work/facts"
[ -z "$filter" ] || arguments="$arguments $(quoted "--benchmark_filter=$filter")"
for option; do
    arguments="$arguments $(quoted "$option")"
done

# ---- copy, run, bring back ------------------------------------------------------------------------------------
if [ -n "$mask" ]; then
    on_board 'command -v taskset >/dev/null' || fail "$target has no taskset; leave --cores out"
    start="taskset $mask $start"
fi
board_directory=$(on_board "mktemp -d $temporary/crumb-bench.XXXXXX" | tr -d '\r')
[ -n "$board_directory" ] || fail "cannot make a directory in $temporary on $target"
push "$binary" "$board_directory/crumb-bench" || fail "cannot copy $binary to $target"
status=0 running=yes
on_board "cd $board_directory && chmod +x crumb-bench && echo \$\$ >pid &&
    exec $start ./crumb-bench --benchmark_out=out.json --benchmark_out_format=json $arguments" &
# Signals are answered at once while the shell waits, but not while a command runs.
wait $! || status=$?
running=no
[ "$status" -le 1 ] || fail "crumb-bench on $target ended with status $status; no file is written"
pull "$board_directory/out.json" "$out.part" || fail "$target has no result to bring back"
# The last line that the program writes.
[ "$(tail -n 1 "$out.part")" = "}" ] ||
    fail "crumb-bench on $target measured nothing: no row matches, or it was stopped"
mv "$out.part" "$out"
[ "$status" -eq 0 ] || fail "$out is written, but rows in it failed: look for error_message"
echo "$out"
