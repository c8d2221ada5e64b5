// The two products of a feed-forward network from the bytes of its neurons, for many rows at a time.
#pragma once

#include <crumb/dispatch/ffn.hpp>
#include <crumb/op/activation_function.hpp>
#include <crumb/op/any_linear.hpp>

namespace crumb::inline CRUMB_ABI {

/// y = W2^T sigma(W1 x + b1) + b2 for batches of rows with int8 activations: blocks of neurons are turned
/// into packed tiles that stay in cache (see `kernel::pack_inputs`, `kernel::pack_outputs`), then multiplied
/// as `linear` multiplies Q8_0. No second copy of the weights exists. Refers to the neurons, owns nothing.
class neuron_products {
  public:
    neuron_products() noexcept = default;

    /// For rows in codecs with scales. `output_bias` (b2) is empty or a value per output.
    static result<neuron_products> plan(const neuron_rows& neurons, std::span<const float> output_bias,
                                        const char* isa = nullptr) noexcept {
        const auto index = choose_isa(isa);
        if (!index)
            return index.error();
        const auto& shape = neurons.shape();
        if (!output_bias.empty() && output_bias.size() != shape.outputs)
            return status::error(errc::bad_shape, "bias has %zu values, the neurons have %zu outputs",
                                 output_bias.size(), shape.outputs);
        const auto& functions = dispatch::functions_at<dispatch::ffn_functions>(*index);
        neuron_products p;
        p.pack_inputs_ = functions.of[static_cast<std::size_t>(shape.in)].pack_inputs;
        p.pack_outputs_ = functions.of[static_cast<std::size_t>(shape.out)].pack_outputs;
        if (p.pack_inputs_ == nullptr || p.pack_outputs_ == nullptr)
            return status::error(errc::unsupported, "products of whole batches with neurons in %s and %s",
                                 row_codec_names[static_cast<std::size_t>(shape.in)],
                                 row_codec_names[static_cast<std::size_t>(shape.out)]);
        p.product_ = &dispatch::functions_of<q8_0>(static_cast<std::size_t>(linear_mode::exact), *index);
        p.neurons_ = neurons;
        p.output_bias_ = output_bias.empty() ? nullptr : output_bias.data();
        return p;
    }

    /// Neurons and outputs that are tiles at a time, at least.
    static constexpr std::size_t step = 32;

    activation_plan input_layout() const noexcept { return layout(neurons_.shape().inputs); }
    activation_plan hidden_layout() const noexcept { return layout(neurons_.shape().neurons); }
    /// Bytes of memory that one thread needs for batches of `rows` rows.
    std::size_t tile_bytes(std::size_t rows) const noexcept {
        const auto& s = neurons_.shape();
        const std::size_t in = bias_bytes() + bytes_of(block(s.inputs), s.inputs) +
                               (s.rest ? round_up(rows * block(s.inputs) * sizeof(float), alignment) : 0);
        return std::max(in, bytes_of(block(s.neurons), s.neurons));
    }

