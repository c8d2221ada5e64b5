// Quantization with error feedback across columns, in the manner of GPTQ.
#pragma once

#include <crumb/offline/weights/feedback_system.hpp>
#include <crumb/offline/weights/group_search.hpp>

namespace crumb::inline CRUMB_ABI {

/// Parameters of `error_feedback`.
struct feedback_options {
    double damping = 0.01;     ///< added to the diagonal of H, as a share of its mean
    bool reorder = true;       ///< blocks, groups and columns of largest energy first
    std::size_t sweeps = 3;    ///< passes that choose every group again, given all others
    double length_power = 1.0; ///< exponent of the length correction; 0 for least squares
    search_options search = {};
};

/// Quantizes rows w so that (w - q) H (w - q)^T is small, H = sum x x^T over calibration inputs.
///
/// Columns are quantized in order, each corrected by the errors of those before it (`feedback_system`), and a
/// group's scale and table are chosen when it begins. One object serves all matrices that read the same
/// inputs. Immutable after `make`: threads may quantize disjoint rows at a time.
class error_feedback {
    using matrix_f = feedback_system::matrix_f;
    using index = Eigen::Index;

  public:
    /// From H, k x k; its lower triangle is read.
    CRUMB_WHEN_CALLED static result<error_feedback>
    make(const matrix_view<const double>& h, const feedback_options& options = {}, const context& on = {}) {
        return with(feedback_system::make(h, options.damping, options.reorder, on), options);
    }

    /// From a diagonal H: importance weights without feedback. Empty: all 1.
    CRUMB_WHEN_CALLED static result<error_feedback> independent(std::size_t k,
                                                                std::span<const float> importance,
                                                                const feedback_options& options = {},
                                                                const context& on = {}) {
        return with(feedback_system::independent(k, importance, options.damping, on), options);
    }

    /// Inputs.
    std::size_t k() const noexcept { return system_.k(); }
    /// H, factorized.
    const feedback_system& system() const noexcept { return system_; }

    /// Quantizes `rows` of `w` into `out`, made by `leveled_matrix::zeros` with w's shape. Refuses weights
    /// that are not finite or beyond fp16; `out` may be partly written then.
    status quantize(const matrix_view<const float>& w, leveled_matrix& out, range rows = {}) const {
        if (w.cols != system_.k() || out.k != system_.k() || out.n != w.rows)
            return status::error(errc::bad_shape,
                                 "error feedback for %zu inputs: weights are %zu x %zu, out is %zu x %zu",
                                 system_.k(), w.rows, w.cols, out.n, out.k);
        if (const status s = check_levels(out.levels); !s)
            return s;
        rows = rows.within(w.rows);
        if (const status s = system_.check_weights(w, rows); !s)
            return s;
        const group_search search(out.levels, system_.functions(), options_.search);
        for (std::size_t r = rows.begin; r < rows.end; r += product_rows)
            quantize_batch(search, w, out, {r, std::min(r + product_rows, rows.end)});
        return {};
    }

    /// (w - q) H (w - q)^T of a row, H as damped and scaled to a mean diagonal of 1.
    double error(const float* w, const leveled_matrix& q, std::size_t row) const {
        const Eigen::RowVectorXf e = system_.in_order([&](std::size_t c) { return w[c] - q.weight(row, c); });
        return system_.loss(e);
    }

  private:
    static constexpr index g_size = static_cast<index>(group_size);

    error_feedback(feedback_system system, const feedback_options& options)
        : options_(options), system_(std::move(system)) {}

    static result<error_feedback> with(result<feedback_system> system, const feedback_options& options) {
        if (!system)
            return system.error();
        if (!std::isfinite(options.length_power))
            return status::error(errc::invalid_argument, "error feedback: length power %g",
                                 options.length_power);
        return error_feedback(std::move(*system), options);
    }

