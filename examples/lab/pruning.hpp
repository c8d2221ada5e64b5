// Unstructured pruning of the feed-forward matrices: what folding them (TARDIS) is compared with.
#pragma once

#include "model/model.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace lm::lab {

/// Which feed-forward weights become 0: those of the lowest scores, the first among equals.
struct pruning {
    /// With w_ij the weight of output i and input j, and X_j = sqrt(E[x_j^2]):
    /// magnitude  |w_ij|, compared within the matrix
    /// wanda      |w_ij| X_j, within the row (Sun et al.)
    /// ria        (|w_ij| / sum_j |w_ij| + |w_ij| / sum_i |w_ij|) sqrt(X_j), within the row (Zhang et al.)
    enum class kind { none, magnitude, wanda, ria };
    kind by = kind::none;
    double share = 0; ///< of the weights of a matrix or row, rounded to whole ones; in [0, 1)

    bool needs_inputs() const noexcept { return by == kind::wanda || by == kind::ria; }

    /// From <kind>:<share>, `none` aside.
    static crumb::result<pruning> parse(std::string_view text);
    /// As `parse` reads it.
    std::string name() const;
};

/// Prunes the matrices `up`, `down` and `gate` of all layers in place and returns the share of their weights
/// that are not 0. `mean_squares` are E[x_j^2] by `matrix_role::input`, as `calibration::mean_squares` has
/// them; magnitudes need none. Refuses matrices that are not multiplied as dense floats, and inputs that are
/// missing or not finite.
crumb::result<double> prune(model& m, const pruning& how, std::span<const std::vector<float>> mean_squares);

} // namespace lm::lab
