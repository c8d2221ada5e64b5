// Micro-kernels of formats with records: a few rows of activations times a few registers of channels, over up
// to 8 groups. Loops:
//     groups > 8 fours of inputs > rows > registers of channels
#if !defined(CRUMB_THIS_ISA)
#include <crumb/isa/editor.hpp>

#include <crumb/isa/portable/fields.inl>
#include <crumb/kernel/linear/records.inl>

#include <crumb/kernel/linear/record_terms.inl>
#endif

namespace crumb::inline CRUMB_ABI::kernel {

/// Of codes of `Bits` bits with `Subs` sums per group, see `record_shape`.
template <int Bits, int Subs, bool Integers>
struct record_block<isa::CRUMB_THIS_ISA, Bits, Subs, Integers> {
    using I = isa::CRUMB_THIS_ISA;
    using P = field_product<I, Bits>;
    using f32 = typename I::f32;
    using i32 = typename I::i32;
    using terms_of = record_term_sums<I, Subs>;
    static constexpr int per_tile = static_cast<int>(tile_channels) / I::lanes;
    static constexpr int per_row = static_cast<int>(tile_row_bytes) / I::width;
    static_assert(per_tile == per_row);
    static constexpr int subs = Subs == 0 ? 1 : Subs; ///< sums per group
    /// Fours after which a sum might not fit any more.
    static constexpr int steps = [] {
        if constexpr (!(Integers && Subs != 0) && requires { P::unscaled_steps; })
            return P::unscaled_steps;
        else
            return P::steps;
    }();
    /// Whether sums of panels begin at what the offset of codes takes from them.
    static constexpr bool starts = Integers && Subs != 0 && requires { P::run_inputs; };
    /// Whether they are of so few inputs that they fit 16 bits.
    static constexpr bool narrow = [] {
        if constexpr (starts)
            return P::run_inputs != 0;
        else
            return false;
    }();
    /// Inputs of a sum of a panel, and sums per group.
    static constexpr int run = [] {
        constexpr int of_scale = static_cast<int>(group_size) / subs;
        if constexpr (narrow)
            return P::run_inputs < of_scale ? P::run_inputs : of_scale;
        else
            return of_scale;
    }();
    static constexpr int runs = static_cast<int>(group_size) / run;
    /// What codes with minima are counted from, so that sums of 32 or 16 fit.
    static constexpr int middle = narrow && Subs == 1 ? 1 << (Bits - 1) : 0;

    /// `Rows` rows times `Tiles` tiles of a panel: totals[r][16 tile + c] += the products of `groups` groups.
    /// Operands lie group by group, four by four, tile by tile.
    template <int Rows, int Tiles>
    static CRUMB_NOINLINE void panel(const std::uint8_t* operands, const record_terms* terms, bool minima,
                                     const record_rows& x, int groups, float* totals) noexcept {
        constexpr int all = Tiles * per_tile, most = per_tile == 1 ? 3 : 2, vectors = all < most ? all : most;
        static_assert(all % vectors == 0);
        const panel_codes<Tiles> w{operands};
        for (int first = 0; first < all; first += vectors) {
            f32 total[unsigned(Rows * vectors)];
            CRUMB_UNROLL
            for (int i = 0; i < Rows * vectors; ++i)
                total[i] = I::load(totals + i / vectors * all * I::lanes + (first + i % vectors) * I::lanes);
            if constexpr (Integers)
                integers<Rows, vectors>(w, terms, first, minima, x, total);
            else
                floats<Rows, vectors>(w, terms, first, x, groups, total);
            CRUMB_UNROLL
            for (int i = 0; i < Rows * vectors; ++i)
                I::store(totals + i / vectors * all * I::lanes + (first + i % vectors) * I::lanes, total[i]);
        }
    }

    /// sum[v] += the products of a group with one row, times the scales in `numbers`. Each sum begins
    /// where `begin.at` says.
    template <int Vectors, class Operands, class Begin>
    static CRUMB_INLINE void integer_group(const Operands& w, const typename P::row& row,
                                           const record_integers<I>& numbers, const Begin& begin,
                                           i32* sum) noexcept {
        typename P::acc s[unsigned(sums_of<Operands> * Vectors)];
        const group_factors<Begin> factors{numbers, begin};
        start<sums_of<Operands>, 1, Vectors>(factors, s);
        fours<0, 1, Vectors>(w, 0, rows<1>{{row}}, s, sum, factors, 0);
    }
    /// sum[sub * Vectors + v] = the same sums, without factors, from where `begin` says.
    template <int Vectors, class Operands>
    static CRUMB_INLINE void float_group(const Operands& w, const typename P::row& row,
                                         const std::int32_t* begin, i32* sum) noexcept {
        float_sums<1, Vectors>(w, 0, rows<1>{{row}}, float_factors{begin}, 0, sum);
    }

