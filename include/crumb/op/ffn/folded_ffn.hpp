// Feed-forward networks folded into one matrix, with a predictor and fixes for what is not linear (TARDIS).
#pragma once

#include <crumb/core/parallel.hpp>
#include <crumb/op/ffn/dense_path.hpp>
#include <crumb/op/ffn/folded_path.hpp>

#include <optional>

namespace crumb::inline CRUMB_ABI {

class folded_ffn;

namespace dispatch {

/// What a network's plan calls, whatever its ISA: compiled with the kernels, where these are compiled once.
struct folded_ffn_calls {
    void (*run_phase)(const folded_ffn&, std::size_t phase, const folded_ffn_batch&, std::size_t part,
                      std::size_t parts) noexcept = nullptr;
    std::size_t (*scratch_bytes)(const folded_ffn&, std::size_t rows, std::size_t parts) noexcept = nullptr;
    std::size_t (*count_missed)(const folded_ffn&, const folded_ffn_batch&,
                                std::size_t parts) noexcept = nullptr;
};

CRUMB_DECLARE_TABLE(folded_ffn_calls)

} // namespace dispatch

/// y = x C^T + B + sum over fixed neurons n of (sigma(u_n) - (a_n u_n + b_n)) W2[n], where u_n = W1[n] x +
/// b1[n] is computed from the stored rows, and the neurons whose estimate leaves its range are fixed (TARDIS,
/// section 5.4). Neurons are added in ascending order with one fused multiply-add each, so results do not
/// depend on the split into parts; computed by lists, nor on the number of rows.
///
/// A batch takes `phases` phases. Any number of threads run the same phase, each its part, and meet before
/// the next.
class folded_ffn {
  public:
    static constexpr std::size_t phases = 4;                       ///< of a batch
    static constexpr std::size_t max_parts = std::size_t{1} << 16; ///< that share a batch

    /// Checks that all parts are those of such a network, and chooses ISAs for what they have not chosen.
    CRUMB_WHEN_CALLED
    static result<folded_ffn> plan(const ffn_shape& network, const folded_ffn_parts& parts,
                                   const folded_ffn_options& options = {}, const context& on = {}) noexcept {
        const auto isa = choose_isa(on);
        if (!isa)
            return isa.error();
        const auto ops = float_ops::plan(on);
        if (!ops)
            return ops.error();
        const auto& s = parts.neurons.shape();
        if (s.inputs != network.inputs || s.neurons != network.neurons || s.outputs != network.outputs)
            return status::error(
                errc::bad_shape,
                "neurons: %zu of %zu inputs and %zu outputs, the network has %zu of %zu and %zu", s.neurons,
                s.inputs, s.outputs, network.neurons, network.inputs, network.outputs);
        if (const status ok = check(parts.fold, "folded matrix", s.outputs, s.inputs); !ok)
            return ok;
        if (const status ok = check(parts.predictor, "predictor", s.neurons, s.inputs); !ok)
            return ok;
        if (parts.bounds &&
            (parts.bounds->n() != s.neurons || parts.bounds->k() != 2 * detail::groups_of(s.inputs)))
            return status::error(
                errc::bad_shape, "bounds: %zu x %zu for %zu neurons and %zu groups of inputs",
                parts.bounds->n(), parts.bounds->k(), s.neurons, detail::groups_of(s.inputs));
        if (parts.bounds && !parts.predictor.reads_activations())
            return status::error(errc::invalid_argument, "bounds: the predictor reads floats");
        if (!(options.expected_share >= 0) || !(options.expected_share <= 1))
            return status::error(errc::invalid_argument, "expected share of fixed neurons: %g",
                                 options.expected_share);
        folded_ffn f;
        f.shape_ = s;
        f.options_ = options;
        const auto& functions = dispatch::functions_at<dispatch::ffn_functions>(*isa);
        f.isa_ = functions.isa;
        f.calls_ = &dispatch::functions_at<dispatch::folded_ffn_calls>(*isa);
        f.folded_ = folded_path(parts, *ops, functions);
        if (parts.up.n() != 0 || parts.down.n() != 0) {
            if (const status ok = check(parts.up, "up", s.neurons, s.inputs); !ok)
                return ok;
            if (const status ok = check(parts.down, "down", s.outputs, s.neurons); !ok)
                return ok;
            f.dense_ = dense_path(parts, *ops);
            return f;
        }
        const auto products = neuron_products::plan(parts.neurons, parts.output_bias, parts.predictor, on);
        if (products)
            f.dense_ = dense_path(parts, *ops, *products);
        else if (options.batches == folded_batches::dense || products.error().code() != errc::unsupported)
            return products.error();
        return f;
    }

