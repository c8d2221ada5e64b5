// The one list of ISAs, best first. `portable` is last and runs everywhere.
#pragma once

#include <crumb/core/type_list.hpp>
#include <crumb/isa/avx2.hpp>
#include <crumb/isa/avx512_vbmi.hpp>
#include <crumb/isa/avx512_vnni.hpp>
#include <crumb/isa/neon.hpp>
#include <crumb/isa/neon_dotprod.hpp>
#include <crumb/isa/neon_i8mm.hpp>
#include <crumb/isa/portable.hpp>

namespace crumb::inline CRUMB_ABI {

#if defined(CRUMB_SINGLE_ISA)
using isa_list = type_list<isa::CRUMB_SINGLE_ISA>;
#elif CRUMB_BUILDS_X86
using isa_list = type_list<isa::avx512_vbmi, isa::avx512_vnni, isa::avx2, isa::portable>;
#elif CRUMB_BUILDS_NEON_I8MM
using isa_list = type_list<isa::neon_i8mm, isa::neon_dotprod, isa::neon, isa::portable>;
#elif CRUMB_BUILDS_NEON_DOTPROD
using isa_list = type_list<isa::neon_dotprod, isa::neon, isa::portable>;
#else
using isa_list = type_list<isa::neon, isa::portable>;
#endif

} // namespace crumb::inline CRUMB_ABI
