// How the scratch memory of attention over a cache is carved.
#pragma once

#include <crumb/format/traits.hpp>
#include <crumb/kernel/cache/matrix_products.hpp>
#include <crumb/kernel/cache/pq_kernels.hpp>

namespace crumb::inline CRUMB_ABI::kernel {

/// Channels that a plane of factors is filled up to a multiple of: whole registers of any ISA.
inline constexpr std::size_t kv_factor_channels = 64;
/// Tokens whose factors are made together.
inline constexpr std::size_t kv_factor_tokens = 128;

/// What a pass keeps of a query that scans codes.
struct kv_scan_state {
    float reference = 0; ///< score that the sums of values are relative to; -infinity: nothing summed yet
    float error = 0;     ///< largest bound of a score's error
    float lost = 0;      ///< sum of |weight - rounded weight|, relative to `reference`
    float mass = 0;      ///< sum of weights, relative to `reference`
    float spent = 0;     ///< what rounding to one plane is expected to have lost of it
    std::uint32_t scored = 0, second_scores = 0;   ///< parts, and those that took both planes
    std::uint32_t weighed = 0, second_weights = 0; ///< likewise
};

/// How the scratch memory of attention over a cache is carved: a state for each of some kv heads, which go
/// through their parts together so that short pages are read from end to end, and work that they share.
class kv_scratch {
  public:
    kv_scratch() = default;
    /// For passes of `queries` queries of each of up to `kv_heads` heads: fewer where their states would not
    /// stay in a core's second cache. `joined`: with copies of entries, see `pq_join`.
    constexpr kv_scratch(std::size_t head_size, const kv_codec& codec, std::size_t queries,
                         std::size_t kv_heads, kv_route route, bool joined = false,
                         const kv_matrix_products& products = {}) noexcept
        : route_(route), joined_(joined && route == kv_route::expanded),
          floats_{queries, round_up(head_size, 16),
                  is_scan(route_) || route_ == kv_route::channels || route_ == kv_route::matrices ||
                          fields(codec)
                      ? kv_part_tokens
                      : attention_block} {
        std::size_t end = 0;
        const auto take = [&](std::size_t bytes) {
            const std::size_t at = end;
            end += round_up(bytes, alignment);
            return at;
        };
        const bool scans = is_scan(route_), codes = fields(codec);
        (void)take(floats_.state_size() * sizeof(float));
        if (route_ == kv_route::integers && !codes) {
            // Besides the integers, these as a kernel multiplies them.
            query_bytes_ = pq_query_memory(codec, head_size, true).bytes + 8 * head_size;
            tables_ = take(queries * query_bytes_);
            queries_ = take(queries * sizeof(pq_query));
            states_ = take(queries * sizeof(kv_scan_state));
        }
        if (codes) {
            sum_floats_ = head_size * pq_sums;
            sums_ = take(queries * sum_floats_ * sizeof(float));
            states_ = take(queries * sizeof(kv_scan_state));
        }
        if (scans) {
            query_bytes_ = pq_query_memory(codec, head_size, route_ == kv_route::expanded).bytes;
            sum_floats_ = round_up(head_size, 16) * pq_sums;
            tables_ = take(queries * query_bytes_);
            sums_ = take(queries * sum_floats_ * sizeof(float));
            queries_ = take(queries * sizeof(pq_query));
            states_ = take(queries * sizeof(kv_scan_state));
            entry_bytes_ = joined_ ? round_up(head_size, 16) * codec.entries() : 0;
            entries_ = take(2 * entry_bytes_);
        }
        if (route_ == kv_route::matrices)
            rounded_queries_ = take(products.bytes(products.functions, queries, head_size));
        state_bytes_ = end;
        constexpr std::size_t most = std::size_t{256} << 10;
        heads_ = most / state_bytes_ < kv_heads ? most / state_bytes_ : kv_heads;
        heads_ = heads_ == 0 ? 1 : heads_;
        constexpr std::size_t row_of_codes = std::size_t{80} << 10;
        parts_ = row_of_codes / (kv_part_layout(codec, head_size, true).bytes() +
                                 kv_part_layout(codec, head_size, false).bytes());
        parts_ = parts_ == 0 ? 1 : parts_;

        end = 0;
        (void)take(floats_.work_size() * sizeof(float));
        if (codes)
            factors_ = take(queries * 2 * (kv_factor_tokens / kv_mean_tokens) *
                            round_up(head_size, kv_factor_channels));
        if (route_ == kv_route::channels)
            factors_ = take(queries * (2 * floats_.padded + kv_part_tokens) * sizeof(float));
        if (scans || codes) {
            weights_ = take(queries * 2 * kv_part_tokens);
            numbers_ = take(2 * kv_part_tokens * sizeof(float));
            planes_ = take(queries * 2 * sizeof(pq_plane));
            counts_ = take(queries);
        }
        if (route_ == kv_route::matrices) {
            const std::size_t units =
                kv_part_tokens / tile_channels * ((head_size + group_size - 1) / group_size);
            rounded_weights_ = take(products.bytes(products.functions, queries, kv_part_tokens));
            matrix_scales_ = take(units * tile_channels * sizeof(half));
            matrix_codes_ = take(units * byte_codes::bytes);
        }
        work_bytes_ = end;
    }

