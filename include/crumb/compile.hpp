// The kernels compiled once for a program whose other files are compiled with CRUMB_COMPILED_KERNELS. Without
// CMake, one source file does it:
//
//     #include <crumb/compile.hpp>
//     CRUMB_COMPILE_ALL_KERNELS
//
// or several share the work: CRUMB_COMPILE_ISAS in one of them, CRUMB_COMPILE_FORMAT(q4_0) for each format
// and CRUMB_COMPILE_TABLE(kv_attention_functions) for each table that the program uses. What is missing is an
// undefined symbol with its name. Flags, debug checks and compiler may differ from those of the other files.
#pragma once

#include <crumb/config.hpp>
#if !CRUMB_HEADER_ONLY
#error "kernels are compiled where CRUMB_COMPILED_KERNELS is not defined"
#endif

#include <crumb/dispatch/attention.hpp>
#include <crumb/dispatch/cache.hpp>
#include <crumb/dispatch/dense.hpp>
#include <crumb/dispatch/ffn.hpp>
#include <crumb/dispatch/float_ops.hpp>
#include <crumb/dispatch/linear.hpp>
#include <crumb/dispatch/weights.hpp>
#include <crumb/op/cache/kv_attention.hpp>
#include <crumb/op/ffn/folded_ffn.hpp>

/// Calls F(name) for the struct of functions of every kind of work, those of an ISA before those of plans.
#define CRUMB_FOR_EACH_TABLE(F)                                                                              \
    F(kv_attention_functions)                                                                                \
    F(kv_cache_functions)                                                                                    \
    F(attention_functions)                                                                                   \
    F(float_functions)                                                                                       \
    F(dense_functions) F(ffn_functions) F(weight_functions) F(kv_attention_calls) F(folded_ffn_calls)

/// Defines the entry point that names the ISAs.
#define CRUMB_COMPILE_ISAS                                                                                   \
    extern "C" const void* CRUMB_ENTRY(isas)() noexcept { return &crumb::dispatch::listed_isas(); }

#define CRUMB_COMPILE_ALL_KERNELS                                                                            \
    CRUMB_COMPILE_ISAS                                                                                       \
    CRUMB_FOR_EACH_TABLE(CRUMB_COMPILE_TABLE)                                                                \
    CRUMB_FOR_EACH_FORMAT(CRUMB_COMPILE_FORMAT)                                                              \
    CRUMB_FOR_EACH_RECORD_FORMAT(CRUMB_COMPILE_FORMAT)                                                       \
    CRUMB_FOR_EACH_VARIANT(CRUMB_COMPILE_FORMAT)                                                             \
    CRUMB_FOR_EACH_PRECISION(CRUMB_COMPILE_FORMAT)
