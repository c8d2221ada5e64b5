// Micro-kernels: a few rows of activations times a few registers of channels, over a run of groups. Loops:
//     groups > 4 or 8 register rows of codes > rows > registers of channels
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/kernel/linear/blocks.inl>

#include <crumb/kernel/linear/expand.inl>

#include <crumb/kernel/linear/operands.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Weights that have been expanded into a panel.
template <class Format, class Product, int Vectors>
struct panel_operands<isa::CRUMB_THIS_ISA, Format, Product, Vectors> {
    using I = isa::CRUMB_THIS_ISA;
    using operand_type = typename Product::operand;
    static constexpr std::size_t scales_at = 8 * Vectors * sizeof(operand_type);
    static constexpr std::size_t group_bytes = scales_at + Vectors * sizeof(typename I::f32);
    const std::uint8_t* at;

    CRUMB_INLINE void begin_group() const noexcept {}
    CRUMB_INLINE void prefetch(int) const noexcept {}
    template <int X>
    CRUMB_INLINE operand_type operand(int row, int v) const noexcept {
        return Product::load_operand(at + operand_at<X>(row, v));
    }
    template <int X>
    static constexpr std::size_t operand_at(int row, int v) noexcept {
        return static_cast<std::size_t>((row * tile_shape<I, Format>::per_row + X) * Vectors + v) *
               sizeof(operand_type);
    }
    CRUMB_INLINE typename I::f32 scale(int v) const noexcept {
        return I::load(reinterpret_cast<const float*>(at + scales_at) + v * I::lanes);
    }
    CRUMB_INLINE void next_group() noexcept { at += group_bytes; }
};

/// Weights that are expanded, multiplied with a first block of rows and kept in a panel for the others.
template <class Format, class Product, int Vectors>
struct kept_operands<isa::CRUMB_THIS_ISA, Format, Product, Vectors> {
    using I = isa::CRUMB_THIS_ISA;
    using packed = packed_operands<I, Format, Product, Vectors>;
    using panel = panel_operands<I, Format, Product, Vectors>;
    packed from, next; ///< `next`: of the next panel
    std::uint8_t* to;

    CRUMB_INLINE void begin_group() noexcept {
        next.template ask_half<0>();
        from.begin_group();
        CRUMB_UNROLL
        for (int v = 0; v < Vectors; ++v)
            I::store(reinterpret_cast<float*>(to + panel::scales_at) + v * I::lanes, from.scale(v));
    }
    CRUMB_INLINE void prefetch(int) const noexcept {}
    template <int X>
    CRUMB_INLINE typename Product::operand operand(int row, int v) const noexcept {
        const auto o = from.template operand<X>(row, v);
        Product::store_operand(to + panel::template operand_at<X>(row, v), o);
        return o;
    }
    CRUMB_INLINE typename I::f32 scale(int v) const noexcept { return panel{to}.scale(v); }
    CRUMB_INLINE void next_group() noexcept {
        from.next_group();
        next.next_group();
        to += panel::group_bytes;
    }
};

/// The panel for the second block of rows.
template <class Format, class Product, int Vectors>
struct prefetching_operands<isa::CRUMB_THIS_ISA, Format, Product, Vectors>
    : panel_operands<isa::CRUMB_THIS_ISA, Format, Product, Vectors> {
    using panel = panel_operands<isa::CRUMB_THIS_ISA, Format, Product, Vectors>;
    packed_operands<isa::CRUMB_THIS_ISA, Format, Product, Vectors> next;

    CRUMB_INLINE void begin_group() const noexcept { next.template ask_half<1>(); }
    CRUMB_INLINE void next_group() noexcept {
        panel::next_group();
        next.next_group();
    }
};

template <class Format>
struct linear_tile<isa::CRUMB_THIS_ISA, Format> {
    using I = isa::CRUMB_THIS_ISA;
    using shape = tile_shape<I, Format>;
    using P = typename shape::P;
    using Q = typename shape::Q;
    using f32 = typename I::f32;

    /// A block of `Rows` rows from group `first` of `groups` on.
    template <int Rows>
    struct row_terms {
        const std::int8_t* codes;
        const float* scales;
        const std::int32_t* starts;
        const float* shifts;
        CRUMB_INLINE row_terms(const linear_args& args, std::size_t row, std::size_t first) noexcept
            : codes(args.x_codes + (row * args.groups + first * Rows) * group_size),
              scales(args.x_scales + row * args.groups + first * Rows),
              starts(P::offset != 0 ? args.x_starts + row * args.groups + first * Rows : nullptr),
              shifts(P::offset != 0 ? args.x_shifts + row * args.groups + first * Rows : nullptr) {}
        /// Null where products need none.
        CRUMB_INLINE const std::int32_t* start(int r) const noexcept {
            return P::offset != 0 ? starts + r : nullptr;
        }
        CRUMB_INLINE void next_group() noexcept {
            codes += Rows * static_cast<int>(group_size);
            scales += Rows;
            if constexpr (P::offset != 0) {
                starts += Rows;
                shifts += Rows;
            }
        }
    };

