// Bytes of four channels of a token beside each other, and their products by vpdpbusd. No loops but over
// registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>

#include <crumb/isa/avx2/pq_quads.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// `Joins`: whether entries of codes of 8 bits are loaded together; else they are looked up in registers.
template <bool Joins>
struct pq_quads_512 {
    static constexpr bool joins = Joins;
    static constexpr std::size_t registers = 4; ///< of values in a tile: 64 tokens
    using acc = __m512i;
    using operand = __m512i; ///< entries plus 128
    using f32 = __m512;

    /// By cycles per part on a Zen 4: lookups in registers pay from three queries on. Loading the entries of
    /// codes together takes a fixed time, that of one to two queries' tables of 4 channels, two to three
    /// of 2.
    static constexpr pq_expansion expansion_of(pq_kind kind, std::size_t dims) noexcept {
        switch (kind) {
        case pq_kind::byte:
            return {dims == 1 ? 0u : Joins && dims == 4 ? 2u : 3u, Joins && dims != 1};
        case pq_kind::nibble:
            return {dims == 1 ? 3u : 0u, false};
        default:
            return {dims == 2 ? 3u : 0u, false};
        }
    }

    // Tokens of a register of looked-up bytes are 16 l + 4 k + i: they go to register k, lane 4 l + i.
    static CRUMB_INLINE void interleave(const __m512i* c, __m512i* out) noexcept {
        const __m512i a = _mm512_unpacklo_epi8(c[0], c[1]), b = _mm512_unpackhi_epi8(c[0], c[1]);
        const __m512i x = _mm512_unpacklo_epi8(c[2], c[3]), y = _mm512_unpackhi_epi8(c[2], c[3]);
        const __m512i sign = _mm512_set1_epi8(-128);
        out[0] = _mm512_xor_si512(_mm512_unpacklo_epi16(a, x), sign);
        out[1] = _mm512_xor_si512(_mm512_unpackhi_epi16(a, x), sign);
        out[2] = _mm512_xor_si512(_mm512_unpacklo_epi16(b, y), sign);
        out[3] = _mm512_xor_si512(_mm512_unpackhi_epi16(b, y), sign);
    }
    static constexpr std::size_t place(std::size_t t) noexcept {
        return t % 16 / 4 * 16 + t / 16 * 4 + t % 4;
    }
    static CRUMB_INLINE void keep(std::uint8_t* to, const __m512i* values) noexcept {
        CRUMB_UNROLL
        for (int k = 0; k < 4; ++k)
            _mm512_store_si512(to + 64 * k, values[k]);
    }
    static CRUMB_INLINE operand operand_of(__m512i values) noexcept { return values; }
    static CRUMB_INLINE __m512i load_query(const std::int8_t* four) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, four, sizeof x);
        return _mm512_set1_epi32(x);
    }
    /// `sum`: of the plane that is multiplied.
    static CRUMB_INLINE acc start(std::int32_t sum) noexcept { return _mm512_set1_epi32(-128 * sum); }
    static CRUMB_INLINE void dot(acc& s, operand x, __m512i q) noexcept {
        s = _mm512_dpbusd_epi32(s, x, q);
        // GCC would keep copies of the sums that the instruction overwrites.
        __asm__("" : "+v"(s));
    }
    static CRUMB_INLINE acc times_128(acc s) noexcept { return _mm512_slli_epi32(s, 7); }
    static CRUMB_INLINE acc plus(acc a, acc b) noexcept { return _mm512_add_epi32(a, b); }
    /// step * sums of the first 32 tokens to `out`, of the others to `middle`.
    static CRUMB_INLINE void store(const acc* s, f32 step, float* out, float* middle) noexcept {
        const __m512i a = _mm512_shuffle_i32x4(s[0], s[1], 0x44), b = _mm512_shuffle_i32x4(s[2], s[3], 0x44);
        const __m512i x = _mm512_shuffle_i32x4(s[0], s[1], 0xee), y = _mm512_shuffle_i32x4(s[2], s[3], 0xee);
        store(out, step, _mm512_shuffle_i32x4(a, b, 0x88));
        store(out + 16, step, _mm512_shuffle_i32x4(a, b, 0xdd));
        store(middle, step, _mm512_shuffle_i32x4(x, y, 0x88));
        store(middle + 16, step, _mm512_shuffle_i32x4(x, y, 0xdd));
    }

    // ---- entries that are loaded together ----
    /// [Dims][256] to [256][Dims]; those of keys as operands.
    template <int Dims>
    static void join(const std::int8_t* entries, bool keys, std::int8_t* out) noexcept {
        const __m128i sign = _mm_set1_epi8(keys ? -128 : 0);
        for (int e = 0; e < 256; e += 16) {
            __m128i x[4];
            for (int i = 0; i < Dims; ++i)
                x[i] = _mm_xor_si128(
                    sign, _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries + 256 * i + e)));
            auto* to = reinterpret_cast<__m128i*>(out + e * Dims);
            const __m128i a = _mm_unpacklo_epi8(x[0], x[1]), b = _mm_unpackhi_epi8(x[0], x[1]);
            if constexpr (Dims == 2) {
                _mm_storeu_si128(to, a);
                _mm_storeu_si128(to + 1, b);
            } else {
                const __m128i c = _mm_unpacklo_epi8(x[2], x[3]), d = _mm_unpackhi_epi8(x[2], x[3]);
                _mm_storeu_si128(to, _mm_unpacklo_epi16(a, c));
                _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(a, c));
                _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(b, d));
                _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(b, d));
            }
        }
    }
    static CRUMB_INLINE void load_eight(const std::uint8_t* table, const std::uint8_t* code,
                                        std::uint8_t* first, std::uint8_t* second) noexcept {
        pq_quads_avx2::load_eight(table, code, first, second);
    }
    /// Four channels of each of four tokens, to four tokens of each of four channels.
    static CRUMB_INLINE __m512i by_channels(__m512i x) noexcept {
        return _mm512_shuffle_epi8(x, _mm512_set4_epi32(0x0f0b0703, 0x0e0a0602, 0x0d090501, 0x0c080400));
    }
    static CRUMB_INLINE __m512i load_weights(const std::uint8_t* four) noexcept {
        return load_query(reinterpret_cast<const std::int8_t*>(four));
    }
    static CRUMB_INLINE f32 to_f32(__m512i s) noexcept { return _mm512_cvtepi32_ps(s); }

  private:
    static CRUMB_INLINE void store(float* out, f32 step, __m512i s) noexcept {
        _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_cvtepi32_ps(s), step));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
