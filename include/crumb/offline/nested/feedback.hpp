// Quantization to nested weights with error feedback, for all precisions together.
#pragma once

#include <crumb/offline/nested/descent.hpp>

namespace crumb::inline CRUMB_ABI {

/// Parameters of `nested_feedback`.
struct nested_feedback_options {
    /// Weight of each precision's error. Low precisions weigh more than in `even_precisions`: large errors
    /// cost a model more than in proportion.
    precision_weights lambda = {4, 6, 16};
    std::size_t sweeps = 3;              ///< passes that choose every group again, given all others
    nested_descent_options descent = {}; ///< code by code after sweeps
    double length_power = 1.0;           ///< exponent of the length correction; 0 for least squares
    search_options search = {};
};

/// A matrix of n x k weights per precision, those of 2 bits first; of precisions not stored nothing is read.
using nested_targets = std::array<matrix_view<const float>, nested_precisions>;

/// Quantizes rows w so that sum_p lambda_p (w_p - q_p) H (w_p - q_p)^T is small, where q_p are the codes'
/// weights at precision p, and w_p = gamma_p w makes up for the length that p costs the row. Precisions may
/// have targets w of their own, such as weights that make up for errors of the inputs at that precision.
///
/// Each precision has a chain of error feedback of its own (`feedback_system`): its errors, and its targets
/// t_p. A column's code minimizes sum_p lambda_p R_jj^2 (t_p - d T_p[code >> (parent - p)])^2. A
/// group's scale is chosen by this loss when the group begins. Sweeps choose every group again, given all
/// others: t_p = w_p,g + H_gg^-1 H_g,others e_p,others; `nested_descent` does so code by code. Lengths are
/// measured after the first of several sweeps: with correlated inputs, a poorly quantized row seems to lose
/// more length than it does. Without feedback columns are independent, and there are no sweeps.
///
/// Keeps a reference to the system. Immutable: threads may quantize disjoint rows at a time.
class nested_feedback {
    using matrix_f = feedback_system::matrix_f;
    using index = Eigen::Index;
    using chains = nested_descent::chains;

  public:
    /// For one matrix; `system` outlives it.
    explicit nested_feedback(const feedback_system& system, const nested_feedback_options& options = {})
        : system_(system), options_(options) {}

    /// Quantizes `rows` of `w` (n x k) into `out`, made by `nested_quantized::zeros` with w's shape. Refuses
    /// other shapes, bad levels and options, and weights that are not finite or beyond fp16; `out` is
    /// unchanged then.
    status quantize(const matrix_view<const float>& w, nested_quantized& out, range rows = {}) const {
        return quantize(nested_targets{w, w, w}, out, rows);
    }
    /// The same with a target for every precision.
    status quantize(const nested_targets& w, nested_quantized& out, range rows = {}) const {
        const std::size_t k = system_.k();
        if (const status s = check_levels(out.levels); !s)
            return s;
        for (int p = out.levels.seed; p <= out.levels.parent; ++p)
            if (const auto& own = w[slot(p)]; own.cols != k || out.k != k || out.n != own.rows ||
                                              out.codes.size() != out.n * k ||
                                              out.scales.size() != out.n * out.groups())
                return status::error(
                    errc::bad_shape,
                    "nested feedback for %zu inputs: weights are %zu x %zu, out is %zu x %zu", k, own.rows,
                    own.cols, out.n, out.k);
        if (const status s = check_precision_weights(options_.lambda, out.levels.seed, out.levels.parent); !s)
            return s;
        if (!std::isfinite(options_.length_power))
            return status::error(errc::invalid_argument, "nested feedback: length power %g",
                                 options_.length_power);
        if (const status s = check_descent(options_.descent); !s)
            return s;
        rows = rows.within(out.n);
        for (int p = out.levels.seed; p <= out.levels.parent; ++p)
            if (const status s = system_.check_weights(w[slot(p)], rows); !s)
                return s;
        const nested_search search(out.levels, options_.lambda, system_.functions(), options_.search);
        for (std::size_t r = rows.begin; r < rows.end; r += product_rows)
            quantize_batch(search, w, out, {r, std::min(r + product_rows, rows.end)});
        return {};
    }

