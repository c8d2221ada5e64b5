// What is compiled for avx512_vbmi of the system that CRUMB_SYSTEM names.
#if CRUMB_BUILDS_X86 && (CRUMB_SYSTEM == CRUMB_SYSTEM_MATH || CRUMB_SYSTEM == CRUMB_SYSTEM_CACHE ||          \
                         CRUMB_SYSTEM == CRUMB_SYSTEM_LINEAR)
CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX512_VBMI)
CRUMB_IGNORE_UNDEFINED_BEGIN
#define CRUMB_THIS_ISA avx512_vbmi

// All else is done by the functions of avx512_vnni.
#if CRUMB_SYSTEM == CRUMB_SYSTEM_MATH
#include <crumb/kernel/float/math.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_CACHE
#include <crumb/isa/avx512/pq_vbmi.inl>

#include <crumb/kernel/cache/scans.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_LINEAR
#include <crumb/kernel/linear/blocks.inl>
#include <crumb/kernel/linear/expand.inl>
#include <crumb/kernel/linear/lookup_planes.inl>

#include <crumb/isa/avx512/lookup_vbmi.inl>
#include <crumb/kernel/linear/operands.inl>

#include <crumb/isa/avx512/panel.inl>
#include <crumb/kernel/linear/linear.inl>
#include <crumb/kernel/linear/tile.inl>
#include <crumb/kernel/linear/unpack.inl>
#endif

#undef CRUMB_THIS_ISA
CRUMB_IGNORE_UNDEFINED_END
CRUMB_TARGET_END
#endif
