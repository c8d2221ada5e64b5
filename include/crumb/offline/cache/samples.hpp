// Keys and values of a calibration run, from which codebooks are trained.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/core/view.hpp>
#include <crumb/format/kv_part.hpp>
#include <crumb/offline/common/random.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <span>
#include <vector>

namespace crumb::inline CRUMB_ABI {

/// Sizes of a cache's contents.
struct kv_shape {
    std::size_t layers = 0, kv_heads = 0, head_size = 0;
    /// Floats of a token's keys or values in a layer.
    constexpr std::size_t width() const noexcept { return kv_heads * head_size; }
    friend constexpr bool operator==(const kv_shape&, const kv_shape&) = default;
};

/// Keeps at most a number of blocks of 32 consecutive tokens per layer, each block that was seen with the
/// same probability (Vitter's algorithm R), and the second moments that errors are weighted with. Layers that
/// are fed the same tokens keep the same blocks.
class kv_samples {
  public:
    /// Memory grows up to layers * max_blocks * 64 * width floats, which must fit into size_t. Refuses
    /// zeros.
    static result<kv_samples> make(const kv_shape& shape, std::size_t max_blocks, std::uint64_t seed = 1) {
        std::size_t bytes = sizeof(float) * 3 * kv_mean_tokens;
        bool fits = true;
        for (const std::size_t n : {shape.layers, shape.kv_heads, shape.head_size, max_blocks})
            fits = n != 0 && fits && multiply(bytes, n, bytes);
        if (!fits)
            return status::error(errc::invalid_argument,
                                 "kv samples: %zu layers, %zu heads of %zu, %zu blocks", shape.layers,
                                 shape.kv_heads, shape.head_size, max_blocks);
        return kv_samples(shape, max_blocks, seed);
    }

    /// Layers, heads and their size.
    const kv_shape& shape() const noexcept { return shape_; }

    /// The next tokens of all layers begin a sequence. Its first `skipped` tokens, the sinks, are not
    /// sampled, as they are not encoded. Incomplete blocks are dropped.
    void begin_sequence(std::size_t skipped = 0) {
        for (layer_samples& l : layers_) {
            l.skip = skipped;
            l.pending = 0;
        }
    }

    /// The next tokens of a layer: n x width keys, after rotary embedding, and values. `weights`, n x kv
    /// heads or empty: how much the square of an error of a token counts, for all tokens of a layer or none.
    /// Refuses other shapes, NaN and infinity, negative weights, and keeps nothing then.
    status add(std::size_t layer, const matrix_view<const float>& keys,
               const matrix_view<const float>& values, const matrix_view<const float>& weights = {}) {
        const std::size_t width = shape_.width();
        if (layer >= shape_.layers || keys.cols != width || values.cols != width || keys.rows != values.rows)
            return status::error(
                errc::bad_shape,
                "kv samples: layer %zu, keys %zu x %zu, values %zu x %zu, %zu columns needed", layer,
                keys.rows, keys.cols, values.rows, values.cols, width);
        if (weights.data != nullptr && (weights.rows != keys.rows || weights.cols != shape_.kv_heads))
            return status::error(errc::bad_shape, "kv samples: layer %zu, weights %zu x %zu for %zu tokens",
                                 layer, weights.rows, weights.cols, keys.rows);
        if (!rows(keys).allFinite() || !rows(values).allFinite() ||
            (weights.data != nullptr && !(rows(weights).allFinite() && rows(weights).minCoeff() >= 0)))
            return status::error(errc::not_finite, "kv samples: layer %zu is not finite", layer);
        layer_samples& l = layers_[layer];
        l.open.resize(block_floats());
        for (std::size_t r = 0; r < keys.rows; ++r) {
            if (l.skip > 0) {
                --l.skip;
                continue;
            }
            for (std::size_t h = 0; h < shape_.kv_heads; ++h)
                for (const auto* from : {&keys, &values})
                    std::copy_n(from->row(r) + h * shape_.head_size, shape_.head_size,
                                l.open.data() + offset(h, from == &keys) + l.pending * shape_.head_size);
            for (std::size_t h = 0; h < shape_.kv_heads; ++h)
                l.open[weights_offset(h) + l.pending] = weights.data == nullptr ? 1.0f : weights.row(r)[h];
            if (++l.pending == kv_mean_tokens) {
                keep(l);
                l.pending = 0;
            }
        }
        return {};
    }

