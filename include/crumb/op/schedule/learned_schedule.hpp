// The learned scheduler: a switch point for every prompt, from the prompt's keys and values.
#pragma once

#include <crumb/op/cache/kv_attention.hpp>
#include <crumb/op/float_ops.hpp>
#include <crumb/op/linear/dense_linear.hpp>
#include <crumb/op/schedule/precision_schedule.hpp>

namespace crumb::inline CRUMB_ABI {

/// Sizes of a learned scheduler.
struct learned_shape {
    std::size_t heads = 0;     ///< of keys and values
    std::size_t head_size = 0; ///< 1 .. 512
    std::size_t hidden = 0;    ///< units of the hidden layer
    std::size_t points = 0;    ///< N of the grid of switch points

    /// Inputs of the network: what the query pools.
    constexpr std::size_t width() const noexcept { return heads * head_size; }
    friend constexpr bool operator==(const learned_shape&, const learned_shape&) = default;
};

/// An error if sizes are 0 or too large.
inline status check_shape(const learned_shape& s) noexcept {
    // Far more than is useful; products stay below 2^31.
    constexpr std::size_t max = 1 << 11;
    if (s.heads == 0 || s.heads > max || s.head_size == 0 || s.head_size > 512 || s.hidden == 0 ||
        s.hidden > max || s.points < 2 || s.points > max)
        return status::error(errc::bad_shape,
                             "learned schedule: %zu heads of %zu, %zu hidden units, %zu points; possible are "
                             "1 .. %zu of 1 .. 512, 1 .. %zu, 2 .. %zu",
                             s.heads, s.head_size, s.hidden, s.points, max, max, max);
    return {};
}

/// The parameters, row-major; the caller keeps them alive.
struct learned_weights {
    std::span<const float> query; ///< [heads][head_size]
    std::span<const float> w1;    ///< [hidden][heads * head_size]
    std::span<const float> b1;    ///< [hidden]
    std::span<const float> w2;    ///< [points][hidden]
    std::span<const float> b2;    ///< [points]
};

/// The choice of a learned scheduler.
struct learned_choice {
    std::size_t point = 0;       ///< of the grid: the most probable one, the first of equal ones
    precision_schedule schedule; ///< high precision up to that point, low from there on
};

/// The task-agnostic scheduler (PMPD, 4.3 and A.1.1): a learned query pools the prompt's keys and values,
///
///     O_h    = softmax(q_h K_h^T / sqrt(head_size)) V_h      for every kv head h
///     P(i)   = softmax(W2 relu(W1 O + b1) + b2)_i            for every point i of the grid,
///
/// and decoding is in high precision up to the most probable point, in low precision from there on. Refers to
/// the parameters, owns nothing; copy it freely, run it from any thread.
class learned_schedule {
  public:
    /// Refuses sizes that are 0 or do not agree with the parameters or with the grid, parameters that are not
    /// finite, precisions that are not stored.
    CRUMB_WHEN_CALLED
    static result<learned_schedule> plan(const learned_shape& shape, const learned_weights& weights,
                                         const schedule_levels& levels, const context& on = {}) noexcept {
        if (const status s = check(shape, weights); !s)
            return s;
        if (const status s = check_grid(shape.points, levels.length); !s)
            return s;
        if (const auto s = precision_schedule::high_then_low(levels, 0); !s)
            return s.error();
        const auto pool = attention::plan(pooling(shape), on);
        if (!pool)
            return pool.error();
        const auto first = dense_linear<float>::plan(matrix(weights.w1.data(), shape.hidden, shape.width()),
                                                     {.bias = weights.b1}, on);
        if (!first)
            return first.error();
        const auto second = dense_linear<float>::plan(matrix(weights.w2.data(), shape.points, shape.hidden),
                                                      {.bias = weights.b2}, on);
        if (!second)
            return second.error();
        const auto ops = float_ops::plan(on);
        if (!ops)
            return ops.error();
        return learned_schedule(shape, levels, matrix(weights.query.data(), 1, shape.width()), *pool, *first,
                                *second, *ops);
    }

    /// Sizes, and the precisions to choose from.
    const learned_shape& shape() const noexcept { return shape_; }
    /// The precisions that it chooses between.
    const schedule_levels& levels() const noexcept { return levels_; }