    /// Where sums of `Rows` rows begin that begin at no sums of activations.
    template <int Rows>
    static constexpr auto origins = [] {
        struct {
            std::int32_t at[unsigned(subs * Rows)];
        } x{};
        for (auto& start : x.at)
            start = from_origin<I> ? activation_origin_bits : 0;
        return x;
    }();
    /// As `scaled`, of a sum from its origin; the activations' scale and shift are number i.
    static CRUMB_INLINE f32 scaled_by(i32 sum, const float* x_scales, const float* x_shifts, std::size_t i,
                                      f32 unit, f32 total) noexcept {
        if constexpr (from_origin<I>)
            return I::fma(I::fma(I::as_f32(sum), I::set1(x_scales[i]), I::set1(x_shifts[i])), unit, total);
        else
            return scaled(sum, I::set1(x_scales[i]), unit, total);
    }

    /// The end of a block with integer scales, for `Rows` rows and registers from `first` on.
    template <int Rows, int Vectors>
    static CRUMB_INLINE void finish(const record_terms* terms, int first, bool minima, const record_rows& x,
                                    i32* sum, f32* total) noexcept {
        const auto* sums = static_cast<const std::int16_t*>(x.sums);
        i32 minimum[unsigned(Rows * Vectors)];
        CRUMB_UNROLL
        for (int i = 0; i < Rows * Vectors; ++i)
            minimum[i] = I::set1_i32(0);
        if constexpr (Subs == 0) {
            if (!minima) {
                CRUMB_UNROLL
                for (int i = 0; i < Rows * Vectors; ++i)
                    sum[i] = without_sums(sum[i], sums + i / Vectors * 16);
            }
        }
        constexpr bool offsets = !starts && Subs != 0 && (Bits != 8 || P::offset != 0);
        if (minima || offsets) {
            const typename terms_of::template sums<Rows> of(sums);
            if (minima) {
                terms_of::template add<Rows, Vectors>(&record_terms::terms, terms, first, of, minimum);
                if constexpr (middle != 0)
                    terms_of::template add<Rows, Vectors>(&record_terms::middles, terms, first, of, sum);
            } else if constexpr (offsets) {
                terms_of::template add<Rows, Vectors>(&record_terms::terms, terms, first, of, sum);
            }
        }
        CRUMB_UNROLL
        for (int r = 0; r < Rows; ++r) {
            const f32 scale = I::set1(x.scales[r]);
            CRUMB_UNROLL
            for (int v = 0; v < Vectors; ++v) {
                const record_terms& t = terms[(first + v) / per_tile];
                const int i = r * Vectors + v, lane = (first + v) % per_tile * I::lanes;
                total[i] = scaled(sum[i], scale, I::load(t.unit + lane), total[i]);
                if (minima)
                    total[i] = scaled(minimum[i], scale, I::load(t.minimum_unit + lane), total[i]);
            }
        }
    }

    /// Minus the sum of a block's activations, added: codes of ternary digits begin at -1.
    static CRUMB_INLINE i32 without_sums(i32 sum, const std::int16_t* sums) noexcept {
        int all = 0;
        for (int i = 0; i < 16; ++i)
            all += sums[i];
        return I::add_i32(sum, I::set1_i32(-all));
    }
    /// total + sum * (the activations' scale), rounded, * unit.
    static CRUMB_INLINE f32 scaled(i32 sum, f32 x_scale, f32 unit, f32 total) noexcept {
        return I::fma(I::mul(I::to_f32(sum), x_scale), unit, total);
    }

  private:
    /// What sum `Sub` of row r begins at, and the factor of sum `sub` of group g, for register v of channels.
    struct float_factors {
        static constexpr bool in_panel = false;
        static constexpr bool in_sums = requires { P::start_at(std::int32_t{}); };
        const std::int32_t* begin; ///< where sum j of row r begins, at subs r + j
        template <int Sub>
        CRUMB_INLINE typename P::acc start(int r) const noexcept {
            if constexpr (in_sums)
                return P::start_at(begin[subs * r + Sub]);
            else
                return P::start();
        }
        /// What is to be added to a sum that begins at `start`.
        CRUMB_INLINE i32 rest(int r, int sub) const noexcept {
            return I::set1_i32(in_sums ? 0 : begin[subs * r + sub]);
        }
    };
    template <class Begin>
    struct group_factors {
        static constexpr bool in_panel = false;
        const record_integers<I>& numbers;
        const Begin& begin;
        template <int Sub>
        CRUMB_INLINE typename P::acc start(int) const noexcept {
            return begin.template at<Sub>();
        }
        CRUMB_INLINE i32 factor(int, int sub, int v) const noexcept {
            return P::factor(field_bits<I>::widen(numbers.scale[sub], v));
        }
    };
    template <int Rows>
    struct panel_factors {
        static constexpr bool in_panel = true;
        const record_terms* terms;
        const std::int32_t* begin; ///< where sums of a block begin
        int group;
        template <int Run>
        CRUMB_INLINE typename P::acc start(int r) const noexcept {
            if constexpr (starts)
                return P::start_at(begin[P::template start_of<run, Rows>(r, runs * group + Run)]);
            else
                return P::start();
        }
        CRUMB_INLINE i32 factor(int g, int sub, int v) const noexcept {
            return I::as_i32(I::load(terms_of::at(terms[v / per_tile].factors, g * Subs + sub, v)));
        }
    };

