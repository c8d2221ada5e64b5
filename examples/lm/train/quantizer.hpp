// Quantizing the matrices of a model: codebooks, calibration, error feedback.
#pragma once

#include "gguf/gguf_writer.hpp"
#include "model/progress.hpp"
#include "model/session.hpp"
#include "train/nested.hpp"

#include <memory>
#include <optional>

namespace lm {

class work_meter;

/// What the matrices of a model become, and what is measured for that.
struct quantization {
    weight_type weights = weight_type::cb2s;
    nested_type nested;                         ///< if `weights` are nested
    weight_type vocabulary = weight_type::q8_0; ///< embedding and output matrix: stored or leveled
    std::optional<double> bits;        ///< instead: formats by matrix, so many bits per weight at most
    std::optional<std::uint64_t> size; ///< or so many bytes of the whole file at most
    std::string calibrate;             ///< a text file, `self`, or empty: random tokens
    std::size_t chunks = 64;           ///< windows of calibration text
    std::size_t sweeps = 3;            ///< see `crumb::feedback_options`
    /// Calibrates on what the matrices read in the quantized model, nested ones at each of their precisions,
    /// layer after layer, with weights that have gone this share of the way to the full model's outputs;
    /// nothing: on the full model's own inputs.
    std::optional<double> towards = 0.5;
    std::uint64_t seed = 1;
    /// A file for what has been finished, where calibration takes time: a run that is stopped is gone on with
    /// by the next one, to the same bytes. Whoever has written the result removes it. Empty: none.
    std::string partial;
    /// A file for what formats cost, if they are chosen: taken if it is there, else made; for other sizes.
    std::string curves;

    bool chooses_formats() const noexcept { return bits || size; }
    bool is_nested() const noexcept { return weights == weight_type::nested && !chooses_formats(); }
};

/// What is added to H for nested weights, as a share of its mean diagonal: codes that many precisions share
/// fit the calibration text closer than others.
inline constexpr double nested_damping = 0.05;
/// The same for the vocabulary's matrix, whose rows are read as they are too where it is the embedding.
inline constexpr double vocabulary_damping = 0.1;

/// A matrix as it is written.
struct quantized_matrix {
    std::string tensor;
    std::string type; ///< of its weights
    std::size_t weights = 0, bytes = 0;
};

/// The file of a model with quantized matrices, not yet written.
struct quantized_model {
    std::shared_ptr<const void> memory;     ///< of the new tensors
    gguf_writer file;                       ///< refers to `memory` and to the model's file
    std::vector<quantized_matrix> matrices; ///< all, the vocabulary's included, in the order of the source

    std::size_t bytes() const noexcept;   ///< of all matrices
    std::size_t weights() const noexcept; ///< in them
};

/// Quantizes the matrices of `m`: with error feedback on calibration text, but to formats with records, which
/// round by themselves, without text. The session is of the same model; it is fed and reset. Towards the full
/// model, and to choose formats, matrices of `m` have to be multiplied as floats; the first makes them what
/// is written. Refuses nested weights, which have corrections that no other format keeps, text that is
/// shorter than the widest matrix, and sizes that no choice of formats reaches (the error says the smallest);
/// also a partial file of another run.
/// `meter` measures the work.
crumb::result<quantized_model> quantize_model(const quantization& how, model& m, session& s,
                                              const stage_function& progress = {},
                                              work_meter* meter = nullptr);

/// The same as the bytes of the file.
crumb::result<buffer> quantized_file(const quantization& how, model& m, session& s,
                                     const stage_function& progress = {});

} // namespace lm
