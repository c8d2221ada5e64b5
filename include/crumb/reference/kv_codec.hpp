// Encoding and decoding of cached keys and values in scalar code; encoders write the same bits.
#pragma once

#include <crumb/core/status.hpp>
#include <crumb/core/view.hpp>
#include <crumb/format/kv_search.hpp>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace crumb::inline CRUMB_ABI::reference {

/// Errors of coded tokens, from which bounds of attention's error are made.
struct kv_error {
    double component = 0; ///< max |x^ - x| of a component
    double norm = 0;      ///< max over tokens of the Euclidean norm of x^ - x
    double decoded = 0;   ///< max over tokens of the Euclidean norm of x^
    double squares = 0;   ///< sum of (x^ - x)^2
    double energy = 0;    ///< sum of x^2
};

/// One part of a page, keys or values of a head. Encoding is defined in single IEEE operations on floats and
/// sums of doubles whose terms are exact products of two floats, so that fused multiply-adds change nothing.
/// `tables` are read by pq codecs only.
class kv_part {
  public:
    /// `part` has `layout.bytes()` bytes, aligned. Refuses codecs and head sizes that do not exist or fit.
    static result<kv_part> make(const kv_part_layout& layout, const pq_tables& tables, std::byte* part) {
        if (const status s = check(layout, tables); !s)
            return s;
        return kv_part(layout, tables, part);
    }

    /// Refuses codecs and head sizes that do not exist or fit.
    static status check(const kv_part_layout& layout, const pq_tables& tables) {
        const kv_codec& c = layout.codec();
        const std::size_t d = layout.head_size();
        if (!is_known(c))
            return status::error(errc::invalid_argument, "kv codec: kind %d with %d bits, %d dims",
                                 static_cast<int>(c.kind), int{c.bits}, int{c.dims});
        if (d == 0 || d % c.dims != 0)
            return status::error(errc::bad_shape, "kv codec: heads of %zu do not divide into %d", d,
                                 int{c.dims});
        if (!c.has_codebooks())
            return {};
        if (tables.entries == nullptr || tables.scales == nullptr)
            return status::error(errc::invalid_argument, "kv codec: no codebooks");
        for (std::size_t i = 0; i < d; ++i)
            if (!std::isfinite(tables.scales[i]) || tables.scales[i] < 0)
                return status::error(errc::not_finite, "kv codec: the scale of channel %zu", i);
        for (std::size_t i = 0; tables.metric != nullptr && i < d * c.dims; ++i)
            if (!std::isfinite(tables.metric[i]))
                return status::error(errc::not_finite, "kv codec: number %zu of the metric", i);
        return {};
    }

    /// Encodes block `block` of 4: 64 tokens, rows of `x` with head_size columns. Refuses other shapes, NaN
    /// and infinity; nothing is written then. Numbers beyond fp16 become +-65504. `scale_trials`: 1 to 5, as
    /// in `kv_cache_options`.
    status encode(std::size_t block, const matrix_view<const float>& x,
                  std::size_t scale_trials = kv_scale_trials) {
        if (scale_trials == 0 || scale_trials > kv_scale_trials)
            return status::error(errc::invalid_argument, "kv codec: %zu trials of scales", scale_trials);
        if (block >= kv_part_tokens / kv_block_tokens || x.rows != kv_block_tokens || x.cols != size())
            return status::error(errc::bad_shape, "kv codec: block %zu of %zu x %zu", block, x.rows, x.cols);
        for (std::size_t t = 0; t < x.rows; ++t)
            for (std::size_t i = 0; i < x.cols; ++i)
                if (!std::isfinite(x.row(t)[i]))
                    return status::error(errc::not_finite, "kv codec: token %zu, channel %zu", t, i);
        const std::size_t first = block * kv_block_tokens;
        switch (codec().kind) {
        case kv_kind::f32:
            for (std::size_t t = 0; t < x.rows; ++t)
                std::copy_n(x.row(t), size(), at<float>(0) + (first + t) * size());
            break;
        case kv_kind::f16:
            for (std::size_t t = 0; t < x.rows; ++t)
                for (std::size_t i = 0; i < size(); ++i)
                    at<half>(0)[(first + t) * size() + i] = kv_half(x.row(t)[i]);
            break;
        case kv_kind::q8_0:
            encode_q8_0(first, x);
            break;
        case kv_kind::uniform:
            encode_uniform(first, x);
            break;
        case kv_kind::pq:
            for (std::size_t t = 0; t < x.rows; t += kv_mean_tokens)
                encode_pq(first + t, {x.row(t), kv_mean_tokens, x.cols, x.stride}, scale_trials);
            break;
        }
        return {};
    }