    /// Sums that run at a time per row and register.
    template <class Operands>
    static constexpr int sums_of = Operands::alternates && Subs == 2 ? 2 : 1;

    template <int Tiles>
    struct panel_codes {
        static constexpr bool alternates = false;
        static constexpr int four_at(int i) noexcept { return i; }
        const std::uint8_t* at_group;
        template <int>
        CRUMB_INLINE void prefetch() const noexcept {}
        template <int Four>
        CRUMB_INLINE typename P::operand operand(int g, int v) const noexcept {
            return P::load_operand(at_group + ((g * 8 + Four) * Tiles + v / per_tile) * 64 +
                                   v % per_tile * I::width);
        }
    };

    template <int Rows, int Vectors, class Operands>
    static CRUMB_INLINE void integers(const Operands& w, const record_terms* terms, int first, bool minima,
                                      const record_rows& x, f32* total) noexcept {
        // A run of 8 leaves every second number free.
        alignas(64) std::int32_t begin[starts ? (run == 8 ? 2u : 1u) * 8u * unsigned(runs * Rows) : 1u];
        if constexpr (starts)
            P::template store_starts<run, Rows>(x.codes, static_cast<const std::int16_t*>(x.sums), x.offset,
                                                begin);
        i32 sum[unsigned(Rows * Vectors)];
        CRUMB_UNROLL
        for (int i = 0; i < Rows * Vectors; ++i)
            sum[i] = I::set1_i32(0);
        for (int g = 0; g < 8; ++g) {
            const auto row = rows<Rows>::load(x.codes + g * Rows * static_cast<int>(group_size));
            typename P::acc s[unsigned(Rows * Vectors)];
            const panel_factors<Rows> factors{terms, begin, g};
            start<1, Rows, Vectors>(factors, s);
            fours<0, Rows, Vectors>(w, g, row, s, sum, factors, first);
        }
        finish<Rows, Vectors>(terms, first, minima, x, sum, total);
    }

    template <int Rows, int Vectors, class Operands>
    static CRUMB_INLINE void floats(const Operands& w, const record_terms* terms, int first,
                                    const record_rows& x, int groups, f32* total) noexcept {
        for (int g = 0; g < groups; ++g) {
            const auto row = rows<Rows>::load(x.codes + g * Rows * static_cast<int>(group_size));
            const int of_group = g * Rows * subs;
            const float_factors factors{x.use == record_sums::starts
                                            ? static_cast<const std::int32_t*>(x.sums) + of_group
                                            : origins<Rows>.at};
            i32 sum[unsigned(subs * Rows * Vectors)];
            float_sums<Rows, Vectors>(w, g, row, factors, first, sum);
            CRUMB_UNROLL
            for (int r = 0; r < Rows; ++r) {
                CRUMB_UNROLL
                for (int i = 0; i < subs * Vectors; ++i) {
                    const int sub = i / Vectors, v = i % Vectors;
                    const record_terms& t = terms[(first + v) / per_tile];
                    f32& to = total[r * Vectors + v];
                    to = scaled_by(sum[(sub * Rows + r) * Vectors + v], x.scales, x.shifts,
                                   unsigned(g * Rows + r),
                                   I::load(terms_of::at(t.factors, g * subs + sub, first + v)), to);
                }
            }
            if (x.use == record_sums::terms)
                terms_of::template add_floats<Rows, Vectors>(
                    terms, first, g, static_cast<const float*>(x.sums) + of_group, total);
        }
    }

