// Rows of weights that lie one after another: tested, multiplied and added by a list of neurons. Loops:
//     range_test   registers of neurons
//     dots         neurons of the list (a few together) > groups of 32 inputs
//     adds         16 neurons of the list > shares of outputs > neurons (a few together) > groups of outputs
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/isa/portable/four_rows.inl>

#include <crumb/kernel/ffn/line_prefetch.inl>

#include <crumb/kernel/ffn/row_reader.inl>

#include <crumb/kernel/ffn/code_adds.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct range_test_run<I> {
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

template <row_codec Codec>
struct neuron_rows_run<isa::CRUMB_THIS_ISA, Codec> {
    using I = isa::CRUMB_THIS_ISA;
    using M = math<I>;
    using f32 = typename I::f32;
    using reader = row_reader<I, Codec>;
    static constexpr int vectors = reader::vectors;
    static constexpr std::size_t max_adds = rows_added_together; ///< rows that share a pass over y
    /// Rows that share loads of x.
    static constexpr int max_dots = I::query_tile == 1 ? 1 : I::lanes == 16 ? 4 : 2;

    static void dots(const neuron_dot_args& args) noexcept {
        for (std::size_t i = 0; i < args.count; i += share)
            dots(args, i, args.count - i < share ? args.count - i : share);
    }

    static void adds(const neuron_add_args& args) noexcept {
        for (std::size_t i = 0; i < args.count; i += max_adds) {
            const std::size_t here = args.count - i < max_adds ? args.count - i : max_adds;
            const std::size_t groups = (args.outputs.end - args.outputs.begin + group_size - 1) / group_size;
            line_prefetch<I> next(args, i, groups);
            if constexpr (rounds_factors(Codec)) {
                using sums = code_adds<I>;
                typename sums::rows rows;
                for (std::size_t r = 0; r < max_adds; ++r) {
                    const std::size_t n = i + (r < here ? r : 0);
                    rows.at[r] = row(args, n);
                    rows.factors[r] = r < here ? args.factors[n] : 0.0f;
                }
                rows.count = here;
                sums::run(rows, args, next);
            } else {
                add(args, i, here, next);
            }
        }
    }

  private:
    static constexpr std::size_t share = rows_added_together; ///< rows that share what comes in meanwhile

    static CRUMB_INLINE void dots(const neuron_dot_args& args, std::size_t first,
                                  std::size_t count) noexcept {
        constexpr std::size_t most = max_dots;
        const std::size_t groups = (args.inputs + group_size - 1) / group_size;
        const std::size_t products = count / most + count % most; // of some rows each
        line_prefetch<I> next(args, first, products * ((groups + 1) / 2));
        std::size_t i = first;
        if constexpr (reader::scaled && multiplies_codes<I>) {
            if (args.quantized.codes != nullptr) {
                for (; i + most <= first + count; i += most)
                    dot_codes<max_dots>(args, i, next);
                for (; i < first + count; ++i)
                    dot_codes<1>(args, i, next);
                return;
            }
        }
        for (; i + most <= first + count; i += most)
            dot<max_dots>(args, i, next);
        for (; i < first + count; ++i)
            dot<1>(args, i, next);
    }

    static CRUMB_INLINE const std::byte* row(const neuron_args& args, std::size_t i) noexcept {
        return args.records + args.list[i] * args.record_bytes + args.row_offset;
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
    static CRUMB_NOINLINE void dot_codes(const neuron_dot_args& args, std::size_t i,
                                         line_prefetch<I>& next) noexcept {
        const std::byte* at[unsigned(Rows)];
        for (int r = 0; r < Rows; ++r)
            at[r] = row(args, i + static_cast<std::size_t>(r));
        const std::size_t groups = (args.inputs + group_size - 1) / group_size;
        code_dots<I, Codec>::template run<Rows>(at, args.quantized, groups, args.sums + i, next);
    }
    template <int Rows>
    static CRUMB_NOINLINE void dot(const neuron_dot_args& args, std::size_t i,
                                   line_prefetch<I>& next) noexcept {
        constexpr std::size_t window = scale_window<static_cast<std::size_t>(Rows)>::groups;
        const std::byte* at[unsigned(Rows)];
        f32 even[unsigned(Rows)], odd[unsigned(Rows)];
        for (int r = 0; r < Rows; ++r) {
            at[r] = row(args, i + static_cast<std::size_t>(r));
            even[r] = odd[r] = I::zero();
        }
        const std::size_t whole = args.inputs / group_size;
        scale_window<static_cast<std::size_t>(Rows)> scales;
        for (std::size_t first = 0; first < whole; first += window) {
            const std::size_t here = whole - first < window ? whole - first : window;
            CRUMB_UNROLL
            for (int r = 0; r < Rows; ++r)
                scales.fill(static_cast<std::size_t>(r), at[r] + first * reader::bytes, here);
            std::size_t g = 0;
            for (; g + 2 <= here; g += 2) {
                next.step();
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
        f32 in[unsigned(vectors)];
        CRUMB_UNROLL
        for (int v = 0; v < vectors; ++v)
            in[v] = I::load(x + v * I::lanes);
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r) {
            const std::byte* block = at[r] + g * reader::bytes;
            f32 w[unsigned(vectors)];
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

    static CRUMB_NOINLINE void add(const neuron_add_args& args, std::size_t i, std::size_t count,
                                   line_prefetch<I>& next) noexcept {
        constexpr std::size_t window = scale_window<1>::groups;
        const std::byte* at[max_adds];
        for (std::size_t r = 0; r < count; ++r)
            at[r] = row(args, i + r);
        const float* factors = args.factors + i;
        const std::size_t begin = args.outputs.begin / group_size;
        const std::size_t end = (args.outputs.end + group_size - 1) / group_size;
        scale_window<max_adds> scales;
        for (std::size_t first = begin; first < end; first += window) {
            const std::size_t here = end - first < window ? end - first : window;
            for (std::size_t r = 0; r < count; ++r)
                scales.fill(r, at[r] + first * reader::bytes, here, factors[r]);
            for (std::size_t g = 0; g < here; ++g) {
                next.step();
                const std::size_t offset = (first + g) * reader::bytes, c = (first + g) * group_size;
                const std::size_t left = args.outputs.end - c;
                f32 y[unsigned(vectors)];
                CRUMB_UNROLL
                for (int v = 0; v < vectors; ++v)
                    y[v] = M::load(args.y + c + v * I::lanes, behind(left, v));
                for (std::size_t r = 0; r < count; ++r) {
                    f32 w[unsigned(vectors)];
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