    /// Token t of the page, head_size numbers; exact but for one rounding each.
    void decode(std::size_t t, double* out) const {
        for (std::size_t i = 0; i < size(); ++i)
            out[i] = decode(t, i);
    }

    /// Measures encoded tokens first, first + 1, ... against rows of `x`.
    kv_error measure(std::size_t first, const matrix_view<const float>& x) const {
        kv_error e;
        for (std::size_t t = 0; t < x.rows; ++t) {
            double off = 0, length = 0;
            for (std::size_t i = 0; i < size(); ++i) {
                const double y = decode(first + t, i), d = y - double{x.row(t)[i]};
                e.component = std::fmax(e.component, std::fabs(d));
                e.energy += double{x.row(t)[i]} * double{x.row(t)[i]};
                off += d * d;
                length += y * y;
            }
            e.squares += off;
            e.norm = std::fmax(e.norm, std::sqrt(off));
            e.decoded = std::fmax(e.decoded, std::sqrt(length));
        }
        return e;
    }

    /// The code of token t in row j; for `q8_0`, of channel j.
    int code(std::size_t t, std::size_t j) const {
        if (codec().kind == kv_kind::q8_0)
            return at<std::int8_t>(layout_.codes_offset())[t * size() + j];
        return static_cast<int>(kv_code(row(j), codec().bits, t));
    }

    /// Mean and scales of 32 tokens, which pq codecs take out before the search: mean = half((sum in order) /
    /// 32), `centered` = x - mean, `scale` = root mean square of a token's centered values, 0 below
    /// `kv_min_scale`. Without residual: mean 0, scale 1.
    static void take_out(bool residual, const matrix_view<const float>& x, half* mean,
                         const matrix_view<float>& centered, float* scale) {
        for (std::size_t i = 0; i < x.cols; ++i) {
            float sum = 0;
            for (std::size_t t = 0; t < x.rows; ++t)
                sum += x.row(t)[i];
            mean[i] = residual ? kv_half(sum / static_cast<float>(x.rows)) : half{};
            for (std::size_t t = 0; t < x.rows; ++t)
                centered.row(t)[i] = x.row(t)[i] - to_float(mean[i]);
        }
        for (std::size_t t = 0; t < x.rows; ++t) {
            double sum = 0;
            for (std::size_t i = 0; i < x.cols; ++i)
                sum += double{centered.row(t)[i]} * double{centered.row(t)[i]};
            const auto rms = static_cast<float>(std::sqrt(sum / static_cast<double>(x.cols)));
            scale[t] = !residual ? 1.0f : rms < kv_min_scale ? 0.0f : rms;
        }
    }

  private:
    kv_part(const kv_part_layout& layout, const pq_tables& tables, std::byte* part)
        : layout_(layout), tables_(tables), part_(part) {
        if (codec().has_codebooks())
            prepare();
    }

    const kv_codec& codec() const noexcept { return layout_.codec(); }
    std::size_t size() const noexcept { return layout_.head_size(); }
    template <class T>
    T* at(std::size_t offset) const noexcept {
        return reinterpret_cast<T*>(part_ + offset);
    }
    std::uint8_t* row(std::size_t j) const noexcept {
        return at<std::uint8_t>(layout_.codes_offset()) + j * layout_.row_bytes();
    }

