// Quantizing the matrices of a model: codebooks, calibration, error feedback.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "model/progress.hpp"
#include "model/session.hpp"
#include "train/nested.hpp"

#include <memory>

namespace lm {

/// What the matrices of a model become, and what is measured for that.
struct quantization {
    weight_type weights = weight_type::cb2s;
    nested_type nested;                         ///< if `weights` are nested
    weight_type vocabulary = weight_type::q8_0; ///< embedding and output matrix: q8_0 or stored
    std::string calibrate;                      ///< a text file, `self`, or empty: random tokens
    std::size_t chunks = 64;                    ///< windows of calibration text
    std::size_t sweeps = 3;                     ///< see `crumb::feedback_options`
    std::uint64_t seed = 1;
};

/// What is added to H for nested weights, as a share of its mean diagonal: codes that many precisions share
/// fit the calibration text closer than others.
inline constexpr double nested_damping = 0.05;

/// The file of a model with quantized matrices, not yet written.
struct quantized_model {
    std::shared_ptr<const void> memory; ///< of the new tensors
    gguf_writer file;                   ///< refers to `memory` and to the model's file
    std::size_t bytes = 0;              ///< of all matrices
    std::size_t weights = 0;            ///< in them
};

/// Quantizes the matrices of `m`: with error feedback on calibration text, but to formats with records, which
/// round by themselves, without text. The session is of the same model; it is fed and reset. Refuses nested
/// weights, which have corrections that no other format keeps.
crumb::result<quantized_model> quantize_model(const quantization& how, const model& m, session& s,
                                              const stage_function& progress = {});

/// The same as the bytes of the file.
crumb::result<buffer> quantized_file(const quantization& how, const model& m, session& s,
                                     const stage_function& progress = {});

} // namespace lm
