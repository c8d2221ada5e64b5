// The neurons of a feed-forward network one after another: a line, a range, its input and its output weights.
#pragma once

#include <crumb/core/memory.hpp>
#include <crumb/format/packed.hpp>
#include <crumb/format/q4_0.hpp>
#include <crumb/format/q8_0.hpp>
#include <crumb/format/u2.hpp>

#include <array>
#include <cmath>
#include <cstring>

namespace crumb::inline CRUMB_ABI {

/// How a row of weights is stored: as floats, fp16, or blocks of a weight format.
enum class row_codec : std::uint8_t { f32, f16, q8_0, q4_0, u2 };
inline constexpr std::size_t row_codecs = 5;
inline constexpr std::array<const char*, row_codecs> row_codec_names = {"f32", "f16", "q8_0", "q4_0", "u2"};

/// Whether groups of 32 weights have a scale.
constexpr bool has_scales(row_codec codec) noexcept {
    return codec != row_codec::f32 && codec != row_codec::f16;
}

/// Whether rows are added in integers: factors times scales are rounded to whole steps, for
/// `rows_added_together` rows at a time (see `kernel::neuron_adds`).
constexpr bool rounds_factors(row_codec codec) noexcept { return codec == row_codec::q4_0; }
inline constexpr std::size_t rows_added_together = 16;
inline constexpr float min_factor = 0x1p-100f; ///< min factor times scale; smaller groups count as 0

/// The block of 32 weights of a codec, and whether it has a scale.
template <row_codec C>
struct row_block;
/// 32 floats.
template <>
struct row_block<row_codec::f32> {
    static constexpr std::size_t bytes = group_size * sizeof(float);
};
/// 32 halves.
template <>
struct row_block<row_codec::f16> {
    static constexpr std::size_t bytes = group_size * sizeof(half);
};
/// A block of q8_0.
template <>
struct row_block<row_codec::q8_0> {
    using format = q8_0;
    static constexpr std::size_t bytes = sizeof(q8_0::block);
};
/// A block of q4_0.
template <>
struct row_block<row_codec::q4_0> {
    using format = q4_0;
    static constexpr std::size_t bytes = sizeof(q4_0::block);
};
/// A block of u2.
template <>
struct row_block<row_codec::u2> {
    using format = u2;
    static constexpr std::size_t bytes = sizeof(u2::block);
};

/// Calls f.template operator()<C>() for the codec.
template <class F>
constexpr decltype(auto) with_row_codec(row_codec codec, F&& f) {
    switch (codec) {
    case row_codec::f32:
        return f.template operator()<row_codec::f32>();
    case row_codec::f16:
        return f.template operator()<row_codec::f16>();
    case row_codec::q8_0:
        return f.template operator()<row_codec::q8_0>();
    case row_codec::q4_0:
        return f.template operator()<row_codec::q4_0>();
    default:
        return f.template operator()<row_codec::u2>();
    }
}

/// Bytes of a row of `weights` weights; blocks are whole.
constexpr std::size_t row_bytes(row_codec codec, std::size_t weights) noexcept {
    return (weights + group_size - 1) / group_size *
           with_row_codec(codec, []<row_codec C>() { return row_block<C>::bytes; });
}

/// Stores a row of finite weights, rounded to nearest; padding of its last block is 0 or ignored.
inline void encode_row(row_codec codec, const float* w, std::size_t weights, std::byte* out) noexcept {
    for (std::size_t first = 0; first < weights; first += group_size) {
        float x[group_size] = {};
        for (std::size_t i = 0; i < group_size && first + i < weights; ++i)
            x[i] = w[first + i];
        with_row_codec(codec, [&]<row_codec C>() {
            if constexpr (C == row_codec::f32) {
                std::memcpy(out, x, sizeof x);
            } else if constexpr (C == row_codec::f16) {
                for (std::size_t i = 0; i < group_size; ++i) {
                    const half h = to_half(x[i]);
                    std::memcpy(out + i * sizeof h, &h, sizeof h);
                }
            } else {
                typename row_block<C>::format::block block;
                row_block<C>::format::encode(x, block);
                std::memcpy(out, &block, sizeof block);
            }
            out += row_block<C>::bytes;
        });
    }
}

/// Weight i of a stored row.
inline float row_weight(row_codec codec, const std::byte* row, std::size_t i) noexcept {
    return with_row_codec(codec, [&]<row_codec C>() -> float {
        const std::byte* at = row + i / group_size * row_block<C>::bytes;
        if constexpr (C == row_codec::f32 || C == row_codec::f16) {
            std::conditional_t<C == row_codec::f32, float, half> w;
            std::memcpy(&w, at + i % group_size * sizeof w, sizeof w);
            if constexpr (C == row_codec::f32)
                return w;
            else
                return to_float(w);
        } else {
            using format = typename row_block<C>::format;
            typename format::block block;
            std::memcpy(&block, at, sizeof block);
            const storage_view<format> view{&block, 1, group_size, 1};
            return static_cast<float>(view.weight(0, i % group_size));
        }
    });
}

/// Refuses rows with weights or scales that are not finite.
inline status check_row(row_codec codec, const std::byte* row, std::size_t weights,
                        const char* what) noexcept {
    return with_row_codec(codec, [&]<row_codec C>() -> status {
        if constexpr (C == row_codec::f32)
            return check_floats(row, weights, what);
        else if constexpr (C == row_codec::f16)
            return check_scales(row, weights, what);
        else
            for (std::size_t b = 0; b * group_size < weights; ++b) {
                typename row_block<C>::format::block block;
                std::memcpy(&block, row + b * row_block<C>::bytes, sizeof block);
                if (const half d = row_block<C>::format::scale(block); !is_finite(d))
                    return status::error(errc::not_finite, "%s: scale %zu is %g", what, b,
                                         double{to_float(d)});
            }
        return {};
    });
}

/// Parameters of a neuron that a fix reads beside its weights: 32 bytes at the beginning of its record.
struct neuron_line {
    float slope = 0;     ///< a of the line a u + b that stands for sigma(u) while u is in the range
    float intercept = 0; ///< b
    float bias = 0; ///< of the neuron's input; with the residual of a predictor: minus that of its estimate
    float low = 0;  ///< the range is low <= u < high
    float high = 0;
    float reserved[3] = {};
};
static_assert(sizeof(neuron_line) == 32);

/// Refuses lines with numbers that are not finite (the range may be open), and reserved bytes that are not 0.
inline status check_line(const neuron_line& line) noexcept {
    if (!std::isfinite(line.slope) || !std::isfinite(line.intercept) || !std::isfinite(line.bias) ||
        std::isnan(line.low) || std::isnan(line.high))
        return status::error(errc::not_finite, "slope %g, intercept %g, bias %g, range %g to %g",
                             double{line.slope}, double{line.intercept}, double{line.bias}, double{line.low},
                             double{line.high});
    return check_zero(std::as_bytes(std::span(line.reserved)), "reserved");
}

/// Sizes and codecs of a network's neurons.
struct neuron_shape {
    std::size_t neurons = 0;
    std::size_t inputs = 0;
    std::size_t outputs = 0;
    row_codec in = row_codec::f32;  ///< of input weights (a column of the paper's W1)
    row_codec out = row_codec::f32; ///< of output weights (a row of W2)
    /// Whether the input weights are the residual W1 - P of a predictor's weights P, so that W1 is stored
    /// once.
    bool residual = false;
    friend bool operator==(const neuron_shape&, const neuron_shape&) = default;
};

/// Where everything lies: a header of 64 bytes; the thresholds `low`, then `high`, a float per neuron each,
/// padded to whole tiles of 16 with a range that holds everything; the records, one per neuron, each a
/// `neuron_line`, the row of input weights and the row of output weights, padded to 64 bytes. So a fix reads
/// one run of bytes.
struct neuron_layout {
    neuron_shape shape;
    std::size_t padded = 0; ///< neurons, in whole tiles
    std::size_t out_offset = 0, record_bytes = 0, records_offset = 0, bytes = 0;

