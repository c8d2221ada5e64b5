// What plans of attention over a cache are made with, and what their calls take.
#pragma once

#include <crumb/kernel/cache/kernels.hpp>
#include <crumb/op/cache/kv_ranges.hpp>

#include <limits>

namespace crumb::inline CRUMB_ABI {

using kernel::kv_error;
using kernel::kv_matrix_products;
using kernel::kv_mode;
using kernel::kv_plane_limits;
using kernel::kv_route;
using kernel::kv_skip_report;

/// Query heads over a cache, whose options say kv heads, head size and span.
struct kv_attention_options {
    std::size_t heads = 0;        ///< query heads, a multiple of the cache's kv heads
    float scale = 0;              ///< of the scores; 0 means 1 / sqrt(head_size)
    kv_mode mode = kv_mode::fast; ///< of coded tokens; uncoded ones are the same in both
    kv_plane_limits limits = {};  ///< of the fast mode of product quantization and KIVI
    /// What steps of more than 16 rows are multiplied with, see `int8_products`; empty: floats.
    kv_matrix_products prompts = {};
};

/// The part of the output that one call computes; default: everything, for the tokens of this step.
struct kv_attention_part {
    static constexpr std::size_t this_step = std::numeric_limits<std::size_t>::max();
    range rows = {};                  ///< of q and y
    range kv_heads = {};              ///< with all query heads that belong to them
    std::size_t position = this_step; ///< of the token in row 0; default: the cache's length
    kv_error* errors = nullptr;       ///< null, or one per row and head
};

/// What `run_skipping` may leave out, and the part of the output that it computes.
struct kv_skipping {
    float epsilon = 0;                 ///< share of a query's weights, 0 .. 1
    std::span<std::byte> scratch = {}; ///< skip_scratch_bytes, aligned
    kv_skip_report* reports = nullptr; ///< null, or one per kv head
    kv_attention_part part = {};       ///< as of `run`
};

/// Some of a row's ranges of tokens, and where the partial results of all of them go: partial_bytes(rows of
/// the part, of.count()) bytes, aligned, whose row 0 is the part's first.
struct kv_range_split {
    kv_ranges of;      ///< those of every row of the part
    range ranges = {}; ///< the ones that a call takes
    std::span<std::byte> partials;
};

} // namespace crumb::inline CRUMB_ABI
