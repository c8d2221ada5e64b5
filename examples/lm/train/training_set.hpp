// Codebooks of weights, trained on the matrices of a file.
#pragma once

#include "train/calibration.hpp"

#include <crumb/offline/weights/codebook.hpp>

namespace lm {

/// The attention and feed-forward matrices of a file as codebooks are trained on them; `importance` has to
/// outlive it.
struct training_set {
    std::vector<std::vector<float>> floats;
    std::vector<crumb::training_matrix> matrices;
    /// `source` are the file's own table sets, of matrices that are packed already.
    static crumb::result<training_set> read(const gguf& file, const importances& importance,
                                            const matrix_extras& source);
};

/// The table set of a format, trained on a file's matrices; empty if the format needs none.
crumb::result<std::vector<std::int8_t>> train_codebooks(const training_set& set, weight_type type,
                                                        const progress_function& progress = {});

} // namespace lm