    /// Sizes, and how records of neurons are stored.
    const neuron_shape& shape() const noexcept { return shape_; }
    /// Name of the ISA that fixes neurons; the products name theirs.
    const char* isa() const noexcept { return isa_; }
    /// Whether a batch of so many rows is computed as the network was before folding.
    bool is_dense(std::size_t rows) const noexcept {
        if (!dense_ || options_.batches == folded_batches::lists)
            return false;
        if (options_.batches == folded_batches::dense)
            return true;
        if (rows <= 1)
            return false;
        const double m = double(rows), in = double(shape_.inputs), out = double(shape_.outputs),
                     h = double(shape_.neurons);
        const double lists =
            m * (in * out + in * h) + options_.costs.fix * m * options_.expected_share * h * (in + out);
        if (dense_->has_matrices())
            return std::max(m, options_.costs.read) * h * (in + out) < lists;
        const double dense = (m + options_.costs.repack) * h * (in + out) +
                             (shape_.residual ? options_.costs.unpack * h * in : 0.0);
        return dense < lists;
    }
    /// Bytes of weights, thresholds and records that one row with so many fixed neurons reads.
    std::size_t bytes_read(std::size_t fixed) const noexcept { return folded_.bytes_read(fixed); }
    /// Bytes of memory for a batch of `rows` rows that up to `parts` threads share.
    std::size_t scratch_bytes(std::size_t rows, std::size_t parts = 1) const noexcept {
        require_parts(parts);
        return calls_ == nullptr ? 0 : calls_->scratch_bytes(*this, rows, parts);
    }

    /// The rows that a part of a batch of so many reads in phase 0: a thread that has written them itself
    /// need not wait for others before it.
    static range rows_of(std::size_t rows, std::size_t part, std::size_t parts) noexcept {
        return detail::folded_ffn_job::rows_of(rows, part, parts);
    }
    /// The outputs that a part computes in the last phase, of all rows.
    range outputs_of(std::size_t part, std::size_t parts) const noexcept {
        return detail::folded_ffn_job::share_of(shape_.outputs, part, parts);
    }
    /// Whether a phase of a batch of so many rows does anything; else it may be left out, and its barrier.
    bool has_phase(std::size_t phase, std::size_t rows) const noexcept {
        return phase != 2 || is_dense(rows);
    }
    /// Phase `phase` of a batch, part `part` of `parts`; the same `parts` in all phases.
    void run_phase(std::size_t phase, const folded_ffn_batch& b, std::size_t part,
                   std::size_t parts) const noexcept {
        require_batch(b, parts);
        CRUMB_REQUIRE(part < parts, "folded_ffn: part %zu of %zu", part, parts);
        CRUMB_REQUIRE(b.counters.empty() || b.counters.size() >= parts,
                      "folded_ffn: %zu counters for %zu parts", b.counters.size(), parts);
        calls_->run_phase(*this, phase, b, part, parts);
    }
    /// All phases by the threads of a pool, see `thread_pool`; scratch for pool.size() parts.
    template <class Pool>
    requires thread_pool<std::remove_reference_t<Pool>>
    void run(const folded_ffn_batch& b, Pool&& pool) const {
        for (std::size_t phase = 0; phase < phases; ++phase)
            if (has_phase(phase, b.rows()))
                pool.run([&](std::size_t part, std::size_t parts) { run_phase(phase, b, part, parts); });
    }
    /// All phases by the calling thread.
    void run(const folded_ffn_batch& b) const noexcept { run(b, this_thread()); }

