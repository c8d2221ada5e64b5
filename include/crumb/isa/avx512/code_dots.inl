// Rows of neurons times quantized activations on AVX-512: two groups of 32 codes per vpdpbusd. Loops:
//     windows of groups > pairs of groups > rows
#include <crumb/config.hpp>

#if CRUMB_BUILDS_X86
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA avx512_vnni
#include <crumb/isa/editor.hpp>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <row_codec Codec>
struct code_dots<isa::avx512_vnni, Codec> {
    using I = isa::avx512_vnni;
    static constexpr std::size_t bytes = row_block<Codec>::bytes;
    static constexpr std::size_t window = 16; ///< groups whose scales are gathered together
    /// sums[r] = sum over groups of fl(scale of w * scale of x) * (exact sum of products), 16 sequences of
    /// fused multiply-adds.
    template <int Rows, class Prefetch>
    static CRUMB_INLINE void run(const std::byte* const* at, const quantized_row& x, std::size_t groups,
                                 float* sums, Prefetch& next) noexcept {
        __m512 total[unsigned(Rows)];
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r)
            total[r] = _mm512_setzero_ps();
        for (std::size_t first = 0; first < groups; first += window) {
            const std::size_t here = groups - first < window ? groups - first : window;
            __m512 scale[unsigned(Rows)];
            CRUMB_UNROLL
            for (int r = 0; r < Rows; ++r)
                scale[r] =
                    _mm512_mul_ps(I::gather_halves<static_cast<int>(bytes)>(at[r] + first * bytes, here),
                                  _mm512_loadu_ps(x.scales + first));
            for (std::size_t g = 0; g < here; g += 2) {
                // Of an odd number of groups the last is read twice, and multiplied with zeros.
                const std::size_t low = (first + g) * bytes, high = g + 1 < here ? low + bytes : low;
                const __m512i codes = _mm512_loadu_si512(x.codes + (first + g) * group_size);
                const __m512i start = _mm512_loadu_si512(x.starts + (first + g) / 2 * 16);
                const __m512i lane = _mm512_add_epi32(halves(), _mm512_set1_epi32(static_cast<int>(g)));
                next.step();
                CRUMB_UNROLL
                for (int r = 0; r < Rows; ++r) {
                    const __m512i w = expand(at[r] + low + sizeof(half), at[r] + high + sizeof(half));
                    const __m512i s = _mm512_dpbusd_epi32(start, w, codes);
                    total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), _mm512_permutexvar_ps(lane, scale[r]),
                                               total[r]);
                }
            }
        }
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r)
            sums[r] = _mm512_reduce_add_ps(total[r]);
    }

  private:
    /// Lanes 0 to 7: 0; lanes 8 to 15: 1.
    static CRUMB_INLINE __m512i halves() noexcept {
        return _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(1), 1);
    }
    /// Two groups' codes in the order of their inputs, made unsigned.
    static CRUMB_INLINE __m512i expand(const std::byte* a, const std::byte* b) noexcept {
        if constexpr (Codec == row_codec::q8_0) {
            const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
            const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b));
            return _mm512_xor_si512(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1),
                                    _mm512_set1_epi8(-128));
        } else if constexpr (Codec == row_codec::q4_0) {
            const __m256i low =
                _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
            const __m256i high =
                _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(b)));
            const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
            const __m512i by = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
            return _mm512_and_si512(_mm512_srlv_epi64(both, by), _mm512_set1_epi8(15));
        } else {
            std::int64_t low, high;
            __builtin_memcpy(&low, a, sizeof low);
            __builtin_memcpy(&high, b, sizeof high);
            const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_set1_epi64x(low)),
                                                    _mm256_set1_epi64x(high), 1);
            // Twice the code, which is 0 to 3.
            const __m512i by = _mm512_setr_epi64(63, 1, 3, 5, 63, 1, 3, 5);
            return _mm512_and_si512(_mm512_rorv_epi64(both, by), _mm512_set1_epi8(6));
        }
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
