#include "model/rope.hpp"

#include "gguf/gguf.hpp"
#include "gguf/shown_text.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

namespace lm {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

constexpr std::string_view scaling_names[] = {"none", "linear", "yarn", "longrope"};

/// How much YaRN keeps of frequency i: 1 of those that turn `fast` times or more in the context that the
/// model was trained on, 0 of those that turn `slow` times or less.
std::vector<double> kept_by_yarn(const rope_shape& rope) {
    constexpr double fast = 32, slow = 1;
    const double dims = static_cast<double>(rope.dims);
    const auto pair_that_turns = [&](double times) {
        return dims * std::log(static_cast<double>(rope.trained_context) / (times * 2 * std::numbers::pi)) /
               (2 * std::log(rope.base));
    };
    const double low = std::max(0.0, std::floor(pair_that_turns(fast)));
    const double high = std::min(dims - 1, std::ceil(pair_that_turns(slow)));
    std::vector<double> kept(rope.dims / 2);
    for (std::size_t i = 0; i < kept.size(); ++i)
        kept[i] = 1 - std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    return kept;
}

} // namespace

result<rope_shape> read_rope(const gguf& file, const architecture_traits& traits, std::size_t head_size,
                             std::size_t context) {
    const auto key = [&](const char* name) { return std::string(traits.name) + "." + name; };
    status error;
    const auto take = [&](const auto& value) {
        if (!value && error.ok())
            error = value.error();
        return value ? *value : std::decay_t<decltype(*value)>{};
    };
    rope_shape rope;
    rope.pairing = traits.pairing;
    rope.dims = take(file.get_u32(key("rope.dimension_count"), static_cast<std::uint32_t>(head_size)));
    rope.base = double{take(file.get_f32(key("rope.freq_base"), 10000.0f))};
    rope.trained_context =
        take(file.get_u32(key("rope.scaling.original_context_length"), static_cast<std::uint32_t>(context)));
    rope.magnitude = double{take(file.get_f32(key("rope.scaling.attn_factor"), 1.0f))};
    const std::string_view name = take(file.get_string(key("rope.scaling.type"), "linear"));
    // Older files have another key for the factor.
    const char* factor_key =
        file.find(key("rope.scaling.factor")) != nullptr ? "rope.scaling.factor" : "rope.scale_linear";
    const double factor = double{take(file.get_f32(key(factor_key), 0.0f))};
    if (!error.ok())
        return error;
    const auto* kind = std::find(std::begin(scaling_names), std::end(scaling_names), name);
    if (kind == std::end(scaling_names))
        return status::error(errc::unsupported, "key %s is %s; none, linear, yarn and longrope are supported",
                             key("rope.scaling.type").c_str(), quoted(name).c_str());
    const auto scaling = static_cast<rope_scaling>(kind - std::begin(scaling_names));
    if (rope.dims == 0 || rope.dims % 2 != 0 || rope.dims > head_size)
        return status::error(errc::bad_shape,
                             "key %s is %zu: it must be even, not 0, and at most the head size of %zu",
                             key("rope.dimension_count").c_str(), rope.dims, head_size);
    if (!(rope.base > 0))
        return status::error(errc::invalid_argument, "key %s is not positive", key("rope.freq_base").c_str());
    if (factor < 0)
        return status::error(errc::invalid_argument, "key %s is %g: a factor is positive",
                             key(factor_key).c_str(), factor);
    if (!(rope.magnitude > 0))
        return status::error(errc::invalid_argument, "key %s is %g: a factor is positive",
                             key("rope.scaling.attn_factor").c_str(), rope.magnitude);
    if (rope.trained_context == 0)
        return status::error(errc::invalid_argument, "key %s is 0: it has 1 token or more",
                             key("rope.scaling.original_context_length").c_str());
    if (factor != 0 && scaling != rope_scaling::none)
        rope.scale = 1 / factor;
    if (scaling != rope_scaling::yarn)
        return rope;
    if (!(rope.base > 1))
        return status::error(errc::invalid_argument, "key %s is %g: yarn needs more than 1",
                             key("rope.freq_base").c_str(), rope.base);
    for (const double kept : kept_by_yarn(rope))
        rope.factors.push_back(static_cast<float>(1 / (rope.scale * (1 - kept) + kept)));
    rope.long_factors = rope.factors;
    rope.magnitude *= std::max(1.0, 1 - 0.1 * std::log(rope.scale));
    rope.scale = 1;
    return rope;
}

status set_factors(rope_shape& rope, std::vector<float> usual, std::vector<float> in_long_contexts) {
    for (const auto* factors : {&usual, &in_long_contexts})
        for (std::size_t i = 0; i < factors->size(); ++i)
            if (!((*factors)[i] > 0))
                return status::error(errc::invalid_argument,
                                     "rope factor %zu is %g: factors of frequencies are positive", i,
                                     double{(*factors)[i]});
    const auto apply = [](std::vector<float> factors, const std::vector<float>& of_yarn) {
        for (std::size_t i = 0; i < factors.size() && !of_yarn.empty(); ++i)
            factors[i] *= of_yarn[i];
        return factors.empty() ? of_yarn : factors;
    };
    rope.factors = apply(std::move(usual), rope.factors);
    rope.long_factors = apply(std::move(in_long_contexts), rope.long_factors);
    return {};
}

} // namespace lm