    /// d = half(max |x| / 127), c = round(x / d); d = 0: c = 0.
    void encode_q8_0(std::size_t first, const matrix_view<const float>& x) {
        for (std::size_t t = 0; t < x.rows; ++t)
            for (std::size_t g = 0; g < layout_.groups(); ++g) {
                const range channels = group(g);
                float max = 0;
                for (std::size_t i = channels.begin; i < channels.end; ++i)
                    max = std::max(max, std::fabs(x.row(t)[i]));
                half& d = at<half>(0)[(first + t) * layout_.groups() + g];
                d = kv_half(max / 127);
                for (std::size_t i = channels.begin; i < channels.end; ++i)
                    at<std::int8_t>(layout_.codes_offset())[(first + t) * size() + i] =
                        static_cast<std::int8_t>(rounded(x.row(t)[i], to_float(d), -127, 127));
            }
    }

    /// z = half(min x), d = half((max x - min x) / (2^bits - 1)), c = round((x - z) / d); d = 0: c = 0.
    void encode_uniform(std::size_t first, const matrix_view<const float>& x) {
        const int max = (1 << codec().bits) - 1;
        const auto encode_group = [&](range tokens, range channels, std::size_t index) {
            float low = std::numeric_limits<float>::max(), high = -low;
            for (std::size_t t = tokens.begin; t < tokens.end; ++t)
                for (std::size_t i = channels.begin; i < channels.end; ++i) {
                    low = std::min(low, x.row(t)[i]);
                    high = std::max(high, x.row(t)[i]);
                }
            half &d = at<half>(0)[index], &z = at<half>(layout_.origins_offset())[index];
            d = kv_half((high - low) / static_cast<float>(max));
            z = kv_half(low);
            for (std::size_t t = tokens.begin; t < tokens.end; ++t)
                for (std::size_t i = channels.begin; i < channels.end; ++i)
                    set_kv_code(
                        row(i), codec().bits, first + t,
                        static_cast<unsigned>(rounded(x.row(t)[i] - to_float(z), to_float(d), 0, max)));
        };
        if (layout_.keys()) {
            for (std::size_t t = 0; t < x.rows; t += kv_mean_tokens)
                for (std::size_t i = 0; i < size(); ++i)
                    encode_group({t, t + kv_mean_tokens}, {i, i + 1},
                                 (first + t) / kv_mean_tokens * size() + i);
        } else {
            for (std::size_t t = 0; t < x.rows; ++t)
                for (std::size_t g = 0; g < layout_.groups(); ++g)
                    encode_group({t, t + 1}, group(g), g * kv_part_tokens + first + t);
        }
    }

    /// Codes by `kv_search.hpp` from scales about that of `take_out`; the scale that is stored fits them
    /// best: s = half(sum y w / sum w^2), at least 0, and 0 if all w are 0.
    void encode_pq(std::size_t first, const matrix_view<const float>& x, std::size_t scale_trials) {
        std::vector<float> centered(kv_mean_tokens * size()), scale(kv_mean_tokens);
        std::vector<half> mean(size());
        const auto residual = matrix(centered.data(), kv_mean_tokens, size());
        take_out(codec().residual, x, mean.data(), residual, scale.data());
        const std::size_t trials = codec().residual ? scale_trials : 1;
        for (std::size_t t = 0; t < kv_mean_tokens; ++t) {
            const float inverse = scale[t] > 0 ? 1 / scale[t] : 0.0f;
            token_codes best = nearest(residual.row(t), inverse);
            for (std::size_t k = 1; k < trials; ++k)
                if (token_codes next = nearest(residual.row(t), inverse * kv_scale_factors[k]);
                    kv_fit(next.with, next.own) > kv_fit(best.with, best.own))
                    best = std::move(next);
            for (std::size_t j = 0; j < layout_.rows(); ++j)
                set_kv_code(row(j), codec().bits, first + t, best.codes[j]);
            const double fitted = scale[t] > 0 && best.own > 0 && best.with > 0 ? best.with / best.own : 0.0;
            if (codec().residual)
                at<half>(layout_.scales_offset())[first + t] = kv_half(static_cast<float>(fitted));
        }
        if (codec().residual)
            std::copy(mean.begin(), mean.end(), at<half>(0) + first / kv_mean_tokens * size());
    }

