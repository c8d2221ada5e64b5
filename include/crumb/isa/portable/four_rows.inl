// Codes of four neurons at a time in plain C++, and what each function of its kind computes. Loops: bytes.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

// Not inlined: GCC 12 would with -O1 mix up the induction variables of the loops over bytes.
struct four_rows_portable {
    struct reg {
        std::uint8_t row[4][16];
    };

    /// 16 bytes of each row.
    static CRUMB_NOINLINE reg load(const std::uint8_t* const* at) noexcept {
        reg x;
        for (int r = 0; r < 4; ++r)
            __builtin_memcpy(x.row[r], at[r], 16);
        return x;
    }
    /// 8 bytes of each row, and once more.
    static CRUMB_NOINLINE reg load_twice(const std::uint8_t* const* at) noexcept {
        reg x;
        for (int r = 0; r < 4; ++r) {
            __builtin_memcpy(x.row[r], at[r], 8);
            __builtin_memcpy(x.row[r] + 8, at[r], 8);
        }
        return x;
    }
    /// The low or the high halves of bytes.
    template <int Half>
    static CRUMB_NOINLINE reg nibbles(const reg& x) noexcept {
        return each([&](int r, int i) { return x.row[r][i] >> 4 * Half & 15; });
    }
    /// Of bytes twice: pairs of bits 2 Half from the first eight, 2 Half + 1 from the others.
    template <int Half>
    static CRUMB_NOINLINE reg pairs(const reg& x) noexcept {
        constexpr std::uint64_t threes = 0x0303030303030303u;
        reg y;
        for (int r = 0; r < 4; ++r) {
            std::uint64_t eight[2];
            __builtin_memcpy(eight, x.row[r], sizeof eight);
            eight[0] = eight[0] >> 4 * Half & threes;
            eight[1] = eight[1] >> (4 * Half + 2) & threes;
            __builtin_memcpy(y.row[r], eight, sizeof eight);
        }
        return y;
    }
    /// Every row in its own table of 16.
    static CRUMB_NOINLINE reg look_up(const reg& tables, const reg& indices) noexcept {
        return each([&](int r, int i) { return tables.row[r][indices.row[r][i]]; });
    }
    static CRUMB_NOINLINE reg same(const std::int8_t* sixteen) noexcept {
        return each([&](int, int i) { return sixteen[i]; });
    }
    /// round(x * factors[stride * row] / 2^15), |factor| < 2^15.
    static CRUMB_NOINLINE reg scaled(const reg& x, const std::int16_t* factors, std::size_t stride) noexcept {
        return each([&](int r, int i) {
            return product(static_cast<std::int8_t>(x.row[r][i]),
                           factors[stride * static_cast<std::size_t>(r)]);
        });
    }
    /// to[4 i + r] = byte i of row r.
    static CRUMB_NOINLINE void store_columns(std::uint8_t* to, const reg& x) noexcept {
        for (int i = 0; i < 64; ++i)
            to[i] = x.row[i % 4][i / 4];
    }
    /// Of 16 rows, four in each register: to[64 j + 4 r + i] = byte 4 j + i of row r.
    static CRUMB_NOINLINE void store_tile(std::uint8_t* to, const reg* x) noexcept {
        for (std::size_t r = 0; r < tile_channels; ++r)
            for (std::size_t j = 0; j < 4; ++j)
                __builtin_memcpy(to + j * tile_row_bytes + 4 * r, x[r / 4].row[r % 4] + 4 * j, 4);
    }

    /// A row of a tile: codes[4 c + i] = round((x + y) / 2^7) with x = round(codes[4 c + i] * factors[c] /
    /// 2^7), y = round(others[4 c + i] * other_factors[c] / 2^7).
    static CRUMB_NOINLINE void combine(std::uint8_t* codes, const std::int8_t* others,
                                       const std::int16_t* factors,
                                       const std::int16_t* other_factors) noexcept {
        for (std::size_t i = 0; i < tile_row_bytes; ++i) {
            const int x = product(256 * static_cast<std::int8_t>(codes[i]), factors[i / 4]);
            const int y = product(256 * others[i], other_factors[i / 4]);
            codes[i] = static_cast<std::uint8_t>((x + y + 64) >> 7);
        }
    }

    /// Sums of 32 columns of 16 rows at most. Factors are at most 127, so 16 bits hold a sum of nibbles times
    /// factors.
    struct sums {
        std::int32_t column[32];
    };
    static CRUMB_NOINLINE sums start(std::int16_t x) noexcept {
        sums s;
        for (std::int32_t& column : s.column)
            column = x;
        return s;
    }
    /// s.column[i] += factors[r] * (low half of byte i of row r), s.column[16 + i] the same with high halves.
    static CRUMB_NOINLINE void add_products(sums& s, const std::uint8_t* const* at,
                                            const std::int8_t* factors) noexcept {
        for (int r = 0; r < 4; ++r)
            for (int i = 0; i < 16; ++i) {
                s.column[i] += factors[r] * (at[r][i] & 15);
                s.column[16 + i] += factors[r] * (at[r][i] >> 4);
            }
    }
    /// Register V of the columns.
    template <int V>
    static CRUMB_INLINE xsimd::batch<float> columns(const sums& s) noexcept {
        using integers = xsimd::batch<std::int32_t>;
        return xsimd::to_float(integers::load_unaligned(s.column + V * integers::size));
    }
    /// to[4 i + r] = lane i of x[r], which a byte holds.
    static CRUMB_NOINLINE void store_factors(std::int8_t* to, const xsimd::batch<std::int32_t>* x) noexcept {
        std::int32_t lanes[xsimd::batch<std::int32_t>::size];
        for (std::size_t r = 0; r < 4; ++r) {
            x[r].store_unaligned(lanes);
            for (std::size_t i = 0; i < std::size(lanes); ++i)
                to[4 * i + r] = static_cast<std::int8_t>(lanes[i]);
        }
    }

  private:
    static int product(int x, int factor) noexcept { return (x * factor + (1 << 14)) >> 15; }
    template <class F>
    static reg each(F f) noexcept {
        reg x;
        for (int r = 0; r < 4; ++r)
            for (int i = 0; i < 16; ++i)
                x.row[r][i] = static_cast<std::uint8_t>(f(r, i));
        return x;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
