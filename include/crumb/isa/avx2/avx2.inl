// What is compiled for avx2 of the system that CRUMB_SYSTEM names.
#if CRUMB_BUILDS_X86
CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX2)
#define CRUMB_THIS_ISA avx2

#if CRUMB_SYSTEM == CRUMB_SYSTEM_CACHE
#include <crumb/isa/avx2/byte_products.inl>
#include <crumb/isa/avx2/field_products.inl>
#include <crumb/isa/avx2/pq_quads.inl>
#include <crumb/isa/avx2/pq_words.inl>

#include <crumb/isa/avx2/pq.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_FFN
#include <crumb/isa/avx2/four_rows.inl>
#endif
#include <crumb/kernel/drivers.inl>
#if CRUMB_SYSTEM == CRUMB_SYSTEM_LINEAR
#include <crumb/isa/avx2/field_bits.inl>
#include <crumb/isa/avx2/fields.inl>
#include <crumb/kernel/linear/tile.inl>

#include <crumb/kernel/linear/record_drivers.inl>
#endif

#undef CRUMB_THIS_ISA
CRUMB_TARGET_END
#endif
