// What is compiled for neon_i8mm of the system that CRUMB_SYSTEM names.
#if CRUMB_BUILDS_NEON_I8MM
CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_I8MM)
CRUMB_KEEP_ORDER_BEGIN
#define CRUMB_THIS_ISA neon_i8mm

#include <crumb/kernel/drivers.inl>
#if CRUMB_SYSTEM == CRUMB_SYSTEM_LINEAR
#include <crumb/isa/neon/absorbed.inl>

#include <crumb/isa/neon/fields.inl>
#include <crumb/isa/neon/panel_product_i8mm.inl>
#include <crumb/isa/neon/tile.inl>
#include <crumb/isa/neon/tile_i8mm.inl>

#include <crumb/isa/neon/panel_i8mm.inl>
#include <crumb/kernel/linear/record_drivers.inl>

#include <crumb/isa/neon/record_block_i8mm.inl>
#if CRUMB_ASM
#include <crumb/isa/neon/asm/block_i8mm.inl>
#include <crumb/isa/neon/asm/lookup.inl>
#include <crumb/isa/neon/asm/panel_fill_i8mm.inl>
#include <crumb/isa/neon/asm/record_lookup.inl>
#include <crumb/isa/neon/asm/record_single.inl>
#include <crumb/isa/neon/asm/single.inl>
#endif
#endif

#undef CRUMB_THIS_ISA
CRUMB_KEEP_ORDER_END
CRUMB_TARGET_END
#endif