    /// Of a shape; refuses empty ones and sizes beyond 2^28.
    static result<neuron_layout> of(const neuron_shape& shape) noexcept {
        constexpr std::size_t max = std::size_t{1} << 28;
        if (shape.neurons == 0 || shape.inputs == 0 || shape.outputs == 0)
            return status::error(errc::bad_shape, "neurons: %zu of %zu inputs and %zu outputs", shape.neurons,
                                 shape.inputs, shape.outputs);
        if (shape.neurons > max || shape.inputs > max || shape.outputs > max)
            return status::error(errc::bad_shape,
                                 "neurons: %zu of %zu inputs and %zu outputs are beyond any memory",
                                 shape.neurons, shape.inputs, shape.outputs);
        for (const row_codec c : {shape.in, shape.out})
            if (static_cast<std::size_t>(c) >= row_codecs)
                return status::error(errc::invalid_argument, "neurons: rows in codec %d", int(c));
        neuron_layout l;
        l.shape = shape;
        l.padded = round_up(shape.neurons, tile_channels);
        l.out_offset = sizeof(neuron_line) + row_bytes(shape.in, shape.inputs);
        l.record_bytes = round_up(l.out_offset + row_bytes(shape.out, shape.outputs), alignment);
        l.records_offset = round_up(alignment + 2 * l.padded * sizeof(float), alignment);
        std::size_t records = 0;
        if (!multiply(shape.neurons, l.record_bytes, records) || records > (std::size_t{1} << 50))
            return status::error(errc::bad_shape, "neurons: %zu records of %zu bytes are beyond any memory",
                                 shape.neurons, l.record_bytes);
        l.bytes = l.records_offset + records;
        return l;
    }
};

/// The tag at the start of stored neurons; 64 bytes, little-endian.
struct neuron_header {
    static constexpr std::uint32_t current_version = 1;
    char magic[4] = {'C', 'R', 'M', 'N'};
    std::uint32_t version = current_version;
    std::uint64_t neurons = 0, inputs = 0, outputs = 0, bytes = 0;
    std::uint8_t in = 0, out = 0, residual = 0;
    std::uint8_t reserved[21] = {};
};
static_assert(sizeof(neuron_header) == alignment);

/// Stored neurons in memory that somebody else owns: a buffer or a mapped file.
class neuron_rows {
  public:
    neuron_rows() noexcept = default;