    /// Bytes of scratch memory that `run` over rows of features needs; each thread its own.
    std::size_t scratch_bytes() const noexcept { return network_bytes() + pool_.scratch_bytes(1); }
    /// Over a cache; an error if its options are out of range.
    CRUMB_WHEN_CALLED
    result<std::size_t> scratch_bytes(const kv_cache_options& cache) const noexcept {
        const auto pool = over(cache);
        if (!pool)
            return pool.error();
        return network_bytes() + pool->scratch_bytes(1);
    }

    /// Reads all tokens of a layer (in the paper the last one) of a cache of any codec; codes are decoded.
    /// `probabilities`: empty, or one per point. `scratch`: scratch_bytes(cache.options()), aligned. Refuses
    /// caches of other shapes, empty ones, and values that make the result NaN or infinite.
    CRUMB_WHEN_CALLED
    result<learned_choice> run(const kv_cache& cache, std::size_t layer, std::span<std::byte> scratch,
                               std::span<float> probabilities = {}) const noexcept {
        const auto pool = over(cache.options());
        if (!pool)
            return pool.error();
        if (layer >= cache.options().layers)
            return status::error(errc::invalid_argument, "learned schedule: layer %zu of %zu", layer,
                                 cache.options().layers);
        if (const status s =
                check_run(cache.length(), scratch, network_bytes() + pool->scratch_bytes(1), probabilities);
            !s)
            return s;
        if (const status s = pool->run(query_, cache, layer, pooled(scratch),
                                       scratch.subspan(network_bytes()), {.position = cache.length() - 1});
            !s)
            return s;
        return choose(scratch, probabilities);
    }

    /// Reads rows of features that are keys and values at once, T x (heads * head_size): activations of a
    /// layer, the paper's figure 7. `scratch`: scratch_bytes(). Refuses other widths, no rows, NaN and
    /// infinity.
    result<learned_choice> run(const matrix_view<const float>& features, std::span<std::byte> scratch,
                               std::span<float> probabilities = {}) const noexcept {
        if (features.cols != shape_.width() || (features.rows > 1 && features.stride < features.cols))
            return status::error(
                errc::bad_shape,
                "learned schedule: features are %zu x %zu with stride %zu, the query has %zu", features.rows,
                features.cols, features.stride, shape_.width());
        if (const status s = check_run(features.rows, scratch, scratch_bytes(), probabilities); !s)
            return s;
        for (std::size_t t = 0; t < features.rows; ++t)
            if (const auto bad = first_bad({features.row(t), features.cols}); bad < features.cols)
                return status::error(errc::not_finite, "learned schedule: feature %zu of token %zu is %g",
                                     bad, t, double(features.row(t)[bad]));
        const kv_array_view<float> rows = {features.data, features.rows, features.stride, shape_.head_size};
        pool_.run(query_, kv_arrays<float>{rows, rows, features.rows - 1}, pooled(scratch),
                  scratch.subspan(network_bytes()));
        return choose(scratch, probabilities);
    }

  private:
    learned_schedule(const learned_shape& shape, const schedule_levels& levels,
                     const matrix_view<const float>& query, const attention& pool,
                     const dense_linear<float>& first, const dense_linear<float>& second,
                     const float_ops& ops) noexcept
        : shape_(shape), levels_(levels), query_(query), pool_(pool), first_(first), second_(second),
          ops_(ops) {}

    static constexpr attention_shape pooling(const learned_shape& s) noexcept {
        return {.heads = s.heads, .kv_heads = s.heads, .head_size = s.head_size};
    }
    /// The index of the first number that is not finite; x.size() if there is none.
    static std::size_t first_bad(std::span<const float> x) noexcept {
        std::size_t i = 0;
        while (i < x.size() && std::isfinite(x[i]))
            ++i;
        return i;
    }

