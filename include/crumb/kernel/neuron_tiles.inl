// Rows of neurons turned into packed tiles on the way, for products with many rows of activations.
namespace crumb::inline CRUMB_ABI::kernel {

template <row_codec Codec>
struct neuron_tiles_run<isa::CRUMB_THIS_ISA, Codec> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;
    using i32 = typename I::i32;
    using reader = row_reader<I, Codec>;
    static constexpr int vectors = reader::vectors;
    static constexpr std::size_t tile_bytes = byte_codes::bytes;

    static void inputs(const neuron_tile_args& args) noexcept {
        const std::size_t first = args.columns.begin / group_size;
        const std::size_t groups = (args.columns.end + group_size - 1) / group_size - first;
        const std::size_t count = args.neurons.end - args.neurons.begin;
        for (std::size_t n = 0; n < (count + tile_channels - 1) / tile_channels * tile_channels; ++n) {
            const std::size_t channel = n % tile_channels, tile = n / tile_channels;
            half* scales = args.scales + tile * groups * tile_channels + channel;
            std::uint8_t* codes = args.codes + tile * groups * tile_bytes + 4 * channel;
            const std::byte* block = args.records + (args.neurons.begin + n) * args.record_bytes +
                                     args.row_offset + first * reader::bytes;
            for (std::size_t g = 0; g < groups; ++g, codes += tile_bytes, scales += tile_channels) {
                std::int8_t all[group_size] = {};
                half scale{};
                if (n < count) {
                    scale = *reinterpret_cast<const half*>(block);
                    whole(reinterpret_cast<const std::uint8_t*>(block) + sizeof(half), all);
                    block += reader::bytes;
                }
                *scales = scale;
                CRUMB_UNROLL
                for (std::size_t j = 0; j < byte_codes::rows; ++j)
                    __builtin_memcpy(codes + j * tile_row_bytes, all + 4 * j, 4);
            }
        }
    }

    static void outputs(const neuron_tile_args& args) noexcept {
        const std::size_t count = args.neurons.end - args.neurons.begin;
        const std::size_t groups = (count + group_size - 1) / group_size;
        const std::size_t bytes_of_columns =
            (args.columns.end - args.columns.begin + group_size - 1) / group_size * reader::bytes;
        // Neurons outside: their lines serve for all columns.
        for (std::size_t g = 0; g < groups; ++g) {
            const std::size_t first = g * group_size;
            const std::size_t here = count - first < group_size ? count - first : group_size;
            // Records are further apart than any prefetcher of the hardware looks.
            const std::size_t next = first + 2 * group_size <= count ? group_size : 0;
            for (std::size_t n = 0; n < next; ++n) {
                const std::byte* at = args.records +
                                      (args.neurons.begin + first + next + n) * args.record_bytes +
                                      args.row_offset + args.columns.begin / group_size * reader::bytes;
                for (std::size_t i = 0; i < bytes_of_columns; i += alignment)
                    __builtin_prefetch(at + i, 0, 3);
                __builtin_prefetch(at + bytes_of_columns - 1, 0, 3);
            }
            for (std::size_t c = args.columns.begin; c < args.columns.end; c += group_size)
                block_of_outputs(args, g, groups, here, c);
        }
    }

  private:
    /// The codes of a block, eight at a time in a register of integers: what compilers make of bytes varies
    /// by a factor of five.
    static CRUMB_INLINE void whole(const std::uint8_t* from, std::int8_t* to) noexcept {
        constexpr std::uint64_t ones = 0x0101010101010101u;
        if constexpr (Codec == row_codec::q8_0) {
            __builtin_memcpy(to, from, group_size);
        } else if constexpr (Codec == row_codec::q4_0) {
            for (std::size_t i = 0; i < 16; i += 8) {
                std::uint64_t eight;
                __builtin_memcpy(&eight, from + i, 8);
                store(to + i, nibbles(eight & 15 * ones));
                store(to + 16 + i, nibbles(eight >> 4 & 15 * ones));
            }
        } else {
            std::uint64_t eight;
            __builtin_memcpy(&eight, from, 8);
            // 2 q - 3: odd, and below 0 where the upper bit is not set.
            for (std::size_t j = 0; j < 4; ++j) {
                const std::uint64_t upper = eight >> (2 * j + 1) & ones, lower = eight >> 2 * j & ones;
                store(to + 8 * j, ((upper ^ ones) * 0xfc) | lower << 1 | ones);
            }
        }
    }
    /// Nibbles less 8, as signed bytes.
    static CRUMB_INLINE std::uint64_t nibbles(std::uint64_t eight) noexcept {
        constexpr std::uint64_t eights = 0x0808080808080808u;
        const std::uint64_t toggled = eight ^ eights;
        return toggled | (toggled & eights) * 0x1e;
    }
    static CRUMB_INLINE void store(std::int8_t* to, std::uint64_t eight) noexcept {
        __builtin_memcpy(to, &eight, sizeof eight);
    }

