// Feed-forward networks folded into one matrix, with a predictor and fixes for what is not linear (TARDIS).
#pragma once

#include <crumb/op/ffn/neuron_products.hpp>

#include <optional>

namespace crumb::inline CRUMB_ABI {

/// What a folded network consists of. All parts refer to memory of the caller.
struct folded_ffn_parts {
    any_linear fold;      ///< x C^T + B: inputs -> outputs
    any_linear predictor; ///< an estimate of every neuron's u = W1 x + b1: inputs -> neurons
    neuron_rows neurons;  ///< ranges, lines and the original weights
    activation_function activation;
    std::span<const float> output_bias =
        {}; ///< b2 of the network before folding, or empty; for whole batches from the neurons
    /// W1 and b1, inputs -> neurons, and W2 and b2, neurons -> outputs, for those who have them in memory as
    /// well: whole batches are multiplied with these, not with what the neurons hold. Both or neither.
    any_linear up = {}, down = {};
    /// Sound mode: with X[g] = ||x_g|| and D[g] = ||x_g - x^_g|| for groups of 32 inputs, X before D, a
    /// product with bounds on how far estimates are off; rounding of the sums themselves is added.
    std::optional<dense_linear<half>> bounds = {};
};

/// The size of the network that is folded, as its model says it.
struct ffn_shape {
    std::size_t inputs = 0;
    std::size_t neurons = 0;
    std::size_t outputs = 0;
};

/// How batches of several rows are computed.
enum class folded_batches : std::uint8_t {
    automatic, ///< what costs less
    lists,     ///< every row folded, with its own fixes: results do not depend on the number of rows
    dense,     ///< the network as it was before folding: from the same bytes, or from `up` and `down`
};

/// What takes how long, in units of one multiply-accumulate of a product with many rows; see docs/folding.md
/// for how they are measured.
struct folded_ffn_costs {
    double fix = 10;    ///< of a fixed neuron's multiply-accumulate
    double repack = 18; ///< of turning a weight of a neuron into tiles
    double unpack = 20; ///< of a weight of the predictor, if its residual is added to it
    double read = 4;    ///< of a weight of `up` and `down`, at least: what few rows wait for
};

struct folded_ffn_options {
    std::size_t max_rows = 64;   ///< most rows of a batch
    double expected_share = 0.1; ///< of neurons that are fixed, from calibration
    folded_batches batches = folded_batches::automatic;
    folded_ffn_costs costs = {};
    const char* isa = nullptr; ///< for what the parts have not chosen themselves
};

/// One batch: m rows of inputs, m rows of outputs, and memory for the time between.
struct folded_ffn_batch {
    matrix_view<const float> x;
    matrix_view<float> y;
    std::span<std::byte> scratch; ///< `scratch_bytes(m, parts)`, aligned; not shared with another batch
};

/// What a batch has come to.
struct folded_ffn_report {
    std::size_t neurons = 0; ///< rows times neurons
    std::size_t fixed = 0;   ///< of them
    std::size_t missed = 0;  ///< of them: outside their lines' ranges, and not fixed
    std::size_t bytes = 0;   ///< of weights, thresholds and records that were read, each once
};

/// y = x C^T + B + sum over fixed neurons n of (sigma(u_n) - (a_n u_n + b_n)) W2[n], where u_n = W1[n] x +
/// b1[n] is computed from the stored rows, and the neurons whose estimate leaves its range are fixed (TARDIS,
/// section 5.4). Neurons are added in ascending order with one fused multiply-add each, so results do not
/// depend on the split into parts; computed by lists, nor on the number of rows.
///
/// A batch takes `phases` phases. Any number of threads run the same phase, each its part, and meet before
/// the next.
class folded_ffn {
  public:
    static constexpr std::size_t phases = 4;

