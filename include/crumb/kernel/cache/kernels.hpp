// The kernels over caches of encoded keys and values, by name; the bodies are in the .inl files.
#pragma once

#include <crumb/format/kv_page.hpp>
#include <crumb/format/kv_search.hpp>
#include <crumb/kernel/cache/scratch.hpp>
#include <crumb/kernel/float/kernels.hpp>

namespace crumb::inline CRUMB_ABI::kernel {

/// A kv head's keys and values of 256 tokens, or nothing.
struct kv_parts {
    const std::byte *keys = nullptr, *values = nullptr;
};

/// One layer of a cache as one step sees it. Token t is a sink if t < sinks; else with u = t - sinks it lies
/// in part u / 256 if u < coded, or in slot u % slots of the window.
struct kv_layer_view {
    kv_page_layout page;
    const std::byte* const* pages = nullptr;
    std::size_t ring = 1; ///< pages that there can be: tokens go through them again and again
    std::size_t layer = 0;
    std::size_t sinks = 0, coded = 0, slots = 0;
    kv_rows<half> sink_keys, sink_values;     ///< of kv head 0, rows of head_size
    kv_rows<half> window_keys, window_values; ///< of kv head 0
    pq_codebooks codebooks;

    const kv_part_layout& keys() const noexcept { return page.keys(); }
    const kv_part_layout& values() const noexcept { return page.values(); }
    /// A kv head's keys or values of tokens 256 p and following after the sinks.
    const std::byte* part(std::size_t p, std::size_t kv_head, bool of_keys) const noexcept {
        return pages[p / page.parts() % ring] + page.offset(p % page.parts(), layer, kv_head, of_keys);
    }
    kv_parts parts(std::size_t p, std::size_t kv_head) const noexcept {
        return {part(p, kv_head, true), part(p, kv_head, false)};
    }
    pq_tables tables(std::size_t kv_head, bool of_keys) const noexcept {
        return codebooks.tables(layer, kv_head, of_keys);
    }
};

/// A block of 64 tokens to encode into a part.
struct kv_block_args {
    kv_part_layout layout;
    pq_tables tables;
    std::size_t block = 0; ///< of the part: tokens 64 * block and following
    std::byte* part = nullptr;
    const half* from = nullptr;                 ///< 64 rows of head_size
    std::size_t scale_trials = kv_scale_trials; ///< 1 .. kv_scale_trials
    float* scratch = nullptr;                   ///< kv_encode_floats(head_size), aligned
};

/// Floats of scratch memory that `kv_encode` needs: residuals, and codes of every scale that is tried.
constexpr std::size_t kv_encode_floats(std::size_t head_size) noexcept {
    return kv_block_tokens * head_size + kv_scale_trials * kv_block_tokens * head_size / sizeof(float);
}

/// What decoding needs: tokens first .. last - 1 of a part become rows of floats.
struct kv_decode_args {
    kv_part_layout layout;
    pq_tables tables;
    const std::byte* part = nullptr;
    std::size_t first = 0, last = 0;
    float* to = nullptr;    ///< row of token t at to + (t - first) * stride
    std::size_t stride = 0; ///< at least head_size
};

/// What the error bound of a fast result is made of, per row and head: |y - exact| <= (e^(2 score) - 1) max
/// |v - y| + weight, where exact is attention over the decoded cache.
struct kv_error {
    float score = 0;  ///< largest error of a score
    float weight = 0; ///< largest error of an output by rounded weights
    /// Shares of the parts of 256 tokens that took a second plane of tables or queries, and of weights.
    float second_scores = 0, second_weights = 0;
};

/// When one plane of 7 bits is enough; 0: never.
struct kv_plane_limits {
    /// Of a score's error, as `kv_error` bounds it: a query takes both planes for the parts (of uniform codes
    /// for halves of them) where one might err by more. The root mean square of errors is about a thirtieth
    /// of the bound, for tables a tenth, but a query is rounded alike for all tokens: limits of a quarter
    /// cost a model like GPT-2, whose channels differ most, more than the codes do.
    float score = 1.0f / 16;
    /// Share of the weight read so far that rounding to one plane is expected to change.
    float weight = 1.0f / 64;
    /// The same of weights times scales, which uniform codes are multiplied with: these lose less themselves.
    float scaled_weight = 1.0f / 256;
};

/// Weights e^(score - level) of a part's tokens, a row per query.
struct kv_part_weights {
    float* weights = nullptr;
    std::size_t stride = 0;
    const float* levels = nullptr; ///< per query

