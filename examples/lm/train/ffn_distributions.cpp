#include "train/ffn_distributions.hpp"

#include "gguf/output_file.hpp"

#include <crumb/offline/folding/linear_range.hpp>

namespace lm {

using crumb::status;

status write_distributions(const std::string& path, std::span<const layer_inputs> layers) {
    constexpr std::size_t shown = 50, points = 128; ///< neurons with a density, and its points
    constexpr double share = 0.65, coverage = 0.85;
    auto file = output_file::create(path);
    if (!file)
        return file.error();
    file->write("kind,layer,neuron,x,y\n");
    const auto write = [&](const char* kind, std::size_t l, std::size_t n, double x, double y) {
        file->print("%s,%zu,%zu,%.6g,%.6g\n", kind, l, n, x, y);
    };
    for (std::size_t l = 0; l < layers.size(); ++l) {
        const crumb::activation_statistics& s = layers[l].inputs;
        for (std::size_t i = 0; (l == 0 || l + 1 == layers.size()) && i < shown && i < s.neurons(); ++i) {
            const std::size_t n = i * s.neurons() / std::min(shown, s.neurons());
            const double low = s.quantile(n, 0), high = s.quantile(n, 1);
            std::vector<double> x(points);
            for (std::size_t k = 0; k < points; ++k)
                x[k] = low + (high - low) * double(k) / double(points - 1);
            const auto density = s.density(n, x);
            for (std::size_t k = 0; k < points; ++k)
                write("density", l, n, x[k], density[k]);
        }
        for (std::size_t n = 0; n < s.neurons(); ++n) {
            write("share", l, n, share, s.shortest_share(n, share));
            const auto ranges = crumb::search_ranges(s, n);
            if (!ranges)
                return ranges.error();
            for (const crumb::linear_range& r : *ranges)
                if (r.covered >= coverage) {
                    write("error", l, n, r.covered, r.error * layers[l].weight[n]);
                    break;
                }
        }
    }
    return file->commit();
}

} // namespace lm
