// The primitives of every ISA, and the systems of kernels that are written with them.
#pragma once

#include <crumb/isa/avx2/avx2.hpp>
#include <crumb/isa/avx2/vnni.hpp>
#include <crumb/isa/avx512/vbmi.hpp>
#include <crumb/isa/avx512/vnni.hpp>
#include <crumb/isa/concept.hpp>
#include <crumb/isa/neon/dotprod.hpp>
#include <crumb/isa/neon/i8mm.hpp>
#include <crumb/isa/neon/neon.hpp>
#include <crumb/isa/portable/portable.hpp>

namespace crumb::inline CRUMB_ABI {
#define CRUMB_ISA_ITEM(name, needs)                                                                          \
    static_assert(isa_primitives<isa::name>, #name " lacks what isa/concept.hpp requires");
CRUMB_FOR_EACH_ISA(CRUMB_ISA_ITEM)
#undef CRUMB_ISA_ITEM
} // namespace crumb::inline CRUMB_ABI

// The systems that isa/kernels.inl compiles, one at a time: kernel/<system>/definitions.hpp defines
// CRUMB_SYSTEM as one of them.
#define CRUMB_SYSTEM_MATH 1 // functions of a register that others are written with
#define CRUMB_SYSTEM_FLOAT 2
#define CRUMB_SYSTEM_ATTENTION 3
#define CRUMB_SYSTEM_CACHE 4
#define CRUMB_SYSTEM_LINEAR 5
#define CRUMB_SYSTEM_FFN 6
#define CRUMB_SYSTEM_WEIGHTS 7
