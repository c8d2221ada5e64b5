// Caches of codes for every ISA: the definitions of the templates in kernels.hpp.
#pragma once

#include <crumb/kernel/attention/definitions.hpp>
#include <crumb/kernel/cache/kernels.hpp>
#include <crumb/kernel/float/definitions.hpp>

#define CRUMB_SYSTEM CRUMB_SYSTEM_CACHE
#include <crumb/isa/kernels.inl>
#undef CRUMB_SYSTEM
