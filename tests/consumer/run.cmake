# Installs crumb to a temporary prefix, then configures, builds and runs the project beside this file with it.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE "${WORK}")
set(settings
    "-DCRUMB_README=${README}"
    "-DCMAKE_PREFIX_PATH=${WORK}/prefix"
    "-DCMAKE_BUILD_TYPE=Release"
    "-DCMAKE_CXX_FLAGS=${FLAGS}")
if(TOOLCHAIN)
    # A cross build looks for packages below the target's root directories only, so the prefix becomes one.
    list(APPEND settings "-DCMAKE_TOOLCHAIN_FILE=${TOOLCHAIN}" "-DCMAKE_FIND_ROOT_PATH=${WORK}/prefix")
else()
    list(APPEND settings "-DCMAKE_CXX_COMPILER=${COMPILER}")
endif()

execute_process(
    COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix"
    OUTPUT_QUIET COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}" -B "${WORK}/build" -G "${GENERATOR}" ${settings}
    COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
execute_process(
    COMMAND "${CMAKE_COMMAND}" --build "${WORK}/build" --target run
    COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
