// Rows of weights that lie one after another: tested, multiplied and added by a list of neurons.
namespace crumb::inline CRUMB_ABI::kernel {

template <>
struct range_test_run<isa::CRUMB_THIS_ISA> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;

    static std::size_t run(const range_test_args& args) noexcept {
        std::uint32_t* to = args.list;
        for (std::size_t n = args.neurons.begin; n < args.neurons.end; n += M::lanes) {
            const f32 u = M::load(args.estimates + n, args.neurons.end - n);
            f32 low = I::load(args.low + n), high = I::load(args.high + n);
            if (args.margins != nullptr) {
                const f32 margin = M::load(args.margins + n, args.neurons.end - n);
                low = I::add(low, margin);
                high = I::sub(high, margin);
            }
            to += append<I>(u, low, high, n, to);
        }
        return static_cast<std::size_t>(to - args.list);
    }

  private:
    template <class Isa>
    static CRUMB_INLINE std::size_t append(f32 u, f32 low, f32 high, std::size_t first,
                                           std::uint32_t* to) noexcept {
        if constexpr (has_append_outside<Isa>) {
            return Isa::append_outside(u, low, high, static_cast<std::uint32_t>(first), to);
        } else {
            float estimate[M::lanes], least[M::lanes], most[M::lanes];
            I::store(estimate, u);
            I::store(least, low);
            I::store(most, high);
            std::size_t count = 0;
            for (std::size_t i = 0; i < M::lanes; ++i) {
                to[count] = static_cast<std::uint32_t>(first + i);
                count += std::size_t{!(estimate[i] >= least[i])} | std::size_t{!(estimate[i] < most[i])};
            }
            return count;
        }
    }
};

/// 32 weights of a row as floats.
template <row_codec Codec>
struct row_reader<isa::CRUMB_THIS_ISA, Codec> {
    using I = isa::CRUMB_THIS_ISA;
    using f32 = typename I::f32;
    static constexpr int vectors = static_cast<int>(group_size) / I::lanes;
    static constexpr std::size_t bytes = row_block<Codec>::bytes;
    static constexpr bool scaled = has_scales(Codec);
    static constexpr bool gathers = scaled && gathers_halves<I>;

    static CRUMB_INLINE f32 scale(const std::byte* block) noexcept {
        return I::set1(*reinterpret_cast<const half*>(block));
    }
    /// The scales of n blocks; on ISAs that gather them.
    template <class Isa = I>
    static CRUMB_INLINE f32 scales(const std::byte* block, std::size_t n) noexcept {
        return Isa::template gather_halves<static_cast<int>(bytes)>(block, n);
    }
    /// Register V of the block, in units of its scale.
    template <int V>
    static CRUMB_INLINE f32 weights(const std::byte* block) noexcept {
        if constexpr (Codec == row_codec::f32)
            return I::load(reinterpret_cast<const float*>(block) + V * I::lanes);
        else if constexpr (Codec == row_codec::f16)
            return I::load(reinterpret_cast<const half*>(block) + V * I::lanes);
        else if constexpr (Codec == row_codec::q8_0)
            return I::load_integers(reinterpret_cast<const std::int8_t*>(block) + sizeof(half) +
                                    V * I::lanes);
        else
            return field<V, I>(reinterpret_cast<const std::uint8_t*>(block) + sizeof(half));
    }
    /// All registers of the block.
    template <int V = 0>
    static CRUMB_INLINE void all(const std::byte* block, f32* w) noexcept {
        w[V] = weights<V>(block);
        if constexpr (V + 1 < vectors)
            all<V + 1>(block, w);
    }

  private:
    template <int V, class Isa>
    static CRUMB_INLINE f32 field(const std::uint8_t* codes) noexcept {
        constexpr int bits = Codec == row_codec::q4_0 ? 4 : 2, first = V * I::lanes;
        if constexpr (looks_up_fields<Isa>) {
            alignas(64) static constexpr float nibbles[] = {-8, -7, -6, -5, -4, -3, -2, -1,
                                                            0,  1,  2,  3,  4,  5,  6,  7};
            alignas(64) static constexpr float pairs[] = {-3, -1, 1, 3, -3, -1, 1, 3,
                                                          -3, -1, 1, 3, -3, -1, 1, 3};
            return Isa::template look_up_field<bits, first>(codes, Isa::load(bits == 4 ? nibbles : pairs));
        } else {
            const f32 code = Isa::template load_field<bits, first>(codes);
            return bits == 4 ? I::sub(code, I::set1(8.0f)) : I::fma(code, I::set1(2.0f), I::set1(-3.0f));
        }
    }
};

