// Every driver, for the ISA named by CRUMB_THIS_ISA. Included by isa/<name>.hpp inside its target region.
#include <crumb/kernel/dense.inl>
#include <crumb/kernel/expand.inl>
#include <crumb/kernel/linear.inl>
#include <crumb/kernel/quantize.inl>
#include <crumb/kernel/row_pair.inl>
