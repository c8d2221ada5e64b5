// Every driver, for the ISA named by CRUMB_THIS_ISA. Included by isa/<name>.hpp inside its target region.
#include <crumb/kernel/math.inl> // what the others are written with

#include <crumb/kernel/activation.inl>
#include <crumb/kernel/attention.inl>
#include <crumb/kernel/blocks.inl>
#include <crumb/kernel/dense.inl>
#include <crumb/kernel/expand.inl>
#include <crumb/kernel/lookup.inl>
#include <crumb/kernel/norm.inl>
#include <crumb/kernel/operands.inl>
#include <crumb/kernel/quantize.inl>
#include <crumb/kernel/rope.inl>
#include <crumb/kernel/softmax.inl>

#include <crumb/kernel/linear.inl>