template <row_codec Codec>
struct neuron_rows_run<isa::CRUMB_THIS_ISA, Codec> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;
    using reader = row_reader<I, Codec>;
    static constexpr int vectors = reader::vectors;
    static constexpr std::size_t most_adds = 16;             ///< rows that share a pass over y
    static constexpr int most_dots = I::lanes == 16 ? 4 : 2; ///< rows that share loads of x

    static void dots(const neuron_dot_args& args) noexcept {
        constexpr std::size_t most = most_dots;
        std::size_t i = 0;
        if constexpr (reader::scaled && multiplies_codes<I>) {
            if (args.quantized.codes != nullptr) {
                for (; i + most <= args.count; i += most)
                    dot_codes<most_dots>(args, i);
                for (; i < args.count; ++i)
                    dot_codes<1>(args, i);
                return;
            }
        }
        for (; i + most <= args.count; i += most)
            dot<most_dots>(args, i);
        for (; i < args.count; ++i)
            dot<1>(args, i);
    }

    static void adds(const neuron_add_args& args) noexcept {
        for (std::size_t i = 0; i < args.count; i += most_adds)
            add(args, i, args.count - i < most_adds ? args.count - i : most_adds);
    }

  private:
    static CRUMB_INLINE const std::byte* row(const neuron_args& args, std::size_t i) noexcept {
        return args.records + args.list[i] * args.record_bytes + args.row_offset;
    }
    /// What to prefetch with neuron i; if there is nothing, what is in the cache.
    static CRUMB_INLINE const std::byte* next_row(const neuron_args& args, std::size_t i) noexcept {
        return i < args.next_count ? args.records + args.next[i] * args.record_bytes + args.next_offset
                                   : row(args, i);
    }
    static CRUMB_INLINE void prefetch(const std::byte* from, std::size_t bytes) noexcept {
        for (std::size_t i = 0; i < bytes; i += alignment)
            __builtin_prefetch(from + i, 0, 2);
    }

    /// Scales of blocks of rows, as many at a time as a register holds.
    template <std::size_t Rows>
    struct scale_window {
        static constexpr std::size_t groups = M::lanes < 16 ? 16 : M::lanes;
        float of[Rows][groups];

        CRUMB_INLINE void fill(std::size_t r, const std::byte* block, std::size_t n) noexcept {
            if constexpr (reader::gathers)
                I::store(of[r], reader::scales(block, n));
        }
        CRUMB_INLINE void fill(std::size_t r, const std::byte* block, std::size_t n, float factor) noexcept {
            if constexpr (reader::gathers)
                I::store(of[r], I::mul(I::set1(factor), reader::scales(block, n)));
        }
    };
    template <int Rows>
    static CRUMB_NOINLINE void dot_codes(const neuron_dot_args& args, std::size_t i) noexcept {
        const std::byte *at[Rows], *next[Rows];
        for (int r = 0; r < Rows; ++r) {
            at[r] = row(args, i + static_cast<std::size_t>(r));
            next[r] = next_row(args, i + static_cast<std::size_t>(r));
        }
        const std::size_t groups = (args.inputs + group_size - 1) / group_size, pairs = (groups + 1) / 2;
        const std::size_t ahead = args.next_count == 0 ? 0 : (args.next_bytes + pairs - 1) / pairs;
        code_dots<I, Codec>::template run<Rows>(at, next, ahead, args.quantized, groups, args.sums + i);
    }
    template <int Rows>
    static CRUMB_NOINLINE void dot(const neuron_dot_args& args, std::size_t i) noexcept {
        constexpr std::size_t window = scale_window<Rows>::groups;
        const std::byte *at[Rows], *next[Rows];
        f32 even[Rows], odd[Rows];
        for (int r = 0; r < Rows; ++r) {
            at[r] = row(args, i + static_cast<std::size_t>(r));
            next[r] = next_row(args, i + static_cast<std::size_t>(r));
            even[r] = odd[r] = I::zero();
        }
        const std::size_t whole = args.inputs / group_size;
        const std::size_t ahead = args.next_count == 0 || whole < 2 ? 0 : args.next_bytes / (whole / 2) + 1;
        scale_window<Rows> scales;
        for (std::size_t first = 0; first < whole; first += window) {
            const std::size_t here = whole - first < window ? whole - first : window;
            CRUMB_UNROLL
            for (int r = 0; r < Rows; ++r)
                scales.fill(static_cast<std::size_t>(r), at[r] + first * reader::bytes, here);
            std::size_t g = 0;
            for (; g + 2 <= here; g += 2) {
                CRUMB_UNROLL
                for (int r = 0; r < Rows; ++r)
                    prefetch(next[r] + (first + g) / 2 * ahead, ahead);
                multiply<Rows>(at, first + g, args.x + (first + g) * group_size, scales.of, g, even);
                multiply<Rows>(at, first + g + 1, args.x + (first + g + 1) * group_size, scales.of, g + 1,
                               odd);
            }
            if (g < here)
                multiply<Rows>(at, first + g, args.x + (first + g) * group_size, scales.of, g, even);
        }
        if (const std::size_t left = args.inputs - whole * group_size; left != 0) {
            float rest[group_size] = {};
            __builtin_memcpy(rest, args.x + whole * group_size, left * sizeof(float));
            for (int r = 0; r < Rows; ++r)
                scales.fill(static_cast<std::size_t>(r), at[r] + whole * reader::bytes, 1);
            multiply<Rows>(at, whole, rest, scales.of, 0, whole % 2 == 0 ? even : odd);
        }
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r)
            args.sums[i + static_cast<std::size_t>(r)] = I::sum(I::add(even[r], odd[r]));
    }

    template <int Rows, std::size_t N>
    static CRUMB_INLINE void multiply(const std::byte* const* at, std::size_t g, const float* x,
                                      const float (*scales)[N], std::size_t s, f32* total) noexcept {
        f32 in[vectors];
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            in[v] = I::load(x + v * I::lanes);
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r) {
            const std::byte* block = at[r] + g * reader::bytes;
            f32 w[vectors];
            reader::all(block, w);
            f32 sum = I::mul(w[0], in[0]);
            CRUMB_UNROLL
            for (int v = 1; v < vectors; ++v)
                sum = I::fma(w[v], in[v], sum);
            if constexpr (reader::gathers)
                total[r] = I::fma(sum, I::set1(scales[r][s]), total[r]);
            else if constexpr (reader::scaled)
                total[r] = I::fma(sum, reader::scale(block), total[r]);
            else
                total[r] = I::add(total[r], sum);
        }
    }

    static CRUMB_NOINLINE void add(const neuron_add_args& args, std::size_t i, std::size_t count) noexcept {
        constexpr std::size_t window = scale_window<1>::groups;
        const std::byte *at[most_adds], *next[most_adds];
        for (std::size_t r = 0; r < count; ++r) {
            at[r] = row(args, i + r);
            next[r] = next_row(args, i + r);
        }
        const float* factors = args.factors + i;
        const std::size_t begin = args.outputs.begin / group_size;
        const std::size_t end = (args.outputs.end + group_size - 1) / group_size;
        // Spread over the groups, one row's at a time.
        const std::size_t windows = (end - begin + window - 1) / window;
        const std::size_t ahead = args.next_count == 0 ? 0 : round_up(args.next_bytes / windows, alignment);
        scale_window<most_adds> scales;
        for (std::size_t first = begin; first < end; first += window) {
            const std::size_t here = end - first < window ? end - first : window;
            for (std::size_t r = 0; r < count; ++r)
                scales.fill(r, at[r] + first * reader::bytes, here, factors[r]);
            for (std::size_t g = 0; g < here; ++g) {
                if (g < count)
                    prefetch(next[g] + (first - begin) / window * ahead, ahead);
                const std::size_t offset = (first + g) * reader::bytes, c = (first + g) * group_size;
                const std::size_t left = args.outputs.end - c;
                f32 y[vectors];
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v)
                    y[v] = M::load(args.y + c + v * I::lanes, behind(left, v));
                for (std::size_t r = 0; r < count; ++r) {
                    f32 w[vectors];
                    reader::all(at[r] + offset, w);
                    f32 factor;
                    if constexpr (reader::gathers)
                        factor = I::set1(scales.of[r][g]);
                    else if constexpr (reader::scaled)
                        factor = I::mul(I::set1(factors[r]), reader::scale(at[r] + offset));
                    else
                        factor = I::set1(factors[r]);
                    CRUMB_UNROLL
                    for (int v = 0; v < vectors; ++v)
                        y[v] = I::fma(factor, w[v], y[v]);
                }
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v)
                    M::store(args.y + c + v * I::lanes, y[v], behind(left, v));
            }
        }
    }

    /// Of `left` elements, how many lie behind v registers.
    static CRUMB_INLINE std::size_t behind(std::size_t left, int v) noexcept {
        const std::size_t before = static_cast<std::size_t>(v) * M::lanes;
        return left > before ? left - before : 0;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
