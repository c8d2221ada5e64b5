// Functions of a register for every ISA: the definitions of the templates in kernels.hpp.
#pragma once

#include <crumb/isa/primitives.hpp>
#include <crumb/kernel/float/kernels.hpp>

#define CRUMB_SYSTEM CRUMB_SYSTEM_MATH
#include <crumb/isa/kernels.inl>
#undef CRUMB_SYSTEM