    /// u[r, n] = bias + sum over k of w[n, k] x[r, k] for a range of neurons that begins at a multiple of
    /// `step`; `u` is rows x neurons. If the neurons hold the rest of a predictor, u[r, n] must have been its
    /// estimate, and the sum is added. `memory`: `tile_bytes(rows)`, aligned.
    void inputs(const activations& x, const matrix_view<float>& u, range neurons,
                std::span<std::byte> memory) const noexcept {
        const auto& s = neurons_.shape();
        neurons = neurons.within(s.neurons);
        const std::size_t most = block(s.inputs);
        float* bias = reinterpret_cast<float*>(memory.data());
        memory = memory.subspan(bias_bytes());
        float* rest = reinterpret_cast<float*>(memory.data() + bytes_of(most, s.inputs));
        for (std::size_t n = neurons.begin; n < neurons.end; n += most) {
            const std::size_t here = std::min(most, neurons.end - n);
            kernel::linear_args args = tiles(memory, here, s.inputs);
            pack_inputs_({neurons_.records(),
                          neurons_.layout().record_bytes,
                          sizeof(neuron_line),
                          {n, n + here},
                          {0, s.inputs},
                          const_cast<half*>(args.scales),
                          const_cast<std::uint8_t*>(args.codes)});
            for (std::size_t i = 0; i < here; ++i)
                bias[i] = neurons_.line(n + i).bias;
            const matrix_view<float> out{u.data + n, u.rows, here, u.stride};
            args.bias = bias;
            if (!s.rest) {
                detail::run_linear(*product_, args, x, out, {});
                continue;
            }
            const auto sums = matrix(rest, u.rows, here);
            detail::run_linear(*product_, args, x, sums, {});
            for (std::size_t r = 0; r < u.rows; ++r)
                for (std::size_t i = 0; i < here; ++i)
                    out.row(r)[i] += sums.row(r)[i];
        }
    }

    /// y[r, c] = b2[c] + sum over n of hidden[r, n] w[n, c] for a range of outputs that begins at a multiple
    /// of `step`; `y` is rows x outputs.
    void outputs(const activations& hidden, const matrix_view<float>& y, range outputs,
                 std::span<std::byte> memory) const noexcept {
        const auto& s = neurons_.shape();
        outputs = outputs.within(s.outputs);
        const std::size_t most = block(s.neurons);
        for (std::size_t c = outputs.begin; c < outputs.end; c += most) {
            const std::size_t here = std::min(most, outputs.end - c);
            kernel::linear_args args = tiles(memory, here, s.neurons);
            pack_outputs_({neurons_.records(),
                           neurons_.layout().record_bytes,
                           neurons_.layout().out_offset,
                           {0, s.neurons},
                           {c, c + here},
                           const_cast<half*>(args.scales),
                           const_cast<std::uint8_t*>(args.codes)});
            args.bias = output_bias_ != nullptr ? output_bias_ + c : nullptr;
            detail::run_linear(*product_, args, hidden, {y.data + c, y.rows, here, y.stride}, {});
        }
    }

  private:
    static constexpr std::size_t cache_bytes = std::size_t{1} << 20; ///< of tiles that wait for their product

    activation_plan layout(std::size_t k) const noexcept {
        activation_layout l = product_->layout;
        l.k = k;
        return {l, product_->quantize};
    }
    std::size_t bias_bytes() const noexcept {
        return round_up(block(neurons_.shape().inputs) * sizeof(float), alignment);
    }
    static std::size_t bytes_of(std::size_t channels, std::size_t k) noexcept {
        return round_up(packed_layout<q8_0>::of(channels, k)->bytes, alignment);
    }
    /// Channels whose tiles fit into `cache_bytes`, whole steps.
    static std::size_t block(std::size_t k) noexcept {
        const std::size_t channels = cache_bytes / (bytes_of(step, k) / step + 1) / step * step;
        return channels < step ? step : channels > 256 ? 256 : channels;
    }
    static kernel::linear_args tiles(std::span<std::byte> memory, std::size_t channels,
                                     std::size_t k) noexcept {
        const auto layout = *packed_layout<q8_0>::of(channels, k);
        kernel::linear_args args;
        args.scales = reinterpret_cast<const half*>(memory.data() + layout.scales_offset);
        args.codes = reinterpret_cast<const std::uint8_t*>(memory.data() + layout.codes_offset);
        args.groups = layout.groups;
        args.n = channels;
        return args;
    }
    neuron_rows neurons_;
    const float* output_bias_ = nullptr;
    const dispatch::linear_functions* product_ = nullptr;
    void (*pack_inputs_)(const kernel::neuron_tile_args&) noexcept = nullptr;
    void (*pack_outputs_)(const kernel::neuron_tile_args&) noexcept = nullptr;
};

} // namespace crumb::inline CRUMB_ABI
