// What plans call in compiled kernels, from translation units that each have their own flags.
#pragma once

#include <crumb/core/buffer.hpp>
#include <crumb/crumb.hpp>

#include <vector>

namespace {

/// Numbers within -1 .. 1 that every translation unit makes alike.
std::vector<float> numbers(std::size_t count, std::size_t step) {
    std::vector<float> v(count);
    for (std::size_t i = 0; i < count; ++i)
        v[i] = static_cast<float>(static_cast<int>(i * step % 1009) - 504) / 504.0f;
    return v;
}

/// Rows through a folded network, by lists of neurons or as whole batches from the neurons.
std::vector<float> folded(const char* isa, crumb::folded_batches batches) {
    const std::size_t inputs = 96, neurons = 80, outputs = 64, rows = 3;
    const auto up = numbers(neurons * inputs, 7919), down = numbers(neurons * outputs, 104729);
    const auto fold = numbers(outputs * inputs, 611953), predictor = numbers(neurons * inputs, 7907);
    const crumb::neuron_shape shape{neurons, inputs, outputs, crumb::row_codec::q8_0, crumb::row_codec::q4_0,
                                    false};
    crumb::buffer records(crumb::neuron_layout::of(shape)->bytes);
    const auto writer = crumb::neuron_writer::create(records, shape);
    for (std::size_t n = 0; n < neurons; ++n) {
        crumb::neuron_line line;
        line.slope = 0.5f;
        line.low = -0.4f;
        line.high = 0.7f;
        writer->line(n, line);
        writer->thresholds(n, line.low, line.high);
        crumb::encode_row(shape.in, up.data() + n * inputs, inputs, writer->in(n));
        crumb::encode_row(shape.out, down.data() + n * outputs, outputs, writer->out(n));
    }
    const crumb::folded_ffn_parts parts{
        .fold = *crumb::dense_linear<float>::plan({fold.data(), outputs, inputs}, {}, {isa}),
        .predictor = *crumb::dense_linear<float>::plan({predictor.data(), neurons, inputs}, {}, {isa}),
        .neurons = *writer->finish(),
        .activation = crumb::activation_function::kind::silu};
    const auto network =
        *crumb::folded_ffn::plan({inputs, neurons, outputs}, parts, {.batches = batches}, {isa});
    const auto x = numbers(rows * inputs, 15485863);
    std::vector<float> y(rows * outputs);
    const crumb::buffer scratch(network.scratch_bytes(rows));
    const crumb::folded_ffn_batch batch{{x.data(), rows, inputs}, {y.data(), rows, outputs}, scratch.bytes()};
    network.run(batch);
    y.push_back(static_cast<float>(network.count_missed(batch)));
    return y;
}

/// Attention over a cache of codes.
std::vector<float> cached(const char* isa) {
    const std::size_t tokens = 200, heads = 4, kv_heads = 2, head_size = 64;
    const crumb::kv_cache_options options{.layers = 1,
                                          .kv_heads = kv_heads,
                                          .head_size = head_size,
                                          .max_tokens = 256,
                                          .max_rows = tokens,
                                          .codec = crumb::kv_codec::kivi(4)};
    const crumb::buffer state(*crumb::kv_cache::state_bytes(options));
    auto cache = *crumb::kv_cache::create(options, state.bytes(), {isa});
    const crumb::buffer page(cache.page_bytes()), scratch(cache.encode_scratch_bytes());
    const auto k = numbers(tokens * kv_heads * head_size, 7919), v = numbers(k.size(), 104729);
    if (!cache.add_page(page.bytes()) ||
        !cache.write(0, {k.data(), tokens, kv_heads * head_size}, {v.data(), tokens, kv_heads * head_size}))
        return {};
    if (!cache.advance(tokens) || cache.encode(scratch.bytes()) == 0)
        return {};
    const auto attention = *crumb::kv_attention::plan(options, {.heads = heads}, {isa});
    const auto q = numbers(heads * head_size, 611953);
    std::vector<float> y(q.size());
    const crumb::buffer memory(attention.scratch_bytes(1));
    if (!attention.run({q.data(), 1, q.size()}, cache, 0, {y.data(), 1, y.size()}, memory.bytes(),
                       {.position = tokens - 1}))
        return {};
    return y;
}

std::vector<std::vector<float>> calls(const char* isa) {
    return {folded(isa, crumb::folded_batches::lists), folded(isa, crumb::folded_batches::dense),
            cached(isa)};
}

} // namespace