    float* row(std::size_t i) const noexcept { return weights + i * stride; }
};

/// What was left out for a kv head.
struct kv_skip_report {
    std::size_t blocks = 0, skipped = 0; ///< of 64 coded tokens; those whose values were not read
    float mass = 0;                      ///< largest share of a query's weights that these had
};

/// Attention over a cache.
struct kv_attention_args : attention_query_args {
    kv_layer_view cache;
    const pq_scans* scans = nullptr;   ///< of the route by tables
    kv_matrix_products products;       ///< of the route by matrices
    kv_scratch memory;                 ///< of `scratch`; knows the route
    kv_plane_limits limits;            ///< of the routes that scan
    kv_error* errors = nullptr;        ///< per row and head, or null
    std::size_t ranges = 1;            ///< of tokens, each with partial results of its own
    std::size_t range_tokens = 0;      ///< of all of them but the last; whole parts, sinks aside
    std::size_t partial_step = 0;      ///< floats from the partial results of a range to the next
    float epsilon = 0;                 ///< share of a query's weights whose values may be left out
    float* skip_scratch = nullptr;     ///< kv_skip_scratch::floats(), or null: all values are read
    kv_skip_report* skipped = nullptr; ///< with skip_scratch: per kv head, or null
};

/// Whether attention reads codes as they lie on an ISA. Where it does not, the ISA says so by
/// `decodes_codes`.
template <class Isa>
concept reads_codes = !requires { Isa::decodes_codes; };

/// Whether an ISA multiplies bytes with integers of 15 bits. What `byte_products` has: `from`, queries per kv
/// head and row from which that pays; the `width` of a register in bytes; `sets` of four tokens that are
/// scored together; `tokens` whose values are added together, 2 of them if integers are words of 16 bits;
///     by_quads      register k of four tokens: in lane 4 l + j four channels from 16 l + 4 k on
///                   of token j
///     scales        of four tokens, for the groups of channels of a register of bytes, from [groups][64]
///     store         step * (sums over all lanes of a token), of `sets` registers
///     round         16 products of floats to integers, ties to even
/// for words
///     even, odd     every second byte as 16 bits
///     dot           adds two products of 16 bits to each lane
///     widen         bytes as a register of 16 bits
///     interleave    those of two tokens beside each other
///     in_order      sums of what `interleave` made, in the order of channels
///     load_weights  those of two tokens, repeated
/// and for planes of bytes, 128 high + low
///     multiply      of registers of `by_quads` with a query, whose low plane lies so many bytes behind
///     add           adds `tokens` tokens times some queries' weights to four sums each
///     finish        those sums in the order of channels
template <class Isa>
concept has_byte_products = requires { typename Isa::byte_products; };

/// Whether an ISA multiplies codes of 2 and 4 bits with bytes. What `field_products` has: the `width` of
/// registers in bytes; a `tile` of planes of factors that share a pass; `channels` of values that do; quads
/// of channels whose products a sum takes `at_once`, a multiple of 4;
///     codes      register R of the codes of a half, 32 tokens, of each block of a unit, as bytes; a unit is
///                a block of 64 tokens, or two where a register holds more than 32 codes
///     by_quads   codes of four channels beside each other, four tokens in 16 bytes: of registers of tokens
///                0 .. 15 and so on, in register k tokens 4 k .. 4 k + 3 of each 16
///     factors    of a quad for all tokens; for those of the second half of 64 bytes from elsewhere
///     dot        adds products of the factors to the sums of tokens
///     widen      such sums as 32 bits
///     put        base + step * sum of four registers, in the order of tokens
///     add_to     adds factor * (sums of tokens) to the `pq_sums` floats of each of `channels` channels
///     place      where `round` puts the factors of a quad: of four, from a multiple of 4 on, as of the first
///     round      rounds `width` channels to a plane, or to two: 128 high + low; adds up the integers
template <class Isa>
concept has_field_products = requires { typename Isa::field_products; };

template <class Isa>
class kv_code_search;
template <class Isa>
struct kv_encode_run;
template <class Isa>
struct kv_decode_run;
template <class Isa>
struct kv_unpack;
template <class Isa>
struct byte_rows;
template <class Isa>
struct kv_uniform;
template <class Isa, class Products>
struct kv_words;
template <class Isa, class Products>
struct kv_integers;
template <class Isa, class Products>
struct kv_field_scores;
template <class Isa, class Products>
struct kv_fields;
template <class Isa>
struct kv_means;
template <class Isa>
struct pq_rounding;
template <class Isa>
struct kv_scan;
template <class Isa>
struct kv_skip;
template <class Isa>
struct kv_matrices;
template <class Isa>
struct kv_attention_run;

/// Encodes 64 tokens as reference::kv_part does, bit for bit.
template <class Isa>
void kv_encode(const kv_block_args& args) noexcept {
    kv_encode_run<Isa>::run(args);
}
/// Decodes tokens of a part.
template <class Isa>
void kv_decode(const kv_decode_args& args) noexcept {
    kv_decode_run<Isa>::run(args);
}
/// Causal attention over sinks, codes and window.
template <class Isa>
void kv_attention(const kv_attention_args& args) noexcept {
    kv_attention_run<Isa>::run(args);
}

} // namespace crumb::inline CRUMB_ABI::kernel
