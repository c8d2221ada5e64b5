# Toolchain file: clang 19 if it is installed, otherwise the newest there is.
find_program(CRUMB_CLANGXX REQUIRED NAMES
    clang++-19 clang++-22 clang++-21 clang++-20 clang++-18 clang++-17 clang++-16 clang++)
string(REGEX REPLACE "clang\\+\\+([^/]*)$" "clang\\1" CRUMB_CLANG "${CRUMB_CLANGXX}")
set(CMAKE_CXX_COMPILER "${CRUMB_CLANGXX}")
set(CMAKE_C_COMPILER "${CRUMB_CLANG}")
