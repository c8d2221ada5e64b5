#include "train/format_choice.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace lm {

using crumb::errc;
using crumb::status;

namespace {

/// From one option of a matrix to the next one that lies on the lower convex hull of losses over bytes.
struct step {
    std::size_t matrix, to;
    std::uint64_t bytes;
    double gain; ///< per byte
};

/// The options on the hull, by bytes.
std::vector<std::size_t> hull_of(const std::vector<format_option>& options) {
    std::vector<std::size_t> order(options.size()), hull;
    for (std::size_t i = 0; i < order.size(); ++i)
        order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::tuple(options[a].bytes, options[a].loss, a) <
               std::tuple(options[b].bytes, options[b].loss, b);
    });
    const auto slope = [&](std::size_t a, std::size_t b) {
        return (options[a].loss - options[b].loss) / static_cast<double>(options[b].bytes - options[a].bytes);
    };
    for (const std::size_t next : order) {
        if (!hull.empty() && options[next].loss >= options[hull.back()].loss)
            continue;
        while (hull.size() > 1 && slope(hull.back(), next) >= slope(hull[hull.size() - 2], hull.back()))
            hull.pop_back();
        hull.push_back(next);
    }
    return hull;
}

} // namespace

crumb::result<std::vector<std::size_t>> choose_formats(std::span<const std::vector<format_option>> matrices,
                                                       std::uint64_t budget) {
    std::vector<std::size_t> chosen;
    std::vector<step> steps;
    std::uint64_t used = 0;
    for (std::size_t m = 0; m < matrices.size(); ++m) {
        const auto& options = matrices[m];
        if (options.empty())
            return status::error(errc::invalid_argument, "matrix %zu has no format to choose from", m);
        for (const format_option& o : options)
            if (!std::isfinite(o.loss))
                return status::error(errc::not_finite, "matrix %zu: the loss of a format is %g", m, o.loss);
        const auto hull = hull_of(options);
        chosen.push_back(hull.front());
        used += options[hull.front()].bytes;
        for (std::size_t i = 1; i < hull.size(); ++i) {
            const format_option &from = options[hull[i - 1]], &to = options[hull[i]];
            const std::uint64_t more = to.bytes - from.bytes;
            steps.push_back({m, hull[i], more, (from.loss - to.loss) / static_cast<double>(more)});
        }
    }
    if (used > budget)
        return status::error(errc::invalid_argument, "%llu bytes are needed at least, %llu are there",
                             static_cast<unsigned long long>(used), static_cast<unsigned long long>(budget));
    // Steps of a matrix gain less and less, so that they stay in order.
    std::sort(steps.begin(), steps.end(), [](const step& a, const step& b) {
        return std::tuple(-a.gain, a.matrix, a.bytes) < std::tuple(-b.gain, b.matrix, b.bytes);
    });
    std::vector<bool> ended(matrices.size(), false);
    for (const step& s : steps) {
        if (ended[s.matrix] || s.bytes > budget - used) {
            ended[s.matrix] = true;
            continue;
        }
        chosen[s.matrix] = s.to;
        used += s.bytes;
    }
    return chosen;
}

} // namespace lm
