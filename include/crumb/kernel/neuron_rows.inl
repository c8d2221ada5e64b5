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
    static constexpr bool scaled = Codec != row_codec::f32 && Codec != row_codec::f16;

    static CRUMB_INLINE f32 scale(const std::byte* block) noexcept {
        return I::set1(*reinterpret_cast<const half*>(block));
    }
    /// Register V of the block, in units of its scale.
    template <int V>
    static CRUMB_INLINE f32 weights(const std::byte* block) noexcept {
        if constexpr (Codec == row_codec::f32) {
            return I::load(reinterpret_cast<const float*>(block) + V * I::lanes);
        } else if constexpr (Codec == row_codec::f16) {
            return I::load(reinterpret_cast<const half*>(block) + V * I::lanes);
        } else if constexpr (Codec == row_codec::q8_0) {
            return I::load_integers(reinterpret_cast<const std::int8_t*>(block) + sizeof(half) +
                                    V * I::lanes);
        } else if constexpr (Codec == row_codec::q4_0) {
            return I::sub(field<4, V>(block), I::set1(8.0f));
        } else {
            return I::fma(field<2, V>(block), I::set1(2.0f), I::set1(-3.0f));
        }
    }
    /// All registers of the block.
    template <int V = 0>
    static CRUMB_INLINE void all(const std::byte* block, f32* w) noexcept {
        w[V] = weights<V>(block);
        if constexpr (V + 1 < vectors)
            all<V + 1>(block, w);
    }

  private:
    template <int Bits, int V>
    static CRUMB_INLINE f32 field(const std::byte* block) noexcept {
        return I::template load_field<Bits, V * I::lanes>(reinterpret_cast<const std::uint8_t*>(block) +
                                                          sizeof(half));
    }
};

template <row_codec Codec>
struct neuron_rows_run<isa::CRUMB_THIS_ISA, Codec> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;
    using reader = row_reader<I, Codec>;
    static constexpr int vectors = reader::vectors;
    static constexpr std::size_t most_adds = 16; ///< rows that share a pass over y

    static void dots(const neuron_dot_args& args) noexcept {
        std::size_t i = 0;
        for (; i + 2 <= args.count; i += 2)
            dot<2>(args, i);
        if (i < args.count)
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
    /// The row that a list of neurons comes to after `passed` more; or the last one.
    static CRUMB_INLINE const std::byte* row_ahead(const neuron_args& args, std::size_t i) noexcept {
        const std::size_t last = args.count + args.ahead - 1;
        return row(args, i + args.ahead < last ? i + args.ahead : last);
    }

    template <int Rows>
    static CRUMB_NOINLINE void dot(const neuron_dot_args& args, std::size_t i) noexcept {
        const std::byte *at[Rows], *next[Rows];
        f32 even[Rows], odd[Rows];
        for (int r = 0; r < Rows; ++r) {
            at[r] = row(args, i + static_cast<std::size_t>(r));
            next[r] = row_ahead(args, i + static_cast<std::size_t>(r));
            even[r] = odd[r] = I::zero();
        }
        const std::size_t whole = args.inputs / group_size;
        std::size_t g = 0;
        for (; g + 2 <= whole; g += 2) {
            CRUMB_UNROLL
            for (int r = 0; r < Rows; ++r)
                __builtin_prefetch(next[r] + g * reader::bytes, 0, 2);
            multiply<Rows>(at, g, args.x, even);
            multiply<Rows>(at, g + 1, args.x, odd);
        }
        if (g < whole) {
            multiply<Rows>(at, g, args.x, even);
            ++g;
        }
        if (const std::size_t left = args.inputs - g * group_size; left != 0) {
            float rest[group_size] = {};
            __builtin_memcpy(rest, args.x + g * group_size, left * sizeof(float));
            multiply<Rows>(at, g, rest - g * group_size, g % 2 == 0 ? even : odd);
        }
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r)
            args.sums[i + static_cast<std::size_t>(r)] = I::sum(I::add(even[r], odd[r]));
    }

    template <int Rows>
    static CRUMB_INLINE void multiply(const std::byte* const* at, std::size_t g, const float* x,
                                      f32* total) noexcept {
        f32 in[vectors];
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            in[v] = I::load(x + g * group_size + v * I::lanes);
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r) {
            const std::byte* block = at[r] + g * reader::bytes;
            f32 w[vectors];
            reader::all(block, w);
            f32 sum = I::mul(w[0], in[0]);
            CRUMB_UNROLL
            for (int v = 1; v < vectors; ++v)
                sum = I::fma(w[v], in[v], sum);
            if constexpr (reader::scaled)
                total[r] = I::fma(sum, reader::scale(block), total[r]);
            else
                total[r] = I::add(total[r], sum);
        }
    }

    static CRUMB_NOINLINE void add(const neuron_add_args& args, std::size_t i, std::size_t count) noexcept {
        const std::byte *at[most_adds], *next[most_adds];
        for (std::size_t r = 0; r < count; ++r) {
            at[r] = row(args, i + r);
            next[r] = row_ahead(args, i + r);
        }
        const float* factors = args.factors + i;
        for (std::size_t c = args.outputs.begin; c < args.outputs.end; c += group_size) {
            const std::size_t offset = c / group_size * reader::bytes;
            const std::size_t left = args.outputs.end - c;
            f32 y[vectors];
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v)
                y[v] = M::load(args.y + c + v * I::lanes, behind(left, v));
            for (std::size_t r = 0; r < count; ++r) {
                if (c / group_size % 2 == 0)
                    __builtin_prefetch(next[r] + offset, 0, 2);
                f32 w[vectors];
                reader::all(at[r] + offset, w);
                f32 factor = I::set1(factors[r]);
                if constexpr (reader::scaled)
                    factor = I::mul(factor, reader::scale(at[r] + offset));
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v)
                    y[v] = I::fma(factor, w[v], y[v]);
            }
            CRUMB_UNROLL
            for (int v = 0; v < vectors; ++v)
                M::store(args.y + c + v * I::lanes, y[v], behind(left, v));
        }
    }

    /// Of `left` elements, how many lie behind v registers.
    static CRUMB_INLINE std::size_t behind(std::size_t left, int v) noexcept {
        const std::size_t before = static_cast<std::size_t>(v) * M::lanes;
        return left > before ? left - before : 0;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
