# crumb-bench through board.sh on two emulated CPUs, and compare.py over what it writes. Expects BENCH, PROGRAM, WORK.
cmake_minimum_required(VERSION 3.25)
find_program(PYTHON python3 REQUIRED)

file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")

# run(<status> <output> <command>...): the command must end with that status.
function(run status output)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE got OUTPUT_VARIABLE text ERROR_VARIABLE text)
    if(NOT got EQUAL status)
        list(JOIN ARGN " " command)
        message(FATAL_ERROR "${command}\nended with ${got} instead of ${status}:\n${text}")
    endif()
    set(${output} "${text}" PARENT_SCOPE)
endfunction()

# expect(<text> <regex>...)
function(expect text)
    foreach(regex IN LISTS ARGN)
        if(NOT text MATCHES "${regex}")
            message(FATAL_ERROR "no '${regex}' in:\n${text}")
        endif()
    endforeach()
endfunction()

function(measure cpu filter)
    run(0 ignored "${BENCH}/board.sh" --binary "${PROGRAM}" --out "${WORK}/${cpu}.json" --filter "${filter}" qemu:${cpu}
        -- --benchmark_min_time=0.001)
endfunction()

# Names of the rows that were measured, and of those that the CPU lacks.
function(rows cpu measured lacking)
    file(READ "${WORK}/${cpu}.json" json)
    string(JSON count LENGTH "${json}" benchmarks)
    math(EXPR last "${count} - 1")
    foreach(i RANGE ${last})
        string(JSON name GET "${json}" benchmarks ${i} name)
        string(JSON error ERROR_VARIABLE absent GET "${json}" benchmarks ${i} error_message)
        if(absent)
            list(APPEND good ${name})
        else()
            expect("${error}" "^skipped: this CPU lacks ")
            list(APPEND bad ${name})
        endif()
    endforeach()
    set(${measured} "${good}" PARENT_SCOPE)
    set(${lacking} "${bad}" PARENT_SCOPE)
endfunction()

measure(max "ceiling/mac/neon|linear/q4_0/neon.*/m:1/.*/l2|absorbed/.*/l2|encode/(q8_0|pq:1x4)/neon")
rows(max measured lacking)
foreach(isa neon neon_dotprod neon_i8mm)
    expect("${measured}" "linear/q4_0/${isa}/m:1/" "encode/pq:1x4/${isa}/")
endforeach()
expect("${measured}" "absorbed/q4_0_absorbing/neon_dotprod/" "absorbed/q4_0_absorbing/neon_i8mm/"
    "absorbed/u2/neon_i8mm/")
expect("0${lacking}" "^0$")

measure(cortex-a76 "linear/q4_0/neon_.*/m:1/.*/l2")
rows(cortex-a76 measured lacking)
expect("${measured}" "^linear/q4_0/neon_dotprod/[a-z0-9:/]*$")
expect("${lacking}" "^linear/q4_0/neon_i8mm/[a-z0-9:/]*$")

set(compare ${PYTHON} "${BENCH}/compare.py" "${WORK}/max.json")
run(0 table ${compare} "${WORK}/cortex-a76.json")
expect("${table}" "linear/q4_0/neon_dotprod/[^ ]* +[0-9.]+ us +[0-9.]+ us +[0-9.]+x" "linear +1 +[0-9.]+x"
    "only in A:.*absorbed/u2/")
file(READ "${WORK}/max.json" json)
string(LENGTH "${json}" length)
math(EXPR length "${length} / 2")
string(SUBSTRING "${json}" 0 ${length} json)
file(WRITE "${WORK}/truncated.json" "${json}")
run(1 message ${compare} "${WORK}/truncated.json")
expect("${message}" "^compare.py: [^\n]*truncated.json is no JSON, or its end is missing[^\n]*\n$")

# Nothing is written where nothing was measured.
run(1 message "${BENCH}/board.sh" --binary "${PROGRAM}" --out "${WORK}/none.json" --filter no_such_row qemu)
expect("${message}" "board.sh: crumb-bench on qemu measured nothing")
if(EXISTS "${WORK}/none.json" OR EXISTS "${WORK}/none.json.part")
    message(FATAL_ERROR "a file without rows is left behind")
endif()