    /// (w - q_p) H (w - q_p)^T of a row at a precision, H as damped and scaled to a mean diagonal of 1.
    double error(const float* w, const nested_quantized& q, std::size_t row, int bits) const {
        const nested_storage_view view = q;
        const Eigen::RowVectorXf e = system_.in_order(
            [&](std::size_t c) { return static_cast<float>(double{w[c]} - view.weight(row, c, bits)); });
        return system_.loss(e);
    }

  private:
    static constexpr index g_size = static_cast<index>(group_size);
    /// Passes without noise before lengths are measured, which only need codes that are nearly as good.
    static constexpr std::size_t measuring_passes = 4;
    static constexpr std::size_t slot(int bits) noexcept { return nested_search::slot(bits); }

    void quantize_batch(const nested_search& search, const nested_targets& w, nested_quantized& out,
                        range rows) const {
        const nested_levels& levels = search.levels();
        const index n = static_cast<index>(rows.size());
        chains all;
        for (int p = levels.seed; p <= levels.parent; ++p) {
            all[slot(p)].resize(n, static_cast<index>(system_.size()));
            for (index r = 0; r < n; ++r)
                all[slot(p)].row(r) = system_.in_order([&](std::size_t c) {
                    return w[slot(p)].row(rows.begin + static_cast<std::size_t>(r))[c];
                });
        }
        pass(search, all, out, rows);
        const std::size_t sweeps = system_.has_feedback() ? options_.sweeps : 0;
        const bool gives_length = options_.length_power != 0;
        const std::size_t before = gives_length && sweeps > 1 ? 1 : 0;
        nested_descent_options cold = options_.descent;
        cold.hot = 0;
        cold.cold = std::min(cold.cold, measuring_passes);
        improve(search, all, out, rows, before, cold);
        if (gives_length) {
            for (int p = levels.seed; p <= levels.parent; ++p) {
                matrix_f& own = all[slot(p)];
                const matrix_f wh = system_.times_h(own);
                for (index r = 0; r < n; ++r) {
                    const auto q = decoded(out, rows.begin + static_cast<std::size_t>(r), p);
                    own.row(r) *=
                        system_.gain(own.row(r).data(), wh.row(r).data(), q.data(), options_.length_power);
                }
            }
            if (sweeps == 0)
                pass(search, all, out, rows);
        }
        improve(search, all, out, rows, sweeps - before, options_.descent);
    }

    /// Sweeps and a descent.
    void improve(const nested_search& search, const chains& w, nested_quantized& out, range rows,
                 std::size_t sweeps, const nested_descent_options& descent) const {
        if (sweeps == 0)
            return;
        const nested_levels& levels = search.levels();
        chains e;
        for (int p = levels.seed; p <= levels.parent; ++p) {
            e[slot(p)] = w[slot(p)];
            for (std::size_t r = 0; r < rows.size(); ++r)
                e[slot(p)].row(static_cast<index>(r)) -= decoded(out, rows.begin + r, p);
        }
        for (std::size_t i = 0; i < sweeps; ++i)
            sweep(search, w, out, rows, e);
        nested_descent(system_, levels, options_.lambda, descent).run(w, out, rows);
    }

    Eigen::RowVectorXf decoded(const nested_storage_view& q, std::size_t row, int bits) const {
        return system_.in_order([&](std::size_t c) { return static_cast<float>(q.weight(row, c, bits)); });
    }

