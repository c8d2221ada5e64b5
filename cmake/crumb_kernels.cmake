# crumb::kernels: the kernels compiled once, for programs whose files then see declarations only. The installed package
# uses this file as well: a program's kernels are compiled by its own compiler.
#
#   CRUMB_KERNEL_FORMATS   formats of quantized weights: names of format_list, nested (all precisions of nested weights),
#                          or all; plans of other formats are errors
#   CRUMB_KERNEL_ISAS      all; native: the best one of this machine, and portable; native_only: that one alone; or the
#                          name of one

include_guard(GLOBAL)

set(CRUMB_KERNEL_FORMATS "all" CACHE STRING "Formats that crumb::kernels multiplies: all, or a list of names")
set(CRUMB_KERNEL_ISAS "all" CACHE STRING
    "ISAs of crumb::kernels: all, native (and portable), native_only, or one name")

# The best ISA of the CPU that this runs on.
function(crumb_native_isa out)
    set(isa portable)
    if(CMAKE_CROSSCOMPILING)
        message(FATAL_ERROR "crumb: CRUMB_KERNEL_ISAS=native, but the program is for another machine")
    endif()
    try_run(status compiled SOURCE_FROM_CONTENT crumb_native_isa.cpp [[
        #include <crumb/isa/list.hpp>
        #include <cstdio>
        int main() {
            const crumb::cpu_features cpu = crumb::detect_cpu();
            const char* best = nullptr;
            crumb::isa_list::for_each([&]<class Isa>() {
                if (best == nullptr && crumb::isa_traits<Isa>::supported(cpu))
                    best = crumb::isa_traits<Isa>::name;
            });
            std::printf("%s", best);
        }]]
        CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${CRUMB_INCLUDE_DIR}"
        CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON
        RUN_OUTPUT_VARIABLE isa)
    if(NOT compiled OR NOT status EQUAL 0)
        message(FATAL_ERROR "crumb: this machine's ISA cannot be found out; set CRUMB_KERNEL_ISAS")
    endif()
    set(${out} "${isa}" PARENT_SCOPE)
endfunction()

# The names F(name...) in the list `macro` of a header.
function(crumb_listed header macro out)
    file(READ "${CRUMB_INCLUDE_DIR}/crumb/${header}" text)
    string(REGEX MATCH "define ${macro}\\(F\\)([^\n]*\\\\\n)*[^\n]*" list "${text}")
    string(REGEX MATCHALL "F\\([a-z0-9_]+" names "${list}")
    list(TRANSFORM names REPLACE "F\\(" "")
    if(NOT names)
        message(FATAL_ERROR "crumb: there is no list ${macro} in ${header}")
    endif()
    set(${out} "${names}" PARENT_SCOPE)
endfunction()

# The header that declares a table, relative to the include directory: a source file that sees nothing else compiles
# faster.
function(crumb_header_of table out)
    file(GLOB headers RELATIVE "${CRUMB_INCLUDE_DIR}"
        "${CRUMB_INCLUDE_DIR}/crumb/dispatch/*.hpp" "${CRUMB_INCLUDE_DIR}/crumb/op/*/*.hpp")
    foreach(header IN LISTS headers)
        file(STRINGS "${CRUMB_INCLUDE_DIR}/${header}" declared REGEX "^CRUMB_DECLARE_TABLE\\(${table}\\)")
        if(declared)
            set(${out} "${header}" PARENT_SCOPE)
            return()
        endif()
    endforeach()
    message(FATAL_ERROR "crumb: no header declares the table ${table}")
endfunction()

