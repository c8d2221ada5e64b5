// What the neurons of a model see, as numbers for plots.
#pragma once

#include <crumb/offline/folding/activation_statistics.hpp>

#include <span>
#include <string>
#include <vector>

namespace lm {

/// The inputs of a layer's activation functions, and by how much errors of its neurons reach the outputs.
struct layer_inputs {
    crumb::activation_statistics inputs;
    std::span<const double> weight;
};

/// Writes a CSV, columns kind, layer, neuron, x, y:
/// - `density`: of the inputs of 50 neurons of the first and the last layer at x (TARDIS, figure 5);
/// - `share`: x of a neuron's inputs lie in an interval of the share y of their range (table 1);
/// - `error`: a line over the share x of a neuron's inputs leaves the squared error y of the outputs (figure
///   6).
crumb::status write_distributions(const std::string& path, std::span<const layer_inputs> layers);

} // namespace lm
