// The kernels of quantizers for the ISA named by CRUMB_THIS_ISA.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

#include <crumb/kernel/weights/nested.inl>
#include <crumb/kernel/weights/products.inl>
#include <crumb/kernel/weights/search.inl>
