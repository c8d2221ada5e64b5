// Compiling kernels once per program. Templates are otherwise instantiated by every source file that makes a
// plan, which for all ISAs takes a compiler from seconds to a minute.
//
// Define CRUMB_EXTERN_TEMPLATES for the whole program, and write CRUMB_INSTANTIATE(q4_0) in one source file
// for each format of the list and each precision of nested weights (CRUMB_FOR_EACH_PRECISION) that it uses,
// CRUMB_INSTANTIATE_TABLE(kv_attention_functions) in one for each table of CRUMB_FOR_EACH_TABLE. Formats of
// your own are as before.
#pragma once

#include <crumb/dispatch/dense.hpp>
#include <crumb/dispatch/ffn.hpp>
#include <crumb/dispatch/float_ops.hpp>
#include <crumb/dispatch/kv.hpp>
#include <crumb/dispatch/linear.hpp>

/// Calls F(name) for the struct of functions of every kind of work.
#define CRUMB_FOR_EACH_TABLE(F)                                                                              \
    F(kv_attention_functions)                                                                                \
    F(kv_cache_functions) F(attention_functions) F(float_functions) F(dense_functions) F(ffn_functions)
