// Rows of neurons for every ISA: the definitions of the templates in kernels.hpp.
#pragma once

#include <crumb/kernel/ffn/kernels.hpp>
#include <crumb/kernel/float/math.hpp>

#define CRUMB_SYSTEM CRUMB_SYSTEM_FFN
#include <crumb/isa/kernels.inl>
#undef CRUMB_SYSTEM
