// Dynamic quantization of activations to int8, written straight into the interleaved layout. Loops:
//     rows > spans of 512 inputs > groups of 32 (maxima, scales, codes)
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct activation_quantizer<I> {
    static constexpr std::size_t span = panel_inputs / group_size; ///< groups of 32 that go together

    // Sixteen groups go together, step by step: one group alone is a long chain of dependent instructions.
    static void run(const quantize_args& args) noexcept {
        for (std::size_t r = args.part.begin; r < args.part.end; ++r) {
            const row_position at = block_of(r, args.rows, args.layout.row_block);
            const std::size_t step = args.layout.group == record_inputs ? record_inputs : panel_inputs;
            for (std::size_t begin = 0; begin < args.layout.k; begin += step) {
                if constexpr (has_fours<I>) {
                    const std::size_t left = args.layout.k - begin;
                    const std::size_t n = left < panel_inputs ? left : panel_inputs;
                    if (n % (4 * group_size) == 0 && args.layout.offset == 0 && !args.layout.has_shifts() &&
                        args.layout.sum_inputs == 0) {
                        fours<I>(args, r, at, begin, n / group_size);
                        continue;
                    }
                }
                inputs(args, r, at, begin, step);
            }
        }
    }

    /// The 32 inputs of group g of a row of n: in x, or copied to `padded` with zeros behind the end.
    static CRUMB_INLINE const float* whole(const float* x, std::size_t g, std::size_t n,
                                           float* padded) noexcept {
        const std::size_t begin = g * group_size;
        if (n - begin >= group_size)
            return x + begin;
        for (std::size_t j = 0; j < group_size; ++j)
            padded[j] = j < n - begin ? x[begin + j] : 0.0f;
        return padded;
    }

  private:
    struct terms {
        std::int32_t most[span]; ///< bits of the largest magnitude
        float scale[span], inverse[span];
        std::int32_t sum[span];      ///< of the codes
        std::int32_t half[2 * span]; ///< of the first and the last 16 codes
    };

    static CRUMB_INLINE void inputs(const quantize_args& args, std::size_t r, row_position at,
                                    std::size_t begin, std::size_t step) noexcept {
        const float* x = args.x + r * args.x_stride + begin;
        const std::size_t left = args.layout.k - begin;
        const std::size_t n = left < step ? left : step;
        const std::size_t groups = (n + group_size - 1) / group_size;
        float padded[group_size];
        terms t;
        for (std::size_t g = 0; g < span; ++g)
            t.most[g] = 0;
        for (std::size_t g = 0; g < groups; ++g)
            t.most[g] = largest(whole(x, g, n, padded));
        const bool one_scale = args.layout.group != group_size;
        if (one_scale)
            for (std::size_t g = 1; g < span; ++g)
                t.most[0] = t.most[g] > t.most[0] ? t.most[g] : t.most[0];
        scales(t);

        const block_position in = position_in_block(args.layout.order, r - at.first, at.height);
        std::int8_t* codes = args.codes + at.first * args.layout.k_padded() + begin * at.height + in.code;
        for (std::size_t g = 0; g < groups; ++g) {
            alignas(64) std::int8_t code[group_size];
            // Where the scale is zero or NaN, codes are zero: 0 * NaN would be any.
            const float inverse = t.inverse[one_scale ? 0 : g];
            if (inverse != 0)
                I::round_group(whole(x, g, n, padded), inverse, code);
            else
                __builtin_memset(code, 0, sizeof code);
            CRUMB_UNROLL
            for (std::size_t chunk = 0; chunk < 4; ++chunk)
                __builtin_memcpy(codes + g * in.group_stride + chunk * in.chunk_stride, code + 8 * chunk, 8);
            t.sum[g] = args.layout.offset != 0 ? I::sum_group(code) : 0;
            if (args.layout.sum_inputs != 0)
                half_sums(code, t.half + 2 * g);
        }
        // Of a block of 256 inputs all groups are there.
        for (std::size_t g = groups; step == record_inputs && g < record_inputs / group_size; ++g) {
            t.half[2 * g] = t.half[2 * g + 1] = 0;
            for (std::size_t chunk = 0; chunk < 4; ++chunk)
                __builtin_memset(codes + g * in.group_stride + chunk * in.chunk_stride, 0, 8);
        }

        if (args.layout.sum_inputs != 0)
            store_sums(args, at, r - at.first, begin, groups, t);
        if (one_scale) {
            for (std::size_t g = 1; g < groups; ++g)
                t.sum[0] += t.sum[g];
            store(args, at, in, r - at.first, begin / step, t, 0, 0);
        } else {
            for (std::size_t g = 0; g < groups; ++g)
                store(args, at, in, r - at.first, begin / group_size + g, t, g, activation_origin_bits);
        }
    }

    template <class J>
    static constexpr bool has_fours = requires { J::largest_of_four; };

    /// As `inputs`, for groups that are whole and come in fours, without starts and shifts.
    template <class J>
    static CRUMB_INLINE void fours(const quantize_args& args, std::size_t r, row_position at,
                                   std::size_t begin, std::size_t groups) noexcept {
        const float* x = args.x + r * args.x_stride + begin;
        const block_position in = position_in_block(args.layout.order, r - at.first, at.height);
        std::int8_t* codes = args.codes + at.first * args.layout.k_padded() + begin * at.height + in.code;
        const bool one_scale = args.layout.group != group_size;
        float* to = args.scales + at.first * args.layout.groups() * args.layout.scale_copies() + in.scale +
                    begin / args.layout.group * in.scale_stride;
        alignas(64) float scale[span], inverse[span];
        if (one_scale) {
            auto most = J::largest_of_four(x);
            for (std::size_t g = 4; g < groups; g += 4)
                most = J::max_i32(most, J::largest_of_four(x + g * group_size));
            four_scales<J>(J::set1_i32(J::maximum_i32(most)), scale, inverse);
        } else {
            for (std::size_t g = 0; g < groups; g += 4)
                four_scales<J>(J::largest_of_four(x + g * group_size), scale + g, inverse + g);
        }
        // The only scale is stored again and again.
        const std::size_t step = one_scale ? 0 : 1, to_step = one_scale ? 0 : in.scale_stride;
        const float *s = scale, *i = inverse;
        for (std::size_t g = 0; g < groups; ++g) {
            J::round_chunks(x, *i, codes, in.chunk_stride);
            to[0] = *s;
            to[in.scale_copies - 1] = *s;
            x += group_size;
            codes += in.group_stride;
            to += to_step;
            s += step;
            i += step;
        }
    }

    /// As `scales`, in a register.
    template <class J>
    static CRUMB_INLINE void four_scales(typename J::i32 most, float* scale, float* inverse) noexcept {
        const auto least = J::set1_i32(__builtin_bit_cast(std::int32_t, smallest_activation));
        const auto above = J::set1_i32(__builtin_bit_cast(std::int32_t, largest_activation) + 1);
        const auto not_finite = J::set1_i32(__builtin_bit_cast(std::int32_t, __builtin_nanf("")));
        const auto zero = J::set1_i32(0);
        const auto amax = J::select_less_i32(most, above, J::max_i32(most, least), least);
        const auto quotient = J::as_i32(J::div(J::as_f32(amax), J::set1(127.0f)));
        const auto rounded = J::add_i32(quotient, J::set1_i32(0xff)) & J::set1_i32(~0xff);
        const auto one_over = J::as_i32(J::div(J::set1(1.0f), J::as_f32(rounded)));
        const auto usable = [&](typename J::i32 yes, typename J::i32 otherwise) {
            return J::as_f32(
                J::select_less_i32(most, least, zero, J::select_less_i32(most, above, yes, otherwise)));
        };
        J::store(scale, usable(rounded, not_finite));
        J::store(inverse, usable(one_over, zero));
    }

    /// Of the first and the last 16 codes.
    static CRUMB_INLINE void half_sums(const std::int8_t* code, std::int32_t* to) noexcept {
        alignas(64) std::int8_t first[group_size] = {};
        __builtin_memcpy(first, code, group_size / 2);
        to[0] = I::sum_group(first);
        to[1] = I::sum_group(code) - to[0];
    }
    /// Of the groups from input `begin` on, of row i of a block.
    static CRUMB_INLINE void store_sums(const quantize_args& args, row_position at, std::size_t i,
                                        std::size_t begin, std::size_t groups, const terms& t) noexcept {
        const activation_layout& l = args.layout;
        if (l.group != group_size) {
            auto* to = static_cast<std::int16_t*>(args.sums) + at.first * l.sums() +
                       (begin / l.group * at.height + i) * (l.group / l.sum_inputs);
            for (std::size_t s = 0; s < l.group / l.sum_inputs; ++s)
                to[s] = static_cast<std::int16_t>(l.sum_inputs == 16 ? t.half[s]
                                                                     : t.half[2 * s] + t.half[2 * s + 1]);
            return;
        }
        const std::size_t per_group = group_size / l.sum_inputs;
        const std::size_t first = at.first * l.sums();
        for (std::size_t g = 0; g < groups; ++g)
            for (std::size_t s = 0; s < per_group; ++s) {
                const std::int32_t sum =
                    per_group == 2 ? t.half[2 * g + s] : t.half[2 * g] + t.half[2 * g + 1];
                const std::size_t to = first + ((begin / group_size + g) * at.height + i) * per_group + s;
                if (l.sum_factor != 0)
                    static_cast<std::int32_t*>(args.sums)[to] =
                        (l.from_origin ? activation_origin_bits : 0) + l.sum_factor * sum;
                else
                    static_cast<float*>(args.sums)[to] = static_cast<float>(sum) * t.scale[g];
            }
    }

    /// As an integer, NaN and infinity are larger than every number.
    static CRUMB_INLINE std::int32_t largest(const float* x) noexcept {
        typename I::i32 most = I::magnitude_bits(I::load(x));
        CRUMB_UNROLL
        for (int i = I::lanes; i < static_cast<int>(group_size); i += I::lanes)
            most = I::max_i32(most, I::magnitude_bits(I::load(x + i)));
        return I::maximum_i32(most);
    }

    static CRUMB_INLINE void scales(terms& t) noexcept {
        constexpr auto least = __builtin_bit_cast(std::int32_t, smallest_activation);
        constexpr auto greatest = __builtin_bit_cast(std::int32_t, largest_activation);
        for (std::size_t g = 0; g < span; ++g) {
            const std::int32_t most = t.most[g];
            const bool usable = most >= least && most <= greatest;
            const float scale = activation_scale(__builtin_bit_cast(float, usable ? most : least));
            const float other = most < least ? 0.0f : __builtin_nanf("");
            t.scale[g] = usable ? scale : other;
            t.inverse[g] = usable ? 1.0f / scale : 0.0f;
        }
    }

    /// The terms of group `group` of row i of a block.
    static CRUMB_INLINE void store(const quantize_args& args, row_position at, const block_position& in,
                                   std::size_t i, std::size_t group, const terms& t, std::size_t g,
                                   std::int32_t origin) noexcept {
        const std::size_t first = at.first * args.layout.groups();
        float* scale = args.scales + first * args.layout.scale_copies() + in.scale + group * in.scale_stride;
        scale[0] = t.scale[g];
        scale[in.scale_copies - 1] = t.scale[g];
        if (args.layout.offset != 0)
            args.starts[first + group * at.height + i] = origin - args.layout.offset * t.sum[g];
        if (args.layout.has_shifts())
            args.shifts[first + group * at.height + i] = -activation_origin * t.scale[g];
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
