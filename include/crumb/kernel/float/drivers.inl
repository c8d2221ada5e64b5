// The float operations for the ISA named by CRUMB_THIS_ISA.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

#include <crumb/kernel/float/elementwise.inl>
#include <crumb/kernel/float/norm.inl>
#include <crumb/kernel/float/rope.inl>
#include <crumb/kernel/float/softmax.inl>
