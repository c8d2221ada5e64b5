// Codebooks of weights, trained on the matrices of a file.
#pragma once

#include "train/calibration.hpp"

#include <crumb/offline/weights/codebook.hpp>

namespace lm {

/// Samples of the attention and feed-forward matrices of a file, for training codebooks; one matrix after
/// another is decoded. `source` are the file's own table sets, of matrices that are packed already.
crumb::result<crumb::group_samples> sample_matrices(const gguf& file, const importances& importance,
                                                    const matrix_extras& source);

/// The table set of a format, trained on samples; empty if the format needs none.
crumb::result<std::vector<std::int8_t>> train_codebooks(const crumb::group_samples& samples, weight_type type,
                                                        const progress_function& progress = {});

} // namespace lm
