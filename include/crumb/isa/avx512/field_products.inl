// Products of codes of 2 and 4 bits with bytes by vpdpbusd. No loops but over registers.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>

#include <crumb/isa/avx2/pq_quads.inl>

#include <crumb/isa/avx512/pq_quads.inl>
#include <crumb/isa/avx512/pq_tables.inl>

#include <crumb/isa/avx512/pq.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

struct field_products_512 {
    static constexpr std::size_t width = 64;
    static constexpr std::size_t tile = 4, channels = 4;
    static constexpr std::size_t at_once(int) noexcept { return 128; }
    using reg = __m512i;
    using acc = __m512i;
    using f32 = __m512;

    // ---- codes ----
    static CRUMB_INLINE reg load(const void* p) noexcept { return _mm512_loadu_si512(p); }
    static CRUMB_INLINE void store(void* p, reg x) noexcept { _mm512_storeu_si512(p, x); }
    template <int Bits, int Half, int>
    static CRUMB_INLINE reg codes(const std::uint8_t* unit) noexcept {
        if constexpr (Bits == 4) {
            const __m512i raw = load(unit);
            return _mm512_and_si512(Half == 0 ? raw : _mm512_srli_epi16(raw, 4), _mm512_set1_epi8(15));
        } else {
            // Of each block tokens 0 .. 15 of the half, then the others, two bits above them.
            const __m512i both = _mm512_castsi256_si512(
                              _mm256_loadu_si256(reinterpret_cast<const __m256i*>(unit))),
                          raw = _mm512_shuffle_i64x2(both, both, 0x50);
            constexpr int a = 4 * Half, b = a + 2;
            const __m512i shifts = _mm512_setr_epi32(a, a, a, a, b, b, b, b, a, a, a, a, b, b, b, b);
            return _mm512_and_si512(_mm512_srlv_epi32(raw, shifts), _mm512_set1_epi8(3));
        }
    }
    static CRUMB_INLINE void by_quads(const reg* c, reg* out) noexcept {
        const __m512i a = _mm512_unpacklo_epi8(c[0], c[1]), b = _mm512_unpackhi_epi8(c[0], c[1]);
        const __m512i x = _mm512_unpacklo_epi8(c[2], c[3]), y = _mm512_unpackhi_epi8(c[2], c[3]);
        out[0] = _mm512_unpacklo_epi16(a, x);
        out[1] = _mm512_unpackhi_epi16(a, x);
        out[2] = _mm512_unpacklo_epi16(b, y);
        out[3] = _mm512_unpackhi_epi16(b, y);
    }
    static CRUMB_INLINE reg factors(const std::int8_t* first, std::size_t to_second) noexcept {
        const __m512i a = _mm512_broadcastd_epi32(_mm_loadu_si32(first));
        return _mm512_mask_broadcastd_epi32(a, 0xff00, _mm_loadu_si32(first + to_second));
    }

    // ---- products ----
    static CRUMB_INLINE acc zero() noexcept { return _mm512_setzero_si512(); }
    static CRUMB_INLINE void dot(acc& sum, reg codes, reg by) noexcept {
        sum = _mm512_dpbusd_epi32(sum, codes, by);
        // GCC would keep copies of the sums that the instruction overwrites.
        __asm__("" : "+v"(sum));
    }
    static CRUMB_INLINE acc widen(acc sum) noexcept { return sum; }
    static CRUMB_INLINE acc plus(acc a, acc b) noexcept { return _mm512_add_epi32(a, b); }
    static CRUMB_INLINE acc times_128(acc a) noexcept { return _mm512_slli_epi32(a, 7); }
    static CRUMB_INLINE void put(const acc* s, const float* steps, const float* bases, float* out) noexcept {
        const __m512i a = _mm512_shuffle_i32x4(s[0], s[1], 0x44), b = _mm512_shuffle_i32x4(s[2], s[3], 0x44);
        const __m512i x = _mm512_shuffle_i32x4(s[0], s[1], 0xee), y = _mm512_shuffle_i32x4(s[2], s[3], 0xee);
        const __m512 step = _mm512_set1_ps(steps[0]), base = _mm512_set1_ps(bases[0]);
        const __m512 later = _mm512_set1_ps(steps[2]), then = _mm512_set1_ps(bases[2]);
        put(out, step, base, _mm512_shuffle_i32x4(a, b, 0x88));
        put(out + 16, step, base, _mm512_shuffle_i32x4(a, b, 0xdd));
        put(out + 64, later, then, _mm512_shuffle_i32x4(x, y, 0x88));
        put(out + 80, later, then, _mm512_shuffle_i32x4(x, y, 0xdd));
    }

