// What is compiled for neon_dotprod of the system that CRUMB_SYSTEM names.
#if CRUMB_BUILDS_NEON_DOTPROD
CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_DOTPROD)
CRUMB_KEEP_ORDER_BEGIN
#define CRUMB_THIS_ISA neon_dotprod

#if CRUMB_SYSTEM == CRUMB_SYSTEM_CACHE
#include <crumb/isa/neon/byte_products.inl>
#include <crumb/isa/neon/field_products.inl>
#include <crumb/isa/neon/pq_dotprod.inl>
#endif
#include <crumb/kernel/drivers.inl>
#if CRUMB_SYSTEM == CRUMB_SYSTEM_LINEAR
#include <crumb/isa/neon/absorbed.inl>

#include <crumb/isa/neon/fields.inl>
#include <crumb/isa/neon/tile.inl>

#include <crumb/kernel/linear/record_drivers.inl>
#if CRUMB_ASM
#include <crumb/isa/neon/asm/block.inl>
#include <crumb/isa/neon/asm/lookup.inl>
#include <crumb/isa/neon/asm/record_lookup.inl>
#include <crumb/isa/neon/asm/record_single.inl>
#include <crumb/isa/neon/asm/single.inl>
#endif
#endif

#undef CRUMB_THIS_ISA
CRUMB_KEEP_ORDER_END
CRUMB_TARGET_END
#endif