    /// Checks stored neurons (see format/invariants.hpp), which takes a pass over all of them, and refers to
    /// `bytes`, which must be aligned to `crumb::alignment` and outlive this.
    static result<neuron_rows> open(std::span<const std::byte> bytes) noexcept {
        if (auto s = check_buffer(bytes, sizeof(neuron_header), "neurons"); !s)
            return s;
        neuron_header header;
        std::memcpy(&header, bytes.data(), sizeof header);
        const neuron_header expected;
        if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0)
            return status::error(errc::wrong_format, "neurons: the tag CRMN is missing");
        if (header.version != expected.version)
            return status::error(errc::wrong_version, "neurons: layout version %u, this build reads %u",
                                 header.version, expected.version);
        if (header.in >= row_codecs || header.out >= row_codecs || header.residual > 1)
            return status::error(errc::corrupt, "neurons: codecs %u and %u, residual %u", header.in,
                                 header.out, header.residual);
        const auto layout = neuron_layout::of({header.neurons, header.inputs, header.outputs,
                                               static_cast<row_codec>(header.in),
                                               static_cast<row_codec>(header.out), header.residual != 0});
        if (!layout)
            return layout.error();
        if (layout->bytes != header.bytes)
            return status::error(errc::corrupt, "neurons: %zu bytes by shape, %llu by header", layout->bytes,
                                 static_cast<unsigned long long>(header.bytes));
        if (auto s = check_buffer(bytes, layout->bytes, "neurons"); !s)
            return s;
        if (auto s = check_zero(std::as_bytes(std::span(header.reserved)), "neurons, reserved"); !s)
            return s;
        neuron_rows r;
        r.base_ = bytes.data();
        r.layout_ = *layout;
        if (auto s = check_thresholds(r.low(), r.high(), layout->shape.neurons, layout->padded); !s)
            return s;
        for (std::size_t n = 0; n < layout->shape.neurons; ++n)
            if (auto s = r.check_record(n); !s)
                return status::error(s.code(), "neurons: record %zu: %s", n, s.message());
        return r;
    }

