// The trained codebooks of a product-quantized cache, and their check.
#pragma once

#include <crumb/format/invariants.hpp>
#include <crumb/format/kv_part.hpp>

namespace crumb::inline CRUMB_ABI {

/// The trained tables of one head's keys or values; the caller owns them.
struct pq_tables {
    const std::int8_t* entries = nullptr; ///< [head_size / dims][dims][kv_codec::entries()]
    const float* scales = nullptr;        ///< [head_size], of channels; finite, >= 0
    /// [head_size / dims][dims][dims], or null: errors of a sub-space are measured as |W e|^2 when codes are
    /// chosen. Decoding does not read it.
    const float* metric = nullptr;
};

/// The arrays of codebooks for all layers and heads. Those of layer l, head h lie at index l * layer_step + h
/// * head_step; a step of 0 shares them. Keys come before values.
struct pq_codebook_parts {
    kv_codec codec;
    std::size_t head_size = 0;
    std::size_t layer_step = 0, head_step = 0;
    std::size_t sets = 0;                 ///< indices that exist
    std::span<const std::int8_t> entries; ///< per index: keys, then values: head_size * codec.entries() each
    std::span<const float> scales;        ///< per index: keys, then values, head_size each
    std::span<const float> metric = {};   ///< per index: keys, then values, head_size * dims each; or empty
    /// Per index: keys, then values, two matrices of head_size rows and columns each, see `turn`; or empty.
    std::span<const float> turns = {};
};

/// The largest magnitude of a centroid, of a centroid times its metric, and of the sum of a metric's row: the
/// search for codes must not overflow (see `kv_gain_of`).
inline constexpr double largest_centroid = 0x1p100;

/// Codebooks that were checked. Refers to the caller's numbers; copy it freely. A default one holds none.
class pq_codebooks {
  public:
    constexpr pq_codebooks() noexcept = default;

    /// Refuses codecs without codebooks, mismatched sizes, scales that are negative or not finite,
    /// metrics that are not finite, centroids beyond `largest_centroid`, and additive tables whose entries
    /// may add up to more than a signed byte holds: kernels sum them in bytes.
    static result<pq_codebooks> make(const pq_codebook_parts& p) noexcept {
        if (!is_known(p.codec) || !p.codec.has_codebooks())
            return status::error(errc::invalid_argument,
                                 "codebooks: a codec of kind %d with %d bits has none", int(p.codec.kind),
                                 int(p.codec.bits));
        if (p.head_size == 0 || p.head_size > 512 || p.head_size % p.codec.dims != 0)
            return status::error(errc::bad_shape,
                                 "codebooks: head_size is %zu, 1 .. 512 and a multiple of %d is needed",
                                 p.head_size, int(p.codec.dims));
        std::size_t channels = 0, entries = 0;
        if (p.sets == 0 || !multiply(2 * p.head_size, p.sets, channels) ||
            !multiply(channels, p.codec.entries(), entries))
            return status::error(errc::bad_shape, "codebooks: %zu sets", p.sets);
        const struct {
            const char* name;
            std::size_t size, needed;
        } sizes[] = {{"entries", p.entries.size(), entries},
                     {"scales", p.scales.size(), channels},
                     {"metric", p.metric.size(), p.metric.empty() ? 0 : channels * p.codec.dims},
                     {"turns", p.turns.size(), p.turns.empty() ? 0 : 2 * channels * p.head_size}};
        for (const auto& each : sizes)
            if (each.size != each.needed)
                return status::error(errc::bad_shape, "codebooks: %zu %s, %zu sets of heads of %zu take %zu",
                                     each.size, each.name, p.sets, p.head_size, each.needed);
        if (const status s = check_floats(p.scales.data(), p.scales.size(), "codebooks, scales"); !s)
            return s;
        if (const status s = check_floats(p.metric.data(), p.metric.size(), "codebooks, metric"); !s)
            return s;
        if (const status s = check_floats(p.turns.data(), p.turns.size(), "codebooks, turns"); !s)
            return s;
        for (std::size_t i = 0; i < channels; ++i)
            if (p.scales[i] < 0)
                return status::error(errc::corrupt, "codebooks: scale %zu is %g", i, double{p.scales[i]});
        if (const status s = check_size(p, channels); !s)
            return s;
        for (std::size_t i = 0; p.codec.additive && i < entries; i += 32)
            if (const int sum = largest(p.entries.subspan(i, 16)) + largest(p.entries.subspan(i + 16, 16));
                sum > 127)
                return status::error(errc::corrupt,
                                     "codebooks: entries %zu and following add up to %d, the max is 127", i,
                                     sum);
        pq_codebooks b;
        b.parts_ = p;
        return b;
    }

