#include "lab/pruning.hpp"

#include "gguf/shown_text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <numeric>

namespace lm::lab {

using crumb::errc;
using crumb::result;
using crumb::status;

namespace {

constexpr std::string_view kinds[] = {"none", "magnitude", "wanda", "ria"};

/// Takes E[x_j^2] of what a matrix reads to the factors of its columns.
std::vector<double> column_factors(pruning::kind by, std::span<const float> mean_squares) {
    std::vector<double> out;
    for (const float each : mean_squares)
        out.push_back(std::pow(double{each}, by == pruning::kind::ria ? 0.25 : 0.5));
    return out;
}

void zero_lowest(std::span<float> w, std::span<const double> scores, double share) {
    std::vector<std::size_t> order(w.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto count = std::llround(share * static_cast<double>(w.size()));
    std::nth_element(order.begin(), order.begin() + count, order.end(), [&](std::size_t a, std::size_t b) {
        return scores[a] != scores[b] ? scores[a] < scores[b] : a < b;
    });
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
        w[order[i]] = 0;
}

void prune_matrix(std::span<float> w, double share) {
    std::vector<double> scores;
    for (const float each : w)
        scores.push_back(std::fabs(double{each}));
    zero_lowest(w, scores, share);
}

/// Row after row, which has as many weights as there are factors.
void prune_rows(std::span<float> w, const pruning& how, std::span<const double> factors) {
    const std::size_t k = factors.size();
    std::vector<double> columns(k), scores(k);
    for (std::size_t i = 0; i < w.size(); ++i)
        columns[i % k] += std::fabs(double{w[i]});
    for (; !w.empty(); w = w.subspan(k)) {
        double sum = 0;
        for (std::size_t j = 0; j < k; ++j)
            sum += std::fabs(double{w[j]});
        for (std::size_t j = 0; j < k; ++j) {
            const double size = std::fabs(double{w[j]});
            const double relative = size == 0 ? 0 : size / sum + size / columns[j];
            scores[j] = (how.by == pruning::kind::ria ? relative : size) * factors[j];
        }
        zero_lowest(w.first(k), scores, how.share);
    }
}

} // namespace

result<pruning> pruning::parse(std::string_view text) {
    pruning out;
    const auto colon = std::min(text.find(':'), text.size());
    const auto* found = std::find(std::begin(kinds), std::end(kinds), text.substr(0, colon));
    const std::string_view share = text.substr(std::min(colon + 1, text.size()));
    const auto [end, error] = std::from_chars(share.data(), share.data() + share.size(), out.share);
    if (found == std::end(kinds) || found == kinds || error != std::errc() ||
        end != share.data() + share.size() || !(out.share >= 0 && out.share < 1))
        return status::error(errc::invalid_argument,
                             "--by %s: known are magnitude, wanda and ria, each with :<share> from 0 to "
                             "below 1",
                             shown_text(text).c_str());
    out.by = static_cast<kind>(found - kinds);
    return out;
}

std::string pruning::name() const {
    std::string out(kinds[static_cast<std::size_t>(by)]);
    char digits[32]; // as few as read back to the same number
    return out.append(":").append(digits, std::to_chars(digits, digits + sizeof digits, share).ptr);
}

result<double> prune(model& m, const pruning& how, std::span<const std::vector<float>> mean_squares) {
    std::size_t left = 0, all = 0;
    for (const named_matrix& each : m.matrices()) {
        if (!each.role.is_ffn())
            continue;
        const std::span<float> w = m.floats(each);
        if (w.empty())
            return status::error(errc::unsupported, "pruning needs float weights, which %s has not",
                                 each.name.c_str());
        if (how.needs_inputs()) {
            const std::size_t input = each.role.input();
            if (input >= mean_squares.size() || mean_squares[input].size() != each.m->k())
                return status::error(errc::bad_shape, "mean_squares: none for the %zu inputs of %s",
                                     each.m->k(), each.name.c_str());
            const auto& squares = mean_squares[input];
            if (!std::all_of(squares.begin(), squares.end(), [](float x) { return std::isfinite(x); }))
                return status::error(errc::not_finite, "mean_squares: the inputs of %s are not finite",
                                     each.name.c_str());
            prune_rows(w, how, column_factors(how.by, squares));
        } else if (how.by == pruning::kind::magnitude) {
            prune_matrix(w, how.share);
        }
        all += w.size();
        left += w.size() - static_cast<std::size_t>(std::count(w.begin(), w.end(), 0.0f));
    }
    return static_cast<double>(left) / static_cast<double>(all);
}

} // namespace lm::lab
