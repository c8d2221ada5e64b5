// Whole batches of a folded network as it was before folding.
#pragma once

#include <crumb/op/ffn/folded_parts.hpp>
#include <crumb/op/ffn/neuron_products.hpp>

namespace crumb::inline CRUMB_ABI {

/// y = W2^T sigma(W1 x + b1) + b2, from the bytes of the neurons (`neuron_products`) or from `up` and `down`.
/// Refers to the parts' memory, owns nothing.
class dense_path {
  public:
    dense_path() noexcept = default;
    /// From matrices in memory.
    dense_path(const folded_ffn_parts& parts, const float_ops& ops) noexcept
        : up_(parts.up), down_(parts.down), neurons_(parts.neurons), activation_(parts.activation),
          ops_(ops) {}
    /// From the neurons.
    dense_path(const folded_ffn_parts& parts, const float_ops& ops, const neuron_products& products) noexcept
        : products_(products), neurons_(parts.neurons), activation_(parts.activation), ops_(ops) {
        residual_bytes_ = parts.neurons.shape().residual ? parts.predictor.bytes() : 0;
    }

    /// Whether `up` and `down` are used, not the neurons' bytes.
    bool has_matrices() const noexcept { return up_.n() != 0; }
    /// Bytes of a batch's scratch memory, for all parts.
    std::size_t scratch_bytes(std::size_t rows, std::size_t parts) const noexcept {
        return carve({}, rows, parts).bytes;
    }
    /// Bytes of weights that a batch reads.
    std::size_t bytes_read() const noexcept {
        return has_matrices() ? up_.bytes() + down_.bytes()
                              : neurons_.shape().neurons * neurons_.layout().record_bytes + residual_bytes_;
    }

    /// Phase 0: the part's rows of x.
    void quantize_inputs(const detail::folded_ffn_job& j) const noexcept {
        const memory m = memory_of(j);
        const range rows = j.own_rows();
        if (activations a = m.input; a.layout().k != 0 && rows.size() != 0)
            a.quantize(j.b.x, rows);
    }
    /// Phase 1: sigma(u) of the part's neurons.
    void compute_hidden(const detail::folded_ffn_job& j) const noexcept {
        const range mine = j.share_of(neurons_.shape().neurons);
        if (mine.size() == 0)
            return;
        const memory m = memory_of(j);
        if (has_matrices())
            up_.run(j.b.x, m.input, m.hidden, {.channels = mine});
        else
            products_.inputs(m.input, m.hidden, mine, tiles_of(m, j));
        for (std::size_t r = 0; r < j.rows(); ++r) {
            float* u = m.hidden.row(r) + mine.begin;
            activation_.apply(ops_, u, u, mine.size());
        }
    }
    /// Phase 2: the part's rows of sigma(u).
    void quantize_hidden(const detail::folded_ffn_job& j) const noexcept {
        const memory m = memory_of(j);
        const range rows = j.own_rows();
        if (has_matrices()) {
            if (activations a = m.activated; a.layout().k != 0 && rows.size() != 0)
                a.quantize(m.hidden, rows);
            return;
        }
        for (std::size_t b = 0; b < products_.hidden_blocks() && rows.size() != 0; ++b) {
            const range neurons = products_.neurons_of(b);
            products_.hidden(b, m.blocks, j.rows())
                .quantize({m.hidden.data + neurons.begin, m.hidden.rows, neurons.size(), m.hidden.stride},
                          rows);
        }
    }
    /// Phase 3: the part's outputs.
    void compute_outputs(const detail::folded_ffn_job& j) const noexcept {
        const range outputs = j.share_of(neurons_.shape().outputs);
        if (outputs.size() == 0)
            return;
        const memory m = memory_of(j);
        if (has_matrices())
            down_.run(m.hidden, m.activated, j.b.y, {.channels = outputs});
        else
            products_.outputs(m.blocks, j.b.y, outputs, tiles_of(m, j));
    }

  private:
    struct memory {
        activations input;
        activations activated;       ///< sigma(u) for `down`
        std::span<std::byte> blocks; ///< of `neuron_products`: sigma(u), quantized
        std::span<std::byte> tiles;  ///< of `neuron_products`, of all parts
        matrix_view<float> hidden;   ///< u, then sigma(u)
        std::size_t bytes = 0;
    };

    memory carve(std::span<std::byte> scratch, std::size_t rows, std::size_t parts) const noexcept {
        detail::scratch_carver c(scratch);
        memory m;
        if (has_matrices()) {
            m.input = c.take_activations(up_, rows);
            m.activated = c.take_activations(down_, rows);
        } else {
            m.input = c.take_activations(products_.input_layout(), rows);
            m.blocks = c.take_bytes(products_.hidden_bytes(rows));
            m.tiles = c.take_bytes(parts * products_.memory_bytes());
        }
        const std::size_t stride = neurons_.layout().padded;
        m.hidden = {c.take<float>(rows * stride), rows, neurons_.shape().neurons, stride};
        m.bytes = c.bytes();
        return m;
    }
    memory memory_of(const detail::folded_ffn_job& j) const noexcept {
        require_buffer(j.b.scratch, j.b.scratch.size(), "folded_ffn: scratch"); // its alignment
        const memory m = carve(j.b.scratch, j.rows(), j.parts);
        require_buffer(j.b.scratch, m.bytes, "folded_ffn: scratch");
        return m;
    }
    std::span<std::byte> tiles_of(const memory& m, const detail::folded_ffn_job& j) const noexcept {
        const std::size_t bytes = products_.memory_bytes();
        return m.tiles.subspan(j.part * bytes, bytes);
    }

    any_linear up_, down_;
    neuron_products products_;
    neuron_rows neurons_;
    activation_function activation_;
    float_ops ops_;
    std::size_t residual_bytes_ = 0; ///< of a predictor that holds a share of W1
};

} // namespace crumb::inline CRUMB_ABI
