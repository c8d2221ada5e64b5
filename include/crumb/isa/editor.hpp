// Lets an editor open an .inl by itself. It is then compiled for `edited`, an ISA with the primitives of the
// one that CRUMB_EDITED_ISA names, and includes what else of that ISA it needs.
#pragma once

#include <crumb/isa/primitives.hpp>
#include <crumb/kernel/cache/kernels.hpp>
#include <crumb/kernel/ffn/kernels.hpp>
#include <crumb/kernel/float/kernels.hpp>
#include <crumb/kernel/linear/dense_kernels.hpp>
#include <crumb/kernel/linear/kernels.hpp>
#include <crumb/kernel/weights/kernels.hpp>

#if !defined(CRUMB_EDITED_ISA)
#define CRUMB_EDITED_ISA portable
#endif

namespace crumb::inline CRUMB_ABI::isa {
struct edited : CRUMB_EDITED_ISA {};
} // namespace crumb::inline CRUMB_ABI::isa

#define CRUMB_THIS_ISA edited
