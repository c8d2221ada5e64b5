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
    static result<error_feedback> make(const matrix_view<const double>& h,
                                       const feedback_options& options = {}) {
        return with(feedback_system::make(h, options.damping, options.reorder), options);
    }

    /// From a diagonal H: importance weights without feedback. Empty: all 1.
    static result<error_feedback> independent(std::size_t k, std::span<const float> importance,
                                              const feedback_options& options = {}) {
        return with(feedback_system::independent(k, importance, options.damping), options);
    }

    std::size_t k() const noexcept { return system_.k(); }
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
        const group_search search(out.levels, options_.search);
        constexpr std::size_t batch = 64;
        for (std::size_t r = rows.begin; r < rows.end; r += batch)
            quantize_batch(search, w, out, {r, std::min(r + batch, rows.end)});
        return {};
    }

    /// (w - q) H (w - q)^T of a row, H as damped and scaled to a mean diagonal of 1.
    double error(const float* w, const leveled_matrix& q, std::size_t row) const {
        const Eigen::RowVectorXf e = system_.in_order([&](std::size_t c) { return w[c] - q.weight(row, c); });
        return static_cast<double>(system_.product(e, e));
    }

  private:
    using part = column_order::part;
    struct block_result {
        int exponent = 0;
        std::array<group_choice, scale_block / group_size> group;
    };

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
            for (index r = 0; r < n; ++r)
                own.row(r) *= system_.gain(own.row(r), decoded(out, rows.begin + static_cast<std::size_t>(r)),
                                           options_.length_power);
            if (!sweeps)
                pass(search, own, out, rows);
        }
        if (sweeps)
            sweep(search, own, out, rows);
    }

    Eigen::RowVectorXf decoded(const leveled_matrix& q, std::size_t row) const {
        return system_.in_order([&](std::size_t c) { return q.weight(row, c); });
    }

    /// All columns in order.
    void pass(const group_search& search, const matrix_f& w, leveled_matrix& out, range rows) const {
        const index n = w.rows();
        matrix_f e = matrix_f::Zero(n, w.cols());
        const auto& parts = system_.order().parts;
        for (std::size_t p = 0, g = 0; p < parts.size(); g += parts[p++].groups) {
            const index first = static_cast<index>(parts[p].first);
            const index size = static_cast<index>(parts[p].groups * group_size);
            matrix_f target = w.middleCols(first, size);
            if (system_.has_feedback() && first != 0)
                target.noalias() += e.leftCols(first) * system_.mix().block(0, first, first, size);
            for (index r = 0; r < n; ++r) {
                const std::size_t row = rows.begin + static_cast<std::size_t>(r);
                const auto q = block(search, parts[p], target.row(r).data(), w.row(r).data() + first,
                                     e.row(r).data() + first);
                if (!out.exponent.empty())
                    out.exponent[row * out.blocks() + parts[p].block] = static_cast<std::int8_t>(q.exponent);
                for (std::size_t i = 0; i < parts[p].groups; ++i)
                    store(search, out, row, g + i, q.group[i]);
            }
        }
    }

    void store(const group_search& search, leveled_matrix& out, std::size_t row, std::size_t g,
               const group_choice& q) const {
        out.scale[row * out.groups() + system_.order().group_at[g]] = q.scale.bits;
        for (std::size_t i = 0; i < group_size; ++i)
            if (const std::size_t c = system_.column(g * group_size + i); c < system_.k())
                out.index[row * system_.k() + c] = search.index(q.selector, q.value[i]);
    }

    /// A block of a row; its errors go to `e`.
    block_result block(const group_search& search, const part& p, const float* target, const float* own,
                       float* e) const {
        group_search::candidates c;
        if (search.set().scales == scale_kind::half)
            return block(search, p, target, own, e, 0);
        float max = 0;
        for (std::size_t g = 0; g < p.groups; ++g)
            if (search.propose(target + g * group_size, system_.weight() + p.first + g * group_size, c) != 0)
                max = std::max(max, std::fabs(c[0].d));
        if (max == 0)
            return block(search, p, target, own, e, 0);
        // The smallest exponent at which the largest scale fits; a step lower gains nothing.
        const int exponent = std::clamp(static_cast<int>(std::ceil(std::log2(max / 127.0f))), -120, 120);
        return block(search, p, target, own, e, exponent);
    }
    block_result block(const group_search& search, const part& p, const float* target, const float* own,
                       float* e, int exponent) const {
        block_result out;
        out.exponent = exponent;
        std::array<float, scale_block> t;
        const std::size_t size = p.groups * group_size;
        std::copy_n(target, size, t.data());
        for (std::size_t g = 0; g < p.groups; ++g) {
            const std::size_t at = g * group_size;
            std::array<float, group_size * group_size> mix;
            if (system_.has_feedback())
                for (std::size_t i = 0; i < group_size; ++i)
                    std::copy_n(system_.mix().data() + (p.first + at + i) * system_.size() + p.first + at,
                                group_size, mix.data() + i * group_size);
            const group_problem problem{t.data() + at, own + at, system_.weight() + p.first + at,
                                        system_.has_feedback() ? mix.data() : nullptr};
            group_search::candidates c;
            const std::size_t found = search.propose(problem.target, problem.weight, c);
            const auto q = search.solve(problem, c, found, exponent);
            out.group[g] = q;
            for (std::size_t i = 0; i < group_size; ++i) {
                e[at + i] = own[at + i] - q.scale.d * q.value[i];
                if (system_.has_feedback()) {
                    const float* m = system_.mix().data() + (p.first + at + i) * system_.size() + p.first;
                    for (std::size_t j = at + group_size; j < size; ++j)
                        t[j] += e[at + i] * m[j];
                }
            }
        }
        return out;
    }

    /// Chooses every group again with all others fixed: e^T H e restricted to a group is
    /// (t - q)^T H_gg (t - q) with t = w_g + H_gg^-1 H_g,others e_others.
    void sweep(const group_search& search, const matrix_f& w, leveled_matrix& out, range rows) const {
        const index n = w.rows();
        constexpr index g_size = static_cast<index>(group_size);
        matrix_f e(n, w.cols());
        for (index r = 0; r < n; ++r)
            e.row(r) = w.row(r) - decoded(out, rows.begin + static_cast<std::size_t>(r));
        for (std::size_t s = 0; s < options_.sweeps; ++s) {
            for (std::size_t g = 0; g < system_.groups(); ++g) {
                const index first = static_cast<index>(g) * g_size;
                const matrix_f pull = e * system_.h().middleCols(first, g_size);
                const matrix_f target =
                    w.middleCols(first, g_size) - e.middleCols(first, g_size) + pull * system_.solve(g);
                for (index r = 0; r < n; ++r) {
                    const std::size_t row = rows.begin + static_cast<std::size_t>(r);
                    const group_problem p{target.row(r).data(), target.row(r).data(), system_.own_weight(g),
                                          system_.own_mix(g)};
                    const std::size_t orig = system_.order().group_at[g];
                    const int exponent =
                        out.exponent.empty()
                            ? 0
                            : out.exponent[row * out.blocks() + orig * group_size / scale_block];
                    // The present error of the group.
                    const Eigen::RowVectorXf now =
                        target.row(r) - (w.block(r, first, 1, g_size) - e.block(r, first, 1, g_size));
                    const float before =
                        now * system_.h().block(first, first, g_size, g_size) * now.transpose();
                    group_search::candidates c;
                    const std::size_t found = search.propose(p.target, p.weight, c);
                    auto q = search.solve(p, c, found, exponent);
                    const auto same = search.evaluate(
                        p, {out.d(row, orig), out.scale[row * out.groups() + orig]}, out.selector(row, orig));
                    if (same.error < q.error)
                        q = same;
                    if (!(q.error < before * (1 - 1e-5f)))
                        continue;
                    store(search, out, row, g, q);
                    for (std::size_t i = 0; i < group_size; ++i)
                        if (system_.column(g * group_size + i) < system_.k())
                            e(r, first + static_cast<index>(i)) =
                                w(r, first + static_cast<index>(i)) - q.scale.d * q.value[i];
                }
            }
        }
    }

    feedback_options options_;
    feedback_system system_;
};

} // namespace crumb::inline CRUMB_ABI
