// Products that take the byte of two nibbles as it is for the operand of the high ones. Loops:
//     product        tiles > rows, one at a time > groups
//     quantization   rows > groups > pairs of inputs
#include <crumb/config.hpp>

#if CRUMB_BUILDS_NEON
#if !defined(CRUMB_THIS_ISA)
#define CRUMB_EDITED_ISA neon_dotprod
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>

#include <crumb/kernel/linear/linear.inl>

#include <crumb/kernel/linear/quantize.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct absorbed_product<isa::CRUMB_THIS_ISA, absorbing_nibble_codes> {
    static constexpr bool available = true;
    static constexpr int bits = 4;
    static constexpr float factor = 0.0625f;
    using type = isa::CRUMB_THIS_ISA::absorbed;
};

// With the byte b = 16 c_h + (c_l + 8), codes y and z (see `quantize_absorbed`) and the group's start,
//     start + sum of (b y + 16 (c_l + 8) z) = 16 (sum of c_h y + c_l (z + y / 16)) from the origin.
// With pairs of bits q, a byte of four of them as an unsigned number, and codes a, b, c, d,
//     start + sum of (byte a + 4 byte b + 16 byte c + 64 byte d, modulo 256 each) = 32 sum of (2 q - 3)
//     inputs.
template <class Format>
struct absorbed_tile<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename absorbed_product<I, typename Format::codes>::type;
    using f32 = typename I::f32;
    static constexpr int vectors = 4; ///< registers per tile
    static constexpr std::size_t code_bytes = Format::codes::bytes;

    static CRUMB_INLINE void single(const linear_args& args, std::size_t tile, std::size_t row,
                                    float* out) noexcept {
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            I::store(out + 4 * v, I::zero());
        single_from(args, tile, row, 0, out);
    }

    /// Continues the totals in `out` from group `first` on.
    static CRUMB_INLINE void single_from(const linear_args& args, std::size_t tile, std::size_t row,
                                         std::size_t first, float* out) noexcept {
        const std::uint8_t* codes = args.codes + (tile * args.groups + first) * code_bytes;
        const half* scales = args.scales + (tile * args.groups + first) * tile_channels;
        const std::int8_t* x = args.x_codes + (row * args.groups + first) * group_size;
        const float* x_scales = args.x_scales + row * args.groups;
        const std::int32_t* starts = args.x_starts + row * args.groups;
        f32 total[vectors];
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            total[v] = I::load(out + 4 * v);
        for (std::size_t g = first; g < args.groups; ++g) {
            typename P::acc s[vectors];
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v)
                s[v] = P::start(I::set1_i32(starts[g]));
            const typename I::act low = I::load_act(x), high = I::load_act(x + 16);
            register_row<0>(codes, low, high, s);
            register_row<1>(codes, low, high, s);
            if constexpr (code_bytes == 4 * tile_row_bytes) {
                register_row<2>(codes, low, high, s);
                register_row<3>(codes, low, high, s);
            }
            const f32 scale = I::set1(x_scales[g]), origin = I::set1(activation_origin);
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v)
                total[v] = I::fma(I::mul(I::sub(I::as_f32(P::finish(s[v])), origin), scale),
                                  I::load(scales + 4 * v), total[v]);
            codes += code_bytes;
            scales += tile_channels;
            x += group_size;
        }
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            I::store(out + 4 * v, total[v]);
    }

  private:
    template <int Row>
    static CRUMB_INLINE void register_row(const std::uint8_t* codes, typename I::act low,
                                          typename I::act high, typename P::acc* s) noexcept {
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            P::template step<Row>(s[v], I::load_bytes(codes + Row * tile_row_bytes + 16 * v), low, high);
    }
};

template <class Format, class Tile>
struct absorbed_run<isa::CRUMB_THIS_ISA, Format, Tile> {
    using I = isa::CRUMB_THIS_ISA;

    static void run(const linear_args& args) noexcept {
        for (std::size_t t = args.channels.begin / tile_channels; t * tile_channels < args.channels.end; ++t)
            for (std::size_t r = args.rows.begin; r < args.rows.end; ++r)
                row(args, t, r);
    }

  private:
    static CRUMB_NOINLINE void row(const linear_args& args, std::size_t tile, std::size_t r) noexcept {
        alignas(64) float out[tile_channels];
        Tile::single(args, tile, r, out);
        blocks<I>::store(args, out, tile, 1, r, 1, absorbed_product<I, typename Format::codes>::factor);
    }
};

