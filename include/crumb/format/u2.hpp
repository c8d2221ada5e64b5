// U2: uniform 2-bit codes, a half-precision scale per group; the baseline of codebooks.
#pragma once

#include <crumb/core/rounded.hpp>
#include <crumb/format/codebook.hpp>

#include <cmath>

namespace crumb::inline CRUMB_ABI {

/// weight i = d * (2 q_i - 3). 10 bytes per 32 weights, 2.5 bits per weight. Bytes 0-1: d, little-endian;
/// bytes 2-9: the indices, see `stored_indices`.
struct u2 : codebook_group<2, 0> {
    static constexpr const char* name = "u2";
    /// A codebook that every plan has.
    static constexpr std::int8_t codebooks[codes::table_entries] = {-3, -1, 1, 3};

    /// The d of smallest squared error among 16 candidates, q to nearest.
    static void encode(const float* x, block& b) noexcept {
        float max = 0;
        for (std::size_t i = 0; i < group_size; ++i)
            max = std::fmax(max, std::fabs(x[i]));
        int code[group_size] = {};
        half best{};
        double min = -1;
        for (int step = 4; step < 20; ++step) {
            const half d = to_half(max * float(step) / 48.0f);
            const float scale = to_float(d);
            int q[group_size];
            double error = 0;
            for (std::size_t i = 0; i < group_size; ++i) {
                q[i] = scale > 0 ? nearest(x[i] / scale) : 0;
                const double difference = double(x[i]) - double(scale) * (2 * q[i] - 3);
                error += rounded(difference * difference);
            }
            if (min < 0 || error < min) {
                min = error;
                best = d;
                for (std::size_t i = 0; i < group_size; ++i)
                    code[i] = q[i];
            }
        }
        set(b, best, code);
    }

  private:
    static int nearest(float levels) noexcept {
        return static_cast<int>(std::fmin(std::fmax(std::floor(levels * 0.5f + 2.0f), 0.0f), 3.0f));
    }
};

} // namespace crumb::inline CRUMB_ABI