    static CRUMB_INLINE void add_to(float* sums, float factor, const acc* s) noexcept {
        pq_avx512::add_to<channels>(sums, factor, s);
    }

    // ---- factors ----
    static constexpr std::size_t place(std::size_t quad) noexcept {
        return quad / 16 * 64 + quad % 4 * 16 + quad % 16 / 4 * 4;
    }
    static constexpr std::size_t token(std::size_t i) noexcept { return i / 2 * 64 + i % 2 * 16; }
    static CRUMB_INLINE void maxima(const f32* x, float* out) noexcept {
        const __m512 a = larger<0x44, 0xee>(x[0], x[1]), b = larger<0x44, 0xee>(x[2], x[3]);
        __m512 c = larger<0x88, 0xdd>(a, b);
        c = _mm512_max_ps(c, _mm512_permute_ps(c, 0x4e));
        c = _mm512_max_ps(c, _mm512_permute_ps(c, 0xb1));
        const __m512i i = _mm512_castsi128_si512(_mm_setr_epi32(0, 4, 8, 12));
        _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(i, c)));
    }
    template <bool Two, bool InOrder>
    static CRUMB_INLINE void round(const f32* x, std::int8_t* high, std::int8_t* low, acc& sum) noexcept {
        const __m512i a = _mm512_packs_epi32(_mm512_cvtps_epi32(x[0]), _mm512_cvtps_epi32(x[1]));
        const __m512i b = _mm512_packs_epi32(_mm512_cvtps_epi32(x[2]), _mm512_cvtps_epi32(x[3]));
        const __m512i one = _mm512_set1_epi16(1);
        sum = isa::avx512_vnni::add_products(isa::avx512_vnni::add_products(sum, a, one), b, one);
        if constexpr (Two) {
            const __m512i c = upper(a), d = upper(b);
            store<InOrder>(high, c, d);
            store<InOrder>(low, _mm512_sub_epi16(a, _mm512_slli_epi16(c, 7)),
                           _mm512_sub_epi16(b, _mm512_slli_epi16(d, 7)));
        } else {
            store<InOrder>(high, a, b);
        }
    }

  private:
    template <bool InOrder>
    static CRUMB_INLINE void store(std::int8_t* p, __m512i a, __m512i b) noexcept {
        const __m512i packed = _mm512_packs_epi16(a, b);
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        store(p, InOrder ? _mm512_permutexvar_epi32(order, packed) : packed);
    }
    template <int A, int B>
    static CRUMB_INLINE __m512 larger(__m512 x, __m512 y) noexcept {
        return _mm512_max_ps(_mm512_shuffle_f32x4(x, y, A), _mm512_shuffle_f32x4(x, y, B));
    }
    static CRUMB_INLINE __m512i upper(__m512i x) noexcept {
        return _mm512_srai_epi16(_mm512_add_epi16(x, _mm512_set1_epi16(64)), 7);
    }
    static CRUMB_INLINE void put(float* out, __m512 step, __m512 base, __m512i s) noexcept {
        _mm512_storeu_ps(out, _mm512_fmadd_ps(step, _mm512_cvtepi32_ps(s), base));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