    void quantize_batch(const group_search& search, const matrix_view<const float>& w, leveled_matrix& out,
                        range rows) const {
        const index n = static_cast<index>(rows.size()), size = static_cast<index>(system_.size());
        matrix_f own(n, size);
        for (index r = 0; r < n; ++r)
            own.row(r) = system_.in_order(
                [&](std::size_t c) { return w.row(rows.begin + static_cast<std::size_t>(r))[c]; });
        pass(search, own, out, rows);
        const bool sweeps = system_.has_feedback() && options_.sweeps != 0;
        if (options_.length_power != 0) {
            const matrix_f wh = system_.times_h(own);
            for (index r = 0; r < n; ++r) {
                const auto q = decoded(out, rows.begin + static_cast<std::size_t>(r));
                own.row(r) *=
                    system_.gain(own.row(r).data(), wh.row(r).data(), q.data(), options_.length_power);
            }
            if (!sweeps)
                pass(search, own, out, rows);
        }
        if (sweeps)
            sweep(search, own, out, rows);
    }

    Eigen::RowVectorXf decoded(const leveled_matrix& q, std::size_t row) const {
        Eigen::RowVectorXf v = Eigen::RowVectorXf::Zero(static_cast<index>(system_.size()));
        for (std::size_t g = 0; g < system_.groups(); ++g) {
            const std::size_t orig = system_.order().group_at[g];
            const float d = q.d(row, orig);
            const auto levels = q.levels.table(q.selector(row, orig));
            for (std::size_t i = g * group_size; i < (g + 1) * group_size; ++i)
                if (const std::size_t c = system_.column(i); c < system_.k())
                    v[static_cast<index>(i)] = d * static_cast<float>(levels[q.index[row * q.k + c]]);
        }
        return v;
    }

    /// All columns in order: blocks, groups, rows.
    void pass(const group_search& search, const matrix_f& w, leveled_matrix& out, range rows) const {
        const index n = w.rows();
        matrix_f e = matrix_f::Zero(n, w.cols()), target = w, mix(g_size, g_size);
        for (const auto& p : system_.order().parts) {
            const index first = static_cast<index>(p.first), size = static_cast<index>(p.groups) * g_size;
            if (system_.has_feedback())
                system_.add_product(e.leftCols(first), system_.mix().block(0, first, first, size),
                                    target.middleCols(first, size));
            if (!out.exponent.empty())
                for (index r = 0; r < n; ++r)
                    out.exponent[(rows.begin + static_cast<std::size_t>(r)) * out.blocks() + p.block] =
                        exponent_of(search, p, target.row(r).data() + first);
            for (std::size_t g = 0; g < p.groups; ++g) {
                const index at = first + static_cast<index>(g) * g_size, end = at + g_size;
                if (system_.has_feedback())
                    mix = system_.mix().block(at, at, g_size, g_size);
                for (index r = 0; r < n; ++r) {
                    const std::size_t row = rows.begin + static_cast<std::size_t>(r);
                    const group_problem problem{target.row(r).data() + at, w.row(r).data() + at,
                                                system_.weight() + at,
                                                system_.has_feedback() ? mix.data() : nullptr};
                    group_search::candidates c;
                    const std::size_t found = search.propose(problem.target, problem.weight, c);
                    const auto q = search.solve(problem, c, found, grid(out, row, p.block));
                    store(search, out, row, p.first / group_size + g, q);
                    for (index i = 0; i < g_size; ++i)
                        e(r, at + i) = w(r, at + i) - q.scale.d * q.value[static_cast<std::size_t>(i)];
                }
                if (system_.has_feedback() && end < first + size)
                    system_.add_product(e.middleCols(at, g_size),
                                        system_.mix().block(at, end, g_size, first + size - end),
                                        target.middleCols(end, first + size - end));
            }
        }
    }

    /// The smallest exponent at which the largest scale of a block fits; a step lower gains nothing.
    std::int8_t exponent_of(const group_search& search, const column_order::part& p,
                            const float* target) const {
        float max = 0;
        group_search::candidates c;
        for (std::size_t g = 0; g < p.groups; ++g)
            if (search.propose(target + g * group_size, system_.weight() + p.first + g * group_size, c) != 0)
                max = std::max(max, std::fabs(c[0].d));
        if (max == 0)
            return 0;
        int above = 0; // max / 127 = part * 2^above
        const bool is_power = std::frexp(max / 127.0f, &above) == 0.5f;
        return static_cast<std::int8_t>(std::clamp(is_power ? above - 1 : above, -120, 120));
    }

