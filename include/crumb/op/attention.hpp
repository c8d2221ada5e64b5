// Causal attention over a cache of keys and values: plan once, run from any thread.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/dispatch/attention.hpp>

#include <cmath>
#include <concepts>

namespace crumb::inline CRUMB_ABI {

/// Sizes and scale of attention.
struct attention_shape {
    std::size_t heads = 0;     ///< query heads
    std::size_t kv_heads = 0;  ///< heads of keys and values, a divisor of `heads`
    std::size_t head_size = 0; ///< 1 .. 512
    float scale = 0;           ///< of the scores; 0 means 1 / sqrt(head_size)
    std::size_t span = 0;      ///< tokens that a row sees, its own included; 0: all before it
};

/// Keys or values, `T` is float or half: token t, kv head h, element i at
/// data[t * token_stride + h * head_stride + i]. Token-major: strides kv_heads * head_size and head_size;
/// head-major: head_size and max_tokens * head_size.
template <class T>
requires(std::same_as<T, float> || std::same_as<T, half>)
struct kv_array_view {
    const T* data = nullptr;
    std::size_t tokens = 0;       ///< filled ones
    std::size_t token_stride = 0; ///< elements from a token to the next
    std::size_t head_stride = 0;  ///< elements from a kv head to the next
};

/// Keys and values of a sequence in arrays.
template <class T>
struct kv_arrays {
    kv_array_view<T> keys, values;
    std::size_t position = 0; ///< of the token in row 0 of the queries
};

/// A range of tokens, and where its partial result goes: `partial_bytes(rows, splits)` bytes for all splits,
/// aligned.
struct attention_split {
    range tokens = {};
    std::span<std::byte> partials;
    std::size_t index = 0; ///< of the split
};

/// The part of the output that one call computes; default: everything.
struct attention_part {
    range rows = {};
    range kv_heads = {}; ///< with all query heads that belong to them
};

/// y[r, h] = sum over t of softmax_t(scale q[r, h] . k[t, h']) v[t, h'], where h' = h / (heads / kv_heads)
/// and t goes up to position + r, from 0 or from position + r + 1 - span on. Scores of 64 tokens at a time
/// are kept, with a running maximum. Owns nothing; copy it freely. The result of `run` does not depend on the
/// split into parts or on the number of rows. Error: |y - exact| <= ((4 + 2 head_size) S + tokens + 32) eps
/// max_t |v|, S = max_t sum_i |scale q_i k_i|, eps = 2^-24 (ISAs without FMA: twice as much).
class attention {
  public:
    /// Checks the shape and chooses the ISA.
    CRUMB_WHEN_CALLED
    static result<attention> plan(const attention_shape& shape, const context& on = {}) noexcept {
        if (shape.heads == 0 || shape.kv_heads == 0)
            return status::error(errc::bad_shape, "attention: %zu heads, %zu kv_heads; neither can be 0",
                                 shape.heads, shape.kv_heads);
        if (shape.heads % shape.kv_heads != 0)
            return status::error(errc::bad_shape, "attention: %zu heads are no multiple of %zu kv_heads",
                                 shape.heads, shape.kv_heads);
        if (shape.heads > (std::size_t{1} << 20))
            return status::error(errc::bad_shape, "attention: %zu heads are more than 2^20", shape.heads);
        if (shape.head_size == 0 || shape.head_size > 512)
            return status::error(errc::bad_shape, "attention: head_size is %zu, it has to be 1 .. 512",
                                 shape.head_size);
        if (!std::isfinite(shape.scale) || shape.scale < 0)
            return status::error(errc::invalid_argument, "attention: scale is %g", double(shape.scale));
        const auto index = choose_isa(on);
        if (!index)
            return index.error();
        attention p;
        p.shape_ = shape;
        if (shape.scale == 0)
            p.shape_.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_size));
        p.group_ = shape.heads / shape.kv_heads;
        p.functions_ = &dispatch::functions_at<dispatch::attention_functions>(*index);
        p.two_streams_ = dispatch::isas().two_streams;
        return p;
    }

    /// What was planned, with the scale that 0 stood for.
    const attention_shape& shape() const noexcept { return shape_; }
    /// Name of the ISA that `run` executes.
    const char* isa() const noexcept { return functions().isa; }

    /// Bytes of scratch memory for a call with `rows` rows, per thread; 64 rows need the most.
    std::size_t scratch_bytes(std::size_t rows) const noexcept {
        const kernel::attention_scratch s{row_block(rows) * group_, round_up(shape_.head_size, 16)};
        return round_up(s.size() * sizeof(float), alignment);
    }

    /// The whole result for `part`. q and y: row r is the token at kv.position + r, heads * head_size floats.
    /// `scratch`: scratch_bytes(rows of the part), aligned to `crumb::alignment`. Threads may run disjoint
    /// parts.
    template <class T>
    void run(const matrix_view<const float>& q, const kv_arrays<T>& kv, const matrix_view<float>& y,
             std::span<std::byte> scratch, const attention_part& part = {}) const noexcept {
        CRUMB_REQUIRE(y.rows == q.rows && y.cols == q.cols, "attention::run: q is %zu x %zu, y %zu x %zu",
                      q.rows, q.cols, y.rows, y.cols);
        CRUMB_CHECK(y.rows <= 1 || y.stride >= y.cols, "attention::run: y has rows of %zu floats, %zu apart",
                    y.cols, y.stride);
        start(q, kv, {}, y, nullptr, scratch, part);
    }

    /// Bytes of the partial results of `splits` ranges of tokens for `rows` rows: per split, row and head
    /// head_size sums of weighted values, the maximal score and the sum of weights.
    std::size_t partial_bytes(std::size_t rows, std::size_t splits) const noexcept {
        return round_up(rows * shape_.heads * (shape_.head_size + 2) * sizeof(float), alignment) * splits;
    }

    /// Like `run`, but over the tokens of a range (those later than a row's own are ignored), and into its
    /// partial result. Threads may run disjoint parts or splits.
    template <class T>
    void partial(const matrix_view<const float>& q, const kv_arrays<T>& kv, const attention_split& split,
                 std::span<std::byte> scratch, const attention_part& part = {}) const noexcept {
        const std::size_t stride = partial_bytes(q.rows, 1);
        require_buffer(split.partials, end_of_item(split.index, stride), "attention::partial: partials");
        start(q, kv, split.tokens, {}, reinterpret_cast<float*>(split.partials.data() + stride * split.index),
              scratch, part);
    }

    /// y from the first `splits` partial results, which together cover the tokens: the softmax over all of
    /// them, without approximation.
    void merge(std::span<const std::byte> partials, std::size_t splits, const matrix_view<float>& y,
               const attention_part& part = {}) const noexcept {
        const std::size_t stride = partial_bytes(y.rows, 1);
        require_buffer(partials, splits == 0 ? 0 : end_of_item(splits - 1, stride),
                       "attention::merge: partials");
        CRUMB_REQUIRE(y.cols == shape_.heads * shape_.head_size,
                      "attention::merge: y has %zu columns, not %zu", y.cols,
                      shape_.heads * shape_.head_size);
        CRUMB_CHECK(part.rows.is_within(y.rows) && part.kv_heads.is_within(shape_.kv_heads),
                    "attention::merge: rows %zu to %zu of %zu, kv heads %zu to %zu of %zu", part.rows.begin,
                    part.rows.end, y.rows, part.kv_heads.begin, part.kv_heads.end, shape_.kv_heads);
        const range kv_heads = part.kv_heads.within(shape_.kv_heads);
        functions().merge({reinterpret_cast<const float*>(partials.data()),
                           splits,
                           stride / sizeof(float),
                           shape_.head_size,
                           shape_.heads,
                           y,
                           part.rows.within(y.rows),
                           {kv_heads.begin * group_, kv_heads.end * group_}});
    }

  private:
    friend class kv_attention; // the same plan over another cache

    const dispatch::attention_functions& functions() const noexcept {
        CRUMB_REQUIRE(functions_ != nullptr, "attention: the plan is empty");
        return *functions_;
    }
    /// Rows per pass over the tokens, at most `rows`, so that a kv head has `attention_queries` queries.
    std::size_t row_block(std::size_t rows) const noexcept {
        const std::size_t max = group_ < kernel::attention_queries ? kernel::attention_queries / group_ : 1;
        return rows == 0 ? 1 : rows < max ? rows : max;
    }

    /// Fills `args` except keys and values; false if there is nothing to compute.
    bool describe(kernel::attention_query_args& args, const matrix_view<const float>& q, std::size_t position,
                  range tokens, const matrix_view<float>& y, float* partials, std::span<std::byte> scratch,
                  const attention_part& part) const noexcept {
        args.rows = part.rows.within(q.rows);
        args.kv_heads = part.kv_heads.within(shape_.kv_heads);
        if (args.rows.size() == 0 || args.kv_heads.size() == 0)
            return false;
        CRUMB_REQUIRE(q.cols == shape_.heads * shape_.head_size, "attention: q has %zu columns, not %zu",
                      q.cols, shape_.heads * shape_.head_size);
        CRUMB_CHECK(part.rows.is_within(q.rows) && part.kv_heads.is_within(shape_.kv_heads),
                    "attention: rows %zu to %zu of %zu, kv heads %zu to %zu of %zu", part.rows.begin,
                    part.rows.end, q.rows, part.kv_heads.begin, part.kv_heads.end, shape_.kv_heads);
        CRUMB_REQUIRE(position <= std::numeric_limits<std::size_t>::max() - args.rows.end,
                      "attention: position %zu", position);
        args.tokens = tokens.within(position + args.rows.end);
        args.q = q;
        args.head_size = shape_.head_size;
        args.group = group_;
        args.two_streams = two_streams_;
        args.scale = shape_.scale;
        args.position = position;
        if (shape_.span != 0)
            args.span = shape_.span;
        args.y = y;
        args.partials = partials;
        args.scratch = reinterpret_cast<float*>(scratch.data());
        args.row_block = row_block(args.rows.size());
        return true;
    }

    template <class T>
    void start(const matrix_view<const float>& q, const kv_arrays<T>& kv, range tokens,
               const matrix_view<float>& y, float* partials, std::span<std::byte> scratch,
               const attention_part& part) const noexcept {
        const dispatch::attention_functions& run = functions();
        kernel::attention_args<T> args;
        if (!describe(args, q, kv.position, tokens, y, partials, scratch, part))
            return;
        const auto &k = kv.keys, &v = kv.values;
        CRUMB_REQUIRE(args.tokens.size() == 0 || (args.tokens.end <= k.tokens && args.tokens.end <= v.tokens),
                      "attention: rows see %zu tokens, there are %zu keys and %zu values", args.tokens.end,
                      k.tokens, v.tokens);
        require_buffer(scratch, scratch_bytes(args.rows.size()), "attention: scratch");
        args.k = {k.data, k.token_stride};
        args.v = {v.data, v.token_stride};
        args.k_head_stride = k.head_stride;
        args.v_head_stride = v.head_stride;
        if constexpr (std::same_as<T, float>)
            run.run_f32(args);
        else
            run.run_f16(args);
    }

    attention_shape shape_;
    std::size_t group_ = 1; // query heads per kv head
    const dispatch::attention_functions* functions_ = nullptr;
    bool two_streams_ = false;
};

} // namespace crumb::inline CRUMB_ABI
