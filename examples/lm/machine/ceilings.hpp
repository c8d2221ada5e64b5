// What the machine can do at best: reading memory, and multiply-accumulates of int8 codes held in registers.
#pragma once

#include <crumb/format/traits.hpp>
#include <crumb/isa/primitives.hpp>

#include <cstring>

namespace crumb::ceilings {

/// Reads memory with an ISA's widest loads; the body is in ceilings.inl.
template <class Isa>
struct reader;

/// Multiply-accumulates of codes that need no expansion: the ISA's best exact sequence for a bit layout, with
/// enough independent accumulators. `run(n)` does n rounds of `macs` each and returns something that depends
/// on all.
template <class Isa, class Codes>
struct mac_peak;

/// Fused multiply-adds of floats in registers, as `mac_peak`; the body is in ceilings.inl.
template <class Isa>
struct float_peak;

/// Whole groups from registers: what an exact product executes at least. The body is in ceilings.inl.
template <class Isa>
struct group_mix;

} // namespace crumb::ceilings

// An empty instruction that makes the compiler believe a register has changed, so that it repeats what
// depends on it.
#if CRUMB_BUILDS_X86
#define CRUMB_CEILINGS_OPAQUE(x) __asm__ volatile("" : "+v"(x))
#else
#define CRUMB_CEILINGS_OPAQUE(x) __asm__ volatile("" : "+w"(x))
#endif

#define CRUMB_THIS_ISA portable
#include "ceilings.inl"
#undef CRUMB_THIS_ISA

namespace crumb::ceilings {

// xsimd has no dot product. One multiplication and one addition of 16-bit lanes bound whatever can be built
// from it.
template <class Codes>
struct mac_peak<isa::portable, Codes> {
    using lanes = isa::portable::bytes;
    static constexpr double macs = 8.0 * static_cast<double>(lanes::size);
    static CRUMB_NOINLINE int run(std::size_t rounds) noexcept {
        lanes s[8], w(static_cast<std::int16_t>(3)), a(static_cast<std::int16_t>(5));
        CRUMB_UNROLL
        for (auto& x : s)
            x = lanes(static_cast<std::int16_t>(0));
        for (; rounds != 0; --rounds) {
            CRUMB_UNROLL
            for (int i = 0; i < 8; ++i) {
                CRUMB_CEILINGS_OPAQUE(w.data);
                s[i] = s[i] + w * a;
            }
        }
        CRUMB_UNROLL
        for (int i = 1; i < 8; ++i)
            s[0] = s[0] + s[i];
        return s[0].get(0);
    }
};

} // namespace crumb::ceilings

#if CRUMB_BUILDS_X86

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX2)
#define CRUMB_THIS_ISA avx2
#include "ceilings.inl"
#undef CRUMB_THIS_ISA

namespace crumb::ceilings {

/// vpmaddubsw, vpmaddwd, vpaddd: pairs of int8 products fill 16 bits.
template <>
struct mac_peak<isa::avx2, byte_codes> {
    static constexpr double macs = 8 * 32;
    static CRUMB_NOINLINE int run(std::size_t rounds) noexcept {
        __m256i s[8], w = _mm256_set1_epi8(3), one = _mm256_set1_epi16(1);
        const __m256i a = _mm256_set1_epi8(5);
        CRUMB_UNROLL
        for (auto& x : s)
            x = _mm256_setzero_si256();
        for (; rounds != 0; --rounds) {
            CRUMB_UNROLL
            for (int i = 0; i < 8; ++i) {
                CRUMB_CEILINGS_OPAQUE(w);
                s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), one));
            }
        }
        CRUMB_UNROLL
        for (int i = 1; i < 8; ++i)
            s[0] = _mm256_add_epi32(s[0], s[i]);
        return _mm256_extract_epi32(s[0], 0);
    }
};

/// A group of 4-bit codes fits 16-bit sums: eight vpmaddubsw and vpaddw, then one vpmaddwd and vpaddd.
template <>
struct mac_peak<isa::avx2, nibble_codes> {
    static constexpr double macs = 4 * 8 * 32;
    static CRUMB_NOINLINE int run(std::size_t rounds) noexcept {
        __m256i s[4], w = _mm256_set1_epi8(3), one = _mm256_set1_epi16(1);
        const __m256i a = _mm256_set1_epi8(5);
        CRUMB_UNROLL
        for (auto& x : s)
            x = _mm256_setzero_si256();
        for (; rounds != 0; --rounds) {
            __m256i pairs[4];
            CRUMB_UNROLL
            for (int i = 0; i < 4; ++i) {
                CRUMB_CEILINGS_OPAQUE(w);
                pairs[i] = _mm256_maddubs_epi16(w, a);
            }
            CRUMB_UNROLL
            for (int i = 4; i < 32; ++i) {
                CRUMB_CEILINGS_OPAQUE(w);
                pairs[i % 4] = _mm256_add_epi16(pairs[i % 4], _mm256_maddubs_epi16(w, a));
            }
            CRUMB_UNROLL
            for (int i = 0; i < 4; ++i)
                s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(pairs[i], one));
        }
        CRUMB_UNROLL
        for (int i = 1; i < 4; ++i)
            s[0] = _mm256_add_epi32(s[0], s[i]);
        return _mm256_extract_epi32(s[0], 0);
    }
};

} // namespace crumb::ceilings
CRUMB_TARGET_END

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX_VNNI)
#define CRUMB_THIS_ISA avx_vnni
#include "ceilings.inl"
#undef CRUMB_THIS_ISA

