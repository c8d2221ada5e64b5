// Attention over arrays for the ISA named by CRUMB_THIS_ISA, in the order in which one is written with the
// other.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

#include <crumb/kernel/attention/attention_pass.inl>

#include <crumb/kernel/attention/attention.inl>
