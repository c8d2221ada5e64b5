// The kernels over caches of encoded keys and values, by name; the bodies are in the .inl files.
#pragma once

#include <crumb/format/kv_search.hpp>
#include <crumb/kernel/float_kernels.hpp>
#include <crumb/kernel/pq_kernels.hpp>

namespace crumb::inline CRUMB_ABI::kernel {

/// A kv head's keys and values of 256 tokens, or nothing.
struct kv_parts {
    const std::byte *keys = nullptr, *values = nullptr;
};

/// One layer of a cache as one step sees it. Token t is a sink if t < sinks; else with u = t - sinks it lies
/// in part u / 256 if u < coded, or in slot u % slots of the window.
struct kv_layer_view {
    kv_part_layout keys, values;
    const std::byte* const* pages = nullptr; ///< of all layers
    std::size_t page_offset = 0;             ///< bytes of a page before this layer
    std::size_t page_parts = 1;              ///< parts of a head that lie one after another in a page
    std::size_t sinks = 0, coded = 0, slots = 0;
    kv_rows<half> sink_keys, sink_values;     ///< of kv head 0, rows of head_size
    kv_rows<half> window_keys, window_values; ///< of kv head 0
    std::size_t layer = 0;
    pq_codebooks codebooks;

    /// A kv head's keys and values of tokens 256 p and following behind the sinks.
    kv_parts parts(std::size_t p, std::size_t kv_head) const noexcept {
        const std::size_t k = keys.bytes(), v = values.bytes(), i = p % page_parts;
        const std::byte* head = pages[p / page_parts] + page_offset + kv_head * page_parts * (k + v);
        return {head + i * k, head + page_parts * k + i * v};
    }
    const std::byte* part(std::size_t p, std::size_t kv_head, bool of_keys) const noexcept {
        const kv_parts of = parts(p, kv_head);
        return of_keys ? of.keys : of.values;
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
    const half* from = nullptr; ///< 64 rows of head_size
    float* scratch = nullptr;   ///< kv_encode_floats(head_size), aligned
};

/// Floats of scratch memory that `kv_encode` needs.
constexpr std::size_t kv_encode_floats(std::size_t head_size) noexcept { return kv_block_tokens * head_size; }

/// What decoding needs: tokens first .. last - 1 of a part become rows of floats.
struct kv_decode_args {
    kv_part_layout layout;
    pq_tables tables;
    const std::byte* part = nullptr;
    std::size_t first = 0, last = 0;
    float* to = nullptr;    ///< row of token t at to + (t - first) * stride
    std::size_t stride = 0; ///< at least head_size
};

/// How a step attends to codes of product quantization.
enum class kv_mode : std::uint8_t {
    fast, ///< tables of inner products and weights in planes of 7 bits; other codecs: as exact
    exact ///< codes are decoded to floats
};

/// What the error bound of a fast result is made of, per row and head: |y - exact| <= (e^(2 score) - 1) max
/// |v - y| + weight, where exact is attention over the decoded cache.
struct kv_error {
    float score = 0;  ///< largest error of a score
    float weight = 0; ///< largest error of an output by rounded weights
};

/// What a pass keeps of a query that scans codes.
struct kv_scan_state {
    float reference = 0; ///< score that the sums of values are relative to; -infinity: nothing summed yet
    float scale = 0;     ///< largest scale of a token's key
    float lost = 0;      ///< sum of |weight - rounded weight|, relative to `reference`
};

/// Weights e^(score - level) of a part's tokens, a row per query.
struct kv_part_weights {
    float* weights = nullptr;
    std::size_t stride = 0;
    const float* levels = nullptr; ///< per query

    float* row(std::size_t i) const noexcept { return weights + i * stride; }
};

/// How the scratch memory of attention over a cache is carved: a state for each of some kv heads, which go
/// through their parts together so that short pages are read from end to end, and work that they share.
class kv_scratch {
  public:
    kv_scratch() = default;
    /// For passes of `queries` queries of each of up to `kv_heads` heads: fewer where their states would not
    /// stay in a core's second cache.
    constexpr kv_scratch(std::size_t head_size, const kv_codec& codec, std::size_t queries,
                         std::size_t kv_heads) noexcept
        : floats_{queries, round_up(head_size, 16),
                  scans(codec, head_size, queries) || goes_by_channels(codec, queries) ? kv_part_tokens
                                                                                       : attention_block} {
        std::size_t end = 0;
        const auto take = [&](std::size_t bytes) {
            const std::size_t at = end;
            end += round_up(bytes, alignment);
            return at;
        };
        const bool by_tables = scans(codec, head_size, queries);
        (void)take(floats_.state_size() * sizeof(float));
        if (by_tables) {
            query_bytes_ = pq_query_memory(codec, head_size).bytes;
            sum_floats_ = round_up(head_size, 16) * pq_sums;
            tables_ = take(queries * query_bytes_);
            sums_ = take(queries * sum_floats_ * sizeof(float));
            queries_ = take(queries * sizeof(pq_query));
            states_ = take(queries * sizeof(kv_scan_state));
        }
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
        if (goes_by_channels(codec, queries))
            factors_ = take(queries * (2 * floats_.padded + kv_part_tokens) * sizeof(float));
        if (by_tables) {
            weights_ = take(queries * 2 * kv_part_tokens);
            numbers_ = take(2 * kv_part_tokens * sizeof(float));
            planes_ = take(queries * 2 * sizeof(pq_plane));
        }
        work_bytes_ = end;
    }

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

