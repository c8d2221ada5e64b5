// The float operations for every ISA: the definitions of the templates in kernels.hpp.
#pragma once

#include <crumb/kernel/float/math.hpp>

#define CRUMB_SYSTEM CRUMB_SYSTEM_FLOAT
#include <crumb/isa/kernels.inl>
#undef CRUMB_SYSTEM
