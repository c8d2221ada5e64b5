// A folded network's parts, options, batches and counters.
#pragma once

#include <crumb/format/neuron_rows.hpp>
#include <crumb/op/ffn/activation_function.hpp>
#include <crumb/op/linear/any_linear.hpp>

#include <optional>

namespace crumb::inline CRUMB_ABI {

/// The parts of a folded network. All refer to memory of the caller.
struct folded_ffn_parts {
    any_linear fold;                ///< x C^T + B: inputs -> outputs
    any_linear predictor;           ///< an estimate of every neuron's u = W1 x + b1: inputs -> neurons
    neuron_rows neurons;            ///< ranges, lines and the original weights
    activation_function activation; ///< sigma
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

/// Cost model, in multiply-accumulates of a product with many rows; docs/folding.md says how they are
/// measured.
struct folded_ffn_costs {
    double fix = 10;    ///< of a fixed neuron's multiply-accumulate
    double repack = 18; ///< of turning a weight of a neuron into tiles
    double unpack = 20; ///< of a weight of the predictor, if its residual is added to it
    double read = 4;    ///< of a weight of `up` and `down`, at least: what few rows wait for
};

/// What a plan expects, and how it computes batches.
struct folded_ffn_options {
    std::size_t max_rows = 64;   ///< of a batch
    double expected_share = 0.1; ///< of neurons that are fixed, from calibration
    folded_batches batches = folded_batches::automatic;
    folded_ffn_costs costs = {}; ///< what `automatic` compares
};

/// Statistics of a part of a batch.
struct folded_ffn_counters {
    std::size_t neurons = 0; ///< rows times neurons
    std::size_t fixed = 0;   ///< of them
    std::size_t bytes = 0;   ///< of weights, thresholds and records that were read, each once

    /// Adds those of another part or batch.
    folded_ffn_counters& operator+=(const folded_ffn_counters& other) noexcept {
        neurons += other.neurons;
        fixed += other.fixed;
        bytes += other.bytes;
        return *this;
    }
};

/// One batch: m rows of inputs, m rows of outputs, and memory for the time between.
struct folded_ffn_batch {
    matrix_view<const float> x;   ///< m x inputs
    matrix_view<float> y;         ///< m x outputs
    std::span<std::byte> scratch; ///< `scratch_bytes(m, parts)`, aligned; not shared with another batch
    /// Empty, or one for each part: phases set them.
    std::span<folded_ffn_counters> counters = {};

    /// m.
    std::size_t rows() const noexcept { return x.rows; }
    /// The sum over all parts.
    folded_ffn_counters counted() const noexcept {
        folded_ffn_counters sum;
        for (const folded_ffn_counters& c : counters)
            sum += c;
        return sum;
    }
};

namespace detail {

/// A thread's part of a phase of a batch.
struct folded_ffn_job {
    const folded_ffn_batch& b;
    std::size_t part, parts;

    std::size_t rows() const noexcept { return b.rows(); }
    /// The rows that the part quantizes.
    range own_rows() const noexcept { return rows_of(rows(), part, parts); }
    /// Of some neurons or outputs, whole tiles.
    range share_of(std::size_t all) const noexcept { return share_of(all, part, parts); }

    static range rows_of(std::size_t rows, std::size_t part, std::size_t parts) noexcept {
        return split(rows, parts, part);
    }
    static range share_of(std::size_t all, std::size_t part, std::size_t parts) noexcept {
        return split(all, parts, part, channel_step);
    }
    static constexpr std::size_t channel_step = 32;
};

} // namespace detail

} // namespace crumb::inline CRUMB_ABI
