// The one list of weight formats that dispatch, tests and benches iterate.
#pragma once

#include <crumb/core/type_list.hpp>
#include <crumb/format/q4_0.hpp>
#include <crumb/format/q8_0.hpp>

namespace crumb::inline CRUMB_ABI {

using format_list = type_list<q8_0, q4_0>;

} // namespace crumb::inline CRUMB_ABI