template <>
struct absorbed_quantizer<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;

    static void run(const quantize_args& args) noexcept {
        const std::size_t groups = args.layout.groups();
        for (std::size_t r = args.part.begin; r < args.part.end; ++r) {
            const float* x = args.x + r * args.x_stride;
            for (std::size_t g = 0; g < groups; ++g) {
                float padded[group_size];
                const float* from = activation_quantizer<I>::whole(x, g, args.layout.k, padded);
                const std::size_t at = r * groups + g;
                std::int8_t* code = args.codes + at * group_size;
                args.starts[at] = args.layout.absorbed == 4 ? group(from, code, args.scales[at])
                                                            : group_of_pairs(from, code, args.scales[at]);
            }
        }
    }

  private:
    /// Returns the start of the sum.
    static CRUMB_INLINE std::int32_t group(const float* x, std::int8_t* code, float& scale) noexcept {
        const float32x4_t sixteenth = vdupq_n_f32(0.0625f);
        int32x4_t most = vdupq_n_s32(0);
        CRUMB_UNROLL
        for (int i = 0; i < 16; i += 4) {
            const float32x4_t high = I::load(x + 16 + i);
            const float32x4_t low = vfmsq_f32(I::load(x + i), high, sixteenth);
            most = vmaxq_s32(most, vmaxq_s32(I::magnitude_bits(high), I::magnitude_bits(low)));
        }
        // As integers, NaN and infinity are larger than every number.
        const float largest = __builtin_bit_cast(float, vmaxvq_s32(most));
        if (!(largest >= smallest_activation && largest <= largest_activation)) {
            __builtin_memset(code, 0, group_size);
            scale = largest < smallest_activation ? 0.0f : __builtin_nanf("");
            return activation_origin_bits;
        }
        scale = activation_scale(largest);
        const float inverse = 1.0f / scale;
        int32x4_t y[4], z[4];
        CRUMB_UNROLL
        for (int i = 0; i < 4; ++i) {
            y[i] = vcvtnq_s32_f32(vmulq_n_f32(I::load(x + 16 + 4 * i), inverse));
            z[i] = vcvtnq_s32_f32(
                vfmsq_f32(vmulq_n_f32(I::load(x + 4 * i), inverse), vcvtq_f32_s32(y[i]), sixteenth));
        }
        const int8x16_t low = narrow(z), high = narrow(y);
        vst1q_s8(code, low);
        vst1q_s8(code + 16, high);
        return activation_origin_bits - 8 * (vaddlvq_s8(high) + 16 * vaddlvq_s8(low));
    }
    static CRUMB_NOINLINE std::int32_t group_of_pairs(const float* x, std::int8_t* code,
                                                      float& scale) noexcept {
        // Each value minus what its byte's codes above it stand for already.
        const auto below = [](float32x4_t y, float32x4_t a) { return vfmsq_n_f32(y, a, 0.25f); };
        const auto second = [](float32x4_t y, float32x4_t a) { return vfmsq_n_f32(y, a, 0.0625f); };
        const auto third = [](float32x4_t y, float32x4_t a) { return vfmsq_n_f32(y, a, 0.015625f); };
        int32x4_t most = vdupq_n_s32(0);
        CRUMB_UNROLL
        for (int r = 0; r < 16; r += 8) {
            const float32x4_t a = I::load(x + 16 + r), b = below(I::load(x + 20 + r), a);
            const float32x4_t c = second(below(I::load(x + r), b), a);
            const float32x4_t d = third(second(below(I::load(x + 4 + r), c), b), a);
            most = vmaxq_s32(most, vmaxq_s32(vmaxq_s32(I::magnitude_bits(a), I::magnitude_bits(b)),
                                             vmaxq_s32(I::magnitude_bits(c), I::magnitude_bits(d))));
        }
        // As integers, NaN and infinity are larger than every number.
        const float largest = __builtin_bit_cast(float, vmaxvq_s32(most));
        if (!(largest >= smallest_activation && largest <= largest_activation)) {
            __builtin_memset(code, 0, group_size);
            scale = largest < smallest_activation ? 0.0f : __builtin_nanf("");
            return activation_origin_bits;
        }
        scale = activation_scale(largest);
        const float inverse = 1.0f / scale;
        int32x4_t q[4][2]; // a, b, c, d of both rows
        CRUMB_UNROLL
        for (int r = 0; r < 2; ++r)
            q[0][r] = vcvtnq_s32_f32(vmulq_n_f32(I::load(x + 16 + 8 * r), inverse));
        if (vaddvq_s32(vaddq_s32(q[0][0], q[0][1])) % 2 != 0) {
            std::int32_t top[8];
            vst1q_s32(top, q[0][0]);
            vst1q_s32(top + 4, q[0][1]);
            int j = 0;
            while (top[j] == 0)
                ++j;
            top[j] += top[j] > 0 ? -1 : 1;
            q[0][0] = vld1q_s32(top);
            q[0][1] = vld1q_s32(top + 4);
        }
        CRUMB_UNROLL
        for (int r = 0; r < 2; ++r) {
            const auto scaled = [&](int at) { return vmulq_n_f32(I::load(x + at + 8 * r), inverse); };
            const float32x4_t a = vcvtq_f32_s32(q[0][r]);
            q[1][r] = vcvtnq_s32_f32(below(scaled(20), a));
            const float32x4_t b = vcvtq_f32_s32(q[1][r]);
            q[2][r] = vcvtnq_s32_f32(second(below(scaled(0), b), a));
            const float32x4_t c = vcvtq_f32_s32(q[2][r]);
            q[3][r] = vcvtnq_s32_f32(third(second(below(scaled(4), c), b), a));
        }
        const int32x4_t low[4] = {q[2][0], q[3][0], q[2][1], q[3][1]};
        const int32x4_t high[4] = {q[0][0], q[1][0], q[0][1], q[1][1]};
        vst1q_s8(code, narrow(low));
        vst1q_s8(code + 16, narrow(high));
        const auto sum = [&](int i) { return vaddvq_s32(vaddq_s32(q[i][0], q[i][1])); };
        const int first = sum(0), two = first + sum(1), three = two + sum(2);
        return activation_origin_bits - (96 * (three + sum(3)) + 24 * three + 6 * two + first / 2 * 3);
    }
    static CRUMB_INLINE int8x16_t narrow(const int32x4_t* q) noexcept {
        const int16x8_t h0 = vuzp1q_s16(vreinterpretq_s16_s32(q[0]), vreinterpretq_s16_s32(q[1]));
        const int16x8_t h1 = vuzp1q_s16(vreinterpretq_s16_s32(q[2]), vreinterpretq_s16_s32(q[3]));
        return vuzp1q_s8(vreinterpretq_s8_s16(h0), vreinterpretq_s8_s16(h1));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel

#endif
