// Scales, minima and codes of the blocks of GGUF for given floats. Every product that a rounding depends on
// is rounded by itself, and minima are those of std::min (std::fmin may return either of two zeros), so that
// the bytes depend neither on the compiler nor on its flags.
#pragma once

#include <crumb/core/rounded.hpp>
#include <crumb/format/traits.hpp>

#include <algorithm>
#include <cmath>

namespace crumb::inline CRUMB_ABI {

/// The integer nearest to x within lowest..highest, ties to even; lowest for NaN. |bounds| <= 2^22.
inline int nearest_integer(float x, int lowest, int highest) noexcept {
    constexpr float unit_is_one = 0x1.8p23f; // what is added to it loses its fraction
    const float inside = std::fmin(std::fmax(x, float(lowest)), float(highest));
    return static_cast<int>(rounded(inside + unit_is_one) - unit_is_one);
}

/// The x of largest magnitude, with its sign.
inline float extreme_of(const float* x, std::size_t count) noexcept {
    // Without `largest` clang 19 compares with the signed extreme when it unrolls the loop.
    float extreme = 0, largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (std::fabs(x[i]) > largest) {
            largest = std::fabs(x[i]);
            extreme = x[i];
        }
    }
    return extreme;
}

/// Codes that are integers.
struct integer_levels {
    int lowest;
    int highest;
    /// Code of the level nearest to x.
    int nearest(float x) const noexcept { return nearest_integer(x, lowest, highest); }
    /// Level of a code.
    static float value(int code) noexcept { return float(code); }
};

/// Codes that are indices into an ascending table.
struct table_levels {
    const std::int8_t (&table)[16];
    /// Code of the level nearest to x.
    int nearest(float x) const noexcept {
        int code = 0;
        while (code < 15 && x - value(code) >= value(code + 1) - x)
            ++code;
        return code;
    }
    /// Level of a code.
    float value(int code) const noexcept { return float(table[code]); }
};

/// The scale of a group with the least squared error, weighted by |x|, among those of least squares for codes
/// nearest to x * factor(i) / extreme, i < count, extreme being the x of largest magnitude.
template <class Levels, class Factor>
float search_scale(const float* x, std::size_t inputs, const Levels& levels, int count,
                   const Factor& factor) noexcept {
    const float extreme = extreme_of(x, inputs);
    if (extreme == 0)
        return 0;
    float scale = 0, most = 0;
    for (int i = 0; i < count; ++i) {
        // The error is a constant less product^2 / square.
        float product = 0, square = 0;
        for (std::size_t k = 0; k < inputs; ++k) {
            const float relative = x[k] / extreme;
            const float value = levels.value(levels.nearest(rounded(relative * factor(i))));
            const float weighted = rounded(std::fabs(relative) * value);
            product += rounded(weighted * relative);
            square += rounded(weighted * value);
        }
        const float gain = square > 0 ? rounded(product * (product / square)) : 0;
        if (gain > most) {
            most = gain;
            scale = extreme * (product / square);
        }
    }
    return scale;
}

/// Encodes a block of groups whose scales are multiples of one half. `lowest`: the least multiplier, which
/// the largest scale gets; the greatest is -1 - lowest. `search(x)`: the scale of a group.
template <class F, class Levels, class Search>
void encode_multiples(const float* x, typename F::block& b, int lowest, const Levels& levels,
                      const Search& search) noexcept {
    constexpr std::size_t inputs = F::scales::group, groups = F::scales::block_groups;
    float scale[groups];
    for (std::size_t g = 0; g < groups; ++g)
        scale[g] = search(x + g * inputs);
    const float unit = extreme_of(scale, groups) / float(lowest);
    const float inverse = unit != 0 ? 1.0f / unit : 0.0f;
    b = {};
    for (std::size_t g = 0; g < groups; ++g) {
        const int multiplier = nearest_integer(rounded(scale[g] * inverse), lowest, -1 - lowest);
        const half_multiple stored{to_half(unit), static_cast<std::int8_t>(multiplier)};
        const float d = to_float(stored);
        int code[inputs];
        for (std::size_t i = 0; i < inputs; ++i)
            code[i] = levels.nearest(d != 0 ? x[g * inputs + i] / d : 0.0f);
        F::set(b, stored, code, g);
    }
}

/// weight = scale * code + minimum.
struct affine_fit {
    float scale = 0;
    float minimum = 0; ///< not above 0
};

