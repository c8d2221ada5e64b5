// What is compiled for avx512_vnni of the system that CRUMB_SYSTEM names.
#if CRUMB_BUILDS_X86
CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX512_VNNI)
CRUMB_IGNORE_UNDEFINED_BEGIN
#define CRUMB_THIS_ISA avx512_vnni

#if CRUMB_SYSTEM == CRUMB_SYSTEM_CACHE
#include <crumb/isa/avx512/byte_products.inl>
#include <crumb/isa/avx512/pq_quads.inl>
#include <crumb/isa/avx512/pq_tables.inl>

#include <crumb/isa/avx512/pq.inl>

#include <crumb/isa/avx512/field_products.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_FFN
#include <crumb/isa/avx512/code_dots.inl>
#include <crumb/isa/avx512/four_rows.inl>
#endif
#include <crumb/kernel/drivers.inl>
#if CRUMB_SYSTEM == CRUMB_SYSTEM_LINEAR
#include <crumb/isa/avx512/fields.inl>
#include <crumb/isa/avx512/panel_product.inl>

#include <crumb/isa/avx512/panel.inl>
#include <crumb/kernel/linear/tile.inl>

#include <crumb/kernel/linear/record_drivers.inl>
#endif

#undef CRUMB_THIS_ISA
CRUMB_IGNORE_UNDEFINED_END
CRUMB_TARGET_END
#endif