    /// totals[r * stride + c] = (what it was, or zero) + sum over groups of fl(scale_x * sum) * scale_w, one
    /// FMA per group in order.
    template <class Product, int Rows, int Vectors, class Operands>
    static CRUMB_INLINE void run(Operands w, row_terms<Rows> x, std::size_t groups, bool from_zero,
                                 float* totals, std::size_t stride) noexcept {
        // What does not fit into registers stays in memory, and there the totals rather than the sums.
        constexpr bool in_registers = 2 * Rows * Vectors + Vectors + 2 <= I::registers;
        const auto at = [&](int i) {
            return totals + static_cast<std::size_t>(i / Vectors) * stride + i % Vectors * I::lanes;
        };
        f32 total[unsigned(Rows * Vectors)];
        CRUMB_UNROLL
        for (int i = 0; i < Rows * Vectors; ++i) {
            total[i] = from_zero ? I::zero() : I::load(at(i));
            if constexpr (!in_registers)
                I::store(at(i), total[i]);
        }
        for (; groups != 0; --groups) {
            typename Product::acc s[unsigned(Rows * Vectors)];
            CRUMB_UNROLL
            for (int r = 0; r < Rows; ++r) {
                CRUMB_UNROLL
                for (int v = 0; v < Vectors; ++v)
                    s[r * Vectors + v] = Product::start(x.start(r));
            }
            w.begin_group();
            CRUMB_UNROLL
            for (int row = 0; row < shape::rows; ++row)
                register_row<0, Product, Rows, Vectors>(w, row, x.codes, s);
            CRUMB_UNROLL
            for (int r = 0; r < Rows; ++r) {
                const f32 scale = I::set1(x.scales[r]);
                CRUMB_UNROLL
                for (int v = 0; v < Vectors; ++v) {
                    const int i = r * Vectors + v;
                    const f32 scaled = scale_sum<Product>(s[i], x, r, scale);
                    if constexpr (in_registers)
                        total[i] = I::fma(scaled, w.scale(v), total[i]);
                    else
                        I::store(at(i), I::fma(scaled, w.scale(v), I::load(at(i))));
                }
            }
            w.next_group();
            x.next_group();
        }
        if constexpr (in_registers) {
            CRUMB_UNROLL
            for (int i = 0; i < Rows * Vectors; ++i)
                I::store(at(i), total[i]);
        }
    }

  private:
    template <int X, class Product, int Rows, int Vectors, class Operands>
    static CRUMB_INLINE void register_row(const Operands& w, int row, const std::int8_t* x,
                                          typename Product::acc* s) noexcept {
        const int four = row + X * shape::rows; // of the group's eight times four inputs
        w.prefetch(row * shape::per_row + X);
        typename Product::operand o[unsigned(Vectors)];
        CRUMB_UNROLL
        for (int v = 0; v < Vectors; ++v)
            o[v] = w.template operand<X>(row, v);
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r) {
            const typename I::quad a = I::load_quad(x + four / 2 * 8 * Rows + 8 * r + four % 2 * 4);
            CRUMB_UNROLL
            for (int v = 0; v < Vectors; ++v)
                Product::template step<X>(s[r * Vectors + v], o[v], a);
        }
        if constexpr (Rows * Vectors >= 4)
            CRUMB_HOLD_LOADS();
        // With few registers, products that are put off keep their operands alive until some are spilled.
        // With one row, they would let all prefetches be sent at once.
        if constexpr ((I::registers < 32 || Rows == 1) && requires { Product::pin(s[0]); }) {
            CRUMB_UNROLL
            for (int i = 0; i < Rows * Vectors; ++i)
                Product::pin(s[i]);
        }
        if constexpr (X + 1 < shape::per_row)
            register_row<X + 1, Product, Rows, Vectors>(w, row, x, s);
    }
    template <class Product, int Rows>
    static CRUMB_INLINE f32 scale_sum(const typename Product::acc& s, const row_terms<Rows>& x, int r,
                                      f32 scale) noexcept {
        const typename I::i32 sum = Product::finish(s, x.start(r));
        if constexpr (Product::offset != 0)
            return I::fma(I::as_f32(sum), scale, I::set1(x.shifts[r]));
        else
            return I::mul(I::to_f32(sum), scale);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