    /// 32 columns times 32 neurons.
    static CRUMB_NOINLINE void block_of_outputs(const neuron_tile_args& args, std::size_t g,
                                                std::size_t groups, std::size_t here,
                                                std::size_t c) noexcept {
        const std::byte* at = args.records + (args.neurons.begin + g * group_size) * args.record_bytes +
                              args.row_offset + c / group_size * reader::bytes;
        alignas(64) float weights[group_size * group_size];
        f32 most[vectors];
        for (int v = 0; v < vectors; ++v)
            most[v] = I::zero();
        for (std::size_t n = 0; n < group_size; ++n) {
            f32 w[vectors];
            f32 scale = I::zero();
            if (n < here) {
                reader::all(at + n * args.record_bytes, w);
                scale = reader::scale(at + n * args.record_bytes);
            }
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v) {
                const f32 x = n < here ? I::mul(w[v], scale) : I::zero();
                most[v] = I::max(most[v], I::abs(x));
                I::store(weights + n * group_size + v * I::lanes, x);
            }
        }
        constexpr int per_tile = static_cast<int>(tile_channels) / I::lanes;
        const std::size_t tile = (c - args.columns.begin) / tile_channels;
        const std::size_t tiles = (args.columns.end - args.columns.begin + tile_channels - 1) / tile_channels;
        for (int v = 0; v < vectors; ++v) {
            const std::size_t t = tile + static_cast<std::size_t>(v / per_tile);
            if (t >= tiles)
                break;
            const std::size_t unit = t * groups + g;
            const int lane = v % per_tile * I::lanes;
            half* scales = args.scales + unit * tile_channels + lane;
            I::store(scales, I::mul(most[v], I::set1(1.0f / 127.0f)));
            const f32 scale = I::load(scales);
            const f32 smallest = I::set1(0x1p-24f);
            const f32 inverse =
                I::select_less(scale, smallest, I::zero(), I::div(I::set1(1.0f), I::max(scale, smallest)));
            for (std::size_t j = 0; j < byte_codes::rows; ++j)
                four(weights + 4 * j * group_size + v * I::lanes, inverse,
                     args.codes + unit * tile_bytes + j * tile_row_bytes + 4 * lane);
        }
    }

    /// Four neurons of a register of channels, a byte each.
    static CRUMB_INLINE void four(const float* weights, f32 inverse, std::uint8_t* to) noexcept {
        const i32 most = I::set1_i32(127), least = I::set1_i32(-127);
        float code[4][M::lanes];
        CRUMB_UNROLL
        for (std::size_t n = 0; n < 4; ++n) {
            const i32 rounded = I::round_to_i32(I::mul(I::load(weights + n * group_size), inverse));
            I::store(code[n], I::as_f32(I::min_i32(I::max_i32(rounded, least), most)));
        }
        std::uint32_t bits[4][M::lanes], all[M::lanes];
        __builtin_memcpy(bits, code, sizeof bits);
        for (std::size_t i = 0; i < M::lanes; ++i)
            all[i] =
                (bits[0][i] & 255u) | (bits[1][i] & 255u) << 8 | (bits[2][i] & 255u) << 16 | bits[3][i] << 24;
        __builtin_memcpy(to, all, sizeof all);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
