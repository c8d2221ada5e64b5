// What of a model that is being quantized has been finished, in a partial file.
#pragma once

#include "train/format_plan.hpp"
#include "train/partial_file.hpp"
#include "train/quantized_tensors.hpp"

#include <crumb/format/nested_levels.hpp>

#include <map>
#include <optional>

namespace lm {

/// What all matrices have in common.
struct trained_levels {
    std::map<weight_type, std::vector<std::int8_t>> codebooks;
    crumb::nested_levels nested;
    format_plan formats;
};

/// What `--bits` and `--size` choose by.
struct measured_formats {
    std::map<weight_type, std::vector<std::int8_t>> codebooks;
    std::vector<format_curve> curves;
};

/// The file at `quantization::curves`, for runs of the same model, options and text with other sizes.
class kept_curves {
  public:
    /// Opens the file; `sizes`: the formats of that model. Refuses the file of other runs.
    static crumb::result<kept_curves> open(const quantization& how, const model& m,
                                           std::span<const std::int32_t> text,
                                           std::span<const format_curve> sizes);

    /// What has been kept, if it was.
    const std::optional<measured_formats>& found() const noexcept { return found_; }
    [[nodiscard]] crumb::status keep(const measured_formats& measured);

  private:
    partial_file file_;
    std::optional<measured_formats> found_;
};

/// The file at `quantization::partial`. A run with the same model, options and text takes what is in it, and
/// does the rest.
class kept_work {
  public:
    kept_work() = default;
    /// Opens the file and puts its tensors to `tensors`, which have to outlive this object. `text`: what is
    /// calibrated on, nothing if the model writes it. Refuses the file of another run.
    static crumb::result<kept_work> open(const quantization& how, const model& m,
                                         std::span<const std::int32_t> text, quantized_tensors& tensors);

    /// What has been kept, if it was.
    const std::optional<std::vector<std::int32_t>>& text() const noexcept { return text_; }
    const std::optional<trained_levels>& levels() const noexcept { return levels_; }

    /// A text that the model has written.
    [[nodiscard]] crumb::status keep(std::span<const std::int32_t> text);
    [[nodiscard]] crumb::status keep(const trained_levels& levels);
    /// One of the tensors.
    [[nodiscard]] crumb::status keep(const std::string& tensor);

  private:
    const quantized_tensors* tensors_ = nullptr;
    partial_file file_;
    std::optional<std::vector<std::int32_t>> text_;
    std::optional<trained_levels> levels_;
};

} // namespace lm
