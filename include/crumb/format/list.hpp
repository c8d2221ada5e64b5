// The one list of weight formats that dispatch, tests and benches iterate.
#pragma once

#include <crumb/core/type_list.hpp>
#include <crumb/format/cb2.hpp>
#include <crumb/format/cb2s.hpp>
#include <crumb/format/cb3.hpp>
#include <crumb/format/cb4.hpp>
#include <crumb/format/iq4_nl.hpp>
#include <crumb/format/iq4_xs.hpp>
#include <crumb/format/mxfp4.hpp>
#include <crumb/format/nvfp4.hpp>
#include <crumb/format/q1_0.hpp>
#include <crumb/format/q2_0.hpp>
#include <crumb/format/q2_k.hpp>
#include <crumb/format/q3_k.hpp>
#include <crumb/format/q4_0.hpp>
#include <crumb/format/q4_0_absorbing.hpp>
#include <crumb/format/q4_1.hpp>
#include <crumb/format/q4_k.hpp>
#include <crumb/format/q5_0.hpp>
#include <crumb/format/q5_1.hpp>
#include <crumb/format/q5_k.hpp>
#include <crumb/format/q6_k.hpp>
#include <crumb/format/q8_0.hpp>
#include <crumb/format/tq1_0.hpp>
#include <crumb/format/tq2_0.hpp>
#include <crumb/format/u2.hpp>

namespace crumb::inline CRUMB_ABI {

/// Calls F(name) for every format.
#define CRUMB_FOR_EACH_FORMAT(F) F(q8_0) F(q4_0) F(cb4) F(cb3) F(cb2) F(cb2s) F(u2) F(iq4_nl)
/// The same for formats whose packed scales are records.
#define CRUMB_FOR_EACH_RECORD_FORMAT(F)                                                                      \
    F(q4_1)                                                                                                  \
    F(q5_0)                                                                                                  \
    F(q5_1)                                                                                                  \
    F(q2_k)                                                                                                  \
    F(q3_k)                                                                                                  \
    F(q4_k) F(q5_k) F(q6_k) F(iq4_xs) F(mxfp4) F(nvfp4) F(tq1_0) F(tq2_0) F(q1_0) F(q2_0)
/// The same for packings of listed formats that serve a mode of products: their blocks are those of the
/// format.
#define CRUMB_FOR_EACH_VARIANT(F) F(q4_0_absorbing)

#define CRUMB_FORMAT_ITEM(format) , format
using format_list = type_list_tail<void CRUMB_FOR_EACH_FORMAT(CRUMB_FORMAT_ITEM)>;
using record_format_list = type_list_tail<void CRUMB_FOR_EACH_RECORD_FORMAT(CRUMB_FORMAT_ITEM)>;
using variant_list = type_list_tail<void CRUMB_FOR_EACH_VARIANT(CRUMB_FORMAT_ITEM)>;
#undef CRUMB_FORMAT_ITEM
/// Every format that has blocks of its own.
using all_format_list = joined<format_list, record_format_list>;

} // namespace crumb::inline CRUMB_ABI
