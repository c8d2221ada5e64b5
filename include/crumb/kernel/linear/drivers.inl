// Products for the ISA named by CRUMB_THIS_ISA, in the order in which one is written with the other.
// Micro-kernels come after them: kernel/linear/tile.inl, or what the ISA has instead.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

#include <crumb/kernel/linear/blocks.inl>
#include <crumb/kernel/linear/dense.inl>
#include <crumb/kernel/linear/expand.inl>
#include <crumb/kernel/linear/lookup.inl>
#include <crumb/kernel/linear/lookup_planes.inl>
#include <crumb/kernel/linear/quantize.inl>

#include <crumb/kernel/linear/operands.inl>

#include <crumb/kernel/linear/linear.inl>
#include <crumb/kernel/linear/unpack.inl>
