// Bytes of four channels of a token beside each other: of codes of 8 bits, loaded together. No loops but over
// registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx2
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct pq_quads_avx2 {
    static constexpr bool joins = true;
    using f32 = __m256;

    /// By cycles per part, of bytes on a Zen 4, of others on a Zen 3. Loading the entries of codes together
    /// takes a fixed time, less than one query's tables of 4 channels, that of one to two queries' of 2.
    static constexpr pq_expansion expansion_of(pq_kind kind, std::size_t dims) noexcept {
        if (kind == pq_kind::byte && dims != 1)
            return {dims == 4 ? 1u : 2u, true, true};
        if (kind == pq_kind::additive && dims == 2)
            return {8, false, true};
        if (kind == pq_kind::six && dims == 2)
            return {2, false, true};
        return {};
    }

    static constexpr std::size_t place(std::size_t t) noexcept { return t; }
    /// [Dims][256] to [256][Dims].
    template <int Dims>
    static void join(const std::int8_t* entries, bool, std::int8_t* out) noexcept {
        for (int e = 0; e < 256; e += 16) {
            __m128i x[4];
            for (int i = 0; i < Dims; ++i)
                x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(entries + 256 * i + e));
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
    /// The entries of four channels of eight codes, those of four codes at `first`, the others at `second`.
    static CRUMB_INLINE void load_eight(const std::uint8_t* table, const std::uint8_t* code,
                                        std::uint8_t* first, std::uint8_t* second) noexcept {
        // Loads limit this: a code's own is saved by a shift.
        std::uint64_t codes;
        __builtin_memcpy(&codes, code, sizeof codes);
        load_four(table, codes, first);
        load_four(table, codes >> 32, second);
    }
    /// Four channels of each of four tokens, to four tokens of each of four channels.
    static CRUMB_INLINE __m256i by_channels(__m256i x) noexcept {
        return _mm256_shuffle_epi8(x, _mm256_setr_epi32(0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703,
                                                        0x0c080400, 0x0d090501, 0x0e0a0602, 0x0f0b0703));
    }
    static CRUMB_INLINE __m256i load_weights(const std::uint8_t* four) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, four, sizeof x);
        return _mm256_set1_epi32(x);
    }
    static CRUMB_INLINE f32 to_f32(__m256i s) noexcept { return _mm256_cvtepi32_ps(s); }

  private:
    static CRUMB_INLINE void load_four(const std::uint8_t* table, std::uint64_t codes,
                                       std::uint8_t* to) noexcept {
        __m128i x = _mm_cvtsi32_si128(entry(table, codes));
        x = _mm_insert_epi32(x, entry(table, codes >> 8), 1);
        x = _mm_insert_epi32(x, entry(table, codes >> 16), 2);
        x = _mm_insert_epi32(x, entry(table, codes >> 24), 3);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x);
    }
    /// Of the code in the lowest byte.
    static CRUMB_INLINE std::int32_t entry(const std::uint8_t* table, std::uint64_t codes) noexcept {
        std::int32_t x;
        __builtin_memcpy(&x, table + (codes & 255) * 4, sizeof x);
        return x;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
