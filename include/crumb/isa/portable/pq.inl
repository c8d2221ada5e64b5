// Primitives of scans of product-quantized codes as plain loops over bytes: lookups in tables and their sums.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct pq_portable {
    using f32 = isa::portable::f32;
    static constexpr int lanes = isa::portable::lanes;
    static constexpr int width = 32;
    static constexpr int most = 1;              ///< queries or planes that share a pass
    static constexpr bool holds_tables = false; ///< in registers; else they are operands in memory
    static constexpr bool pins_all = false;     ///< whether a pass of scores pins what each table gives
    static constexpr int table_registers_64 = 1, table_registers_256 = 1; // pointers
    struct reg {
        std::uint8_t byte[width];
    };
    using table_16 = const std::uint8_t*;
    using table_64 = const std::uint8_t*;
    using table_256 = const std::uint8_t*;
    using index_16 = reg;
    using index_64 = reg;
    using index_256 = reg;

    static CRUMB_INLINE reg load(const std::uint8_t* p) noexcept {
        reg x;
        std::memcpy(x.byte, p, sizeof x.byte);
        return x;
    }
    static CRUMB_INLINE reg add(const reg& a, const reg& b) noexcept {
        reg x;
        for (int i = 0; i < width; ++i)
            x.byte[i] = static_cast<std::uint8_t>(a.byte[i] + b.byte[i]);
        return x;
    }

    static CRUMB_INLINE table_16 load_table_16(const void* p) noexcept {
        return static_cast<const std::uint8_t*>(p);
    }
    static CRUMB_INLINE table_64 load_table_64(const void* p) noexcept { return load_table_16(p); }
    static CRUMB_INLINE table_256 load_table_256(const void* p) noexcept { return load_table_16(p); }
    static CRUMB_INLINE index_16 low_nibbles(const reg& raw) noexcept { return bits<0, 15>(raw); }
    static CRUMB_INLINE index_16 high_nibbles(const reg& raw) noexcept { return bits<4, 15>(raw); }
    /// The codes of a block.
    struct six_codes {
        reg nibbles, twos; ///< `twos`: the high 2 bits, twice
    };
    static constexpr int sets_64 = 2;
    static CRUMB_INLINE six_codes load_six(const std::uint8_t* nibbles, const std::uint8_t* twos,
                                           std::size_t u) noexcept {
        six_codes x;
        x.nibbles = load(nibbles + 32 * u);
        std::memcpy(x.twos.byte, twos + 16 * u, 16);
        std::memcpy(x.twos.byte + 16, twos + 16 * u, 16);
        return x;
    }
    static CRUMB_INLINE index_64 six_bits(const six_codes& x, int set) noexcept {
        reg six;
        for (int i = 0; i < width; ++i) {
            const int low = x.nibbles.byte[i] >> 4 * set & 15,
                      high = x.twos.byte[i] >> (4 * set + i / 16 * 2) & 3;
            six.byte[i] = static_cast<std::uint8_t>(high << 4 | low);
        }
        return six;
    }
    static CRUMB_INLINE index_256 eight_bits(const reg& raw) noexcept { return raw; }
    static CRUMB_NOINLINE reg look_up_16(const std::uint8_t* t, const reg& i) noexcept {
        reg x;
        for (int k = 0; k < width; ++k)
            x.byte[k] = t[i.byte[k]];
        return x;
    }
    static CRUMB_INLINE reg look_up_64(const std::uint8_t* t, const reg& i) noexcept {
        return look_up_16(t, i);
    }
    static CRUMB_INLINE reg look_up_256(const std::uint8_t* t, const reg& i) noexcept {
        return look_up_16(t, i);
    }

    struct sums {
        std::uint16_t lane[width];
    };
    /// See `pq_avx512::pin`; registers here are no lines.
    template <class T>
    static CRUMB_INLINE void pin(T&) noexcept {}

    static CRUMB_INLINE sums start() noexcept { return {}; }
    static CRUMB_INLINE void widen(sums& s, const reg& x) noexcept {
        for (int i = 0; i < width; ++i)
            s.lane[i] = static_cast<std::uint16_t>(s.lane[i] + x.byte[i]);
    }
    /// The first half of the lanes goes to `low`, the other to `high`.
    static CRUMB_INLINE void store(const sums& s, std::uint16_t* low, std::uint16_t* high) noexcept {
        std::memcpy(low, s.lane, sizeof s.lane / 2);
        std::memcpy(high, s.lane + width / 2, sizeof s.lane / 2);
    }
    static CRUMB_INLINE f32 load_sums(const std::uint16_t* p) noexcept {
        float x[lanes];
        for (int i = 0; i < lanes; ++i)
            x[i] = static_cast<float>(p[i]);
        return isa::portable::load(x);
    }

    struct dots {
        std::int32_t lane[lanes];
    };
    static CRUMB_INLINE dots start_dots() noexcept { return {}; }
    static CRUMB_INLINE void dot(dots& s, const reg& weights, const reg& values) noexcept {
        for (int i = 0; i < width; ++i)
            s.lane[i % lanes] += weights.byte[i] * static_cast<std::int8_t>(values.byte[i]);
    }
    /// sums[c][i] += factor * (lanes i, i + 4, ... of s[c]).
    template <int Channels>
    static CRUMB_INLINE void add_to(float* sums, float factor, const dots* s) noexcept {
        for (int c = 0; c < Channels; ++c)
            for (int i = 0; i < 4; ++i) {
                std::int32_t sum = 0;
                for (int k = i; k < lanes; k += 4)
                    sum += s[c].lane[k];
                sums[8 * c + i] += factor * static_cast<float>(sum);
            }
    }

  private:
    template <int Shift, int Mask>
    static CRUMB_INLINE reg bits(const reg& raw) noexcept {
        reg x;
        for (int i = 0; i < width; ++i)
            x.byte[i] = static_cast<std::uint8_t>(raw.byte[i] >> Shift & Mask);
        return x;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
