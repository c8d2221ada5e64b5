// The kernels of the system that CRUMB_SYSTEM names, for every ISA inside its target region; an ISA after
// those that it is derived from.
#include <crumb/isa/avx2/avx2.inl>

#include <crumb/isa/avx2/vnni.inl>

#include <crumb/isa/avx512/vnni.inl>

#include <crumb/isa/avx512/vbmi.inl>

#include <crumb/isa/neon/neon.inl>

#include <crumb/isa/neon/dotprod.inl>

#include <crumb/isa/neon/i8mm.inl>

#include <crumb/isa/portable/portable.inl>
