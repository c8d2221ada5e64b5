// Dynamic quantization of activations to int8, written straight into the interleaved layout.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct activation_quantizer<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;

    static void run(const quantize_args& args) noexcept {
        const std::size_t groups = (args.k + group_size - 1) / group_size;
        const std::size_t whole = args.k / group_size;
        for (std::size_t r = args.part.begin; r < args.part.end; ++r) {
            const row_position at = block_of(r, args.rows, args.row_block);
            const std::size_t i = r - at.first;
            const float* x = args.x + r * args.x_stride;
            std::int8_t* codes = args.codes + at.first * groups * group_size + 8 * i;
            float* scales = args.scales + at.first * groups + i;
            std::int32_t* sums = args.offset != 0 ? args.sums + at.first * groups + i : nullptr;
            for (std::size_t g = 0; g < groups; ++g) {
                float padded[group_size];
                const float* from = x + g * group_size;
                if (g == whole) {
                    for (std::size_t j = 0; j < group_size; ++j)
                        padded[j] = whole * group_size + j < args.k ? from[j] : 0.0f;
                    from = padded;
                }
                alignas(64) std::int8_t code[group_size];
                scales[g * at.height] = group(from, code);
                std::int8_t* to = codes + g * group_size * at.height;
                for (std::size_t chunk = 0; chunk < 4; ++chunk)
                    __builtin_memcpy(to + 8 * at.height * chunk, code + 8 * chunk, 8);
                if (sums != nullptr)
                    sums[g * at.height] = -args.offset * I::sum_group(code);
            }
        }
    }

  private:
    static CRUMB_INLINE float group(const float* x, std::int8_t* code) noexcept {
        typename I::i32 most = I::magnitude_bits(I::load(x));
        CRUMB_UNROLL
        for (int i = I::lanes; i < static_cast<int>(group_size); i += I::lanes)
            most = I::max_i32(most, I::magnitude_bits(I::load(x + i)));
        // As integers, NaN and infinity are larger than every number.
        const float amax = __builtin_bit_cast(float, I::maximum_i32(most));
        if (!(amax >= smallest_activation && amax <= 3.402823466e38f)) {
            __builtin_memset(code, 0, group_size);
            return amax < smallest_activation ? 0.0f : __builtin_nanf("");
        }
        I::round_group(x, 127.0f / amax, code);
        return amax / 127.0f;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
