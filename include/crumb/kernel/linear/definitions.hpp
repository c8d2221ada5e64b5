// Products for every ISA: the definitions of the templates in kernels.hpp.
#pragma once

#include <crumb/isa/primitives.hpp>
#include <crumb/kernel/linear/dense_kernels.hpp>
#include <crumb/kernel/linear/kernels.hpp>

#define CRUMB_SYSTEM CRUMB_SYSTEM_LINEAR
#include <crumb/isa/kernels.inl>
#undef CRUMB_SYSTEM
