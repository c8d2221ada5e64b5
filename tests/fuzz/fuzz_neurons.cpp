// libFuzzer target: whatever the bytes are, stored neurons are refused or lie within them, and a network of
// them runs.
#include "folded.hpp"
#include "parts.hpp"

namespace lm::fuzz {

void run(std::span<const std::byte> input) {
    const exact_copy copy(input);
    const auto rows = crumb::neuron_rows::open(copy.bytes());
    if (!rows)
        return check_refusal(rows.error());
    const crumb::neuron_shape& s = rows->shape();
    check(rows->layout().bytes <= input.size(), "neurons of more than their bytes");
    float sum = 0;
    for (const std::size_t n : {std::size_t{0}, s.neurons / 2, s.neurons - 1}) {
        sum += rows->low()[n] + rows->high()[n] + rows->line(n).slope;
        for (const std::size_t i : {std::size_t{0}, s.inputs - 1})
            sum += crumb::row_weight(s.in, rows->in(n), i);
        for (const std::size_t i : {std::size_t{0}, s.outputs - 1})
            sum += crumb::row_weight(s.out, rows->out(n), i);
    }
    consume(std::bit_cast<std::uint32_t>(sum));
    // A network around them.
    if (s.inputs * (s.outputs + s.neurons) > 6000)
        return;
    choices choose(input);
    const weight_type formats[] = {weight_type::q8_0, weight_type::u2};
    dice random(1);
    crumb::folded_ffn_parts parts;
    crumb::buffer fold, predictor;
    const auto product = [&](crumb::buffer& memory, std::size_t n, weight_type type) {
        const bytes weights = packed(type, n, s.inputs, random);
        memory = crumb::buffer(weights.size());
        std::memcpy(memory.bytes().data(), weights.data(), weights.size());
        if (type == weight_type::u2)
            return crumb::any_linear(
                crumb::linear<crumb::u2>::plan(crumb::packed_view<crumb::u2>::open(memory.bytes()).value())
                    .value());
        return crumb::any_linear(
            crumb::linear<crumb::q8_0>::plan(crumb::packed_view<crumb::q8_0>::open(memory.bytes()).value())
                .value());
    };
    parts.fold = product(fold, s.outputs, choose.of(formats));
    parts.predictor = product(predictor, s.neurons, choose.of(formats));
    parts.neurons = *rows;
    run_folded({s.inputs, s.neurons, s.outputs}, parts);
}

} // namespace lm::fuzz
