// Tables of 64 entries and more for AVX-512, made of products of bytes by dot instructions. Loops: 64
// entries.
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// A row of centroids and the query's integers for it. A query's integer is 256 high + low, two bytes;
/// entries are made unsigned, which adds 128 times the sum of the integers to all products of a row.
template <int Dims>
class pq_wide_row {
  public:
    /// `q`: Dims integers of at most 127 * 257. `entries`: [Dims][count].
    CRUMB_INLINE pq_wide_row(const float* q, const std::int8_t* entries, std::size_t count) noexcept
        : entries_(entries), count_(count) {
        const __m128i x = _mm_cvtps_epi32(_mm_maskz_loadu_ps((1 << Dims) - 1, q));
        const __m128i low = _mm_cvtepi32_epi8(x);
        const __m128i high = _mm_cvtepi32_epi8(_mm_srai_epi32(_mm_add_epi32(x, _mm_set1_epi32(128)), 8));
        low_ = _mm512_broadcastd_epi32(low);
        high_ = _mm512_broadcastd_epi32(high);
        added_ = _mm_cvtsi128_si32(_mm512_castsi512_si128(product(_mm512_set1_epi8(-128))));
    }

    /// The least product, and the largest less the least.
    CRUMB_INLINE void find_range(float& least, float& range) const noexcept {
        __m512i low = _mm512_set1_epi32(__INT_MAX__), high = _mm512_set1_epi32(-__INT_MAX__);
        for (std::size_t e = 0; e < count_; e += 64) {
            __m512i x[4];
            products(e, x);
            low = _mm512_min_epi32(
                low, _mm512_min_epi32(_mm512_min_epi32(x[0], x[1]), _mm512_min_epi32(x[2], x[3])));
            high = _mm512_max_epi32(
                high, _mm512_max_epi32(_mm512_max_epi32(x[0], x[1]), _mm512_max_epi32(x[2], x[3])));
        }
        least = static_cast<float>(_mm512_reduce_min_epi32(low) - added_);
        range = static_cast<float>(_mm512_reduce_max_epi32(high) - added_) - least;
    }

    /// round((product - least) * steps), at most 16383, in two planes of 7 bits.
    CRUMB_INLINE void fill(float least, float steps, std::uint8_t* low, std::uint8_t* high) const noexcept {
        const __m512i from = _mm512_set1_epi32(static_cast<std::int32_t>(least) + added_);
        const __m512 by = _mm512_set1_ps(steps);
        for (std::size_t e = 0; e < count_; e += 64) {
            __m512i x[4];
            products(e, x);
            CRUMB_UNROLL
            for (int i = 0; i < 4; ++i)
                x[i] =
                    _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(x[i], from)), by));
            const __m512i a = _mm512_packus_epi32(x[0], x[1]), b = _mm512_packus_epi32(x[2], x[3]);
            const __m512i seven = _mm512_set1_epi16(127);
            _mm512_storeu_si512(low + e,
                                _mm512_packus_epi16(_mm512_and_si512(a, seven), _mm512_and_si512(b, seven)));
            _mm512_storeu_si512(high + e,
                                _mm512_packus_epi16(_mm512_srli_epi16(a, 7), _mm512_srli_epi16(b, 7)));
        }
    }

  private:
    /// Products with 16 times four unsigned entries.
    CRUMB_INLINE __m512i product(__m512i four) const noexcept {
        const __m512i high = _mm512_dpbusd_epi32(_mm512_setzero_si512(), four, high_);
        return _mm512_dpbusd_epi32(_mm512_slli_epi32(high, 8), four, low_);
    }
    /// Of entries e .. e + 63, interleaved as two rounds of packing undo it: in each 16 bytes' place, four of
    /// every register.
    CRUMB_INLINE void products(std::size_t e, __m512i* x) const noexcept {
        __m512i d[4];
        CRUMB_UNROLL
        for (int i = 0; i < 4; ++i)
            d[i] = i < Dims ? _mm512_xor_si512(
                                  _mm512_loadu_si512(entries_ + static_cast<std::size_t>(i) * count_ + e),
                                  _mm512_set1_epi8(-128))
                            : _mm512_setzero_si512();
        const __m512i a = _mm512_unpacklo_epi8(d[0], d[1]), b = _mm512_unpackhi_epi8(d[0], d[1]);
        const __m512i c = _mm512_unpacklo_epi8(d[2], d[3]), f = _mm512_unpackhi_epi8(d[2], d[3]);
        x[0] = product(_mm512_unpacklo_epi16(a, c));
        x[1] = product(_mm512_unpackhi_epi16(a, c));
        x[2] = product(_mm512_unpacklo_epi16(b, f));
        x[3] = product(_mm512_unpackhi_epi16(b, f));
    }

    const std::int8_t* entries_;
    std::size_t count_;
    __m512i low_, high_;
    std::int32_t added_;
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
