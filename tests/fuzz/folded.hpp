// Folded networks whose parts come from anywhere.
#pragma once

#include "fuzz.hpp"

#include <crumb/crumb.hpp>

namespace lm::fuzz {

/// Runs a network in all the ways there are: rows alone and together, in one part and in two, as lists and
/// dense. The results are the same bits wherever the library says so. Parts that do not fit each other are
/// refused.
inline void run_folded(const crumb::ffn_shape& network, const crumb::folded_ffn_parts& parts) {
    using enum crumb::folded_batches;
    constexpr std::size_t rows = 3;
    std::vector<float> first;
    for (const crumb::folded_batches batches : {lists, automatic, dense}) {
        const auto plan = crumb::folded_ffn::plan(network, parts, {.max_rows = rows, .batches = batches});
        if (!plan) {
            check_refusal(plan.error());
            continue;
        }
        const crumb::neuron_shape& s = plan->shape();
        check(s.inputs == network.inputs && s.neurons == network.neurons && s.outputs == network.outputs,
              "a network of another size");
        const auto x = inputs(rows * s.inputs);
        const auto compute = [&](std::size_t count, std::size_t threads) {
            std::vector<float> y(count * s.outputs);
            const std::vector<std::byte> zeros(plan->scratch_bytes(count, threads));
            const exact_copy scratch(zeros);
            std::vector<crumb::folded_ffn_counters> counters(threads);
            const crumb::folded_ffn_batch batch{crumb::matrix<const float>(x.data(), count, s.inputs),
                                                crumb::matrix(y.data(), count, s.outputs), scratch.bytes(),
                                                counters};
            if (threads == 1)
                plan->run(batch);
            else
                for (std::size_t phase = 0; phase < crumb::folded_ffn::phases; ++phase)
                    for (std::size_t t = 0; t < threads; ++t)
                        plan->run_phase(phase, batch, t, threads);
            const auto counted = batch.counted();
            check(counted.neurons == count * s.neurons && counted.fixed <= counted.neurons &&
                      plan->count_missed(batch, threads) <= counted.neurons,
                  "more neurons counted than there are");
            return y;
        };
        const auto one = compute(1, 1), all = compute(rows, 1), split = compute(rows, 2);
        check(same_results(all, split), "two parts are not what one is");
        if (batches == lists) {
            check(same_results(one, all), "a row of a batch is not what it is alone");
            first = one;
        } else if (batches == automatic) {
            check(same_results(one, first), "a row alone is not a list");
        }
    }
}

} // namespace lm::fuzz
