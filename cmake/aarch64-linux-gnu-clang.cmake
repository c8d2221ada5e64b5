# Toolchain file: as aarch64-linux-gnu.cmake, compiled by clang against the same libraries.
include("${CMAKE_CURRENT_LIST_DIR}/clang.cmake")
set(CMAKE_C_COMPILER_TARGET aarch64-linux-gnu)
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
include("${CMAKE_CURRENT_LIST_DIR}/aarch64-linux-gnu.cmake")
