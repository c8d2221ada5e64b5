#include "lab/features.hpp"

namespace lm::lab {

using crumb::result;
using crumb::status;

result<std::vector<prompt_features>> activation_features(study& prompts, std::size_t layer) {
    std::vector<prompt_features> out(prompts.prompts());
    const auto matrices = prompts.of().matrices();
    const status done = prompts.for_each_prompt(
        "features", [&](session& s, std::span<const std::int32_t> prompt, std::size_t i) -> status {
            s.observe([&](const matrix& reader, const crumb::matrix_view<const float>& x, std::size_t part,
                          std::size_t) {
                for (const named_matrix& each : matrices)
                    if (part == 0 && each.m == &reader && each.role.layer == layer && each.role.reads == 0)
                        return out[i].add(x);
            });
            s.reset();
            s.precision(s.of().precisions()->parent);
            const auto fed = s.feed(prompt, 0);
            s.observe({});
            return fed.error();
        });
    if (!done)
        return done;
    return out;
}

} // namespace lm::lab