    /// Neurons, over all rows, that lie outside their lines' ranges and were not fixed, of a batch that has
    /// gone through all phases in `parts` parts. Computes every neuron of every row.
    std::size_t count_missed(const folded_ffn_batch& b, std::size_t parts = 1) const noexcept {
        require_batch(b, parts);
        return calls_->count_missed(*this, b, parts);
    }

  private:
    friend struct dispatch::function_table<dispatch::folded_ffn_calls>;

    void require_batch(const folded_ffn_batch& b, std::size_t parts) const noexcept {
        CRUMB_REQUIRE(calls_ != nullptr, "folded_ffn: the plan is empty");
        require_parts(parts);
        CRUMB_REQUIRE(
            b.x.rows == b.y.rows && b.x.rows <= options_.max_rows && b.x.cols == shape_.inputs &&
                b.y.cols == shape_.outputs,
            "folded_ffn: x is %zu x %zu, y %zu x %zu; the plan is for %zu rows, %zu inputs, %zu outputs",
            b.x.rows, b.x.cols, b.y.rows, b.y.cols, options_.max_rows, shape_.inputs, shape_.outputs);
    }
    static void require_parts(std::size_t parts) noexcept {
        CRUMB_REQUIRE(parts != 0 && parts <= max_parts, "folded_ffn: %zu parts, 1 to %zu are possible", parts,
                      max_parts);
    }
    static status check(const any_linear& w, const char* what, std::size_t n, std::size_t k) noexcept {
        if (w.n() != n || w.k() != k)
            return status::error(errc::bad_shape, "%s: %zu x %zu, the neurons need %zu x %zu", what, w.n(),
                                 w.k(), n, k);
        return {};
    }

    void compute_phase(std::size_t phase, const folded_ffn_batch& b, std::size_t part,
                       std::size_t parts) const noexcept {
        const detail::folded_ffn_job j{b, part, parts};
        if (!is_dense(j.rows())) {
            if (phase == 0)
                folded_.prepare(j);
            else if (phase == 1)
                folded_.predict(j);
            else if (phase == 3)
                folded_.finish(j);
            return;
        }
        if (phase == 0)
            dense_->quantize_inputs(j);
        else if (phase == 1)
            dense_->compute_hidden(j);
        else if (phase == 2)
            dense_->quantize_hidden(j);
        else if (phase == 3)
            dense_->compute_outputs(j);
        if (phase == 0 && !b.counters.empty())
            b.counters[part] = {j.rows() * j.share_of(shape_.neurons).size(), 0,
                                part == 0 ? dense_->bytes_read() : 0};
    }

    neuron_shape shape_;
    folded_ffn_options options_;
    folded_path folded_;
    std::optional<dense_path> dense_;
    const char* isa_ = nullptr;
    const dispatch::folded_ffn_calls* calls_ = nullptr;
};

template <>
struct dispatch::function_table<dispatch::folded_ffn_calls> {
    static void run_phase(const folded_ffn& f, std::size_t phase, const folded_ffn_batch& b, std::size_t part,
                          std::size_t parts) noexcept {
        f.compute_phase(phase, b, part, parts);
    }
    static std::size_t scratch_bytes(const folded_ffn& f, std::size_t rows, std::size_t parts) noexcept {
        return f.is_dense(rows) ? f.dense_->scratch_bytes(rows, parts) : f.folded_.scratch_bytes(rows, parts);
    }
    static std::size_t count_missed(const folded_ffn& f, const folded_ffn_batch& b,
                                    std::size_t parts) noexcept {
        return f.is_dense(b.rows()) ? 0 : f.folded_.count_missed(b, parts);
    }
    template <class>
    static constexpr folded_ffn_calls of{&run_phase, &scratch_bytes, &count_missed};
};

} // namespace crumb::inline CRUMB_ABI
