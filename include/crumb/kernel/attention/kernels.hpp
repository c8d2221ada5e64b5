// Attention over keys and values in floats or halves, by name; the bodies are in the .inl files.
#pragma once

#include <crumb/core/half.hpp>
#include <crumb/core/view.hpp>
#include <crumb/format/kv_part.hpp>
#include <crumb/kernel/attention/prefetch.hpp>

namespace crumb::inline CRUMB_ABI::kernel {

/// Tokens that are scored before the running maximum is updated.
inline constexpr std::size_t attention_block = 64;
/// Queries that share a pass over keys and values, unless one group is larger.
inline constexpr std::size_t attention_queries = 64;

/// How attention's scratch memory is carved, for passes of `queries` queries; sizes in floats. The state is
/// what a pass keeps from block to block; the work is free between blocks.
struct attention_scratch {
    std::size_t queries = 0;
    std::size_t padded = 0;               ///< head_size rounded up to whole registers of any ISA
    std::size_t tokens = attention_block; ///< whose scores are kept

    constexpr std::size_t each() const noexcept { return (queries + 15) / 16 * 16; }
    // of the state: queries, their sums, maxima and totals
    constexpr std::size_t sums() const noexcept { return queries * padded; }
    constexpr std::size_t maxima() const noexcept { return 2 * sums(); }
    constexpr std::size_t totals() const noexcept { return maxima() + each(); }
    constexpr std::size_t state_size() const noexcept { return totals() + each(); }
    // of the work: a converted block, scores, new maxima and factors
    constexpr std::size_t scores() const noexcept { return attention_block * padded; }
    constexpr std::size_t fresh() const noexcept { return scores() + queries * tokens; }
    constexpr std::size_t factors() const noexcept { return fresh() + each(); }
    constexpr std::size_t work_size() const noexcept { return factors() + each(); }
    constexpr std::size_t size() const noexcept { return state_size() + work_size(); }
};

/// Keys or values of one kv head: row t begins at data + t * stride.
template <class T>
struct kv_rows {
    const T* data = nullptr;
    std::size_t stride = 0;

    constexpr const T* row(std::size_t t) const noexcept { return data + t * stride; }
    constexpr kv_rows from(std::size_t t) const noexcept { return {row(t), stride}; }
};

/// The row of a token of `q8_0`: channel c is scales[c / 32] * codes[c].
struct kv_byte_row {
    const std::int8_t* codes = nullptr;
    const float* scales = nullptr;
};
struct kv_bytes;
template <>
struct kv_rows<kv_bytes> {
    const std::int8_t* data = nullptr;
    const float* scales = nullptr;
    std::size_t stride = 0, groups = 0;

    constexpr kv_byte_row row(std::size_t t) const noexcept {
        return {data + t * stride, scales + t * groups};
    }
};

/// What attention needs besides keys and values.
struct attention_query_args {
    matrix_view<const float> q; ///< row r: heads * head_size floats, token at `position` + r
    std::size_t head_size = 0;
    std::size_t group = 1; ///< query heads per kv head
    float scale = 1;       ///< of the scores
    std::size_t position = 0;
    matrix_view<float> y;      ///< result like q, unless
    float* partials = nullptr; ///< is set: per row and head head_size sums, the maximum, the sum of weights
    float* scratch = nullptr;  ///< attention_scratch::size() floats, aligned
    std::size_t score_tokens = attention_block; ///< attention_scratch::tokens
    std::size_t row_block = 1;                  ///< rows per pass; times `group`: attention_scratch::queries
    bool two_streams = false;                   ///< see `cpu_features`
    std::size_t span = ~std::size_t{0};         ///< tokens that a row sees: its own and those before it
    range tokens;   ///< keys and values to use, closed at the last row's position + 1
    range rows;     ///< rows to compute, closed
    range kv_heads; ///< kv heads to compute, closed
};

/// Attention over floats or halves.
template <class T>
struct attention_args : attention_query_args {
    kv_rows<T> k, v; ///< of kv head 0
    std::size_t k_head_stride = 0, v_head_stride = 0;
};

/// What merging needs: `count` sets of partial results, `stride` floats apart.
struct merge_args {
    const float* partials = nullptr;
    std::size_t count = 0;
    std::size_t stride = 0;
    std::size_t head_size = 0;
    std::size_t heads = 0;
    matrix_view<float> y;
    range rows;       ///< rows to merge, closed
    range head_range; ///< query heads to merge, closed
};

// One specialization per ISA is compiled inside its target region.
template <class Isa>
struct attention_pass;
template <class Isa, class T>
struct attention_run;
template <class Isa>
struct merge_run;

/// Causal attention with grouped queries over a range of tokens.
template <class T, class Isa>
void attention(const attention_args<T>& args) noexcept {
    attention_run<Isa, T>::run(args);
}

/// y = sum over i of exp(m_i - m) o_i / sum over i of exp(m_i - m) l_i, m = max m_i; 0 where all are empty.
template <class Isa>
void merge(const merge_args& args) noexcept {
    merge_run<Isa>::run(args);
}

} // namespace crumb::inline CRUMB_ABI::kernel
