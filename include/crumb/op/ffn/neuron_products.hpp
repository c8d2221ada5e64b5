// The two products of a feed-forward network from the bytes of its neurons, for many rows at a time.
#pragma once

#include <crumb/dispatch/ffn.hpp>
#include <crumb/op/ffn/activation_function.hpp>
#include <crumb/op/ffn/input_terms.hpp>
#include <crumb/op/ffn/scratch_carver.hpp>

namespace crumb::inline CRUMB_ABI {

/// y = W2^T sigma(W1 x + b1) + b2 for batches of rows with int8 activations: blocks of neurons are turned
/// into packed tiles that stay in cache (see `kernel::pack_inputs`, `kernel::pack_outputs`), then multiplied
/// as `linear` multiplies Q8_0. No second copy of the weights exists. Refers to the neurons and to what the
/// predictor refers to, owns nothing.
class neuron_products {
  public:
    neuron_products() noexcept = default;

    /// For rows in codecs with scales. `output_bias` (b2) is empty or a value per output. Neurons that hold
    /// the residual of a predictor need it, with quantized weights: W1 is the sum of both.
    CRUMB_WHEN_CALLED
    static result<neuron_products> plan(const neuron_rows& neurons, std::span<const float> output_bias,
                                        const any_linear& predictor = {}, const context& on = {}) noexcept {
        const auto index = choose_isa(on);
        if (!index)
            return index.error();
        const auto& shape = neurons.shape();
        if (!output_bias.empty() && output_bias.size() != shape.outputs)
            return status::error(errc::bad_shape, "bias has %zu values, the neurons have %zu outputs",
                                 output_bias.size(), shape.outputs);
        if (shape.residual && (predictor.n() != shape.neurons || predictor.k() != shape.inputs))
            return status::error(errc::bad_shape,
                                 "predictor of a residual: %zu x %zu for %zu neurons of %zu inputs",
                                 predictor.n(), predictor.k(), shape.neurons, shape.inputs);
        if (shape.residual && !predictor.reads_activations())
            return status::error(errc::unsupported,
                                 "products of whole batches with a predictor in floats and its residual");
        if (shape.residual && !predictor.can_unpack())
            return status::error(errc::unsupported, "products of whole batches with the residual of a "
                                                    "predictor in a format with records");
        const auto& functions = dispatch::functions_at<dispatch::ffn_functions>(*index);
        neuron_products p;
        p.pack_inputs_ = functions.of[static_cast<std::size_t>(shape.in)].pack_inputs;
        p.pack_outputs_ = functions.of[static_cast<std::size_t>(shape.out)].pack_outputs;
        if (p.pack_inputs_ == nullptr || p.pack_outputs_ == nullptr)
            return status::error(errc::unsupported, "products of whole batches with neurons in %s and %s",
                                 row_codec_names[static_cast<std::size_t>(shape.in)],
                                 row_codec_names[static_cast<std::size_t>(shape.out)]);
        p.product_ = &dispatch::functions_of<q8_0>(static_cast<std::size_t>(linear_mode::exact), *index);
        if (const status s = dispatch::check_compiled(*p.product_, q8_0::name); !s)
            return s;
        p.neurons_ = neurons;
        p.predictor_ = predictor;
        p.output_bias_ = output_bias.empty() ? nullptr : output_bias.data();
        return p;
    }

    /// Neurons and outputs that are tiles at a time, at least.
    static constexpr std::size_t step = 32;
    /// Neurons whose activations lie together.
    static constexpr std::size_t hidden_step = 512;

    /// Of the activations that `inputs` reads.
    activation_plan input_layout() const noexcept { return layout(neurons_.shape().inputs); }
    /// Blocks of `hidden_step` neurons.
    std::size_t hidden_blocks() const noexcept {
        return (neurons_.shape().neurons + hidden_step - 1) / hidden_step;
    }
    /// Bytes of the activations of all blocks.
    std::size_t hidden_bytes(std::size_t rows) const noexcept {
        return hidden_blocks() * activation_bytes(layout(hidden_step), rows);
    }
    /// The activations of neurons b hidden_step .. (b + 1) hidden_step - 1, in memory of `hidden_bytes`,
    /// aligned.
    activations hidden(std::size_t b, std::span<std::byte> memory, std::size_t rows) const noexcept {
        const std::size_t bytes = activation_bytes(layout(hidden_step), rows);
        return *activations::attach(memory.subspan(b * bytes, bytes), layout(neurons_of(b).size()), rows);
    }
    /// Neurons of a block.
    range neurons_of(std::size_t b) const noexcept {
        return {b * hidden_step, std::min((b + 1) * hidden_step, neurons_.shape().neurons)};
    }

    /// Bytes of memory that one thread needs.
    std::size_t memory_bytes() const noexcept {
        return std::max(carve_inputs({}, neurons_.shape().inputs).bytes, carve_outputs({}).bytes);
    }