namespace crumb::ceilings {

/// vpdpbusd on 32 bytes.
template <class Codes>
struct mac_peak<isa::avx_vnni, Codes> {
    static constexpr double macs = 12 * 32;
    static CRUMB_NOINLINE int run(std::size_t rounds) noexcept {
        __m256i s[12];
        const __m256i w = _mm256_set1_epi8(3), a = _mm256_set1_epi8(5);
        CRUMB_UNROLL
        for (auto& x : s)
            x = _mm256_setzero_si256();
        for (; rounds != 0; --rounds) {
            CRUMB_UNROLL
            for (int i = 0; i < 12; ++i) {
                s[i] = _mm256_dpbusd_avx_epi32(s[i], w, a);
                CRUMB_CEILINGS_OPAQUE(s[i]); // or GCC copies sums between registers
            }
        }
        CRUMB_UNROLL
        for (int i = 1; i < 12; ++i)
            s[0] = _mm256_add_epi32(s[0], s[i]);
        return _mm256_extract_epi32(s[0], 0);
    }
};

} // namespace crumb::ceilings
CRUMB_TARGET_END

CRUMB_TARGET_BEGIN(CRUMB_TARGET_AVX512_VNNI)
CRUMB_IGNORE_UNDEFINED_BEGIN
#define CRUMB_THIS_ISA avx512_vnni
#include "ceilings.inl"
#undef CRUMB_THIS_ISA

namespace crumb::ceilings {

/// vpdpbusd on 64 bytes.
template <class Codes>
struct mac_peak<isa::avx512_vnni, Codes> {
    static constexpr double macs = 16 * 64;
    static CRUMB_NOINLINE int run(std::size_t rounds) noexcept {
        __m512i s[16];
        const __m512i w = _mm512_set1_epi8(3), a = _mm512_set1_epi8(5);
        CRUMB_UNROLL
        for (auto& x : s)
            x = _mm512_setzero_si512();
        for (; rounds != 0; --rounds) {
            CRUMB_UNROLL
            for (int i = 0; i < 16; ++i) {
                s[i] = _mm512_dpbusd_epi32(s[i], w, a);
                CRUMB_CEILINGS_OPAQUE(s[i]); // or GCC copies sums between registers
            }
        }
        CRUMB_UNROLL
        for (int i = 1; i < 16; ++i)
            s[0] = _mm512_add_epi32(s[0], s[i]);
        return _mm512_cvtsi512_si32(s[0]);
    }
};

// What avx512_vbmi adds is for expansion only.
template <>
struct reader<isa::avx512_vbmi> : reader<isa::avx512_vnni> {};
template <>
struct float_peak<isa::avx512_vbmi> : float_peak<isa::avx512_vnni> {};
template <class Codes>
struct mac_peak<isa::avx512_vbmi, Codes> : mac_peak<isa::avx512_vnni, Codes> {};
template <>
struct group_mix<isa::avx512_vbmi> : group_mix<isa::avx512_vnni> {};

} // namespace crumb::ceilings
CRUMB_IGNORE_UNDEFINED_END
CRUMB_TARGET_END

#endif

#if CRUMB_BUILDS_NEON

#define CRUMB_THIS_ISA neon
#include "ceilings.inl"
#undef CRUMB_THIS_ISA

namespace crumb::ceilings {

/// SMULL, SMLAL, SADALP: pairs of int8 products fill 16 bits.
template <>
struct mac_peak<isa::neon, byte_codes> {
    static constexpr double macs = 8 * 16;
    static CRUMB_NOINLINE int run(std::size_t rounds) noexcept {
        int8x16_t w = vdupq_n_s8(3);
        const int8x16_t a = vdupq_n_s8(5);
        int32x4_t s[8];
        CRUMB_UNROLL
        for (auto& x : s)
            x = vdupq_n_s32(0);
        for (; rounds != 0; --rounds) {
            CRUMB_UNROLL
            for (int i = 0; i < 8; ++i) {
                CRUMB_CEILINGS_OPAQUE(w);
                s[i] = vpadalq_s16(s[i], vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(a)), w, a));
            }
        }
        CRUMB_UNROLL
        for (int i = 1; i < 8; ++i)
            s[0] = vaddq_s32(s[0], s[i]);
        return vgetq_lane_s32(s[0], 0);
    }
};

