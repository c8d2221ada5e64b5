// What is compiled for portable of the system that CRUMB_SYSTEM names.
#if defined(CRUMB_SYSTEM)
CRUMB_IGNORE_UNDEFINED_BEGIN
#define CRUMB_THIS_ISA portable

#if CRUMB_SYSTEM == CRUMB_SYSTEM_CACHE
#include <crumb/isa/portable/pq.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_FFN
#include <crumb/isa/portable/four_rows.inl>
#endif
#include <crumb/kernel/drivers.inl>
#if CRUMB_SYSTEM == CRUMB_SYSTEM_LINEAR
#include <crumb/isa/portable/fields.inl>
#include <crumb/kernel/linear/tile.inl>

#include <crumb/kernel/linear/record_drivers.inl>
#endif

#undef CRUMB_THIS_ISA
CRUMB_IGNORE_UNDEFINED_END
#endif
