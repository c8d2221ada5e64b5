// What is compiled for neon of the system that CRUMB_SYSTEM names.
#if CRUMB_BUILDS_NEON
CRUMB_KEEP_ORDER_BEGIN
#define CRUMB_THIS_ISA neon

#if CRUMB_SYSTEM == CRUMB_SYSTEM_CACHE
#include <crumb/isa/neon/pq.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_FFN
#include <crumb/isa/neon/four_rows.inl>
#endif
#include <crumb/kernel/drivers.inl>
#if CRUMB_SYSTEM == CRUMB_SYSTEM_LINEAR
#include <crumb/isa/neon/fields.inl>
#include <crumb/isa/neon/tile.inl>

#include <crumb/kernel/linear/record_drivers.inl>
#endif

#undef CRUMB_THIS_ISA
CRUMB_KEEP_ORDER_END
#endif
