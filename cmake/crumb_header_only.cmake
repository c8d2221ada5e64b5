# crumb_header_only(<target> PACKAGE <name> IMPORTED <target> HEADER <header> [HINTS <dir>...])
#
# Defines the imported target <target> for a header-only dependency, or leaves it undefined when there is none.
# The installed package configuration uses this file as well.
#
# A plain find_package() is not enough. Distributions put such headers straight into /usr/include and their
# package files under the host's architecture, so a cross build does not find the package, and if it did, would
# pass the host's C library to the compiler as `-isystem /usr/include`.

include_guard(GLOBAL)

function(crumb_header_only target)
    if(TARGET ${target})
        return()
    endif()
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "PACKAGE;IMPORTED;HEADER" "HINTS")

    if(NOT TARGET ${arg_IMPORTED} AND NOT arg_HINTS)
        find_package(${arg_PACKAGE} QUIET CONFIG CMAKE_FIND_ROOT_PATH_BOTH)
    endif()
    if(TARGET ${arg_IMPORTED})
        get_target_property(candidates ${arg_IMPORTED} INTERFACE_INCLUDE_DIRECTORIES)
    else()
        set(variable CRUMB_${arg_PACKAGE}_INCLUDE_DIR)
        find_path(${variable} ${arg_HEADER} HINTS ${arg_HINTS} CMAKE_FIND_ROOT_PATH_BOTH)
        mark_as_advanced(${variable})
        set(candidates "${${variable}}")
    endif()
    if(NOT candidates)
        return()
    endif()

    set(directories)
    foreach(directory IN LISTS candidates)
        if(directory IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
            continue()
        elseif(EXISTS "${directory}/stdlib.h")
            # A C library lives there too; only the dependency's own folder may become visible.
            cmake_path(GET arg_HEADER PARENT_PATH folder)
            set(private "${CMAKE_BINARY_DIR}/crumb_includes/${arg_PACKAGE}")
            file(MAKE_DIRECTORY "${private}")
            file(CREATE_LINK "${directory}/${folder}" "${private}/${folder}" SYMBOLIC)
            list(APPEND directories "${private}")
        else()
            list(APPEND directories "${directory}")
        endif()
    endforeach()
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} SYSTEM INTERFACE ${directories})
endfunction()