    static group_search::block_grid grid(const leveled_matrix& out, std::size_t row, std::size_t block) {
        return group_search::block_grid(out.exponent.empty() ? 0 : out.exponent[row * out.blocks() + block]);
    }

    void store(const group_search& search, leveled_matrix& out, std::size_t row, std::size_t g,
               const group_choice& q) const {
        out.scale[row * out.groups() + system_.order().group_at[g]] = q.scale.bits;
        for (std::size_t i = 0; i < group_size; ++i)
            if (const std::size_t c = system_.column(g * group_size + i); c < system_.k())
                out.index[row * system_.k() + c] = search.index(q.selector, q.value[i]);
    }

    /// Chooses every group again with all others fixed: e^T H e restricted to a group is
    /// (t - q)^T H_gg (t - q) with t = w_g + H_gg^-1 H_g,others e_others = q_now + H_gg^-1 (e H)_g. The
    /// products e H are made for a block, and follow the groups that have changed inside it.
    void sweep(const group_search& search, const matrix_f& w, leveled_matrix& out, range rows) const {
        const index n = w.rows();
        matrix_f e(n, w.cols()), pull, change(n, g_size);
        for (index r = 0; r < n; ++r)
            e.row(r) = w.row(r) - decoded(out, rows.begin + static_cast<std::size_t>(r));
        for (std::size_t s = 0; s < options_.sweeps; ++s) {
            for (const auto& p : system_.order().parts) {
                const index first = static_cast<index>(p.first), size = static_cast<index>(p.groups) * g_size;
                pull = matrix_f::Zero(n, size);
                system_.add_product(e, system_.h().middleCols(first, size), pull);
                for (std::size_t g = 0; g < p.groups; ++g) {
                    const index at = static_cast<index>(g) * g_size, end = at + g_size;
                    sweep_group(search, w, out, rows, p.block, p.first / group_size + g, at, pull, e, change);
                    if (end < size)
                        system_.add_product(change,
                                            system_.h().block(first + at, first + end, g_size, size - end),
                                            pull.rightCols(size - end));
                }
            }
        }
    }

    /// One group of all rows. `at`: its column in `pull`. Writes what its errors have changed by.
    void sweep_group(const group_search& search, const matrix_f& w, leveled_matrix& out, range rows,
                     std::size_t block, std::size_t g, index at, const matrix_f& pull, matrix_f& e,
                     matrix_f& change) const {
        const index n = w.rows(), first = static_cast<index>(g) * g_size;
        const std::size_t orig = system_.order().group_at[g];
        change.setZero();
        matrix_f left = matrix_f::Zero(n, g_size);
        system_.add_solved(pull, at, g, left);
        const matrix_f target = w.middleCols(first, g_size) - e.middleCols(first, g_size) + left;
        for (index r = 0; r < n; ++r) {
            const std::size_t row = rows.begin + static_cast<std::size_t>(r);
            const group_problem p{target.row(r).data(), target.row(r).data(), system_.own_weight(g),
                                  system_.own_mix(g)};
            // left H_gg left^T, the present error of the group.
            const double before =
                feedback_system::dot(left.row(r).data(), pull.row(r).data() + at, group_size);
            group_search::candidates c;
            const std::size_t found = search.propose(p.target, p.weight, c);
            auto q = search.solve(p, c, found, grid(out, row, block));
            const auto same = search.evaluate(p, {out.d(row, orig), out.scale[row * out.groups() + orig]},
                                              out.selector(row, orig));
            if (same.error < q.error)
                q = same;
            if (!(static_cast<double>(q.error) < before * (1 - 1e-5)))
                continue;
            store(search, out, row, g, q);
            for (index i = 0; i < g_size; ++i)
                if (system_.column(static_cast<std::size_t>(first + i)) < system_.k()) {
                    const float next = w(r, first + i) - q.scale.d * q.value[static_cast<std::size_t>(i)];
                    change(r, i) = next - e(r, first + i);
                    e(r, first + i) = next;
                }
        }
    }

    feedback_options options_;
    feedback_system system_;
};

} // namespace crumb::inline CRUMB_ABI
