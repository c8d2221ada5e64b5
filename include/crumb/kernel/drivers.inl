// The drivers of the system that CRUMB_SYSTEM names, for the ISA that CRUMB_THIS_ISA names.
#if !defined(CRUMB_SYSTEM)
// Opened alone.
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_MATH
#include <crumb/kernel/float/math.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_FLOAT
#include <crumb/kernel/float/drivers.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_ATTENTION
#include <crumb/kernel/attention/drivers.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_CACHE
#include <crumb/kernel/cache/drivers.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_LINEAR
#include <crumb/kernel/linear/drivers.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_FFN
#include <crumb/kernel/ffn/drivers.inl>
#elif CRUMB_SYSTEM == CRUMB_SYSTEM_WEIGHTS
#include <crumb/kernel/weights/drivers.inl>
#endif
