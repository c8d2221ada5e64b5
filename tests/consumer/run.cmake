# Installs crumb to a temporary prefix, then configures, builds and runs the project beside this file with it.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${WORK}")
set(settings
    "-DCRUMB_README=${README}"
    "-DCMAKE_PREFIX_PATH=${WORK}/prefix"
    "-DCMAKE_BUILD_TYPE=Release"
    "-DCMAKE_CXX_FLAGS=${FLAGS}")
if(TOOLCHAIN)
    list(APPEND settings "-DCMAKE_TOOLCHAIN_FILE=${TOOLCHAIN}" "-DCMAKE_FIND_ROOT_PATH_MODE_PACKAGE=BOTH")
else()
    list(APPEND settings "-DCMAKE_CXX_COMPILER=${COMPILER}")
endif()

function(run)
    execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix")
execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK}/build" -G "${GENERATOR}" ${settings}
    COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
run("${CMAKE_COMMAND}" --build "${WORK}/build")
run("${CMAKE_COMMAND}" --build "${WORK}/build" --target run)
