// Tables of queries for scans of product-quantized keys. Loops: rows (sub-spaces) > registers of entries,
// once for the ranges and once for both planes.
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/pq.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

// The query becomes integers of two signed bytes. Its products with entries are then exact in floats,
// whatever is fused, and so all ISAs make the same tables.
template <std::same_as<isa::CRUMB_THIS_ISA> I>
struct pq_table_run<I> {
    using f32 = typename I::f32;
    static constexpr std::size_t lanes = static_cast<std::size_t>(I::lanes);
    static constexpr float whole = 127 * 257;                    ///< largest integer of a query
    static constexpr float max_of_both = 128 * (pq_max + 1) - 1; ///< largest entry in both planes
    static constexpr float tiny = 0x1p-90f;                      ///< queries below are taken for 0

    static void run(const pq_table_args& args) noexcept { pq_table_run(args).make(); }

  private:
    const pq_table_args& args;
    pq_query& out;
    std::size_t dims, rows, entries; ///< channels of a code, rows of codes, entries of a row
    std::size_t size;                ///< of a table
    std::size_t halves;              ///< tables of a row
    float *q, *least, *range;

    CRUMB_INLINE explicit pq_table_run(const pq_table_args& a) noexcept
        : args(a), out(*a.out), dims(a.codec.dims), rows(a.head_size / dims), entries(a.codec.entries()),
          size(a.codec.additive ? 16 : entries), halves(a.codec.additive ? 2 : 1), q(out.work),
          least(q + a.head_size), range(least + rows * halves) {}

    CRUMB_INLINE void make() const noexcept {
        out.step = out.base = out.coarse_base = 0;
        if (rows % 2 != 0) {
            __builtin_memset(out.low + rows * entries, 0, entries);
            __builtin_memset(out.high + rows * entries, 0, entries);
        }
        const float largest = scale_query();
        if (!(largest >= tiny) || largest > __FLT_MAX__) {
            // The largest magnitude, times the largest sum of two entries.
            const float most = 256 * static_cast<float>(args.head_size) * tiny;
            return clear(largest < tiny ? most : __builtin_inff());
        }
        const float inverse = whole / largest;
        round_query(inverse);
        for_dims([&]<int Dims>() { find_ranges<Dims>(); });
        const float widest = widest_range(), steps = widest == 0 ? 1 : max_of_both / widest;
        if (widest != 0)
            for_dims([&]<int Dims>() { fill<Dims>(steps); });
        finish(inverse, steps, widest == 0 ? 0 : 1);
    }
    template <class F>
    CRUMB_INLINE void for_dims(F&& f) const noexcept {
        switch (dims) {
        case 1:
            return f.template operator()<1>();
        case 2:
            return f.template operator()<2>();
        default:
            return f.template operator()<4>();
        }
    }

    /// The query times the scales of channels; its largest magnitude, or NaN if there is no such thing.
    CRUMB_INLINE float scale_query() const noexcept {
        f32 most = I::zero(), probe = I::zero();
        std::size_t c = 0;
        for (; c + lanes <= args.head_size; c += lanes) {
            const f32 x = I::mul(I::load(args.q + c), I::load(args.centroids.scales + c));
            I::store(q + c, x);
            most = I::max(most, I::abs(x));
            probe = I::add(probe, I::mul(x, I::zero()));
        }
        if (const std::size_t rest = args.head_size - c; rest > 0) {
            const f32 x =
                I::mul(I::load_partial(args.q + c, rest), I::load_partial(args.centroids.scales + c, rest));
            I::store_partial(q + c, x, rest);
            most = I::max(most, I::abs(x));
            probe = I::add(probe, I::mul(x, I::zero()));
        }
        return I::sum(probe) == 0 ? I::maximum(most) : __builtin_nanf("");
    }
    CRUMB_INLINE void round_query(float inverse) const noexcept {
        const f32 by = I::set1(inverse);
        std::size_t c = 0;
        for (; c + lanes <= args.head_size; c += lanes)
            I::store(q + c, I::to_f32(I::round_to_i32(I::mul(I::load(q + c), by))));
        if (const std::size_t rest = args.head_size - c; rest > 0)
            I::store_partial(q + c, I::to_f32(I::round_to_i32(I::mul(I::load_partial(q + c, rest), by))),
                             rest);
    }