    constexpr kv_route route() const noexcept { return route_; }
    constexpr bool scans() const noexcept { return is_scan(route_); }
    constexpr bool joined() const noexcept { return joined_; }
    /// Heads that go through their parts together.
    constexpr std::size_t heads() const noexcept { return heads_; }
    /// Parts that such a head goes through before the next one does, where codes are scanned.
    constexpr std::size_t parts() const noexcept { return parts_; }
    constexpr std::size_t bytes() const noexcept { return work_bytes_ + heads_ * state_bytes_; }
    /// The work, and the state of head i of those that go together; both begin with floats of a pass.
    float* work(float* scratch) const noexcept { return scratch; }
    float* state(float* scratch, std::size_t i) const noexcept {
        return reinterpret_cast<float*>(at(scratch, work_bytes_ + i * state_bytes_));
    }

    /// Tokens whose scores are kept.
    constexpr std::size_t tokens() const noexcept { return floats_.tokens; }

    // ---- of a state ----
    std::byte* tables(float* state, std::size_t i) const noexcept {
        return at(state, tables_) + i * query_bytes_;
    }
    float* sums(float* state, std::size_t i) const noexcept {
        return reinterpret_cast<float*>(at(state, sums_)) + i * sum_floats_;
    }
    constexpr std::size_t sum_floats() const noexcept { return sum_floats_; }
    pq_query* queries(float* state) const noexcept {
        return reinterpret_cast<pq_query*>(at(state, queries_));
    }
    kv_scan_state* states(float* state) const noexcept {
        return reinterpret_cast<kv_scan_state*>(at(state, states_));
    }

    /// Copies of a head's entries of keys or values.
    std::int8_t* entries(float* state, bool keys) const noexcept {
        return reinterpret_cast<std::int8_t*>(at(state, entries_ + (keys ? 0 : entry_bytes_)));
    }

    /// Queries as products of matrices have rounded them.
    std::byte* rounded_queries(float* state) const noexcept { return at(state, rounded_queries_); }

    // ---- of the work ----
    /// Weights of a part, likewise.
    std::byte* rounded_weights(float* work) const noexcept { return at(work, rounded_weights_); }
    /// A part's keys or values as a matrix.
    half* matrix_scales(float* work) const noexcept {
        return reinterpret_cast<half*>(at(work, matrix_scales_));
    }
    std::uint8_t* matrix_codes(float* work) const noexcept {
        return reinterpret_cast<std::uint8_t*>(at(work, matrix_codes_));
    }
    /// Planes that each query takes.
    std::uint8_t* counts(float* work) const noexcept {
        return reinterpret_cast<std::uint8_t*>(at(work, counts_));
    }
    std::int8_t* weights(float* work, std::size_t plane) const noexcept {
        return reinterpret_cast<std::int8_t*>(at(work, weights_)) + plane * kv_part_tokens;
    }
    /// Two rows of numbers of a part's tokens.
    float* numbers(float* work, std::size_t i) const noexcept {
        return reinterpret_cast<float*>(at(work, numbers_)) + i * kv_part_tokens;
    }
    pq_plane* planes(float* work) const noexcept { return reinterpret_cast<pq_plane*>(at(work, planes_)); }
    /// Integers: two planes of bytes per query and block of a stretch of 128 tokens. Channel by channel: 2 *
    /// padded floats per query of scores, then 256 of values.
    float* factors(float* work) const noexcept { return reinterpret_cast<float*>(at(work, factors_)); }

  private:
    /// Whether uniform codes are multiplied as they lie.
    constexpr bool fields(const kv_codec& codec) const noexcept {
        return route_ == kv_route::integers && codec.kind == kv_kind::uniform;
    }
    static std::byte* at(float* memory, std::size_t bytes) noexcept {
        return reinterpret_cast<std::byte*>(memory) + bytes;
    }
    kv_route route_ = kv_route::halves;
    bool joined_ = false;
    attention_scratch floats_;
    std::size_t heads_ = 1, parts_ = 1, state_bytes_ = 0, work_bytes_ = 0;
    std::size_t query_bytes_ = 0, sum_floats_ = 0;
    std::size_t tables_ = 0, sums_ = 0, queries_ = 0, states_ = 0, entries_ = 0, entry_bytes_ = 0,
                counts_ = 0;
    std::size_t weights_ = 0, numbers_ = 0, planes_ = 0, factors_ = 0;
    std::size_t rounded_queries_ = 0, rounded_weights_ = 0, matrix_scales_ = 0, matrix_codes_ = 0;
};

/// Scratch memory for attention that leaves values out: weights of all coded tokens, part by part, in a part
/// 256 per query.
class kv_skip_scratch {
  public:
    constexpr kv_skip_scratch(std::size_t coded, std::size_t queries) noexcept
        : tokens_(round_up(coded, kv_part_tokens)), queries_(queries) {}

    constexpr std::size_t tokens() const noexcept { return tokens_; }
    constexpr std::size_t floats() const noexcept {
        return queries_ * (tokens_ + tokens_ / kv_part_tokens + tokens_ / kv_block_tokens);
    }
    float* weights(float* s) const noexcept { return s; }
    float* levels(float* s) const noexcept { return s + queries_ * tokens_; }
    float* masses(float* s) const noexcept { return levels(s) + queries_ * (tokens_ / kv_part_tokens); }

  private:
    std::size_t tokens_, queries_;
};

} // namespace crumb::inline CRUMB_ABI::kernel
