// Rows of 4-bit codes added with factors of 8 bits: sums of up to 16 rows are integers. Loops:
//     windows of groups > groups of 32 outputs > 4 rows
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/float/math.inl>

#include <crumb/isa/portable/four_rows.inl>

#include <crumb/kernel/ffn/line_prefetch.inl>

#include <crumb/kernel/ffn/row_reader.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct code_adds<I> {
    using M = math<I>;
    using P = typename I::four_rows;
    using f32 = typename I::f32;
    using i32 = typename I::i32;
    using reader = row_reader<I, row_codec::q4_0>;
    static constexpr std::size_t max_rows = rows_added_together, quads = max_rows / 4;
    static constexpr std::size_t window = 16; ///< groups whose factors are rounded together
    static constexpr int vectors = reader::vectors;

    /// What is behind `count` has to be a row, too, and its factor 0.
    struct rows {
        const std::byte* at[max_rows];
        float factors[max_rows];
        std::size_t count;
    };

    static CRUMB_INLINE void run(const rows& r, const neuron_add_args& args,
                                 line_prefetch<I>& next) noexcept {
        if (r.count <= 4)
            add<1>(r, args, next);
        else
            add<quads>(r, args, next);
    }

  private:
    struct window_factors {
        alignas(64) std::int8_t codes[quads][4 * window]; ///< of row 4 q + i in group g at [q][4 g + i]
        std::int32_t starts[window];                      ///< -8 times the sum of a group's codes
        float steps[window];
    };

    /// Of four times `Quads` rows.
    template <std::size_t Quads>
    static CRUMB_NOINLINE void add(const rows& r, const neuron_add_args& args,
                                   line_prefetch<I>& next) noexcept {
        const std::size_t begin = args.outputs.begin / group_size;
        const std::size_t end = (args.outputs.end + group_size - 1) / group_size;
        float unusual = 0; // 0, or not a number if a factor is not finite
        for (std::size_t i = 0; i < r.count; ++i)
            unusual += r.factors[i] - r.factors[i];
        window_factors w;
        for (std::size_t first = begin; first < end; first += window) {
            const std::size_t here = end - first < window ? end - first : window;
            for (std::size_t g = 0; g < here; g += M::lanes)
                round<Quads>(r, first + g, here - g < M::lanes ? here - g : M::lanes, unusual, w, g);
            for (std::size_t g = 0; g < here; ++g) {
                next.step();
                const std::size_t offset = (first + g) * reader::bytes + sizeof(half);
                // Larger ones are of factors that are not finite, as is the step then.
                auto sums = P::start(static_cast<std::int16_t>(w.starts[g]));
                CRUMB_UNROLL
                for (std::size_t q = 0; q < Quads; ++q) {
                    const std::uint8_t* at[4];
                    CRUMB_UNROLL
                    for (std::size_t i = 0; i < 4; ++i)
                        at[i] = reinterpret_cast<const std::uint8_t*>(r.at[4 * q + i] + offset);
                    P::add_products(sums, at, w.codes[q] + 4 * g);
                }
                const std::size_t c = (first + g) * group_size;
                store(args.y + c, args.outputs.end - c, sums, I::set1(w.steps[g]));
            }
        }
    }

    /// Codes of `count` groups from `group` on, to those of the window from `to` on.
    template <std::size_t Quads>
    static CRUMB_INLINE void round(const rows& r, std::size_t group, std::size_t count, float unusual,
                                   window_factors& w, std::size_t to) noexcept {
        f32 x[4 * Quads], most = I::set1(min_factor);
        CRUMB_UNROLL
        for (std::size_t i = 0; i < 4 * Quads; ++i) {
            x[i] = I::mul(I::set1(r.factors[i]), scales(r.at[i] + group * reader::bytes, count));
            most = I::max(most, I::abs(x[i]));
        }
        const f32 inverse = I::div(I::set1(127.0f), most);
        i32 total = I::set1_i32(0);
        CRUMB_UNROLL
        for (std::size_t q = 0; q < Quads; ++q) {
            i32 codes[4];
            CRUMB_UNROLL
            for (std::size_t i = 0; i < 4; ++i) {
                codes[i] = I::round_to_i32(I::mul(x[4 * q + i], inverse));
                total = I::add_i32(total, codes[i]);
            }
            P::store_factors(w.codes[q] + 4 * to, codes);
        }
        total = I::round_to_i32(I::mul(I::to_f32(total), I::set1(-8.0f)));
        const f32 start = I::as_f32(total);
        __builtin_memcpy(w.starts + to, &start, sizeof start);
        I::store(w.steps + to, I::fma(most, I::set1(1.0f / 127), I::set1(unusual)));
    }
    static CRUMB_INLINE f32 scales(const std::byte* block, std::size_t count) noexcept {
        if constexpr (reader::gathers) {
            return reader::scales(block, count);
        } else {
            half all[M::lanes] = {};
            for (std::size_t i = 0; i < count; ++i)
                __builtin_memcpy(all + i, block + i * reader::bytes, sizeof(half));
            return I::load(all);
        }
    }

    /// y += step * sums, as far as there is y.
    template <int V = 0>
    static CRUMB_INLINE void store(float* y, std::size_t left, const typename P::sums& sums,
                                   f32 step) noexcept {
        if (left >= M::lanes)
            I::store(y, I::fma(step, P::template columns<V>(sums), I::load(y)));
        else
            M::store(y, I::fma(step, P::template columns<V>(sums), M::load(y, left)), left);
        if constexpr (V + 1 < vectors)
            if (left > M::lanes)
                store<V + 1>(y + M::lanes, left - M::lanes, sums, step);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