    /// Whether codes are scanned by tables in fast mode: worth it for a few queries, possible for heads that
    /// are not too long.
    static constexpr bool scans(const kv_codec& codec, std::size_t head_size, std::size_t queries) noexcept {
        // Sums of bytes have 16 bits.
        const std::size_t most = head_size / codec.dims * (codec.additive ? 2 : 1) * pq_most;
        return codec.kind == kv_kind::pq && queries <= 16 && most <= 65535;
    }
    /// Whether uniform codes are used as they lie: channel by channel, which more queries make slower than
    /// decoding once.
    static constexpr bool goes_by_channels(const kv_codec& codec, std::size_t queries) noexcept {
        return codec.kind == kv_kind::uniform && queries <= 16;
    }
    /// Whether there is room to go through channels.
    constexpr bool has_channels() const noexcept { return factors_ != 0; }
    /// Whether there is room for tables.
    constexpr bool has_tables() const noexcept { return query_bytes_ != 0; }
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

    // ---- of the work ----
    std::int8_t* weights(float* work, std::size_t plane) const noexcept {
        return reinterpret_cast<std::int8_t*>(at(work, weights_)) + plane * kv_part_tokens;
    }
    /// Two rows of numbers of a part's tokens.
    float* numbers(float* work, std::size_t i) const noexcept {
        return reinterpret_cast<float*>(at(work, numbers_)) + i * kv_part_tokens;
    }
    pq_plane* planes(float* work) const noexcept { return reinterpret_cast<pq_plane*>(at(work, planes_)); }
    /// Of scores 2 * padded floats per query, of values 256.
    float* factors(float* work) const noexcept { return reinterpret_cast<float*>(at(work, factors_)); }

  private:
    static std::byte* at(float* memory, std::size_t bytes) noexcept {
        return reinterpret_cast<std::byte*>(memory) + bytes;
    }
    attention_scratch floats_;
    std::size_t heads_ = 1, parts_ = 1, state_bytes_ = 0, work_bytes_ = 0;
    std::size_t query_bytes_ = 0, sum_floats_ = 0;
    std::size_t tables_ = 0, sums_ = 0, queries_ = 0, states_ = 0;
    std::size_t weights_ = 0, numbers_ = 0, planes_ = 0, factors_ = 0;
};

/// What was left out for a kv head.
struct kv_skip_report {
    std::size_t blocks = 0, skipped = 0; ///< of 64 coded tokens; those whose values were not read
    float mass = 0;                      ///< largest share of a query's weights that these had
};

/// Scratch memory for attention that leaves values out: weights of all coded tokens, part by part, in a part
/// 256 per query.
class kv_skip_scratch {
  public:
    static constexpr std::size_t most_queries = 16;
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

/// Attention over a cache.
struct kv_attention_args : attention_query_args {
    kv_layer_view cache;
    bool by_tables = false;            ///< codes are scanned by tables, not decoded
    bool by_channels = false;          ///< uniform codes are used as they lie, not decoded
    kv_scratch memory;                 ///< of `scratch`
    kv_error* errors = nullptr;        ///< per row and head, or null
    float epsilon = 0;                 ///< share of a query's weights whose values may be left out
    float* skip_scratch = nullptr;     ///< kv_skip_scratch::floats(), or null: all values are read
    kv_skip_report* skipped = nullptr; ///< with skip_scratch: per kv head
};

template <class Isa>
struct kv_encode_run;
template <class Isa>
struct kv_decode_run;
template <class Isa>
struct kv_unpack;
template <class Isa>
struct kv_uniform;
template <class Isa>
struct kv_scan;
template <class Isa>
struct kv_skip;
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
