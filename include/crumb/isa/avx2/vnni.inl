// What is compiled for avx_vnni of the system that CRUMB_SYSTEM names.
#if CRUMB_BUILDS_X86 && CRUMB_SYSTEM == CRUMB_SYSTEM_LINEAR
CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX_VNNI)
#define CRUMB_THIS_ISA avx_vnni

// All else is done by the functions of avx2.
#include <crumb/kernel/linear/blocks.inl>
#include <crumb/kernel/linear/expand.inl>
#include <crumb/kernel/linear/lookup.inl>
#include <crumb/kernel/linear/lookup_planes.inl>

#include <crumb/isa/avx2/field_bits.inl>
#include <crumb/isa/avx2/fields_vnni.inl>
#include <crumb/kernel/linear/operands.inl>

#include <crumb/kernel/linear/linear.inl>
#include <crumb/kernel/linear/tile.inl>
#include <crumb/kernel/linear/unpack.inl>

#include <crumb/kernel/linear/record_drivers.inl>

#undef CRUMB_THIS_ISA
CRUMB_TARGET_END
#endif