    /// Neurons, inputs, outputs and codecs.
    const neuron_shape& shape() const noexcept { return layout_.shape; }
    /// Where everything lies.
    const neuron_layout& layout() const noexcept { return layout_; }
    /// Thresholds of the predictor's estimates: outside low <= estimate < high a neuron is fixed.
    const float* low() const noexcept { return reinterpret_cast<const float*>(base_ + alignment); }
    /// The upper thresholds.
    const float* high() const noexcept { return low() + layout_.padded; }
    /// The first record.
    const std::byte* records() const noexcept { return base_ + layout_.records_offset; }
    /// The record of neuron n.
    const std::byte* record(std::size_t n) const noexcept { return records() + n * layout_.record_bytes; }
    /// The line of neuron n.
    const neuron_line& line(std::size_t n) const noexcept {
        return *reinterpret_cast<const neuron_line*>(record(n));
    }
    /// Its row of input weights.
    const std::byte* in(std::size_t n) const noexcept { return record(n) + sizeof(neuron_line); }
    /// Its row of output weights.
    const std::byte* out(std::size_t n) const noexcept { return record(n) + layout_.out_offset; }

  private:
    status check_record(std::size_t n) const noexcept {
        if (auto s = check_line(line(n)); !s)
            return s;
        if (auto s = check_row(shape().in, in(n), shape().inputs, "input weights"); !s)
            return s;
        return check_row(shape().out, out(n), shape().outputs, "output weights");
    }

    const std::byte* base_ = nullptr;
    neuron_layout layout_;
};

/// Fills a buffer with neurons. What has not been set is 0, and the thresholds of such a neuron hold
/// nothing, so that it is always fixed.
class neuron_writer {
  public:
    /// Writes the header and zeros to `buffer`: at least `neuron_layout::bytes`, aligned to
    /// `crumb::alignment`.
    static result<neuron_writer> create(std::span<std::byte> buffer, const neuron_shape& shape) noexcept {
        const auto layout = neuron_layout::of(shape);
        if (!layout)
            return layout.error();
        if (auto s = check_buffer(buffer, layout->bytes, "buffer for neurons"); !s)
            return s;
        neuron_header header;
        header.neurons = shape.neurons;
        header.inputs = shape.inputs;
        header.outputs = shape.outputs;
        header.bytes = layout->bytes;
        header.in = static_cast<std::uint8_t>(shape.in);
        header.out = static_cast<std::uint8_t>(shape.out);
        header.residual = shape.residual ? 1 : 0;
        std::memset(buffer.data(), 0, layout->bytes);
        std::memcpy(buffer.data(), &header, sizeof header);
        neuron_writer w;
        w.base_ = buffer.data();
        w.layout_ = *layout;
        for (std::size_t n = shape.neurons; n < layout->padded; ++n)
            w.thresholds(n, -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity());
        return w;
    }

    /// Writes the thresholds of neuron n.
    void thresholds(std::size_t n, float low, float high) const noexcept {
        CRUMB_REQUIRE(n < layout_.padded, "neuron_writer: neuron %zu of %zu", n, layout_.shape.neurons);
        float* at = reinterpret_cast<float*>(base_ + alignment);
        at[n] = low;
        at[layout_.padded + n] = high;
    }
    /// Writes the line of neuron n.
    void line(std::size_t n, const neuron_line& line) const noexcept {
        std::memcpy(record(n), &line, sizeof line);
    }
    /// The memory of a neuron's rows, `row_bytes` bytes each.
    std::byte* in(std::size_t n) const noexcept { return record(n) + sizeof(neuron_line); }
    /// The memory of a neuron's output weights.
    std::byte* out(std::size_t n) const noexcept { return record(n) + layout_.out_offset; }
    /// The neurons; refuses what `neuron_rows::open` does.
    result<neuron_rows> finish() const noexcept { return neuron_rows::open({base_, layout_.bytes}); }

  private:
    std::byte* record(std::size_t n) const noexcept {
        CRUMB_REQUIRE(n < layout_.shape.neurons, "neuron_writer: neuron %zu of %zu", n,
                      layout_.shape.neurons);
        return base_ + layout_.records_offset + n * layout_.record_bytes;
    }
    std::byte* base_ = nullptr;
    neuron_layout layout_;
};

} // namespace crumb::inline CRUMB_ABI
