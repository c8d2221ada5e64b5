// The kernels of quantizers for every ISA: the definitions of the templates in kernels.hpp.
#pragma once

#include <crumb/isa/primitives.hpp>
#include <crumb/kernel/weights/kernels.hpp>

#define CRUMB_SYSTEM CRUMB_SYSTEM_WEIGHTS
#include <crumb/isa/kernels.inl>
#undef CRUMB_SYSTEM