    template <int Dims, class P = typename I::pq>
    CRUMB_INLINE typename P::template wide_row<Dims> wide(std::size_t row) const noexcept {
        return {q + row * Dims, args.centroids.entries + row * Dims * size, size};
    }
    /// Products of the query with entries e and on of a row.
    template <int Dims>
    CRUMB_INLINE f32 products(std::size_t row, std::size_t e) const noexcept {
        const std::int8_t* p = args.centroids.entries + row * Dims * entries + e;
        f32 x = I::mul(I::set1(q[row * Dims]), I::load_integers(p));
        CRUMB_UNROLL
        for (int i = 1; i < Dims; ++i) {
            const std::size_t at = static_cast<std::size_t>(i);
            x = I::fma(I::set1(q[row * Dims + at]), I::load_integers(p + at * entries), x);
        }
        return x;
    }
    template <int Dims>
    CRUMB_INLINE void find_ranges() const noexcept {
        if constexpr (has_wide_rows<typename I::pq>)
            if (size >= 64) {
                for (std::size_t row = 0; row < rows; ++row)
                    wide<Dims>(row).find_range(least[row], range[row]);
                return;
            }
        for (std::size_t t = 0; t < rows * halves; ++t) {
            const std::size_t row = halves == 2 ? t / 2 : t, first = halves == 2 ? t % 2 * size : 0;
            f32 most = products<Dims>(row, first), low = most;
            for (std::size_t e = lanes; e < size; e += lanes) {
                const f32 x = products<Dims>(row, first + e);
                most = I::max(most, x);
                low = I::min(low, x);
            }
            least[t] = -I::maximum(I::sub(I::zero(), low));
            range[t] = I::maximum(most) - least[t];
        }
    }
    CRUMB_INLINE float widest_range() const noexcept {
        float widest = 0;
        for (std::size_t t = 0; t < rows * halves; ++t)
            widest = range[t] > widest ? range[t] : widest;
        return widest;
    }

    /// Both planes of all entries, 32 or, at the end, 16 at a time. All numbers are integers below 2^24.
    template <int Dims>
    CRUMB_INLINE void fill(float steps) const noexcept {
        if constexpr (has_wide_rows<typename I::pq>)
            if (size >= 64) {
                for (std::size_t row = 0; row < rows; ++row)
                    wide<Dims>(row).fill(least[row], steps, out.low + row * size, out.high + row * size);
                return;
            }
        // Both are powers of two, by which the compiler would divide.
        const int row_shift = __builtin_ctzll(entries), table_shift = __builtin_ctzll(size);
        const std::size_t all = rows * entries;
        const f32 by = I::set1(steps), planes = I::set1(pq_max + 1);
        // Nearest to (x - 63.5) / 128 is x / 128 rounded down.
        const f32 down = I::set1(0.5f * pq_max);
        alignas(64) float whole_part[32], x[32];
        alignas(32) std::int8_t codes[32];
        for (std::size_t at = 0; at < all; at += 32) {
            const std::size_t n = all - at < 32 ? 16 : 32;
            for (std::size_t i = 0; i < 32; i += lanes) {
                f32 y = I::zero();
                if (i < n) {
                    const std::size_t row = (at + i) >> row_shift, e = (at + i) & (entries - 1);
                    y = I::sub(products<Dims>(row, e), I::set1(least[(at + i) >> table_shift]));
                    y = I::to_f32(I::round_to_i32(I::mul(y, by)));
                }
                I::store(x + i, y);
                I::store(whole_part + i, I::sub(y, down));
            }
            I::round_group(whole_part, 1.0f / (pq_max + 1), codes);
            for (std::size_t i = 0; i < 32; i += lanes)
                I::store(x + i, I::sub(I::load(x + i), I::mul(I::load_integers(codes + i), planes)));
            __builtin_memcpy(out.high + at, codes, n);
            I::round_group(x, 1, codes);
            __builtin_memcpy(out.low + at, codes, n);
        }
    }

    /// `used`: 0 if all ranges are 0.
    CRUMB_INLINE void finish(float inverse, float steps, int used) const noexcept {
        const double unit = 1.0 / double{inverse}, step = used / double{steps};
        double base = 0, error = 0, sum = 0;
        for (std::size_t t = 0; t < rows * halves; ++t) {
            base += double{least[t]};
            // Half a step, and what rounding of floats adds.
            const double half = 0.51 * step, r = double{range[t]};
            error += half < r ? half : r;
            sum += r + step;
        }
        // Rounding of the query meets entries of at most 128.
        error += 0.51 * 128 * static_cast<double>(args.head_size * halves);
        // Rounding of base and step, and of the result.
        error += 0x1p-22 * (__builtin_fabs(base) + sum);
        if (unit * (__builtin_fabs(base) + sum) > double{__FLT_MAX__})
            return clear(__builtin_inff());
        if (used == 0)
            clear(0);
        out.base = static_cast<float>(unit * base);
        out.step = static_cast<float>(unit * step);
        out.error = static_cast<float>(unit * error * 1.000001);
        // Without its low plane an entry stands for the middle of 128.
        const double middles = 0.5 * pq_max * step * static_cast<double>(rows * halves);
        out.coarse_base = static_cast<float>(unit * (base + middles));
        out.coarse_error = static_cast<float>(unit * (error + middles) * 1.000001);
    }
    CRUMB_INLINE void clear(float error) const noexcept {
        __builtin_memset(out.low, 0, rows * entries);
        __builtin_memset(out.high, 0, rows * entries);
        out.step = out.base = out.coarse_base = 0;
        out.error = out.coarse_error = error;
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
