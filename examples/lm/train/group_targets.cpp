#include "train/group_targets.hpp"

#include <utility>

namespace lm {

using crumb::status;

status group_targets::begin(int bits, stream_inputs& inputs) {
    slot_ = crumb::nested_search::slot(bits);
    inputs_ = &inputs;
    inputs.center();
    auto shifted = crumb::shifted_weights::make(view(inputs.h));
    if (!shifted)
        return shifted.error();
    shifted_ = std::move(*shifted);
    if (h_.size() == 0)
        h_ = inputs.h;
    else
        h_ += inputs.h;
    input_[slot_].assign(inputs.input.begin(), inputs.input.end());
    return {};
}

status group_targets::add(const team& threads, std::size_t which, std::vector<float> weights, double share) {
    const std::size_t k = shifted_->k();
    const auto w = crumb::matrix(weights.data(), weights.size() / k, k);
    std::vector<double> output(w.rows);
    std::vector<status> each_part(threads.size());
    threads.run([&](std::size_t part, std::size_t parts) {
        const crumb::range own = crumb::split(w.rows, parts, part);
        // One number per output does not fit the text too closely: all the way.
        for (std::size_t r = own.begin; r < own.end; ++r) {
            output[r] = inputs_->lack.empty() ? 0.0 : inputs_->lack[r];
            for (std::size_t i = 0; i < k; ++i)
                output[r] += crumb::rounded(double{w.row(r)[i]} * (inputs_->input[i] + inputs_->gap[i]));
        }
        each_part[part] = shifted_->shift(w, view(inputs_->cross), view(inputs_->behind), share, own);
    });
    for (const status& s : each_part)
        if (!s)
            return s;
    each_[which].w[slot_] = std::move(weights);
    each_[which].output[slot_] = std::move(output);
    return {};
}

crumb::nested_targets group_targets::weights(std::size_t which, std::size_t k) const {
    crumb::nested_targets out;
    for (std::size_t p = 0; p < out.size(); ++p)
        out[p] = crumb::matrix<const float>(each_[which].w[p].data(), each_[which].w[p].size() / k, k);
    return out;
}

std::array<crumb::nested_means, crumb::nested_precisions> group_targets::means(std::size_t which) const {
    std::array<crumb::nested_means, crumb::nested_precisions> out;
    for (std::size_t p = 0; p < out.size(); ++p)
        out[p] = {input_[p], each_[which].output[p]};
    return out;
}

} // namespace lm