    /// The activation codes of a group.
    template <int Rows>
    struct rows {
        typename P::row at[unsigned(Rows)];
        static CRUMB_INLINE rows load(const std::int8_t* codes) noexcept {
            rows x;
            CRUMB_UNROLL
            for (int r = 0; r < Rows; ++r)
                x.at[r] = P::load_row(codes + 8 * r, 8 * Rows);
            return x;
        }
        template <int Four, int R>
        CRUMB_INLINE void step(typename P::acc& s, typename P::operand w) const noexcept {
            P::template step<Four>(s, w, at[R]);
        }
    };
    /// Where an ISA takes those of two rows from one register.
    template <int Rows>
    requires requires { sizeof(typename P::template row_pairs<Rows>); }
    struct rows<Rows> : P::template row_pairs<Rows> {
        static CRUMB_INLINE rows load(const std::int8_t* codes) noexcept {
            return {P::template row_pairs<Rows>::load(codes)};
        }
    };
    /// s[sub][r][v] = what the sum begins at.
    template <int Sums, int Rows, int Vectors, class Factors>
    static CRUMB_INLINE void start(const Factors& factors, typename P::acc* s) noexcept {
        CRUMB_UNROLL
        for (int i = 0; i < Rows * Vectors; ++i) {
            s[i] = factors.template start<0>(i / Vectors);
            if constexpr (Sums == 2)
                s[Rows * Vectors + i] = factors.template start<1>(i / Vectors);
        }
    }

    /// sum[sub][r][v] = the sums of products of a group.
    template <int Rows, int Vectors, class Operands, class Factors>
    static CRUMB_INLINE void float_sums(const Operands& w, int g, const rows<Rows>& row,
                                        const Factors& factors, int first, i32* sum) noexcept {
        typename P::acc s[unsigned(sums_of<Operands> * Rows * Vectors)];
        start<sums_of<Operands>, Rows, Vectors>(factors, s);
        CRUMB_UNROLL
        for (int i = 0; i < subs * Rows * Vectors; ++i)
            sum[i] = factors.rest(i / Vectors % Rows, i / (Rows * Vectors));
        fours<0, Rows, Vectors>(w, g, row, s, sum, factors, first);
    }

    /// A step of rows R and on.
    template <int R, int Four, int Rows, int Vectors>
    static CRUMB_INLINE void step_rows(const rows<Rows>& row, const typename P::operand* o,
                                       typename P::acc* to) noexcept {
        CRUMB_UNROLL
        for (int v = 0; v < Vectors; ++v)
            row.template step<Four, R>(to[R * Vectors + v], o[v]);
        if constexpr (R + 1 < Rows)
            step_rows<R + 1, Four, Rows, Vectors>(row, o, to);
    }
    /// Fours from number `At` of their order on; sums go where their scale is before they overflow.
    template <int At, int Rows, int Vectors, class Operands, class Factors>
    static CRUMB_INLINE void fours(const Operands& w, int g, const rows<Rows>& row, typename P::acc* s,
                                   i32* sum, const Factors& factors, int first) noexcept {
        constexpr int four = Operands::four_at(At);
        constexpr int sub = Subs == 2 && four >= 4 ? 1 : 0;
        constexpr int n = Rows * Vectors;
        typename P::acc* to = s + (sums_of<Operands> == 2 ? sub * n : 0);
        typename P::operand o[unsigned(Vectors)];
        w.template prefetch<At>();
        CRUMB_UNROLL
        for (int v = 0; v < Vectors; ++v)
            o[v] = w.template operand<four>(g, first + v);
        step_rows<0, four, Rows, Vectors>(row, o, to);
        if constexpr (Rows == 1 || n >= 4) {
            CRUMB_UNROLL
            for (int i = 0; i < n; ++i)
                P::pin(to[i]);
        }
        constexpr bool of_run = narrow && Factors::in_panel;
        constexpr int most = of_run ? run / 4 : steps;
        constexpr int taken = sums_of<Operands> == 2 ? At / 2 + 1 : At + 1; // by the sum
        constexpr bool ends = At == 7 || (Subs == 2 && At == (sums_of<Operands> == 2 ? 6 : 3));
        if constexpr (ends || taken % most == 0) {
            // What the accumulator sums next: another run, the other half of the group, or more of the same.
            constexpr int next = of_run ? (At + 1) / most : ends && sums_of<Operands> == 1 ? 1 : 0;
            CRUMB_UNROLL
            for (int i = 0; i < n; ++i) {
                if constexpr (of_run) {
                    sum[i] = P::add_run(sum[i], to[i], factors.factor(g, sub, first + i % Vectors));
                } else if constexpr (Integers && Subs != 0) {
                    sum[i] = P::add(sum[i], to[i], factors.factor(g, sub, first + i % Vectors));
                } else {
                    i32& into = sum[(Integers ? 0 : sub) * n + i];
                    into = I::add_i32(into, P::sum(to[i]));
                }
                if constexpr (At < 7 && next != 0)
                    to[i] = factors.template start<next>(i / Vectors);
                else
                    to[i] = P::start();
            }
        }
        if constexpr (At < 7)
            fours<At + 1, Rows, Vectors>(w, g, row, s, sum, factors, first);
    }
};

} // namespace crumb::inline CRUMB_ABI::kernel