    /// The codes of a token, sum y w and sum w^2.
    struct token_codes {
        std::vector<unsigned> codes;
        double with = 0, own = 0;
    };
    token_codes nearest(const float* residual, float inverse_scale) const {
        token_codes out;
        for (std::size_t j = 0; j < layout_.rows(); ++j) {
            float y[4] = {};
            for (std::size_t i = 0; i < codec().dims; ++i)
                y[i] = kv_weighted(codec(), tables_, j, i, residual + j * codec().dims);
            out.codes.push_back(nearest(j, y, inverse_scale));
            for (std::size_t i = 0; i < codec().dims; ++i) {
                const double w{kv_weighted_centroid(codec(), tables_, j, i, out.codes.back())};
                out.with += double{y[i]} * w;
                out.own += w * w;
            }
        }
        return out;
    }
    unsigned nearest(std::size_t j, const float* y, float inverse_scale) const {
        std::int32_t r[4] = {};
        for (std::size_t i = 0; i < codec().dims; ++i)
            r[i] = kv_grid_value(y[i], inverse_scale, gains_[j]);
        const std::int32_t* e = grid_.data() + (j << codec().bits) * codec().dims;
        unsigned best = 0;
        std::int32_t min = std::numeric_limits<std::int32_t>::max();
        for (unsigned code = 0; code < 1u << codec().bits; ++code) {
            std::int32_t score = 0;
            for (std::size_t i = 0; i < codec().dims; ++i, ++e)
                score += *e * *e - 2 * *e * r[i];
            if (score < min) {
                min = score;
                best = code;
            }
        }
        return best;
    }

    /// Gains and centroids on the grid.
    void prepare() {
        for (std::size_t j = 0; j < layout_.rows(); ++j) {
            gains_.push_back(kv_grid_gain(codec(), tables_, j));
            for (unsigned code = 0; code < 1u << codec().bits; ++code)
                for (std::size_t i = 0; i < codec().dims; ++i)
                    grid_.push_back(
                        kv_grid_centroid(kv_weighted_centroid(codec(), tables_, j, i, code), gains_.back()));
        }
    }

    double decode(std::size_t t, std::size_t i) const {
        const std::size_t g = i / kv_group_channels;
        switch (codec().kind) {
        case kv_kind::f32:
            return double{at<float>(0)[t * size() + i]};
        case kv_kind::f16:
            return double{to_float(at<half>(0)[t * size() + i])};
        case kv_kind::q8_0:
            return double{to_float(at<half>(0)[t * layout_.groups() + g])} * code(t, i);
        case kv_kind::uniform: {
            const std::size_t index =
                layout_.keys() ? t / kv_mean_tokens * size() + i : g * kv_part_tokens + t;
            return double{to_float(at<half>(layout_.origins_offset())[index])} +
                   double{to_float(at<half>(0)[index])} * code(t, i);
        }
        default:
            break;
        }
        const double c =
            double{tables_.scales[i]} * entry(i, static_cast<unsigned>(code(t, i / codec().dims)));
        if (!codec().residual)
            return c;
        return double{to_float(at<half>(0)[t / kv_mean_tokens * size() + i])} +
               double{to_float(at<half>(layout_.scales_offset())[t])} * c;
    }

    int entry(std::size_t channel, unsigned code) const {
        return kv_entry(codec(), tables_.entries + channel * codec().entries(), code);
    }
    range group(std::size_t g) const {
        return range{g * kv_group_channels, (g + 1) * kv_group_channels}.within(size());
    }
    static int rounded(float x, float d, int min, int max) {
        if (!(d > 0))
            return 0;
        const float c = std::nearbyint(x / d);
        return static_cast<int>(std::clamp(c, static_cast<float>(min), static_cast<float>(max)));
    }

    kv_part_layout layout_;
    pq_tables tables_;
    std::byte* part_;
    std::vector<float> gains_;       ///< of sub-spaces
    std::vector<std::int32_t> grid_; ///< e: [sub-space][code][dims]
};

} // namespace crumb::inline CRUMB_ABI::reference