    /// Adds to the second moments that errors of a layer's keys (or values) are weighted with: rows of
    /// vectors that these are multiplied with, each for all query heads side by side, which are a multiple of
    /// the kv heads. For keys, queries after rotary embedding; for values, the rows of the output matrix.
    status weigh(std::size_t layer, bool keys, const matrix_view<const float>& with) {
        if (layer >= shape_.layers || with.cols == 0 || with.cols % shape_.width() != 0)
            return status::error(errc::bad_shape, "kv samples: layer %zu, weights %zu x %zu", layer,
                                 with.rows, with.cols);
        if (!rows(with).allFinite())
            return status::error(errc::not_finite, "kv samples: weights of layer %zu are not finite", layer);
        std::vector<double>& sums = layers_[layer].moments[keys ? 0 : 1];
        sums.resize(shape_.width() * shape_.head_size);
        const auto size = static_cast<Eigen::Index>(shape_.head_size);
        const std::size_t group = with.cols / shape_.width();
        for (std::size_t h = 0; h < group * shape_.kv_heads; ++h) {
            const auto q =
                rows(with).middleCols(static_cast<Eigen::Index>(h) * size, size).cast<double>().eval();
            Eigen::Map<Eigen::MatrixXd>(sums.data() + h / group * shape_.head_size * shape_.head_size, size,
                                        size)
                .noalias() += q.transpose() * q;
        }
        return {};
    }

    /// Blocks of a layer that have been kept.
    std::size_t blocks(std::size_t layer) const noexcept { return layers_[layer].kept; }
    /// Keys or values of a head in a block: 32 x head_size.
    std::span<const float> block(std::size_t layer, std::size_t head, bool keys,
                                 std::size_t n) const noexcept {
        return {layers_[layer].all.data() + n * block_floats() + offset(head, keys),
                kv_mean_tokens * shape_.head_size};
    }
    /// Weights of a head's tokens in a block; 1 where none were given.
    std::span<const float> weights(std::size_t layer, std::size_t head, std::size_t n) const noexcept {
        return {layers_[layer].all.data() + n * block_floats() + weights_offset(head), kv_mean_tokens};
    }
    /// Whether second moments were added for a layer's keys or values.
    bool has_moments(std::size_t layer, bool keys) const noexcept {
        return !layers_[layer].moments[keys ? 0 : 1].empty();
    }
    /// Sum of q[channel] * q[other] over the head's queries.
    double moment(std::size_t layer, std::size_t head, bool keys, std::size_t channel,
                  std::size_t other) const noexcept {
        const std::size_t size = shape_.head_size;
        return layers_[layer].moments[keys ? 0 : 1][(head * size + channel) * size + other];
    }

  private:
    struct layer_samples {
        explicit layer_samples(std::uint64_t seed) : random(seed) {}
        splitmix64 random;
        std::vector<float> open, all; ///< one block; the blocks kept
        std::size_t skip = 0, pending = 0, seen = 0, kept = 0;
        std::vector<double> moments[2];
    };
    using matrix_rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

    kv_samples(const kv_shape& shape, std::size_t max_blocks, std::uint64_t seed)
        : shape_(shape), max_blocks_(max_blocks), layers_(shape.layers, layer_samples(seed)) {}

    static Eigen::Map<const matrix_rows, 0, Eigen::OuterStride<>> rows(const matrix_view<const float>& m) {
        return {m.data, static_cast<Eigen::Index>(m.rows), static_cast<Eigen::Index>(m.cols),
                Eigen::OuterStride<>(static_cast<Eigen::Index>(m.stride))};
    }
    std::size_t block_floats() const noexcept {
        return kv_mean_tokens * (2 * shape_.width() + shape_.kv_heads);
    }
    std::size_t weights_offset(std::size_t head) const noexcept {
        return kv_mean_tokens * (2 * shape_.width() + head);
    }
    std::size_t offset(std::size_t head, bool keys) const noexcept {
        return (2 * head + (keys ? 0 : 1)) * kv_mean_tokens * shape_.head_size;
    }

    void keep(layer_samples& l) {
        std::size_t place = l.kept;
        if (++l.seen > max_blocks_)
            place = l.random.below(l.seen);
        if (place >= max_blocks_)
            return;
        if (place == l.kept) {
            ++l.kept;
            l.all.resize(l.kept * block_floats());
        }
        std::copy(l.open.begin(), l.open.end(),
                  l.all.begin() + static_cast<std::ptrdiff_t>(place * block_floats()));
    }

    kv_shape shape_;
    std::size_t max_blocks_;
    std::vector<layer_samples> layers_;
};

} // namespace crumb::inline CRUMB_ABI
