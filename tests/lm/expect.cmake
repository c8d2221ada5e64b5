# What the tests of commands expect of a program: PROGRAM, run by EMULATOR.

function(fail message)
    message(SEND_ERROR "${message}")
endfunction()

# Runs the program: sets code, out and err.
macro(run)
    execute_process(COMMAND ${EMULATOR} "${PROGRAM}" ${ARGN}
        RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
    string(JOIN " " command ${ARGN})
endmacro()

function(expect_equal what actual expected)
    if(NOT actual STREQUAL expected)
        fail("${what}: '${actual}', expected '${expected}'")
    endif()
endfunction()

function(expect_contains what actual)
    foreach(part IN LISTS ARGN)
        string(FIND "${actual}" "${part}" at)
        if(at EQUAL -1)
            fail("${what}: no '${part}' in '${actual}'")
        endif()
    endforeach()
endfunction()

# The program fails, prints nothing on stdout, and says every one of `parts` on stderr.
function(expect_error parts)
    run(${ARGN})
    expect_equal("${command}: exit code" "${code}" 1)
    expect_equal("${command}: stdout" "${out}" "")
    expect_contains("${command}: stderr" "${err}" ${parts})
endfunction()

# The program prints one JSON object with the keys before `--`, and nothing else anywhere; sets `json`.
function(expect_json)
    list(FIND ARGN "--" separator)
    list(SUBLIST ARGN 0 ${separator} keys)
    math(EXPR begin "${separator} + 1")
    list(SUBLIST ARGN ${begin} -1 arguments)
    run(${arguments} --json)
    expect_equal("${command}: exit code" "${code}" 0)
    expect_equal("${command}: stderr" "${err}" "")
    if(NOT out MATCHES "^{[^\n]*}\n$")
        fail("${command}: not one line with an object: '${out}'")
    endif()
    foreach(key IN LISTS keys)
        string(JSON value ERROR_VARIABLE error GET "${out}" ${key})
        if(error)
            fail("${command}: ${key}: ${error}")
        endif()
    endforeach()
    set(json "${out}" PARENT_SCOPE)
endfunction()

function(expect_value key expected)
    string(JSON value ERROR_VARIABLE error GET "${json}" ${key})
    expect_equal("${key}" "${value}" "${expected}")
endfunction()

# A full disk: one line on stderr.
function(expect_full command)
    cmake_path(GET PROGRAM FILENAME name)
    execute_process(COMMAND ${EMULATOR} "${PROGRAM}" ${ARGN} OUTPUT_FILE /dev/full RESULT_VARIABLE code ERROR_VARIABLE err)
    expect_equal("${command} on a full disk" "${code} ${err}"
        "1 ${name}: standard output: cannot write: No space left on device\n")
endfunction()