    /// All columns in order.
    void pass(const nested_search& search, const chains& w, nested_quantized& out, range rows) const {
        const nested_levels& levels = search.levels();
        const auto& mix = system_.mix();
        chains e, target;
        for (int p = levels.seed; p <= levels.parent; ++p)
            e[slot(p)] = matrix_f::Zero(w[slot(p)].rows(), w[slot(p)].cols());
        for (const auto& part : system_.order().parts) {
            const index first = static_cast<index>(part.first);
            const index size = static_cast<index>(part.groups * group_size);
            for (int p = levels.seed; p <= levels.parent; ++p) {
                target[slot(p)] = w[slot(p)].middleCols(first, size);
                if (system_.has_feedback() && first != 0)
                    system_.add_product(e[slot(p)].leftCols(first), mix.block(0, first, first, size),
                                        target[slot(p)]);
            }
            for (std::size_t g = 0; g < part.groups; ++g) {
                const index at = static_cast<index>(g) * g_size, end = at + g_size;
                matrix_f own_mix;
                if (system_.has_feedback())
                    own_mix = mix.block(first + at, first + at, g_size, g_size);
                for (std::size_t r = 0; r < rows.size(); ++r) {
                    nested_problem problem;
                    const index row = static_cast<index>(r);
                    for (int p = levels.seed; p <= levels.parent; ++p) {
                        problem.target[slot(p)] = target[slot(p)].row(row).data() + at;
                        problem.own[slot(p)] = w[slot(p)].row(row).data() + first + at;
                    }
                    problem.weight = system_.weight() + first + at;
                    problem.mix = system_.has_feedback() ? own_mix.data() : nullptr;
                    const auto q = search.solve(problem);
                    store(out, rows.begin + r, part.first / group_size + g, q);
                    errors(search, w, row, first + at, q, e);
                }
                if (system_.has_feedback() && end < size)
                    for (int p = levels.seed; p <= levels.parent; ++p)
                        system_.add_product(e[slot(p)].middleCols(first + at, g_size),
                                            mix.block(first + at, first + end, g_size, size - end),
                                            target[slot(p)].rightCols(size - end));
            }
        }
    }

    /// Writes w_p - q_p of a group whose first position is `first`.
    void errors(const nested_search& search, const chains& w, index row, index first, const nested_choice& q,
                chains& e) const {
        const nested_levels& levels = search.levels();
        for (int p = levels.seed; p <= levels.parent; ++p) {
            const auto table = levels.table(p);
            for (std::size_t i = 0; i < group_size; ++i) {
                const index at = first + static_cast<index>(i);
                if (system_.column(static_cast<std::size_t>(at)) < system_.k())
                    e[slot(p)](row, at) =
                        w[slot(p)](row, at) -
                        q.scale.d * static_cast<float>(
                                        table[static_cast<std::size_t>(q.code[i] >> (levels.parent - p))]);
            }
        }
    }

    void store(nested_quantized& out, std::size_t row, std::size_t g, const nested_choice& q) const {
        out.scales[row * out.groups() + system_.order().group_at[g]] = half{q.scale.bits};
        for (std::size_t i = 0; i < group_size; ++i)
            if (const std::size_t c = system_.column(g * group_size + i); c < system_.k())
                out.codes[row * out.k + c] = q.code[i];
    }

    /// Chooses every group again with all others fixed: e^T H e restricted to a group is
    /// (t - q)^T H_gg (t - q) with t = w_g + H_gg^-1 H_g,others e_others.
    void sweep(const nested_search& search, const chains& w, nested_quantized& out, range rows,
               chains& e) const {
        const nested_levels& levels = search.levels();
        const index n = static_cast<index>(rows.size());
        chains target;
        for (std::size_t g = 0; g < system_.groups(); ++g) {
            const index first = static_cast<index>(g) * g_size;
            std::vector<double> before(rows.size(), 0.0); // left H_gg left^T, the present errors of the group
            for (int p = levels.seed; p <= levels.parent; ++p) {
                matrix_f pull = matrix_f::Zero(n, g_size), left = matrix_f::Zero(n, g_size);
                system_.add_product(e[slot(p)], system_.h().middleCols(first, g_size), pull);
                system_.add_solved(pull, 0, g, left);
                target[slot(p)] =
                    w[slot(p)].middleCols(first, g_size) - e[slot(p)].middleCols(first, g_size) + left;
                for (index r = 0; r < n; ++r)
                    before[static_cast<std::size_t>(r)] +=
                        rounded(double{search.lambda(p)} *
                                feedback_system::dot(left.row(r).data(), pull.row(r).data(), group_size));
            }
            for (index r = 0; r < n; ++r) {
                const std::size_t row = rows.begin + static_cast<std::size_t>(r);
                nested_problem problem;
                for (int p = levels.seed; p <= levels.parent; ++p)
                    problem.target[slot(p)] = problem.own[slot(p)] = target[slot(p)].row(r).data();
                problem.weight = system_.own_weight(g);
                problem.mix = system_.own_mix(g);
                auto q = search.solve(problem);
                const half scale = out.scales[row * out.groups() + system_.order().group_at[g]];
                const auto same = search.evaluate(problem, scale);
                if (same.error < q.error)
                    q = same;
                if (!(double{q.error} < before[static_cast<std::size_t>(r)] * (1 - 1e-5)))
                    continue;
                store(out, row, g, q);
                errors(search, w, r, first, q, e);
            }
        }
    }