    static status check(const learned_shape& s, const learned_weights& w) noexcept {
        if (const status e = check_shape(s); !e)
            return e;
        const struct {
            const char* name;
            std::span<const float> values;
            std::size_t size;
        } parts[] = {{"the query", w.query, s.width()},
                     {"w1", w.w1, s.hidden * s.width()},
                     {"b1", w.b1, s.hidden},
                     {"w2", w.w2, s.points * s.hidden},
                     {"b2", w.b2, s.points}};
        for (const auto& p : parts) {
            if (p.values.size() != p.size)
                return status::error(errc::bad_shape, "learned schedule: %s has %zu values, not %zu", p.name,
                                     p.values.size(), p.size);
            if (const std::size_t bad = first_bad(p.values); bad < p.size)
                return status::error(errc::not_finite, "learned schedule: value %zu of %s is %g", bad, p.name,
                                     double(p.values[bad]));
        }
        return {};
    }
    status check_run(std::size_t tokens, std::span<std::byte> scratch, std::size_t bytes,
                     std::span<float> probabilities) const noexcept {
        if (tokens == 0)
            return status::error(errc::invalid_argument, "learned schedule: there are no tokens to read");
        if (!probabilities.empty() && probabilities.size() != shape_.points)
            return status::error(errc::bad_shape, "learned schedule: room for %zu probabilities of %zu",
                                 probabilities.size(), shape_.points);
        return check_buffer(scratch, bytes, "learned schedule: scratch");
    }

    /// Exact mode: the parameters were trained on decoded numbers, and a prompt is read once.
    CRUMB_WHEN_CALLED
    result<kv_attention> over(const kv_cache_options& cache) const noexcept {
        if (cache.kv_heads != shape_.heads || cache.head_size != shape_.head_size)
            return status::error(errc::bad_shape,
                                 "learned schedule: the cache has %zu kv heads of %zu, the query %zu of %zu",
                                 cache.kv_heads, cache.head_size, shape_.heads, shape_.head_size);
        return kv_attention::plan(cache, {.heads = shape_.heads, .mode = kv_mode::exact}, {pool_.isa()});
    }

    // Scratch: O, the hidden layer, the probabilities, then what attention needs.
    static constexpr std::size_t padded(std::size_t floats) noexcept {
        return round_up(floats, alignment / sizeof(float));
    }
    std::size_t network_bytes() const noexcept {
        return (padded(shape_.width()) + padded(shape_.hidden) + padded(shape_.points)) * sizeof(float);
    }
    matrix_view<float> pooled(std::span<std::byte> scratch) const noexcept {
        return matrix(reinterpret_cast<float*>(scratch.data()), 1, shape_.width());
    }

    result<learned_choice> choose(std::span<std::byte> scratch,
                                  std::span<float> probabilities) const noexcept {
        const auto o = pooled(scratch);
        const auto hidden = matrix(o.data + padded(shape_.width()), 1, shape_.hidden);
        const auto p = matrix(hidden.data + padded(shape_.hidden), 1, shape_.points);
        if (const std::size_t bad = first_bad({o.data, o.cols}); bad < o.cols)
            return status::error(errc::not_finite,
                                 "learned schedule: the features are not finite: head %zu pools to %g",
                                 bad / shape_.head_size, double(o.data[bad]));
        first_.run(o, hidden);
        bool finite = first_bad({hidden.data, hidden.cols}) == hidden.cols;
        for (std::size_t i = 0; i < hidden.cols; ++i)
            hidden.data[i] = hidden.data[i] > 0 ? hidden.data[i] : 0.0f;
        second_.run(hidden, p);
        finite = finite && first_bad({p.data, p.cols}) == p.cols;
        if (!finite)
            return status::error(errc::not_finite,
                                 "learned schedule: features this large make infinite logits");
        ops_.softmax(p, p);
        std::size_t best = 0;
        for (std::size_t i = 0; i < p.cols; ++i) {
            best = p.data[i] > p.data[best] ? i : best;
            if (!probabilities.empty())
                probabilities[i] = p.data[i];
        }
        return learned_choice{
            best, precision_schedule::high_then_low(levels_, grid_step(best, shape_.points, levels_.length))
                      .value()};
    }

    learned_shape shape_;
    schedule_levels levels_;
    matrix_view<const float> query_;
    attention pool_;
    dense_linear<float> first_, second_;
    float_ops ops_;
};

} // namespace crumb::inline CRUMB_ABI
