// The one list of weight formats that dispatch, tests and benches iterate.
#pragma once

#include <crumb/core/type_list.hpp>
#include <crumb/format/cb2.hpp>
#include <crumb/format/cb2s.hpp>
#include <crumb/format/cb3.hpp>
#include <crumb/format/cb4.hpp>
#include <crumb/format/q4_0.hpp>
#include <crumb/format/q4_0_absorbing.hpp>
#include <crumb/format/q8_0.hpp>
#include <crumb/format/u2.hpp>

namespace crumb::inline CRUMB_ABI {

/// Calls F(name) for every format.
#define CRUMB_FOR_EACH_FORMAT(F) F(q8_0) F(q4_0) F(cb4) F(cb3) F(cb2) F(cb2s) F(u2)
/// The same for packings of listed formats that serve a mode of products: their blocks are those of the
/// format.
#define CRUMB_FOR_EACH_VARIANT(F) F(q4_0_absorbing)

#define CRUMB_FORMAT_ITEM(format) , format
using format_list = type_list_tail<void CRUMB_FOR_EACH_FORMAT(CRUMB_FORMAT_ITEM)>;
using variant_list = type_list_tail<void CRUMB_FOR_EACH_VARIANT(CRUMB_FORMAT_ITEM)>;
#undef CRUMB_FORMAT_ITEM

} // namespace crumb::inline CRUMB_ABI
