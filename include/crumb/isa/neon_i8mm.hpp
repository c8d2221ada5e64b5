// The primitives of Armv8.6 with i8mm: SDOT by lane for single rows, SMMLA for pairs of rows.
#pragma once

#include <crumb/isa/neon_dotprod.hpp>

#if CRUMB_BUILDS_NEON_I8MM

CRUMB_TARGET_BEGIN(CRUMB_TARGET_NEON_I8MM)

namespace crumb::inline CRUMB_ABI::isa {

struct neon_i8mm : neon_dotprod {
    static constexpr const char* name = "neon_i8mm";
    static constexpr bool has_matrix_product = true;
    static constexpr std::size_t row_block = 16;
    static constexpr bool supported(const cpu_features& cpu) noexcept { return cpu.dotprod && cpu.i8mm; }
};

} // namespace crumb::inline CRUMB_ABI::isa

namespace crumb::inline CRUMB_ABI::kernel {

// SMMLA multiplies 2 rows x 8 inputs by 2 channels x 8 inputs. ZIP of two register rows of a tile (4 channels
// x 4 inputs each) gives exactly that operand, so the layout that SDOT wants serves as it lies. Sums and
// scales stay in the 2 x 2 order {row 0, row 0, row 1, row 1} until the block is stored.
template <class Product, int Rows>
struct row_pair<isa::neon_i8mm, Product, Rows> {
    using operand = int8x16_t;
    int32x4_t s0, s1;

    static CRUMB_INLINE void arrange(uint8x16_t& r0, uint8x16_t& r1) noexcept {
        const uint32x4_t a = vreinterpretq_u32_u8(r0);
        const uint32x4_t b = vreinterpretq_u32_u8(r1);
        r0 = vreinterpretq_u8_u32(vzip1q_u32(a, b));
        r1 = vreinterpretq_u8_u32(vzip2q_u32(a, b));
    }
    CRUMB_INLINE void start(const std::int32_t*) noexcept { s0 = s1 = vdupq_n_s32(0); }
    template <int>
    CRUMB_INLINE void step(operand w0, operand w1, const std::int8_t* a) noexcept {
        const int8x16_t rows = Rows == 2 ? vld1q_s8(a) : vcombine_s8(vld1_s8(a), vdup_n_s8(0));
        s0 = vmmlaq_s32(s0, rows, w0);
        s1 = vmmlaq_s32(s1, rows, w1);
    }
    CRUMB_INLINE void finish(int32x4_t& t0, int32x4_t& t1) const noexcept {
        t0 = s0;
        t1 = s1;
    }
    static CRUMB_INLINE void weight_scales(float32x4_t d, float32x4_t& e0, float32x4_t& e1) noexcept {
        const float64x2_t pairs = vreinterpretq_f64_f32(d);
        e0 = vreinterpretq_f32_f64(vzip1q_f64(pairs, pairs));
        e1 = vreinterpretq_f32_f64(vzip2q_f64(pairs, pairs));
    }
    static CRUMB_INLINE void row_scales(const float* a, float32x4_t& f0, float32x4_t& f1) noexcept {
        if constexpr (Rows == 2) {
            const float32x2_t two = vld1_f32(a);
            f0 = f1 = vcombine_f32(vdup_lane_f32(two, 0), vdup_lane_f32(two, 1));
        } else {
            f0 = f1 = vdupq_n_f32(*a);
        }
    }
    static CRUMB_INLINE void rows(float32x4_t t0, float32x4_t t1, float32x4_t& r0, float32x4_t& r1) noexcept {
        r0 = vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(t0), vreinterpretq_f64_f32(t1)));
        r1 = vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(t0), vreinterpretq_f64_f32(t1)));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#define CRUMB_THIS_ISA neon_i8mm
#include <crumb/kernel/all.inl>
#undef CRUMB_THIS_ISA

CRUMB_TARGET_END

#endif