/// A group of 4-bit codes fits 16-bit sums: SMULL and SMLAL for all of it, then one SADALP.
template <>
struct mac_peak<isa::neon, nibble_codes> {
    static constexpr double macs = 8 * 16 * 8;
    static CRUMB_NOINLINE int run(std::size_t rounds) noexcept {
        int8x16_t w = vdupq_n_s8(3);
        const int8x16_t a = vdupq_n_s8(5);
        int32x4_t s[8];
        CRUMB_UNROLL
        for (auto& x : s)
            x = vdupq_n_s32(0);
        for (; rounds != 0; --rounds) {
            int16x8_t pairs[8];
            CRUMB_UNROLL
            for (int i = 0; i < 8; ++i) {
                CRUMB_CEILINGS_OPAQUE(w);
                pairs[i] = vmull_s8(vget_low_s8(w), vget_low_s8(a));
            }
            CRUMB_UNROLL
            for (int j = 0; j < 15; ++j) {
                CRUMB_CEILINGS_OPAQUE(w);
                CRUMB_UNROLL
                for (int i = 0; i < 8; ++i)
                    pairs[i] = vmlal_high_s8(pairs[i], w, a);
            }
            CRUMB_UNROLL
            for (int i = 0; i < 8; ++i)
                s[i] = vpadalq_s16(s[i], pairs[i]);
        }
        CRUMB_UNROLL
        for (int i = 1; i < 8; ++i)
            s[0] = vaddq_s32(s[0], s[i]);
        return vgetq_lane_s32(s[0], 0);
    }
};

} // namespace crumb::ceilings

#endif

#if CRUMB_BUILDS_NEON_DOTPROD

CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_DOTPROD)
#define CRUMB_THIS_ISA neon_dotprod
#include "ceilings.inl"
#undef CRUMB_THIS_ISA

namespace crumb::ceilings {

/// SDOT.
template <class Codes>
struct mac_peak<isa::neon_dotprod, Codes> {
    static constexpr double macs = 24 * 16;
    static CRUMB_NOINLINE int run(std::size_t rounds) noexcept {
        int8x16_t w = vdupq_n_s8(3);
        const int8x16_t a = vdupq_n_s8(5);
        int32x4_t s[24];
        CRUMB_UNROLL
        for (auto& x : s) {
            x = vdupq_n_s32(0);
            // Sums that the compiler knows to be equal become one.
            CRUMB_CEILINGS_OPAQUE(x);
        }
        for (; rounds != 0; --rounds) {
            CRUMB_CEILINGS_OPAQUE(w);
            CRUMB_UNROLL
            for (int i = 0; i < 24; ++i)
                s[i] = vdotq_s32(s[i], w, a);
        }
        CRUMB_UNROLL
        for (int i = 1; i < 24; ++i)
            s[0] = vaddq_s32(s[0], s[i]);
        return vgetq_lane_s32(s[0], 0);
    }
};

} // namespace crumb::ceilings
CRUMB_TARGET_END

#endif

#if CRUMB_BUILDS_NEON_I8MM

CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_I8MM)
#define CRUMB_THIS_ISA neon_i8mm
#include "ceilings.inl"
#undef CRUMB_THIS_ISA

namespace crumb::ceilings {

/// SMMLA.
template <class Codes>
struct mac_peak<isa::neon_i8mm, Codes> {
    static constexpr double macs = 24 * 32;
    static CRUMB_NOINLINE int run(std::size_t rounds) noexcept {
        int8x16_t w = vdupq_n_s8(3);
        const int8x16_t a = vdupq_n_s8(5);
        int32x4_t s[24];
        CRUMB_UNROLL
        for (auto& x : s) {
            x = vdupq_n_s32(0);
            // Sums that the compiler knows to be equal become one.
            CRUMB_CEILINGS_OPAQUE(x);
        }
        for (; rounds != 0; --rounds) {
            CRUMB_CEILINGS_OPAQUE(w);
            CRUMB_UNROLL
            for (int i = 0; i < 24; ++i)
                s[i] = vmmlaq_s32(s[i], w, a);
        }
        CRUMB_UNROLL
        for (int i = 1; i < 24; ++i)
            s[0] = vaddq_s32(s[0], s[i]);
        return vgetq_lane_s32(s[0], 0);
    }
};

} // namespace crumb::ceilings
CRUMB_TARGET_END

#endif