    /// Checks that all parts are those of such a network, and chooses ISAs for what they have not chosen.
    CRUMB_WHEN_CALLED
    static result<folded_ffn> plan(const ffn_shape& network, const folded_ffn_parts& parts,
                                   const folded_ffn_options& options = {}) noexcept {
        const auto isa = choose_isa(options.isa);
        if (!isa)
            return isa.error();
        const auto ops = float_ops::plan(options.isa);
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
        if (parts.bounds && (parts.bounds->n() != s.neurons || parts.bounds->k() != 2 * groups_of(s.inputs)))
            return status::error(errc::bad_shape,
                                 "bounds: %zu x %zu for %zu neurons and %zu groups of inputs",
                                 parts.bounds->n(), parts.bounds->k(), s.neurons, groups_of(s.inputs));
        if (parts.bounds && !parts.predictor.reads_activations())
            return status::error(errc::invalid_argument, "bounds: the predictor reads floats");
        if (!(options.expected_share >= 0) || !(options.expected_share <= 1))
            return status::error(errc::invalid_argument, "expected share of fixed neurons: %g",
                                 options.expected_share);
        folded_ffn f;
        f.parts_ = parts;
        f.options_ = options;
        f.ops_ = *ops;
        f.functions_ = &dispatch::functions_at<dispatch::ffn_functions>(*isa);
        if (f.has_matrices()) {
            if (const status ok = check(parts.up, "up", s.neurons, s.inputs); !ok)
                return ok;
            if (const status ok = check(parts.down, "down", s.outputs, s.neurons); !ok)
                return ok;
            return f;
        }
        auto products = neuron_products::plan(parts.neurons, parts.output_bias, options.isa, parts.predictor);
        if (products)
            f.products_ = *products;
        else if (options.batches == folded_batches::dense || products.error().code() != errc::unsupported)
            return products.error();
        return f;
    }

    const neuron_shape& shape() const noexcept { return parts_.neurons.shape(); }
    const char* isa() const noexcept { return functions_->isa; }
    /// Whether a batch of so many rows is computed as the network was before folding.
    bool is_dense(std::size_t rows) const noexcept {
        if ((!products_ && !has_matrices()) || options_.batches == folded_batches::lists)
            return false;
        if (options_.batches == folded_batches::dense)
            return true;
        if (rows <= 1)
            return false;
        const auto& s = shape();
        const double m = double(rows), in = double(s.inputs), out = double(s.outputs), h = double(s.neurons);
        const double lists =
            m * (in * out + in * h) + options_.costs.fix * m * options_.expected_share * h * (in + out);
        if (has_matrices())
            return std::max(m, options_.costs.read) * h * (in + out) < lists;
        const double dense = (m + options_.costs.repack) * h * (in + out) +
                             (s.residual ? options_.costs.unpack * h * in : 0.0);
        return dense < lists;
    }
    /// Bytes of weights, thresholds and records that one row with so many fixed neurons reads.
    std::size_t bytes_read(std::size_t fixed) const noexcept {
        const neuron_layout& l = parts_.neurons.layout();
        const std::size_t bounds = parts_.bounds ? parts_.bounds->n() * parts_.bounds->k() * sizeof(half) : 0;
        return parts_.fold.bytes() + parts_.predictor.bytes() + bounds + 2 * l.padded * sizeof(float) +
               fixed * l.record_bytes;
    }
    /// Bytes of memory for a batch of `rows` rows that up to `parts` threads share.
    std::size_t scratch_bytes(std::size_t rows, std::size_t parts = 1) const noexcept {
        return carve({}, rows, parts).bytes;
    }

    /// Phase `phase` of a batch, part `part` of `parts`; the same `parts` in all phases.
    void run_phase(std::size_t phase, const folded_ffn_batch& b, std::size_t part,
                   std::size_t parts) const noexcept {
        CRUMB_CHECK(functions_ != nullptr, "folded_ffn: the plan is empty");
        CRUMB_CHECK(b.x.rows == b.y.rows && b.x.rows <= options_.max_rows && b.x.cols == shape().inputs &&
                        b.y.cols == shape().outputs,
                    "folded_ffn: x and y are not rows x inputs and rows x outputs");
        CRUMB_CHECK(b.scratch.size() >= scratch_bytes(b.x.rows, parts), "folded_ffn: scratch is too small");
        const job j{b, carve(b.scratch, b.x.rows, parts), part, parts};
        const bool dense = is_dense(b.x.rows);
        if (phase == 0)
            prepare(j);
        else if (phase == 1)
            dense ? compute_hidden(j) : predict(j);
        else if (phase == 2 && dense)
            quantize_hidden(j);
        else if (phase == 3)
            dense ? compute_outputs(j) : finish(j);
    }
    /// All phases by the calling thread.
    void run(const folded_ffn_batch& b) const noexcept {
        for (std::size_t phase = 0; phase < phases; ++phase)
            run_phase(phase, b, 0, 1);
    }

    /// What the batch that has just gone through all phases in `parts` parts has come to; may be asked once,
    /// as it writes to the scratch memory. Counting misses computes every neuron of every row.
    folded_ffn_report report(const folded_ffn_batch& b, std::size_t parts = 1,
                             bool count_missed = false) const noexcept;