    /// Whether there are none.
    constexpr bool empty() const noexcept { return parts_.entries.empty(); }
    /// The codec that they are for.
    constexpr const kv_codec& codec() const noexcept { return parts_.codec; }
    /// Channels of a head.
    constexpr std::size_t head_size() const noexcept { return parts_.head_size; }
    /// Sets of tables, of keys and values each.
    constexpr std::size_t sets() const noexcept { return parts_.sets; }
    /// Whether the entries are of keys and values that the caller turns before it writes them: caches and
    /// attention know nothing of it.
    constexpr bool are_turned() const noexcept { return !parts_.turns.empty(); }
    /// The matrix, row-major, that a head's keys (or values) are multiplied with, as columns; `back`: that
    /// its queries (or the outputs of attention) are.
    constexpr const float* turn(std::size_t layer, std::size_t head, bool keys, bool back) const noexcept {
        const std::size_t i = 2 * set_of(layer, head) + (keys ? 0 : 1);
        return parts_.turns.data() + (2 * i + (back ? 1 : 0)) * parts_.head_size * parts_.head_size;
    }
    /// Whether there is a set for every layer and head.
    constexpr bool serves(std::size_t layers, std::size_t heads) const noexcept {
        std::size_t of_layers = 0, of_heads = 0;
        return layers != 0 && heads != 0 && multiply(layers - 1, parts_.layer_step, of_layers) &&
               multiply(heads - 1, parts_.head_step, of_heads) && of_layers < parts_.sets &&
               of_heads < parts_.sets - of_layers;
    }
    /// The tables of a head's keys or values; null ones if there are none.
    constexpr pq_tables tables(std::size_t layer, std::size_t head, bool keys) const noexcept {
        if (empty())
            return {};
        const std::size_t i = 2 * set_of(layer, head) + (keys ? 0 : 1);
        const std::size_t channel = i * parts_.head_size;
        return {parts_.entries.data() + channel * parts_.codec.entries(), parts_.scales.data() + channel,
                parts_.metric.empty() ? nullptr : parts_.metric.data() + channel * parts_.codec.dims};
    }

  private:
    constexpr std::size_t set_of(std::size_t layer, std::size_t head) const noexcept {
        const std::size_t set = layer * parts_.layer_step + head * parts_.head_step;
        CRUMB_REQUIRE(set < parts_.sets, "pq_codebooks: layer %zu, head %zu: set %zu of %zu", layer, head,
                      set, parts_.sets);
        return set;
    }
    /// Refuses centroids beyond `largest_centroid`.
    static status check_size(const pq_codebook_parts& p, std::size_t channels) noexcept {
        const std::size_t dims = p.codec.dims;
        for (std::size_t c = 0; c < channels; ++c) {
            double unweighted = 128.0 * double{p.scales[c]}, row = 0, weighted = 0;
            for (std::size_t b = 0; b < dims && !p.metric.empty(); ++b) {
                const double w = std::fabs(double{p.metric[c * dims + b]});
                row += w;
                weighted += w * 128.0 * double{p.scales[c / dims * dims + b]};
            }
            if (const double max = std::fmax(unweighted, std::fmax(row, weighted)); max > largest_centroid)
                return status::error(errc::corrupt,
                                     "codebooks: centroids of channel %zu may be as large as %g, %g is "
                                     "possible",
                                     c, max, largest_centroid);
        }
        return {};
    }
    static constexpr int largest(std::span<const std::int8_t> entries) noexcept {
        int max = 0;
        for (const std::int8_t e : entries)
            max = e > max ? e : -e > max ? -e : max;
        return max;
    }
    pq_codebook_parts parts_;
};

} // namespace crumb::inline CRUMB_ABI