    const feedback_system& system_;
    nested_feedback_options options_;
};

/// What the outputs of a matrix are to be on average at a precision.
struct nested_means {
    std::span<const float> input;   ///< k: mean input at that precision
    std::span<const double> output; ///< n: what the mean output is to be
};

/// Makes value(row, p) the correction of every row and precision from `first` on, rounded to fp16. Refuses
/// NaN and corrections beyond fp16; `out` is unchanged then.
template <class Value>
status set_corrections(nested_quantized& out, int first, const Value& value) {
    std::vector<half> corrections(out.corrections.size());
    for (int p = first; p <= out.levels.parent; ++p)
        for (std::size_t r = 0; r < out.n; ++r) {
            const double exact = value(r, p);
            const half c = to_half(static_cast<float>(exact));
            if (!is_finite(c))
                return status::error(errc::not_finite, "correction of row %zu at %d bits is %g", r, p, exact);
            corrections[static_cast<std::size_t>(p - min_nested_bits) * out.n + r] = c;
        }
    out.corrections = std::move(corrections);
    return {};
}

/// Fills the corrections of quantized weights: output_r - sum over i of (w_ri at p bits) input_i for every
/// row r and precision p that is stored, rounded to fp16, so that outputs are right on average. `means`: of 2
/// bits first. Refuses other shapes, NaN and corrections beyond fp16; `out` is unchanged then.
inline status correct_means(const std::array<nested_means, nested_precisions>& means, nested_quantized& out) {
    for (int p = out.levels.seed; p <= out.levels.parent; ++p)
        if (const nested_means& own = means[nested_search::slot(p)];
            own.input.size() != out.k || own.output.size() != out.n)
            return status::error(
                errc::bad_shape,
                "corrections of %zu x %zu weights: means of %zu inputs and %zu outputs at %d bits", out.n,
                out.k, own.input.size(), own.output.size(), p);
    const nested_storage_view q = out;
    return set_corrections(out, out.levels.seed, [&](std::size_t r, int p) {
        const nested_means& own = means[nested_search::slot(p)];
        double sum = own.output[r];
        for (std::size_t i = 0; i < out.k; ++i)
            sum -= rounded(q.weight(r, i, p) * double{own.input[i]});
        return sum;
    });
}

/// Fills the corrections of quantized weights: sum over i of (w_i - w_i at p bits) mean_i for every row and
/// precision, rounded to fp16, so that outputs are right on average. `mean`: of the k inputs; with it,
/// quantizers get `second_moments::centered` instead of `matrix`. `exact`: n x k, 1 for weights that are
/// stored elsewhere, without error; or empty. Refuses other shapes, NaN and corrections beyond fp16; `out` is
/// unchanged then.
inline status correct_means(const matrix_view<const float>& w, std::span<const float> mean,
                            nested_quantized& out, std::span<const std::uint8_t> exact = {}) {
    if (!exact.empty() && exact.size() != out.n * out.k)
        return status::error(errc::bad_shape, "corrections of %zu x %zu weights: %zu exact or not", out.n,
                             out.k, exact.size());
    if (w.rows != out.n || w.cols != out.k || mean.size() != out.k)
        return status::error(errc::bad_shape, "corrections of %zu x %zu weights: %zu x %zu and %zu means",
                             out.n, out.k, w.rows, w.cols, mean.size());
    const nested_storage_view q = out;
    return set_corrections(out, min_nested_bits, [&](std::size_t r, int p) {
        double sum = 0;
        for (std::size_t i = 0; i < out.k; ++i)
            if (exact.empty() || exact[r * out.k + i] == 0)
                sum += (double{w.row(r)[i]} - q.weight(r, i, p)) * double{mean[i]};
        return sum;
    });
}

} // namespace crumb::inline CRUMB_ABI