  private:
    static constexpr std::size_t groups_of(std::size_t k) noexcept {
        return (k + group_size - 1) / group_size;
    }
    static status check(const any_linear& w, const char* what, std::size_t n, std::size_t k) noexcept {
        if (w.n() != n || w.k() != k)
            return status::error(errc::bad_shape, "%s: %zu x %zu, the neurons need %zu x %zu", what, w.n(),
                                 w.k(), n, k);
        return {};
    }

    /// The scratch memory of a batch.
    struct memory {
        activations fold, predictor, input;
        activations activated;        ///< sigma(u) for `down`
        std::span<std::byte> hidden;  ///< of `neuron_products`, as `tiles`
        std::int8_t* codes = nullptr; ///< rows x padded inputs, of `residual`, as what follows: rows x groups
        float* scales = nullptr;
        std::int32_t* starts = nullptr;
        float* rounded = nullptr;        ///< or: rows x inputs, what the codes stand for
        float* norms = nullptr;          ///< rows x 2 groups
        float* margins = nullptr;        ///< rows x padded, as what follows
        float* estimates = nullptr;      ///< of u; dense: u, then sigma(u)
        float* factors = nullptr;        ///< sigma(u) - (a u + b) of a row's list
        std::uint32_t* list = nullptr;   ///< rows x (padded + 16); a part's begins at its first neuron
        std::uint32_t* counts = nullptr; ///< rows x parts
        std::span<std::byte> tiles;      ///< of all parts
        std::size_t bytes = 0;
    };
    struct job {
        const folded_ffn_batch& b;
        memory m;
        std::size_t part, parts;
        std::size_t rows() const noexcept { return b.x.rows; }
    };

    /// Neurons to fix and what their output weights are multiplied with.
    struct fix_list {
        const std::uint32_t* neurons = nullptr;
        const float* factors = nullptr;
        std::size_t count = 0;
    };
    struct fix_buffer {
        std::uint32_t neurons[rows_added_together];
        float factors[rows_added_together];
        std::size_t count = 0;
        fix_list list() const noexcept { return {neurons, factors, count}; }
    };
    class fix_cursor;

    bool has_matrices() const noexcept { return parts_.up.n() != 0 || parts_.down.n() != 0; }
    memory carve(std::span<std::byte> scratch, std::size_t rows, std::size_t parts) const noexcept;
    std::size_t padded() const noexcept { return parts_.neurons.layout().padded; }
    std::size_t list_stride() const noexcept { return padded() + tile_channels; }
    range neurons_of(std::size_t part, std::size_t parts) const noexcept {
        return split(shape().neurons, parts, part, neuron_products::step);
    }
    range outputs_of(const job& j) const noexcept {
        return split(shape().outputs, j.parts, j.part, neuron_products::step);
    }
    matrix_view<float> estimates(const job& j) const noexcept {
        return {j.m.estimates, j.rows(), shape().neurons, padded()};
    }

    /// Whether a residual is multiplied with what the predictor's activations are rounded to.
    bool rounds_inputs() const noexcept {
        return shape().residual && parts_.predictor.reads_activations() &&
               parts_.predictor.input_plan().layout.group == group_size;
    }
    /// Groups of inputs with padding, see `kernel::quantized_row`.
    std::size_t padded_groups() const noexcept { return round_up(groups_of(shape().inputs), 16); }
    void prepare(const job& j) const noexcept;
    void find_codes(const job& j, std::size_t row) const noexcept;
    kernel::neuron_dot_args dots_of(const memory& m, const folded_ffn_batch& b,
                                    std::size_t row) const noexcept;
    void predict(const job& j) const noexcept;
    void finish(const job& j) const noexcept;
    void compute_hidden(const job& j) const noexcept;
    void quantize_hidden(const job& j) const noexcept;
    void compute_outputs(const job& j) const noexcept;
    void find_norms(const job& j, std::size_t row) const noexcept;
    std::size_t test(const job& j, std::size_t row, range neurons, std::size_t listed) const noexcept;
    void find_factors(const job& j, std::size_t row, std::size_t begin, std::size_t first, std::size_t count,
                      bool adds_follow = false) const noexcept;
    void add(const job& j, std::size_t row, const fix_list& fixes, range outputs, const fix_list& next,
             bool dots_follow = false) const noexcept;

    folded_ffn_parts parts_;
    folded_ffn_options options_;
    float_ops ops_;
    std::optional<neuron_products> products_;
    const dispatch::ffn_functions* functions_ = nullptr;
};

} // namespace crumb::inline CRUMB_ABI

#include <crumb/op/ffn/folded_ffn_phases.hpp>
