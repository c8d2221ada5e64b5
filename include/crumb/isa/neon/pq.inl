// Primitives of scans of product-quantized codes for NEON: lookups in tables of bytes by TBL, and their sums.
// No loops.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct pq_neon {
    using f32 = isa::neon::f32;
    static constexpr int width = 16;
    static constexpr int most = 4;             ///< queries or planes that share a pass
    static constexpr bool holds_tables = true; ///< in registers; else they are operands in memory
    static constexpr bool pins_all = false;    ///< whether a pass of scores pins what each table gives
    static constexpr int table_registers_64 = 4, table_registers_256 = 16;
    using reg = uint8x16_t;
    using table_16 = uint8x16_t;
    using index_16 = uint8x16_t;
    using table_64 = uint8x16x4_t;
    using index_64 = uint8x16_t;
    struct table_256 {
        table_64 part[4];
    };
    struct index_256 {
        uint8x16_t part[4]; ///< less 0, 64, 128 and 192
    };

    static CRUMB_INLINE reg load(const std::uint8_t* p) noexcept { return vld1q_u8(p); }
    static CRUMB_INLINE reg add(reg a, reg b) noexcept { return vaddq_u8(a, b); }

    static CRUMB_INLINE table_16 load_table_16(const void* p) noexcept {
        return vld1q_u8(static_cast<const std::uint8_t*>(p));
    }
    static CRUMB_INLINE index_16 low_nibbles(reg raw) noexcept { return vandq_u8(raw, vdupq_n_u8(15)); }
    static CRUMB_INLINE index_16 high_nibbles(reg raw) noexcept { return vshrq_n_u8(raw, 4); }
    static CRUMB_INLINE reg look_up_16(table_16 t, index_16 i) noexcept { return vqtbl1q_u8(t, i); }

    static CRUMB_INLINE table_64 load_table_64(const void* p) noexcept {
        const auto* t = static_cast<const std::uint8_t*>(p);
        return {{vld1q_u8(t), vld1q_u8(t + 16), vld1q_u8(t + 32), vld1q_u8(t + 48)}};
    }
    /// The codes of a block.
    struct six_codes {
        uint8x16_t nibbles[2], twos;
    };
    static constexpr int sets_64 = 4;
    static CRUMB_INLINE six_codes load_six(const std::uint8_t* nibbles, const std::uint8_t* twos,
                                           std::size_t u) noexcept {
        return {{load(nibbles + 32 * u), load(nibbles + 32 * u + 16)}, load(twos + 16 * u)};
    }
    static CRUMB_INLINE index_64 six_bits(const six_codes& x, int set) noexcept {
        const uint8x16_t low = x.nibbles[set % 2], mask = vdupq_n_u8(0x30);
        if (set == 0)
            return vorrq_u8(low_nibbles(low), vandq_u8(vshlq_n_u8(x.twos, 4), mask));
        if (set == 1)
            return vorrq_u8(low_nibbles(low), vandq_u8(vshlq_n_u8(x.twos, 2), mask));
        if (set == 2)
            return vsriq_n_u8(vandq_u8(x.twos, mask), low, 4);
        return vsriq_n_u8(vshlq_n_u8(vshrq_n_u8(x.twos, 6), 4), low, 4);
    }
    static CRUMB_INLINE reg look_up_64(const table_64& t, index_64 i) noexcept { return vqtbl4q_u8(t, i); }

    static CRUMB_INLINE table_256 load_table_256(const void* p) noexcept {
        const auto* t = static_cast<const std::uint8_t*>(p);
        return {{load_table_64(t), load_table_64(t + 64), load_table_64(t + 128), load_table_64(t + 192)}};
    }
    // Tables leave few registers: compilers may not make three constants of one.
    static CRUMB_INLINE index_256 eight_bits(reg raw) noexcept {
        const uint8x16_t step = vdupq_n_u8(64);
        uint8x16_t second = vsubq_u8(raw, step);
        __asm__("" : "+w"(second));
        uint8x16_t third = vsubq_u8(second, step);
        __asm__("" : "+w"(third));
        return {{raw, second, third, vsubq_u8(third, step)}};
    }
    static CRUMB_INLINE reg look_up_256(const table_256& t, const index_256& i) noexcept {
        reg x = vqtbl4q_u8(t.part[0], i.part[0]);
        x = vqtbx4q_u8(x, t.part[1], i.part[1]);
        x = vqtbx4q_u8(x, t.part[2], i.part[2]);
        return vqtbx4q_u8(x, t.part[3], i.part[3]);
    }

    struct sums {
        uint16x8_t low, high;
    };
    /// See `pq_avx512::pin`; registers here are no lines.
    template <class T>
    static CRUMB_INLINE void pin(T&) noexcept {}

    static CRUMB_INLINE sums start() noexcept { return {vdupq_n_u16(0), vdupq_n_u16(0)}; }
    static CRUMB_INLINE void widen(sums& s, reg x) noexcept {
        s.low = vaddw_u8(s.low, vget_low_u8(x));
        s.high = vaddw_high_u8(s.high, x);
    }
    static CRUMB_INLINE void store(const sums& s, std::uint16_t* low, std::uint16_t* high) noexcept {
        vst1q_u16(low, s.low);
        vst1q_u16(high, s.high);
    }
    static CRUMB_INLINE f32 load_sums(const std::uint16_t* p) noexcept {
        return vcvtq_f32_u32(vmovl_u16(vld1_u16(p)));
    }

    using dots = int32x4_t;
    static CRUMB_INLINE dots start_dots() noexcept { return vdupq_n_s32(0); }
    /// Two products are at most 2 * 127 * 128 = 32512.
    static CRUMB_INLINE void dot(dots& s, reg weights, reg values) noexcept {
        const int8x16_t w = vreinterpretq_s8_u8(weights), v = vreinterpretq_s8_u8(values);
        const int16x8_t pairs = vmull_s8(vget_low_s8(w), vget_low_s8(v));
        s = vpadalq_s16(s, vmlal_high_s8(pairs, w, v));
    }
    /// sums[c][i] += factor * (lane i of s[c]).
    template <int Channels>
    static CRUMB_INLINE void add_to(float* sums, float factor, const dots* s) noexcept {
        CRUMB_UNROLL
        for (int i = 0; i < Channels; ++i)
            vst1q_f32(sums + 8 * i, vfmaq_n_f32(vld1q_f32(sums + 8 * i), vcvtq_f32_s32(s[i]), factor));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
