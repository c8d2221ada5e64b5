// Quantizing the matrices of a model: codebooks, calibration, error feedback.
#pragma once

#include "model/model.hpp"
#include "model/session.hpp"

#include <crumb/offline/common/second_moments.hpp>
#include <crumb/offline/weights/codebook.hpp>

#include <functional>

namespace lm {

/// Called now and then with what is done and what there is to do.
using progress_function = std::function<void(std::size_t done, std::size_t all)>;

/// Mean squared inputs of matrices by `matrix_role::input`.
using importances = std::vector<std::vector<float>>;

/// The attention and feed-forward matrices of a file as codebooks are trained on them; `importance` has to
/// outlive it.
struct training_set {
    std::vector<std::vector<float>> floats;
    std::vector<crumb::training_matrix> matrices;
    /// `source` are the file's own table sets, of matrices that are packed already.
    static crumb::result<training_set> read(const gguf& file, const importances& importance,
                                            const codebook_sets& source);
};

/// The table set of a format, trained on a file's matrices; empty if the format needs none.
crumb::result<std::vector<std::int8_t>> train_codebooks(const training_set& set, weight_type type,
                                                        const progress_function& progress = {});

/// The text to calibrate on, at most `chunks` windows: of the file named `text`; if that is `self`, written
/// by the model at temperature 1; if it is empty, uniformly random tokens, which tell at least which inputs
/// are large and how the weights before make them vary together.
crumb::result<std::vector<std::int32_t>> calibration_text(const std::string& text, const model& m, session& s,
                                                          std::size_t window, std::size_t chunks,
                                                          std::uint64_t seed);

/// What a model's matrices read while it is fed a text, window by window of `window` tokens.
class calibration {
  public:
    calibration(const model& m, session& s, std::span<const std::int32_t> text, std::size_t window)
        : m_(m), s_(s), text_(text), window_(window) {}

    std::size_t windows() const noexcept { return text_.size() / window_; }
    /// Mean squares of all inputs.
    crumb::result<importances> mean_squares(const progress_function& progress = {});
    /// Sums of x x^T of the inputs of some layers; the rest is left out.
    crumb::result<std::vector<crumb::second_moments<double>>> moments(crumb::range layers,
                                                                      const progress_function& progress = {});

    /// Feeds the text and hands over the inputs of all matrices by number.
    crumb::status
    watch(const std::function<crumb::status(std::size_t input, const crumb::matrix_view<const float>& x)>& f,
          const progress_function& progress);

  private:
    const model& m_;
    session& s_;
    std::span<const std::int32_t> text_;
    std::size_t window_;
};

/// What is added to H for nested weights, as a share of its mean diagonal: codes that many precisions share
/// fit the calibration text closer than others.
inline constexpr double nested_damping = 0.05;

struct quantize_options;
/// A file of `m` with quantized matrices, as `quantize` writes it. The session is of the same model; it is
/// fed and reset.
crumb::result<buffer> quantized_file(const quantize_options& options, const model& m, session& s);

} // namespace lm