    /// u[r, n] = bias + sum over k of w[n, k] x[r, k] for a range of neurons that begins at a multiple of
    /// `step`; `u` is rows x neurons. `memory`: `memory_bytes()`, aligned.
    void inputs(const activations& x, const matrix_view<float>& u, range neurons,
                std::span<std::byte> memory) const noexcept {
        const auto& s = neurons_.shape();
        neurons = neurons.within(s.neurons);
        const block_memory m = carve_inputs(memory, s.inputs);
        const std::size_t most = channels_of(s.inputs);
        for (std::size_t n = neurons.begin; n < neurons.end; n += most) {
            const std::size_t here = std::min(most, neurons.end - n);
            kernel::linear_args args = tiles(m.tiles, here, s.inputs);
            kernel::neuron_tile_args pack = pack_args(args);
            pack.row_offset = sizeof(neuron_line);
            pack.neurons = {n, n + here};
            pack.columns = {0, s.inputs};
            for (std::size_t i = 0; i < here; ++i)
                m.bias[i] = neurons_.line(n + i).bias;
            if (s.residual) {
                pack.max_other = predictor_.unpack(pack.neurons, m.others, m.other_scales);
                pack.others = m.others;
                pack.other_scales = m.other_scales;
                for (std::size_t i = 0; i < here; ++i)
                    m.bias[i] += predictor_.constant(n + i);
            }
            pack_inputs_(pack);
            args.bias = m.bias;
            detail::run_linear(*product_, args, x, {u.data + n, u.rows, here, u.stride}, {});
        }
    }

    /// y[r, c] = b2[c] + sum over n of hidden[r, n] w[n, c] for a range of outputs that begins at a multiple
    /// of `step`; `y` is rows x outputs. `all`: all blocks of `hidden`.
    void outputs(std::span<std::byte> all, const matrix_view<float>& y, range outputs,
                 std::span<std::byte> memory) const noexcept {
        const auto& s = neurons_.shape();
        outputs = outputs.within(s.outputs);
        const block_memory m = carve_outputs(memory);
        const std::size_t most = channels_of(hidden_step);
        for (std::size_t b = 0; b < hidden_blocks(); ++b) {
            const activations x = hidden(b, all, y.rows);
            for (std::size_t c = outputs.begin; c < outputs.end; c += most) {
                const std::size_t here = std::min(most, outputs.end - c);
                kernel::linear_args args = tiles(m.tiles, here, neurons_of(b).size());
                kernel::neuron_tile_args pack = pack_args(args);
                pack.row_offset = neurons_.layout().out_offset;
                pack.neurons = neurons_of(b);
                pack.columns = {c, c + here};
                pack_outputs_(pack);
                args.bias = output_bias_ != nullptr ? output_bias_ + c : nullptr;
                args.adds = b != 0;
                detail::run_linear(*product_, args, x, {y.data + c, y.rows, here, y.stride}, {});
            }
        }
    }

  private:
    static constexpr std::size_t cache_bytes = std::size_t{1} << 19; ///< of tiles that wait for their product

    /// What a block of tiles needs.
    struct block_memory {
        std::byte* tiles = nullptr;
        float* bias = nullptr;
        std::int8_t* others = nullptr; ///< of a residual
        float* other_scales = nullptr;
        std::size_t bytes = 0;
    };
    block_memory carve_inputs(std::span<std::byte> memory, std::size_t k) const noexcept {
        const std::size_t channels = channels_of(k), groups = detail::groups_of(k);
        detail::scratch_carver c(memory);
        block_memory m;
        m.tiles = c.take<std::byte>(bytes_of(channels, k));
        m.bias = c.take<float>(channels);
        if (neurons_.shape().residual) {
            m.others = c.take<std::int8_t>(channels * groups * group_size);
            m.other_scales = c.take<float>(channels * groups);
        }
        m.bytes = c.bytes();
        return m;
    }
    static block_memory carve_outputs(std::span<std::byte> memory) noexcept {
        detail::scratch_carver c(memory);
        block_memory m;
        m.tiles = c.take<std::byte>(bytes_of(channels_of(hidden_step), hidden_step));
        m.bytes = c.bytes();
        return m;
    }

    activation_plan layout(std::size_t k) const noexcept {
        activation_layout l = product_->layout;
        l.k = k;
        return {l, product_->quantize};
    }
    static std::size_t bytes_of(std::size_t channels, std::size_t k) noexcept {
        return packed_layout<q8_0>::of(channels, k)->bytes;
    }
    /// Channels whose tiles fit into `cache_bytes`, whole steps.
    static std::size_t channels_of(std::size_t k) noexcept {
        const std::size_t channels = cache_bytes / (bytes_of(step, k) / step + 1) / step * step;
        return std::max(channels, step);
    }
    static kernel::linear_args tiles(std::byte* memory, std::size_t channels, std::size_t k) noexcept {
        const auto layout = *packed_layout<q8_0>::of(channels, k);
        kernel::linear_args args;
        args.scales = reinterpret_cast<const half*>(memory + layout.scales_offset);
        args.codes = reinterpret_cast<const std::uint8_t*>(memory + layout.codes_offset);
        args.groups = layout.groups;
        args.n = channels;
        return args;
    }
    kernel::neuron_tile_args pack_args(const kernel::linear_args& tiles) const noexcept {
        kernel::neuron_tile_args args;
        args.records = neurons_.records();
        args.record_bytes = neurons_.layout().record_bytes;
        args.scales = const_cast<half*>(tiles.scales);
        args.codes = const_cast<std::uint8_t*>(tiles.codes);
        return args;
    }

    neuron_rows neurons_;
    any_linear predictor_;
    const float* output_bias_ = nullptr;
    const dispatch::linear_functions* product_ = nullptr;
    void (*pack_inputs_)(const kernel::neuron_tile_args&) noexcept = nullptr;
    void (*pack_outputs_)(const kernel::neuron_tile_args&) noexcept = nullptr;
};

} // namespace crumb::inline CRUMB_ABI