/// A fit with a small squared error: codes 0..largest of x are tried as the range from the best minimum so
/// far to max x, divided into largest - 1 to largest + 1 steps, calls for them, and each time the line of
/// least squares through them. Weights of the error: the root mean square plus |x|. At most 32 inputs.
inline affine_fit search_affine(const float* x, std::size_t inputs, int largest) noexcept {
    float low = 0, high = x[0], squares = 0;
    for (std::size_t i = 0; i < inputs; ++i) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
        squares += rounded(x[i] * x[i]);
    }
    if (!(high - low > 1e-15f)) // squares would vanish; no half has such a scale
        return {0, low};
    const float mean = std::sqrt(squares / float(inputs));
    float weight[group_size], code[group_size];
    for (std::size_t i = 0; i < inputs; ++i)
        weight[i] = mean + std::fabs(x[i]);
    const auto divide = [&](float minimum, float steps) {
        const float inverse = steps / (high - minimum);
        for (std::size_t i = 0; i < inputs; ++i)
            code[i] = float(nearest_integer(rounded((x[i] - minimum) * inverse), 0, largest));
    };
    const auto error = [&](const affine_fit& fit) {
        float sum = 0;
        for (std::size_t i = 0; i < inputs; ++i) {
            const float difference = rounded(fit.scale * code[i]) + fit.minimum - x[i];
            sum += rounded(weight[i] * rounded(difference * difference));
        }
        return sum;
    };

    affine_fit best{(high - low) / float(largest), low};
    divide(low, float(largest));
    float least = error(best);
    for (int tenths = -10; tenths <= 10; ++tenths) {
        divide(best.minimum, float(largest) + float(tenths) / 10.0f);
        float sum_w = 0, sum_x = 0, sum_q = 0, sum_qq = 0, sum_qx = 0;
        for (std::size_t i = 0; i < inputs; ++i) {
            const float wq = rounded(weight[i] * code[i]);
            sum_w += weight[i];
            sum_x += rounded(weight[i] * x[i]);
            sum_q += wq;
            sum_qq += rounded(wq * code[i]);
            sum_qx += rounded(wq * x[i]);
        }
        const float determinant = rounded(sum_w * sum_qq) - rounded(sum_q * sum_q);
        if (!(determinant > 0))
            continue;
        affine_fit fit{(rounded(sum_w * sum_qx) - rounded(sum_x * sum_q)) / determinant,
                       (rounded(sum_qq * sum_x) - rounded(sum_q * sum_qx)) / determinant};
        if (fit.minimum > 0)
            fit = {sum_qx / sum_qq, 0};
        const float squared = error(fit);
        if (squared < least) {
            least = squared;
            best = fit;
        }
    }
    return best;
}

/// Encodes a block of groups whose scales and minima are multiples, 0..most, of a half each. Codes
/// 0..largest.
template <class F>
void encode_affine(const float* x, typename F::block& b, int most, int largest) noexcept {
    constexpr std::size_t inputs = F::scales::group, groups = F::scales::block_groups;
    affine_fit fit[groups];
    float scale = 0, depth = 0;
    for (std::size_t g = 0; g < groups; ++g) {
        fit[g] = search_affine(x + g * inputs, inputs, largest);
        scale = std::max(scale, fit[g].scale);
        depth = std::max(depth, -fit[g].minimum);
    }
    const float per_scale = scale > 0 ? float(most) / scale : 0.0f;
    const float per_depth = depth > 0 ? float(most) / depth : 0.0f;
    const half unit = to_half(scale / float(most)), depth_unit = to_half(depth / float(most));
    b = {};
    for (std::size_t g = 0; g < groups; ++g) {
        const int s = nearest_integer(rounded(fit[g].scale * per_scale), 0, most);
        const int m = nearest_integer(rounded(-fit[g].minimum * per_depth), 0, most);
        const half_multiple stored{unit, static_cast<std::int8_t>(s)};
        const half_multiple minimum{depth_unit, static_cast<std::int8_t>(-m)};
        const float d = to_float(stored);
        int code[inputs];
        for (std::size_t i = 0; i < inputs; ++i)
            code[i] =
                nearest_integer(d != 0 ? (x[g * inputs + i] - to_float(minimum)) / d : 0.0f, 0, largest);
        F::set(b, stored, minimum, code, g);
    }
}

/// Encodes a group whose codes 0..largest go from its least to its greatest float.
template <class F>
void encode_range(const float* x, typename F::block& b, int largest) noexcept {
    constexpr std::size_t inputs = F::scales::group;
    float low = x[0], high = x[0];
    for (std::size_t i = 1; i < inputs; ++i) {
        low = std::min(low, x[i]);
        high = std::max(high, x[i]);
    }
    const float d = (high - low) / float(largest);
    const float inverse = d != 0 ? 1.0f / d : 0.0f;
    int code[inputs];
    for (std::size_t i = 0; i < inputs; ++i)
        code[i] = static_cast<int>(
            std::fmin(std::fmax(rounded((x[i] - low) * inverse) + 0.5f, 0.0f), float(largest)));
    b = {};
    F::set(b, to_half(d), to_half(low), code);
}

/// Encodes a group whose scale is its largest magnitude and whose codes are -1, 0 and 1.
template <class F>
void encode_ternary(const float* x, typename F::block& b) noexcept {
    constexpr std::size_t inputs = F::scales::group;
    const float d = std::fabs(extreme_of(x, inputs));
    const float inverse = d != 0 ? 1.0f / d : 0.0f;
    int code[inputs];
    for (std::size_t i = 0; i < inputs; ++i)
        code[i] = static_cast<int>(std::fmin(std::fmax(std::round(x[i] * inverse), -1.0f), 1.0f));
    b = {};
    F::set(b, to_half(d), code);
}

} // namespace crumb::inline CRUMB_ABI
