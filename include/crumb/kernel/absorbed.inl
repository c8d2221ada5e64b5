// Products that take the byte of two nibbles as it is for the operand of the high ones, one row at a time.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct absorbed_product<isa::CRUMB_THIS_ISA, absorbing_nibble_codes> {
    static constexpr bool available = true;
    using type = isa::CRUMB_THIS_ISA::absorbed;
};

// With the byte b = 16 c_h + (c_l + 8), codes y and z (see `quantize_absorbed`) and the group's start,
//     start + sum of (b y + 16 (c_l + 8) z) = 16 (sum of c_h y + c_l (z + y / 16)) from the origin.
template <class Format>
struct absorbed_tile<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using P = typename absorbed_product<I, typename Format::codes>::type;
    using f32 = typename I::f32;
    static constexpr int vectors = 4; ///< registers per tile
    static constexpr std::size_t code_bytes = packed_layout<Format>::code_bytes;

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
            register_row<2>(codes, low, high, s);
            register_row<3>(codes, low, high, s);
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
struct absorbed_run<isa::CRUMB_THIS_ISA, Format, Tile> : private linear_run<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using base = linear_run<I, Format>;
    static_assert(base::P::factor == 0.0625f);

    static void run(const linear_args& args) noexcept {
        for (std::size_t t = args.channels.begin / tile_channels; t * tile_channels < args.channels.end; ++t)
            for (std::size_t r = args.rows.begin; r < args.rows.end; ++r)
                row(args, t, r);
    }

  private:
    static CRUMB_NOINLINE void row(const linear_args& args, std::size_t tile, std::size_t r) noexcept {
        alignas(64) float out[tile_channels];
        Tile::single(args, tile, r, out);
        base::template emit_block<1, 1>(args, out, tile, r);
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
                args.starts[at] = group(from, args.codes + at * group_size, args.scales[at]);
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
    static CRUMB_INLINE int8x16_t narrow(const int32x4_t* q) noexcept {
        const int16x8_t h0 = vuzp1q_s16(vreinterpretq_s16_s32(q[0]), vreinterpretq_s16_s32(q[1]));
        const int16x8_t h1 = vuzp1q_s16(vreinterpretq_s16_s32(q[2]), vreinterpretq_s16_s32(q[3]));
        return vuzp1q_s8(vreinterpretq_s8_s16(h0), vreinterpretq_s8_s16(h1));
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