function(crumb_add_kernels_target)
    crumb_listed(compile.hpp CRUMB_FOR_EACH_TABLE tables)
    crumb_listed(format/list.hpp CRUMB_FOR_EACH_FORMAT formats)
    crumb_listed(format/list.hpp CRUMB_FOR_EACH_RECORD_FORMAT recorded)
    crumb_listed(format/list.hpp CRUMB_FOR_EACH_VARIANT variants)
    crumb_listed(format/nested.hpp CRUMB_FOR_EACH_PRECISION precisions)
    list(APPEND formats ${recorded} ${variants})
    set(omitted)
    if(CRUMB_KERNEL_FORMATS STREQUAL "all")
        list(APPEND formats ${precisions})
    else()
        set(omitted ${formats} ${precisions})
        foreach(name IN LISTS CRUMB_KERNEL_FORMATS)
            if(NOT name STREQUAL "nested" AND NOT name IN_LIST formats)
                list(JOIN formats " " known)
                message(FATAL_ERROR "crumb: CRUMB_KERNEL_FORMATS names '${name}', known are: ${known} nested all")
            endif()
        endforeach()
        set(formats ${CRUMB_KERNEL_FORMATS})
        if("nested" IN_LIST formats)
            list(REMOVE_ITEM formats nested)
            # 2 bits of nested weights are multiplied as u2.
            list(APPEND formats ${precisions} u2)
        endif()
        # Rows of neurons are multiplied as tiles of q8_0.
        list(APPEND formats q8_0)
        list(REMOVE_DUPLICATES formats)
        list(REMOVE_ITEM omitted ${formats})
    endif()

    set(sources)
    macro(source name header text)
        set(path "${PROJECT_BINARY_DIR}/crumb_kernels/${name}.cpp")
        file(CONFIGURE OUTPUT "${path}" CONTENT "#include <${header}>\n${text}\n")
        list(APPEND sources "${path}")
    endmacro()
    set(isas CRUMB_COMPILE_ISAS)
    foreach(name IN LISTS omitted)
        string(APPEND isas "\nCRUMB_OMIT_FORMAT(${name})")
    endforeach()
    source(isas crumb/compile.hpp "${isas}")
    foreach(name IN LISTS tables)
        crumb_header_of(${name} header)
        source(${name} ${header} "CRUMB_COMPILE_TABLE(${name})")
    endforeach()
    # Formats with records share kernels, which a compiler then sees once.
    set(records "")
    foreach(name IN LISTS formats)
        if(name IN_LIST recorded)
            string(APPEND records "CRUMB_COMPILE_FORMAT(${name})\n")
        else()
            source(${name} crumb/dispatch/linear.hpp "CRUMB_COMPILE_FORMAT(${name})")
        endif()
    endforeach()
    if(records)
        source(records crumb/dispatch/linear.hpp "${records}")
    endif()
    add_library(crumb_kernels STATIC EXCLUDE_FROM_ALL ${sources})
    add_library(crumb::kernels ALIAS crumb_kernels)
    target_compile_definitions(crumb_kernels INTERFACE CRUMB_COMPILED_KERNELS)
    # Engines are often shared libraries.
    set_target_properties(crumb_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(crumb_kernels PUBLIC crumb::crumb PRIVATE $<TARGET_NAME_IF_EXISTS:crumb_warnings>)

    set(isas "${CRUMB_KERNEL_ISAS}")
    crumb_listed(isa/list.hpp CRUMB_FOR_EACH_ISA known)
    list(APPEND known all native native_only)
    if(NOT isas IN_LIST known)
        list(JOIN known " " known)
        message(FATAL_ERROR "crumb: CRUMB_KERNEL_ISAS is '${isas}', known are: ${known}")
    endif()
    if(isas MATCHES "^native(_only)?$")
        crumb_native_isa(native)
        message(STATUS "crumb: ${CRUMB_KERNEL_ISAS} ISA of the kernels: ${native}")
        if(isas STREQUAL "native" AND NOT native STREQUAL "portable")
            target_compile_definitions(crumb_kernels PRIVATE CRUMB_TWO_ISAS=${native})
            return()
        endif()
        set(isas ${native})
    endif()
    if(NOT isas STREQUAL "all")
        target_compile_definitions(crumb_kernels PRIVATE CRUMB_SINGLE_ISA=${isas})
        # The kernels of one ISA take a compiler no longer than their headers do.
        set_target_properties(crumb_kernels PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
    endif()
endfunction()
