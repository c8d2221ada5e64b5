// Compiling the kernels of a format once per program. Templates are otherwise instantiated by every source
// file that makes a plan, which for all ISAs of a format takes a compiler several seconds.
//
// Define CRUMB_EXTERN_TEMPLATES for the whole program, and write CRUMB_INSTANTIATE(q4_0) in one source file
// for each format of the list that it uses. Formats of your own are as before.
#pragma once

#include <crumb/dispatch/linear.hpp>
#include <crumb/format/list.hpp>

#define CRUMB_INSTANTIATE(format)                                                                            \
    template const crumb::dispatch::linear_functions& crumb::dispatch::functions_of<crumb::format>(          \
        std::size_t, std::size_t) noexcept;

#if defined(CRUMB_EXTERN_TEMPLATES)
#define CRUMB_EXTERN_FORMAT(format) extern CRUMB_INSTANTIATE(format)
CRUMB_FOR_EACH_FORMAT(CRUMB_EXTERN_FORMAT)
#undef CRUMB_EXTERN_FORMAT
#endif
